"""Check the arguments of a call, and divide the arrays into blocks that fit together.

Blocks along the leading axes and the queries (m) are independent. Results of blocks along the keys
(n) are merged. The features (f) are not divided. Each array is stored with the letters of its axes,
as `dask.array.blockwise` expects them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import dask.array
import numpy as np
from numpy.typing import ArrayLike, NDArray

import attnext
from attnext import _reading
from attnext._docs.wrapped import Voice
from attnext._options import OPTIONS, Bias, Chain, Extras, Masks, Scaled, Scores, Sink, Taken
from attnext.reference.band import OFFSET

from .bands import cut_band, integers

da: Any = dask.array  # most of Dask has no types
DaskArray: TypeAlias = Any  # a dask.array.Array
Axes: TypeAlias = tuple[str, ...]
Arrays: TypeAlias = dict[str, tuple[DaskArray, Axes]]  # each array with the letters of its axes
Chunks: TypeAlias = tuple[tuple[int, ...], ...]


class Forward(Scores, Masks, Bias, Sink, Extras, total=False):
    """The options of a forward pass."""


class Backward(Scores, Masks, Bias, Sink, Chain, total=False):
    """The options of a backward pass."""


class ScaledBackward(Backward, Scaled, total=False):
    """The options of a backward pass whose score has a scale."""


_LAZY = {
    name: OPTIONS[name]._replace(type=f"dask.array.Array or {OPTIONS[name].type}")
    for name in ("mask", "bias", "grad_lse")
}
_VOICE = Voice(
    see="The same function for arrays in memory.",
    inputs=(("array_like", "dask.array.Array or array_like"),),
    results=(("ndarray", "dask.array.Array"), ("float32 arrays", "float32 Dask arrays")),
    raises=(
        "TypeError\n"
        "    If an argument has the wrong type or dtype, or is a Dask array but must be in\n"
        "    memory. All errors are raised by the call, before anything is computed.\n"
        "ValueError\n"
        "    If an argument has the wrong shape, an invalid value, or blocks of unknown size."
    ),
)
FORWARD = Taken(Forward.__annotations__, _VOICE, _LAZY)
BACKWARD = Taken(ScaledBackward.__annotations__, _VOICE, _LAZY)


_ARRAYS = ("queries", "keys", "values"), ("mask", "bias"), ("W_q", "W_k", "w_v", "b_h")


@dataclass
class Problem:
    """An attention whose arrays are divided into blocks."""

    function: str  # its name in attnext
    lead: Axes  # ("b0", "b1", ...): the leading axes
    group: int  # query heads that share one head of keys
    N: int
    empty_rows: str
    may_be_empty: bool  # True if there can be a row without an unmasked key
    shapes: dict[
        str, tuple[int, ...]
    ]  # given shapes of bias, sink and scale, before missing axes were added
    options: dict[str, Any]  # keywords that are not divided into blocks
    arrays: Arrays = field(default_factory=dict)  # arrays whose blocks each task receives
    sink: DaskArray | None = None  # (..., M); belongs to the whole row, not to a block

    @property
    def pairs(self) -> Chunks:
        """Return the chunks of the pairs (..., M, N)."""
        q, k = self.arrays["queries"][0], self.arrays["keys"][0]
        return (*q.chunks[:-1], k.chunks[-2])


def make_problem(function: str, arguments: Mapping[str, Any]) -> Problem:
    """Check all arguments, and divide the arrays into blocks.

    arguments, by name: queries, keys, values; parameters, which are not divided; lengths, masks and
    the numbers of the score.
    """
    rest = dict(arguments)
    inputs, pairs, parameters = ({x: rest.pop(x) for x in some if x in rest} for some in _ARRAYS)
    _check_in_memory(rest | parameters)
    q, k, v = (as_dask(name, x) for name, x in inputs.items())
    pairs = {name: as_dask(name, x) for name, x in pairs.items() if x is not None}
    gqa, valid_lens, sink = rest["enable_gqa"], rest.pop("valid_lens"), rest.pop("sink")
    _check_shapes(q, k, v, gqa, projected=bool(parameters))
    _check_numbers(function, (q, k, v), rest | parameters)
    _check_masks(q.shape[:-1], k.shape[:-1], valid_lens, sink, pairs, gqa)

    q, k, v = _align(q, k, v)
    empty_rows = rest.pop("empty_rows")
    shared = {"bias": pairs.get("bias"), "sink": sink, "scale": rest.get("scale")}
    problem = Problem(
        function=function,
        lead=_leading_axes(q),
        group=q.shape[-3] // max(k.shape[-3], 1) if gqa else 1,
        N=k.shape[-2],
        empty_rows=empty_rows if k.shape[-2] > 0 else "zero",  # the result without keys is always 0
        may_be_empty=bool(pairs),
        shapes={name: np.shape(x) for name, x in shared.items()},
        options=rest,
    )
    _add_inputs(problem, q, k, v)
    for name, parameter in parameters.items():
        if parameter is None:  # only b_h may be None here
            continue
        whole = da.from_array(np.array(parameter), chunks=-1)  # a copy: it may be trained meanwhile
        problem.arrays[name] = whole, ("n", "f")[-whole.ndim :]
    _add_lengths(problem, valid_lens)
    _add_band(problem)
    _add_pairs(problem, pairs)
    _add_scale(problem)
    _add_sink(problem, sink)
    return problem


def incoming(problem: Problem, grad_output: Any, grad_lse: Any) -> Arrays:
    """Return grad_output (..., M, Dv) and grad_lse (..., M), with the chunks of the queries."""
    q, v = problem.arrays["queries"][0], problem.arrays["values"][0]
    gradients = {"grad_output": (grad_output, v.shape[-1:])}
    if grad_lse is not None:
        gradients["grad_lse"] = (grad_lse, ())
    arrays: Arrays = {}
    for name, (value, features) in gradients.items():
        x = as_dask(name, value)
        if x.dtype.kind not in "fiu":
            raise TypeError(f"{name} has dtype {x.dtype}, expected {_reading.REAL}")
        _reading.check_shape(name, x, (*q.shape[:-1], *features))
        cut = x.rechunk((*q.chunks[:-1], -1)[: x.ndim])
        arrays[name] = cut, (*problem.lead, "m", "f")[: x.ndim]
    return arrays


# ---- arrays ------------------------------------------------------------------------------------


def as_dask(name: str, value: Any) -> DaskArray:
    """Return the value as a Dask array of known shape. An array in memory becomes one block."""
    if isinstance(value, da.Array):
        if any(np.isnan(size) for size in value.shape):
            raise ValueError(
                f"{name} has unknown chunk sizes, expected known ones: call "
                f"{name}.compute_chunk_sizes() first"
            )
        return value
    array = _reading.read(name, value)
    if array.dtype == object:  # Dask would compute a name from its elements
        raise TypeError(f"{name} has dtype object, expected numbers or bools")
    return da.from_array(array, chunks=-1)


def _leading_axes(x: DaskArray) -> Axes:
    return tuple(f"b{i}" for i in range(x.ndim - 2))


def _align(q: DaskArray, k: DaskArray, v: DaskArray) -> tuple[DaskArray, DaskArray, DaskArray]:
    """Give queries, keys and values the same chunks along the axes that they share."""
    lead = _leading_axes(q)
    heads: Axes = lead
    if (
        lead and q.shape[-3] != k.shape[-3]
    ):  # grouped heads: the chunks of the query heads follow from the key heads
        heads = (*lead[:-1], "heads")
    q, k, v = (x.rechunk({x.ndim - 1: -1}) for x in (q, k, v))
    _, (q, k, v) = da.unify_chunks(
        *(q, (*lead, "m", "f")), *(k, (*heads, "n", "g")), *(v, (*heads, "n", "h")), warn=False
    )
    if heads != lead:
        group = q.shape[-3] // k.shape[-3]
        q = q.rechunk({q.ndim - 3: tuple(group * size for size in k.chunks[-3])})
    return q, k, v


def _like(shape: tuple[int, ...], chunks: Chunks) -> Chunks:
    """Return chunks for an array whose shape broadcasts to an array with these chunks."""
    return tuple(
        sizes if size == sum(sizes) else (size,) for size, sizes in zip(shape, chunks, strict=True)
    )


def _starts(sizes: tuple[int, ...]) -> DaskArray:
    """Return the start of each block, as an array with one start per block."""
    return da.from_array(np.cumsum((0, *sizes[:-1])), chunks=1)


def _add_inputs(problem: Problem, q: DaskArray, k: DaskArray, v: DaskArray) -> None:
    """Add queries, keys and values, and the index of the first query and key of each block."""
    problem.arrays |= {
        "queries": (q, (*problem.lead, "m", "f")),
        "keys": (k, (*problem.lead, "n", "f")),
        "values": (v, (*problem.lead, "n", "f")),
        "first_query": (_starts(q.chunks[-2]), ("m",)),
        "first_key": (_starts(k.chunks[-2]), ("n",)),
    }


def _add_pairs(problem: Problem, pairs: Mapping[str, DaskArray]) -> None:
    """Add mask and bias, with missing axes added."""
    for name, x in pairs.items():
        x = x[(None,) * (len(problem.pairs) - x.ndim)]
        cut = x.rechunk(_like(x.shape, problem.pairs))
        problem.arrays[name] = cut, (*problem.lead, "m", "n")


def _add_scale(problem: Problem) -> None:
    """Add a scale that is an array, with the chunks of the leading axes."""
    if problem.shapes["scale"]:
        chunks = problem.pairs[:-2]
        scale = np.array(problem.options.pop("scale"))  # a copy: it may be trained meanwhile
        scale = _with_all_axes(scale, len(chunks))
        problem.arrays["scale"] = da.from_array(scale, _like(scale.shape, chunks)), problem.lead


def _add_sink(problem: Problem, sink: ArrayLike | None) -> None:
    """Add the sink, one number per row. A row can be empty only if its sink is -inf."""
    if sink is not None:
        chunks = problem.pairs[:-1]
        numbers = _with_all_axes(np.array(sink, np.float32), len(chunks))
        cut = da.from_array(numbers, _like(numbers.shape, chunks))
        problem.sink = da.broadcast_to(cut, tuple(map(sum, chunks)), chunks=chunks)
        problem.may_be_empty &= bool(np.isneginf(numbers).any())


def _with_all_axes(x: NDArray[Any], ndim: int) -> NDArray[Any]:
    return x.reshape((1,) * (ndim - x.ndim) + x.shape)


def _add_lengths(problem: Problem, valid_lens: ArrayLike | None) -> None:
    if valid_lens is None:
        return
    lens = integers(valid_lens, 0, problem.N)
    chunks = problem.pairs[:-1]
    rows = tuple(map(sum, chunks))
    problem.may_be_empty |= bool((lens == 0).any())
    if lens.shape != rows:  # () | (B,) | (B, M), shared by the axes between
        first, last = rows[:1] if lens.ndim > 0 else (1,), lens.shape[1:] or (1,)
        ones = (1,) * (len(rows) - 2)
        lens = lens.reshape((*first, *ones, *last) if len(rows) > 1 else (1,))
    lens = da.from_array(lens, chunks=_like(lens.shape, chunks))
    problem.arrays["valid_lens"] = lens, (*problem.lead, "m")


def _add_band(problem: Problem) -> None:
    """Add the causal offset as an array, if there is a causal mask or a window."""
    near, may_be_empty = cut_band(problem.options)
    if near is not None:
        problem.may_be_empty |= may_be_empty
        offset = da.from_array(near, chunks=_like(near.shape, problem.pairs[:1]))
        problem.arrays[OFFSET] = offset, (*problem.lead, "m")[:1]


# ---- checks ------------------------------------------------------------------------------------
#
# The functions of attnext check the arguments, called with arrays of size 0 instead of the real
# arrays. So the rules and error messages are the same. Only shapes are checked here.


def _check_in_memory(arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        if isinstance(value, da.Array):
            raise TypeError(
                f"{name} is a Dask array, expected numbers in memory: pass {name}.compute()"
            )


def _check_numbers(
    function: str, inputs: tuple[DaskArray, ...], numbers: Mapping[str, Any]
) -> None:
    """Check dtypes and everything that does not depend on M and N, with M = N = 0."""
    none = [np.empty((*x.shape[:-2], 0, x.shape[-1]), x.dtype) for x in inputs]
    getattr(attnext, function)(*none, **numbers)


def _check_masks(
    rows: tuple[int, ...],
    keys: tuple[int, ...],
    valid_lens: ArrayLike | None,
    sink: ArrayLike | None,
    pairs: Mapping[str, DaskArray],
    gqa: bool,
) -> None:
    """Check lengths, sink and the dtypes of mask and bias, with N = D = 0."""
    queries, none = (np.empty((*x, 0), np.float32) for x in (rows, (*keys[:-1], 0)))
    dtypes: dict[str, Any] = {name: np.empty(0, x.dtype) for name, x in pairs.items()}
    attnext.dot_product_attention(
        queries, none, none, valid_lens, **dtypes, sink=sink, enable_gqa=gqa
    )
    for name, x in pairs.items():
        _reading.check_broadcasts(name, x, (*rows, keys[-1]))


def _check_shapes(q: DaskArray, k: DaskArray, v: DaskArray, gqa: bool, projected: bool) -> None:
    """Check the shapes of queries (..., M, Dq), keys (..., N, Dk) and values (..., N, Dv)."""
    if q.ndim < 2:
        raise ValueError(f"queries has shape {q.shape}, expected two axes or more: (..., M, D)")
    if gqa and q.ndim < 3:
        raise ValueError(
            f"queries has shape {q.shape}, expected three axes or more with enable_gqa: "
            "(..., heads, M, D)"
        )
    lead = (*q.shape[:-3], "heads") if gqa else q.shape[:-2]
    _reading.check_shape("keys", k, (*lead, "N", "Dk" if projected else q.shape[-1]))
    if gqa:
        heads, key_heads = q.shape[-3], k.shape[-3]
        if heads != key_heads and (key_heads == 0 or heads % key_heads != 0):
            raise ValueError(
                f"keys has shape {k.shape}, expected a number of heads (axis -3) that divides the "
                f"{heads} of queries"
            )
    _reading.check_shape("values", v, (*k.shape[:-1], "Dv"))
