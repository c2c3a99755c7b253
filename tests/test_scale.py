"""A scale for each head, and the gradient of a scale: of dot products and cosines.

What every modifier is asked: test_modifiers.py; here what is a scale's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import (
    EMPTY_ROWS,
    FUNCTION,
    SCORES_FUNCTION,
    Problem,
    assert_accurate,
    assert_same_bits,
    bits,
    make_problem,
    textbook,
)

import attnext
from attnext import reference

SCALED = ("dot", "cosine")
score_cases = pytest.mark.parametrize("score", SCALED)


def gradient(problem: Problem, **more: Any) -> Any:
    return problem.backward(**more, return_grad_scale=True)["d_scale"]


# ---- against formulas in float64 -----------------------------------------------------------------


@pytest.mark.parametrize("scale", [None, 0.0, 1e-30, 0.7, -3.5, np.float32(2), np.array(0.5)])
@score_cases
def test_gradient_of_a_number(score: str, scale: Any, rng: np.random.Generator) -> None:
    """The default is one too; of scale 0, where no gradient reaches the queries, as well."""
    options = {} if scale is None else {"scale": scale}
    problem = make_problem(score, rng, lead=(2,), M=70, N=140, valid_lens=[3, 140], **options)
    d = gradient(problem)
    assert np.shape(d) == () and d.dtype == np.float32
    number = {"dot": 0.5, "cosine": 1.0}[score] if scale is None else float(scale)
    as_array = problem.but(scale=np.float32([number]))
    exact = textbook(as_array, np.float64)["d_scale"][0]
    peer = textbook(as_array, np.float32)["d_scale"][0]
    assert_accurate(d, exact, max(abs(peer - exact), 1e-6 * abs(exact)))
    function = getattr(attnext, FUNCTION[score] + "_backward")
    *_, d_bias, d_sink, last = function(
        **problem.grads,
        **problem.inputs,
        **problem.options,
        return_grad_bias=True,
        return_grad_sink=True,
        return_grad_scale=True,
    )
    assert d_bias is None and d_sink is None and last == d


# ---- what a number does, head by head ------------------------------------------------------------


@pytest.mark.parametrize("M", [1, 33])
@score_cases
def test_each_head_is_a_call_with_its_number(score: str, M: int, rng: np.random.Generator) -> None:
    scale = np.float32([0.37, -2, 0])
    problem = make_problem(score, rng, lead=(2, 3), M=M, N=140, valid_lens=[20, 140], scale=scale)
    got = problem.run()
    scores = {name: problem.inputs[name] for name in ("queries", "keys")}
    found = getattr(attnext, SCORES_FUNCTION[score])(**scores, scale=scale)
    for head, number in enumerate(scale):
        alone = problem.but(scale=number).run()
        for name, x in alone.items():
            np.testing.assert_array_equal(bits(got[name][:, head]), bits(x[:, head]), err_msg=name)
        expected = getattr(attnext, SCORES_FUNCTION[score])(**scores, scale=number)
        np.testing.assert_array_equal(bits(found[:, head]), bits(expected[:, head]))
    exact = getattr(reference, SCORES_FUNCTION[score])(**scores, scale=scale)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


@score_cases
def test_a_number_is_one_for_all_heads(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, lead=(2, 3), M=17, N=20)
    number = problem.but(scale=0.5).run()
    whole = problem.but(scale=np.full((2, 1), 0.5)).run()
    del whole["d_scale"]
    assert_same_bits(whole, number)
    single = make_problem(score, rng, lead=(), M=17, N=20, scale=np.array(-0.7))
    assert_same_bits(single.run(), single.but(scale=np.float32(-0.7)).run())


# ---- the same gradient ---------------------------------------------------------------------------


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
@score_cases
def test_nothing_comes_from_empty_rows(
    score: str, empty_rows: str, rng: np.random.Generator
) -> None:
    problem = make_problem(
        score, rng, M=9, N=20, valid_lens=[0, 20], scale=[0.5, 2], empty_rows=empty_rows
    )
    problem.inputs["keys"][0] = problem.inputs["queries"][0] = np.nan
    d = gradient(problem)
    assert d[0] == 0 and d[1] != 0
    assert not np.any(gradient(problem.but(valid_lens=0)))
    for lead, M, N in [((2,), 0, 5), ((2,), 5, 0), ((0,), 3, 4)]:
        nothing = make_problem(score, rng, lead=lead, M=M, N=N, scale=np.ones(lead))
        np.testing.assert_array_equal(gradient(nothing), np.zeros(lead))
        assert gradient(nothing.but(scale=2.0)) == 0


# ---- any bandwidth -------------------------------------------------------------------------------


@pytest.mark.parametrize("M", [1, 5])
@pytest.mark.parametrize("w", [1e-36, 1e-25, 1.2e-19, 1e-15, 1e15, 1.9e19, 1e20, 1e25, 1e36])
def test_a_gaussian_of_any_width(w: float, M: int, rng: np.random.Generator) -> None:
    """Float32 holds w^2 for none of these, or not the squares of differences of about 1 / w."""
    w = float(np.float32(w))
    problem = make_problem("gaussian", rng, M=M, N=140, D=3, valid_lens=[130, 2], w=np.float32(w))
    for name in "queries", "keys":
        problem.inputs[name] = (problem.inputs[name] / w).astype(np.float32)
    right = problem.run(reference)
    for name, x in problem.run(attnext).items():
        # In units of the largest entry, whose square may overflow. The terms of the one number
        # that is d_w are of the size 1 / w, and may cancel.
        size = max(np.abs(right[name]).max(), 1 / w if name == "d_w" else 0.0)
        np.testing.assert_allclose(x / size, right[name] / size, rtol=0, atol=4e-6, err_msg=name)
    operands = problem.inputs["queries"], problem.inputs["keys"]
    scores = reference.gaussian_scores(*operands, w=w)
    np.testing.assert_allclose(attnext.gaussian_scores(*operands, w=w), scores, rtol=2e-6)


@pytest.mark.parametrize("w", [1e20, 1e30, 1e38])
def test_a_gaussian_without_width_takes_the_nearest(w: float) -> None:
    """Also where every score is below the lowest float."""
    keys = np.array([[3.0], [-1.0], [2.0]], np.float32)
    out, weights = attnext.gaussian_attention([[1.2], [-7.0]], keys, keys, w=w, return_weights=True)
    np.testing.assert_array_equal(weights, [[0, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(out, [[2.0], [-1.0]])
    grads = attnext.gaussian_attention_backward(np.ones_like(out), out - 0.1, keys, keys, w=w)
    for grad, right in zip(grads, (np.zeros_like(out), np.zeros_like(keys)), strict=False):
        np.testing.assert_array_equal(grad, right)
