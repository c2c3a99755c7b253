"""The steps of each scoring function, from queries and keys to scores, and their rounding.

    queries (..., M, Dq)   keys (..., N, Dk)   W_q (H, Dq)   W_k (H, Dk)   w_v, b_h (H,)

Each function adds its steps and returns the scores (..., M, N) and their error bound in float32.
Scores of masked pairs are replaced by NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attnext.explain.accuracy import HUGE, Array, gamma, rounded
from attnext.explain.steps import Arguments, Steps, as_float64
from attnext.explain.trace import joined, summarise

HIDDEN = 2**21  # largest size of a kept (..., M, N, H) array: 16 MiB


@dataclass(frozen=True)
class Inputs:
    """Queries, keys, and the pairs to score."""

    queries: Array  # (..., M, Dq)
    keys: Array  # (..., N, Dk), with the heads of the queries
    live: NDArray[np.bool_]  # (..., M, N): True for unmasked pairs
    lead: tuple[str, ...]  # names of the leading axes

    @property
    def pairs(self) -> tuple[str, ...]:
        """Return the names of the axes of the scores."""
        return (*self.lead, "query", "key")

    @property
    def query_axes(self) -> tuple[str, ...]:
        """Return the names of the axes of queries and outputs."""
        return (*self.lead, "query", "feature")

    @property
    def key_axes(self) -> tuple[str, ...]:
        """Return the names of the axes of keys and values."""
        return (*self.lead, "key", "feature")

    def of_pairs(self, x: Array) -> Array:
        """Return x (..., M, N) with NaN at masked pairs."""
        return np.where(self.live, x, np.nan)

    def of_queries(self, x: Array) -> Array:
        """Return x (..., M, D) with NaN for queries that attend to no key."""
        return np.where(self.idle_queries, np.nan, x)

    def of_keys(self, x: Array) -> Array:
        """Return x (..., N, D) with NaN for keys that no query attends to."""
        return np.where(self.idle_keys, np.nan, x)

    @property
    def idle_queries(self) -> NDArray[np.bool_]:
        """Return True for queries that attend to no key, (..., M, 1)."""
        return without(self.live, -1)[..., None]

    @property
    def idle_keys(self) -> NDArray[np.bool_]:
        """Return True for keys that no query attends to, (..., N, 1)."""
        return without(self.live, -2)[..., None]


def without(live: NDArray[np.bool_], axis: int) -> NDArray[np.bool_]:
    """Return True where everything along the axis is masked."""
    return np.asarray(~np.any(live, axis=axis))


def number(x: Any) -> float:
    """Return a number or an array of one element as a float, rounded to float32."""
    return float(as_float64(x).reshape(()))


def transposed(x: NDArray[Any]) -> NDArray[Any]:
    """Swap the last two axes."""
    return x.swapaxes(-1, -2)


def dot_product(x: Inputs, steps: Steps, arguments: Arguments) -> tuple[Array, Array]:
    """Compute scores = scale * queries @ keys^T. The default scale is 1 / sqrt(D)."""
    D = x.queries.shape[-1]
    factor = dot_product_scale(arguments, D)
    raw = x.of_pairs(x.queries @ transposed(x.keys))
    steps.add("raw", raw, x.pairs, ~x.live)
    scores = raw * factor
    if arguments["scale"] is None:
        steps.add("scaled", scores, x.pairs, ~x.live, D=D)
    else:
        steps.add("scaled_by", scores, x.pairs, ~x.live, scale=scale_text(arguments, D))
    size = np.abs(x.queries) @ transposed(np.abs(x.keys))
    return scores, rounded(size, D) * np.abs(factor)


def dot_product_scale(arguments: Arguments, D: int) -> Array:
    """Return the scale of dot products of D features: a number, or an array (..., 1, 1)."""
    if arguments["scale"] is None:
        return np.array(1 / math.sqrt(max(D, 1)))
    scale = as_float64(arguments["scale"])
    return scale if scale.ndim == 0 else scale[..., None, None]


def scale_text(arguments: Arguments, D: int) -> str:
    """Return the scale as text for a formula."""
    scale = dot_product_scale(arguments, D)
    return f"{float(scale):.6g}" if scale.ndim == 0 else "scale[..., None, None]"


def additive(x: Inputs, steps: Steps, arguments: Arguments) -> tuple[Array, Array]:
    """Compute scores = w_v . tanh(W_q q + W_k k + b_h), one query at a time."""
    W_q, W_k, w_v = (as_float64(arguments[name]) for name in ("W_q", "W_k", "w_v"))
    w_v = w_v.reshape(-1)
    b_h = 0.0 if arguments["b_h"] is None else as_float64(arguments["b_h"])
    H, Dq = W_q.shape
    Dk = W_k.shape[1]
    *rows, N = x.live.shape
    hidden_q, hidden_k = x.of_queries(x.queries @ W_q.T), x.of_keys(x.keys @ W_k.T)
    steps.add("hidden_q", hidden_q, (*x.lead, "query", "unit"), x.idle_queries, D=Dq, H=H)
    steps.add("hidden_k", hidden_k, (*x.lead, "key", "unit"), x.idle_keys, D=Dk, H=H)

    shape = (*rows, N, H)
    kept = shape if math.prod(shape) <= HIDDEN else (*(1 for _ in rows), N, H)
    features, activations, scores = np.zeros(kept), np.zeros(kept), np.zeros(x.live.shape)
    ranges = [summarise(np.zeros(0))] * 2
    for row in np.ndindex(*rows):
        live = x.live[row]
        a = hidden_q[row] + hidden_k[row[:-1]] + b_h  # (N, H)
        a[~live] = np.nan
        t = np.tanh(a)
        scores[row] = t @ w_v
        ranges = [joined(ranges[0], summarise(a[live])), joined(ranges[1], summarise(t[live]))]
        if kept == shape or not any(row):
            features[row], activations[row] = a, t

    axes = (*x.pairs, "unit")
    masked = ~x.live[tuple(slice(n) for n in kept[:-1])][..., None]
    whole = {"shape": shape, "H": H}
    bias = "" if arguments["b_h"] is None else " + b_h"
    steps.add("features", features, axes, masked, summary=ranges[0], bias=bias, **whole)
    steps.add("activations", activations, axes, masked, summary=ranges[1], **whole)
    steps.add("additive", x.of_pairs(scores), x.pairs, ~x.live, H=H)

    # The slope of tanh is at most 1, so its error is the error of its argument plus a few u.
    from_q = rounded(np.abs(x.queries) @ np.abs(W_q).T, Dq + Dk) @ np.abs(w_v)  # (..., M)
    from_k = rounded(np.abs(x.keys) @ np.abs(W_k).T, Dq + Dk) @ np.abs(w_v)  # (..., N)
    of_tanh = np.sum(np.abs(w_v) * gamma(H) * (2 + np.abs(b_h)))
    return x.of_pairs(scores), from_q[..., :, None] + from_k[..., None, :] + of_tanh


def gaussian(x: Inputs, steps: Steps, arguments: Arguments) -> tuple[Array, Array]:
    """Compute scores = -(w * |q - k|)^2 / 2, with w = 1 / sigma. The default is w = 1."""
    w = bandwidth(arguments)
    distance = np.zeros(x.live.shape)
    for row in np.ndindex(x.live.shape[:-1]):
        distance[row] = np.linalg.norm(x.queries[row] - x.keys[row[:-1]], axis=-1)
    distance = x.of_pairs(distance)
    scores = -((w * distance) ** 2) / 2
    steps.add("distance", distance, x.pairs, ~x.live)
    steps.add("gaussian", scores, x.pairs, ~x.live, w=w, sigma=1 / w if w else math.inf)
    D = x.queries.shape[-1]
    return scores, rounded(distance**2, D) * (w**2 if w**2 <= HUGE else math.inf)


def bandwidth(arguments: Arguments) -> float:
    """Return w, the inverse of the bandwidth."""
    w, sigma = arguments["w"], arguments["sigma"]
    return 1 / number(sigma) if sigma is not None else 1.0 if w is None else number(w)


def cosine(x: Inputs, steps: Steps, arguments: Arguments) -> tuple[Array, Array]:
    """Compute scores = scale * q . k / (max(|q|, eps) max(|k|, eps))."""
    D, eps = x.queries.shape[-1], number(arguments["eps"])
    scale = dot_product_scale(arguments, D)
    unit_q, unit_k = (
        x.of_queries(x.queries / norms(x.queries, eps)),
        x.of_keys(x.keys / norms(x.keys, eps)),
    )
    steps.add("unit_q", unit_q, x.query_axes, x.idle_queries, eps=eps)
    steps.add("unit_k", unit_k, x.key_axes, x.idle_keys, eps=eps)
    scores = x.of_pairs(scale * (unit_q @ transposed(unit_k)))
    steps.add("cosine", scores, x.pairs, ~x.live, scale=scale_text(arguments, D))
    size = np.abs(unit_q) @ transposed(np.abs(unit_k))
    return scores, rounded(size, 2 * D) * np.abs(scale)


def norms(x: Array, eps: float) -> Array:
    """Return the norms (..., 1) of x (..., D), at least eps."""
    of_rows: Array = np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), eps)
    return of_rows


Score: TypeAlias = Callable[[Inputs, Steps, Arguments], tuple[Array, Array]]
SCORES: dict[str, Score] = {
    "dot_product_attention": dot_product,
    "additive_attention": additive,
    "gaussian_attention": gaussian,
    "cosine_attention": cosine,
}
