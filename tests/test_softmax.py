"""masked_softmax, its backward, and sequence_mask, against the reference and by their rules."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import EMPTY_ROWS, Array, assert_accurate, bits, error_of, expand_lens
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import attnext
from attnext import reference

BOUNDARIES = [127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 16383, 16384, 16385]


def textbook_softmax(X: Array, live: Array) -> Array:
    """Softmax over the last axis of the pairs that are live, in the dtype of X."""
    s = np.where(live, X, -np.inf)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def textbook_softmax_backward(grad: Array, weights: Array) -> Array:
    return np.asarray(weights * (grad - (grad * weights).sum(axis=-1, keepdims=True)))


def check(X: Array, grad: Array, lens: Any, empty_rows: str = "uniform", mask: Any = None) -> None:
    """Forward and backward against the reference; exact zeros where no key takes part."""
    live = np.arange(X.shape[-1]) < expand_lens(lens, X.shape[:-1], X.shape[-1])[..., None]
    live = live & (True if mask is None else np.asarray(mask))
    full = np.asarray(live.any(axis=-1))
    options: dict[str, Any] = {"mask": mask, "empty_rows": empty_rows}
    weights = attnext.masked_softmax(X, lens, **options)
    exact = reference.masked_softmax(X, lens, **options)
    peer, twin = (textbook_softmax(X[full].astype(t), live[full]) for t in (np.float32, np.float64))
    assert weights.dtype == np.float32
    assert_accurate(weights, exact, error_of(peer, twin))
    assert not np.any(weights[~live & full[..., None]])

    d_X = attnext.masked_softmax_backward(grad, weights, lens, **options)
    exact = reference.masked_softmax_backward(grad, weights, lens, **options)
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


def test_every_row_length(rng: np.random.Generator) -> None:
    """By lengths; by a mask that leaves much or little, everything or nothing."""
    for N in [*range(1, 4 * 16 + 4), *BOUNDARIES]:
        X, grad = 3 * normal(rng, 2, 3, N), normal(rng, 2, 3, N)
        lens = rng.integers(0, N + 1, size=(2, 3))
        lens[1, 2] = N
        check(X, grad, lens)
        mask = rng.random((2, 3, N)) < [[[0.5], [0.1], [0.9]], [[0.02], [1], [0]]]
        check(X, grad, None, mask=mask)


@pytest.mark.parametrize("M", [1, 2, 7, 64, 255, 256, 257, 1000])
def test_rows_are_cut_into_tasks(M: int, rng: np.random.Generator) -> None:
    X, grad = normal(rng, 3, M, 70), normal(rng, 3, M, 70)
    check(X, grad, rng.integers(0, 71, size=(3, M)))
    check(X, grad, None, mask=rng.random((3, M, 70)) < 0.5)


KINDS_OF_LENGTHS = ["none", "0", "1", "part", "N", "above N", "1-D", "2-D", "full"]


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3), (2, 3, 1, 2)], ids=str)
def test_lengths_in_every_shape(lead: tuple[int, ...], rng: np.random.Generator) -> None:
    for kind, empty_rows in product(KINDS_OF_LENGTHS, EMPTY_ROWS):
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
    rows = {"uniform": (0.25, 0.0), "zero": (0.0, 0.0), "nan": (np.nan, np.nan)}
    mode: Any
    for mode, (weight, gradient) in rows.items():
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


@settings(max_examples=40)
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
    mask = rng.random([1 if rng.random() < 0.3 else size for size in X.shape]) < 0.7
    check(X, normal(rng, *X.shape), lens, empty_rows, mask if seed % 2 else None)


# ---- a mask --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lens", [None, 4, "1-D", "full"])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3), (2, 2, 1, 2)], ids=str)
def test_masks_in_every_shape_that_broadcasts(
    lead: tuple[int, ...], lens: Any, rng: np.random.Generator
) -> None:
    """Each axis there, of size 1, or missing from the front; the modes take turns."""
    rows, N = (*lead, 4), 6
    if isinstance(lens, str):
        lens = rng.integers(0, N + 2, size=rows[:1] if lens == "1-D" else rows)
    X, grad = normal(rng, *rows, N), normal(rng, *rows, N)
    shape = (*rows, N)
    for missing in range(len(shape) + 1):
        rest = shape[missing:]
        for ones in range(2 ** len(rest)):
            axes = [1 if ones >> i & 1 else size for i, size in enumerate(rest)]
            mask = rng.random(axes) < 0.6
            check(X, grad, lens, EMPTY_ROWS[(missing + ones) % 3], mask)


@pytest.mark.parametrize("mask", [True, False, np.bool_(True), np.array(False), [True]])
@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
def test_one_bool_for_all(mask: Any, empty_rows: str, rng: np.random.Generator) -> None:
    check(normal(rng, 2, 3, 5), normal(rng, 2, 3, 5), [5, 2], empty_rows, mask)


@pytest.mark.parametrize("mask", [[True, False, True, True, False], [False] * 5, None])
@pytest.mark.parametrize("lens", [None, 0, 1, 3, 9])
def test_a_single_row_under_a_mask(mask: Any, lens: Any, rng: np.random.Generator) -> None:
    X, grad = normal(rng, 5), normal(rng, 5)
    row = attnext.masked_softmax(X, lens, mask=mask)
    np.testing.assert_array_equal(row, attnext.masked_softmax(X[None], lens, mask=mask)[0])
    d_row = attnext.masked_softmax_backward(grad, row, lens, mask=mask)
    d_rows = attnext.masked_softmax_backward(grad[None], row[None], lens, mask=mask)
    np.testing.assert_array_equal(d_row, d_rows[0])
    with pytest.raises(ValueError, match="^mask has shape"):
        attnext.masked_softmax(X, mask=[[True] * 5])


LAYOUTS: dict[str, Callable[[Array], Any]] = {
    "Fortran": np.asfortranarray,
    "list": np.ndarray.tolist,
    "keys first": lambda x: np.moveaxis(np.moveaxis(x, -1, 0).copy(), 0, -1),
    "rows skipped": lambda x: np.repeat(x, 2, axis=-2)[..., ::2, :],
    "keys skipped": lambda x: np.repeat(x, 3, axis=-1)[..., ::3],
    "keys reversed": lambda x: x[..., ::-1].copy()[..., ::-1],
    "rows reversed": lambda x: x[..., ::-1, :].copy()[..., ::-1, :],
    "entries reversed": lambda x: x[::-1].copy()[::-1],
    "wider rows": lambda x: np.concatenate([x, ~x], axis=-1)[..., : x.shape[-1]],
    "read-only": lambda x: np.frombuffer(x.tobytes(), dtype=bool).reshape(x.shape),
    "one byte further": lambda x: np.frombuffer(b"\1" + x.tobytes(), bool, offset=1).reshape(
        x.shape
    ),
    "bytes of any value": lambda x: (7 * x.view(np.uint8)).view(bool),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_masks_in_every_layout(layout: str, rng: np.random.Generator) -> None:
    X, grad = normal(rng, 2, 3, 70), normal(rng, 2, 3, 70)
    for shape in [(2, 3, 70), (2, 1, 70), (3, 70), (2, 3, 1), (1, 70)]:
        mask = rng.random(shape) < 0.5
        expected = attnext.masked_softmax(X, mask=mask)
        given = LAYOUTS[layout](mask)
        found = attnext.masked_softmax(X, mask=given)
        np.testing.assert_array_equal(bits(found), bits(expected))
        d_found = attnext.masked_softmax_backward(grad, found, mask=given)
        d_X = attnext.masked_softmax_backward(grad, expected, mask=mask)
        np.testing.assert_array_equal(bits(d_found), bits(d_X))


@pytest.mark.parametrize("N", [1, 5, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300, 1025])
def test_a_mask_of_lengths_is_lengths(N: int, rng: np.random.Generator) -> None:
    """Bit for bit; and so are lengths that cut a mask, by whichever of the two."""
    X, grad = 3 * normal(rng, 3, 9, N), normal(rng, 3, 9, N)
    lens = rng.integers(0, N + 1, size=(3, 9))
    mask = np.arange(N) < lens[..., None]
    longer = np.minimum(lens + rng.integers(0, 3, size=(3, 9)), N)
    for empty_rows in EMPTY_ROWS:
        options: dict[str, Any] = {"empty_rows": empty_rows}
        weights = attnext.masked_softmax(X, lens, **options)
        d_X = attnext.masked_softmax_backward(grad, weights, lens, **options)
        for valid_lens in (None, lens, longer):
            found = attnext.masked_softmax(X, valid_lens, mask=mask, **options)
            np.testing.assert_array_equal(bits(found), bits(weights))
            d_found = attnext.masked_softmax_backward(grad, found, valid_lens, mask=mask, **options)
            np.testing.assert_array_equal(bits(d_found), bits(d_X))


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 3e38])
def test_scores_that_a_mask_forbids_are_poison(
    poison: float, empty_rows: str, rng: np.random.Generator
) -> None:
    for N in (1, 7, 16, 33, 70, 129, 300):
        X, grad = normal(rng, 4, 30, N), normal(rng, 4, 30, N)
        mask = rng.random((4, 30, N)) < 0.5
        mask[0, :2] = False
        lens = rng.integers(0, N + 1, size=4)
        options: dict[str, Any] = {"valid_lens": lens, "mask": mask, "empty_rows": empty_rows}
        live = mask & (np.arange(N) < lens[:, None, None])
        weights = attnext.masked_softmax(X, **options)
        d_X = attnext.masked_softmax_backward(grad, weights, **options)
        X[~live] = grad[~live] = poison
        found = attnext.masked_softmax(X, **options)
        np.testing.assert_array_equal(bits(found), bits(weights))
        weights[~live] = poison
        found = attnext.masked_softmax_backward(grad, weights, **options)
        np.testing.assert_array_equal(bits(found), bits(d_X))
        some = np.asarray(live.any(axis=-1))
        assert not np.any(found[~live & some[..., None]])


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf])
def test_live_scores_under_a_mask_that_are_not_finite(score: float) -> None:
    """Their row is NaN where it takes part, and still exactly 0 where it does not."""
    X = np.full((2, 40), score, dtype=np.float32)
    mask = np.arange(40) % 3 == 1
    for at in (slice(None), 4, 37):
        X[0] = 1.0
        X[0, at] = score
        weights = attnext.masked_softmax(X, mask=mask)
        if at == slice(None) or score != -np.inf:
            assert np.isnan(weights[:, mask]).all()
        else:
            assert weights[0, at] == 0 and np.isfinite(weights[0]).all()
        assert not weights[:, ~mask].any()
        d_X = attnext.masked_softmax_backward(np.ones_like(X), weights, mask=mask)
        assert np.isnan(d_X[1, mask]).all() and not d_X[:, ~mask].any()


def test_masks_that_are_no_masks(rng: np.random.Generator) -> None:
    X = normal(rng, 2, 3, 4)
    for wrong, error, message in [
        (np.ones((3, 4)), TypeError, "^mask .*bias"),
        (np.ones((3, 4), int), TypeError, "^mask .*True means attend"),
        (np.ones((3, 3), bool), ValueError, r"^mask has shape \(3, 3\), .* \(2, 3, 4\)$"),
        (np.ones((1, 2, 3, 4), bool), ValueError, r"^mask has shape \(1, 2, 3, 4\), "),
        (np.ones(0, bool), ValueError, r"^mask has shape \(0,\), "),
    ]:
        with pytest.raises(error, match=message):
            attnext.masked_softmax(X, mask=wrong)
        with pytest.raises(error, match=message):
            attnext.masked_softmax_backward(X, X, mask=wrong)


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
        attnext.sequence_mask(X=X, valid_len=np.array([1, 2, 3], dtype=np.uint8), value=-1),
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
