"""Error bounds of float32 results, derived from the rounding of each operation.

The error of a sum of n float32 products is at most gamma_n times the sum of their absolute values,
with gamma_n = n u / (1 - n u) and u = 2^-24, for any order of the sum (Higham, "Accuracy and
stability of numerical algorithms", section 3.1). The bounds here apply this rule to each sum,
product and softmax. A result that exceeds its bound is therefore a defect.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

U = 2.0**-24  # half the distance from 1 to the next float32
TINY = 2.0**-126  # below this, float32 numbers lose digits or become 0
HUGE = float(np.finfo(np.float32).max)


def gamma(terms: int) -> float:
    """Return the bound of the relative error of a sum of products with this number of terms.

    16 terms are added for other operations such as a division, exp, tanh or scale, each with an
    error of a few u. The factor 2 is there because n u / (1 - n u) < 2 n u.
    """
    return 2 * (terms + 16) * U


def in_range(size: Array) -> Array:
    """Return size, with inf where float32 overflows, because the error has no bound there."""
    return np.where(size > HUGE, np.inf, size)


def rounded(size: Array, terms: int) -> Array:
    """Return the error bound of a sum of products whose absolute values sum to `size`."""
    return gamma(terms) * in_range(size) + (terms + 16) * TINY


def relative_error(scores: Array, score_error: Array, live: NDArray[np.bool_]) -> Array:
    """Return the relative error of the softmax weights of each row, (..., M, 1).

    An error delta of the scores changes exp(score), and the sum of the row, by a factor between
    exp(-delta) and exp(delta). Subtracting the largest score adds a rounding error.
    """
    finite = live & np.isfinite(scores)  # the weight of -inf is 0, and +inf makes the row NaN
    of_row = np.where(finite, score_error + 4 * U * np.abs(scores), 0.0)
    delta = np.max(of_row, axis=-1, keepdims=True, initial=0.0)
    relative: Array = np.expm1(2 * delta) + np.exp(2 * delta) * gamma(scores.shape[-1])
    return relative


def largest_difference(function: str, name: str, got: Any, exact: Array, bound: Array) -> float:
    """Return the largest difference between a float32 result and its float64 steps.

    Raises RuntimeError if a difference exceeds its bound. NaN and infinities must be equal.
    Elements without a finite bound are not compared.
    """
    got = np.asarray(got, np.float64)
    with np.errstate(all="ignore"):
        difference = np.abs(got - exact)
        same = (got == exact) | (np.isnan(got) & np.isnan(exact))
        beyond = ~np.isnan(exact) & ~(np.abs(exact) + bound <= HUGE)
    wrong = ~(same | beyond | (difference <= bound))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise RuntimeError(
            f"{name} of attnext.{function} is {got[at]:.9g} at index {at}, expected "
            f"{exact[at]:.9g} within {bound[at]:.2g}, the rounding error of float32: this is a "
            "defect of attnext, please report it"
        )
    return float(np.max(difference[~same & ~beyond], initial=0.0))
