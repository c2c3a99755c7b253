"""Tensors that C reads and makes itself, where torch has the functions for it, and the long way.

Both give the same bits; whatever is not plain takes the long way, and is refused there or served.
"""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers import REPOSITORY
from torch import Tensor

import attnext.torch as ours
from attnext import _core
from attnext.torch.calls import RULES, way_of

EXCHANGE = getattr(Tensor, "__dlpack_c_exchange_api__", None)
TYPES = Tensor, torch.nn.Parameter
Q, K, V = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 3)
needs_exchange = pytest.mark.skipif(EXCHANGE is None, reason="this torch has no such functions")


@pytest.fixture
def the_long_way() -> Iterator[None]:
    _core._exchange_tensors(TYPES, None, torch.is_grad_enabled)
    yield
    _core._exchange_tensors(TYPES, EXCHANGE, torch.is_grad_enabled)


def attention(**arguments: Any) -> Any:
    given = {"queries": Q, "keys": K, "values": V, **arguments}
    return _core._on_tensors(_core.dot_product_attention, given)


def at_once(queries: Any = Q, few: int = 64, **options: Any) -> Any:
    inputs = {"queries": queries, "keys": K, "values": V}
    way = way_of("dot_product_attention", ("output",))._replace(few=few)
    return _core._at_once(_core.dot_product_attention, inputs, options, way)


# ---- what is read --------------------------------------------------------------------------------


@needs_exchange
@pytest.mark.parametrize(
    "x",
    [
        Q,
        torch.nn.Parameter(Q),
        Q.clone().requires_grad_(),
        Q.transpose(0, 1).contiguous().transpose(0, 1),
        torch.stack([Q, Q], -1)[..., 0],
        torch.cat([torch.zeros(1, 3, 4), Q])[1:],
        Q[:1].expand(2, 3, 4),
        Q[:, :0],
        torch.zeros(0)[:0].reshape(2, 0, 4),
    ],
    ids=["plain", "parameter", "grad", "axes", "steps", "offset", "expanded", "empty", "no memory"],
)
def test_what_c_reads(x: Tensor) -> None:
    made = attention(queries=x)
    expected = _core.dot_product_attention(x.detach().numpy(), K.numpy(), V.numpy())
    assert type(made) is Tensor and made.dtype is torch.float32 and made.device.type == "cpu"
    assert made.device == torch.device("cpu") and made.is_contiguous()
    assert not made.requires_grad and np.array_equal(made.numpy(), expected)


@needs_exchange
@pytest.mark.parametrize(
    "options",
    [
        {"valid_lens": torch.tensor([2, 3])},
        {"valid_lens": torch.tensor([2, 3], dtype=torch.int32), "scale": 0.5},
        {"mask": torch.rand(3, 5) > 0.3, "empty_rows": "zero"},
        {"bias": torch.randn(5).expand(3, 5), "causal": True},
        {"window": (1, 2), "return_weights": True, "return_lse": True},
        {"causal_offset": 1, "causal": True, "softcap": None},
    ],
)
def test_options_that_c_reads(options: dict[str, Any]) -> None:
    made = attention(**options)
    arrays = {k: x.numpy() if isinstance(x, Tensor) else x for k, x in options.items()}
    expected = _core.dot_product_attention(Q.numpy(), K.numpy(), V.numpy(), **arrays)
    for x, y in zip(made, expected, strict=True) if type(made) is tuple else [(made, expected)]:
        assert np.array_equal(x.numpy(), y)


class Mine(Tensor):
    pass


def cut(x: Tensor, bytes: int) -> Tensor:
    x = x.clone()
    x.untyped_storage().resize_(bytes)
    return x


OTHERS: dict[str, Callable[[], Any]] = {
    "subclass": lambda: Q.as_subclass(Mine),
    "float64": lambda: Q.double(),
    "bfloat16": lambda: Q.bfloat16(),
    "complex": lambda: Q.to(torch.complex64),
    "meta": lambda: Q.to("meta"),
    "sparse": lambda: Q.to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([Q[0], Q[1]]),
    "negative": lambda: torch.complex(Q, Q).conj().imag,
    "zeros without memory": lambda: torch._efficientzerotensor((2, 3, 4)),
    "given back": lambda: cut(Q, 0),
    "cut short": lambda: cut(Q, Q.nbytes - 4),
    "array": lambda: Q.numpy().astype("M8[s]"),
    "list": lambda: Q.tolist(),
    "number": lambda: 1.0,
    "none": lambda: None,
}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_takes_the_long_way(kind: str) -> None:
    x = OTHERS[kind]()
    assert attention(queries=x) is NotImplemented
    assert at_once(queries=x) is NotImplemented


