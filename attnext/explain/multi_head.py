"""multi_head_attention, step by step: projections, the attention of each head, the last projection.

queries (..., M, Dq)   keys (..., N, Dk)   values (..., N, Dv)   heads (..., heads, M or N, d)
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attnext import _core
from attnext.explain.accuracy import Array, rounded
from attnext.explain.attention import Problem, pool, pool_steps, problem_of, softmax_steps
from attnext.explain.scores import dot_product, dot_product_scale, transposed, without
from attnext.explain.steps import Arguments, Steps, as_float64, check_size, leading_axes
from attnext.explain.trace import Trace
from attnext.reference.multi_head import Arguments as HeadArguments
from attnext.reference.multi_head import join, project, read_arguments, split
from attnext.reference.sharing import share_heads

ARRAYS = ("queries", "keys", "values", "W_q", "W_k", "W_v", "W_o", "b_q", "b_k", "b_v", "b_o")


class Rounded(NamedTuple):
    """An array in float64, and the error bound of the same array in float32."""

    exact: Array
    error: Array


def explain_heads(arguments: Arguments, lang: str) -> Trace:
    """Return the steps of multi-head attention."""
    steps = Steps("multi_head_attention", lang)
    # The fast function checks all arguments.
    output, weights = _core.multi_head_attention(**arguments, return_weights=True)
    check_size(weights.shape)
    with np.errstate(all="ignore"):  # inf and NaN follow the rules of arithmetic, silently
        a, p, (q, k, v), options = heads_of(arguments)
        lead = p.inputs.lead
        _head_steps(steps, a, p, q, k, v)

        scores, score_error = dot_product(p.inputs, steps, options)
        scale = np.abs(dot_product_scale(options, q.exact.shape[-1]))
        score_error = score_error + product_error(p, q, k) * scale
        exact, error = softmax_steps(p, scores, score_error, options, steps, weights)
        pooled, pooled_error, rule = pool_steps(p, exact, error, options, steps)
        pooled_error = pooled_error + value_error(p, exact, error, v)
        steps.add("pooled", pooled, p.inputs.query_axes, weights=rule)
        joined = join(pooled)
        axes = (*lead[:-1], "query", "feature")
        steps.add("joined", joined, axes, heads=a.heads, d=pooled.shape[-1])
        last = _linear(joined, a.W_o, a.b_o)
        last_error = last.error + join(pooled_error) @ np.abs(a.W_o).T
        steps.add("mixed", output, axes, bias=_bias(a.b_o, "o"))
        compared = [
            ("weights", weights, exact, error),
            ("output", output, last.exact, last_error),
        ]
        return steps.trace(arguments, output, weights, compared)


def heads_of(
    arguments: Arguments,
) -> tuple[HeadArguments, Problem, tuple[Rounded, Rounded, Rounded], Arguments]:
    """Return the arguments in float64, the attention of the heads, and its options."""
    given = {name: x for name, x in arguments.items() if x is not None}
    rounded_to_float32 = {name: as_float64(given[name]) for name in ARRAYS if name in given}
    a = read_arguments({**arguments, **rounded_to_float32})
    q = _linear(a.queries, a.W_q, a.b_q, a.heads)
    k = _linear(a.keys, a.W_k, a.b_k, a.kv_heads)
    v = _linear(a.values, a.W_v, a.b_v, a.kv_heads)
    *_, lens = a.of_heads(arguments["valid_lens"])
    options = {**arguments, "valid_lens": lens, "enable_gqa": False}
    p = problem_of(q.exact, k.exact, v.exact, options)
    lead = (*leading_axes(a.queries.ndim - 1)[:-1], "head")
    return a, replace(p, inputs=replace(p.inputs, lead=lead)), (q, k, v), options


def _linear(x: Array, W: Array, b: Array | None, heads: int | None = None) -> Rounded:
    """Return x @ W^T + b, split into heads, with its error bound in float32."""
    sizes = project(np.abs(x), np.abs(W), None if b is None else np.abs(b))
    made = Rounded(project(x, W, b), rounded(sizes, W.shape[1] + 1))
    return made if heads is None else Rounded(*(split(each, heads) for each in made))


def _head_steps(
    steps: Steps, a: HeadArguments, p: Problem, q: Rounded, k: Rounded, v: Rounded
) -> None:
    """Add the steps of the three projections."""
    x = p.inputs
    idle_values = without(p.pooled, -2)[..., None]
    for name, made, W, b, idle in (
        ("queries", q, a.W_q, a.b_q, x.idle_queries),
        ("keys", k, a.W_k, a.b_k, x.idle_keys),
        ("values", v, a.W_v, a.b_v, idle_values),
    ):
        *lead, heads, rows, d = made.exact.shape
        masked = idle.reshape(*lead, heads, -1, rows, 1).all(
            axis=-3
        )  # masked for all query heads that share the key head
        axes = (*x.lead, "query" if name == "queries" else "key", "feature")
        steps.add(
            f"head_{name}",
            np.where(masked, np.nan, made.exact),
            axes,
            np.asarray(masked),
            bias=_bias(b, name[0]),
            D=W.shape[1],
            H=W.shape[0],
            heads=heads,
            d=d,
        )
    if p.group > 1:
        steps.add("shared_heads", x.keys, x.key_axes, x.idle_keys, group=p.group)


def _bias(b: Array | None, letter: str) -> str:
    return "" if b is None else f" + b_{letter}"


def product_error(p: Problem, q: Rounded, k: Rounded) -> Array:
    """Return the error of the dot products that comes from rounded queries and keys."""
    lead = q.exact.shape[:-2]
    k_exact, k_error = (transposed(share_heads(np.abs(x), lead)) for x in k)
    return p.inputs.of_pairs(q.error @ (k_exact + k_error) + np.abs(q.exact) @ k_error)


def value_error(p: Problem, weights: Array, error: Array, v: Rounded) -> Array:
    """Return the error of the pooled values that comes from rounded values."""
    kept = (weights + error) * p.pairs.keep
    return pool(kept, share_heads(v.error, weights.shape[:-2]), p.pooled)
