"""masked_softmax, its backward, and sequence_mask, against the reference and by their rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import EMPTY_ROWS, Array, assert_accurate, bits, error_of, expand_lens
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import attnext
from attnext import reference

BOUNDARIES = [127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 16383, 16384, 16385]


def textbook_softmax(X: Array, live: Array) -> Array:
    """Softmax over the last axis of the pairs that are live, in the dtype of X."""
    s = np.where(live, X, -np.inf)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def textbook_softmax_backward(grad: Array, weights: Array) -> Array:
    return weights * (grad - (grad * weights).sum(axis=-1, keepdims=True))


def check(X: Array, grad: Array, lens: Any, empty_rows: str = "uniform") -> None:
    """Forward and backward against the reference; exact zeros beyond the lengths."""
    live = np.arange(X.shape[-1]) < expand_lens(lens, X.shape[:-1], X.shape[-1])[..., None]
    full = live.any(axis=-1)
    weights = attnext.masked_softmax(X, lens, empty_rows=empty_rows)
    exact = reference.masked_softmax(X, lens, empty_rows=empty_rows)
    peer, twin = (textbook_softmax(X[full].astype(t), live[full]) for t in (np.float32, np.float64))
    assert weights.dtype == np.float32
    assert_accurate(weights, exact, error_of(peer, twin))
    assert not np.any(weights[~live & full[..., None]])

    d_X = attnext.masked_softmax_backward(grad, weights, lens, empty_rows=empty_rows)
    exact = reference.masked_softmax_backward(grad, weights, lens, empty_rows=empty_rows)
    peer, twin = (
        textbook_softmax_backward(grad[full].astype(t), weights[full].astype(t))
        for t in (np.float32, np.float64)
    )
    assert d_X.dtype == np.float32
    assert_accurate(d_X, exact, error_of(peer, twin))
    assert not np.any(d_X[~live & full[..., None]])


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, dtype=np.float32)


# ---- masked softmax ------------------------------------------------------------------------------


@pytest.mark.parametrize("N", [*range(1, 4 * 16 + 4), *BOUNDARIES])
def test_every_row_length(N: int, rng: np.random.Generator) -> None:
    lens = rng.integers(0, N + 1, size=(2, 3))
    lens[1, 2] = N
    check(3 * normal(rng, 2, 3, N), normal(rng, 2, 3, N), lens)


@pytest.mark.parametrize("M", [1, 2, 7, 64, 255, 256, 257, 1000])
def test_rows_are_cut_into_tasks(M: int, rng: np.random.Generator) -> None:
    lens = rng.integers(0, 71, size=(3, M))
    check(normal(rng, 3, M, 70), normal(rng, 3, M, 70), lens)


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
@pytest.mark.parametrize("kind", ["none", "0", "1", "part", "N", "above N", "1-D", "2-D", "full"])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3), (2, 3, 1, 2)], ids=str)
def test_lengths_in_every_shape(
    lead: tuple[int, ...], kind: str, empty_rows: str, rng: np.random.Generator
) -> None:
    M, N = 4, 6
    rows = (*lead, M)
    shapes = {"1-D": rows[:1], "2-D": (rows[0], M) if lead else rows, "full": rows}
    lens: Any = {"none": None, "0": 0, "1": 1, "part": 3, "N": N, "above N": 2**70}.get(kind)
    if kind in shapes:
        lens = rng.choice([0, 1, 3, N, N + 2], size=shapes[kind])
    X, grad = normal(rng, *rows, N), normal(rng, *rows, N)
    check(X, grad, lens, empty_rows)


@pytest.mark.parametrize("lens", [None, 0, 1, 3, 5, 9])
def test_a_single_row_takes_an_int(lens: int | None, rng: np.random.Generator) -> None:
    X, grad = normal(rng, 5), normal(rng, 5)
    row = attnext.masked_softmax(X, lens)
    assert row.shape == (5,)
    np.testing.assert_array_equal(row, attnext.masked_softmax(X[None], lens)[0])
    d_row = attnext.masked_softmax_backward(grad, row, lens)
    d_rows = attnext.masked_softmax_backward(grad[None], row[None], lens)
    np.testing.assert_array_equal(d_row, d_rows[0])


def test_empty_rows(rng: np.random.Generator) -> None:
    X, grad = normal(rng, 2, 4), normal(rng, 2, 4)
    for mode, weight, gradient in [("uniform", 0.25, 0.0), ("zero", 0, 0), ("nan", np.nan, np.nan)]:
        weights = attnext.masked_softmax(X, [0, 2], empty_rows=mode)
        np.testing.assert_array_equal(weights[0], np.full(4, weight, dtype=np.float32))
        d_X = attnext.masked_softmax_backward(grad, weights, [0, 2], empty_rows=mode)
        np.testing.assert_array_equal(d_X[0], np.full(4, gradient, dtype=np.float32))
        assert np.isfinite(weights[1]).all() and np.isfinite(d_X[1]).all()


@pytest.mark.parametrize("n", [1, 2, 3, 7, 10, 100, 1000])
def test_uniform_weights_are_one_over_n_correctly_rounded(n: int) -> None:
    weights = attnext.masked_softmax(np.zeros((1, n)), 0)
    np.testing.assert_array_equal(weights, np.full((1, n), np.float32(1 / n)))


def test_large_scores_neither_overflow_nor_vanish() -> None:
    X = np.array([[3e38, 3e38, -3e38], [1e4, 1e4 + 1, 0], [-1e4, -1e4, -1e4 - 1]])
    expected = np.array(
        [[0.5, 0.5, 0], [0.26894143, 0.73105858, 0], [0.4223188, 0.4223188, 0.1553624]]
    )
    np.testing.assert_allclose(attnext.masked_softmax(X), expected, rtol=2e-7)


def test_rows_sum_to_one(rng: np.random.Generator) -> None:
    X = 10 * normal(rng, 100, 333)
    lens = rng.integers(0, 334, size=100)
    sums = attnext.masked_softmax(X, lens).sum(axis=-1, dtype=np.float64)
    np.testing.assert_allclose(sums, 1, atol=1e-6)


def test_out(rng: np.random.Generator) -> None:
    X = normal(rng, 3, 4, 5)
    out = np.full((3, 4, 5), np.nan, dtype=np.float32)
    assert attnext.masked_softmax(X, [0, 2, 5], out=out) is out
    np.testing.assert_array_equal(bits(out), bits(attnext.masked_softmax(X, [0, 2, 5])))


@given(
    X=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=1, max_dims=4, max_side=20),
        elements=st.floats(-50, 50, width=32),
    ),
    seed=st.integers(0, 2**32),
    empty_rows=st.sampled_from(EMPTY_ROWS),
)
def test_any_scores(X: Array, seed: int, empty_rows: str) -> None:
    rng = np.random.default_rng(seed)
    rows, N = X.shape[:-1], X.shape[-1]
    shapes = [(), rows[:1], (rows[0], rows[-1]) if len(rows) > 1 else rows, rows]
    lens = rng.integers(0, N + 2, size=shapes[rng.integers(len(shapes))])
    check(X, normal(rng, *X.shape), lens, empty_rows)


# ---- sequence mask -------------------------------------------------------------------------------


def masked_copy(X: Any, valid_len: Any, value: float) -> Array:
    copy = np.array(X, dtype=np.float32)
    for i, n in enumerate(np.broadcast_to(valid_len, len(copy))):
        copy[i, int(n) :] = value
    return copy


@pytest.mark.parametrize("shape", [(1, 1), (3, 4), (2, 5, 3), (4, 3, 2, 2), (2, 17, 33)], ids=str)
@pytest.mark.parametrize("value", [0.0, -1, 2.5, np.nan, np.inf, -1e6, np.float32(7)])
def test_sequence_mask(shape: tuple[int, ...], value: float, rng: np.random.Generator) -> None:
    X = normal(rng, *shape)
    lens = rng.integers(0, shape[1] + 2, size=shape[0])
    result = attnext.sequence_mask(X, lens, value)
    np.testing.assert_array_equal(result, masked_copy(X, lens, value))
    np.testing.assert_array_equal(result, reference.sequence_mask(X, lens, value))
    assert result.dtype == np.float32 and not np.shares_memory(result, X)


def test_sequence_mask_defaults(rng: np.random.Generator) -> None:
    X = normal(rng, 3, 4)
    np.testing.assert_array_equal(attnext.sequence_mask(X, [1, 0, 9]), masked_copy(X, [1, 0, 9], 0))
    np.testing.assert_array_equal(attnext.sequence_mask(X, 2), masked_copy(X, 2, 0))
    np.testing.assert_array_equal(
        attnext.sequence_mask(X=X, valid_len=np.uint8([1, 2, 3]), value=-1),
        masked_copy(X, [1, 2, 3], -1),
    )


def test_sequence_mask_of_the_book() -> None:
    """Dive into Deep Learning, section 10.7."""
    np.testing.assert_array_equal(
        attnext.sequence_mask(np.array([[1, 2, 3], [4, 5, 6]]), np.array([1, 2])),
        [[1, 0, 0], [4, 5, 0]],
    )


def test_sequence_mask_of_many_sequences(rng: np.random.Generator) -> None:
    X, lens = normal(rng, 3000, 40, 7), rng.integers(0, 41, size=3000)
    np.testing.assert_array_equal(attnext.sequence_mask(X, lens, -1), masked_copy(X, lens, -1))
