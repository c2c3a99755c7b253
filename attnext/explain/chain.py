"""The backward pass of softmax and pooling, in the order of the chain rule.

weights, d_weights, d_scores (..., M, N)   grad_output (..., M, Dv)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnext.explain.accuracy import TINY, Array, gamma, in_range, rounded
from attnext.explain.attention import Problem, add_empty_rows, is_dropped, pool
from attnext.explain.gradients import Gradient, Results, pooled
from attnext.explain.scores import norms, number, transposed
from attnext.explain.steps import Arguments, Compared, Steps, as_float64
from attnext.reference.sharing import broadcast_backward


class Slope(NamedTuple):
    """The slope of the softcap at every score (..., M, N). It is 1 without a softcap."""

    values: Array
    relative: Array  # relative error in float32


class Forward(NamedTuple):
    """Results of the forward pass that the backward pass needs."""

    weights: Array  # (..., M, N)
    of_sink: Array  # (..., M)
    relative: Array  # (..., M, 1): the relative error of the weights in float32
    slope: Slope


def forward(p: Problem, scores: Array, error: Array, arguments: Arguments) -> Forward:
    """Compute the forward pass from scores and their error bounds."""
    slope = Slope(np.ones(scores.shape), np.zeros(scores.shape))
    if arguments["softcap"] is not None:
        cap = number(arguments["softcap"])
        at = scores / cap
        # An error delta of the score changes the slope by a factor of at most exp(2 delta / cap).
        relative = np.expm1(2 * (error / cap + gamma(1) * np.abs(at))) + gamma(1)
        slope = Slope(1 / np.cosh(at) ** 2, relative)
        scores = cap * np.tanh(at)
        error = error + gamma(1) * np.abs(scores)  # the slope of tanh is at most 1
    error = error + gamma(1) * (np.abs(scores) + np.abs(p.pairs.bias))
    return Forward(*p.softmax(scores + p.pairs.bias, error), slope)


class Incoming(NamedTuple):
    """The upstream gradient of the output, and error bounds of this gradient and the values."""

    grad: Array  # (..., M, Dv)
    name: str = "grad_output"
    error: Array | float = 0.0
    of_values: Array | float = 0.0


def softmax_steps(
    p: Problem, of: Forward, g: Incoming, arguments: Arguments, steps: Steps
) -> tuple[Gradient, Gradient]:
    """Add the steps to the gradient of the scores. Return this gradient and that of the sink."""
    x, (weights, of_sink, relative, _) = p.inputs, of
    live, keep, values = x.live, p.pairs.keep, p.values
    add_empty_rows(steps, p.empty, live.shape[-1], x.pairs[:-1], p.pairs.empty_rows)
    steps.add("again", weights, x.pairs, ~live & ~p.empty[..., None])
    d_lse = _or_zeros(arguments["grad_lse"], live.shape[:-1])[..., None]
    extra = _or_zeros(arguments["grad_weights"], live.shape)

    # forward was: output = (weights * keep) @ values
    d_weights = x.of_pairs((g.grad @ transposed(values)) * keep + extra)
    more = " * keep" if is_dropped(arguments) else ""
    more += " + grad_weights" if arguments["grad_weights"] is not None else ""
    steps.add("d_weights", d_weights, x.pairs, ~live, more=more, g=g.name)
    # forward was: weights = softmax(scores), lse = log(sum(exp(scores)))
    mean = np.sum(np.where(live, weights * d_weights, 0.0), axis=-1)
    steps.add("mean", mean, x.pairs[:-1], p.empty)
    d_scores = np.where(live, weights * (d_weights - mean[..., None] + d_lse), 0.0)
    more = " + weights * grad_lse" if arguments["grad_lse"] is not None else ""
    steps.add("d_scores", d_scores, x.pairs, ~live, left="d_scores", more=more)

    products = in_range(np.abs(g.grad) @ transposed(np.abs(values)))
    off = g.error @ transposed(np.abs(values)) if isinstance(g.error, np.ndarray) else 0.0
    if isinstance(g.of_values, np.ndarray):
        off = off + (np.abs(g.grad) + g.error) @ transposed(g.of_values)
    off = np.where(live, off * keep, 0.0)  # of d_weights, before any rounding here
    size = in_range(np.where(np.isinf(products), np.inf, products * keep) + np.abs(extra))
    mean_size = np.sum(np.where(live, weights * size, 0.0), axis=-1, keepdims=True)
    terms = np.where(live, in_range(size + mean_size + np.abs(d_lse)), 0.0)
    size = np.where(live, weights * terms, 0.0)
    # a weight, and another in the mean; the sums of d_weights and of the mean, the difference
    sums = gamma(live.shape[-1] + values.shape[-1])
    error = ((1 + relative) ** 2 * (1 + sums) ** 3 - 1) * size
    error = error + TINY * (1 + terms)  # a weight below TINY may be 0
    grown = weights * (1 + relative)
    error = error + grown * (off + np.sum(grown * off, axis=-1, keepdims=True))
    # The sink is a score without a value, so the gradient of its weight is 0.
    of_sink, terms = of_sink[..., None], mean_size + np.abs(d_lse)
    d_sink = np.where(of_sink == 0, 0.0, of_sink * (d_lse - mean[..., None]))
    sink_error = ((1 + relative) ** 2 * (1 + sums) ** 3 - 1) * of_sink * terms + TINY * (1 + terms)
    sink_error = sink_error + of_sink * (1 + relative) * np.sum(grown * off, -1, keepdims=True)
    of_rows = (part[..., 0] for part in (d_sink, of_sink * terms, sink_error))
    return Gradient(d_scores, size, np.where(live, error, 0.0)), Gradient(*of_rows)


def softcap_backward(
    p: Problem, d: Gradient, slope: Slope, arguments: Arguments, steps: Steps
) -> Gradient:
    """Add the backward step of the softcap, if there is a softcap."""
    if arguments["softcap"] is None:
        return d
    # forward was: scores = cap * tanh(scores / cap)
    live = p.inputs.live
    d_scores, size = (np.where(live, x * slope.values, 0.0) for x in (d.values, d.size))
    error = (d.error + slope.relative * (d.size + d.error)) * slope.values + 8 * TINY * d.size
    steps.add("d_softcap", d_scores, p.inputs.pairs, ~live, cap=number(arguments["softcap"]))
    return Gradient(d_scores, size, np.where(live, error, 0.0))


def of_values(p: Problem, of: Forward, g: Incoming) -> Gradient:
    """Return the gradient of the values, with the heads of the queries."""
    # forward was: output = (weights * keep) @ values
    live, keep, (weights, _, relative, _) = p.inputs.live, p.pairs.keep, of
    if p.pairs.empty_rows == "uniform":
        live = live | p.empty[..., None]
    kept = np.where(live, weights * keep, 0.0)
    error = np.where(live, (weights * relative + TINY) * keep, 0.0)
    back, terms = transposed(live), live.shape[-2] * p.group
    d = pooled(Gradient(kept, kept, error).T, g.grad, back, terms)
    if isinstance(g.error, np.ndarray):
        d = d._replace(error=d.error + pool(transposed(kept + error), g.error, back))
    return d


def shared_steps(
    p: Problem,
    gradients: Mapping[str, Gradient],
    products: str,
    arguments: Arguments,
    steps: Steps,
    results: Results,
) -> list[Compared]:
    """Add the requested gradients of bias, sink and scale, summed over broadcast axes."""
    more = " + weight_of_sink * grad_lse" if arguments["grad_lse"] is not None else ""
    axes = {"bias": p.inputs.pairs, "sink": p.inputs.pairs[:-1], "scale": p.inputs.lead}
    compared = []
    for name, d in gradients.items():
        result = results.get(name)
        if result is None:
            continue
        # forward was: bias, broadcast to (..., M, N); sink, to (..., M); scale, to (...)
        shape = np.shape(result)
        own = axes[name][len(axes[name]) - len(shape) :] or ("axis",)
        x = np.atleast_1d(result)
        steps.add(f"d_{name}", x, own, to=shape, more=more, products=products)
        exact, sizes, errors = (broadcast_backward(part, shape) for part in d)
        bound = errors + rounded(sizes, d.values.size)
        compared.append((f"d{name}", result, exact, bound))
    return compared


def multiplied(score: str, p: Problem, arguments: Arguments) -> tuple[str, Array, Array]:
    """Return the product that the scale multiplies, as text and as its two factors."""
    q, k = p.inputs.queries, p.inputs.keys
    if score != "cosine":
        return "queries @ keys^T", q, k
    eps = number(arguments["eps"])
    return "unit_q @ unit_k^T", q / norms(q, eps), k / norms(k, eps)


def of_scale(p: Problem, d: Gradient, q: Array, k: Array, off: Array | float = 0.0) -> Gradient:
    """Return the gradient of the scale, (...), of scores = scale * q @ k^T.

    off: error bound of the products in float32.
    """
    live, products, size = p.inputs.live, q @ transposed(k), np.abs(q) @ transposed(np.abs(k))
    terms = live.shape[-2] * live.shape[-1] + q.shape[-1]
    parts = [(d.values, products), (d.size, size), (d.error, size), (d.size + d.error, off)]
    of_d, sizes, errors, more = (np.where(live, a * b, 0.0).sum(axis=(-1, -2)) for a, b in parts)
    return Gradient(of_d, sizes, errors + more + rounded(sizes, terms))


def _or_zeros(x: Any, shape: tuple[int, ...]) -> Array:
    """Return x in float64, or zeros if x is None."""
    return np.zeros(shape) if x is None else as_float64(x)
