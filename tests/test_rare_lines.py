"""Backwards that no other test runs: the lines that .ci/coverage.py found without one."""

from __future__ import annotations

import numpy as np
from helpers import make_problem

from attnext import DotProductAttention


def test_only_queries_have_columns() -> None:
    """No gradient flows: all are 0, but those of queries that are NaN, their row being empty."""
    rng = np.random.default_rng(0)
    sizes = {"M": 65, "Dk": 0, "Dv": 0}
    options = {"valid_lens": [0, 3], "empty_rows": "nan"}
    problem = make_problem("additive", rng, extra_grads=False, **sizes, **options)
    for name, gradient in problem.backward().items():
        expected = np.zeros_like(gradient)
        if name == "d_queries":
            expected[0] = np.nan
        np.testing.assert_array_equal(gradient, expected)


def test_an_infinite_score_is_remembered() -> None:
    """Its row is NaN in the backward of a layer too, which starts from the lse; no other is."""
    rng = np.random.default_rng(0)
    queries = rng.random((1, 2, 4), dtype=np.float32)
    queries[0, 0] = np.inf
    keys, values = rng.random((2, 1, 300, 4), dtype=np.float32) + np.float32(1)
    layer = DotProductAttention()
    gradients = layer.backward(np.ones_like(layer(queries, keys, values)))
    assert np.isnan(gradients[0][0, 0]).all()
    assert np.isfinite(gradients[0][0, 1]).all()
