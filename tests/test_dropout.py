"""Dropout of attention weights: Philox4x32-10 by known answers, forward and backward alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiling import compile_objects, link, run
from helpers import (
    EMPTY_ROWS,
    PHILOX_KNOWN,
    SCORES,
    TESTS,
    Array,
    Once,
    Problem,
    assert_same_bits,
    bits,
    check,
    keep_pattern,
    make_problem,
    philox,
    random_masks,
)

import attnext


def pattern(shape: tuple[int, ...], p: float, seed: int) -> Array:
    """Which pairs attnext keeps: uniform attention to an identity of values shows the weights."""
    *lead, M, N = shape
    queries, keys = np.zeros((*lead, M, 1)), np.zeros((*lead, N, 1))
    values = np.broadcast_to(np.eye(N), (*lead, N, N))
    weights = attnext.dot_product_attention(queries, keys, values, dropout_p=p, seed=seed)
    expected = np.float32(1 / N) * np.float32(1 / (1 - np.float32(p)))
    np.testing.assert_allclose(weights[weights != 0], expected, rtol=3e-7)
    return np.asarray(weights != 0)


# ---- the generator -------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def c_test(once: Once, c_objects: list[Path]) -> Path:
    def make(folder: Path) -> None:
        objects = compile_objects([TESTS / "c" / "test_dropout.c"], folder)
        link(folder / "test_dropout", [*objects, *c_objects], "-pthread")

    return once("dropout", make) / "test_dropout"


@pytest.mark.parametrize(("counter", "key", "words"), PHILOX_KNOWN)
def test_known_answers_of_philox(c_test: Path, counter: str, key: str, words: str) -> None:
    assert run([str(c_test), "philox", *counter.split(), *key.split()]).strip() == words


def test_known_answer_of_the_python_twin() -> None:
    words = philox(np.arange(4), 0)
    np.testing.assert_array_equal(words, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])


@pytest.mark.parametrize("m", range(6))
def test_indices_over_two_to_the_34(c_test: Path, m: int) -> None:
    """Pair (b, m, j) of (b + 1, m + 1, N): its counter fills more than one word."""
    b, j, N, seed = 2**33 + 12345, 3, 2**20 + 1, 2**63 + 77
    index = (b * (m + 1) + m) * N + j
    kept = int(philox(np.array([index], dtype=object), seed)[0]) >= 2**31
    assert run([str(c_test), "keep", *map(str, (b, m, j, N, seed))]).strip() == str(int(kept))


def threshold_between(shape: tuple[int, ...], seed: int, pair: int) -> tuple[float, float]:
    """The two float32 probabilities around the one at which this pair is dropped."""
    word = int(philox(np.array([pair]), seed)[0])
    above = np.float32(word / 2**32)
    while math.ceil(float(above) * 2**32) <= word:
        above = np.nextafter(above, np.float32(1))
    return float(np.nextafter(above, np.float32(0))), float(above)


@pytest.mark.parametrize("pair", range(8))
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 0x299F31D0A4093822, 2**64 - 1])
def test_a_pair_is_kept_iff_its_word_is_at_least_p(seed: int, pair: int) -> None:
    """The word itself, bit by bit as far as a float32 probability can tell."""
    below, above = threshold_between((2, 4), seed, pair)
    assert pattern((2, 4), below, seed).reshape(-1)[pair]
    assert not pattern((2, 4), above, seed).reshape(-1)[pair]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 1e-6, 0.99999, float(np.float32(1) / 3)])
@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 5), (2, 3, 7), (2, 2, 17, 33), (1, 40, 300), (3, 1, 129)], ids=str
)
def test_pattern(shape: tuple[int, ...], p: float) -> None:
    for seed in (0, 12345678901234567890):
        np.testing.assert_array_equal(pattern(shape, p, seed), keep_pattern(shape, p, seed))


def test_index_runs_through_the_whole_array_of_weights() -> None:
    """The pattern of (2, 3, 4, 5) is that of a flat array, whatever the blocks and tiles."""
    flat = pattern((1, 600), 0.4, 7).reshape(-1)
    for shape in [(2, 3, 10, 10), (600, 1), (4, 150, 1), (2, 150, 2), (3, 200)]:
        np.testing.assert_array_equal(pattern(shape, 0.4, 7).reshape(-1), flat)


# ---- the rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_rate(p: float) -> None:
    kept = pattern((4, 250, 400), p, 99)
    n = kept.size
    assert abs(kept.mean() - (1 - p)) < 5 * math.sqrt(p * (1 - p) / n)


def test_seeds_differ() -> None:
    patterns = [pattern((30, 40), 0.5, seed) for seed in (0, 1, 2**32, 2**63)]
    for i, one in enumerate(patterns):
        for other in patterns[i + 1 :]:
            assert 0.4 < np.mean(one == other) < 0.6


@pytest.mark.parametrize("score", SCORES)
def test_p_0_drops_nothing(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng)
    assert_same_bits(problem.but(dropout_p=0.0, seed=3).run(), problem.run())
    assert_same_bits(problem.but(dropout_p=0, seed=None).run(), problem.run())


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("M", "N"), [(5, 9), (20, 140), (70, 33)])
def test_forward_and_backward_drop_the_same(
    score: str, M: int, N: int, rng: np.random.Generator
) -> None:
    for empty_rows in EMPTY_ROWS:
        lens = rng.integers(0, N + 1, size=(2, M))
        lens[0, 1] = 0
        options: dict[str, Any] = {"valid_lens": lens, "empty_rows": empty_rows}
        check(make_problem(score, rng, M=M, N=N, dropout_p=0.35, seed=2**40 + 3, **options))


@pytest.mark.parametrize("score", SCORES)
def test_weights_and_lse_are_those_before_dropout(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=20, N=140, valid_lens=[0, 77])
    _, *plain = problem.forward(return_weights=True, return_lse=True)
    output, *dropped = problem.but(dropout_p=0.5, seed=1).forward(
        return_weights=True, return_lse=True
    )
    for a, b in zip(plain, dropped, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))
    keep = keep_pattern(plain[0].shape, 0.5, 1)
    np.testing.assert_allclose(
        output, (plain[0] * keep * 2) @ problem.inputs["values"], rtol=1e-5, atol=1e-6
    )


def test_uniform_rows_are_dropped_from_too(rng: np.random.Generator) -> None:
    """Over all N keys, those beyond the length included."""
    problem = make_problem("dot", rng, M=6, N=11, valid_lens=[0, 0], dropout_p=0.5, seed=8)
    keep = keep_pattern((2, 6, 11), 0.5, 8)
    values, grad = problem.inputs["values"], problem.grads["grad_output"]
    np.testing.assert_allclose(problem.forward(), 2 / 11 * (keep @ values), rtol=2e-6, atol=1e-6)
    d = problem.backward()
    np.testing.assert_allclose(
        d["d_values"], 2 / 11 * (keep.swapaxes(1, 2) @ grad), rtol=2e-6, atol=1e-6
    )


def test_p_is_taken_as_float32() -> None:
    """0.1 in float32 is a little more than 0.1; both spellings drop the same pairs."""
    np.testing.assert_array_equal(
        pattern((50, 80), 0.1, 4), pattern((50, 80), float(np.float32(0.1)), 4)
    )


# ---- dropout_mask --------------------------------------------------------------------------------


@pytest.mark.parametrize(("M", "N"), [(5, 9), (20, 140), (70, 33)])
@pytest.mark.parametrize("score", SCORES)
def test_a_mask_of_the_seeds_pattern_does_what_the_seed_does(
    score: str, M: int, N: int, rng: np.random.Generator
) -> None:
    """Bit for bit, forward and backward, under masks of any kind."""
    for empty_rows in EMPTY_ROWS:
        masks = random_masks(rng, (2, 2), M, N) | {"empty_rows": empty_rows}
        problem = make_problem(score, rng, lead=(2, 2), M=M, N=N, **masks)
        by_seed = problem.but(dropout_p=0.4, seed=2**40 + 7).run()
        keep = keep_pattern((2, 2, M, N), 0.4, 2**40 + 7)
        assert_same_bits(problem.but(dropout_p=0.4, dropout_mask=keep).run(), by_seed)


def test_a_mask_by_hand() -> None:
    q, k, v = np.zeros((1, 1)), np.zeros((4, 1)), np.eye(4)
    options: dict[str, Any] = {"dropout_mask": [True, False, True, True]}
    output, weights = attnext.dot_product_attention(q, k, v, **options, return_weights=True)
    np.testing.assert_array_equal(output, [[0.25, 0, 0.25, 0.25]])
    np.testing.assert_array_equal(weights, [[0.25] * 4])
    output = attnext.dot_product_attention(q, k, v, **options, dropout_p=0.5)
    np.testing.assert_array_equal(output, [[0.5, 0, 0.5, 0.5]])
    output = attnext.dot_product_attention(q, k, v, 0, **options)  # an empty row's uniform weights
    np.testing.assert_array_equal(output, [[0.25, 0, 0.25, 0.25]])
    output = attnext.dot_product_attention(q, k, v, dropout_mask=False)
    np.testing.assert_array_equal(output, np.zeros((1, 4)))


@pytest.mark.parametrize("score", SCORES)
def test_what_is_dropped_masks_nothing(score: str, rng: np.random.Generator) -> None:
    """Weights and lse stay; a NaN among the dropped values is not a masked one."""
    problem = make_problem(score, rng, M=20, N=140)
    _, *plain = problem.forward(return_weights=True, return_lse=True)
    dropped = problem.but(dropout_mask=np.arange(140) % 2 == 0)
    _, *found = dropped.forward(return_weights=True, return_lse=True)
    for a, b in zip(plain, found, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))
    none = problem.but(dropout_mask=False, dropout_p=0.5, valid_lens=[0, 100]).run()
    assert not none["output"].any() and not none["d_values"].any()
    problem.inputs["keys"][0, 7] = np.nan
    assert np.isnan(dropped.forward()[0]).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dropout_mask": True, "seed": 1}, ValueError, "seed.*dropout_mask|dropout_mask.*seed"),
        ({"dropout_mask": True, "seed": 1, "dropout_p": 0.5}, ValueError, "dropout_mask|seed"),
        ({"dropout_mask": 1}, TypeError, "^dropout_mask .*bool"),
        ({"dropout_mask": np.ones((3, 5))}, TypeError, "^dropout_mask .*bool"),
        ({"dropout_mask": np.ones((3, 5), np.uint8)}, TypeError, "^dropout_mask .*bool"),
        ({"dropout_mask": np.ones((3, 4), bool)}, ValueError, r"^dropout_mask has shape \(3, 4\)"),
        ({"dropout_mask": np.ones((1, 2, 3, 5), bool)}, ValueError, "^dropout_mask has shape"),
        ({"dropout_mask": True, "dropout_p": 1.0}, ValueError, "^dropout_p "),
        ({"dropout_p": 0.5}, ValueError, "dropout_p|seed"),
        ({"dropout_p": 0.5, "seed": None}, ValueError, "dropout_p|seed"),
        ({"dropout_p": 0.5, "seed": -1}, ValueError, "dropout_p|seed"),
        ({"dropout_p": 0.5, "seed": 2**64}, ValueError, "dropout_p|seed"),
        ({"dropout_p": 0.5, "seed": 1.0}, TypeError, "dropout_p|seed"),
        ({"dropout_p": 0.5, "seed": True}, TypeError, "dropout_p|seed"),
        ({"dropout_p": 0.5, "seed": "1"}, TypeError, "dropout_p|seed"),
        ({"dropout_p": 0.0, "seed": -1}, ValueError, "dropout_p|seed"),
        ({"dropout_p": -0.1, "seed": 1}, ValueError, "dropout_p|seed"),
        ({"dropout_p": 1.0, "seed": 1}, ValueError, "dropout_p|seed"),
        ({"dropout_p": 1 - 1e-9, "seed": 1}, ValueError, "dropout_p|seed"),  # 1 in float32
        ({"dropout_p": np.nan, "seed": 1}, ValueError, "dropout_p|seed"),
        ({"dropout_p": np.inf, "seed": 1}, ValueError, "dropout_p|seed"),
        ({"dropout_p": "0.5", "seed": 1}, TypeError, "dropout_p|seed"),
        ({"dropout_p": True, "seed": 1}, TypeError, "dropout_p|seed"),
        ({"dropout_p": 0.5j, "seed": 1}, TypeError, "dropout_p|seed"),
        ({"dropout_p": [0.5, 0.5], "seed": 1}, ValueError, "dropout_p|seed"),
        ({"dropout_p": None, "seed": 1}, TypeError, "dropout_p|seed"),
    ],
    ids=str,
)
@pytest.mark.parametrize("call", [Problem.forward, Problem.backward])
def test_wrong_options(
    call: Callable[[Problem], Any],
    options: dict[str, Any],
    error: type[Exception],
    message: str,
    rng: np.random.Generator,
) -> None:
    with pytest.raises(error, match=message):
        call(make_problem("dot", rng, **options))


# ---- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [np.int64(5), np.uint64(5), np.array(5), np.uint8(5)])
def test_seed_may_be_any_integer_object(seed: Any, rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, dropout_p=0.5)
    np.testing.assert_array_equal(problem.but(seed=seed).forward(), problem.but(seed=5).forward())
