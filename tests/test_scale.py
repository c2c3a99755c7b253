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