@pytest.mark.parametrize(
    "options",
    [
        {"mask": True},  # which Python reads
        {"scale": torch.tensor([0.5])[0].double()},
        {"valid_lens": torch.tensor([1.5, 2])},
        {"softcap": torch.tensor(2.0)},
        {"window": (2**62, 2**62), "causal_offset": 3},
        {"mask": torch.zeros(3, 5, requires_grad=True)},
    ],
)
def test_options_that_take_the_long_way(options: dict[str, Any]) -> None:
    assert at_once(**options) is NotImplemented


@needs_exchange
def test_what_autograd_is_to_record() -> None:
    x, lens = Q.clone().requires_grad_(), torch.tensor([1, 2])
    kind, rest, kept, (output,), *tensors = at_once(
        x, scale=0.5, valid_lens=lens, empty_rows="zero", sink=None
    )
    assert kind.names == ("queries", "keys", "values", "valid_lens")
    assert rest == {"scale": 0.5, "empty_rows": "zero", "sink": None}
    assert all(y is z for y, z in zip(tensors, (x, K, V, lens), strict=True))
    assert all(y is z for y, z in zip(kept, tensors, strict=True))  # it has few keys
    expected = attention(scale=0.5, valid_lens=lens, empty_rows="zero")
    assert torch.equal(output, expected) and not output.requires_grad
    assert at_once(x, valid_lens=[1, 2]) is NotImplemented  # may change before the backward
    with torch.no_grad():
        assert torch.equal(at_once(x), at_once(Q))


@needs_exchange
@pytest.mark.parametrize("name", ["bias", "sink", "scale"])
def test_options_that_learn_are_recorded_as_inputs_are(name: str) -> None:
    x = torch.rand({"bias": (3, 5), "sink": (), "scale": ()}[name]).requires_grad_()
    kind, rest, kept, _, *tensors = at_once(**{name: x}, few=4)
    assert kind.names[3:] == (name,) and tensors[3] is x and rest == {}
    assert kind.made == ("output", "lse") and len(kept) == len(tensors) + 2
    assert at_once(**{name: torch.zeros((), dtype=torch.float64)}) is NotImplemented
    assert name == "scale" or at_once(**{name: 1.0}) is NotImplemented  # are to be tensors


OPTIONS: list[dict[str, Any]] = [
    {},
    {"valid_lens": [1, 0]},
    {"dropout_p": 0.5, "seed": 3, "softcap": 2.0},
    {"causal": True, "bias": np.ones(1, np.float32), "sink": np.float32(0.5)},
]


@pytest.mark.parametrize("score", ["dot_product", "cosine", "gaussian", "additive"])
@pytest.mark.parametrize("M", [1, 7])
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "lengths", "dropout", "more"])
def test_the_backward_of_few_keys_has_the_bits_of_one_that_is_helped(
    score: str, M: int, options: dict[str, Any]
) -> None:
    """Neither output nor lse are kept, for it has them from the inputs as quickly."""
    rng = np.random.default_rng(0)
    few = RULES[f"{score}_attention"].few
    for N in (1, 17, few):
        shapes = [(2, M, 12), (2, N, 12), (2, N, 5)]
        shapes += [(8, 12), (8, 12), (8,)] if score == "additive" else []
        x = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
        forward = partial(getattr(_core, f"{score}_attention"), *x, **options)
        output, weights, lse = forward(return_weights=True, return_lse=True)
        backward = getattr(_core, f"{score}_attention_backward")
        grad = np.cos(output)
        for kept in ({}, {"weights": weights}):
            made = backward(grad, *x, **options, **kept)
            helped = backward(grad, *x, **options, **kept, output=output, lse=lse)
            assert all(np.array_equal(y, z) for y, z in zip(made, helped, strict=True))


def test_functions_for_attnext_torch_count_their_arguments() -> None:
    for name in ("_on_tensors", "_at_once", "_go_back", "_exchange_tensors"):
        with pytest.raises(TypeError, match=r"^expected \d arguments, got 1$"):
            getattr(_core, name)(None)


