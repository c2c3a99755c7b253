"""Hostile input: numbers at the extremes, objects that misbehave, the wrong kind of everything."""

from __future__ import annotations

import contextlib
import inspect
import math
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import dask.array as da
import numpy as np
import pytest
import torch

import attnext
import attnext.dask
import attnext.torch
from attnext import reference

ONES = np.ones((6, 1), dtype=np.float32)

# ---- bands of any integers -----------------------------------------------------------------------

M, N = 3, 5
EXTREMES = [0, 1, 2**60 - 1, 2**61, 2**61 + 2, 2**63 - 1, 2**63, 2**64 + 1, 10**30]


def band(offset: int, left: int, right: int, causal: bool) -> Any:
    """(M, N), by Python's own ints: who takes part."""

    def near(i: int, j: int) -> bool:
        return (
            (left == -1 or i + offset - left <= j)
            and (right == -1 or j <= i + offset + right)
            and not (causal and j > i + offset)
        )

    return np.array([[near(i, j) for j in range(N)] for i in range(M)])


def bands() -> list[tuple[int, int, int]]:
    """An offset that puts one end of a window, or the diagonal, near the keys; both far away."""
    found = []
    for far, width in product(EXTREMES, EXTREMES):
        for near in (-4, 0, 2, 7):
            found += [(near + far, far, width), (near - far, width, far), (near + far, far, -1)]
            found += [(near - far, -1, far), (near, far, width), (near + far, width, far)]
    return found


def test_bands_of_any_python_ints() -> None:
    """Nothing overflows, saturates too soon or is wrong, in C, in the reference, for arrays too."""
    q, kv = ONES[:M], ONES[:N]
    more: dict[str, Any] = {"empty_rows": "zero", "return_weights": True}
    twice = [np.stack([x, x]) for x in (q, kv, kv)]
    for case, (offset, left, right) in enumerate(bands()):
        causal = case % 5 == 0
        expected = band(offset, left, right, causal)
        options = {**more, "window": (left, right), "causal": causal}
        _, weights = attnext.dot_product_attention(q, kv, kv, causal_offset=offset, **options)
        label = f"{offset=}, {left=}, {right=}, {causal=}"
        np.testing.assert_array_equal(weights > 0, expected, label)
        offsets: Any = [offset, 1 - offset]
        if -(2**63) < offset < 2**63 and 1 - offset < 2**63:
            offsets = np.array(offsets)
        _, weights = attnext.dot_product_attention(*twice, causal_offset=offsets, **options)
        both = [expected, band(1 - offset, left, right, causal)]
        np.testing.assert_array_equal(weights > 0, both, label)
        if case % 7 == 0:
            _, exact = reference.dot_product_attention(*twice, causal_offset=offsets, **options)
            np.testing.assert_array_equal(exact > 0, both, label)


def test_bands_of_any_python_ints_across_blocks() -> None:
    q, kv = ONES[:M], ONES[:N]
    lazy = da.from_array(kv, chunks=(2, 1))
    for offset, left, right in bands()[::200]:
        options: dict[str, Any] = {"causal_offset": offset, "window": (left, right)}
        options |= {"empty_rows": "zero", "return_weights": True}
        _, weights = attnext.dask.dot_product_attention(q, lazy, lazy, **options)
        found = weights.compute(scheduler="sync") > 0
        np.testing.assert_array_equal(found, band(offset, left, right, False), str(options))


def test_the_band_of_the_report() -> None:
    options: dict[str, Any] = {"causal_offset": 2**61, "window": (2**63 - 1, 2**63 - 1)}
    for module in (attnext, reference):
        _, weights = module.dot_product_attention(
            ONES[:3], ONES[:5], ONES[:5], **options, return_weights=True
        )
        np.testing.assert_allclose(weights, np.full((3, 5), 0.2), rtol=1e-6)


# ---- what an argument raises when it is read -----------------------------------------------------


class OfMine(ValueError):
    """A user's own exception, which says more than its base."""


