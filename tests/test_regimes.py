"""The additive score's four ways to compute tanh(a + b), on both sides of every switch.

Which way a pair takes depends on the sizes of its two pre-activations a = W_q q + b_h and
b = W_k k: at most 1, 9, 21.8, or more (csrc/core/additive.h). With W_q and W_k the
identity, queries and keys are the pre-activations themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Problem, check, make_problem

import attnext
from attnext import reference

SWITCHES = (1.0, 9.0, 21.8)
SIDES = [float(np.float32(s) * np.float32(1 + e)) for s in SWITCHES for e in (-1e-3, 0, 1e-3)]
SIZES = [1e-3, 0.3, *SIDES, 80.0, 1e4]


def pre_activations(rng: np.random.Generator, a: Any, b: Any, M: int, N: int, H: int) -> Problem:
    """Pre-activations in [-a, a] and [-b, b], the largest of each row at the end of the range.

    a, b: one number, or one for each row.
    """
    problem = make_problem("additive", rng, M=M, N=N, D=H, Dk=H, H=H, Dv=3)
    problem.inputs["W_q"] = problem.inputs["W_k"] = np.eye(H, dtype=np.float32)
    for name, rows, size in (("queries", M, a), ("keys", N, b)):
        x = rng.uniform(-1, 1, size=(2, rows, H))
        largest = rng.integers(0, H, size=(2, rows, 1))
        np.put_along_axis(x, largest, rng.choice([-1.0, 1.0], size=(2, rows, 1)), axis=-1)
        problem.inputs[name] = (x * np.reshape(size, (-1, 1))).astype(np.float32)
    return problem


@pytest.mark.parametrize("a", SIZES)
def test_both_sides_of_every_switch(a: float, rng: np.random.Generator) -> None:
    for b in SIZES:
        check(pre_activations(rng, a, b, M=5, N=9, H=8))


@pytest.mark.parametrize("H", [1, 2, 7, 16])
@pytest.mark.parametrize(("M", "N"), [(20, 30), (40, 140), (3, 300)])
def test_all_regimes_in_one_tile(M: int, N: int, H: int, rng: np.random.Generator) -> None:
    a, b = rng.choice(SIZES, size=M), rng.choice(SIZES, size=N)
    problem = pre_activations(rng, a, b, M, N, H)
    check(problem.but(valid_lens=rng.integers(0, N + 1, size=(2, M))))


@pytest.mark.parametrize("size", SIZES)
def test_a_hidden_bias_counts_as_part_of_the_query(size: float, rng: np.random.Generator) -> None:
    problem = pre_activations(rng, 0.5, 0.5, M=5, N=9, H=8)
    bias = rng.uniform(-1, 1, size=8)
    check(problem.but(b_h=(bias * size / np.abs(bias).max()).astype(np.float32)))


@pytest.mark.parametrize("size", SIZES)
def test_a_pair_is_computed_the_same_whatever_its_neighbours(
    size: float, rng: np.random.Generator
) -> None:
    """One query or key of another size in the tile changes no other pair's bits."""
    problem = pre_activations(rng, size, size, M=20, N=40, H=6)
    alone = scores(problem)
    seventh = {name: problem.inputs[name][:, 7].copy() for name in ("queries", "keys")}
    untouched = np.ones((20, 40), dtype=bool)
    for name, other in (("queries", 1e-3), ("keys", 60.0), ("queries", 5.0), ("keys", 0.9)):
        problem.inputs[name][:, 7] = seventh[name] * np.float32(other / size)
        untouched[7 if name == "queries" else np.s_[:, 7]] = False
        mixed = scores(problem)
        np.testing.assert_array_equal(mixed[:, untouched], alone[:, untouched])


def scores(problem: Problem, module: Any = attnext) -> Array:
    return module.additive_scores(
        *(problem.inputs[name] for name in ("queries", "keys", "W_q", "W_k", "w_v"))
    )


# ---- accuracy of single terms --------------------------------------------------------------------


def terms(a: Array, b: Array) -> tuple[Array, Array]:
    """tanh(a_i + b_j) as attnext and as float64 have it: one hidden unit of weight 1."""
    one = np.ones((1, 1), dtype=np.float32)
    a, b = a.astype(np.float32)[:, None], b.astype(np.float32)[:, None]
    got = attnext.additive_scores(a, b, one, one, one[0])
    return got, np.tanh(a.astype(np.float64) + b.astype(np.float64).T)


def test_relative_accuracy_of_small_pre_activations(rng: np.random.Generator) -> None:
    """tanh(a + b) = (u + v) / (1 + u v): digits are lost only where a + b itself loses them."""
    for size in (1e-30, 1e-6, 1e-3, 0.1, 1.0):
        a, b = size * rng.uniform(0, 1, 200), size * rng.uniform(0, 1, 300)
        got, exact = terms(a, b)
        np.testing.assert_allclose(got, exact, rtol=8 * 2**-24)
        a, b = np.float32(a), np.float32(-b)
        got, exact = terms(a, b)
        assert np.abs(got - exact).max() <= 4 * 2**-24 * size


