"""Attention with any score: the walk over all queries, forward and backward.

    queries (..., M, Dq)   keys (..., N, Dk)   values (..., N, Dv)

First the walk itself, score, softmax, pool, which is given these arrays and what there is to know
of every pair of a query and a key; then what all attentions share, which makes these from the
arguments and calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from .arguments import (
    Array,
    Mask,
    as_array,
    as_array_or_zeros,
    as_bias,
    as_inputs,
    as_queries_and_keys,
    as_sink,
    check_empty_rows,
    deliver,
)
from .dropout import dropout_keep
from .masks import pairs_that_take_part
from .options import BACKWARD, FORWARD, SCORES, SCORES_BACKWARD, Options
from .score import Score
from .sharing import broadcast_backward, share_heads, share_heads_backward
from .softcap import under_cap
from .softmax import empty_row_weight, softmax, softmax_backward

# What a forward returns: the output, or a tuple of the output and the extras asked for.
Attended: TypeAlias = Any


def zero_gradients(score: Score) -> dict[str, Any]:
    """Where those of the given parameters add up; numbers of numbers."""
    given = {name: x for name, x in score.parameters.items() if x is not None}
    return {name: np.zeros_like(x)[()] for name, x in given.items()}


MakeScore: TypeAlias = Callable[[Array, Array, Options], Score]  # of these queries and keys
Inputs: TypeAlias = tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike | None]  # and the lengths


# ---- the walk: score, softmax, pool, for every query -------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """What there is to know of every pair of a query and a key."""

    takes_part: Mask  # (..., M, N).  Only keys and values that take part are ever looked at
    bias: Array  # broadcasts to (..., M, N).  Is added to the score
    sink: Array  # broadcasts to (..., M).  One more score of a row, without a value; -inf: none
    keep: Array  # (..., M, N).  What dropout multiplies the weight by: 0, or 1 / (1 - p)
    empty_rows: str  # what becomes of a query that no key takes part in, and no sink


@np.errstate(all="ignore")  # inf and NaN follow the rules of arithmetic, silently
def attend(
    score: Score, queries: Array, keys: Array, values: Array, pairs: Pairs
) -> tuple[Array, Array, Array]:
    """Output (..., M, Dv), weights (..., M, N) before dropout, and lse (..., M)."""
    *rows, N = pairs.takes_part.shape
    output = np.zeros((*rows, values.shape[-1]))
    weights = np.zeros((*rows, N))
    lse = np.full(rows, -np.inf)
    bias, sink = np.broadcast_to(pairs.bias, weights.shape), np.broadcast_to(pairs.sink, rows)
    for row in np.ndindex(*rows):  # row = (..., m), one query
        batch, live = row[:-1], pairs.takes_part[row]
        if live.any() or sink[row] > -np.inf:
            s = score.at(batch).forward(queries[row], keys[batch][live]) + bias[row][live]  # (n,)
            w, lse[row] = softmax(np.append(s, sink[row]))  # (n + 1,)
            weights[row][live] = w[:-1]
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
    sink: Array
    scale: Array
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
    bias, sink = np.broadcast_to(pairs.bias, (*rows, N)), np.broadcast_to(pairs.sink, rows)
    d_bias, d_sink, d_scale = np.zeros(bias.shape), np.zeros(sink.shape), np.zeros(rows[:-1])
    d_parameters = zero_gradients(score)
    for row in np.ndindex(*rows):
        batch, live = row[:-1], pairs.takes_part[row]
        if not live.any():
            # forward was: output = 0, lse = sink
            if sink[row] > -np.inf:
                d_sink[row] = d_lse[row]
            # forward was: output = sum_j keep_j * v_j / N, with no score in it
            elif pairs.empty_rows == "uniform":
                d_values[batch] += np.outer(pairs.keep[row] / max(N, 1), d_output[row])
            # forward was: output = NaN
            elif pairs.empty_rows == "nan" and N > 0:
                d_queries[row] = np.nan
            continue
        q, k, v = queries[row], keys[batch][live], values[batch][live]
        s = score.at(batch).forward(q, k) + bias[row][live]  # (n,)
        w_and_sink, _ = softmax(np.append(s, sink[row]))
        w, kept = w_and_sink[:-1], pairs.keep[row][live]  # (n,)

        # forward was: output = (w * kept) @ v, and w itself may have been used too
        d_v = np.outer(w * kept, d_output[row])  # (n, Dv)
        d_w = (v @ d_output[row]) * kept + d_weights[row][live]  # (n,)
        # forward was: w and the sink's weight, which nobody uses, and lse = softmax(s and sink)
        d_s_and_sink = softmax_backward(np.append(d_w, 0), d_lse[row], w_and_sink)
        d_s = d_s_and_sink[:-1]  # (n,)
        # forward was: s = score.forward(q, k) + bias
        d_q, d_k, d_of = score.at(batch).backward(d_s, q, k)
        d_bias[row][live] = d_s
        d_scale[batch] += d_of.get("scale", 0)
        d_sink[row] = d_s_and_sink[-1] if sink[row] > -np.inf else 0  # -inf is none

        d_queries[row] = d_q
        d_keys[batch][live] += d_k  # a key serves every query, and so do the parameters:
        d_values[batch][live] += d_v  # their gradients are sums
        for name in d_parameters:
            d_parameters[name] += d_of[name]
    # forward was: bias = np.broadcast_to(pairs.bias, ...), and sink and scale likewise
    d_bias = broadcast_backward(d_bias, pairs.bias.shape)
    d_sink = broadcast_backward(d_sink, pairs.sink.shape)
    d_scale = broadcast_backward(d_scale, score.scale.shape)
    return Gradients(d_queries, d_keys, d_values, d_bias, d_sink, d_scale, d_parameters)


# ---- what all attentions share -----------------------------------------------------------------


def all_pairs(q: Array, k: Array, o: Options) -> Pairs:
    """What these options say of every pair."""
    takes_part = pairs_that_take_part(q.shape[:-1], k.shape[-2], o)
    bias = np.zeros(()) if o.bias is None else as_bias(o.bias, takes_part.shape)
    sink = np.array(-np.inf) if o.sink is None else as_sink(o.sink, q.shape[:-1])
    keep = dropout_keep(takes_part.shape, o)
    empty_rows = o.get("empty_rows", "uniform")
    check_empty_rows(empty_rows)
    return Pairs(takes_part, bias, sink, keep, empty_rows)


def attention(
    function: str, make_score: MakeScore, inputs: Inputs, options: Mapping[str, Any]
) -> Attended:
    """Attention with this score: the output, and the extras asked for."""
    queries, keys, values, valid_lens = inputs
    o = FORWARD.read(function, valid_lens, options)
    q, k, v = as_inputs(queries, keys, values, o.enable_gqa)
    score, pairs = under_cap(make_score(q, k, o), o.softcap), all_pairs(q, k, o)
    lead = q.shape[:-2]
    output, weights, lse = attend(score, q, share_heads(k, lead), share_heads(v, lead), pairs)
    parameters = (x for x in score.parameters.values() if x is not None)
    output = deliver(output, o.out, q, k, v, pairs.bias, pairs.sink, *parameters)
    extras = [x for wanted, x in [(o.return_weights, weights), (o.return_lse, lse)] if wanted]
    return (output, *extras) if extras else output


def attention_backward(
    function: str,
    make_score: MakeScore,
    grad_output: ArrayLike,
    inputs: Inputs,
    options: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Gradients of queries, keys, values, parameters and, if asked for, bias, sink and scale."""
    queries, keys, values, valid_lens = inputs
    o = BACKWARD.read(function, valid_lens, options)
    q, k, v = as_inputs(queries, keys, values, o.enable_gqa)
    score, pairs = under_cap(make_score(q, k, o), o.softcap), all_pairs(q, k, o)
    rows, lead = q.shape[:-1], q.shape[:-2]
    d_output = as_array("grad_output", grad_output, rows + v.shape[-1:])
    d_weights = as_array_or_zeros("grad_weights", o.grad_weights, pairs.takes_part.shape)
    d_lse = as_array_or_zeros("grad_lse", o.grad_lse, rows)
    as_array_or_zeros("weights", o.weights, d_weights.shape)  # these three are computed again
    as_array_or_zeros("output", o.output, d_output.shape)
    as_array_or_zeros("lse", o.lse, d_lse.shape)

    shared_k, shared_v = share_heads(k, lead), share_heads(v, lead)
    d = attend_backward(d_output, d_weights, d_lse, score, q, shared_k, shared_v, pairs)
    d_keys = share_heads_backward(d.keys, k.shape)
    d_values = share_heads_backward(d.values, v.shape)
    d_parameters = (d.parameters.get(name) for name in score.parameters)
    d_bias = [None if o.bias is None else d.bias] * bool(o.return_grad_bias)
    d_sink = [None if o.sink is None else d.sink] * bool(o.return_grad_sink)
    d_scale = [d.scale[()]] * bool(o.return_grad_scale)
    return (d.queries, d_keys, d_values, *d_parameters, *d_bias, *d_sink, *d_scale)


