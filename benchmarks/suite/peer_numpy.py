"""The formulas in plain float32 NumPy, as one writes them first; forward only."""

from __future__ import annotations

from typing import Any

import numpy as np

from .peers import Call
from .problem import Array, Problem


def masked_softmax(X: Array, allowed: Array | None) -> Array:
    """Softmax of the last axis of X over the pairs that take part."""
    if allowed is not None:
        X = np.where(allowed, X, np.float32(-1e6))
    e = np.exp(X - X.max(-1, keepdims=True))
    weights: Array = e / e.sum(-1, keepdims=True)
    return weights


def call(problem: Problem, work: str, threads: int) -> Call | None:
    """The formula of the case; BLAS has its threads from the environment."""
    if work != "forward":
        return None
    score, allowed = problem.case.score, problem.allowed

    def forward() -> Any:
        if score == "softmax":
            return masked_softmax(problem.inputs["X"], allowed)
        q, k, v, *parameters = problem.arrays
        if score == "additive":
            W_q, W_k, w_v = parameters
            features = np.tanh((q @ W_q.T)[:, :, None] + (k @ W_k.T)[:, None])
            scores = features @ w_v
        else:
            scores = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
        weights = masked_softmax(scores, allowed)
        output = weights @ v
        return (output, weights) if problem.case.weights else output

    return forward
