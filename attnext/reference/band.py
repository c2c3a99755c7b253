"""The band of keys around a query, defined by causal, causal_offset and window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arguments import as_index, as_integers, shown

OFFSET = "causal_offset"  # the option that moves the diagonal
FAR = 2**60  # larger than any distance between a query and a key; its sums still fit into int64


class Band(NamedTuple):
    """The query at position p = i + offset attends to keys p - left to p + right."""

    left: int | None  # None: no bound
    right: int | None
    offset: ArrayLike  # as given


def band_of(options: Mapping[str, Any]) -> Band:
    """Return the band that these options define."""
    left, right = as_window(options.get("window"))
    return Band(left, 0 if options.get("causal") else right, options.get(OFFSET, 0))


def as_offset(offset: ArrayLike, rows: tuple[int, ...]) -> NDArray[np.object_]:
    """Return the shift of the diagonal: Python ints, in a shape that broadcasts to rows."""
    integers = as_integers(OFFSET, offset)
    per_entry = rows[:1] if len(rows) > 1 else ()
    if integers.shape not in [(), per_entry]:
        expected = f"an int or {per_entry}" if per_entry else "an int"
        raise ValueError(f"{OFFSET} has shape {integers.shape}, expected {expected}")
    return integers.reshape(integers.shape + (1,) * (len(rows) - 1) * integers.ndim)


def as_window(window: object) -> tuple[int | None, int | None]:
    """Return the number of keys before and after the diagonal; None for no bound."""
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
    """Return an offset that defines the same band when bounds above 2 * `FAR` are reduced to that.

    At most one end of such a wide band can be within the keys; the offset keeps that end in place.
    The elements are computed in a Python loop, because sums of NumPy's object arrays do not raise
    MemoryError when there is no memory for an element.
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
    """Return integers of any size as int64, limited to +-`FAR`: no key is that far away."""
    return np.array(np.clip(np.asarray(integers, dtype=object), -FAR, FAR), dtype=np.int64)
