"""The sink: one more logit in each row's softmax, which takes weight and has no value (gpt-oss).

What every modifier is asked: test_modifiers.py; here what is a sink's own.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers import EMPTY_ROWS, SCORES, assert_same_bits, bits, make_problem

score_cases = pytest.mark.parametrize("score", SCORES)
INF = np.float32(np.inf)


# ---- rows without keys ---------------------------------------------------------------------------


@pytest.mark.parametrize("M", [1, 2, 20])
@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
@score_cases
def test_a_row_with_a_sink_is_never_empty(
    score: str, empty_rows: str, M: int, rng: np.random.Generator
) -> None:
    """Its output is 0, its lse the sink, and all that flows is from lse to the sink, with NaN in
    the query, too. One without follows the rule."""
    sink = np.array([[0.1], [-INF], [-3e38], [3e38]], np.float32)
    problem = make_problem(
        score, rng, lead=(2, 4), M=M, N=140, valid_lens=[0, 9], empty_rows=empty_rows, sink=sink
    )
    problem.inputs["queries"][0, [0, 2, 3]] = np.nan
    got, without = problem.run(), problem.but(sink=None).run()
    has = sink[:, 0] > -np.inf
    for name in ("output", "weights", "d_queries"):
        assert not np.any(got[name][0, has]), name
        np.testing.assert_array_equal(got[name][0, ~has], without[name][0, ~has])
    np.testing.assert_array_equal(got["lse"][0], np.broadcast_to(sink, (4, M)))
    assert np.isfinite(got["d_keys"]).all() and np.isfinite(got["d_values"]).all()
    for name in ("d_W_q", "d_w"):
        assert np.isfinite(got.get(name, 0)).all(), name
    of_sink = problem.but(valid_lens=0).backward(return_grad_sink=True)["d_sink"]
    expected = problem.grads["grad_lse"].astype(np.float64).sum(axis=(0, 2))[:, None]
    np.testing.assert_allclose(of_sink, np.where(sink > -np.inf, expected, 0), rtol=1e-5)


@score_cases
def test_no_keys_at_all(score: str, rng: np.random.Generator) -> None:
    sink = np.float32([[0.5], [-INF]])
    for options in ({}, {"empty_rows": "nan"}, {"causal": True}):
        problem = make_problem(score, rng, lead=(3, 2), M=5, N=0, sink=sink, **options)
        got = problem.run()
        assert not np.any(got["output"]) and not np.any(got["d_queries"])
        np.testing.assert_array_equal(got["lse"], np.broadcast_to(sink, (3, 2, 5)))
        exact = problem.grads["grad_lse"][:, 0].sum(dtype=np.float64)
        np.testing.assert_allclose(got["d_sink"], [[exact], [0]], rtol=1e-6)
        for name in ("d_W_q", "d_W_k", "d_w_v", "d_w"):
            assert not np.any(got.get(name, 0)), name
        del problem.grads["grad_lse"]
        assert not np.any(problem.backward(return_grad_sink=True)["d_sink"])


def test_no_queries_and_no_heads(rng: np.random.Generator) -> None:
    for lead, M, sink in [((2,), 0, np.ones((2, 1))), ((0, 3), 4, np.ones((3, 1)))]:
        problem = make_problem("dot", rng, lead=lead, M=M, sink=sink)
        np.testing.assert_array_equal(problem.run()["d_sink"], np.zeros(sink.shape))
    problem = make_problem("dot", rng, lead=(0,), sink=np.ones((0, 1)))
    assert problem.run()["d_sink"].shape == (0, 1)


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("M", [1, 20])
@score_cases
def test_some_heads_without_a_sink(score: str, M: int, rng: np.random.Generator) -> None:
    """-inf is none, bit by bit, head by head."""
    problem = make_problem(score, rng, lead=(2, 3), M=M, N=140, valid_lens=[0, 100])
    without = problem.run()
    some = problem.but(sink=np.float32([[-INF], [0.5], [-INF]])).run()
    assert not np.any(some["d_sink"][[0, 2]]) and some["d_sink"][1] != 0
    for name in ("output", "weights", "lse", "d_queries", "d_keys", "d_values"):
        np.testing.assert_array_equal(bits(some[name][:, ::2]), bits(without[name][:, ::2]), name)


@pytest.mark.parametrize("M", [1, 20])
@score_cases
def test_huge_and_tiny(score: str, M: int, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, lead=(2,), M=M, N=300, valid_lens=[5, 300])
    without = problem.run()
    for size in (200.0, 1e9, 3.4e38):
        low = problem.but(sink=-size).run()
        assert low.pop("d_sink") == 0
        if score == "gaussian":  # whose sum for w starts at the nearest key only without a sink
            np.testing.assert_allclose(low.pop("d_w"), without["d_w"], rtol=1e-4)
        assert_same_bits(low, {name: without[name] for name in low})
        high = problem.but(sink=size).run()
        assert not np.any(high["output"]) and not np.any(high["weights"])
        np.testing.assert_array_equal(high["lse"], np.full((2, M), np.float32(size)))
        np.testing.assert_allclose(high["d_sink"], problem.grads["grad_lse"].sum(), rtol=1e-5)


@score_cases
def test_scores_out_of_range(score: str, rng: np.random.Generator) -> None:
    """A row whose scores are all -inf has a sink to weigh; +inf and NaN stay what they are."""
    problem = make_problem(score, rng, M=5, N=140, sink=np.float32([-INF, 0.5, 0.5, 0.5, -INF]))
    scores = np.zeros((5, 140), np.float32)
    scores[2], scores[3] = np.inf, np.nan
    problem.options["bias"] = scores
    problem.inputs["keys"][1] = 0
    if score == "dot":
        problem.inputs["queries"][1] = 0
        problem.inputs["queries"][0, [0, 1], 0] = -np.inf  # as a score is -inf
        problem.inputs["keys"][0] = [1, 0, 0, 0]
        output, lse = problem.forward(return_lse=True)
        assert np.isnan(output[0, 0]).all() and lse[0, 0] == -np.inf
        assert not np.any(output[0, 1]) and lse[0, 1] == np.float32(0.5)
        problem.inputs["queries"][0] = 0
    got = problem.run()
    for name in ("output", "weights"):
        np.testing.assert_array_equal(np.isnan(got[name]).all(axis=-1), [[0, 0, 1, 1, 0]] * 2)
    assert (got["lse"][:, 2] == np.inf).all() and np.isnan(got["lse"][:, 3]).all()
    np.testing.assert_array_equal(np.isnan(got["d_sink"]), [0, 0, 1, 1, 0])
    assert got["d_sink"][0] == got["d_sink"][4] == 0
