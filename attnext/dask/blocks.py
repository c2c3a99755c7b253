"""Tasks of a worker: attention over one block of keys, with NumPy arrays.

Sizes: m queries and n keys in a block, Dv features of a value, N keys in all blocks together. A
*part* is the attention of the queries over the keys of one block, as an array (..., m, Dv + 1) with
the output and, in the last column, the log-sum-exp. Merged parts have the same form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import attnext
from attnext._gradients import by_name
from attnext.reference.softmax import empty_row_weight

from .bands import band_of_block

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Call:
    """The arguments that are the same for every block."""

    function: str  # its name in attnext
    names: tuple[str, ...]  # names of the blocks, in the order of the arguments
    options: dict[str, Any]  # keywords that are not divided: scale, causal, window, ...
    N: int
    empty_rows: str


# ---- the arguments of a block ------------------------------------------------------------------


def arguments(call: Call, blocks: tuple[Array, ...]) -> dict[str, Any]:
    """Return the blocks by name, with lengths and offset relative to the first key of the block."""
    a: dict[str, Any] = dict(zip(call.names, blocks, strict=True))
    rows, n = a["queries"].shape[:-1], a["keys"].shape[-2]
    first_query, first_key = int(a.pop("first_query")[0]), int(a.pop("first_key")[0])
    if "valid_lens" in a:
        a["valid_lens"] = np.broadcast_to(np.clip(a["valid_lens"] - first_key, 0, n), rows)
    band_of_block(a, first_query, first_key)
    return a


# ---- parts and their merge ---------------------------------------------------------------------


def pack(output: Array, lse: Array) -> Array:
    """Return output (..., m, Dv) and lse (..., m) as a part (..., m, Dv + 1)."""
    return np.concatenate([output, lse[..., None]], axis=-1)


def attend(*blocks: Array, call: Call) -> Array:
    """Return the part of this block, (1, ..., m, Dv + 1). The first axis counts the parts."""
    return pack(*_attention(call, arguments(call, blocks), return_lse=True))[None]


def mean(values: Array, group: int) -> Array:
    """Return the mean of the values of a block as a part (1, ..., 1, Dv + 1), per query head.

    This is the attention of one query with equal scores. Without features all scores are 0 and the
    lse is log n, so the merged parts are the mean of all values.
    """
    *lead, n, _ = values.shape
    queries, keys = (np.empty((*lead, size, 0), np.float32) for size in (1, n))
    part = pack(*attnext.dot_product_attention(queries, keys, values, return_lse=True))
    return np.repeat(part, group, axis=-3)[None] if group > 1 else part[None]


def merge(parts: Array, axis: Any, keepdims: bool) -> Array:
    """Merge parts (p, ..., m, Dv + 1) along axis 0, as an aggregate of `dask.array.reduction`."""
    outputs, lses = parts[..., :-1], parts[..., -1]
    output, lse = attnext.merge_attention(outputs, lses)
    # A part with lse -inf has no weight. If all lses are -inf, the row is empty in every part and
    # the outputs are 0, or its scores overflowed and the outputs are NaN. The sum keeps this NaN.
    dead = np.isneginf(lse)
    output[dead] = outputs[:, dead].sum(axis=0)
    merged = pack(output, lse)
    return merged[None] if keepdims else merged


def add(parts: Array, axis: Any, keepdims: bool) -> Array:
    """Return the sum of gradients, as an aggregate of `dask.array.reduction`."""
    with np.errstate(all="ignore"):  # inf - inf is NaN without a warning
        total: Array = parts.sum(axis=axis, keepdims=keepdims, dtype=np.float32)
    return total


def is_empty(whole: Array) -> Array:
    """Return the rows (..., m) in which all keys of all blocks are masked."""
    return np.isneginf(whole[..., -1]) & ~np.isnan(whole[..., :-1]).any(axis=-1)


def finish(whole: Array, mean_of_values: Array | None = None, *, empty_rows: str) -> Array:
    """Return the output (..., m, Dv), with empty rows filled according to empty_rows."""
    output = whole[..., :-1].copy()
    empty = is_empty(whole)[..., None]
    if empty_rows == "nan":
        np.copyto(output, np.nan, where=empty)
    if mean_of_values is not None:
        np.copyto(output, mean_of_values[..., :-1], where=empty)
    return output


# ---- results that need the merged attention ----------------------------------------------------


def share_of(lse: Array, whole_lse: Array) -> Array:
    """Return the share (..., m) of this part in the merged attention, in float64.

    The share is 1 where no part has weight, because the block then has the result itself: 0 or NaN.
    """
    share = np.exp(lse.astype(np.float64) - whole_lse)
    share[np.isposinf(whole_lse)] = np.nan  # a softmax with a score of +inf is NaN
    share[np.isneginf(whole_lse)] = 1
    return share


@np.errstate(all="ignore")
def weights(*blocks: Array, call: Call) -> Array:
    """Return the attention weights of a block, (..., m, n, 1)."""
    a = arguments(call, blocks)
    whole = a.pop("whole")
    a["values"] = np.empty((*a["keys"].shape[:-1], 0), np.float32)  # no values are needed
    _, local, lse = _attention(call, a, return_weights=True, return_lse=True)
    share = share_of(lse, whole[..., -1])[..., None]
    result = np.where((local == 0) | (share == 0), 0, local * share).astype(np.float32)
    np.copyto(result, empty_row_weight(call.N, call.empty_rows), where=is_empty(whole)[..., None])
    return result[..., None]


@np.errstate(all="ignore")
def gradients(*blocks: Array, call: Call, shared: tuple[str, ...]) -> dict[str, Array]:
    """Return the contribution of the block to every gradient, by argument name."""
    a = arguments(call, blocks)
    whole, grad, grad_lse = a.pop("whole"), a.pop("grad_output"), a.pop("grad_lse", 0.0)
    output, lse = _attention(call, a, return_lse=True)
    share = share_of(lse, whole[..., -1])  # (..., m)

    # If the share of this block is 0, its contribution is 0, even if its scores overflow to NaN.
    idle = share == 0
    a["valid_lens"] = np.where(idle, 0, a.get("valid_lens", a["keys"].shape[-2]))

    # merge: whole = sum of share * output over the blocks, share = softmax of the lses. Therefore:
    d_output = share[..., None] * grad
    d_lse = share * (((output - whole[..., :-1]) * grad).sum(axis=-1) + grad_lse)
    backward = getattr(attnext, call.function + "_backward")
    d = backward(
        d_output,
        **a,
        **call.options,
        empty_rows="zero",
        grad_lse=d_lse,
        output=output,
        lse=lse,
        **{f"return_grad_{name}": True for name in shared},
    )
    named = by_name(call.function, d, False, *shared)
    result = {name: np.asarray(x) for name, x in named.items() if x is not None}
    _add_empty_rows(result, is_empty(whole), grad, call)
    return result


@np.errstate(all="ignore")
def sink_gradient(*blocks: Array, names: tuple[str, ...]) -> Array:
    """Return the gradient of the sink for each row, (..., m, 1)."""
    a = dict(zip(names, blocks, strict=True))
    output, lse = a["whole"][..., :-1], a["whole"][..., -1]
    # merge: whole = sum of share * output over the parts; the output of the sink is 0. Therefore:
    d_lse = share_of(a["sink"], lse) * (
        a.get("grad_lse", 0.0) - (output * a["grad_output"]).sum(-1)
    )
    return np.where(np.isneginf(a["sink"]), 0, d_lse).astype(np.float32)[..., None]


def pick(pieces: dict[str, Array], *, name: str, axes: tuple[int, ...]) -> Array:
    """Return one gradient from the result of `gradients`, with axes of size 1 inserted."""
    return np.expand_dims(pieces[name], axes)


def _attention(call: Call, a: dict[str, Any], **extras: bool) -> Any:
    """Call the attnext function on a block. Empty rows have output 0 and lse -inf."""
    function = getattr(attnext, call.function)
    return function(**a, **call.options, empty_rows="zero", **extras)


def _add_empty_rows(d: dict[str, Array], empty: Array, grad: Array, call: Call) -> None:
    """Add the gradients of rows that are empty in every block."""
    if call.empty_rows == "nan":
        d["queries"][empty] = np.nan
    if call.empty_rows == "uniform" and empty.any():
        # forward: output = sum of all values / N. So every value gets the same gradient:
        spread = np.where(empty[..., None], grad, 0).sum(axis=-2, keepdims=True) / call.N
        *lead, _, Dv = d["values"].shape
        if len(lead) > 0 and spread.shape[-3] != lead[-1]:  # heads that share their values
            spread = spread.reshape(*lead, spread.shape[-3] // lead[-1], 1, Dv).sum(axis=-3)
        d["values"] += spread.astype(np.float32)
