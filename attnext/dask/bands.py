"""The band of causal, its offset, and window: of the whole, and as a block of it has it."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnext.reference.band import OFFSET

FAR = 2**60  # further than any key is from any query, and sums of it are int64 too


def cut_band(o: dict[str, Any]) -> tuple[NDArray[np.int64] | None, bool]:
    """The offset as an array (B,) or (1,), None if there is no diagonal; whether rows may be empty.

    Takes the offset out of the options, and brings the window into reach.
    """
    offset = np.atleast_1d(np.asarray(o.pop(OFFSET), dtype=object))  # Python ints
    if not o["causal"] and o["window"] is None:
        return None, False
    left, right = map(operator.index, o["window"] or (-1, -1))
    right = 0 if o["causal"] else right
    # Small numbers that give the same band. One that is wider than FAR has at most one of its ends
    # in reach, and the offset puts that where it belongs.
    first = integers(offset - left, -FAR, FAR) if left != -1 else np.full(offset.shape, -FAR)
    last = integers(offset + right, -FAR, FAR) if right != -1 else np.full(offset.shape, FAR)
    left, right = min(left, 2 * FAR), min(right, 2 * FAR)
    o["window"] = left, right
    near = np.where((last < FAR) | (left == -1), last - max(right, 0), first + left)
    return near, left != -1 or bool((last < 0).any())


def band_of_block(a: dict[str, Any], first_query: int, first_key: int) -> None:
    """Count the offset, if there is one, from the first query and key of a block."""
    if OFFSET in a:
        # query first_query + i stands at key first_query + i + offset of all, so query i of the
        # block stands at key i + (offset + first_query - first_key) of the block
        rows = a["queries"].shape[:-1]
        offset = a[OFFSET] + (first_query - first_key)
        a[OFFSET] = np.broadcast_to(offset, rows[:1]) if len(rows) > 1 else int(offset[0])


def integers(value: ArrayLike, low: int, high: int) -> NDArray[np.int64]:
    """Integers of any size, those out of reach moved to its ends."""
    return np.array(np.clip(np.asarray(value, dtype=object), low, high), dtype=np.int64)
