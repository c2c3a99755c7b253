"""What a scoring function is, to those that walk over queries and keys."""

from __future__ import annotations

from copy import copy
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Array, as_scale, check_same_features


class Score(Protocol):
    """A scoring function: one query against n keys, forward and backward."""

    parameters: dict[str, Array | None]  # in the order of their gradients; None if not given
    scale: Array = np.ones(())  # of a score that has one; broadcasts to the leading axes

    def at(self, batch: tuple[int, ...]) -> Score:
        """The score in this entry of the leading axes, if it is not the same in all."""
        return self

    def forward(self, q: Array, k: Array) -> Array:
        """Scores s (n,) of a query q (Dq,) against keys k (n, Dk)."""

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        """Gradients d_q (Dq,) and d_k (n, Dk), and those of parameters and scale by their names."""


class Scaled(Score):
    """One that is multiplied by a scale, of queries and keys with the same features."""

    def __init__(self, q: Array, k: Array, scale: ArrayLike) -> None:
        check_same_features(q, k)
        self.lead = q.shape[:-2]
        self.scale = as_scale(scale, self.lead)
        self.parameters = {}

    def at(self, batch: tuple[int, ...]) -> Score:
        one = copy(self)
        one.scale = np.broadcast_to(self.scale, self.lead)[batch]
        return one
