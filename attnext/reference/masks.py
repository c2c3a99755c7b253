"""Masks: which keys each query attends to, and sequence_mask."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arguments import Array, Mask, as_array, as_bias, as_lens, as_mask, as_number
from .band import as_offset, band_of, in_reach
from .options import OTHER, Options


def pairs_that_take_part(rows: tuple[int, ...], N: int, o: Options) -> Mask:
    """Return a bool array (*rows, N), True where lengths, mask, bias and band all allow a pair.

    ``rows`` is (..., M), the shape of the queries without their features. Only this function
    combines the different kinds of masks; the loop over the queries uses its result.
    """
    takes_part = np.ones((*rows, N), dtype=bool)
    if o.valid_lens is not None:
        lens = broadcast_lens(as_lens("valid_lens", o.valid_lens, N), rows)
        takes_part &= np.arange(N) < lens[..., None]
    if o.mask is not None:
        hint = ": to add floats to the scores, use the argument bias"
        takes_part &= as_mask("mask", o.mask, takes_part.shape, "attend", hint)
    if o.bias is not None:
        takes_part &= as_bias(o.bias, takes_part.shape) != -np.inf
    if rows:  # a single row of shape (N,) has no diagonal
        takes_part &= _near(rows, N, o)
    return takes_part


def _near(rows: tuple[int, ...], N: int, o: Options) -> Mask:
    """Return True for the keys inside the band of each query: (M, N) or (B, 1, ..., M, N)."""
    band = band_of(vars(o))
    offset = as_offset(band.offset, rows)
    query, key = np.arange(rows[-1]), np.arange(N)

    def at(shift: int) -> NDArray[np.int64]:  # (M, 1) or (B, 1, ..., M, 1)
        return (query + in_reach(offset + shift))[..., None]

    near = np.ones((rows[-1], N), dtype=bool)
    if band.left is not None:
        near = near & (at(-band.left) <= key)
    if band.right is not None:
        near = near & (key <= at(band.right))
    return near


def broadcast_lens(lens: NDArray[np.int64], rows: tuple[int, ...]) -> NDArray[np.int64]:
    """Insert axes of size 1 into lens, so that it broadcasts to rows = (..., M)."""
    ones = (1,) * len(rows)
    accepted = {(): (), rows[:1]: rows[:1] + ones[1:]}  # one for all; one per batch element
    if len(rows) > 1:  # (B, M): one per query, shared by the axes between them (heads)
        accepted[rows[0], rows[-1]] = (rows[0], *ones[2:], rows[-1])
    accepted[rows] = rows
    if lens.shape not in accepted:
        expected = " or ".join(str(shape) for shape in accepted if shape) or "an int"
        raise ValueError(f"valid_lens has shape {lens.shape}, expected {expected}")
    return lens.reshape(accepted[lens.shape])


@OTHER.spelled_out
def sequence_mask(X: ArrayLike, valid_len: ArrayLike, value: ArrayLike = 0.0) -> Array:
    """Copy a batch of sequences and overwrite the steps beyond each sequence's length.

    Notes
    -----
    The function follows ``sequence_mask`` of Dive into Deep Learning (11.3 in English, 10.3 in
    Chinese; Zhang et al.), but does not change `X`.

    Examples
    --------
    >>> from attnext import reference
    >>> reference.sequence_mask([[1, 2, 3], [4, 5, 6]], [1, 2], value=-1)
    array([[ 1., -1., -1.],
           [ 4.,  5., -1.]])
    """
    copy = as_array("X", X).copy()
    if copy.ndim < 2:
        raise ValueError(f"X has shape {copy.shape}, expected two axes or more: (B, T, ...)")
    B, T = copy.shape[:2]
    lens = as_lens("valid_len", valid_len, T)
    if lens.shape not in [(), (B,)]:
        raise ValueError(f"valid_len has shape {lens.shape}, expected {(B,)}")
    fill = as_number("value", value)
    for i, length in enumerate(np.broadcast_to(lens, B)):
        copy[i, length:] = fill
    return copy
