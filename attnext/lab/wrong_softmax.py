"""Misconceptions about lengths, masks and the softmax."""

from __future__ import annotations

import numpy as np

from attnext.lab.book import Array, Book
from attnext.lab.misconceptions import Step, wrong


def _over(*axes: int) -> Step:
    """Return a softmax over these axes."""

    def softmax(book: Book, S: Array) -> Array:
        E: Array = np.exp(S - S.max(axes, keepdims=True))
        P: Array = E / E.sum(axes, keepdims=True)
        return P

    return softmax


def _ways_over(*axes: int) -> list[dict[str, Step]]:
    """Return a softmax over these axes with padding at -inf, and with padding at -1e6."""
    return [{"softmax": _over(*axes)}, {"softmax": _over(*axes), **_sentinel(-1e6)}]


def _sentinel(value: float) -> dict[str, Step]:
    """Return the steps that set the padded scores to this value."""

    def masked(book: Book, S: Array, live: Array) -> Array:
        return np.where(live, S, value)

    return {"mask_scores": masked, "fill_empty_rows": _as_it_is}


def _as_it_is(book: Book, P: Array, live: Array) -> Array:
    return P


def _added(number: float, dtype: type = np.float64) -> Step:
    """Add a number to the padding. In float32 a large one rounds the digits of the score away."""
    return lambda book, S, live: S.astype(dtype) + np.where(live, 0, number).astype(dtype)


def _unmasked(book: Book, S: Array, live: Array) -> Array:
    return S


def _after(book: Book, P: Array, live: Array) -> Array:
    return P * live


def _set_after(value: float) -> dict[str, Step]:
    """Return the steps that set the padded weights to this value, after a softmax of all scores."""

    def finish(book: Book, P: Array, live: Array) -> Array:
        return np.where(live, P, value)

    return {"mask_scores": _unmasked, "fill_empty_rows": _as_it_is, "finish": finish}


def _without_maximum(**steps: Step) -> list[dict[str, Step]]:
    """Return the ways to compute a softmax with these steps, which mistake the maximum.

    The mask is applied before exp, or between exp and the division. A row whose exponentials are
    all 0 becomes NaN, or 0 if a tiny number is added to the sum.
    """
    unmasked = {**steps, "mask_scores": _unmasked, "masked_softmax": _mask_in_between}
    return [
        {**steps, "fill_empty_rows": _as_it_is},
        {**steps, "fill_empty_rows": _as_it_is, "total": _never_zero},
        unmasked,
        {**unmasked, "total": _never_zero},
        steps,
    ]


def _never_zero(book: Book, E: Array) -> Array:
    """Return the sum plus a tiny number, as in E / (E.sum() + 1e-9)."""
    total: Array = E.sum(-1, keepdims=True) + 1e-30
    return total


def _mask_in_between(book: Book, X: Array, valid_lens: Array | None) -> Array:
    """Multiply the exponentials by the mask, then divide by their sum."""
    E = book.exponential(X - book.maximum(X)) * book.unmasked(X, valid_lens)
    P: Array = E / book.total(E)
    return P


def _causal(book: Book, S: Array, lens: Array | None) -> Array:
    """Mask by length, and let each query attend to the keys up to its own position only."""
    live: Array = Book.unmasked(book, S, lens) & (np.tri(*S.shape[-2:]) > 0)
    return live


def _log_softmax(book: Book, S: Array) -> Array:
    shifted = S - S.max(-1, keepdims=True)
    logarithms: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return logarithms


def _sequence_mask_with(length: Step) -> Step:
    """Return a sequence_mask that uses one length for all samples."""

    def sequence_mask(book: Book, X: Array, valid_len: Array, value: float = 0) -> Array:
        return Book().sequence_mask(X, np.full(len(X), length(valid_len)), value)

    return sequence_mask


def _only_queries(book: Book, S: Array, live: Array) -> Array:
    """Mask queries: those at or beyond the length attend to nothing, the others to every key."""
    M, N = S.shape[-2:]
    counts = live.sum(-1, keepdims=True)
    return np.where(np.arange(M)[:, None] < counts, S, -1e30)


LENGTHS = [
    wrong(
        "lengths-tiled",
        lengths_of_queries=lambda b, lens, M: (
            np.tile(lens, M) if lens.ndim == 1 else lens
        ).reshape(-1, M),
    ),
    wrong(
        "lengths-transposed",
        lengths_of_queries=lambda b, lens, M: (
            np.repeat(lens, M).reshape(-1, M) if lens.ndim == 1 else lens.T.reshape(-1, M)
        ),
    ),
    wrong(
        "first-length-for-all",
        {"lengths_of_queries": lambda b, lens, M: np.full((len(lens), M), lens.flat[0])},
        {"sequence_mask": _sequence_mask_with(lambda lens: lens[0])},
    ),
    wrong(
        "longest-length-for-all",
        {"lengths_of_queries": lambda b, lens, M: np.full((len(lens), M), lens.max())},
        {"sequence_mask": _sequence_mask_with(np.max)},
    ),
    wrong(
        "one-length-for-the-entry",
        lengths_of_queries=lambda b, lens, M: np.repeat(
            lens if lens.ndim == 1 else lens[:, 0], M
        ).reshape(-1, M),
    ),
    wrong("one-too-many", is_valid=lambda b, positions, lens: positions <= lens),
    wrong("one-too-few", is_valid=lambda b, positions, lens: positions < lens - 1),
    wrong("mask-inverted", is_valid=lambda b, positions, lens: positions >= lens),
    wrong(
        "padding-in-front", is_valid=lambda b, positions, lens: positions >= positions.size - lens
    ),
    wrong(
        "lengths-ignored",
        {"lengths_of_queries": lambda b, lens, M: np.full((len(lens), M), 2**62)},
        {"sequence_mask": lambda b, X, valid_len, value=0: X},
    ),
    wrong("queries-masked", mask_scores=_only_queries, fill_empty_rows=_as_it_is),
    wrong("features-masked", sequence_axis=lambda b, X: X.ndim - 1),
    wrong(
        "mask-multiplied",
        sequence_mask=lambda b, X, valid_len, value=0: (
            X * Book().sequence_mask(np.ones(X.shape), valid_len)
            + value * (1 - Book().sequence_mask(np.ones(X.shape), valid_len))
        ),
    ),
    wrong("value-ignored", fill_value=lambda b, X, value: 0),
]

