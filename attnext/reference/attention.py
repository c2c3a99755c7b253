"""Attention with any score: the loop over all queries, forward and backward.

    queries (..., M, Dq)   keys (..., N, Dk)   values (..., N, Dv)

The first part of this file is the loop over the queries: score, softmax, pooling. It takes these
arrays and the properties of every pair of a query and a key. The second part is shared by all
attention functions: it reads their arguments and calls the loop.
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

# A forward function returns the output, or a tuple of the output and the requested extras.
Attended: TypeAlias = Any


def zero_gradients(score: Score) -> dict[str, Any]:
    """Return zeros in the shapes of the given parameters, to add gradients to."""
    given = {name: x for name, x in score.parameters.items() if x is not None}
    return {name: np.zeros_like(x)[()] for name, x in given.items()}


MakeScore: TypeAlias = Callable[[Array, Array, Options], Score]  # from queries, keys and options
Inputs: TypeAlias = tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike | None]  # and the lengths


# ---- the loop: score, softmax, pooling, for every query ----------------------------------------


@dataclass(frozen=True)
class Pairs:
    """The properties of every pair of a query and a key."""

    takes_part: Mask  # (..., M, N).  True for unmasked pairs; other keys and values are not read
    bias: Array  # broadcasts to (..., M, N).  It is added to the score
    sink: Array  # broadcasts to (..., M).  One more score of a row, without a value; -inf: no sink
    keep: Array  # (..., M, N).  Dropout multiplies the weight by it: 0 or 1 / (1 - p)
    empty_rows: str  # the rule for a query without a sink whose keys are all masked


@np.errstate(all="ignore")  # inf and NaN follow the rules of IEEE arithmetic, without warnings
def attend(
    score: Score, queries: Array, keys: Array, values: Array, pairs: Pairs
) -> tuple[Array, Array, Array]:
    """Return output (..., M, Dv), weights (..., M, N) before dropout, and lse (..., M)."""
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
            pooled = np.full(N, pairs.empty_rows != "zero")  # 1/N or NaN for every value
        kept = weights[row] * pairs.keep[row]  # (N,)
        output[row] = kept[pooled] @ values[batch][pooled]  # (Dv,)
    return output, weights, lse


@dataclass(frozen=True)
class Gradients:
    """The gradients that a backward pass returns, each in the shape of its input."""

    queries: Array
    keys: Array
    values: Array
    bias: Array
    sink: Array
    scale: Array
    parameters: dict[str, Array]  # the score's parameters, by name


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
    """Return the gradients of all inputs of `attend`."""
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
            # forward was: output = sum_j keep_j * v_j / N, which does not depend on the scores
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

        # forward was: output = (w * kept) @ v; the loss may also use w, hence d_weights
        d_v = np.outer(w * kept, d_output[row])  # (n, Dv)
        d_w = (v @ d_output[row]) * kept + d_weights[row][live]  # (n,)
        # forward was: w, w_sink, lse = softmax(s and sink); w_sink is not used, so its d_w is 0
        d_s_and_sink = softmax_backward(np.append(d_w, 0), d_lse[row], w_and_sink)
        d_s = d_s_and_sink[:-1]  # (n,)
        # forward was: s = score.forward(q, k) + bias
        d_q, d_k, d_of = score.at(batch).backward(d_s, q, k)
        d_bias[row][live] = d_s
        d_scale[batch] += d_of.get("scale", 0)
        d_sink[row] = d_s_and_sink[-1] if sink[row] > -np.inf else 0  # -inf: no sink

        d_queries[row] = d_q
        d_keys[batch][live] += d_k  # all queries use the same keys, values and parameters,
        d_values[batch][live] += d_v  # so the gradients of these are sums over the queries
        for name in d_parameters:
            d_parameters[name] += d_of[name]
    # forward was: bias = np.broadcast_to(pairs.bias, ...), and the same for sink and scale
    d_bias = broadcast_backward(d_bias, pairs.bias.shape)
    d_sink = broadcast_backward(d_sink, pairs.sink.shape)
    d_scale = broadcast_backward(d_scale, score.scale.shape)
    return Gradients(d_queries, d_keys, d_values, d_bias, d_sink, d_scale, d_parameters)


# ---- shared by all attention functions ---------------------------------------------------------


def all_pairs(q: Array, k: Array, o: Options) -> Pairs:
    """Return the properties of every pair that follow from these options."""
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
    """Compute attention with this score; return the output and the requested extras."""
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
    """Return the gradients of queries, keys, values, parameters, and the requested others."""
    queries, keys, values, valid_lens = inputs
    o = BACKWARD.read(function, valid_lens, options)
    q, k, v = as_inputs(queries, keys, values, o.enable_gqa)
    score, pairs = under_cap(make_score(q, k, o), o.softcap), all_pairs(q, k, o)
    rows, lead = q.shape[:-1], q.shape[:-2]
    d_output = as_array("grad_output", grad_output, rows + v.shape[-1:])
    d_weights = as_array_or_zeros("grad_weights", o.grad_weights, pairs.takes_part.shape)
    d_lse = as_array_or_zeros("grad_lse", o.grad_lse, rows)
    as_array_or_zeros("weights", o.weights, d_weights.shape)  # these three are only checked
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
    """Return the scores of all pairs, (..., M, N), without masks."""
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
    """Return the gradients of queries, keys, parameters and, if requested, scale."""
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
