"""Code that the attention functions share: their options and their backward passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from sys import intern
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from attnext import _core, _wrong
from attnext._docs.wrapped import Voice
from attnext._gradients import SHARED, by_name, names_of
from attnext._options import OPTIONS, Dropout, Extras, Masks, Pairs, Scores, Taken

from .autograd import run
from .calls import RULES, Back, Flow, Rule, Saved, Shape
from .tensors import drawn_seed, on_tensors, zeros_unless

# The result of an attention: the output, or a tuple of the output and the requested extras.
Attended: TypeAlias = Any


class Options(Scores, Masks, Dropout, Extras, total=False):
    """The options of all attentions. There is no `out`, because autograd owns the results."""

    bias: Tensor | None  # inputs, to which gradients flow
    sink: Tensor | None


class HeadsOptions(Scores, Pairs, Dropout, Extras, total=False):
    """The options of multi-head attention, whose number of heads is an argument."""

    bias: Tensor | None
    sink: Tensor | None


_TENSORS = {
    name: option._replace(type=option.type.replace("array_like", "Tensor or array_like"))
    for name, option in OPTIONS.items()
}
_INPUTS = {
    name: OPTIONS[name]._replace(type="Tensor, float32, optional") for name in ("bias", "sink")
}
_DROPOUT = {
    "dropout_p": OPTIONS["dropout_p"]._replace(
        doc="Probability, 0 <= dropout_p < 1, that dropout zeroes a weight.\n"
        "The other weights are multiplied by ``1 / (1 - dropout_p)``."
    ),
    "seed": OPTIONS["seed"]._replace(
        doc=OPTIONS["seed"].doc + " None draws a seed\nfrom torch's default generator."
    ),
}
VOICE = Voice(
    see="The same function for arrays.",
    kinds=(
        ("array_like, shape (B,)", "Tensor, shape (B,)"),
        ("array_like, shape", "Tensor, float32, shape"),
        (" or array_like of", ", Tensor or array_like of"),
        ("array_like of bool", "Tensor or array_like of bool"),
        ("float or array_like", "float or Tensor"),
        ("w : float", "w : Tensor or float"),
        ("sigma : float", "sigma : Tensor or float"),
        ("sequence of array_like", "Tensor, or list or tuple of Tensor, float32"),
    ),
    inputs=(("array_like", "Tensor, float32"),),
    results=(("ndarray", "Tensor"), ("a list or tuple of arrays", "a list or tuple of tensors")),
    raises=(
        "TypeError\n"
        "    An input is not a dense float32 tensor on the CPU, an option is a tensor that\n"
        "    requires grad, or an argument is unknown, missing, or has the wrong type or dtype.\n"
        "ValueError\n"
        "    An argument has the wrong shape or an impossible value."
    ),
)
_NUMBERS = ("scale", "w", "sigma")
_EXTRAS = ("weights", "lse")
OTHER = Taken({}, VOICE)  # for functions that list their options themselves
_NOTES = {"dropout_p": "; without a seed, torch's generator draws one"}
TAKEN, TAKEN_BY_HEADS = (
    Taken(options.__annotations__, VOICE, _TENSORS | _INPUTS | _DROPOUT, notes=_NOTES)
    for options in (Options, HeadsOptions)
)


class LayerOptions(Scores, Masks, total=False):
    """The options of a layer's call. The layer itself has the dropout probability."""

    bias: Tensor | None  # inputs, to which gradients flow
    sink: Tensor | None


class HeadsLayerOptions(Scores, Pairs, total=False):
    """The options of a call of a layer with heads."""

    bias: Tensor | None
    sink: Tensor | None


_LAYERS = VOICE._replace(
    results=(*VOICE.results, ("an array of", "a tensor of")),
    raises="TypeError\n"
    "    An argument or a parameter is not a dense float32 tensor on the CPU, or has the wrong\n"
    "    type.\n"
    "ValueError\n"
    "    An argument has the wrong shape, or a length is negative.",
)
OF_LAYERS = Taken({}, _LAYERS)  # for methods without options
TAKEN_BY_LAYERS, TAKEN_BY_HEADS_LAYERS = (
    Taken(options.__annotations__, _LAYERS, _TENSORS | _INPUTS, ("need_weights",))
    for options in (LayerOptions, HeadsLayerOptions)
)


def attend(
    function: str,
    inputs: dict[str, Any],
    own: dict[str, Any],
    options: Options | HeadsOptions,
    taken: Taken = TAKEN,
) -> Attended:
    """Run attnext's function of this name on tensors.

    inputs: the arguments that have gradients, by name; own: other arguments of this function that
    not all functions have.
    """
    if not options:
        return run(function, inputs, own, ("output",))
    taken.check(function, options)
    rest: dict[str, Any] = {**own, **options}
    asked = [name for name in _EXTRAS if rest.pop(f"return_{name}", False)]
    if "dropout_p" in rest and _needs_seed(**options):
        rest["seed"] = drawn_seed()
    return run(function, inputs, rest, ("output", *asked))


def _needs_seed(*, dropout_p: Any, seed: Any = None, dropout_mask: Any = None, **_: Any) -> bool:
    """True if a seed must be drawn. C checks the values."""
    drops = isinstance(dropout_p, (int, float, np.number)) and 0 < dropout_p < 1
    return bool(drops) and seed is None and dropout_mask is None


# ---- backward ------------------------------------------------------------------------------------


