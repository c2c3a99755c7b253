"""The numbers that a verdict shows: the matrix with the largest error, and the inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnext.lab.book import Array
from attnext.lab.words import PHRASES, said

if TYPE_CHECKING:
    from attnext.lab.verdict import Wrong

SIDE = 8  # rows and columns of a matrix that are shown
NUMBERS = 24  # of an input that is written out


class Compared(NamedTuple):
    """The expected matrix, the student's, and their difference as a share of the largest one."""

    title: str  # which matrix of which array
    expected: list[list[str]]
    got: list[list[str]]
    heat: Array  # from 0 (equal) to 1 (the largest difference)


def compared(wrong: Wrong) -> Compared | None:
    """Return the matrix with the largest error; None if there are no numbers to compare."""
    if wrong.got is None or wrong.off is None:
        return None
    expected, got = wrong.expected[wrong.part], wrong.got[wrong.part]
    with np.errstate(all="ignore"):
        off = np.where(wrong.off, np.abs(got - expected), 0)
    off = np.where(wrong.off & ~np.isfinite(off), np.inf, off)
    at = np.unravel_index(np.argmax(off), off.shape)
    lead = tuple(int(i) for i in at[:-2])
    pair = [np.atleast_2d(x[lead]) for x in (expected, got, off)]
    # the 8 by 8 corner that has the largest error
    row, column = (max(0, int(i) + 1 - SIDE) for i in (0, *map(int, at))[-2:])
    expected, got, off = (x[row : row + SIDE, column : column + SIDE] for x in pair)
    finite = off[np.isfinite(off)]
    heat = np.where(np.isfinite(off), off / (np.max(finite, initial=0) or 1), 1)
    title = wrong.returns[wrong.part] + (f" [{', '.join(map(str, lead))}]" if lead else "")
    texts = _texts(np.stack([expected, got]))
    return Compared(title, texts[0], texts[1], heat)


def inputs(wrong: Wrong) -> list[str]:
    """Return the arguments as code, small ones in full."""
    return [f"{name} = {_written(x)}" for name, x in wrong.case.items()]


def heading(wrong: Wrong, key: str) -> str:
    return said(PHRASES, key, wrong.lang)


def _written(x: Any) -> str:
    if not isinstance(x, np.ndarray):
        return repr(x)
    if x.size > NUMBERS:
        return f"array of shape {x.shape}"
    return str(np.round(x, 4).tolist())


def _texts(numbers: Array) -> list[list[list[str]]]:
    """Return the numbers as texts in one format."""
    finite = np.abs(numbers[np.isfinite(numbers)])
    largest = float(np.max(finite, initial=0))
    pattern = ".4f" if 1e-2 <= largest < 1e3 else ".3e"
    if largest < 1e5 and np.array_equal(finite, np.round(finite)):
        pattern = ".0f"
    texts = np.array([format(x, pattern) for x in numbers.ravel()], dtype=object)
    texts[numbers.ravel() == 0] = "0"
    result: list[list[list[str]]] = texts.reshape(numbers.shape).tolist()
    return result
