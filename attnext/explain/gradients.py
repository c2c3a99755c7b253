"""The backward pass of each scoring function, with error bounds for float32.

d_scores (..., M, N)   queries (..., M, Dq)   keys (..., N, Dk)   H hidden units

Each function takes the gradient of the scores, adds its steps, and returns the gradients of
queries, keys and parameters. These are compared with the results of the fast function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnext.explain.accuracy import TINY, Array, gamma, rounded
from attnext.explain.attention import Problem, pool
from attnext.explain.scores import (
    HIDDEN,
    bandwidth,
    dot_product_scale,
    norms,
    number,
    scale_text,
    transposed,
)
from attnext.explain.steps import Arguments, Compared, Steps, as_float64
from attnext.reference.sharing import share_heads_backward

Results = Mapping[str, Any]  # gradients of the fast function, by argument name


class Gradient(NamedTuple):
    """A gradient in float64, and the error bound of the same gradient in float32."""

    values: Array
    size: Array  # sum of the absolute values of its terms
    error: Array  # error bound

    def times(self, factor: Array | float) -> Gradient:
        """Return the gradient multiplied by a factor."""
        return Gradient(
            factor * self.values, np.abs(factor) * self.size, np.abs(factor) * self.error
        )

    @property
    def T(self) -> Gradient:
        """Return the gradient with the last two axes swapped."""
        return Gradient(*map(transposed, self))

    def through(self, W: Array, terms: int) -> Gradient:
        """Return the gradient of x, (..., D), if this is the gradient of x @ W^T, (..., H)."""
        size = self.size @ np.abs(W)
        return Gradient(self.values @ W, size, self.error @ np.abs(W) + rounded(size, terms))

    def of_weight(self, x: Array, terms: int) -> Gradient:
        """Return the gradient of W (H, D), if this is the gradient of x @ W^T, (..., H)."""
        flat = x.reshape(-1, x.shape[-1])
        rows = (part.reshape(-1, part.shape[-1]).T for part in self)
        values, size, error = (
            a @ b for a, b in zip(rows, (flat, *[np.abs(flat)] * 2), strict=True)
        )
        return Gradient(values, size, error + rounded(size, terms))

    def shared(self, shape: tuple[int, ...]) -> Gradient:
        """Sum over the heads that share one head of an array of this shape."""
        return Gradient(*(share_heads_backward(part, shape) for part in self))

    def compared(self, name: str, result: Any) -> Compared:
        """Return the gradient with the result of the fast function, for the comparison.

        Elements without a finite error bound are not compared, because inf - inf and 0 * inf make
        them depend on the order of the sum.
        """
        exact, error = (part.reshape(np.shape(result)) for part in (self.values, self.error))
        exact = np.where(np.isfinite(error), exact, np.asarray(result, np.float64))
        return f"d{name}", result, exact, np.where(np.isfinite(error), error, np.inf) + TINY


def pooled(d: Gradient, x: Array, live: NDArray[np.bool_], terms: int) -> Gradient:
    """Return sum_j d[i, j] * x[j] over unmasked pairs."""
    parts = [(d.values, x), (d.size, np.abs(x)), (d.error, np.abs(x))]
    values, size, error = (pool(a, b, live) for a, b in parts)
    return Gradient(values, size, error + rounded(size, terms))


# ---- one function for each score: the gradients of queries, keys and parameters -----------------


def dot_product(
    p: Problem, d: Gradient, arguments: Arguments, steps: Steps, results: Results
) -> dict[str, Gradient]:
    # forward was: scores = scale * queries @ keys^T
    x, (M, N) = p.inputs, p.inputs.live.shape[-2:]
    D = x.queries.shape[-1]
    scaled, text = d.times(dot_product_scale(arguments, D)), scale_text(arguments, D)
    of_queries = as_nan(p, pooled(scaled, x.keys, x.live, N))
    steps.add("d_queries", results["queries"], x.query_axes, scale=text)
    of_keys = pooled(scaled.T, x.queries, transposed(x.live), M * p.group)
    of_keys = of_keys.shared(results["keys"].shape)
    steps.add("d_keys", results["keys"], x.key_axes, scale=text)
    return {"queries": of_queries, "keys": of_keys}


def gaussian(
    p: Problem, d: Gradient, arguments: Arguments, steps: Steps, results: Results
) -> dict[str, Gradient]:
    # forward was: scores = -(w * distance)^2 / 2, distance = |queries - keys|
    x, w, (M, N) = p.inputs, bandwidth(arguments), p.inputs.live.shape[-2:]
    q, k = x.queries, x.keys
    of_queries, of_keys = ([np.zeros(like.shape) for _ in range(3)] for like in (q, k))
    of_w = np.zeros(3)
    for row in np.ndindex(*x.live.shape[:-1]):
        live, batch = x.live[row], row[:-1]
        difference = q[row] - k[batch][live]  # (n, D)
        size = np.abs(q[row]) + np.abs(k[batch][live])
        for i, part in enumerate(d):
            along = w**2 * part[row][live][:, None] * (size if i else difference)
            of_queries[i][row] = np.sum(along, axis=0) * (1 if i else -1)
            of_keys[i][(*batch, live)] += along
            distance2 = np.sum((size if i else difference) ** 2, axis=-1)
            of_w[i] += np.sum(part[row][live] * distance2) * (abs(w) if i else -w)
    D = q.shape[-1]
    d_q = as_nan(p, _with_rounding(Gradient(*of_queries), N + D))
    steps.add("d_queries", results["queries"], x.query_axes, words="gaussian_queries", w2=w**2)
    d_k = _with_rounding(Gradient(*of_keys), M * p.group + D).shared(results["keys"].shape)
    steps.add("d_keys", results["keys"], x.key_axes, words="gaussian_keys", w2=w**2)
    d_w = _with_rounding(Gradient(*of_w), x.live.size + 2 * D)
    steps.add("d_w", np.atleast_1d(results["w"]), ("axis",), w=w)
    return {"queries": d_q, "keys": d_k, "w": d_w}


def cosine(
    p: Problem, d: Gradient, arguments: Arguments, steps: Steps, results: Results
) -> dict[str, Gradient]:
    # forward was: scores = scale * unit_q @ unit_k^T, unit = x / max(|x|, eps)
    x, (M, N) = p.inputs, p.inputs.live.shape[-2:]
    D, eps = x.queries.shape[-1], number(arguments["eps"])
    scaled, text = d.times(dot_product_scale(arguments, D)), scale_text(arguments, D)
    q, k = _without_nan(x.queries, x.idle_queries), _without_nan(x.keys, x.idle_keys)
    unit_q, unit_k = (each / norms(each, eps) for each in (q, k))
    d_unit_q = pooled(scaled, unit_k, x.live, N + D)
    steps.add("d_unit_q", d_unit_q.values, x.query_axes, scale=text)
    of_queries = as_nan(p, _through_length(d_unit_q, q, eps, N))
    steps.add("d_queries", results["queries"], x.query_axes, words="cosine_queries", eps=eps)
    d_unit_k = pooled(scaled.T, unit_q, transposed(x.live), M * p.group + D)
    steps.add("d_unit_k", d_unit_k.values, x.key_axes, scale=text)
    of_keys = _through_length(d_unit_k, k, eps, M * p.group).shared(results["keys"].shape)
    steps.add("d_keys", results["keys"], x.key_axes, words="cosine_keys", eps=eps)
    return {"queries": of_queries, "keys": of_keys}


def _through_length(d: Gradient, x: Array, eps: float, terms: int) -> Gradient:
    # forward was: unit = x / |x|, or x / eps if that is more
    length = norms(x, eps)
    unit = x / length
    turns = (np.linalg.norm(x, axis=-1, keepdims=True) >= eps).astype(np.float64)

    def along(part: Array, unit: Array) -> Array:
        projected: Array = turns * unit * np.sum(unit * part, axis=-1, keepdims=True)
        return projected

    size, error = (part + along(part, np.abs(unit)) for part in (d.size, d.error))
    error = error + rounded(size, terms + 4 * x.shape[-1])
    return Gradient((d.values - along(d.values, unit)) / length, size / length, error / length)


def additive(
    p: Problem, d: Gradient, arguments: Arguments, steps: Steps, results: Results
) -> dict[str, Gradient]:
    # forward was: scores = tanh(features) @ w_v, features = hidden_q + hidden_k + b_h
    x = p.inputs
    W_q, W_k, w_v = (as_float64(arguments[name]) for name in ("W_q", "W_k", "w_v"))
    w, b = w_v.reshape(-1), arguments["b_h"]
    b_h = np.zeros(w.shape) if b is None else as_float64(b)
    q, k = _without_nan(x.queries, x.idle_queries), _without_nan(x.keys, x.idle_keys)
    hidden_q, hidden_k = q @ W_q.T, k @ W_k.T
    sums = q.shape[-1] + k.shape[-1]
    off_q, off_k = (rounded(np.abs(a) @ np.abs(W).T, sums) for a, W in ((q, W_q), (k, W_k)))
    off_b = gamma(1) * np.abs(b_h)

    *rows, N = x.live.shape
    kept = (*rows, N, len(w)) if x.live.size * len(w) <= HIDDEN else (*(1 for _ in rows), N, len(w))
    features = np.zeros(kept)
    of_q, of_k = ([np.zeros(h.shape) for _ in range(3)] for h in (hidden_q, hidden_k))
    of_v = [np.zeros(w.shape) for _ in range(3)]
    for row in np.ndindex(*rows):
        live, batch = x.live[row], row[:-1]
        a = hidden_q[row] + hidden_k[batch][live] + b_h  # (n, H)
        off = off_q[row] + off_k[batch][live] + off_b  # of a; tanh and its slope are off by
        t, slope, off_slope = np.tanh(a), 1 / np.cosh(a) ** 2, 2 * off + gamma(1)  # no more
        s, size, error = (part[row][live][:, None] for part in d)  # (n, 1)
        through = [s * w * slope, size * np.abs(w) * slope]
        through.append(np.abs(w) * (error * slope + (size + error) * off_slope))
        of_tanh = [s * t, size * np.abs(t), error * np.abs(t) + (size + error) * off_slope]
        for i in range(3):
            of_q[i][row] = np.sum(through[i], axis=0)
            of_k[i][(*batch, live)] += through[i]
            of_v[i] += np.sum(of_tanh[i], axis=0)
        if len(kept) and (kept[:-2] == tuple(rows) or not any(row)):
            features[row][live] = through[0]

    pairs = x.live.size
    axes = (*x.pairs, "unit")
    masked = ~x.live[tuple(slice(n) for n in kept[:-1])][..., None]
    steps.add("d_features", features, axes, masked, shape=(*rows, N, len(w)))
    d_q, d_k, d_v = (_with_rounding(Gradient(*each), pairs) for each in (of_q, of_k, of_v))
    steps.add("d_hidden_q", d_q.values, (*x.lead, "query", "unit"), x.idle_queries)
    steps.add("d_hidden_k", d_k.values, (*x.lead, "key", "unit"), x.idle_keys)
    of_queries = as_nan(p, d_q.through(W_q, pairs + len(w)))
    of_keys = d_k.through(W_k, pairs + len(w)).shared(results["keys"].shape)
    for letter, name, axes in (("q", "queries", x.query_axes), ("k", "keys", x.key_axes)):
        right = f"d_hidden_{letter} @ W_{letter}"
        made = f"hidden_{letter} = {name} @ W_{letter}^T"
        words = f"{name}_projected"
        steps.add(f"d_{name}", results[name], axes, words=words, right=right, forward=made)
    parameters = {
        "W_q": (d_q.of_weight(q, pairs), "d_hidden_q^T @ queries"),
        "W_k": (d_k.of_weight(k, pairs), "d_hidden_k^T @ keys"),
        "w_v": (d_v, "sum(d_scores * tanh(features))"),
        "b_h": (d_q.of_weight(np.ones((*q.shape[:-1], 1)), pairs), "sum(d_hidden_q)"),
    }
    for name, (_, right) in parameters.items():
        result = results[name]
        if result is not None:
            axes = ("unit", "feature") if name[0] == "W" else ("axis", "unit")[2 - result.ndim :]
            steps.add(f"d_{name}", result, axes, words="parameter", of=name, right=right)
    of_parameters = {name: gradient for name, (gradient, _) in parameters.items()}
    return {"queries": of_queries, "keys": of_keys, **of_parameters}


def _with_rounding(d: Gradient, terms: int) -> Gradient:
    """Add the rounding error of the sums to the error bound."""
    return Gradient(d.values, d.size, d.error + rounded(d.size, terms))


def _without_nan(x: Array, idle: NDArray[np.bool_]) -> Array:
    """Return x with 0 instead of NaN where x is never read."""
    return np.where(idle, 0.0, x)


def as_nan(p: Problem, d: Gradient) -> Gradient:
    """Return the gradient of queries, with NaN in empty rows if empty_rows is "nan"."""
    if p.pairs.empty_rows == "nan" and p.inputs.live.shape[-1] > 0:
        d.values[p.empty] = np.nan
    return d


Backward = Callable[[Problem, Gradient, Arguments, Steps, Results], dict[str, Gradient]]
_BACKWARDS: dict[str, Backward] = {
    "dot_product_attention": dot_product,
    "additive_attention": additive,
    "gaussian_attention": gaussian,
    "cosine_attention": cosine,
}


def score_backward(
    function: str, p: Problem, d: Gradient, arguments: Arguments, steps: Steps, results: Results
) -> list[Compared]:
    """Add the backward steps of a score, given the gradient d of the scores."""
    found = _BACKWARDS[function](p, d, arguments, steps, results)
    return [
        gradient.compared({"queries": "q", "keys": "k"}.get(name, name), results[name])
        for name, gradient in found.items()
        if results[name] is not None
    ]
