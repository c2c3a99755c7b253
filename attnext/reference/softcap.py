"""A cap on scores: s becomes c * tanh(s / c), which lies between -c and c."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Array, as_positive
from .score import Score


class Softcapped:
    """A score under a cap is a score too: c * tanh(score(q, k) / c)"""

    def __init__(self, score: Score, c: float) -> None:
        self.score, self.c = score, c
        self.parameters, self.scale = score.parameters, score.scale

    def at(self, batch: tuple[int, ...]) -> Softcapped:
        return Softcapped(self.score.at(batch), self.c)

    def forward(self, q: Array, k: Array) -> Array:
        s: Array = self.c * np.tanh(self.score.forward(q, k) / self.c)
        return s

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        # forward was: s = c * tanh(x), x = score(q, k) / c, and the slope of tanh, 1 - tanh(x)^2,
        # is 1 / cosh(x)^2, in which nothing cancels near the cap
        x = self.score.forward(q, k) / self.c
        return self.score.backward(d_s / np.cosh(x) ** 2, q, k)


def under_cap(score: Score, softcap: ArrayLike | None) -> Score:
    """The score itself or, if there is a cap, the score under it."""
    return score if softcap is None else Softcapped(score, as_positive("softcap", softcap))
