"""Who attends to whom: the masks of the cases, and whether the cost follows the pairs.

The second is a family of cases of its own (``run.py --masks``): one shape under every kind of
mask, beside the dense call. Printed of each: the share of the pairs that take part, the share of
the tiles (32 queries by 128 keys) that hold any, the time as a part of the dense time, and what
the target allows: 1.1 times the share of the pairs plus one tile of keys for each query. A mask
that leaves no tile empty, like the random one, cannot meet it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .cases import Case

Array = np.ndarray[Any, Any]
# Arguments of our functions, and the same as a bool mask that broadcasts to (*lead, M, N).
Given = tuple[dict[str, Any], Array | None]
Maker = Callable[[tuple[int, ...], int, int], Given]

QUERIES, KEYS = 32, 128  # of a tile


def none(lead: tuple[int, ...], M: int, N: int) -> Given:
    """Everybody to everybody."""
    return {}, None


def per_entry(lens: Array, lead: tuple[int, ...], N: int) -> Array:
    """Lengths (B,) as a mask (B, 1, ..., N)."""
    mask: Array = np.arange(N) < lens.reshape(-1, *[1] * len(lead), 1)
    return mask


def book(lead: tuple[int, ...], M: int, N: int) -> Given:
    """The valid lengths of the book's example."""
    lens = np.array([2, 6])
    return {"valid_lens": lens}, per_entry(lens, lead, N)


def lengths(lead: tuple[int, ...], M: int, N: int) -> Given:
    """A padded batch: any length is as likely as any other."""
    lens = np.random.default_rng(3).integers(1, N + 1, size=lead[0])
    return {"valid_lens": lens}, per_entry(lens, lead, N)


def padding_mask(lead: tuple[int, ...], M: int, N: int) -> Given:
    """The same batch, its padding written out as a mask."""
    mask = lengths(lead, M, N)[1]
    return {"mask": mask}, mask


def causal(lead: tuple[int, ...], M: int, N: int) -> Given:
    """Each query attends to itself and what came before."""
    return {"causal": True}, np.tri(M, N, dtype=bool)


def causal_mask(lead: tuple[int, ...], M: int, N: int) -> Given:
    """The same, written out as a mask."""
    mask = np.tri(M, N, dtype=bool)
    return {"mask": mask}, mask


def window(lead: tuple[int, ...], M: int, N: int) -> Given:
    """64 keys before each query and 64 after it."""
    distance = np.arange(M)[:, None] - np.arange(N)
    return {"window": (64, 64)}, np.abs(distance) <= 64


def documents(lead: tuple[int, ...], M: int, N: int) -> Given:
    """Four documents packed into one sequence, each attending to itself."""
    mask = (np.arange(M) * 4 // M)[:, None] == np.arange(N) * 4 // N
    return {"mask": mask}, mask


def random_pairs(lead: tuple[int, ...], M: int, N: int) -> Given:
    """Four pairs in ten, anywhere: no tile can be left out."""
    mask = np.random.default_rng(4).random((M, N)) < 0.4
    return {"mask": mask}, mask


MASKS: dict[str, Maker] = {
    "none": none,
    "book": book,
    "causal": causal,
    "causal, as a mask": causal_mask,
    "window (64, 64)": window,
    "lengths": lengths,
    "lengths, as a mask": padding_mask,
    "4 documents": documents,
    "random .4": random_pairs,
}


def mask_cases(B: int, heads: int, N: int, D: int) -> list[Case]:
    """The family: dot-product attention of one shape under every mask."""
    names = [name for name in MASKS if name not in ("none", "book")]
    return [Case(name, "dot", (B, heads), N, N, D, mask=name) for name in names]


def share_of_tiles(pairs: Array) -> float:
    """How many of the tiles hold a pair; pairs (..., M, N)."""
    M, N = pairs.shape[-2:]
    blocks = np.logical_or.reduceat(pairs, np.arange(0, M, QUERIES), axis=-2)
    return float(np.logical_or.reduceat(blocks, np.arange(0, N, KEYS), axis=-1).mean())


def allowed_share(share: float, N: int) -> float:
    """The part of the dense time that the target allows for this share of the pairs."""
    return 1.1 * share + KEYS / N
