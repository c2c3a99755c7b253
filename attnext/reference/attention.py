"""Attention with any score: the walk over all queries, forward and backward.

    queries (..., M, Dq)   keys (..., N, Dk)   values (..., N, Dv)

First the walk itself, score, softmax, pool, which is given these arrays and what there is to know
of every pair of a query and a key; then what all attentions share, which makes these from the
arguments and calls it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Array, Mask, as_array, as_array_or_zeros, as_bias, check_empty_rows, deliver
from .dropout import Dropout, dropout_keep
from .masks import Masks, pairs_that_take_part
from .scores import Score
from .sharing import broadcast_backward, share_heads, share_heads_backward
from .softmax import empty_row_weight, softmax, softmax_backward

# What a forward returns: the output, or a tuple of the output and the extras asked for.
Attended: TypeAlias = Any


# ---- the walk: score, softmax, pool, for every query -------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """What there is to know of every pair of a query and a key."""

    takes_part: Mask  # (..., M, N).  Only keys and values that take part are ever looked at
    bias: Array  # broadcasts to (..., M, N).  Is added to the score
    keep: Array  # (..., M, N).  What dropout multiplies the weight by: 0, or 1 / (1 - p)
    empty_rows: str  # what becomes of a query that no key takes part in


@np.errstate(all="ignore")  # inf and NaN follow the rules of arithmetic, silently
def attend(
    score: Score, queries: Array, keys: Array, values: Array, pairs: Pairs
) -> tuple[Array, Array, Array]:
    """Output (..., M, Dv), weights (..., M, N) before dropout, and lse (..., M)."""
    *rows, N = pairs.takes_part.shape
    output = np.zeros((*rows, values.shape[-1]))
    weights = np.zeros((*rows, N))
    lse = np.full(rows, -np.inf)
    bias = np.broadcast_to(pairs.bias, weights.shape)
    for row in np.ndindex(*rows):  # row = (..., m), one query
        batch, live = row[:-1], pairs.takes_part[row]
        if live.any():
            s = score.forward(queries[row], keys[batch][live]) + bias[row][live]  # (n,)
            weights[row][live], lse[row] = softmax(s)
            pooled = live
        else:
            weights[row] = empty_row_weight(N, pairs.empty_rows)
            pooled = np.full(N, pairs.empty_rows != "zero")  # 1/N or NaN reaches every value
        kept = weights[row] * pairs.keep[row]  # (N,)
        output[row] = kept[pooled] @ values[batch][pooled]  # (Dv,)
    return output, weights, lse


@dataclass(frozen=True)
class Gradients:
    """What a backward returns, each in the shape of what it belongs to."""

    queries: Array
    keys: Array
    values: Array
    bias: Array
    parameters: dict[str, Array]  # those of the score, by name


@np.errstate(all="ignore")
def attend_backward(
    d_output: Array,
    d_weights: Array,
    d_lse: Array,
    score: Score,
    queries: Array,
    keys: Array,
    values: Array,
    pairs: Pairs,
) -> Gradients:
    """Gradients of all that went into `attend`."""
    *rows, N = pairs.takes_part.shape
    d_queries, d_keys, d_values = (np.zeros_like(x) for x in (queries, keys, values))
    bias = np.broadcast_to(pairs.bias, pairs.takes_part.shape)
    d_bias = np.zeros(bias.shape)
    d_parameters = {name: np.zeros_like(x) for name, x in score.parameters.items()}
    for row in np.ndindex(*rows):
        batch, live = row[:-1], pairs.takes_part[row]
        if not live.any():
            # forward was: output = sum_j keep_j * v_j / N, with no score in it
            if pairs.empty_rows == "uniform":
                d_values[batch] += np.outer(pairs.keep[row] / max(N, 1), d_output[row])
            # forward was: output = NaN
            if pairs.empty_rows == "nan" and N > 0:
                d_queries[row] = np.nan
            continue
        q, k, v = queries[row], keys[batch][live], values[batch][live]
        w, _ = softmax(score.forward(q, k) + bias[row][live])  # (n,)
        kept = pairs.keep[row][live]  # (n,)

        # forward was: output = (w * kept) @ v, and w itself may have been used too
        d_v = np.outer(w * kept, d_output[row])  # (n, Dv)
        d_w = (v @ d_output[row]) * kept + d_weights[row][live]  # (n,)
        # forward was: w, lse = softmax(s)
        d_s = softmax_backward(d_w, d_lse[row], w)  # (n,)
        # forward was: s = score.forward(q, k) + bias
        d_q, d_k, d_of = score.backward(d_s, q, k)
        d_bias[row][live] = d_s

        d_queries[row] = d_q
        d_keys[batch][live] += d_k  # a key serves every query, and so do the parameters:
        d_values[batch][live] += d_v  # their gradients are sums
        for name in d_parameters:
            d_parameters[name] += d_of[name]
    # forward was: bias = np.broadcast_to(pairs.bias, ...)
    d_bias = broadcast_backward(d_bias, pairs.bias.shape)
    return Gradients(d_queries, d_keys, d_values, d_bias, d_parameters)


# ---- what all attentions share -----------------------------------------------------------------


def all_pairs(q: Array, k: Array, masks: Masks, dropout: Dropout, empty_rows: str) -> Pairs:
    """What these arguments say of every pair."""
    takes_part = pairs_that_take_part(q.shape[:-1], k.shape[-2], masks)
    bias = np.zeros(()) if masks.bias is None else as_bias(masks.bias, takes_part.shape)
    keep = dropout_keep(takes_part.shape, dropout)
    check_empty_rows(empty_rows)
    return Pairs(takes_part, bias, keep, empty_rows)


def attention(
    score: Score,
    q: Array,
    k: Array,
    v: Array,
    pairs: Pairs,
    return_weights: bool,
    return_lse: bool,
    out: Array | None,
) -> Attended:
    """Attention with this score: the output, and the extras asked for."""
    lead = q.shape[:-2]
    output, weights, lse = attend(score, q, share_heads(k, lead), share_heads(v, lead), pairs)
    output = deliver(output, out, q, k, v, pairs.bias, *score.parameters.values())
    extras = [x for wanted, x in [(return_weights, weights), (return_lse, lse)] if wanted]
    return (output, *extras) if extras else output


def attention_backward(
    grad_output: ArrayLike,
    score: Score,
    q: Array,
    k: Array,
    v: Array,
    pairs: Pairs,
    grad_weights: ArrayLike | None,
    grad_lse: ArrayLike | None,
    weights: ArrayLike | None,
    output: ArrayLike | None,
    lse: ArrayLike | None,
) -> Gradients:
    """Gradients of attention with this score."""
    rows, lead = q.shape[:-1], q.shape[:-2]
    d_output = as_array("grad_output", grad_output, rows + v.shape[-1:])
    d_weights = as_array_or_zeros("grad_weights", grad_weights, pairs.takes_part.shape)
    d_lse = as_array_or_zeros("grad_lse", grad_lse, rows)
    as_array_or_zeros("weights", weights, d_weights.shape)  # these three are computed again
    as_array_or_zeros("output", output, d_output.shape)
    as_array_or_zeros("lse", lse, d_lse.shape)

    shared_k, shared_v = share_heads(k, lead), share_heads(v, lead)
    d = attend_backward(d_output, d_weights, d_lse, score, q, shared_k, shared_v, pairs)
    d_keys = share_heads_backward(d.keys, k.shape)
    d_values = share_heads_backward(d.values, v.shape)
    return replace(d, keys=d_keys, values=d_values)


def bias_gradient(
    d: Gradients, bias: ArrayLike | None, return_grad_bias: bool
) -> tuple[Array | None, ...]:
    """What a backward appends to the gradients it always returns."""
    if not return_grad_bias:
        return ()
    return (None if bias is None else d.bias,)


@np.errstate(all="ignore")
def all_scores(score: Score, q: Array, k: Array) -> Array:
    """The score of every pair, masks and all playing no part: (..., M, N)."""
    scores = np.zeros(q.shape[:-1] + k.shape[-2:-1])
    for row in np.ndindex(scores.shape[:-1]):
        scores[row] = score.forward(q[row], k[row[:-1]])
    return scores