class Raises:
    """An object that raises whatever it is asked."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise self.error("on purpose")

    def __index__(self) -> int:
        raise self.error("on purpose")

    def __bool__(self) -> bool:
        raise AssertionError("nobody asks for its truth")


class RaisesGrad(Raises):
    @property
    def requires_grad(self) -> bool:
        raise self.error("on purpose")


def with_argument(name: str, value: Any) -> None:
    """A call of dot_product_attention that reads the value as this argument."""
    arguments = {"queries": ONES, "keys": ONES, "values": ONES, "dropout_p": 0.5, "seed": 1}
    if name == "dropout_mask":
        del arguments["seed"]
    attnext.dot_product_attention(**(arguments | {name: value}))


READ = [
    *("queries", "keys", "values", "valid_lens", "mask", "bias", "dropout_mask", "causal_offset"),
    *("seed", "scale", "dropout_p"),
]


@pytest.mark.parametrize("error", [OfMine, RecursionError, OSError, LookupError])
def test_what_an_argument_raises_stays_what_it_is(error: type[Exception]) -> None:
    """The same object, with its traceback, and a note of the argument."""
    for kind in (Raises, RaisesGrad):
        for name in READ:
            if kind is RaisesGrad and name == "seed":
                continue  # read as an int, of which nobody expects gradients
            with pytest.raises(error) as caught:
                with_argument(name, kind(error))
            assert type(caught.value) is error and caught.value.args == ("on purpose",)
            assert caught.value.__notes__ == [f"raised while reading the argument {name}"]
            assert caught.traceback[-1].name in ("__array__", "__index__", "requires_grad")
    with pytest.raises(error) as caught:
        attnext.dot_product_attention(ONES, ONES, ONES, window=(0, Raises(error)))
    assert caught.value.__notes__ == ["raised while reading the argument window[1]"]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, SystemExit])
def test_what_is_not_about_the_argument_passes_unchanged(error: type[BaseException]) -> None:
    for name in READ:
        with pytest.raises(error) as caught:
            with_argument(name, Raises(error))
        assert type(caught.value) is error and not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("error", [ValueError, TypeError, RuntimeError])
def test_a_plain_exception_gets_a_message_with_the_name(error: type[Exception]) -> None:
    """As NumPy's own do, which are of these types; where it comes from is its cause."""
    for name in READ:
        if name == "seed" and error is not TypeError:
            continue
        with pytest.raises(error, match=f"^{name} .*: on purpose$") as caught:
            with_argument(name, Raises(error))
        cause = caught.value.__cause__
        assert type(cause) is error and cause.__traceback__ is not None


# ---- every argument of everything ----------------------------------------------------------------


class Hostile:
    """An object that raises whatever it is asked, its repr too."""

    def _raise(self, *args: Any, **kwargs: Any) -> Any:
        raise OfMine("on purpose")

    __array__ = __index__ = __float__ = __int__ = __bool__ = __iter__ = __len__ = __repr__ = _raise


HOSTILE: list[Any] = [
    *(None, "abc", b"x", [1, 2], [[1], [2, 3]], {}, {1.0}, object(), int, 1j, True, -5, math.nan),
    *(10**5000, -(10**5000), np.zeros(3), np.arange(8), np.array(["a"]), np.zeros((0, 4))),
    *(torch.zeros(7), torch.zeros(7, dtype=torch.int64), torch.zeros(2, dtype=torch.bfloat16)),
    *(torch.zeros(2, requires_grad=True), np.array(None), np.zeros(2, "M8[s]"), Hostile()),
]


def ones(*shape: int) -> Any:
    return np.ones(shape, dtype=np.float32)


ARGUMENTS: dict[str, Any] = {
    **{"queries": ones(2, 3, 4), "keys": ones(2, 5, 4), "values": ones(2, 5, 6)},
    **{"W_q": ones(7, 4), "W_k": ones(7, 4), "w_v": ones(7), "grad_output": ones(2, 3, 6)},
    **{"X": ones(2, 3, 4), "weights": ones(2, 3, 4), "valid_len": [1, 2], "n": 1},
    **{"outputs": ones(2, 2, 3, 4), "lses": ones(2, 2, 3)},
    **{"key_size": 4, "query_size": 4, "num_hiddens": 7, "num_steps": 3},
    **{"W_v": ones(7, 6), "W_o": ones(7, 7), "value_size": 6, "num_heads": 7},
}


