"""The data set shipped inside the package."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
from numpy.typing import NDArray


def motorcycle() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """133 measurements of a rider's head in simulated motorcycle crashes.

    The classic data set of kernel smoothing: B. W. Silverman, "Some aspects of the spline
    smoothing approach to non-parametric regression curve fitting", Journal of the Royal
    Statistical Society B 47 (1985).

    Returns
    -------
    times : ndarray, shape (133,), float32
        Milliseconds after the impact, in ascending order; some occur more than once.
    accelerations : ndarray, shape (133,), float32
        Acceleration of the head, in g.
    """
    text = files("attnext").joinpath("data", "motorcycle.csv").read_text(encoding="utf-8")
    table = np.loadtxt(text.splitlines(), dtype=np.float32, delimiter=",", skiprows=1)
    return table[:, 0].copy(), table[:, 1].copy()
