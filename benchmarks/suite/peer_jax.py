"""JAX: the formulas under jit, gradients by jax.vjp in the same compiled function."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from .peers import Call
from .problem import Problem

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")


def call(problem: Problem, work: str, threads: int) -> Call | None:
    """The case; JAX takes as many threads as the process has CPUs."""
    if work == "backward":
        return None  # under jit it is one function with the forward
    case = problem.case
    allowed = None if problem.allowed is None else jnp.asarray(problem.allowed)

    def masked_softmax(X: Any) -> Any:
        return jax.nn.softmax(X if allowed is None else jnp.where(allowed, X, -1e6), axis=-1)

    def formula(q: Any, *others: Any) -> Any:
        if case.score == "softmax":
            return masked_softmax(q), ()
        k, v, *parameters = others
        if case.score == "additive":
            W_q, W_k, w_v = parameters
            scores = jnp.tanh((q @ W_q.T)[:, :, None] + (k @ W_k.T)[:, None]) @ w_v
        else:
            scores = jnp.einsum("...md,...nd->...mn", q, k) / np.float32(case.D**0.5)
        weights = masked_softmax(scores)
        return weights @ v, (weights,) if case.weights else ()

    def forward(arrays: Any, g: Any) -> Any:
        output, weights = formula(*arrays)
        return output, *weights

    def both(arrays: Any, g: Any) -> Any:
        output, pullback, weights = jax.vjp(formula, *arrays, has_aux=True)
        return output, *weights, *pullback(g)

    function = jax.jit(forward if work == "forward" else both)
    arrays = [jnp.asarray(x) for x in problem.arrays]
    g = jnp.asarray(problem.grad_output)
    return lambda: jax.block_until_ready(function(arrays, g))
