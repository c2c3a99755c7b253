"""Misconceptions about lengths, masks and the softmax."""

from __future__ import annotations

import numpy as np

from attnext.lab.book import Array, Book
from attnext.lab.misconceptions import Step, wrong


def _over(*axes: int) -> Step:
    """A softmax over these axes."""

    def softmax(book: Book, S: Array) -> Array:
        E: Array = np.exp(S - S.max(axes, keepdims=True))
        P: Array = E / E.sum(axes, keepdims=True)
        return P

    return softmax


def _ways_over(*axes: int) -> list[dict[str, Step]]:
    """The same with padding at -inf, and at -1e6."""
    return [{"softmax": _over(*axes)}, {"softmax": _over(*axes), **_sentinel(-1e6)}]


def _sentinel(value: float) -> dict[str, Step]:
    """Padding has this score, whatever the others are."""

    def masked(book: Book, S: Array, live: Array) -> Array:
        return np.where(live, S, value)

    return {"masked": masked, "empty": _as_it_is}


def _as_it_is(book: Book, P: Array, live: Array) -> Array:
    return P


def _added(number: float) -> Step:
    return lambda book, S, live: S + np.where(live, 0, number)


def _unmasked(book: Book, S: Array, live: Array) -> Array:
    return S


def _after(book: Book, P: Array, live: Array) -> Array:
    return P * live


def _set_after(value: float) -> dict[str, Step]:
    """Padding has this weight, set after a softmax of all."""

    def finish(book: Book, P: Array, live: Array) -> Array:
        return np.where(live, P, value)

    return {"masked": _unmasked, "empty": _as_it_is, "finish": finish}


def _only_queries(book: Book, S: Array, live: Array) -> Array:
    """A length counts queries: those behind it see nothing, those before it see all."""
    M, N = S.shape[-2:]
    counts = live.sum(-1, keepdims=True)
    return np.where(np.arange(M)[:, None] < counts, S, -1e30)


LENGTHS = [
    wrong(
        "lengths-tiled",
        of_each_row=lambda b, lens, M: (np.tile(lens, M) if lens.ndim == 1 else lens).reshape(
            -1, M
        ),
    ),
    wrong(
        "lengths-transposed",
        of_each_row=lambda b, lens, M: (
            np.repeat(lens, M).reshape(-1, M) if lens.ndim == 1 else lens.T.reshape(-1, M)
        ),
    ),
    wrong(
        "first-length-for-all", of_each_row=lambda b, lens, M: np.full((len(lens), M), lens.flat[0])
    ),
    wrong(
        "longest-length-for-all", of_each_row=lambda b, lens, M: np.full((len(lens), M), lens.max())
    ),
    wrong(
        "one-length-for-the-entry",
        of_each_row=lambda b, lens, M: np.repeat(lens if lens.ndim == 1 else lens[:, 0], M).reshape(
            -1, M
        ),
    ),
    wrong("one-too-many", within=lambda b, places, lens: places <= lens),
    wrong("one-too-few", within=lambda b, places, lens: places < lens - 1),
    wrong("mask-inverted", within=lambda b, places, lens: places >= lens),
    wrong("padding-in-front", within=lambda b, places, lens: places >= places.size - lens),
    wrong(
        "lengths-ignored",
        {"of_each_row": lambda b, lens, M: np.full((len(lens), M), 2**62)},
        {"sequence_mask": lambda b, X, valid_len, value=0: X},
    ),
    wrong("queries-masked", masked=_only_queries, empty=_as_it_is),
    wrong("features-masked", sequence_axis=lambda b, X: X.ndim - 1),
    wrong(
        "mask-multiplied",
        sequence_mask=lambda b, X, valid_len, value=0: (
            X * Book().sequence_mask(np.ones(X.shape), valid_len)
            + value * (1 - Book().sequence_mask(np.ones(X.shape), valid_len))
        ),
    ),
    wrong("value-ignored", filling=lambda b, X, value: 0),
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
    wrong("no-maximum", maximum=lambda b, S: 0),
    wrong("maximum-of-all", maximum=lambda b, S: np.nanmax(S)),
    wrong(
        "mask-with-zero",
        _sentinel(0.0),
        {"masked": lambda b, S, live: S * live, "empty": _as_it_is},
    ),
    wrong("mask-with-one", _sentinel(1.0)),
    wrong(
        "mask-too-small",
        *map(_sentinel, (-1.0, -9.0, -10.0, -50.0, -99.0, -100.0, -999.0, -1e3)),
    ),
    wrong(
        "mask-added",
        {"masked": _added(-1e9)},
        *({"masked": _added(by), "empty": _as_it_is} for by in (-1e9, -1e6, -np.inf)),
    ),
    wrong(
        "mask-after-softmax",
        {"masked": _unmasked, "empty": _as_it_is, "finish": _after},
        _set_after(0.0),
    ),
    wrong("minus-infinity-after-softmax", *map(_set_after, (-np.inf, -1e6, -1e9))),
    wrong("empty-row-nan", empty=_as_it_is),
    wrong(
        "padding-in-the-softmax",
        masked=_unmasked,
        empty=_as_it_is,
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
    wrong("log-softmax", finish=lambda b, P, live: np.log(P)),
    wrong(
        "hard-maximum",
        softmax=lambda b, S: (np.arange(S.shape[-1]) == S.argmax(-1)[..., None]) * 1.0,
    ),
    wrong("base-two", exponential=lambda b, S: 2.0**S),
    wrong("softmin", softmax=lambda b, S: _over(-1)(b, np.where(np.isinf(S), S, -S))),
]
