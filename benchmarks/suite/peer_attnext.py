"""attnext itself, called as a training step would call it."""

from __future__ import annotations

from typing import Any

import attnext

from .peers import Call
from .problem import Problem

FUNCTIONS = {
    "dot": (attnext.dot_product_attention, attnext.dot_product_attention_backward),
    "additive": (attnext.additive_attention, attnext.additive_attention_backward),
}


def call(problem: Problem, work: str, threads: int) -> Call:
    """The backward is handed what the forward returned."""
    attnext.set_num_threads(threads)
    if problem.case.score == "softmax":
        return softmax(problem, work)
    function: Any
    gradients: Any
    function, gradients = FUNCTIONS[problem.case.score]
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


def softmax(problem: Problem, work: str) -> Call:
    """The same of masked_softmax."""
    (X,), g, options = problem.arrays, problem.grad_output, problem.options
    if work == "forward":
        return lambda: attnext.masked_softmax(X, **options)

    def both() -> Any:
        weights = attnext.masked_softmax(X, **options)
        return weights, attnext.masked_softmax_backward(g, weights, **options)

    if work == "forward+backward":
        return both
    weights = attnext.masked_softmax(X, **options)
    return lambda: attnext.masked_softmax_backward(g, weights, **options)