NOT_CALLED = ("AdditiveGradients", "MultiHeadGradients", "Memory", "Step", "Trace")
NOT_CALLED += ("convert", "revert", "scaled_dot_product_attention")  # with PyTorch's own arguments


def callables() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Every public callable of the modules that have the functions, and a call that is right."""
    found = {}
    for module in (attnext, reference, attnext.torch, attnext.dask, attnext.explain):
        for name in module.__all__:
            function = getattr(module, name)
            if not callable(function) or name in NOT_CALLED:
                continue
            parameters = inspect.signature(function).parameters
            if name == "layer":  # takes any object there is
                continue
            own = {n: ARGUMENTS[n] for n, p in parameters.items() if p.default is p.empty}
            if name in ("masked_softmax_backward", "merge_attention_backward"):
                own["grad_output"] = ones(2, 3, 4)
            if name == "multi_head_attention_backward":
                own["grad_output"] = ones(2, 3, 7)
            if module is attnext.torch:
                own = {n: torch.tensor(x) if np.ndim(x) else x for n, x in own.items()}
            found[f"{module.__name__}.{name}"] = function, own
    for kind in (
        attnext.AdditiveAttention(4, 4, 7, bias=True),
        attnext.DotProductAttention(),
        attnext.MultiHeadAttention(4, 4, 6, 6, 2, bias=True),
    ):
        inputs = {name: ARGUMENTS[name] for name in ("queries", "keys", "values")}
        kind(**inputs)
        found[f"{type(kind).__name__}.__call__"] = kind, inputs
        found[f"{type(kind).__name__}.train"] = kind.train, {}
        found[f"{type(kind).__name__}.backward"] = kind.backward, {"grad_output": ones(2, 3, 6)}
        rows = {name: ARGUMENTS[name] for name in ("keys", "values")}
        found[f"{type(kind).__name__}.memory"] = kind.memory, rows
        found[f"append to a memory of {type(kind).__name__}"] = kind.memory(**rows).append, rows
    twin = attnext.torch.AdditiveAttention(4, 4, 7)
    found["torch.AdditiveAttention.forward"] = (
        twin.forward,
        {name: torch.tensor(x) for name, x in inputs.items()},
    )
    return found


CALLABLES = callables()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLABLES)
def test_every_error_names_its_argument(name: str, threads: None) -> None:
    """First; or, where two shapes do not fit together, it names one of the two."""
    function, arguments = CALLABLES[name]
    # Dask takes its time: there each function gets some of them, and all of them get all.
    values = HOSTILE[len(name) % 4 :: 4] if name.startswith("attnext.dask") else HOSTILE
    known = inspect.signature(function).parameters
    with contextlib.redirect_stdout(None):
        for argument, value in product(known, values):
            try:
                function(**(arguments | {argument: value}))
            except Exception as error:
                text = str(error)
                notes = getattr(error, "__notes__", [])
                noted = any(f"argument {argument}" in note for note in notes)
                named = re.search(r" has shape |\b" + re.escape(argument) + r"\b", text)
                first = re.split(r"\W", text)[0] in known
                assert noted or (named and first), (argument, repr(error))


# ---- private functions ---------------------------------------------------------------------------

# Called by hand, with what attnext itself never gives them: an exception, and no crash.
BY_HAND = """
import random
from itertools import product
import numpy as np, attnext
from attnext import _core

x = np.ones((2, 3, 4), "f4")
MAKERS = [
    lambda: attnext.AdditiveAttention(4, 4, 4, bias=True),
    lambda: attnext.DotProductAttention(),
    lambda: attnext.MultiHeadAttention(4, 4, 4, 4, 2),
]

def tried(name, call):
    print(name, flush=True)
    try:
        call()
    except SystemError:
        raise
    except Exception:
        pass

