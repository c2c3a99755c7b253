"""attnext itself, called as a training step would call it, and the same otherwise.

`core` is attnext, or a copy of its compiled module (narrower.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import attnext

from .peers import Call
from .problem import Array, Problem

FUNCTIONS = {"dot": "dot_product_attention", "additive": "additive_attention"}
LINE = 64  # bytes that memory and caches hand over at a time


def of(core: Any, problem: Problem, work: str, threads: int) -> Call:
    """The backward is handed what the forward returned."""
    core.set_num_threads(threads)
    if problem.case.score == "softmax":
        return softmax(core, problem, work)
    if problem.case.steps:
        return stepwise(core, problem, work, remembers=True)
    if problem.case.score == "multi-head":
        return layered(core, problem, work)
    name = FUNCTIONS[problem.case.score]
    function, gradients = getattr(core, name), getattr(core, f"{name}_backward")
    arrays, g, options = problem.arrays, problem.grad_output, problem.options
    if problem.case.weights:

        def forward() -> Any:
            return function(*arrays, **options, return_weights=True)

    else:

        def forward() -> Any:
            return function(*arrays, **options)

    def both() -> Any:
        *outputs, lse = function(
            *arrays, **options, return_weights=problem.case.weights, return_lse=True
        )
        return *outputs, *gradients(g, *arrays, **options, output=outputs[0], lse=lse)

    if work == "forward":
        return forward
    if work == "forward+backward":
        return both
    output, lse = function(*arrays, **options, return_lse=True)
    return lambda: gradients(g, *arrays, **options, output=output, lse=lse)


def softmax(core: Any, problem: Problem, work: str) -> Call:
    """The same of masked_softmax."""
    (X,), g, options = problem.arrays, problem.grad_output, problem.options
    if work == "forward":
        return lambda: core.masked_softmax(X, **options)

    def both() -> Any:
        weights = core.masked_softmax(X, **options)
        return weights, core.masked_softmax_backward(g, weights, **options)

    if work == "forward+backward":
        return both
    weights = core.masked_softmax(X, **options)
    return lambda: core.masked_softmax_backward(g, weights, **options)


def layered(core: Any, problem: Problem, work: str) -> Call:
    """A layer, which keeps what it has projected for its backward."""
    case, (*inputs, W_q, W_k, W_v, W_o) = problem.case, problem.arrays
    layer = core.MultiHeadAttention(case.D, case.D, case.D, case.D, case.heads)
    layer.W_q, layer.W_k, layer.W_v, layer.W_o = W_q, W_k, W_v, W_o

    def forward() -> Any:
        return layer(*inputs, **problem.options, need_weights=False)

    def gradients() -> tuple[Any, ...]:
        layer.zero_grad()
        return *layer.backward(problem.grad_output), *layer.grads.values()

    if work == "backward":
        forward()
        return gradients
    return forward if work == "forward" else lambda: (forward(), *gradients())


def anew(problem: Problem, work: str, threads: int) -> Call:
    """Every step a direct call, which projects all keys."""
    attnext.set_num_threads(threads)
    return stepwise(attnext, problem, work, remembers=False)


def unaligned(problem: Problem, work: str, threads: int) -> Call:
    """Inputs at addresses that no vector fits, as those of a slice are: 4 behind a multiple of 64.

    NumPy's and torch's own lie at multiples of 16 and 64.
    """
    inputs = {name: displaced(x) for name, x in problem.inputs.items()}
    grad_output = displaced(problem.grad_output)
    return call(replace(problem, inputs=inputs, grad_output=grad_output), work, threads)


def displaced(x: Array) -> Array:
    """A copy."""
    room = np.empty(x.size + LINE // x.itemsize, x.dtype)
    start = -(room.ctypes.data // x.itemsize) % (LINE // x.itemsize) + 1
    copy = room[start : start + x.size].reshape(x.shape)
    copy[...] = x
    return copy


def stepwise(core: Any, problem: Problem, work: str, remembers: bool) -> Call:
    """A layer that is called with one query after another, and its backward in reverse order."""
    case, (queries, keys, values, *parameters) = problem.case, problem.arrays
    layer = core.AdditiveAttention(case.D, queries.shape[-1], case.H)
    layer.W_q, layer.W_k, layer.w_v = parameters
    steps = [np.ascontiguousarray(queries[:, t : t + 1]) for t in range(case.M)]
    grads = [np.ascontiguousarray(problem.grad_output[:, t : t + 1]) for t in range(case.M)]

    def forward() -> tuple[Any, ...]:
        inputs: Any = (keys, values, problem.options["valid_lens"])
        inputs = (layer.memory(*inputs),) if remembers else inputs
        outputs, contexts = [], []
        for query in steps:
            outputs.append(layer(query, *inputs, need_weights=False))
            contexts.append(layer.context)
        return np.concatenate(outputs, axis=1), contexts, inputs[0]

    def gradients(contexts: list[Any], memory: Any) -> tuple[Any, ...]:
        layer.zero_grad()
        pairs = list(zip(grads, contexts, strict=True))[::-1]
        flows: Any = [layer.backward(g, context=context) for g, context in pairs][::-1]
        if remembers:
            dq, (dk, dv) = flows, memory.backward()
        else:
            dq, dks, dvs = zip(*flows, strict=True)
            dk, dv = np.sum(dks, axis=0), np.sum(dvs, axis=0)
        return np.concatenate(dq, axis=1), dk, dv, *layer.grads.values()

    if work == "forward":
        return lambda: forward()[0]
    if work == "backward":
        _, *kept = forward()
        return lambda: gradients(*kept)

    def both() -> Any:
        output, *kept = forward()
        return output, *gradients(*kept)

    return both


call = partial(of, attnext)
