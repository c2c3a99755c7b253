"""Compare the arrays that a function returned with others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Answer = tuple[NDArray[Any], ...]  # what a function returns, one array or several

# What float32 rounds by, and how many times as far a right answer may be off: a sum of n products
# in another order is off by up to n roundings, and the cases have n < 64.
ROUNDING, ROUNDINGS = 2.0**-24, 64


def same(got: Answer, wanted: Answer, tolerance: list[float], relative: float = 0.0) -> bool:
    """True if shapes, NaN and infinities are the same, and the numbers are within the tolerance."""
    return len(got) == len(wanted) and all(
        a.shape == b.shape and not np.any(differs(a, b, t, relative))
        for a, b, t in zip(got, wanted, tolerance, strict=True)
    )


def differs(
    got: NDArray[Any], wanted: NDArray[Any], tolerance: float, relative: float = 0.0
) -> NDArray[np.bool_]:
    """Return where two arrays of one shape differ by more than tolerance + relative * |wanted|."""
    with np.errstate(all="ignore"):
        near = np.abs(got - wanted) <= tolerance + relative * np.abs(wanted)
        equal = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    finite = np.isfinite(wanted)  # an infinite bound would accept every number
    apart: NDArray[np.bool_] = ~((near & finite) | equal)
    return apart
