"""Backward passes into which no gradient flows, because values have no columns."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import SCORES, make_problem


@pytest.mark.parametrize("score", SCORES)
def test_values_without_columns(score: str) -> None:
    """Everything is 0, but for the rows that are NaN because they are empty."""
    rng = np.random.default_rng(0)
    lens = [0, 3]
    problem = make_problem(
        score, rng, M=65, Dv=0, extra_grads=False, valid_lens=lens, empty_rows="nan"
    )
    for name, gradient in problem.backward().items():
        expected = np.zeros_like(gradient)
        if name == "d_queries":
            expected[0] = np.nan
        np.testing.assert_array_equal(gradient, expected)