def test_functions_for_attnext_torch_survive_any_arguments() -> None:
    """Nobody else is to call them; who does finds no way to crash."""
    way = way_of("dot_product_attention", ("output",))
    x = Q.clone().requires_grad_()
    inputs = {"queries": x, "keys": K, "values": V}
    kinds = {("queries", "keys", "values"): ((True,) * 99,)}
    ways = [None, (), way[:3], way._replace(few=None), way._replace(learned=None)]
    ways += [way._replace(kinds=k, kinds_of_few=k) for k in (None, {}, kinds)]
    for odd in ways:
        with suppress(TypeError, KeyError):
            made = _core._at_once(_core.dot_product_attention, inputs, {}, odd)
            assert made is NotImplemented
    for odd in (None, 5, list(TYPES), "types"):
        with pytest.raises(TypeError, match=r"^types: only attnext\.torch may call this function$"):
            _core._exchange_tensors(odd, EXCHANGE, torch.is_grad_enabled)
    backward = _core.dot_product_attention_backward
    names, kept = ("grad_output",), ("queries", "keys", "values")
    usual = [names, (V[:, :3],), kept, (Q, K, V), {}, {}, (0, 1, 2)]
    assert len(_core._go_back(backward, *usual)) == 3
    for place in range(len(usual)):
        for odd in (None, (), (None,), ("x",), (99,), (-1,), ((),), 0, "x", {1: 2}):
            given = [*usual[:place], odd, *usual[place + 1 :]]
            with suppress(TypeError):
                assert _core._go_back(backward, *given) in (NotImplemented, (), (None,))


# ---- what is made --------------------------------------------------------------------------------


