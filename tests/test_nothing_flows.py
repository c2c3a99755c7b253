"""A backward into which no gradient flows, because neither keys nor values have columns."""

from __future__ import annotations

import numpy as np
from helpers import make_problem


def test_only_queries_have_columns() -> None:
    """All gradients are 0, but those of queries that are NaN because their row is empty."""
    rng = np.random.default_rng(0)
    sizes = {"M": 65, "Dk": 0, "Dv": 0}
    options = {"valid_lens": [0, 3], "empty_rows": "nan"}
    problem = make_problem("additive", rng, extra_grads=False, **sizes, **options)
    for name, gradient in problem.backward().items():
        expected = np.zeros_like(gradient)
        if name == "d_queries":
            expected[0] = np.nan
        np.testing.assert_array_equal(gradient, expected)
