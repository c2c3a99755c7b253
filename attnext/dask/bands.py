"""Causal masks and windows, for the whole array and for one block."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnext.reference.band import FAR, OFFSET, band_of, in_reach, near


def cut_band(o: dict[str, Any]) -> tuple[NDArray[np.int64] | None, bool]:
    """Return the offset as an array (B,) or (1,), and whether rows may be empty.

    The offset is None without a causal mask or a window. It is removed from the options, and the
    bounds of the window are clipped.
    """
    left, right, offset = band_of(o)
    offset = np.atleast_1d(np.asarray(offset, dtype=object))  # Python ints
    del o[OFFSET]
    if left is None and right is None:
        return None, False
    o["window"] = tuple(-1 if bound is None else min(bound, 2 * FAR) for bound in (left, right))
    empty = right is not None and bool((in_reach(offset + right) < 0).any())
    return near(offset, left, right), left is not None or empty


def band_of_block(a: dict[str, Any], first_query: int, first_key: int) -> None:
    """Make the offset, if there is one, relative to the first query and key of a block."""
    if OFFSET in a:
        # Query first_query + i is at key first_query + i + offset of the whole array. So query i of
        # the block is at key i + (offset + first_query - first_key) of the block.
        rows = a["queries"].shape[:-1]
        offset = a[OFFSET] + (first_query - first_key)
        a[OFFSET] = np.broadcast_to(offset, rows[:1]) if len(rows) > 1 else int(offset[0])


def integers(value: ArrayLike, low: int, high: int) -> NDArray[np.int64]:
    """Return integers of any size, clipped to the range from low to high."""
    return np.array(np.clip(np.asarray(value, dtype=object), low, high), dtype=np.int64)
