"""The bias: added to the scores, -inf in it masks, its gradient has its own shape.

The exact results of large problems are those of the textbook in float64, which is faster than the
reference; test_reference_masks.py holds the two against each other.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    EMPTY_ROWS,
    SCORES,
    Array,
    Problem,
    assert_all_accurate,
    assert_same_bits,
    check,
    check_padding,
    make_problem,
    over_broadcast,
    textbook,
)

score_cases = pytest.mark.parametrize("score", SCORES)
ALL_AXES = list(product([True, False], repeat=4))  # which of (B, H, M, N) a bias has


def with_axes(dims: tuple[int, ...], kept: tuple[bool, ...]) -> tuple[int, ...]:
    return tuple(n if keep else 1 for n, keep in zip(dims, kept, strict=True))


def random_bias(rng: np.random.Generator, *shape: int) -> Array:
    """One in ten is -inf."""
    bias = rng.standard_normal(shape, dtype=np.float32)
    return np.where(rng.random(shape) < 0.1, -np.float32(np.inf), bias)


def check_by_textbook(problem: Problem) -> dict[str, Array]:
    got = problem.run()
    assert_all_accurate(got, textbook(problem, np.float64), problem)
    check_padding(problem, got)
    return got


# ---- its gradient, summed over whatever axes it lacks --------------------------------------------


@pytest.mark.parametrize("kept", ALL_AXES, ids=str)
@score_cases
def test_bias_with_any_axes(score: str, kept: tuple[bool, ...], rng: np.random.Generator) -> None:
    dims = (2, 2, 6, 130)
    bias = random_bias(rng, *with_axes(dims, kept))
    problem = make_problem(score, rng, lead=(2, 2), M=6, N=130, D=3, Dv=2, H=3, bias=bias)
    assert check(problem)["d_bias"].shape == bias.shape


@pytest.mark.parametrize("shape", [(), (1,), (130,), (6, 1), (6, 130), (3, 1, 1)], ids=str)
@score_cases
def test_bias_of_fewer_axes(score: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    bias = random_bias(rng, *shape)
    problem = make_problem(score, rng, lead=(2, 3), M=6, N=130, D=3, Dv=2, H=3, bias=bias)
    assert check(problem)["d_bias"].shape == shape


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
    check_by_textbook(problem.but(bias=random_bias(rng, *with_axes((*lead, M, N), kept))))


@pytest.mark.parametrize("kept", ALL_AXES, ids=str)
@score_cases
def test_gradient_of_a_shared_bias_is_the_sum_of_its_parts(
    score: str, kept: tuple[bool, ...], rng: np.random.Generator
) -> None:
    """Those that the same bias has when it is written out in full, in heads that share keys."""
    dims = (2, 4, 35, 140)
    bias = random_bias(rng, *with_axes(dims, kept))
    problem = make_problem(score, rng, lead=(2, 4), M=35, N=140, kv_heads=2, bias=bias)
    got, full = problem.run(), problem.but(bias=np.broadcast_to(bias, dims)).run()
    d_bias, d_full = got.pop("d_bias"), full.pop("d_bias").astype(np.float64)
    assert_same_bits(got, full)
    rounding = 1e-6 * over_broadcast(np.sum, np.abs(d_full), bias.shape)
    assert np.all(np.abs(d_bias - over_broadcast(np.sum, d_full, bias.shape)) <= rounding)


@score_cases
def test_gradient_reaches_bias_through_every_output(score: str, rng: np.random.Generator) -> None:
    bias = random_bias(rng, 20, 140)
    problem = make_problem(score, rng, M=20, N=140, bias=bias, valid_lens=[100, 140])
    every = problem.grads
    for name in ("grad_weights", "grad_lse"):
        problem.grads = {"grad_output": np.zeros_like(every["grad_output"]), name: every[name]}
        assert np.any(check(problem)["d_bias"])


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
@score_cases
def test_bias_of_empty_rows(score: str, empty_rows: str, rng: np.random.Generator) -> None:
    """-inf everywhere makes a row empty, and gradient 0 is all that it has from there."""
    bias = random_bias(rng, 2, 20, 140)
    bias[0, [0, 7, 19]] = bias[1, 3:] = -np.inf
    problem = make_problem(score, rng, M=20, N=140, bias=bias, empty_rows=empty_rows)
    check(problem)
    assert not np.any(check(problem.but(valid_lens=[0, 140]))["d_bias"][0])


# ---- what comes back, and only when asked for ----------------------------------------------------


@score_cases
def test_return_grad_bias(score: str, rng: np.random.Generator) -> None:
    """additive: beside its seven fields; the others: one more at the end."""
    problem = make_problem(score, rng, bias=random_bias(rng, 3, 5))
    with_bias, without = problem.backward(return_grad_bias=True), problem.backward()
    d_bias = with_bias.pop("d_bias")
    assert_same_bits(with_bias, without)
    assert_same_bits(problem.backward(return_grad_bias=False), without)
    assert type(d_bias) is np.ndarray and d_bias.dtype == np.float32
    assert d_bias.flags.c_contiguous and d_bias.flags.writeable and d_bias.flags.owndata


@score_cases
def test_no_bias_has_no_gradient(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng)
    assert_same_bits(problem.backward(return_grad_bias=True), problem.backward())


# ---- in which form it may come -------------------------------------------------------------------


def spread_out(bias: Array) -> Array:
    large = np.full([2 * n for n in bias.shape], np.nan, dtype=np.float32)
    every_second = tuple(slice(None, None, 2) for _ in bias.shape)
    large[every_second] = bias
    return large[every_second]


FORMS: dict[str, Any] = {
    "float16": lambda bias: bias.astype(np.float16),
    "float64": lambda bias: bias.astype(np.float64),
    "longdouble": lambda bias: bias.astype(np.longdouble),
    "other byte order": lambda bias: bias.astype(">f4"),
    "spread out": spread_out,
    "backwards": lambda bias: np.flip(np.flip(bias).copy()),
    "Fortran": np.asfortranarray,
    "lists": np.ndarray.tolist,
    "tensor": torch.tensor,
}


@pytest.mark.parametrize("form", FORMS)
@score_cases
def test_bias_in_every_form(score: str, form: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, lead=(2, 3), M=17, N=130)
    for shape in [(2, 3, 17, 130), (3, 1, 130), (17, 1), (130,)]:
        bias = np.round(random_bias(rng, *shape) * 8) / 8  # numbers that float16 has too
        before = bias.copy()
        expected = problem.but(bias=bias).run()
        assert_same_bits(problem.but(bias=FORMS[form](bias)).run(), expected)
        np.testing.assert_array_equal(bias, before)


@pytest.mark.parametrize("shape", [(17, 130), (1, 130), (17, 1), (3, 1, 1), ()], ids=str)
@score_cases
def test_bias_expanded_without_memory(
    score: str, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Its gradient has the shape that it came in, every number of it one pair's."""
    problem = make_problem(score, rng, lead=(2, 3), M=17, N=130)
    expanded = np.broadcast_to(random_bias(rng, *shape), (2, 3, 17, 130))
    assert_same_bits(problem.but(bias=expanded).run(), problem.but(bias=expanded.copy()).run())