@pytest.mark.parametrize("size", [1.5, 5.4, 9.0, 9.1, 21.8, 21.9, 60.0, 1e4])
def test_absolute_accuracy_of_the_others(size: float, rng: np.random.Generator) -> None:
    """As good as float32 tanh of a float32 sum: half an ulp of a + b, and of the result."""
    a, b = rng.uniform(-size, size, 300), rng.uniform(-size, size, 400)
    a[:2], b[:2] = (-size, size), (-size, size)
    got, exact = terms(a, b)
    assert np.abs(got - exact).max() <= 2**-24 * (4 + size)


def test_far_beyond_every_switch_tanh_is_one() -> None:
    a = np.array([25.0, 50.0, 88.0, 100.0, 1e4, 1e30, 3e38])
    got, _ = terms(a, np.array([0.0, 5.0, 30.0]))
    np.testing.assert_array_equal(got, np.ones((7, 3)))
    got, _ = terms(-a, np.array([0.0, -5.0, -30.0]))
    np.testing.assert_array_equal(got, -np.ones((7, 3)))


def test_opposite_pre_activations_cancel() -> None:
    for x in (0.5, 1.0, 1.5, 9.0, 9.1, 21.8, 22.0, 1000.0):
        got, _ = terms(np.array([x, -x]), np.array([-x, x]))
        assert abs(got[0, 0]) <= 2**-22 and abs(got[1, 1]) <= 2**-22


@pytest.mark.parametrize("largest", [2.0**12, 2.0**13, 1e6, 2.0**64, 1e30, np.inf])
@pytest.mark.parametrize("size", [0.5, 9.0, 21.8, 60.0])
def test_weights_of_any_size(size: float, largest: float, rng: np.random.Generator) -> None:
    """Four hidden units share a division: its numerators must not overflow."""
    a, b = (np.full((1, n, 6), size, dtype=np.float32) for n in (20, 30))
    a[:, ::2], b[:, 1::3] = -a[:, ::2], a[:, 0, :] * np.float32(0.9)
    eye, w = np.eye(6, dtype=np.float32), np.full(6, largest, dtype=np.float32)
    got = attnext.additive_scores(a, b, eye, eye, w)
    exact = reference.additive_scores(a, b, eye, eye, w)
    assert np.isfinite(got).all() or largest == np.inf
    np.testing.assert_allclose(got, exact, rtol=0, atol=6 * largest * 2**-24 * (4 + size))


# ---- infinities and NaN --------------------------------------------------------------------------


@pytest.mark.parametrize("others", [0.1, 5.0, 20.0, 100.0])
def test_infinite_pre_activations(others: float, rng: np.random.Generator) -> None:
    problem = pre_activations(rng, others, others, M=20, N=30, H=5)
    problem.inputs["queries"][0, 3, 1] = np.inf
    problem.inputs["queries"][0, 4, 2] = -np.inf
    problem.inputs["keys"][0, 6, 1] = np.inf
    problem.inputs["keys"][0, 7, 2] = np.inf
    # identity matrices would turn infinity into NaN: 0 * inf
    problem.inputs["W_q"] = problem.inputs["W_k"] = np.ones((1, 5), dtype=np.float32)
    problem.inputs["w_v"] = np.ones(1, dtype=np.float32)
    got, exact = scores(problem), scores(problem, reference)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    assert np.isnan(got[0, 4, 6]) and np.isnan(got[0, 4, 7])  # inf - inf
    assert got[0, 3, 6] == 1 and got[0, 3, 0] == 1 and got[0, 4, 0] == -1
    np.testing.assert_allclose(got, exact, atol=2**-24 * (8 + 5 * others))


@pytest.mark.parametrize("others", [0.1, 5.0, 20.0, 100.0])
def test_nan_stays_in_its_row_and_column(others: float, rng: np.random.Generator) -> None:
    problem = pre_activations(rng, others, others, M=20, N=30, H=5)
    clean = scores(problem)
    problem.inputs["queries"][0, 3, 1] = np.nan
    problem.inputs["keys"][1, 7, 2] = np.nan
    got = scores(problem)
    expected = clean.copy()
    expected[0, 3, :] = expected[1, :, 7] = np.nan
    np.testing.assert_array_equal(got, expected)
    output, lse = problem.forward(return_lse=True)
    assert np.isnan(output[0, 3]).all() and np.isnan(lse[0, 3])
    assert np.isfinite(np.delete(output[0], 3, axis=0)).all()
    assert np.isnan(output[1]).all()  # every query attends to that key
