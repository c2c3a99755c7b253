"""The band of keys near a query: what causal, its offset and window say together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arguments import as_index, as_integers, shown

OFFSET = "causal_offset"  # the option that moves the diagonal
FAR = 2**60  # further than any key is from any query, and sums of it are int64 too


class Band(NamedTuple):
    """Query i stands at key i + offset, and attends to so many keys on either side of that."""

    left: int | None  # None: no bound
    right: int | None
    offset: ArrayLike  # as given


def band_of(options: Mapping[str, Any]) -> Band:
    """What these options say."""
    left, right = as_window(options.get("window"))
    return Band(left, 0 if options.get("causal") else right, options.get(OFFSET, 0))


def as_offset(offset: ArrayLike, rows: tuple[int, ...]) -> NDArray[np.object_]:
    """How far the diagonal is shifted: Python ints, in a shape that broadcasts to rows."""
    integers = as_integers(OFFSET, offset)
    per_entry = rows[:1] if len(rows) > 1 else ()
    if integers.shape not in [(), per_entry]:
        expected = f"an int or {per_entry}" if per_entry else "an int"
        raise ValueError(f"{OFFSET} has shape {integers.shape}, expected {expected}")
    return integers.reshape(integers.shape + (1,) * (len(rows) - 1) * integers.ndim)


def as_window(window: object) -> tuple[int | None, int | None]:
    """How many keys before and after the diagonal are seen; None for no bound."""
    if window is None:
        return None, None
    if not isinstance(window, tuple | list):
        expected = "a pair of ints (left, right)"
        raise TypeError(f"window must be {expected}, got {type(window).__name__}")
    bounds = [as_index(f"window[{i}]", bound) for i, bound in enumerate(window)]
    if len(bounds) != 2 or min(bounds) < -1:
        expected = "a pair (left, right) of ints of 0 or more, or -1 for no bound"
        raise ValueError(f"window is {shown(window)}, expected {expected}")
    left, right = (None if bound == -1 else bound for bound in bounds)
    return left, right


def near(offset: ArrayLike, left: int | None, right: int | None) -> NDArray[np.int64]:
    """The offset that gives the same band if a bound further than 2 * `FAR` is moved there.

    A band that wide has at most one of its ends in reach; the offset puts that where it belongs.
    One after another: NumPy's sums of objects do not say when there is no memory for one.
    """
    exact = np.array(offset, dtype=object)  # Python ints, of any size
    moved = []
    for x in exact.ravel().tolist():
        first = -FAR if left is None else max(-FAR, min(x - left, FAR))
        last = FAR if right is None else max(-FAR, min(x + right, FAR))
        if right is not None and (last < FAR or left is None):
            moved.append(last - min(right, 2 * FAR))
        else:
            moved.append(first + min(left or 0, 2 * FAR))
    return np.array(moved, np.int64).reshape(exact.shape)


def in_reach(integers: ArrayLike) -> NDArray[np.int64]:
    """Integers of any size as int64: beyond all keys it makes no difference how far."""
    return np.array(np.clip(np.asarray(integers, dtype=object), -FAR, FAR), dtype=np.int64)