# ---- numbers with a meaning of their own ---------------------------------------------------------


@score_cases
def test_a_bias_of_zeros_changes_nothing(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, lead=(2, 2), M=70, N=260, valid_lens=[200, 3])
    expected = problem.run()
    for shape in [(), (260,), (70, 1), (70, 260), (2, 2, 70, 260)]:
        got = problem.but(bias=np.zeros(shape, dtype=np.float32)).run()
        del got["d_bias"]
        if score == "gaussian":  # whose sum for w starts at the nearest key only without a bias
            np.testing.assert_allclose(got.pop("d_w"), expected["d_w"], rtol=1e-5)
        assert_same_bits(got, {name: expected[name] for name in got})


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


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@score_cases
def test_nan_and_inf_in_a_pair_that_takes_part(
    score: str, poison: float, rng: np.random.Generator
) -> None:
    """Its row is NaN, its lse that number; no other row is any different."""
    bias = random_bias(rng, 35, 140)
    bias[5, 77] = 0
    problem = make_problem(score, rng, M=35, N=140, bias=bias)
    clean = problem.run()
    poisoned = bias.copy()
    poisoned[5, 77] = poison
    found = problem.but(bias=poisoned).run()
    assert np.isnan(found["output"][:, 5]).all()
    assert np.isnan(found["weights"][:, 5][:, bias[5] > -np.inf]).all()
    assert not found["weights"][:, 5][:, bias[5] == -np.inf].any()
    np.testing.assert_array_equal(found["lse"][:, 5], [poison, poison])
    others = np.arange(35) != 5
    rows = ("output", "weights", "lse", "d_queries")
    assert_same_bits(
        {name: found[name][:, others] for name in rows},
        {name: clean[name][:, others] for name in rows},
    )
    np.testing.assert_array_equal(np.isnan(found["d_bias"]), (bias > -np.inf) & ~others[:, None])


@pytest.mark.parametrize("poison", [np.nan, np.inf, 3e38])
@score_cases
def test_bias_of_pairs_that_take_no_part_is_never_read(
    score: str, poison: float, rng: np.random.Generator
) -> None:
    problem = make_problem(score, rng, lead=(2, 2), M=35, N=140, empty_rows="zero")
    mask = rng.random((2, 35, 140)) < 0.7
    mask[:, 3] = False
    masks: list[dict[str, Any]] = [
        {"mask": mask},
        {"causal": True, "causal_offset": [-4, 90]},
        {"window": (2, 130)},
        {"valid_lens": rng.integers(0, 141, size=(2, 35))},
    ]
    bias = random_bias(rng, 2, 2, 35, 140)
    for options in masks:
        masked = problem.but(**options, bias=bias)
        poisoned = np.where(masked.but(bias=None).takes_part(), bias, poison)
        assert_same_bits(masked.but(bias=poisoned).run(), masked.run())
