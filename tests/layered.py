"""What the tests of the layers share: layers, problems that are theirs, what they make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers import SHARED, Problem, make_problem
from numpy.typing import NDArray

from attnext import AdditiveAttention, DotProductAttention, _options
from attnext._core import Context

Array = NDArray[Any]
Layer = AdditiveAttention | DotProductAttention

SIZES = {"key_size": 5, "query_size": 4, "num_hiddens": 6}  # as make_problem has them
TAKEN = {"valid_lens", *_options.Layer.__annotations__}  # by the call
KINDS = ["dot", "dot with scale", "additive", "additive with bias"]


def make_layer(kind: str, dropout: float = 0.0, rng: Any = 0) -> Layer:
    if kind.startswith("dot"):
        return DotProductAttention(dropout, scale=0.3 if "scale" in kind else None, rng=rng)
    layer = AdditiveAttention(**SIZES, dropout=dropout, bias="bias" in kind, rng=rng)
    if layer.b_h is not None:
        layer.b_h *= 3
    return layer


def problem_of(layer: Layer, rng: np.random.Generator, **sizes: Any) -> Problem:
    """A random problem that has the layer's parameters and options."""
    score = "dot" if isinstance(layer, DotProductAttention) else "additive"
    problem = make_problem(score, rng, **sizes)
    problem.grads.pop("grad_lse", None)  # layers return no lse
    if isinstance(layer, DotProductAttention):
        return problem.but(scale=layer.scale)
    problem.inputs |= {name: getattr(layer, name) for name in ("W_q", "W_k", "w_v")}
    return problem.but(b_h=layer.b_h) if layer.b_h is not None else problem


def taken(layer: Layer, problem: Problem) -> dict[str, Any]:
    """What the call of the layer takes of the options: a scale, if it is not the layer's own."""
    options = {name: given for name, given in problem.options.items() if name in TAKEN}
    if isinstance(layer, DotProductAttention):
        scale = problem.options["scale"]
        options |= {"scale": scale} if np.ndim(scale) or scale != layer.scale else {}
    return options


def asked(problem: Problem) -> dict[str, Any]:
    """The gradients that come back only if they are asked for: each that there is."""
    return {f"return_grad_{name}": True for name in SHARED if problem.shares(name)}


def call(layer: Layer, problem: Problem, **more: Any) -> Array:
    x = problem.inputs
    return layer(x["queries"], x["keys"], x["values"], **taken(layer, problem), **more)


def run(layer: Layer, problem: Problem) -> dict[str, Array]:
    """Output, weights and every gradient, under the names that Problem.run gives them."""
    output = call(layer, problem).copy()
    weights = layer.attention_weights
    assert weights is not None
    return {"output": output, "weights": weights, **gradients(layer, problem)}


def gradients(layer: Layer, problem: Problem, context: Context | None = None) -> dict[str, Array]:
    """Those of one backward alone, those of what pairs share included."""
    layer.zero_grad()
    more = asked(problem)
    d = layer.backward(**problem.grads, **more, context=context)
    names = ("queries", "keys", "values", *(name.removeprefix("return_grad_") for name in more))
    result = {f"d_{name}": x for name, x in zip(names, d, strict=True)}
    return result | {f"d_{name}": grad.copy() for name, grad in layer.grads.items()}


def run_functions(problem: Problem) -> dict[str, Array]:
    """The same from the functions, the backward helped by the forward as in the objects."""
    output, weights, lse = problem.forward(return_weights=True, return_lse=True)
    return {
        "output": output,
        "weights": weights,
        **problem.backward(output=output, lse=lse, **asked(problem)),
    }
