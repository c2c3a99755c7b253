"""The bias: added to the scores, -inf in it masks, its gradient has its own shape.

What every modifier is asked: test_modifiers.py; here what is a bias's own.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from helpers import EMPTY_ROWS, SCORES, Array, check, make_problem

score_cases = pytest.mark.parametrize("score", SCORES)
ALL_AXES = list(product([True, False], repeat=4))  # which of (B, H, M, N) a bias has


def with_axes(dims: tuple[int, ...], kept: tuple[bool, ...]) -> tuple[int, ...]:
    return tuple(n if keep else 1 for n, keep in zip(dims, kept, strict=True))


def random_bias(rng: np.random.Generator, *shape: int) -> Array:
    """One in ten is -inf."""
    bias = rng.standard_normal(shape, dtype=np.float32)
    return np.where(rng.random(shape) < 0.1, -np.float32(np.inf), bias)


# ---- its gradient, summed over whatever axes it lacks --------------------------------------------


@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 1, 3), (2, 1, 2, 2)], ids=str)
@score_cases
def test_bias_of_queries_of_any_rank(
    score: str, lead: tuple[int, ...], rng: np.random.Generator
) -> None:
    M, N = 5, 131
    for shape in [(*lead, M, N), (*lead, 1, N), (*lead, M, 1), (*lead[:1], *[1] * len(lead), N)]:
        bias = random_bias(rng, *shape)
        check(make_problem(score, rng, lead=lead, M=M, N=N, bias=bias))


LARGE = [((2, 2), 70, 260), ((1, 2), 300, 129), ((2, 1), 2100, 3)]


@pytest.mark.parametrize("size", range(len(LARGE)))
@pytest.mark.parametrize("kept", ALL_AXES, ids=str)
def test_bias_over_several_blocks_groups_and_tiles(
    kept: tuple[bool, ...], size: int, rng: np.random.Generator
) -> None:
    score = SCORES[(ALL_AXES.index(kept) + size) % 4]
    lead, M, N = LARGE[size]
    problem = make_problem(score, rng, lead=lead, M=M, N=N, D=3, Dv=2, H=3)
    check(problem.but(bias=random_bias(rng, *with_axes((*lead, M, N), kept))))


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
@score_cases
def test_bias_of_empty_rows(score: str, empty_rows: str, rng: np.random.Generator) -> None:
    """-inf everywhere makes a row empty, and gradient 0 is all that it has from there."""
    bias = random_bias(rng, 2, 20, 140)
    bias[0, [0, 7, 19]] = bias[1, 3:] = -np.inf
    problem = make_problem(score, rng, M=20, N=140, bias=bias, empty_rows=empty_rows)
    check(problem)
    assert not np.any(check(problem.but(valid_lens=[0, 140]))["d_bias"][0])


# ---- numbers with a meaning of their own ---------------------------------------------------------


@score_cases
def test_a_bias_that_is_the_same_for_all_keys_shifts_lse_alone(
    score: str, rng: np.random.Generator
) -> None:
    problem = make_problem(score, rng, M=20, N=140, valid_lens=[100, 140])
    plain = problem.forward(return_weights=True, return_lse=True)
    bias = rng.standard_normal((20, 1), dtype=np.float32)
    shifted = problem.but(bias=bias).forward(return_weights=True, return_lse=True)
    np.testing.assert_allclose(shifted[0], plain[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(shifted[1], plain[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(shifted[2], plain[2] + bias[:, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1e9, 1e30, float(np.finfo(np.float32).max)], ids=str)
@score_cases
def test_large_finite_numbers_are_no_mask(
    score: str, size: float, rng: np.random.Generator
) -> None:
    """The lowest float32 is what many models mask with. A row with nothing else is not empty: the
    bias takes its scores in, and all its keys weigh the same, in PyTorch as here."""
    bias = np.zeros((4, 140), dtype=np.float32)
    bias[1], bias[2, 50:], bias[3, 130] = -size, -size, min(size, 1e38)
    problem = make_problem(score, rng, M=4, N=140, bias=bias, empty_rows="nan")
    output, weights, lse = problem.forward(return_weights=True, return_lse=True)
    np.testing.assert_allclose(weights[:, 1], 1 / 140, rtol=1e-6)
    assert not weights[:, 2, 50:].any()
    np.testing.assert_array_equal(weights[:, 3], np.eye(140)[[130, 130]])
    assert np.isfinite(output).all() and np.isfinite(lse).all()
    for name, x in problem.run().items():
        assert np.isfinite(x).all(), name