SOFTMAX = [
    wrong("softmax-over-queries", *_ways_over(-2)),
    wrong("softmax-over-batch", *_ways_over(0)),
    wrong(
        "softmax-over-all",
        {
            "softmax": lambda b, S: (
                np.exp(S - S.max(-1, keepdims=True)) / np.exp(S - S.max(-1, keepdims=True)).sum()
            )
        },
        {"softmax": lambda b, S: np.exp(S - S.max()) / np.exp(S - S.max()).sum()},
    ),
    wrong("softmax-over-matrix", *_ways_over(-2, -1)),
    wrong("no-maximum", *_without_maximum(maximum=lambda b, S: 0)),
    wrong("maximum-of-all", *_without_maximum(maximum=lambda b, S: S.max())),
    wrong(
        "maximum-over-queries",
        {"maximum": lambda b, S: S.max(-2, keepdims=True), **_sentinel(-1e6)},
        {"maximum": lambda b, S: S.max(-2, keepdims=True), "fill_empty_rows": _as_it_is},
    ),
    wrong(
        "no-keepdims",
        {"total": lambda b, E: E.sum(-1)},
        {"total": lambda b, E: E.sum(-1), "maximum": lambda b, S: 0},
        {"maximum": lambda b, S: S.max(-1)},
        {"maximum": lambda b, S: S.max(-1), "total": lambda b, E: E.sum(-1)},
    ),
    wrong("mask-positive", *map(_sentinel, (1e9, 1e6, np.inf))),
    wrong("always-causal", {"unmasked": _causal}, {"unmasked": _causal, **_sentinel(-1e6)}),
    wrong(
        "mask-with-zero",
        _sentinel(0.0),
        {"mask_scores": lambda b, S, live: S * live, "fill_empty_rows": _as_it_is},
    ),
    wrong("mask-with-one", _sentinel(1.0)),
    wrong(
        "mask-too-small",
        *map(_sentinel, (-1.0, -9.0, -10.0, -50.0, -99.0, -100.0, -999.0, -1e3)),
    ),
    wrong(
        "mask-added",
        {"mask_scores": _added(-1e9)},
        *(
            {"mask_scores": _added(by, dtype), "fill_empty_rows": _as_it_is}
            for by in (-1e9, -1e6, -1e5, -1e4, float(np.finfo(np.float32).min), -np.inf)
            for dtype in (np.float64, np.float32)
        ),
    ),
    wrong(
        "mask-after-softmax",
        {"mask_scores": _unmasked, "fill_empty_rows": _as_it_is, "finish": _after},
        _set_after(0.0),
    ),
    wrong("minus-infinity-after-softmax", *map(_set_after, (-np.inf, -1e6, -1e9))),
    wrong("empty-row-nan", fill_empty_rows=_as_it_is),
    wrong(
        "padding-in-the-softmax",
        mask_scores=_unmasked,
        fill_empty_rows=_as_it_is,
        finish=lambda b, P, live: (
            np.where(live, P, 0) / np.where(live, P, 0).sum(-1, keepdims=True)
        ),
    ),
    wrong(
        "no-exponential",
        softmax=lambda b, S: (
            np.where(np.isinf(S), 0, S) / np.where(np.isinf(S), 0, S).sum(-1, keepdims=True)
        ),
    ),
    wrong(
        "not-normalised",
        {"total": lambda b, E: 1.0},
        {"total": lambda b, E: 1.0, "maximum": lambda b, S: 0},
    ),
    wrong("no-softmax", softmax=lambda b, S: np.where(np.isinf(S), 0, S)),
    wrong("softmax-twice", finish=lambda b, P, live: b.softmax(P)),
    wrong(
        "log-softmax",
        {"finish": lambda b, P, live: np.log(P)},
        {"softmax": _log_softmax, **_sentinel(-1e6)},
        {"softmax": _log_softmax, "fill_empty_rows": _as_it_is},
    ),
    wrong(
        "sigmoid-for-softmax", softmax=lambda b, S: 1 / (1 + np.exp(-S)), fill_empty_rows=_as_it_is
    ),
    wrong(
        "hard-maximum",
        softmax=lambda b, S: (np.arange(S.shape[-1]) == S.argmax(-1)[..., None]) * 1.0,
    ),
    wrong("base-two", exponential=lambda b, S: 2.0**S),
    wrong("softmin", softmax=lambda b, S: _over(-1)(b, np.where(np.isinf(S), S, -S))),
]
