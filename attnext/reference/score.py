"""The interface of a scoring function, which the loops over queries and keys use."""

from __future__ import annotations

from copy import copy
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Array, as_scale, check_same_features


class Score(Protocol):
    """A scoring function of one query and n keys, forward and backward."""

    parameters: dict[str, Array | None]  # in the order of their gradients; None if not given
    scale: Array = np.ones(())  # 1 for a score without a scale; broadcasts to the leading axes

    def at(self, batch: tuple[int, ...]) -> Score:
        """Return the score for one index of the leading axes; scores with a scale differ there."""
        return self

    def forward(self, q: Array, k: Array) -> Array:
        """Return the scores s (n,) of a query q (Dq,) and keys k (n, Dk)."""

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        """Return d_q (Dq,), d_k (n, Dk), and the gradients of parameters and scale by name."""


class Scaled(Score):
    """A score with a scale. Queries and keys have the same number of features."""

    def __init__(self, q: Array, k: Array, scale: ArrayLike) -> None:
        check_same_features(q, k)
        self.lead = q.shape[:-2]
        self.scale = as_scale(scale, self.lead)
        self.parameters = {}

    def at(self, batch: tuple[int, ...]) -> Score:
        one = copy(self)
        one.scale = np.broadcast_to(self.scale, self.lead)[batch]
        return one
