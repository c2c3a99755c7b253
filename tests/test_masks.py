"""Who attends to whom: mask, causal, window and lengths, one by one and composed, every score.

What is special about the sizes: see test_attention.py. Most comparisons are with the reference;
those between two spellings of the same masks are exact, since a row's bits depend on nothing but
the pairs that take part.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import (
    EMPTY_ROWS,
    SCORES,
    TESTS,
    Array,
    Problem,
    assert_same_bits,
    check,
    make_problem,
    random_masks,
    run_python,
)
from sampling import cases

import attnext

score_cases = pytest.mark.parametrize("score", SCORES)


def shapes_that_broadcast(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every shape of this many axes or fewer, each as long as here or 1."""
    return [
        tuple(n if kept else 1 for n, kept in zip(shape[first:], pattern, strict=True))
        for first in range(len(shape) + 1)
        for pattern in product([True, False], repeat=len(shape) - first)
    ]


def random_mask(rng: np.random.Generator, *shape: int) -> Array:
    return np.asarray(rng.random(shape) < 0.7)


# ---- mask ----------------------------------------------------------------------------------------


SHAPES = shapes_that_broadcast((2, 3, 6, 130))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["mask", "dropout_mask"])
def test_mask_in_every_shape(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """The bits are those of the same mask written out in full, for whichever score. Of what dropout
    keeps alone nothing is scaled; with dropout_p it counts 1 / (1 - p)."""
    place = SHAPES.index(shape)
    options = {"dropout_p": (0.0, 0.4)[place // 4 % 2]} if name == "dropout_mask" else {}
    sizes: dict[str, Any] = {"lead": (2, 3), "M": 6, "N": 130, "D": 3, "Dv": 2, "H": 3}
    problem = make_problem(SCORES[place % 4], rng, **sizes, **options, valid_lens=[77, 130])
    mask = random_mask(rng, *shape)
    got = check(problem.but(**{name: mask}))
    full = np.broadcast_to(mask, (2, 3, 6, 130))
    for given in (full, full.copy(), mask.tolist()):
        assert_same_bits(problem.but(**{name: given}).run(), got)


@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 3), (2, 1, 3), (2, 1, 2, 2)], ids=str)
@score_cases
def test_mask_of_queries_of_any_rank(
    score: str, lead: tuple[int, ...], rng: np.random.Generator
) -> None:
    M, N = 5, 131
    for shape in [(*lead, M, N), (M, N), (*lead, 1, N), (*lead[:1], *[1] * len(lead), N)]:
        lens = rng.integers(0, N + 1, size=(*lead, M))
        mask = random_mask(rng, *shape)
        check(make_problem(score, rng, lead=lead, M=M, N=N, mask=mask, valid_lens=lens))


@score_cases
def test_mask_of_all_true_is_no_mask(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, lead=(2, 2), M=70, N=260, valid_lens=[200, 3])
    for shape in [(), (260,), (70, 1), (70, 260), (2, 2, 70, 260)]:
        mask = np.ones(shape, dtype=bool)
        assert_same_bits(problem.but(mask=mask, dropout_mask=mask).run(), problem.run())
    assert_same_bits(problem.but(mask=True).run(), problem.run())


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
@score_cases
def test_mask_that_leaves_nothing(score: str, empty_rows: str, rng: np.random.Generator) -> None:
    """To a row, to a key, to anything: as if the lengths were 0."""
    problem = make_problem(score, rng, M=35, N=140, empty_rows=empty_rows)
    mask = random_mask(rng, 2, 35, 140)
    mask[0, [0, 7, 34]] = False
    mask[1, 20:] = False
    mask[:, :, [0, 5, 127, 128, 139]] = False
    check(problem.but(mask=mask))
    for shape in [(), (140,), (35, 1), (2, 35, 140)]:
        none = problem.but(mask=np.zeros(shape, dtype=bool)).run()
        assert_same_bits(none, problem.but(valid_lens=0).run())