# Sizes of a layer that its parameters contradict, or by which a call would divide.
for make, sizes, dropout in product(
    MAKERS,
    [(4, 4, 4, 4, 0, 0), (4, 4, 4, 4, 2, 0), (4, 4, 4, -3, 2, 2), (-3, -5, -7, 4, 2, 2),
     (4, 4, 4, 4, 3, 1), (4, 4, 0, -3, 0, 0), (4, 4, 0, 0, 0, 0), (4, 4, 4, 2**62, 2, 2)],
    [0.0, 1.0, 1e300, float("nan")],
):
    for rows in (0, 4):
        layer = make()
        live = {n: w[:rows] if n in ("W_k", "W_v") else w for n, w in layer.parameters().items()}
        install = layer._install
        for training in (False, True):
            given = sizes, dropout, None, training, np.random.default_rng(0), live, {}
            tried(f"_install {given}", lambda: install(*given))
            tried("call", lambda: layer(x, x, x))
            tried("backward", lambda: layer.backward(x))
            tried("memory", lambda: layer(x, layer.memory(x, x)))
            tried("append", lambda: layer.memory(x, x).append(x, x))

# Whatever is private, with whatever there is; a layer without __init__, too.
layers = [make() for make in MAKERS]
for layer in layers:
    layer(x, x, x)
memories = [layer.memory(x, x) for layer in layers]
objects = [_core, *layers, *memories, *[m._now() for m in memories], *[y.context for y in layers]]
objects += [type(layer).__new__(type(layer)) for layer in layers]
values = [None, 0, -1, 2**80, 1.5, float("nan"), "x", "W_q", "dot_product", b"", (), [], {}, int, x,
          np.zeros(3, object), np.zeros(0), (0,) * 6, (2, 3, 4), {"W_q": x}, *objects[1:9]]
skipped = {"__class__", "__init_subclass__", "__subclasshook__"}
for thing in objects:
    for name in sorted(set(dir(thing)) - skipped):
        try:
            function = getattr(thing, name)
        except Exception:
            continue
        if name.startswith("_") and callable(function):
            draw = random.Random(name)
            for i in range(40):
                given = [draw.choice(values) for _ in range(i % 9)]
                tried(f"{type(thing).__name__}.{name}, {i}", lambda: function(*given))
"""

OF_TENSORS = """
import numpy as np, torch, attnext.torch
from attnext import _core

T, x = torch.ones(2, 3, 4), np.ones((2, 3, 4), "f4")
api = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
inputs = dict.fromkeys(("queries", "keys", "values"), T)
names, three = ("queries", "keys", "values"), (T, T, T)

def tried(call):
    try:
        call()
    except SystemError:
        raise
    except Exception as error:
        print(type(error))

def back(made, places):
    return lambda: _core._go_back(
        lambda **given: made, ("grad_output",), (T,), names, three, {}, {}, places)

for made in ((), ((),), x.astype("f8"), np.ones(3, "i1"), np.ones(3, object), (x, 5), None, T):
    for places in ((0,), (1,), (-1,), (2**80,), ("a",), (None,), ()):
        tried(back(made, places))
    for given in (inputs, {1: T}, {"queries": x}, {}, {str(i): T for i in range(99)}):
        tried(lambda: _core._on_tensors(lambda **given: made, given))
        for way in ((), ({}, {}, 5, {}, {}, {}, print), ({}, {}, 2**80, {"mask": 3}, {}, {}, None)):
            tried(lambda: _core._at_once(lambda **given: made, given, {"mask": 5}, way))
for types in ((int,), (5,), (None,), [torch.Tensor], (torch.Tensor, str), (object,)):
    for exchange in (api, 5, object()):
        tried(lambda: _core._exchange_tensors(types, exchange, torch.is_grad_enabled))
    tried(lambda: _core._on_tensors(_core.dot_product_attention, dict.fromkeys(names, 5)))
    tried(lambda: _core._on_tensors(_core.dot_product_attention, dict.fromkeys(names, "x")))
"""


@pytest.mark.parametrize("code", [BY_HAND, OF_TENSORS], ids=["of arrays", "of tensors"])
def test_private_functions_called_by_hand(code: str) -> None:
    child = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert child.returncode == 0, child.stdout[-200:] + child.stderr[-2000:]
