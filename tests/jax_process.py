"""JAX in a process of its own.

In a process in which JAX has computed anything, every os.fork() is a warning, and other tests fork.
The one worker starts with the first call.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# The options of `attention`: what jax.nn.dot_product_attention calls them, and two gradients.
ARGUMENTS = {
    "lengths": "key_value_seq_lengths",
    "mask": "mask",
    "bias": "bias",
    "causal": "is_causal",
    "window": "local_window_size",
}
OPTIONS = (*ARGUMENTS, "grad_output", "grad_lse")


def call(function: str, *arguments: Any) -> Any:
    """The result of a function of this module, computed in the worker."""
    return worker().submit(globals()[function], *arguments).result()


@cache
def worker() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), stay_on_the_cpu)


def stay_on_the_cpu() -> None:
    """And compile quickly: every call is a program of its own."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"


def stop() -> None:
    """Ends the worker, if there is one."""
    if worker.cache_info().currsize:
        worker().shutdown()
        worker.cache_clear()


# ---- in the worker -------------------------------------------------------------------------------


def attention(q: Array, k: Array, v: Array, options: dict[str, Any]) -> dict[str, Array]:
    """Output, lse and, if there is a grad_output, gradients; axes as in frameworks.py."""
    given = {ARGUMENTS[name]: x for name, x in options.items() if name in ARGUMENTS}
    if "lengths" in options:
        given["key_value_seq_lengths"] = np.asarray(options["lengths"], dtype=np.int32)
    arrays = {name: x for name, x in given.items() if isinstance(x, np.ndarray)}
    fixed = tuple((name, x) for name, x in given.items() if name not in arrays)
    grads = None
    if "grad_output" in options:
        grad_lse = options.get("grad_lse", np.zeros(q.shape[:-1], dtype=np.float32))
        grads = swapped(options["grad_output"]), swapped(grad_lse)
    results = program(fixed)([swapped(x) for x in (q, k, v)], arrays, grads)
    names = ("output", "lse", "d_queries", "d_keys", "d_values")
    return {name: swapped(x) for name, x in zip(names, results, strict=False)}


@cache
def program(fixed: tuple[tuple[str, Any], ...]) -> Any:
    """Compiled as a whole it takes less time than operation by operation; once for each shape."""
    import jax

    def both(inputs: Any, arrays: Any, grads: Any) -> Any:
        def forward(*inputs: Any) -> Any:
            return jax.nn.dot_product_attention(
                *inputs, **arrays, **dict(fixed), return_residual=True
            )

        if grads is None:
            return forward(*inputs)
        result, pullback = jax.vjp(forward, *inputs)
        return *result, *pullback(grads)

    return jax.jit(both)


def swapped(x: Any) -> Array:
    """(B, heads, M, ...) from (B, M, heads, ...), which JAX has, or the other way round."""
    return np.array(np.swapaxes(np.asarray(x), 1, 2))


def softmax(X: Array) -> Array:
    """jax.nn.softmax over the last axis."""
    import jax

    return np.asarray(jax.nn.softmax(X, axis=-1))


def parameters() -> list[str]:
    """The names of what jax.nn.dot_product_attention takes."""
    import inspect

    import jax

    return list(inspect.signature(jax.nn.dot_product_attention).parameters)