def all_scores(
    function: str,
    make_score: MakeScore,
    queries: ArrayLike,
    keys: ArrayLike,
    options: Mapping[str, Any],
) -> Array:
    """The score of every pair, masks and all playing no part: (..., M, N)."""
    o = SCORES.read(function, None, options)
    q, k = as_queries_and_keys(queries, keys)
    score = under_cap(make_score(q, k, o), o.softcap)
    scores = np.zeros(q.shape[:-1] + k.shape[-2:-1])
    with np.errstate(all="ignore"):
        for row in np.ndindex(scores.shape[:-1]):
            scores[row] = score.at(row[:-1]).forward(q[row], k[row[:-1]])
    return scores


def all_scores_backward(
    function: str,
    make_score: MakeScore,
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    options: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Gradients of queries, keys, parameters and, if asked for, scale."""
    o = SCORES_BACKWARD.read(function, None, options)
    q, k = as_queries_and_keys(queries, keys)
    score = under_cap(make_score(q, k, o), o.softcap)
    d_scores = as_array("grad_output", grad_output, q.shape[:-1] + k.shape[-2:-1])
    d_queries, d_keys, d_scale = np.zeros_like(q), np.zeros_like(k), np.zeros(q.shape[:-2])
    d_parameters = zero_gradients(score)
    with np.errstate(all="ignore"):
        for row in np.ndindex(d_scores.shape[:-1]):
            # forward was: scores[row] = score.at(row[:-1]).forward(q[row], k[row[:-1]])
            batch = row[:-1]
            d_queries[row], d_k, d_of = score.at(batch).backward(d_scores[row], q[row], k[batch])
            d_keys[batch] += d_k
            d_scale[batch] += d_of.get("scale", 0)
            for name in d_parameters:
                d_parameters[name] += d_of[name]
    d_of_parameters = (d_parameters.get(name) for name in score.parameters)
    # forward was: scale = np.broadcast_to(score.scale, ...)
    d_of_scale = [broadcast_backward(d_scale, score.scale.shape)[()]] * bool(o.return_grad_scale)
    return (d_queries, d_keys, *d_of_parameters, *d_of_scale)