@pytest.mark.parametrize("live", [0, 1, 64, 127, 128, 255, 299])
@score_cases
def test_one_key_alone(score: str, live: int, rng: np.random.Generator) -> None:
    """At every edge of a tile; in the second entry another one for each row."""
    mask = np.zeros((2, 66, 300), dtype=bool)
    mask[0, :, live] = True
    mask[1, np.arange(66), (np.arange(66) * 41 + live) % 300] = True
    problem = make_problem(score, rng, M=66, N=300, D=3, mask=mask)
    check(problem)
    weights = problem.forward(return_weights=True)[1]
    np.testing.assert_array_equal(weights, mask)


# ---- causal, offset, window ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("M", "N"), [(1, 1), (5, 5), (5, 9), (9, 5), (33, 129), (129, 33), (65, 300), (300, 257)]
)
@score_cases
def test_causal(score: str, M: int, N: int, rng: np.random.Generator) -> None:
    """Query i attends to the keys up to its own number, whatever M and N are."""
    problem = make_problem(score, rng, lead=(1,), M=M, N=N, D=3, Dv=2, H=3, causal=True)
    weights = check(problem)["weights"]
    assert not np.triu(weights, 1).any()
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)


@pytest.mark.parametrize(("M", "N"), [(5, 9), (9, 5), (40, 140), (140, 40)])
@score_cases
def test_offset_n_minus_m_is_bottom_right(
    score: str, M: int, N: int, rng: np.random.Generator
) -> None:
    """The last query attends to all keys, each one before it to one less."""
    problem = make_problem(score, rng, M=M, N=N, empty_rows="zero")
    got = check(problem.but(causal=True, causal_offset=N - M))
    mask = np.tri(max(M, N), dtype=bool)[-M:, -N:] if M <= N else np.tri(M, N, N - M, dtype=bool)
    assert mask[-1].all() and mask.any(axis=1).sum() == min(M, N)
    assert_same_bits(problem.but(mask=mask).run(), got)


@pytest.mark.parametrize("offset", [-(2**40), -20, -5, -1, 0, 1, 4, 119, 120, 150, 2**40])
@score_cases
def test_causal_offset(score: str, offset: int, rng: np.random.Generator) -> None:
    for options in ({"causal": True}, {"window": (3, 2)}, {"window": (-1, 130)}):
        sizes: dict[str, Any] = {"lead": (1,), "M": 20, "N": 140}
        check(make_problem(score, rng, **sizes, causal_offset=offset, empty_rows="zero", **options))


@pytest.mark.parametrize("options", [{"causal": True}, {"window": (20, 3)}], ids=str)
@pytest.mark.parametrize("lead", [(3,), (3, 2), (3, 1, 2)], ids=str)
@score_cases
def test_one_offset_for_each_entry(
    score: str, lead: tuple[int, ...], options: dict[str, Any], rng: np.random.Generator
) -> None:
    """Of the first axis: heads share it."""
    offsets = [-6, 100, 7]
    problem = make_problem(score, rng, lead=lead, M=20, N=130, D=3, **options)
    got = check(problem.but(causal_offset=offsets))
    for b, offset in enumerate(offsets):
        alone = problem.but(causal_offset=offset).forward()
        np.testing.assert_array_equal(got["output"][b], alone[b])


@score_cases
def test_an_offset_without_a_band_does_nothing(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, valid_lens=[2, 5])
    for offset in (3, -3, [1, -2]):
        assert_same_bits(problem.but(causal_offset=offset).run(), problem.run())


BOUNDS = [-1, 0, 1, 4, 9, 30, 2**62]


