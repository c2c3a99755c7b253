"""Build lazy Dask arrays from the tasks of `blocks`, for all blocks of a problem."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np

from attnext._gradients import names_of

from . import blocks
from .arguments import Arrays, Axes, DaskArray, Problem, da


def attention(problem: Problem, return_weights: bool, return_lse: bool) -> Any:
    """Return the output and the requested extra results."""
    whole = _whole(problem)
    rows = (*problem.lead, "m", "f")
    arrays: Arrays = {"whole": (whole, rows)}
    if problem.empty_rows == "uniform" and problem.may_be_empty:
        arrays["mean_of_values"] = _mean(problem), rows
    task = partial(blocks.finish, empty_rows=problem.empty_rows)
    output = _blockwise(task, rows, arrays, {"f": whole.shape[-1] - 1})
    extras = []
    if return_weights:
        extras.append(_weights(problem, whole))
    if return_lse:
        extras.append(whole[..., -1])
    return (output, *extras) if extras else output


def gradients(problem: Problem, incoming: Arrays, shared: Collection[str]) -> dict[str, DaskArray]:
    """Return every gradient by argument name.

    incoming: grad_output and, if given, grad_lse. shared: names of the requested gradients of bias,
    sink and scale.
    """
    rows = (*problem.lead, "m", "f")
    whole = _whole(problem)
    arrays = problem.arrays | incoming | {"whole": (whole, rows)}
    of_blocks = tuple(name for name in shared if name in arrays or name == "scale")
    task = partial(blocks.gradients, call=_call(problem, arrays), shared=of_blocks)
    # One task per pair of a block of queries and a block of keys. Each task returns a dict, so this
    # array is only used as input of _pick.
    pieces = _blockwise(task, (*problem.lead, "m", "n", "f"), arrays)
    d = {}
    for name, other in [("queries", "n"), ("keys", "m"), ("values", "m")]:
        array, axes = arrays[name]
        sizes = dict(zip(axes, array.chunks, strict=True))
        parts = _pick(pieces, problem, name, (other, *axes), sizes | {other: 1}, (0,))
        d[name] = _reduce(parts, blocks.add, (0,))
    for name in names_of(problem.function, False)[3:]:
        if name in arrays or name == "w":
            d[name] = _of_parameter(pieces, problem, name)
    for name in of_blocks:
        array = name in arrays
        d[name] = (_of_shared if array else _of_parameter)(pieces, problem, name)
    if "sink" in shared and problem.sink is not None:
        d["sink"] = _of_sink(problem, whole, incoming)
    return d


# ---- forward -----------------------------------------------------------------------------------


def _whole(problem: Problem) -> DaskArray:
    """Return output and lse of the attention over all keys, (..., M, Dv + 1), merged in a tree.

    The names of the tasks depend only on their inputs, so forward and backward pass share the tasks
    if they are computed together.
    """
    features = problem.arrays["values"][0].shape[-1] + 1
    task = partial(blocks.attend, call=_call(problem, problem.arrays))
    axes = ("n", *problem.lead, "m", "f")
    parts = _blockwise(task, axes, problem.arrays, {"n": 1, "f": features})
    if problem.sink is not None:
        parts = da.concatenate([parts, _part_of_sink(problem.sink, features)])
    return _reduce(parts, blocks.merge, (0,))


def _part_of_sink(sink: DaskArray, features: int) -> DaskArray:
    """Return the sink as a part with output 0 and the sink as lse."""
    output = da.zeros((*sink.shape, features - 1), np.float32, chunks=(*sink.chunks, -1))
    return da.concatenate([output, sink[..., None]], axis=-1).rechunk({sink.ndim: -1})[None]


def _mean(problem: Problem) -> DaskArray:
    """Return the mean of all values as merged parts, (..., 1, Dv + 1)."""
    arrays = {"values": problem.arrays["values"]}
    sizes: dict[Any, Any] = {"n": 1, "f": arrays["values"][0].shape[-1] + 1}
    if problem.group > 1:
        sizes[problem.lead[-1]] = problem.arrays["queries"][0].chunks[-3]
    task = partial(blocks.mean, group=problem.group)
    parts = _blockwise(task, ("n", *problem.lead, "m", "f"), arrays, sizes, {"m": 1})
    return _reduce(parts, blocks.merge, (0,))


def _weights(problem: Problem, whole: DaskArray) -> DaskArray:
    """Return the weights (..., M, N), with chunks along M and N."""
    arrays = problem.arrays | {"whole": (whole, (*problem.lead, "m", "f"))}
    del arrays["values"]
    task = partial(blocks.weights, call=_call(problem, arrays))
    return _blockwise(task, (*problem.lead, "m", "n", "f"), arrays, {"f": 1})[..., 0]


# ---- backward ----------------------------------------------------------------------------------


def _pick(
    pieces: DaskArray,
    problem: Problem,
    name: str,
    out: Axes,
    sizes: Mapping[Any, Any],
    added: tuple[int, ...],
    new_axes: Mapping[str, int] | None = None,
) -> DaskArray:
    """Return one gradient of every pair of blocks, with axes of size 1 added."""
    task = partial(blocks.pick, name=name, axes=added)
    arrays = {name: (pieces, (*problem.lead, "m", "n", "f"))}
    return _blockwise(task, out, arrays, sizes, new_axes)


def _of_parameter(pieces: DaskArray, problem: Problem, name: str) -> DaskArray:
    """Return the gradient of a parameter, summed over all blocks."""
    every = (*problem.lead, "m", "n", "f")
    shape = problem.arrays[name][0].shape if name in problem.arrays else ()  # w, scale: numbers
    own = {f"own {i}": size for i, size in enumerate(shape)}
    over = tuple(range(len(every)))
    parts = _pick(pieces, problem, name, (*every, *own), dict.fromkeys(every, 1), over, own)
    return _reduce(parts, blocks.add, over)


def _of_shared(pieces: DaskArray, problem: Problem, name: str) -> DaskArray:
    """Return the gradient of bias or scale, summed over the blocks of broadcast axes."""
    array, _ = problem.arrays[name]
    shape = array.shape + (1,) * (len(problem.pairs) - array.ndim)
    axes = (*problem.lead, "m", "n")
    over = tuple(i for i, sizes in enumerate(problem.pairs) if shape[i] != sum(sizes))
    sizes = {axes[i]: 1 for i in over} | {"f": 1}
    added = tuple(range(array.ndim, len(axes) + 1))
    parts = _pick(pieces, problem, name, (*axes, "f"), sizes, added)[..., 0]
    if over:
        parts = _reduce(parts, blocks.add, over, keepdims=True)
    return parts.reshape(problem.shapes[name])


def _of_sink(problem: Problem, whole: DaskArray, incoming: Arrays) -> DaskArray:
    """Return the gradient of the sink, a part of the merge whose output is 0."""
    rows = (*problem.lead, "m", "f")
    arrays = {"sink": (problem.sink, rows[:-1]), "whole": (whole, rows), **incoming}
    task = partial(blocks.sink_gradient, names=tuple(arrays))
    parts = _blockwise(task, rows, arrays, {"f": 1})[..., 0]
    shape = (1,) * (parts.ndim - len(problem.shapes["sink"])) + problem.shapes["sink"]
    over = tuple(i for i, size in enumerate(parts.shape) if shape[i] != size)
    if over:
        parts = _reduce(parts, blocks.add, over, keepdims=True)
    return parts.reshape(problem.shapes["sink"])


# ---- Dask --------------------------------------------------------------------------------------


def _call(problem: Problem, arrays: Arrays) -> blocks.Call:
    return blocks.Call(
        problem.function, tuple(arrays), problem.options, problem.N, problem.empty_rows
    )


def _blockwise(
    task: Callable[..., Any],
    out: Axes,
    arrays: Arrays,
    sizes: Mapping[Any, Any] | None = None,
    new_axes: Mapping[str, int] | None = None,
) -> DaskArray:
    """Run the task for every combination of blocks. `sizes` are the sizes of the result blocks.

    An array with one block along an axis passes this block to all tasks. Blocks may have different
    sizes along features and heads, because `arguments` aligned them. Every axis is an axis of the
    result, so that Dask never concatenates or copies blocks.
    """
    return da.blockwise(
        task,
        out,
        *(x for pair in arrays.values() for x in pair),
        align_arrays=False,
        adjust_chunks=sizes,
        new_axes=new_axes,
        dtype=np.float32,
        meta=np.empty((0,) * len(out), np.float32),
    )


def _reduce(
    parts: DaskArray, aggregate: Callable[..., Any], axes: tuple[int, ...], keepdims: bool = False
) -> DaskArray:
    """Reduce the parts in a tree, a few at a time. The tree is the same on any cluster."""
    ndim = parts.ndim if keepdims else parts.ndim - len(axes)
    return da.reduction(
        parts,
        _as_it_is,
        aggregate,
        combine=aggregate,
        axis=axes,
        keepdims=keepdims,
        dtype=np.float32,
        meta=np.empty((0,) * ndim, np.float32),
    )


def _as_it_is(part: Any, axis: Any, keepdims: bool) -> Any:
    return part
