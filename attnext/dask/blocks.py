"""What one worker does: attention over its share of the keys, with NumPy arrays alone.

Letters: m queries and n keys of a block, Dv features of a value; N keys in all blocks together.
A *part* is the attention of a block's queries over its keys, as one array (..., m, Dv + 1): the
output and, in the last column, the log-sum-exp. Parts merge to the whole, which has the same form.
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
    """What is the same in every block."""

    function: str  # its name in attnext
    names: tuple[str, ...]  # of the blocks, in the order in which they are handed over
    options: dict[str, Any]  # keywords that are no arrays to cut up: scale, causal, window, ...
    N: int
    empty_rows: str


# ---- the arguments as they look from inside a block --------------------------------------------


def arguments(call: Call, blocks: tuple[Array, ...]) -> dict[str, Any]:
    """The blocks by name. Lengths and the diagonal are counted from the block's first key."""
    a: dict[str, Any] = dict(zip(call.names, blocks, strict=True))
    rows, n = a["queries"].shape[:-1], a["keys"].shape[-2]
    first_query, first_key = int(a.pop("first_query")[0]), int(a.pop("first_key")[0])
    if "valid_lens" in a:
        a["valid_lens"] = np.broadcast_to(np.clip(a["valid_lens"] - first_key, 0, n), rows)
    band_of_block(a, first_query, first_key)
    return a


# ---- parts, and how they merge -----------------------------------------------------------------


def pack(output: Array, lse: Array) -> Array:
    """Output (..., m, Dv) and lse (..., m) as a part (..., m, Dv + 1)."""
    return np.concatenate([output, lse[..., None]], axis=-1)


def attend(*blocks: Array, call: Call) -> Array:
    """The part of this block, (1, ..., m, Dv + 1): one entry along an axis of parts."""
    return pack(*_attention(call, arguments(call, blocks), return_lse=True))[None]


def mean(values: Array, group: int) -> Array:
    """The mean of a block's values as a part (1, ..., 1, Dv + 1), for each query head.

    It is the attention of one query that scores every key alike. Without features all scores are 0,
    and the lse is log n, so that the parts merge to the mean of all the values.
    """
    *lead, n, _ = values.shape
    queries, keys = (np.empty((*lead, size, 0), np.float32) for size in (1, n))
    part = pack(*attnext.dot_product_attention(queries, keys, values, return_lse=True))
    return np.repeat(part, group, axis=-3)[None] if group > 1 else part[None]


def merge(parts: Array, axis: Any, keepdims: bool) -> Array:
    """Parts (p, ..., m, Dv + 1) to one, as an aggregate of `dask.array.reduction` along axis 0."""
    outputs, lses = parts[..., :-1], parts[..., -1]
    output, lse = attnext.merge_attention(outputs, lses)
    # A part of lse -inf has no weight. If all are, the row is empty in each of them and every
    # output 0; or its scores overflowed, and what a softmax makes of them is NaN, which must stay.
    dead = np.isneginf(lse)
    output[dead] = outputs[:, dead].sum(axis=0)
    merged = pack(output, lse)
    return merged[None] if keepdims else merged


def add(parts: Array, axis: Any, keepdims: bool) -> Array:
    """The sum of gradients, as an aggregate of `dask.array.reduction`."""
    with np.errstate(all="ignore"):  # inf - inf is NaN, as everywhere here
        total: Array = parts.sum(axis=axis, keepdims=keepdims, dtype=np.float32)
    return total


def is_empty(whole: Array) -> Array:
    """(..., m): the rows in which no key of any block takes part."""
    return np.isneginf(whole[..., -1]) & ~np.isnan(whole[..., :-1]).any(axis=-1)


def finish(whole: Array, mean_of_values: Array | None = None, *, empty_rows: str) -> Array:
    """The output (..., m, Dv), in which empty rows follow their rule: they hold 0 so far."""
    output = whole[..., :-1].copy()
    empty = is_empty(whole)[..., None]
    if empty_rows == "nan":
        np.copyto(output, np.nan, where=empty)
    if mean_of_values is not None:
        np.copyto(output, mean_of_values[..., :-1], where=empty)
    return output


