"""multi_head_attention_backward, step by step: back through projections, heads and projections.

heads (..., heads, M or N, d)   grad_output (..., M, H)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attnext import _core
from attnext._gradients import asked_for, by_name
from attnext.explain.accuracy import TINY, Array, rounded
from attnext.explain.attention import Problem, is_dropped, pool, pool_steps
from attnext.explain.chain import (
    Forward,
    Incoming,
    forward,
    of_scale,
    of_values,
    shared_steps,
    softcap_backward,
    softmax_steps,
)
from attnext.explain.gradients import Gradient, Results, as_nan, pooled
from attnext.explain.multi_head import Rounded, heads_of, product_error, value_error
from attnext.explain.scores import dot_product, dot_product_scale, scale_text, transposed
from attnext.explain.steps import Arguments, Compared, Steps, as_float64, check_size
from attnext.explain.trace import Trace
from attnext.reference.multi_head import Arguments as HeadArguments
from attnext.reference.multi_head import join, split
from attnext.reference.sharing import share_heads

_NAMES = (("queries", "q"), ("keys", "k"), ("values", "v"))


def explain_heads_backward(arguments: Arguments, lang: str) -> Trace:
    """Return the steps of the backward pass of multi-head attention."""
    name = "multi_head_attention_backward"
    steps = Steps(name, lang)
    returned: Any = _core.multi_head_attention_backward(**arguments)  # checks all arguments
    results = by_name("multi_head_attention", returned, False, *asked_for(arguments))
    with np.errstate(all="ignore"):
        a, p, (q, k, v), options = heads_of(arguments)
        check_size(p.inputs.live.shape)
        dummy = Steps(name, lang)  # collects the steps of the forward pass, which are not shown
        scores, error = dot_product(p.inputs, dummy, options)
        off, d = product_error(p, q, k), q.exact.shape[-1]
        scale = dot_product_scale(options, d)
        of = forward(p, scores, error + off * np.abs(scale), options)
        grad = as_float64(arguments["grad_output"])
        g = _to_heads(grad, a, p, v, steps)
        d_scores, d_sink = softmax_steps(p, of, g, options, steps)
        d_raw = softcap_backward(p, d_scores, of.slope, options, steps)
        heads = _in_heads(p, of, g, d_raw.times(scale), q, k, v)
        compared = _projections(a, p, heads, options, steps, results, scale_text(options, d))
        compared += _last_projection(a, p, of, grad, v, dummy, options, steps, results)
        of_shared = {"bias": d_scores, "sink": d_sink}
        of_shared["scale"] = of_scale(p, d_raw, p.inputs.queries, p.inputs.keys, off)
        compared += shared_steps(p, of_shared, "queries @ keys^T", options, steps, results)
        return steps.trace(arguments, returned, of.weights, compared)


def _to_heads(grad: Array, a: HeadArguments, p: Problem, v: Rounded, steps: Steps) -> Incoming:
    """Return the upstream gradient of the output of each head."""
    # forward was: output = join(pooled) @ W_o^T + b_o
    d_joined = grad @ a.W_o
    error = rounded(np.abs(grad) @ np.abs(a.W_o), len(a.W_o))
    lead = p.inputs.lead
    steps.add("d_joined", d_joined, (*lead[:-1], "query", "feature"))
    d_pooled = split(d_joined, a.heads)
    steps.add("d_pooled", d_pooled, (*lead, "query", "feature"), heads=a.heads)
    of_values = share_heads(v.error, d_pooled.shape[:-2])
    return Incoming(d_pooled, "d_pooled", split(error, a.heads), of_values)


def _in_heads(
    p: Problem, of: Forward, g: Incoming, d: Gradient, q: Rounded, k: Rounded, v: Rounded
) -> dict[str, Gradient]:
    """Return the gradients of the queries, keys and values of the heads.

    d is the gradient of the dot products.
    """
    x, (M, N) = p.inputs, p.inputs.live.shape[-2:]
    back, terms = transposed(x.live), M * p.group
    at_most = d.size + d.error
    of_q, of_k = pooled(d, x.keys, x.live, N), pooled(d.T, x.queries, back, terms)
    k_error = share_heads(k.error, x.queries.shape[:-2])
    of_q = of_q._replace(error=of_q.error + pool(at_most, k_error, x.live))
    of_k = of_k._replace(error=of_k.error + pool(transposed(at_most), q.error, back))
    return {
        "queries": as_nan(p, of_q),
        "keys": of_k.shared(k.exact.shape),
        "values": of_values(p, of, g).shared(v.exact.shape),
    }


def _projections(
    a: HeadArguments,
    p: Problem,
    heads: dict[str, Gradient],
    options: Arguments,
    steps: Steps,
    results: Results,
    scale: str,
) -> list[Compared]:
    """Add the backward steps of the three input projections."""
    compared = []
    kept = "kept" if is_dropped(options) else "weights"
    right = {
        "queries": f"{scale} * d_scores @ k",
        "keys": f"{scale} * d_scores^T @ q",
        "values": f"{kept}^T @ d_pooled",
    }
    made = {"queries": "scores = scale * q @ k^T", "values": f"pooled = {kept} @ v"}
    for name, letter in _NAMES:
        lead, axis = p.inputs.lead, "query" if name == "queries" else "key"
        of_heads = heads[name]
        steps.add(
            f"d_{letter}",
            of_heads.values,
            (*lead, axis, "feature"),
            words=f"{name}_of_heads",
            right=right[name],
            forward=made.get(name, made["queries"]),
        )
    for name, letter in _NAMES:
        axis, of_heads = "query" if name == "queries" else "key", heads[name]
        x, W, b = (getattr(a, field) for field in (name, f"W_{letter}", f"b_{letter}"))
        joined = Gradient(*map(join, of_heads))
        # NaN from an empty row does not propagate to the parameters
        alone = np.isnan(joined.values) & np.isfinite(joined.size)
        flows = joined._replace(values=np.where(alone, 0.0, joined.values))
        terms = len(W) + joined.values.size
        steps.add(
            f"d_{name}",
            results[name],
            (*p.inputs.lead[:-1], axis, "feature"),
            words=f"{name}_projected",
            right=f"join(d_{letter}) @ W_{letter}",
            forward=f"{letter} = split({name} @ W_{letter}^T)",
        )
        compared.append(joined.through(W, terms).compared(letter, results[name]))
        compared += _of_linear(letter, f"join(d_{letter})", name, flows, x, b, steps, results)
    return compared


def _last_projection(
    a: HeadArguments,
    p: Problem,
    of: Forward,
    grad: Array,
    v: Rounded,
    dummy: Steps,
    options: Arguments,
    steps: Steps,
    results: Results,
) -> list[Compared]:
    """Add the gradients of W_o and b_o."""
    error = of.weights * of.relative + TINY
    made, made_error, _ = pool_steps(p, of.weights, error, options, dummy)
    made_error = join(made_error + value_error(p, of.weights, error, v))
    d = Gradient(grad, np.abs(grad), np.zeros(grad.shape))
    compared = _of_linear("o", "grad_output", "joined", d, join(made), a.b_o, steps, results)
    name, result, exact, bound = compared[0]
    size = np.where(np.isnan(made_error), 0.0, made_error).reshape(-1, made_error.shape[-1])
    more = np.abs(grad).reshape(-1, grad.shape[-1]).T @ size
    return [(name, result, exact, bound + more), *compared[1:]]


def _of_linear(
    letter: str,
    flow: str,
    of: str,
    d: Gradient,
    x: Array,
    b: Array | None,
    steps: Steps,
    results: Results,
) -> list[Compared]:
    """Add the gradients of W and b of y = x @ W^T + b, where d is the gradient of y."""
    # rows of x with gradient 0 are not read
    x = np.where((d.size != 0).any(axis=-1, keepdims=True), x, 0.0)
    terms = d.values.size
    steps.add(
        f"d_W_{letter}",
        results[f"W_{letter}"],
        ("unit", "feature"),
        words="parameter",
        of=f"W_{letter}",
        right=f"{flow}^T @ {of}",
    )
    compared = [d.of_weight(x, terms).compared(f"W_{letter}", results[f"W_{letter}"])]
    if b is not None:
        name, ones = f"b_{letter}", np.ones((*x.shape[:-1], 1))
        steps.add(
            f"d_{name}", results[name], ("unit",), words="parameter", of=name, right=f"sum({flow})"
        )
        compared.append(d.of_weight(ones, terms).compared(name, results[name]))
    return compared
