"""The backward of the scores alone: values, the same bits, edges, errors."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest
from helpers import (
    PARAMETERS,
    SCORES,
    SCORES_FUNCTION,
    Array,
    Problem,
    assert_all_accurate,
    assert_same_bits,
    make_problem,
    textbook_scores_backward,
)

import attnext
from attnext import reference

SHAPES = [(1, 1, 1), (3, 5, 2), (2, 70, 8), (33, 129, 17), (70, 257, 5), (7, 9, 300), (520, 3, 4)]


def problem_of(score: str, rng: np.random.Generator, M: int, N: int, D: int) -> Problem:
    """grad_output is the gradient of the scores."""
    problem = make_problem(score, rng, lead=(2, 2), M=M, N=N, D=D)
    if score == "additive":
        problem.options["b_h"] = rng.standard_normal(6, dtype=np.float32)
    problem.grads = {"grad_output": rng.standard_normal((2, 2, M, N), dtype=np.float32)}
    return problem


def backward(problem: Problem, module: Any = attnext, **changed: Any) -> Any:
    inputs = {name: x for name, x in problem.inputs.items() if name != "values"}
    function = getattr(module, SCORES_FUNCTION[problem.score] + "_backward")
    return function(**{**problem.grads, **inputs, **problem.options, **changed})


def gradients(problem: Problem, module: Any = attnext) -> dict[str, Array]:
    d = backward(problem, module)
    if problem.score == "additive":
        assert d.values is None
        d = [x for name, x in d._asdict().items() if name != "values"]
    names = ["queries", "keys", *PARAMETERS[problem.score]]
    return {f"d_{name}": x for name, x in zip(names, d, strict=True) if x is not None}


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("M", "N", "D"), SHAPES)
def test_values(score: str, M: int, N: int, D: int, rng: np.random.Generator) -> None:
    problem = problem_of(score, rng, M, N, D)
    exact = textbook_scores_backward(problem, np.float64)
    assert_all_accurate(gradients(problem), exact, problem, textbook_scores_backward)


@pytest.mark.parametrize("score", SCORES)
def test_the_twin(score: str, rng: np.random.Generator) -> None:
    problem = problem_of(score, rng, 4, 6, 3)
    twin, exact = gradients(problem, reference), textbook_scores_backward(problem, np.float64)
    assert twin.keys() == exact.keys()
    for name, x in twin.items():
        np.testing.assert_allclose(x, exact[name], rtol=1e-11, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("score", SCORES)
def test_the_chain_is_the_attentions(score: str, rng: np.random.Generator) -> None:
    """Scores, masked softmax, product, and back: what the attention's backward does at once."""
    problem = make_problem(score, rng, M=20, N=140, extra_grads=False, valid_lens=[0, 70])
    lens, v, g = [0, 70], problem.inputs["values"], problem.grads["grad_output"]
    inputs = {name: x for name, x in problem.inputs.items() if name != "values"}
    own = {name: x for name, x in problem.options.items() if name != "valid_lens"}
    weights = attnext.masked_softmax(
        getattr(attnext, SCORES_FUNCTION[score])(**inputs, **own), lens
    )
    d_scores = attnext.masked_softmax_backward(g @ v.swapaxes(-1, -2), weights, lens)
    of_scores = Problem(score, problem.inputs, own, {"grad_output": d_scores})
    whole = problem.backward()
    for name, x in gradients(of_scores).items():
        np.testing.assert_allclose(x, whole[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("score", SCORES)
def test_any_number_of_threads(score: str, rng: np.random.Generator, threads: None) -> None:
    problem = problem_of(score, rng, 600, 259, 24)  # more groups of queries than one
    attnext.set_num_threads(1)
    expected = gradients(problem)
    for n in (2, 5):
        attnext.set_num_threads(n)
        assert_same_bits(gradients(problem), expected)


def test_additive_forms_nothing_of_all_pairs_and_units(rng: np.random.Generator) -> None:
    """(M, N, H) would be 512 MiB."""
    resource = pytest.importorskip("resource")
    problem = make_problem("additive", rng, lead=(), M=512, N=1024, H=256, D=8)
    problem.grads = {"grad_output": np.ones((512, 1024), np.float32)}
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    backward(problem)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * (1 if sys.platform == "darwin" else 1024) < 100 * 2**20


def test_without_any_pair_all_is_zero() -> None:
    for M, N in ((0, 3), (3, 0)):
        q, k, g = np.ones((2, M, 4)), np.ones((2, N, 4)), np.ones((2, M, N))
        for d in (
            attnext.dot_product_scores_backward(g, q, k),
            attnext.cosine_scores_backward(g, q, k),
            attnext.gaussian_scores_backward(g, q, k),
            attnext.additive_scores_backward(g, q, k, np.ones((5, 4)), np.ones((5, 4)), [1.0] * 5),
        ):
            assert all(not np.any(x) for x in d if x is not None)
            assert d[0].shape == q.shape and d[1].shape == k.shape
    dq, dk = attnext.dot_product_scores_backward(np.ones((2, 3)), np.ones((2, 0)), np.ones((3, 0)))
    assert dq.shape == (2, 0) and dk.shape == (3, 0)


def test_every_pair_counts_in_bandwidth(rng: np.random.Generator) -> None:
    """A gradient that is the same for a whole row: the nearest key cannot be left out."""
    q, k = rng.normal(size=(3, 4)), rng.normal(size=(200, 4))
    g = np.ones((3, 200))
    expected = reference.gaussian_scores_backward(g, q, k, sigma=0.3)
    got = attnext.gaussian_scores_backward(g, q, k, sigma=0.3)
    np.testing.assert_allclose(got[2], expected[2], rtol=1e-5)


def test_nan_stays_with_its_query_and_key(rng: np.random.Generator) -> None:
    problem = problem_of("dot", rng, 4, 5, 3)
    problem.inputs["queries"][0, 0, 1] = np.nan
    dq, dk = backward(problem)
    assert np.isfinite(dq).all()
    assert np.isnan(dk[0, 0]).all() and np.isfinite(dk[0, 1]).all() and np.isfinite(dk[1]).all()


@pytest.mark.parametrize("module", [attnext, reference])
def test_errors(module: Any) -> None:
    backward, q = module.dot_product_scores_backward, np.ones((2, 3))
    with pytest.raises(ValueError, match=r"grad_output has shape \(3, 2\), expected \(2, 2\)"):
        backward(np.ones((3, 2)), q, q)
    with pytest.raises(ValueError, match="keys has shape"):
        backward(np.ones((2, 2)), q, np.ones((2, 4)))
    with pytest.raises(TypeError, match="valid_lens"):
        backward(np.ones((2, 2)), q, q, valid_lens=1)
    with pytest.raises(TypeError, match="grad_output"):
        backward(np.ones((2, 2), complex), q, q)
