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

SCALED = ("dot", "cosine")
SHAPES = [(1, 1, 1), (3, 5, 2), (2, 70, 8), (33, 129, 17), (70, 257, 5), (7, 9, 300), (520, 3, 4)]


def problem_of(
    score: str, rng: np.random.Generator, M: int, N: int, D: int, **options: Any
) -> Problem:
    """grad_output is the gradient of the scores."""
    problem = make_problem(score, rng, lead=(2, 2), M=M, N=N, D=D, **options)
    if score == "additive":
        problem.options["b_h"] = rng.standard_normal(6, dtype=np.float32)
    problem.grads = {"grad_output": rng.standard_normal((2, 2, M, N), dtype=np.float32)}
    return problem


def backward(problem: Problem, module: Any = attnext, **changed: Any) -> Any:
    inputs = {name: x for name, x in problem.inputs.items() if name != "values"}
    function = getattr(module, SCORES_FUNCTION[problem.score] + "_backward")
    return function(**{**problem.grads, **inputs, **problem.options, **changed})


def gradients(problem: Problem, module: Any = attnext) -> dict[str, Array]:
    """By "d_" and the name of what they belong to; that of the scale if that is an array."""
    asked = ["scale"] if problem.shares("scale") else []
    d = backward(problem, module, **{f"return_grad_{name}": True for name in asked})
    if problem.score == "additive":
        assert d.values is None
        d = [x for name, x in d._asdict().items() if name != "values"]
    names = ["queries", "keys", *PARAMETERS[problem.score], *asked]
    return {f"d_{name}": x for name, x in zip(names, d, strict=True) if x is not None}


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("M", "N", "D"), SHAPES)
def test_values(score: str, M: int, N: int, D: int, rng: np.random.Generator) -> None:
    problem = problem_of(score, rng, M, N, D)
    exact = textbook_scores_backward(problem, np.float64)
    assert_all_accurate(gradients(problem), exact, problem, textbook_scores_backward)


def options_of(score: str, rng: np.random.Generator) -> list[dict[str, Any]]:
    """A cap, an array of scales, and both."""
    cap: dict[str, Any] = {"softcap": 0.75}
    if score not in SCALED:
        return [cap]
    scales = [{"scale": rng.normal(size=shape).astype(np.float32)} for shape in ((2, 1), (2,))]
    return [cap, *scales, {**cap, **scales[0]}]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("M", "N", "D"), [(1, 1, 1), (2, 70, 8), (33, 129, 17), (300, 9, 4)])
def test_values_under_a_cap_and_with_scales(
    score: str, M: int, N: int, D: int, rng: np.random.Generator
) -> None:
    for options in options_of(score, rng):
        problem = problem_of(score, rng, M, N, D, **options)
        exact = textbook_scores_backward(problem, np.float64)
        assert_all_accurate(gradients(problem), exact, problem, textbook_scores_backward)


@pytest.mark.parametrize("score", SCORES)
def test_the_twin(score: str, rng: np.random.Generator) -> None:
    for options in ({}, *options_of(score, rng)):
        problem = problem_of(score, rng, 4, 6, 3, **options)
        twin, exact = gradients(problem, reference), textbook_scores_backward(problem, np.float64)
        assert twin.keys() == exact.keys()
        for name, x in twin.items():
            np.testing.assert_allclose(x, exact[name], rtol=1e-11, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("score", SCALED)
def test_each_head_is_a_call_with_its_number(score: str, rng: np.random.Generator) -> None:
    """Asked for or not, the other gradients have the same bits."""
    for M in (1, 33):
        problem = problem_of(score, rng, M, 140, 5, scale=np.float32([0.37, 0]), softcap=0.7)
        dq, dk = backward(problem)
        got = gradients(problem)
        assert_same_bits({"d_queries": dq, "d_keys": dk, "d_scale": got["d_scale"]}, got)
        for head, number in enumerate(problem.options["scale"]):
            dq, dk, d = backward(problem.but(scale=number), return_grad_scale=True)
            np.testing.assert_array_equal(got["d_queries"][:, head], dq[:, head])
            np.testing.assert_array_equal(got["d_keys"][:, head], dk[:, head])
            assert d.dtype == np.float32 and np.shape(d) == ()


@pytest.mark.parametrize("score", SCORES)
def test_a_cap_far_above_all_scores_changes_no_bit(score: str, rng: np.random.Generator) -> None:
    problem = problem_of(score, rng, 33, 140, 5)
    assert_same_bits(gradients(problem.but(softcap=1e30)), gradients(problem))


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
    for options in ({}, options_of(score, rng)[-1]):
        problem = problem_of(score, rng, 600, 259, 24, **options)  # several groups of queries
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
    for M, N in ((0, 3), (3, 0)):
        q, k, g = np.ones((2, M, 4)), np.ones((2, N, 4)), np.ones((2, M, N))
        for scale in (np.ones(2), 2.0):
            *_, d = attnext.cosine_scores_backward(g, q, k, scale=scale, return_grad_scale=True)
            np.testing.assert_array_equal(d, np.zeros(np.shape(scale)))
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
    with pytest.raises(TypeError, match="softcap (must be a number, got str|has dtype)"):
        backward(np.ones((2, 2)), q, q, softcap="1")
    with pytest.raises(TypeError, match="return_grad_scale must be a bool, got int"):
        backward(np.ones((2, 2)), q, q, return_grad_scale=1)
    with pytest.raises(ValueError, match=r"scale has shape \(2,\), expected"):
        backward(np.ones((2, 2)), q, q, scale=[1.0, 2.0])
    with pytest.raises(TypeError, match="return_grad_scale"):
        module.gaussian_scores_backward(np.ones((2, 2)), q, q, return_grad_scale=True)
