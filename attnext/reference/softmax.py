"""Softmax of one row, and masked softmax of all rows, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arguments import Array, as_array, as_scores, check_empty_rows, deliver
from .masks import pairs_that_take_part
from .options import OTHER, Options


def softmax(s: Array) -> tuple[Array, float]:
    """Return the weights w (n,) of the scores s (n,), n >= 1, and lse = log(sum(exp(s)))."""
    largest = float(np.max(s))
    if math.isinf(largest):  # all scores are -inf, or one is +inf: inf - inf is NaN
        return np.full_like(s, np.nan), largest
    e = np.exp(s - largest)  # exp(-largest) cancels in e / total; exp cannot overflow
    total = np.sum(e)
    return e / total, float(largest + np.log(total))


def softmax_backward(d_w: Array, d_lse: Array | float, w: Array) -> Array:
    """Return the gradient d_s (n,) of the scores."""
    # forward was: w = exp(s) / sum(exp(s)),  so dw_i / ds_j = w_i * ([i = j] - w_j)
    #              lse = log(sum(exp(s))),    so dlse / ds_j = w_j
    return w * (d_w - np.sum(w * d_w)) + w * d_lse


def empty_row_weight(N: int, empty_rows: str) -> float:
    """Return the weight of each key in a row whose keys are all masked."""
    return {"uniform": 1 / max(N, 1), "zero": 0.0, "nan": math.nan}[empty_rows]


def _rows(
    shape: tuple[int, ...], valid_lens: ArrayLike | None, mask: ArrayLike | None, empty_rows: str
) -> Iterator[tuple[tuple[int, ...], NDArray[np.bool_]]]:
    """Yield the index of every row, and a bool array that is True for its unmasked keys."""
    *rows, N = shape
    takes_part = pairs_that_take_part(tuple(rows), N, Options(valid_lens, mask=mask))
    check_empty_rows(empty_rows)
    return ((row, takes_part[row]) for row in np.ndindex(*rows))


@OTHER.spelled_out
def masked_softmax(
    X: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    mask: ArrayLike | None = None,
    empty_rows: str = "uniform",
    out: Array | None = None,
) -> Array:
    """Softmax over the last axis, restricted to the unmasked keys.

    Notes
    -----
    ``weights[j] = exp(X[j]) / sum_i exp(X[i])``, where i and j run over the unmasked keys. This is
    ``masked_softmax`` of Dive into Deep Learning (11.3 in English, 10.3 in Chinese; Zhang et al.),
    except that masked scores are -inf here and -1e6 there.

    Examples
    --------
    >>> from attnext import reference
    >>> reference.masked_softmax([0.9, 0.8, 0.3, 0.4], 3).round(4)
    array([0.4076, 0.3688, 0.2237, 0.    ])
    """
    x = as_scores("X", X)
    rows = _rows(x.shape, valid_lens, mask, empty_rows)
    weights = np.zeros_like(x)
    with np.errstate(all="ignore"):
        for row, live in rows:
            if live.any():
                weights[row][live], _ = softmax(x[row][live])
            else:
                weights[row] = empty_row_weight(x.shape[-1], empty_rows)
    return deliver(weights, out, x)


@OTHER.spelled_out
def masked_softmax_backward(
    grad_output: ArrayLike,
    weights: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    mask: ArrayLike | None = None,
    empty_rows: str = "uniform",
) -> Array:
    """Gradient of `masked_softmax` with respect to its scores.

    Notes
    -----
    ``dX[j] = weights[j] * (g[j] - sum_i weights[i] * g[i])`` with ``g = grad_output``.

    Examples
    --------
    >>> from attnext import reference
    >>> reference.masked_softmax_backward([1, 2, 3], [0.25, 0.75, 0], 2)
    array([-0.1875,  0.1875,  0.    ])
    """
    w = as_scores("weights", weights)
    d_w = as_array("grad_output", grad_output, w.shape)
    rows = _rows(w.shape, valid_lens, mask, empty_rows)
    dX = np.zeros_like(w)
    with np.errstate(all="ignore"):
        for row, live in rows:
            if live.any():
                # forward was: weights[row][live] = softmax(x[row][live])
                dX[row][live] = softmax_backward(d_w[row][live], 0.0, w[row][live])
            elif empty_rows == "nan":
                dX[row] = np.nan
    return dX
