"""What a scoring function is, to those that walk over queries and keys."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from .arguments import Array


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
