"""One query or two, as in a decoder's step: blocks of one lane, in which lanes are keys.

Very many keys are also split over tasks, which is seen here too.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import (
    EMPTY_ROWS,
    PART_KEYS,
    SCORES,
    Array,
    Problem,
    assert_same_bits,
    check,
    make_problem,
    random_masks,
)

import attnext

score_cases = pytest.mark.parametrize("score", SCORES)


@pytest.mark.parametrize("N", [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300])
def test_keys_around_every_boundary(N: int, rng: np.random.Generator) -> None:
    for score, M in product(SCORES, (1, 2, 3)):
        check(make_problem(score, rng, M=M, N=N, D=5, Dv=3, H=7))
        check(make_problem(score, rng, M=M, N=N, D=5, Dv=3, H=7, valid_lens=[N // 2, N - 1]))


@pytest.mark.parametrize("D", [0, 1, 3, 4, 8, 15, 16, 17, 31, 63, 64, 65, 129])
def test_features_around_every_boundary(D: int, rng: np.random.Generator) -> None:
    for score, M in product(SCORES, (1, 2)):
        check(make_problem(score, rng, M=M, N=37, D=D, Dv=D + 1, H=max(D, 1)))


@pytest.mark.parametrize("M", [1, 2])
@score_cases
def test_every_kind_of_mask(score: str, M: int, rng: np.random.Generator) -> None:
    for N in (7, 33, 150):
        for empty_rows in EMPTY_ROWS * 2:
            masks = random_masks(rng, (2, 4), M, N)
            more: dict[str, Any] = {"dropout_p": 0.3, "seed": 5, "empty_rows": empty_rows}
            check(make_problem(score, rng, lead=(2, 4), M=M, N=N, kv_heads=2, **masks, **more))


@pytest.mark.parametrize("M", [1, 2])
@pytest.mark.parametrize(("N", "D"), [(5, 3), (77, 32), (300, 65), (2 * PART_KEYS + 9, 7)])
@score_cases
def test_a_query_alone_gives_the_bits_that_it_gives_among_others(
    score: str, N: int, D: int, M: int, rng: np.random.Generator
) -> None:
    """So a decoder that goes step by step computes what one call for all steps does."""
    mask = rng.random((2, 19, N)) < 0.9
    many = make_problem(score, rng, M=19, N=N, D=D, Dv=70, H=13, extra_grads=False)
    for options in ({}, {"mask": mask}, {"valid_lens": [N // 2, N]}):
        many = many.but(**options)
        few = Problem(
            score,
            {**many.inputs, "queries": many.inputs["queries"][:, 7 : 7 + M]},
            {**many.options, **({"mask": mask[:, 7 : 7 + M]} if options else {})},
            {"grad_output": many.grads["grad_output"][:, 7 : 7 + M]},
        )
        extras = {"return_weights": True, "return_lse": True}
        for one, all_of_them in zip(few.forward(**extras), many.forward(**extras), strict=True):
            np.testing.assert_array_equal(one, all_of_them[:, 7 : 7 + M])
        d, d_many = few.backward()["d_queries"], many.backward()["d_queries"]
        np.testing.assert_array_equal(d, d_many[:, 7 : 7 + M])


@pytest.mark.parametrize(("N", "D"), [(5, 3), (77, 32), (300, 65)])
@score_cases
def test_all_gradients_of_a_query_alone_are_those_it_gives_beside_empty_rows(
    score: str, N: int, D: int, rng: np.random.Generator
) -> None:
    """Sums over queries too: queries that attend to nothing are padding, and add nothing.

    But not W_q's: its products take the queries in runs, which end where one is empty.
    """
    mask = np.zeros((2, 19, N), bool)
    mask[:, 7] = rng.random((2, N)) < 0.9
    many = make_problem(
        score, rng, M=19, N=N, D=D, Dv=70, H=13, extra_grads=False, mask=mask, empty_rows="zero"
    )
    few = Problem(
        score,
        {**many.inputs, "queries": many.inputs["queries"][:, 7:8]},
        {**many.options, "mask": mask[:, 7:8]},
        {"grad_output": many.grads["grad_output"][:, 7:8]},
    )
    of_few, of_many = few.backward(), many.backward()
    np.testing.assert_array_equal(of_few.pop("d_queries"), of_many.pop("d_queries")[:, 7:8])
    for name in of_few.keys() - {"d_W_q"}:
        np.testing.assert_array_equal(of_few[name], of_many[name], err_msg=name)


# ---- very many keys ------------------------------------------------------------------------------


@pytest.mark.parametrize("N", [PART_KEYS, PART_KEYS + 1, 3 * PART_KEYS - 1])
@score_cases
def test_split_keys(score: str, N: int, rng: np.random.Generator) -> None:
    check(make_problem(score, rng, lead=(), M=1, N=N, D=2, Dv=3, H=3))


def test_more_parts_than_a_tile_has_keys(rng: np.random.Generator) -> None:
    check(make_problem("dot", rng, lead=(), M=1, N=130 * PART_KEYS + 5, D=2, Dv=1))


@score_cases
def test_split_keys_under_masks(score: str, rng: np.random.Generator) -> None:
    """Parts without a key that takes part, in the middle and at both ends."""
    N = 5 * PART_KEYS
    mask = rng.random((2, 2, N)) < 0.7
    mask[0, :, : PART_KEYS + 9] = mask[1, :, 2 * PART_KEYS : 3 * PART_KEYS] = False
    problem = make_problem(score, rng, M=2, N=N, D=2, Dv=2, H=3, mask=mask)
    check(problem.but(valid_lens=[3 * PART_KEYS + 7, N], dropout_p=0.25, seed=3))
    check(problem.but(mask=mask & False, empty_rows="nan"))


def large(score: str, rng: np.random.Generator) -> Problem:
    return make_problem(score, rng, lead=(2,), M=2, N=4 * PART_KEYS + 100, D=16, Dv=8, H=16)


@score_cases
def test_any_number_of_threads(score: str, rng: np.random.Generator, threads: None) -> None:
    problem = large(score, rng)
    attnext.set_num_threads(1)
    expected = problem.run()
    for n in (2, 3, 5):
        attnext.set_num_threads(n)
        assert_same_bits(problem.run(), expected)


@pytest.mark.parametrize("more", [1, 128, 2 * PART_KEYS])
@score_cases
def test_padding_changes_no_bit(score: str, more: int, rng: np.random.Generator) -> None:
    """Keys that are NaN, behind the valid ones, in parts of their own and not."""
    problem = large(score, rng)
    N = problem.inputs["keys"].shape[-2]

    def padded(x: Array) -> Array:
        return np.concatenate([x, np.full((*x.shape[:-2], more, x.shape[-1]), np.nan, x.dtype)], -2)

    inputs = {
        name: padded(x) if name in ("keys", "values") else x for name, x in problem.inputs.items()
    }
    long = Problem(score, inputs, problem.options).but(valid_lens=N)
    for got, expected in zip(
        long.forward(return_lse=True), problem.forward(return_lse=True), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


@score_cases
def test_infinite_scores_in_one_part(score: str, rng: np.random.Generator) -> None:
    """A score of +inf makes the row NaN, one of -inf takes no weight, wherever they are."""
    N = 2 * PART_KEYS + 5
    problem = make_problem(score, rng, lead=(2,), M=1, N=N, D=2, Dv=2, H=3)
    bias = np.zeros((2, 1, N), np.float32)
    bias[0, 0, PART_KEYS + 1] = np.inf
    bias[1, 0, : PART_KEYS + 100] = -np.inf
    output, lse = problem.but(bias=bias).forward(return_lse=True)
    assert np.isnan(output[0]).all() and lse[0, 0] == np.inf
    assert np.isfinite(output[1]).all() and np.isfinite(lse[1]).all()