@pytest.mark.parametrize("causal", [False, True])
@score_cases
def test_every_window(score: str, causal: bool, rng: np.random.Generator) -> None:
    """left and right of all kinds, beyond N and beyond all numbers; rows that end up empty."""
    problem = make_problem(score, rng, M=6, N=9, causal=causal)
    for case, window in enumerate(product(BOUNDS, BOUNDS)):
        offset = [0, -4, (3, -2)][case // 3 % 3]
        empty_rows = EMPTY_ROWS[case % 3]
        check(problem.but(window=window, causal_offset=offset, empty_rows=empty_rows))


@pytest.mark.parametrize(
    ("M", "N", "window"),
    [
        (70, 400, (0, 0)),
        (70, 400, (64, 64)),
        (70, 400, (128, 127)),
        (130, 257, (16, -1)),
        (130, 257, (-1, 16)),
        (300, 257, (130, 5)),
    ],
)
@score_cases
def test_windows_over_several_blocks_and_tiles(
    score: str, M: int, N: int, window: tuple[int, int], rng: np.random.Generator
) -> None:
    sizes: dict[str, Any] = {"lead": (1,), "M": M, "N": N, "D": 3, "Dv": 2, "H": 3}
    check(make_problem(score, rng, **sizes, window=window, causal_offset=N - M))


@score_cases
def test_windows_that_say_the_same(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=40, N=140, causal_offset=50)
    causal = problem.but(causal=True).run()
    for window in [(-1, 0), (1000, 0)]:
        assert_same_bits(problem.but(window=window).run(), causal)
    for window in [(-1, -1), (-1, 7), (200, 0)]:
        assert_same_bits(problem.but(causal=True, window=window).run(), causal)
    assert_same_bits(problem.but(window=(-1, -1)).run(), problem.run())
    assert_same_bits(problem.but(window=[3, 5]).run(), problem.but(window=(3, 5)).run())


# ---- the same pairs, however they are told -------------------------------------------------------


def spellings(M: int, N: int) -> dict[str, tuple[dict[str, Any], Array]]:
    """Options, and the mask that they stand for, written out here."""
    i, j = np.arange(M)[:, None], np.arange(N)
    lens = np.array([N, 0, 1, 130] * M)[:M]
    return {
        "causal": ({"causal": True}, j <= i),
        "causal, offset": ({"causal": True, "causal_offset": 77}, j <= i + 77),
        "window": ({"window": (9, 150)}, (i - 9 <= j) & (j <= i + 150)),
        "window to the left": ({"window": (12, -1)}, i - 12 <= j),
        "window, offset": (
            {"window": (60, 0), "causal_offset": 140},
            (i + 80 <= j) & (j <= i + 140),
        ),
        "causal window": ({"causal": True, "window": (5, 5)}, (i - 5 <= j) & (j <= i)),
        "one length": ({"valid_lens": 131}, np.broadcast_to(j < 131, (M, N))),
        "lengths": ({"valid_lens": [lens]}, j < lens[:, None]),
        "lengths, causal": ({"valid_lens": 40, "causal": True}, (j < 40) & (j <= i)),
    }


@pytest.mark.parametrize("name", spellings(1, 1))
@score_cases
def test_masks_that_allow_the_same_pairs_give_the_same_bits(
    score: str, name: str, rng: np.random.Generator
) -> None:
    """As a rule, as a bool mask, as a bias of -inf; and no weight but where the rule is true."""
    for empty_rows in EMPTY_ROWS:
        options, mask = spellings(90, 300)[name]
        problem = make_problem(score, rng, lead=(1,), M=90, N=300, empty_rows=empty_rows)
        bias = np.where(mask, np.float32(0), -np.inf)
        by_rule, by_mask = problem.but(**options).run(), problem.but(mask=mask).run()
        assert_same_bits(by_rule, by_mask)
        by_bias = problem.but(bias=bias).run()
        assert not by_bias.pop("d_bias")[~mask].any()
        if score == "gaussian":  # whose sum for w starts at the nearest key only without a bias
            np.testing.assert_allclose(by_bias.pop("d_w"), by_mask.pop("d_w"), rtol=1e-4)
        assert_same_bits(by_bias, by_mask)
        weights = by_mask["weights"][0][mask.any(axis=1)]
        np.testing.assert_array_equal(weights > 0, mask[mask.any(axis=1)])


def test_the_window_in_the_documentation_of_jax() -> None:
    """(3, 2): of the tokens 0, ..., 9, token 6 attends to 3, 4, 5, 6, 7, 8."""
    x = np.zeros((10, 1))
    weights = attnext.dot_product_attention(x, x, x, window=(3, 2), return_weights=True)[1]
    np.testing.assert_array_equal(np.flatnonzero(weights[6]), [3, 4, 5, 6, 7, 8])


# ---- anything composed ---------------------------------------------------------------------------

SIZES_M, SIZES_N = [1, 3, 16, 17, 33, 65, 70], [1, 2, 5, 64, 127, 128, 129, 140, 257]


def random_problem(case: int) -> Problem:
    """Every score in turn; leading axes, sizes and composition at random."""
    rng = np.random.default_rng([2026, case])
    lead = [(), (2,), (1, 4), (2, 2), (2, 1, 2), (1, 2, 1, 2)][rng.integers(6)]
    M = int(rng.choice([M for M in SIZES_M if M * math.prod(lead) <= 140]))
    N = int(rng.choice(SIZES_N))
    options: dict[str, Any] = {"empty_rows": EMPTY_ROWS[rng.integers(3)]}
    if len(lead) > 1 and rng.integers(2):
        options["kv_heads"] = int(rng.choice([n for n in (1, 2, 4) if lead[-1] % n == 0]))
    dropout = rng.integers(5)
    if dropout == 1 and math.prod(lead) * M * N < 5000:
        options |= {"dropout_p": 0.3, "seed": case}
    if dropout == 2:
        options |= {"dropout_p": 0.3, "dropout_mask": rng.random((*lead, M, N)) < 0.7}
    if dropout == 3:
        options |= {"dropout_mask": rng.random((M, 1)) < 0.7}
    sizes: dict[str, Any] = {
        "M": M,
        "N": N,
        "D": int(rng.integers(1, 20)),
        "Dv": int(rng.integers(1, 20)),
    }
    masks = random_masks(rng, lead, M, N)
    return make_problem(SCORES[case % 4], rng, lead=lead, **sizes, **masks, **options)


@pytest.mark.parametrize("case", cases(80, of=240))
def test_random_composition(case: int, threads: None) -> None:
    attnext.set_num_threads([1, 2, 3, 5][case // 4 % 4])
    check(random_problem(case))


def every_mask(score: str, rng: np.random.Generator, M: int) -> Problem:
    """Over several tiles."""
    lead, N = (2, 2), 259
    bias = rng.standard_normal((2, 1, 1, N), dtype=np.float32)
    bias[rng.random(bias.shape) < 0.05] = -np.inf
    masks: dict[str, Any] = {
        "mask": random_mask(rng, 2, M, N),
        "bias": bias,
        "window": (200, 90),
        "causal_offset": [-70, 20],
        "valid_lens": rng.integers(0, N + 20, size=(2, M)),
    }
    sizes: dict[str, Any] = {"lead": lead, "M": M, "N": N, "D": 24, "Dv": 20, "H": 8, "kv_heads": 1}
    return make_problem(score, rng, **sizes, **masks, dropout_p=0.2)


@score_cases
def test_any_number_of_threads(score: str, rng: np.random.Generator, threads: None) -> None:
    """Enough work for all of them; queries in more groups than one."""
    problem = every_mask(score, rng, M=300).but(seed=3)
    attnext.set_num_threads(1)
    expected = problem.run()
    for n in (2, 3, 5):
        attnext.set_num_threads(n)
        assert_same_bits(problem.run(), expected)


@score_cases
def test_everything_at_once(score: str, rng: np.random.Generator) -> None:
    keep = rng.random((2, 2, 130, 259)) < 0.8
    check(every_mask(score, rng, M=130).but(dropout_mask=keep))


@pytest.mark.parametrize("sizes", [{"N": 0}, {"M": 0}, {"lead": (0, 2)}, {"lead": (2, 0)}], ids=str)
@score_cases
def test_masks_of_nothing(score: str, sizes: dict[str, Any], rng: np.random.Generator) -> None:
    for empty_rows in EMPTY_ROWS:
        problem = make_problem(score, rng, **{"lead": (2, 2), **sizes}, empty_rows=empty_rows)
        shape = (*problem.inputs["queries"].shape[:-1], problem.inputs["keys"].shape[-2])
        for pairs in [shape, shape[-2:], (1, shape[-1]), (1, 1, 1, 1)]:
            masks: dict[str, Any] = {
                "mask": np.ones(pairs, dtype=bool),
                "bias": np.zeros(pairs, dtype=np.float32),
            }
            check(problem.but(**masks, causal=True, window=(2, -1), causal_offset=1))


# ---- tiles that take no part ---------------------------------------------------------------------


def test_tiles_that_take_no_part_are_never_visited() -> None:
    """They lie in pages that do not exist; a process of its own, which a visit would end."""
    done = run_python(TESTS / "unvisited.py", check=False)
    assert done.returncode == 0, f"ended by {done.returncode} after {done.stdout}\n{done.stderr}"
