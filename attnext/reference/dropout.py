"""Dropout of attention weights. The same seed drops the same weights as in the C code."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arguments import Array, Mask, as_mask, as_number, as_seed, shown
from .options import Options


def philox4x32(counter: ArrayLike, key: tuple[int, int]) -> NDArray[np.uint32]:
    """Return four random words per counter of four words: Philox4x32-10, Salmon et al. (2011).

    counter (..., 4), key and result consist of 32-bit words. The computation uses 64-bit words,
    because the product of two 32-bit words has 64 bits.
    """
    low32, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counter, dtype=np.uint64), -1, 0)
    k0, k1 = key
    for _ in range(10):
        a = c0 * np.uint64(0xD2511F53)
        b = c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (b >> high) ^ c1 ^ np.uint64(k0), b & low32
        c2, c3 = (a >> high) ^ c3 ^ np.uint64(k1), a & low32
        k0 = (k0 + 0x9E3779B9) % 2**32
        k1 = (k1 + 0xBB67AE85) % 2**32
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def dropout_keep(shape: tuple[int, ...], o: Options) -> Array:
    """Return the factor of each weight: 0 if dropout drops it, 1 / (1 - p) if it is kept.

    The pairs of the whole array of weights (..., M, N) are numbered in C order. Pair i is kept if
    word i % 4 of the block with counter i // 4 is at least p * 2^32. A dropout_mask replaces this
    decision.
    """
    dropout_p = o.get("dropout_p", 0.0)
    p = as_number("dropout_p", dropout_p)
    if 0 <= p <= 1:
        p = float(np.float32(p))  # the fast functions use p in float32
    if not 0 <= p < 1:
        raise ValueError(f"dropout_p is {shown(dropout_p)}, expected 0 <= dropout_p < 1")
    seed = None if o.seed is None else as_seed(o.seed)
    if o.dropout_mask is not None:
        if seed is not None:
            raise ValueError("seed and dropout_mask are both given, expected only one")
        stays = as_mask("dropout_mask", o.dropout_mask, shape, "keep", ": True means keep")
        return np.broadcast_to(stays / (1 - p), shape)
    if p == 0:
        return np.ones(shape)
    if seed is None:
        raise ValueError("seed is not given, expected 0 <= seed < 2**64 because dropout_p is not 0")
    return (_stays(math.prod(shape), p, seed) / (1 - p)).reshape(shape)


def _stays(pairs: int, p: float, seed: int) -> Mask:
    """Return True for each of the pairs 0, 1, 2, ... that is kept."""
    block = np.arange((pairs + 3) // 4, dtype=np.uint64)
    counter = np.zeros((len(block), 4), dtype=np.uint64)
    counter[:, 0] = block & np.uint64(0xFFFFFFFF)
    counter[:, 1] = block >> np.uint64(32)
    words = philox4x32(counter, (seed % 2**32, seed >> 32)).reshape(-1)[:pairs]
    return words >= math.ceil(p * 2**32)
