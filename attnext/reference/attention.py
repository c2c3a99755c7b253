"""Attention with any score: the walk over all queries, forward and backward.

    queries (..., M, Dq)   keys (..., N, Dk)   values (..., N, Dv)
    takes_part (..., M, N)  bool: who takes part.  Only those keys and values are ever looked at
    keep (..., M, N)        what dropout multiplies a weight by: 0, or 1 / (1 - p)

First the walk itself, score, softmax, pool, which is given these arrays; then what the three
attentions share, which makes them from the arguments and calls it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Array, Mask, as_array, as_array_or_zeros, check_empty_rows, deliver
from .dropout import dropout_keep
from .masks import pairs_that_take_part
from .scores import Score
from .softmax import empty_row_weight, softmax, softmax_backward

# What a forward returns: the output, or a tuple of the output and the extras asked for.
Attended: TypeAlias = Any


# ---- the walk: score, softmax, pool, for every query -------------------------------------------


@np.errstate(all="ignore")  # inf and NaN follow the rules of arithmetic, silently
def attend(
    score: Score,
    queries: Array,
    keys: Array,
    values: Array,
    takes_part: Mask,
    keep: Array,
    empty_rows: str,
) -> tuple[Array, Array, Array]:
    """Output (..., M, Dv), weights (..., M, N) before dropout, and lse (..., M)."""
    rows, N = takes_part.shape[:-1], takes_part.shape[-1]
    output = np.zeros((*rows, values.shape[-1]))
    weights = np.zeros((*rows, N))
    lse = np.full(rows, -np.inf)
    for row in np.ndindex(rows):  # row = (..., m), one query
        batch, live = row[:-1], takes_part[row]
        if live.any():
            s = score.forward(queries[row], keys[batch][live])  # (n,)
            weights[row][live], lse[row] = softmax(s)
            pooled = live
        else:
            weights[row] = empty_row_weight(N, empty_rows)
            pooled = np.full(N, empty_rows != "zero")  # weights of 1/N or NaN reach every value
        output[row] = (weights[row] * keep[row])[pooled] @ values[batch][pooled]  # (Dv,)
    return output, weights, lse


@np.errstate(all="ignore")
def attend_backward(
    score: Score,
    queries: Array,
    keys: Array,
    values: Array,
    takes_part: Mask,
    keep: Array,
    empty_rows: str,
    d_output: Array,
    d_weights: Array,
    d_lse: Array,
) -> tuple[Array, Array, Array, dict[str, Array]]:
    """Gradients of queries, keys and values, and those of the score's parameters by name."""
    rows, N = takes_part.shape[:-1], takes_part.shape[-1]
    d_queries, d_keys, d_values = (np.zeros_like(x) for x in (queries, keys, values))
    d_parameters = {name: np.zeros_like(x) for name, x in score.parameters.items()}
    for row in np.ndindex(rows):
        batch, live = row[:-1], takes_part[row]
        if not live.any():
            # forward was: output = sum_j keep_j * v_j / N, with no score in it
            if empty_rows == "uniform":
                d_values[batch] += np.outer(keep[row] / max(N, 1), d_output[row])
            # forward was: output = NaN
            if empty_rows == "nan" and N > 0:
                d_queries[row] = np.nan
            continue
        q, k, v = queries[row], keys[batch][live], values[batch][live]
        w, _ = softmax(score.forward(q, k))  # (n,)
        kept = keep[row][live]  # (n,)

        # forward was: output = (w * kept) @ v, and w itself may have been used too
        d_v = np.outer(w * kept, d_output[row])  # (n, Dv)
        d_w = (v @ d_output[row]) * kept + d_weights[row][live]  # (n,)
        # forward was: w, lse = softmax(s)
        d_s = softmax_backward(d_w, d_lse[row], w)  # (n,)
        # forward was: s = score.forward(q, k)
        d_q, d_k, d_of = score.backward(d_s, q, k)

        d_queries[row] = d_q
        d_keys[batch][live] += d_k  # a key serves every query, and so do the parameters:
        d_values[batch][live] += d_v  # their gradients are sums
        for name in d_parameters:
            d_parameters[name] += d_of[name]
    return d_queries, d_keys, d_values, d_parameters


# ---- what the three attentions share -----------------------------------------------------------


def attention(
    score: Score,
    q: Array,
    k: Array,
    v: Array,
    valid_lens: ArrayLike | None,
    dropout_p: ArrayLike,
    seed: int | None,
    empty_rows: str,
    return_weights: bool,
    return_lse: bool,
    out: Array | None,
) -> Attended:
    """Attention with this score: the output, and the extras asked for."""
    takes_part = pairs_that_take_part(q.shape[:-1], k.shape[-2], valid_lens)
    keep = dropout_keep(takes_part.shape, dropout_p, seed)
    check_empty_rows(empty_rows)
    output, weights, lse = attend(score, q, k, v, takes_part, keep, empty_rows)
    output = deliver(output, out, q, k, v, *score.parameters.values())
    extras = [x for wanted, x in [(return_weights, weights), (return_lse, lse)] if wanted]
    return (output, *extras) if extras else output


def attention_backward(
    grad_output: ArrayLike,
    score: Score,
    q: Array,
    k: Array,
    v: Array,
    valid_lens: ArrayLike | None,
    dropout_p: ArrayLike,
    seed: int | None,
    empty_rows: str,
    grad_weights: ArrayLike | None,
    grad_lse: ArrayLike | None,
    output: ArrayLike | None,
    lse: ArrayLike | None,
) -> tuple[Array, Array, Array, dict[str, Array]]:
    """Gradients of q, k, v, and those of the score's parameters by name."""
    takes_part = pairs_that_take_part(q.shape[:-1], k.shape[-2], valid_lens)
    keep = dropout_keep(takes_part.shape, dropout_p, seed)
    check_empty_rows(empty_rows)
    output_shape = q.shape[:-1] + v.shape[-1:]
    d_output = as_array("grad_output", grad_output, output_shape)
    d_weights = as_array_or_zeros("grad_weights", grad_weights, takes_part.shape)
    d_lse = as_array_or_zeros("grad_lse", grad_lse, q.shape[:-1])
    as_array_or_zeros("output", output, output_shape)  # these two are computed again
    as_array_or_zeros("lse", lse, q.shape[:-1])
    return attend_backward(score, q, k, v, takes_part, keep, empty_rows, d_output, d_weights, d_lse)


@np.errstate(all="ignore")
def all_scores(score: Score, q: Array, k: Array) -> Array:
    """The score of every pair, masks and all playing no part: (..., M, N)."""
    scores = np.zeros(q.shape[:-1] + k.shape[-2:-1])
    for row in np.ndindex(scores.shape[:-1]):
        scores[row] = score.forward(q[row], k[row[:-1]])
    return scores