def everything(x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    lens = torch.tensor([2, 3])
    made = ours.dot_product_attention(x, x, x, lens, return_weights=True, return_lse=True)
    made += (ours.masked_softmax(x, lens), ours.sequence_mask(x, lens))
    made += (ours.scaled_dot_product_attention(x, x, x),)
    torch.autograd.backward(made, [torch.ones_like(y) for y in made])
    assert x.grad is not None
    with torch.no_grad():
        return [*made, x.grad, ours.gaussian_attention(x, x, x, lens, w=2.0)]


@pytest.mark.parametrize("N", [3, 70])
def test_both_ways_give_the_same_bits(N: int, request: pytest.FixtureRequest) -> None:
    x = torch.randn(2, N, 20)
    at_hand = everything(x)
    request.getfixturevalue("the_long_way")
    for y, z in zip(at_hand, everything(x), strict=True):
        assert torch.equal(y, z)


def test_errors_are_those_of_the_long_way(request: pytest.FixtureRequest) -> None:
    def errors() -> list[str]:
        found = []
        for queries, options in [
            (torch.zeros(2, 3, 5), {}),
            (Q, {"valid_lens": torch.tensor([1, 2, 3])}),
            (Q, {"mask": torch.ones(3, 5)}),
            (Q, {"scale": "wide"}),
            (cut(Q, 4), {}),
            (Q.double(), {}),
        ]:
            with pytest.raises((TypeError, ValueError, RuntimeError)) as error:
                ours.dot_product_attention(queries, K, V, **options)
            found.append(f"{error.type.__name__}: {error.value}")
        return found

    at_hand = errors()
    request.getfixturevalue("the_long_way")
    assert errors() == at_hand


@pytest.mark.parametrize("N", [2, 400])
def test_results_live_as_long_as_they_are_held(N: int) -> None:
    """Whoever holds them, an array, a view, another thread; and they are freed afterwards."""
    x = torch.randn(1, N, 8)
    expected = ours.dot_product_attention(x, x, x).clone()
    view = ours.dot_product_attention(x, x, x)[0, 1:]
    array = ours.dot_product_attention(x, x, x).numpy()
    held = [ours.dot_product_attention(x, x, x)]
    thread = threading.Thread(target=lambda: held.append(held[0] * 1))
    thread.start()
    thread.join()
    for _ in range(50):
        ours.dot_product_attention(x, x, -x)
    gc.collect()
    assert torch.equal(view, expected[0, 1:]) and np.array_equal(array, expected.numpy())
    assert torch.equal(held[0], expected) and torch.equal(held[1], expected)
    view.add_(1)  # it is anybody's to change


# ---- the table beside torch ----------------------------------------------------------------------


def test_the_table_has_a_line_for_each_call_and_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the document a place for it."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    calls = importlib.import_module("torch_calls")
    small = {name: pair for name, pair in calls.pairs().items() if pair[2][0].numel() < 100}
    head, _, *lines = calls.table(calls.Timer(0), small).splitlines()
    assert len(small) == 2 and len(lines) == 4
    assert {line.count("|") for line in (head, *lines)} == {6}
    text = calls.DOCUMENT.read_text(encoding="utf-8")
    pasted = calls.between_markers(text, "new", "it", *calls.MARKERS)
    assert f"{calls.MARKERS[0]}\nnew\n{calls.MARKERS[1]}" in pasted


# ---- finalisers ----------------------------------------------------------------------------------


class Cycle:
    """Does something when the garbage collector finds it."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.me, self.action = self, action

    def __del__(self) -> None:
        self.action()


@pytest.mark.parametrize("victim", ["queries", "keys", "values", "valid_lens"])
def test_a_finaliser_that_gives_back_the_storage_of_an_argument(victim: str) -> None:
    """It runs wherever an object is made. The call refuses the tensor, or has its numbers."""
    given = {"queries": Q, "keys": K, "values": V, "valid_lens": torch.tensor([2, 4])}
    expected = ours.dot_product_attention(**given)
    before = gc.get_threshold()
    gc.disable()
    try:
        for threshold in range(1, 40, 2):
            x = given[victim].clone()
            Cycle(lambda x=x: x.untyped_storage().resize_(0))
            gc.set_threshold(threshold)
            gc.enable()
            try:
                found = ours.dot_product_attention(**{**given, victim: x})
            except RuntimeError as error:
                assert str(error).startswith(f"{victim} has a storage of 0 bytes")  # noqa: PT017
            else:
                assert torch.equal(found, expected)
            finally:
                gc.disable()
                gc.set_threshold(*before)
    finally:
        gc.enable()


def test_a_result_that_outlives_the_interpreters_end() -> None:
    """In a program that compiles nothing: torch.compile, which takes a second to import, is not."""
    code = (
        "import torch, attnext.torch as a, builtins, sys\n"
        "x = torch.randn(1, 300, 8)\n"
        "builtins.kept = [a.dot_product_attention(x, x, x), a.masked_softmax(x[:, :2])]\n"
        "torch.kept = builtins.kept\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


# ---- heads that lie inside rows ------------------------------------------------------------------


def of_rows(shape: tuple[int, ...], how: str) -> Tensor:
    """(B, heads, rows, D), as transformers make it."""
    B, heads, rows, D = shape
    if how == "whole":
        return torch.randn(shape)
    if how == "part":  # of a projection to queries, keys and values
        return torch.randn(B, rows, 3, heads, D)[:, :, 1].transpose(1, 2)
    if how == "later rows":
        return torch.randn(B, heads, rows + 2, D)[:, :, 2:]
    return torch.randn(B, rows, heads, D).transpose(1, 2)


@pytest.mark.parametrize("how", ["beside", "part", "later rows", "keys alone", "queries alone"])
@pytest.mark.parametrize("sizes", [(7, 9), (1, 5), (70, 130)])
def test_heads_are_read_where_they_lie(how: str, sizes: tuple[int, int]) -> None:
    """The bits are those of copies; the output and the gradients lie as the queries do."""
    M, N = sizes
    q = of_rows((2, 4, M, 20), {"keys alone": "whole", "queries alone": "beside"}.get(how, how))
    keys = {"keys alone": "beside", "queries alone": "whole"}.get(how, how)
    inputs = [q, of_rows((2, 2, N, 20), keys), of_rows((2, 2, N, 12), keys)]
    grad = torch.randn(2, 4, M, 12)
    found = []
    for arrange in (lambda x: x, Tensor.contiguous):
        x = [arrange(t).detach().requires_grad_() for t in inputs]
        output, weights = ours.dot_product_attention(
            *x, torch.tensor([N, 3]), enable_gqa=True, causal=True, causal_offset=2,
            return_weights=True,
        )  # fmt: skip
        d = torch.autograd.grad([output, weights.sum(-1)], x, [grad, torch.ones(2, 4, M)])
        with torch.no_grad():
            again = ours.scaled_dot_product_attention(*x, enable_gqa=True)
        found.append([output, weights, *d, again])
    for got, expected in zip(*found, strict=True):
        assert torch.equal(got, expected)
    if how in ("beside", "part", "queries alone") and M > 1 and EXCHANGE is not None:
        output, _, *d, again = found[0]
        assert all(x.transpose(1, 2).is_contiguous() for x in (output, *d, again))
