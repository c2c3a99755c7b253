"""The scores alone on tensors: beside the arrays' functions, with their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import PARAMETERS, SCORES, SCORES_FUNCTION, Problem, assert_same_bits, make_problem

import attnext
import attnext.torch as ours


def problem_of(score: str, rng: np.random.Generator) -> Problem:
    problem = make_problem(score, rng, lead=(2, 2), M=20, N=140, D=5)
    del problem.inputs["values"]
    if score == "additive":
        problem.inputs["b_h"] = rng.standard_normal(6, dtype=np.float32)
    if score == "gaussian":
        problem.inputs["w"] = np.float32(problem.options.pop("w")) * np.ones((), np.float32)
    return problem


@pytest.mark.parametrize("score", SCORES)
def test_bits_of_the_arrays_function_and_its_backward(score: str, rng: np.random.Generator) -> None:
    problem, name = problem_of(score, rng), SCORES_FUNCTION[score]
    grad = rng.standard_normal((2, 2, 20, 140), dtype=np.float32)
    leaves = {n: torch.from_numpy(np.array(x)).requires_grad_() for n, x in problem.inputs.items()}
    scores = getattr(ours, name)(**leaves)
    scores.backward(torch.from_numpy(grad))
    d: Any = getattr(attnext, f"{name}_backward")(grad, **problem.inputs)
    names = ["queries", "keys", *PARAMETERS[score]]
    d = [x for x in d if x is not None]
    assert_same_bits(
        {"scores": scores.detach().numpy(), **{n: x.grad.numpy() for n, x in leaves.items()}},
        {"scores": getattr(attnext, name)(**problem.inputs), **dict(zip(names, d, strict=True))},
    )


@pytest.mark.parametrize("score", SCORES)
def test_a_cap_and_scales(score: str, rng: np.random.Generator) -> None:
    """The bits of the arrays' functions; a scale that is a tensor has a gradient."""
    problem, name = problem_of(score, rng), SCORES_FUNCTION[score]
    grad = rng.standard_normal((2, 2, 20, 140), dtype=np.float32)
    has_scale = score in ("dot", "cosine")
    for scale in [np.float32([[0.5], [-2]]), np.float32(0.7)] if has_scale else [None]:
        own = {"softcap": 0.7} if scale is None else {"softcap": 0.7, "scale": scale}
        leaves = {n: torch.tensor(x).requires_grad_() for n, x in problem.inputs.items()}
        if scale is not None:
            leaves["scale"] = torch.tensor(scale).requires_grad_()
        scores = getattr(ours, name)(**leaves, softcap=0.7)
        scores.backward(torch.from_numpy(grad))
        asked = {} if scale is None else {"return_grad_scale": True}
        d: Any = getattr(attnext, f"{name}_backward")(grad, **problem.inputs, **own, **asked)
        d = [x for x in d if x is not None]
        np.testing.assert_array_equal(
            scores.detach(), getattr(attnext, name)(**problem.inputs, **own)
        )
        names = ["queries", "keys", *PARAMETERS[score], *(["scale"] if has_scale else [])]
        for n, x in zip(names, d, strict=True):
            assert leaves[n].grad.shape == leaves[n].shape
            np.testing.assert_array_equal(leaves[n].grad, x)


def test_numbers_are_checked_in_the_words_of_the_arrays_functions() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(TypeError, match="softcap must be a number, got str"):
        ours.dot_product_scores(x, x, softcap="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"scale has shape \(2,\), expected"):
        ours.cosine_scores(x, x, scale=torch.ones(2))
    with pytest.raises(
        TypeError, match="scale has dtype torch.float64 and queries has torch.float32"
    ):
        ours.cosine_scores(x, x, scale=torch.ones(2).double())


def test_the_gradient_of_sigma(rng: np.random.Generator) -> None:
    q, k = (torch.from_numpy(rng.standard_normal((4, 3), dtype=np.float32)) for _ in range(2))
    sigma = torch.tensor([0.7], requires_grad=True)
    ours.gaussian_scores(q, k, sigma=sigma).sum().backward()
    exact = sigma.detach().double().requires_grad_()
    (-((torch.cdist(q.double(), k.double()) / exact) ** 2) / 2).sum().backward()
    torch.testing.assert_close(sigma.grad.double(), exact.grad, rtol=1e-5, atol=0)


def test_a_softmax_of_ones_own_in_between(rng: np.random.Generator) -> None:
    """entmax, say: here softplus, which no attention of attnext has."""
    q, k, v = (torch.from_numpy(rng.standard_normal((2, 6, 4), dtype=np.float32)) for _ in "qkv")
    results = []
    for scores_of in (ours.dot_product_scores, lambda q, k: q @ k.mT / 2):
        leaf = q.clone().requires_grad_()
        weights = torch.nn.functional.softplus(scores_of(leaf, k))
        (weights / weights.sum(-1, keepdim=True) @ v).square().sum().backward()
        results.append(leaf.grad)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_only_inputs_are_kept() -> None:
    """Not the scores: they are the largest of all, and no gradient needs them."""
    kept: list[Any] = []
    x = torch.randn(5, 3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        ours.dot_product_scores(x, torch.ones(7, 3))
    assert kept == [(5, 3), (7, 3)]


def test_completion_offers_what_is_public() -> None:
    assert [name for name in dir(ours) if not name.startswith("__")] == ours.__all__
