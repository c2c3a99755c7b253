"""Right results first: nothing wrong is timed.

The truth is ``attnext.reference`` in float64: all of an attention with parameters, whose
gradients are sums over everything; the first batch entry and head of the others. attnext is held
against it, and the peers against it and, beyond it, against attnext.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnext import reference

from .problem import Array, Problem

# Of the largest entry. PyTorch's own sums over half a million terms reach 2e-5.
TOLERANCE = 5e-5

FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "dot": (reference.dot_product_attention, reference.dot_product_attention_backward),
    "additive": (reference.additive_attention, reference.additive_attention_backward),
    "multi-head": (reference.multi_head_attention, reference.multi_head_attention_backward),
}


class WrongResult(Exception):
    """A call gives something else than it should."""


def truth(problem: Problem, folder: Path | None = None) -> dict[str, list[Array]]:
    """What calls return (peers.py), by work; kept in this folder, as it can take long seconds."""
    file = folder / f"{problem.case.name}.npz" if folder else None
    if file and file.is_file():
        with np.load(file) as kept:
            whole = [kept[name] for name in kept.files]
    else:
        whole = computed(problem)
        if file:
            np.savez(file, *whole)
    outputs = 1 + problem.case.weights
    return {"forward": whole[:outputs], "forward+backward": whole, "backward": whole[outputs:]}


def computed(problem: Problem) -> list[Array]:
    """Output, weights if the case asks for them, and gradients, from the reference."""
    case = problem.case
    has_parameters = case.score in ("additive", "multi-head")
    first = ... if has_parameters else (slice(0, 1),) * len(case.lead)
    mask, g = problem.pairs[first], problem.grad_output[first]
    arrays = [x[first] for x in problem.arrays]
    if case.score == "softmax":
        weights = reference.masked_softmax(arrays[0], mask=mask)
        return [weights, reference.masked_softmax_backward(g, weights, mask=mask)]
    forward, backward = FUNCTIONS[case.score]
    options: dict[str, Any] = {"mask": mask}
    if case.heads:
        options = {"mask": mask[:, None], "num_heads": case.heads}
    output, weights = forward(*arrays, **options, return_weights=True)
    gradients = backward(g, *arrays, **options)[: len(arrays)]
    return [output, *[weights] * case.weights, *gradients]


def as_arrays(results: Any) -> list[Array]:
    """What a call returned as NumPy arrays: tensors and JAX arrays too; None is left out."""
    if not isinstance(results, (tuple, list)):
        results = [results]
    return [np.asarray(x.detach() if hasattr(x, "detach") else x) for x in results if x is not None]


def deviation(got: Array, expected: Array) -> float:
    """The largest difference, as a part of the largest entry; NaN for NaN."""
    return float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-30))


def check(results: Any, expected: Sequence[Array], whole: Sequence[Array] | None = None) -> None:
    """Stop with WrongResult unless the first entries of all results are as expected.

    `whole`, where given, is what all of their entries have to agree with, and has their shapes.
    """
    got = as_arrays(results)
    if len(got) != len(expected):
        raise WrongResult(f"{len(got)} results instead of {len(expected)}")
    for i, truth in enumerate(expected):
        x = got[i]
        if whole is not None:
            if x.size != whole[i].size:
                raise WrongResult(f"result {i} has shape {x.shape}, not {whole[i].shape}")
            x = x.reshape(whole[i].shape)
        first = x[tuple(slice(0, n) for n in truth.shape)]
        if first.shape != truth.shape:
            raise WrongResult(f"result {i} has shape {x.shape}, less than {truth.shape}")
        error = deviation(first, truth)
        if whole is not None and error < TOLERANCE:
            error = max(error, deviation(x, whole[i]))
        if not error < TOLERANCE:
            raise WrongResult(f"result {i} is off by {error:.1e} of its largest entry")
