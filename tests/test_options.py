"""Heads in groups, dropout masks, results handed back: what else an attention call takes.

Each of them together with every kind of mask, for every score; as in test_masks.py.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    EMPTY_ROWS,
    SCORES,
    Problem,
    assert_all_accurate,
    assert_same_bits,
    check,
    exact_gradients,
    keep_pattern,
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


# ---- values of another size, queries of any rank -------------------------------------------------


@pytest.mark.parametrize(
    ("D", "Dv"), [(1, 16), (2, 15), (16, 1), (17, 33), (33, 17), (5, 40), (40, 130), (130, 2)]
)
@score_cases
def test_values_of_any_size(score: str, D: int, Dv: int, rng: np.random.Generator) -> None:
    masks = some_masks(rng, 2, 18, 131)
    check(make_problem(score, rng, lead=(2, 1), M=18, N=131, D=D, Dv=Dv, **masks))


@pytest.mark.parametrize("lead", [(), (2,), (2, 1), (1, 2, 3), (2, 1, 2, 2)], ids=str)
@score_cases
def test_queries_of_any_rank(score: str, lead: tuple[int, ...], rng: np.random.Generator) -> None:
    for _ in range(4):
        check(make_problem(score, rng, lead=lead, M=9, N=17, **random_masks(rng, lead, 9, 17)))


# ---- dropout masks -------------------------------------------------------------------------------


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
@score_cases
def test_the_pattern_of_a_seed_as_a_mask(
    score: str, empty_rows: str, rng: np.random.Generator
) -> None:
    """Bit for bit, forward and backward, under every kind of mask."""
    p, seed, shape = 0.35, 2**40 + 3, (2, 2, 20, 130)
    masks = some_masks(rng, 2, 20, 130)
    problem = make_problem(
        score, rng, lead=(2, 2), M=20, N=130, **masks, dropout_p=p, empty_rows=empty_rows
    )
    keep = keep_pattern(shape, p, seed)
    by_seed, by_mask = problem.but(seed=seed).run(), problem.but(dropout_mask=keep).run()
    assert_same_bits(by_mask, by_seed)
    assert np.any(by_mask["output"] != problem.but(dropout_p=0.0).run()["output"])


@pytest.mark.parametrize("kept", list(product([True, False], repeat=4)), ids=str)
@score_cases
def test_dropout_mask_in_every_shape(
    score: str, kept: tuple[bool, ...], rng: np.random.Generator
) -> None:
    """Alone it scales nothing; with dropout_p what stays counts 1 / (1 - p)."""
    dims = (2, 2, 7, 130)
    shape = tuple(n if keep else 1 for n, keep in zip(dims, kept, strict=True))
    lens = rng.integers(0, 131, size=(2, 7))
    p = rng.choice([0.0, 0.4])
    problem = make_problem(score, rng, lead=(2, 2), M=7, N=130, valid_lens=lens, dropout_p=p)
    mask = rng.random(shape) < 0.7
    got = check(problem.but(dropout_mask=mask))
    full = np.broadcast_to(mask, dims)
    for given in (full, full.copy(), np.asfortranarray(full), torch.tensor(mask), mask.tolist()):
        assert_same_bits(problem.but(dropout_mask=given).run(), got)


@score_cases
def test_a_dropout_mask_of_all_true_drops_nothing(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=70, N=140, valid_lens=[0, 100])
    for shape in [(), (140,), (2, 70, 140)]:
        assert_same_bits(problem.but(dropout_mask=np.ones(shape, bool)).run(), problem.run())


@pytest.mark.parametrize("empty_rows", ["uniform", "zero"])
@score_cases
def test_a_dropout_mask_of_all_false_drops_everything(
    score: str, empty_rows: str, rng: np.random.Generator
) -> None:
    """Output 0; weights and lse are those before dropout."""
    options: dict[str, Any] = {"valid_lens": [0, 100], "empty_rows": empty_rows}
    problem = make_problem(score, rng, M=70, N=140, **options)
    plain, got = problem.run(), problem.but(dropout_mask=False, dropout_p=0.5).run()
    assert not got["output"].any() and not got["d_values"].any()
    for name in ("weights", "lse"):
        assert_same_bits({name: got[name]}, {name: plain[name]})


# ---- what the forward returned, handed back ------------------------------------------------------

RETURNED = ("weights", "output", "lse")
HANDED = [tuple(np.array(RETURNED)[list(which)]) for which in product([False, True], repeat=3)]


@pytest.mark.parametrize("extra_grads", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize("handed", HANDED, ids=str)
@score_cases
def test_backward_with_what_the_forward_returned(
    score: str,
    handed: tuple[str, ...],
    dropout_p: float,
    extra_grads: bool,
    rng: np.random.Generator,
) -> None:
    """As accurate as without, under every kind of mask; one tile or several."""
    for N in (33, 140):
        options = {**some_masks(rng, 2, 9, N), "dropout_p": dropout_p}
        options["empty_rows"] = rng.choice(EMPTY_ROWS)
        sizes: dict[str, Any] = {"lead": (2, 2), "M": 9, "N": N, "D": 3, "H": 4, "kv_heads": 1}
        keep = rng.random((9, N)) < 0.6
        options |= {"dropout_mask": keep} if dropout_p else {}
        problem = make_problem(score, rng, **sizes, **options, extra_grads=extra_grads)
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


@pytest.mark.parametrize("handed", [("weights",), ("output", "lse"), RETURNED], ids=str)
@score_cases
def test_any_number_of_threads(
    score: str, handed: tuple[str, ...], rng: np.random.Generator, threads: None
) -> None:
    masks = some_masks(rng, 2, 300, 140)
    problem = make_problem(score, rng, lead=(2, 2), M=300, N=140, kv_heads=1, **masks)
    saved = returned(problem, handed)
    attnext.set_num_threads(1)
    expected = problem.backward(return_grad_bias=True, **saved)
    for n in (2, 3, 5):
        attnext.set_num_threads(n)
        assert_same_bits(problem.backward(return_grad_bias=True, **saved), expected)
