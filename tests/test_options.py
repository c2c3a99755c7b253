"""Heads in groups, results handed back: what else an attention call takes.

Each of them together with every kind of mask, for every score; as in test_masks.py.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import (
    EMPTY_ROWS,
    SCORES,
    Problem,
    assert_all_accurate,
    assert_same_bits,
    check,
    exact_gradients,
    make_problem,
    over_groups,
    random_masks,
    textbook,
)

import attnext

score_cases = pytest.mark.parametrize("score", SCORES)


def some_masks(rng: np.random.Generator, B: int, M: int, N: int) -> dict[str, Any]:
    """One of each kind; rows that are empty, and keys that no query attends to."""
    mask = rng.random((M, N)) < 0.8
    mask[M // 2] = mask[:, N // 2] = False
    bias = rng.standard_normal((B, *[1] * 2, N), dtype=np.float32)
    bias[0, ..., N // 3] = -np.inf
    lens = rng.integers(0, N + 1, size=(B, M))
    window = (N // 2, N // 3)
    return {"mask": mask, "bias": bias, "valid_lens": lens, "window": window, "causal_offset": 2}


# ---- heads in groups -----------------------------------------------------------------------------


def with_repeated_heads(problem: Problem) -> Problem:
    """The same with a copy of its keys and values for every query head."""
    heads, kv_heads = (problem.inputs[name].shape[-3] for name in ("queries", "keys"))
    repeated = {
        name: np.repeat(problem.inputs[name], heads // kv_heads, axis=-3)
        for name in ("keys", "values")
    }
    inputs = {**problem.inputs, **repeated}
    return Problem(problem.score, inputs, problem.options, problem.grads).but(enable_gqa=False)


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
@pytest.mark.parametrize(("M", "N"), [(5, 9), (40, 140), (300, 70)])
@score_cases
def test_grouped_heads_are_repeated_heads(
    score: str, M: int, N: int, kv_heads: int, rng: np.random.Generator
) -> None:
    """All that a query has to itself to the bit; gradients of keys are sums over the group."""
    for masked in (False, True):
        masks = some_masks(rng, 2, M, N) if masked else {}
        sizes: dict[str, Any] = {"lead": (2, 6), "M": M, "N": N, "D": 5, "Dv": 7}
        options: dict[str, Any] = {"kv_heads": kv_heads, "dropout_p": 0.2, "seed": 9}
        problem = make_problem(score, rng, **sizes, **masks, **options)
        got, repeated = problem.run(), with_repeated_heads(problem).run()
        own = {name: got.pop(name) for name in ("output", "weights", "lse", "d_queries")}
        assert_same_bits(own, {name: repeated.pop(name) for name in own})
        for name, x in got.items():
            terms = repeated[name].astype(np.float64)
            expected = over_groups(np.sum, terms, x.shape) if x.ndim == 4 else terms
            np.testing.assert_allclose(x, expected, rtol=1e-5, atol=2e-6 * np.abs(terms).max())


@pytest.mark.parametrize(
    ("lead", "kv_heads"),
    [((4,), 2), ((2, 4), 1), ((2, 6), 3), ((2, 2, 4), 2), ((3, 1), 1)],
    ids=str,
)
@score_cases
def test_grouped_heads(
    score: str, lead: tuple[int, ...], kv_heads: int, rng: np.random.Generator
) -> None:
    for empty_rows in EMPTY_ROWS:
        masks = random_masks(rng, lead, 7, 33)
        sizes: dict[str, Any] = {"lead": lead, "M": 7, "N": 33, "kv_heads": kv_heads}
        check(make_problem(score, rng, **sizes, **masks, empty_rows=empty_rows))


@score_cases
def test_as_many_key_heads_as_query_heads_are_no_groups(
    score: str, rng: np.random.Generator
) -> None:
    problem = make_problem(score, rng, lead=(2, 3), M=20, N=140, valid_lens=[100, 140])
    assert_same_bits(problem.but(enable_gqa=True).run(), problem.run())


@pytest.mark.parametrize("kv_heads", [0, 3])
@score_cases
def test_no_heads_at_all(score: str, kv_heads: int, rng: np.random.Generator) -> None:
    got = check(make_problem(score, rng, lead=(2, 0), kv_heads=kv_heads))
    assert got["output"].shape == (2, 0, 3, 3)
    assert got["d_keys"].shape[:2] == (2, kv_heads)
    assert not got["d_keys"].any() and not got["d_values"].any()


# ---- values of another size ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("D", "Dv"), [(1, 16), (2, 15), (16, 1), (17, 33), (33, 17), (5, 40), (40, 130), (130, 2)]
)
@score_cases
def test_values_of_any_size(score: str, D: int, Dv: int, rng: np.random.Generator) -> None:
    masks = some_masks(rng, 2, 18, 131)
    check(make_problem(score, rng, lead=(2, 1), M=18, N=131, D=D, Dv=Dv, **masks))


# ---- what the forward returned, handed back ------------------------------------------------------

RETURNED = ("weights", "output", "lse")
HANDED = [tuple(np.array(RETURNED)[list(which)]) for which in product([False, True], repeat=3)]


@pytest.mark.parametrize("handed", HANDED, ids=str)
@score_cases
def test_backward_with_what_the_forward_returned(
    score: str, handed: tuple[str, ...], rng: np.random.Generator
) -> None:
    """As accurate as without, under every kind of mask; one tile or several; whatever flows in."""
    drops: list[dict[str, Any]] = [{}, {"dropout_p": 0.4, "seed": 5}, {"dropout_p": 0.4}]
    flows = [(), ("grad_lse",), ("grad_weights", "grad_lse")]
    for case, (N, flow) in enumerate(product((33, 140), flows)):
        options = some_masks(rng, 2, 9, N) | drops[(case + HANDED.index(handed)) % 3]
        options["empty_rows"] = EMPTY_ROWS[(case + SCORES.index(score)) % 3]
        sizes: dict[str, Any] = {"lead": (2, 2), "M": 9, "N": N, "D": 3, "H": 4, "kv_heads": 1}
        if "dropout_p" in options and "seed" not in options:
            options["dropout_mask"] = rng.random((9, N)) < 0.6
        problem = make_problem(score, rng, **sizes, **options)
        problem.grads = {name: problem.grads[name] for name in ("grad_output", *flow)}
        saved = returned(problem, handed)
        got = problem.backward(return_grad_bias=True, **saved)
        peer = partial(textbook, handed={"output", "lse"} <= saved.keys())
        assert_all_accurate(got, exact_gradients(problem), problem, peer)


def returned(problem: Problem, names: tuple[str, ...]) -> dict[str, Any]:
    """These of what the forward returns."""
    every = problem.forward(return_weights=True, return_lse=True)
    by_name = dict(zip(("output", "weights", "lse"), every, strict=True))
    return {name: by_name[name] for name in names}


@pytest.mark.parametrize("size", [1e3, 1e5, 1e9])
@pytest.mark.parametrize("handed", [("lse",), ("output", "lse")], ids=str)
@score_cases
def test_an_lse_too_large_to_have_digits_behind_the_point(
    score: str, handed: tuple[str, ...], size: float, rng: np.random.Generator
) -> None:
    """exp(score - lse) would be off by what lse was rounded by: here up to exp(32)."""
    bias = np.array([[0], [size], [-size], [0]], dtype=np.float32)
    problem = make_problem(score, rng, M=4, N=140, bias=bias)
    got, expected = problem.backward(**returned(problem, handed)), problem.backward()
    for name, x in expected.items():
        np.testing.assert_allclose(got[name], x, rtol=0, atol=2e-5 * np.abs(x).max())


@pytest.mark.parametrize("handed", HANDED[1:], ids=str)
@score_cases
def test_what_is_handed_back_is_never_written(
    score: str, handed: tuple[str, ...], rng: np.random.Generator
) -> None:
    problem = make_problem(score, rng, lead=(2, 2), M=20, N=140, **some_masks(rng, 2, 20, 140))
    saved = returned(problem, handed)
    before = {name: x.copy() for name, x in saved.items()}
    for x in saved.values():
        x.flags.writeable = False
    first = problem.backward(**saved)
    assert_same_bits(saved, before)
    spread: dict[str, Any] = {name: np.repeat(x, 2, axis=-1)[..., ::2] for name, x in saved.items()}
    assert_same_bits(problem.backward(**spread), first)


@score_cases
def test_any_number_of_threads(score: str, rng: np.random.Generator, threads: None) -> None:
    masks = some_masks(rng, 2, 300, 140)
    problem = make_problem(score, rng, lead=(2, 2), M=300, N=140, kv_heads=1, **masks)
    for handed in (("weights",), ("output", "lse"), RETURNED):
        saved = returned(problem, handed)
        attnext.set_num_threads(1)
        expected = problem.backward(return_grad_bias=True, **saved)
        for n in (2, 3, 5):
            attnext.set_num_threads(n)
            assert_same_bits(problem.backward(return_grad_bias=True, **saved), expected)