def _gradients(
    function: str, saved: Saved, options: Mapping[str, Any], flow: Flow, wanted: Sequence[str]
) -> Saved:
    # forward was: made = function(**inputs, **options); and the backward in C takes both
    back = _backward(function, tuple(wanted))
    grad_output = flow["output"]
    if grad_output is None:
        grad_output = zeros_unless(None, RULES[function].shapes({**options, **saved})["output"])
    arguments = {"grad_output": grad_output, **saved, **options, **back.asked}
    for name in _EXTRAS:
        if flow.get(name) is not None:
            arguments[f"grad_{name}"] = flow[name]
    d = on_tensors(getattr(_core, back.in_c), arguments)
    shared = [name for name in SHARED if name in wanted]
    return of_numbers(by_name(function, d, False, *shared), saved)


@cache
def _backward(function: str, wanted: tuple[str, ...]) -> Back:
    shared = [name for name in SHARED if name in wanted]
    asked = {intern(f"return_grad_{name}"): True for name in shared}
    name = f"{RULES[function].prefix}{function}_backward"
    return Back(name, asked, names_of(function, False, *shared))


def _back(function: str, wanted: tuple[str, ...]) -> Back | None:
    """Return None if gradients of numbers are requested, which become tensors in `of_numbers`."""
    return None if any(name in wanted for name in _NUMBERS) else _backward(function, wanted)


def of_numbers(gradients: Saved, saved: Saved) -> Saved:
    """Convert gradients of numbers to tensors of the given shape, and that of w to sigma's."""
    if "sigma" in saved:  # forward was: w = 1 / sigma
        gradients["sigma"] = -float(gradients["w"]) / saved["sigma"].double().square()
    for name in _NUMBERS:
        if name in gradients and name in saved:
            of_one = torch.as_tensor(gradients[name], device="cpu").float()  # to inf, if need be
            gradients[name] = of_one.expand(saved[name].shape).contiguous()
    return gradients


def check_shapes(x: Mapping[str, Any]) -> None:
    """Raise C's errors for queries, keys, values and weights that do not fit each other."""
    q, k, v = x["queries"].shape, x["keys"].shape, x["values"].shape if "values" in x else None
    own_size, gqa = "W_k" in x, bool(x.get("enable_gqa"))
    axes = 3 if gqa else 2
    if len(q) < axes:
        heads = "three axes or more with enable_gqa: (..., heads, M, D)"
        expected = heads if gqa else "two axes or more: (..., M, D)"
        raise _wrong.shape("queries", _of_shape(q), expected)
    fits = len(k) == len(q) and k[:-axes] == q[:-axes] and (own_size or k[-1] == q[-1])
    if not fits or (gqa and q[-3] != k[-3] and (k[-3] == 0 or q[-3] % k[-3])):
        raise _wrong.keys(_of_shape(k), _of_shape(q), own_size, gqa, -1)
    if v is not None and (len(v) != len(k) or v[:-1] != k[:-1]):
        raise _wrong.shape("values", _of_shape(v), [*k[:-1], _DV])
    if own_size:
        _check_weights(x)


def _check_weights(x: Mapping[str, Any]) -> None:
    """Raise C's errors for W_q (H, Dq), W_k and W_v, which may have fewer heads."""
    rows = _H
    for name, of in (("W_q", "queries"), ("W_k", "keys"), ("W_v", "values")):
        if name not in x:
            continue
        given, size = x[name].shape, x[of].shape[-1]
        if len(given) != 2 or given[1] != size or rows not in (_H, given[0]):
            raise _wrong.shape(name, _of_shape(given), [rows, size])
        if name == "W_q":
            heads = x.get("num_heads", 1)
            rows = given[0] // heads * (x.get("num_kv_heads") or heads)


_H, _DV = -3, -7  # letters of a shape in _wrong.py


def _of_shape(shape: Shape) -> Any:
    """Return an array of this shape that takes no memory, for an error message."""
    return np.broadcast_to(np.float32(0), tuple(map(int, shape)))


def _shapes(x: dict[str, Any]) -> dict[str, Shape]:
    rows = x["queries"].shape[:-1]
    return {
        "output": (*rows, x["values"].shape[-1]),
        "weights": (*rows, x["keys"].shape[-2]),
        "lse": rows,
    }


def _shapes_of_heads(x: dict[str, Any]) -> dict[str, Shape]:
    *lead, M, _ = x["queries"].shape
    rows = (*lead, x["num_heads"], M)
    N, H = x["keys"].shape[-2], x["W_o"].shape[0]
    entries = prod(lead)
    kept = 16 + sum(  # before them stands how far they lie behind its start
        -(-entries * size // 16) * 16
        for size in (M * H, N * x["W_k"].shape[0], N * x["W_v"].shape[0], M * H)
    )
    return {"output": (*lead, M, H), "weights": (*rows, N), "lse": rows, "kept": (kept,)}


for _score in _core.SCORES:
    RULES[f"{_score}_attention"] = Rule(
        gradients=_gradients,
        shapes=_shapes,
        check=check_shapes,
        optional=("weights", "lse"),
        helpful=("lse",),
        few=64,
        beside={"output": "lse"},
        prefix="_" * (_score == "dot_product"),  # which takes heads as they lie
        back=_back,
    )

RULES["multi_head_attention"] = Rule(
    gradients=_gradients,
    shapes=_shapes_of_heads,
    check=check_shapes,
    drops=("output",),
    optional=("weights", "lse", "kept"),
    helpful=("lse", "kept"),  # kept: what the projections made
    prefix="_",
    back=_back,
)
