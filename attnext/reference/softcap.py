"""A bound on the scores: s becomes c * tanh(s / c), which is between -c and c."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Array, as_positive
from .score import Score


class Softcapped:
    """A score with a bound is again a score: c * tanh(score(q, k) / c)"""

    def __init__(self, score: Score, c: float) -> None:
        self.score, self.c = score, c
        self.parameters, self.scale = score.parameters, score.scale

    def at(self, batch: tuple[int, ...]) -> Softcapped:
        return Softcapped(self.score.at(batch), self.c)

    def forward(self, q: Array, k: Array) -> Array:
        s: Array = self.c * np.tanh(self.score.forward(q, k) / self.c)
        return s

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        # forward was: s = c * tanh(x), x = score(q, k) / c
        # The slope of tanh is 1 - tanh(x)^2 = 1 / cosh(x)^2. The second form loses no digits
        # where tanh(x) is close to 1
        x = self.score.forward(q, k) / self.c
        return self.score.backward(d_s / np.cosh(x) ** 2, q, k)


def under_cap(score: Score, softcap: ArrayLike | None) -> Score:
    """Return the score, bounded by softcap unless softcap is None."""
    return score if softcap is None else Softcapped(score, as_positive("softcap", softcap))
