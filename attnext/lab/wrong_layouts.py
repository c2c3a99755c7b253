"""Misconceptions about the order of numbers in memory, about positions, and about examples."""

from __future__ import annotations

import numpy as np

from attnext.lab.book import Array, Book
from attnext.lab.misconceptions import wrong

HEADS = [
    wrong(
        "heads-not-moved",
        {"transpose_qkv": lambda b, X, h: X.reshape(len(X) * h, X.shape[1], -1)},
        {"transpose_output": lambda b, X, h: X.reshape(len(X) // h, X.shape[1], -1)},
    ),
    wrong(
        "heads-split-as-d-heads",
        {"split": lambda b, X, h: X.reshape(*X.shape[:2], -1, h).swapaxes(-1, -2)},
        {
            "transpose_output": lambda b, X, h: (
                X.reshape(-1, h, *X.shape[1:])
                .transpose(0, 2, 3, 1)
                .reshape(len(X) // h, X.shape[1], -1)
            )
        },
    ),
    wrong(
        "heads-before-batch",
        {"merge": lambda b, X: X.swapaxes(0, 1).reshape(-1, *X.shape[2:])},
        {"unmerge": lambda b, X, h: X.reshape(h, -1, *X.shape[1:]).swapaxes(0, 1)},
    ),
    wrong("heads-not-merged", merge=lambda b, X: X),
    wrong("heads-behind-places", transpose_qkv=lambda b, X, h: b.split(X, h)),
    wrong("places-and-features-swapped", forward_axes=lambda b: (0, 2, 3, 1)),
    wrong("places-not-moved-back", backward_axes=lambda b: (0, 1, 2, 3)),
    wrong(
        "heads-averaged",
        {"transpose_output": lambda b, X, h: b.unmerge(X, h).mean(1)},
        {"transpose_output": lambda b, X, h: b.unmerge(X, h).sum(1)},
    ),
]

POSITIONS = [
    wrong("sines-then-cosines", interleave=lambda b, s, c: np.concatenate([s, c], axis=-1)),
    wrong("sine-and-cosine-swapped", interleave=lambda b, s, c: Book().interleave(c, s)),
    wrong("only-sines", cosines=lambda b, angles: np.sin(angles)),
    wrong("exponent-halved", frequencies=lambda b, even, n: 1 / 10000 ** (even / 2 / n)),
    wrong("exponent-doubled", frequencies=lambda b, even, n: 1 / 10000 ** (2 * even / n)),
    wrong(
        "a-frequency-for-each-column",
        {"positional_encoding": lambda b, steps, n: _each_column(steps, np.arange(n) / n)},
        {"positional_encoding": lambda b, steps, n: _each_column(steps, 2 * np.arange(n) / n)},
    ),
    # Angles of up to 1e5 radians: float32 rounds them by up to 0.01.
    wrong("frequency-inside-out", blur=1e3, frequencies=lambda b, even, n: 10000 ** (even / n)),
    wrong("one-frequency", frequencies=lambda b, even, n: np.ones(len(even))),
    wrong("positions-from-one", positions=lambda b, steps: np.arange(1, steps + 1)),
    wrong("positions-as-fractions", positions=lambda b, steps: np.arange(steps) / steps),
    wrong(
        "another-base",
        *[
            {"frequencies": lambda b, even, n, base=base: 1 / base ** (even / n)}
            for base in (2.0, 10.0, 1000.0, 1024.0, 1e5, 5e5, 1e6, 1e7)
        ],
    ),
    wrong(
        "encoding-transposed",
        positional_encoding=lambda b, steps, n: Book().positional_encoding(steps, n).T,
    ),
]

EXAMPLES = [
    wrong("itself-kept", other_examples=lambda b, n: np.arange(n)[:, None]),
    wrong("nothing-left-out", other_examples=lambda b, n: np.tile(np.arange(n), (n, 1))),
    wrong(
        "same-one-left-out",
        {"other_examples": lambda b, n: np.tile(np.arange(n - 1), (n, 1))},
        {"other_examples": lambda b, n: np.tile(np.arange(1, n), (n, 1))},
    ),
    wrong(
        "left-out-in-columns",
        leave_one_out=lambda b, x, y: tuple(a.T for a in Book().leave_one_out(x, y)),
    ),
    wrong(
        "columns-first",
        other_examples=lambda b, n: np.repeat(np.arange(n), n)[
            ~np.eye(n, dtype=bool).ravel()
        ].reshape(n, n - 1),
    ),
    wrong("going-round", other_examples=lambda b, n: (np.arange(n)[:, None] + np.arange(1, n)) % n),
    wrong(
        "neighbour-left-out",
        *[
            {"other_examples": lambda b, n, by=by: np.roll(Book().other_examples(n), by, axis=0)}
            for by in (1, -1)
        ],
    ),
]


def _each_column(steps: int, exponents: Array) -> Array:
    angles = np.arange(steps)[:, None] / 10000**exponents
    encoding: Array = np.sin(angles)
    encoding[:, 1::2] = np.cos(angles[:, 1::2])
    return encoding