# ---- from the whole back to the block ----------------------------------------------------------


def share_of(lse: Array, whole_lse: Array) -> Array:
    """The weight (..., m) that this part has in the whole, in float64.

    1 where no part has any weight: there the block itself has 0 or NaN, which is the result.
    """
    share = np.exp(lse.astype(np.float64) - whole_lse)
    share[np.isposinf(whole_lse)] = np.nan  # a score of +inf, as softmax has it
    share[np.isneginf(whole_lse)] = 1
    return share


@np.errstate(all="ignore")
def weights(*blocks: Array, call: Call) -> Array:
    """The attention weights of a block, (..., m, n, 1)."""
    a = arguments(call, blocks)
    whole = a.pop("whole")
    a["values"] = np.empty((*a["keys"].shape[:-1], 0), np.float32)  # nothing is pooled
    _, local, lse = _attention(call, a, return_weights=True, return_lse=True)
    share = share_of(lse, whole[..., -1])[..., None]
    result = np.where((local == 0) | (share == 0), 0, local * share).astype(np.float32)
    np.copyto(result, empty_row_weight(call.N, call.empty_rows), where=is_empty(whole)[..., None])
    return result[..., None]


@np.errstate(all="ignore")
def gradients(*blocks: Array, call: Call, shared: tuple[str, ...]) -> dict[str, Array]:
    """The block's contribution to every gradient, by the name of what it belongs to."""
    a = arguments(call, blocks)
    whole, grad, grad_lse = a.pop("whole"), a.pop("grad_output"), a.pop("grad_lse", 0.0)
    output, lse = _attention(call, a, return_lse=True)
    share = share_of(lse, whole[..., -1])  # (..., m)

    # A row in which the whole gives this block no weight gets nothing from it, not even NaN from
    # scores that overflow in this block alone.
    idle = share == 0
    a["valid_lens"] = np.where(idle, 0, a.get("valid_lens", a["keys"].shape[-2]))

    # merge was: whole = sum of share * output over the blocks, share = softmax of their lses.  So:
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
    """The rows' parts of the sink's gradient, (..., m, 1)."""
    a = dict(zip(names, blocks, strict=True))
    output, lse = a["whole"][..., :-1], a["whole"][..., -1]
    # merge was: whole = sum of share * output over the parts, and the sink's output is 0.  So:
    d_lse = share_of(a["sink"], lse) * (
        a.get("grad_lse", 0.0) - (output * a["grad_output"]).sum(-1)
    )
    return np.where(np.isneginf(a["sink"]), 0, d_lse).astype(np.float32)[..., None]


def pick(pieces: dict[str, Array], *, name: str, axes: tuple[int, ...]) -> Array:
    """One gradient out of what `gradients` returned, with axes of size 1 put in at these places."""
    return np.expand_dims(pieces[name], axes)


def _attention(call: Call, a: dict[str, Any], **extras: bool) -> Any:
    """attnext's own function on a block. Its empty rows count nothing: 0, and an lse of -inf."""
    function = getattr(attnext, call.function)
    return function(**a, **call.options, empty_rows="zero", **extras)


def _add_empty_rows(d: dict[str, Array], empty: Array, grad: Array, call: Call) -> None:
    """What rows that are empty in every block add to the gradients."""
    if call.empty_rows == "nan":
        d["queries"][empty] = np.nan
    if call.empty_rows == "uniform" and empty.any():
        # forward was: output = sum of all values / N.  So each gets the same from every such row:
        spread = np.where(empty[..., None], grad, 0).sum(axis=-2, keepdims=True) / call.N
        *lead, _, Dv = d["values"].shape
        if len(lead) > 0 and spread.shape[-3] != lead[-1]:  # heads that share their values
            spread = spread.reshape(*lead, spread.shape[-3] // lead[-1], 1, Dv).sum(axis=-3)
        d["values"] += spread.astype(np.float32)
