"""How far float32 may be from float64: bounds derived from the rounding of each operation.

A sum of n float32 products is off by at most gamma_n times the sum of their absolute values,
gamma_n = n u / (1 - n u) with u = 2^-24, in whatever order it is taken (Higham, "Accuracy and
stability of numerical algorithms", section 3.1). Every bound here is that one, applied to each
sum, product and softmax on the way. None of them is a guess, so what exceeds them is a defect.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

U = 2.0**-24  # half the distance from 1 to the next float32
TINY = 2.0**-126  # below this float32 loses digits, and then everything
HUGE = float(np.finfo(np.float32).max)


def gamma(terms: int) -> float:
    """The relative error of a sum of so many products.

    16 more for the operations next to the sum, a division, an exp, a tanh, a scale: each is off
    by a few u at most. Twice, as n u / (1 - n u) < 2 n u.
    """
    return 2 * (terms + 16) * U


def in_range(size: Array) -> Array:
    """inf where float32 overflows: nothing bounds what becomes of that."""
    return np.where(size > HUGE, np.inf, size)


def rounded(size: Array, terms: int) -> Array:
    """The error of a sum of so many products whose absolute values sum to `size`."""
    return gamma(terms) * in_range(size) + (terms + 16) * TINY


def relative_error(scores: Array, score_error: Array, live: NDArray[np.bool_]) -> Array:
    """The relative error of the softmax weights of each row, (..., M, 1), given the scores'.

    Scores that are off by delta change exp(score), and the sum of the row, by a factor between
    exp(-delta) and exp(delta). The subtraction of the largest score rounds too.
    """
    finite = live & np.isfinite(scores)  # the weight of -inf is 0, and +inf makes the row NaN
    of_row = np.where(finite, score_error + 4 * U * np.abs(scores), 0.0)
    delta = np.max(of_row, axis=-1, keepdims=True, initial=0.0)
    relative: Array = np.expm1(2 * delta) + np.exp(2 * delta) * gamma(scores.shape[-1])
    return relative


def largest_difference(function: str, name: str, got: Any, exact: Array, bound: Array) -> float:
    """How far a fast result is from its float64 steps; raises where it is farther than the bound.

    NaN and infinities have to agree, and where there is no bound there is nothing to compare.
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
            f"{name} of attnext.{function} is {got[at]:.9g} at index {at}, but the steps give "
            f"{exact[at]:.9g}, and rounding allows a difference of {bound[at]:.2g}: this is a "
            "defect of attnext, please report it"
        )
    return float(np.max(difference[~same & ~beyond], initial=0.0))
