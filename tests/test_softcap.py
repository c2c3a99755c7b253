"""softcap: every score s becomes c * tanh(s / c), before bias and masks, forward and backward.

What every modifier is asked: test_modifiers.py; here what is a cap's own, and the operator of ONNX.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from helpers import (
    SCORES,
    SCORES_FUNCTION,
    Array,
    Problem,
    check,
    error_of,
    make_problem,
    textbook_scores,
    under_cap,
)

import attnext
from attnext import reference

CAPS = (0.3, 2.0, 50.0)  # most scores are at the first, hardly any near the last

score_cases = pytest.mark.parametrize("score", SCORES)


def scores_of(problem: Problem, module: Any = attnext) -> Array:
    """What the function of the scores alone makes of the problem."""
    inputs = {name: x for name, x in problem.inputs.items() if name != "values"}
    scores: Array = getattr(module, SCORES_FUNCTION[problem.score])(**inputs, **problem.options)
    return scores


# ---- against the textbook ------------------------------------------------------------------------


@pytest.mark.parametrize("M", [1, 2, 3, 17, 70])
@pytest.mark.parametrize("softcap", CAPS)
def test_queries_and_keys_around_every_boundary(
    softcap: float, M: int, rng: np.random.Generator
) -> None:
    """One score after the other: a cap does not know which it has."""
    for i, N in enumerate((1, 16, 17, 129) * 2):
        score = SCORES[(M + CAPS.index(softcap) + i + i // 4) % 4]
        check(make_problem(score, rng, M=M, N=N, D=5, Dv=3, H=7, softcap=softcap))


@score_cases
def test_several_groups_of_queries(score: str, rng: np.random.Generator) -> None:
    check(make_problem(score, rng, lead=(1,), M=600, N=20, D=3, Dv=2, H=3, softcap=0.5))


@score_cases
def test_scores_alone(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=20, N=140, D=6, softcap=0.7)
    expected, _ = under_cap(problem, textbook_scores(problem, np.float64)[0])
    scores = scores_of(problem)
    assert error_of(scores, expected) <= 2e-6
    assert np.abs(scores).max() <= np.float32(0.7)
    weights = attnext.masked_softmax(scores, [100, 140])
    composed = weights @ problem.inputs["values"]
    np.testing.assert_allclose(composed, problem.but(valid_lens=[100, 140]).forward(), atol=2e-6)


# ---- against others ------------------------------------------------------------------------------


ONNX_CASES: dict[str, dict[str, Any]] = {
    "plain": {"softcap": 2.0},
    "scale": {"softcap": 3.0, "scale": 2.0},
    "causal": {"softcap": 0.5, "is_causal": 1},
    "bias": {"softcap": 1.5, "attn_mask": "bias"},
    "mask": {"softcap": 1.5, "attn_mask": "mask"},
}


def onnx_attention(feeds: dict[str, Array], **attributes: Any) -> Any:
    """What ONNX's reference makes of the operator: output, and scores as softmax has them."""
    inputs = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), None
        )
        for name, x in feeds.items()
    ]
    outputs = [onnx.helper.make_tensor_value_info(name, 1, None) for name in ("output", "scores")]
    node = onnx.helper.make_node(
        "Attention",
        list(feeds),
        ["output", "", "", "scores"],
        qk_matmul_output_mode=2,
        **attributes,
    )
    graph = onnx.helper.make_graph([node], "one_node", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)])
    return onnx.reference.ReferenceEvaluator(model).run(None, feeds)


@pytest.mark.parametrize("case", ONNX_CASES)
def test_attention_of_onnx(case: str, rng: np.random.Generator) -> None:
    """After the scale, before the bias: so -inf in the bias stays -inf, and masks."""
    attributes = dict(ONNX_CASES[case])
    bias = np.where(rng.random((4, 4)) < 0.3, -np.inf, 4 * rng.standard_normal((4, 4)))
    bias[:, 0] = 9.0
    both = {"bias": bias.astype(np.float32), "mask": bias > -np.inf}
    wanted = attributes.pop("attn_mask", None)
    given = {name: x for name, x in both.items() if name == wanted}
    problem = make_problem("dot", rng, lead=(2, 3), M=4, N=4)
    feeds = dict(zip("QKV", problem.inputs.values(), strict=True))
    if wanted is not None:
        feeds["attn_mask"] = given[wanted]
    output, scores = onnx_attention(feeds, **attributes)

    causal = attributes.pop("is_causal", 0) == 1
    q, k, v = problem.inputs.values()
    ours = attnext.dot_product_attention(q, k, v, **attributes, **given, causal=causal)
    np.testing.assert_allclose(ours, output, rtol=1e-5, atol=1e-6)
    ours = attnext.dot_product_scores(q, k, **attributes) + given.get("bias", np.float32(0))
    live = scores > -1e30
    np.testing.assert_allclose(ours[live], scores[live], rtol=1e-5, atol=1e-6)


# ---- scores that are no ordinary numbers ---------------------------------------------------------


@pytest.mark.parametrize("M", [1, 20])
def test_infinite_scores_are_at_the_cap(M: int) -> None:
    """And a row that has some is like any other. NaN stays NaN, in its row."""
    q = np.ones((M, 1), np.float32)
    k = np.array([[np.inf], [-np.inf], [0.0], [1e38]], np.float32)
    v = np.eye(4, dtype=np.float32)
    scores = attnext.dot_product_scores(q, k, softcap=2.0)
    np.testing.assert_array_equal(scores, np.tile(np.float32([2, -2, 0, 2]), (M, 1)))
    output, lse = attnext.dot_product_attention(q, k, v, softcap=2.0, return_lse=True)
    e = np.exp([2.0, -2.0, 0.0, 2.0])
    np.testing.assert_allclose(output, np.tile(e / e.sum(), (M, 1)), rtol=1e-6)
    np.testing.assert_allclose(lse, np.log(e.sum()), rtol=1e-6)
    d_k = attnext.dot_product_attention_backward(v[np.arange(M) % 4], q, k, v, softcap=2.0)[1]
    assert np.all(d_k[[0, 1, 3]] == 0) and np.isfinite(d_k).all()

    k[2] = np.nan
    scores = attnext.dot_product_scores(q, k, softcap=2.0)
    np.testing.assert_array_equal(np.isnan(scores), [[False, False, True, False]] * M)
    assert np.isnan(attnext.dot_product_attention(q, k, v, softcap=2.0)).all()


@score_cases
def test_nan_in_a_pair_that_takes_part(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=20, N=40, softcap=1.0)
    problem.inputs["queries"][0, 3] = np.nan
    got = problem.run()
    for name in ("output", "weights", "lse", "d_queries"):
        nan = np.isnan(got[name]).reshape(2, 20, -1)
        assert nan[0, 3].all() and not nan[0, :3].any() and not nan[1].any(), name


@pytest.mark.parametrize("softcap", [1e-30, 1e-38, 1e-45])
@pytest.mark.parametrize("M", [1, 35])
@score_cases
def test_a_tiny_cap_makes_all_keys_alike(
    score: str, M: int, softcap: float, rng: np.random.Generator
) -> None:
    """Up to its sign, a score is the cap; nothing flows through it."""
    problem = make_problem(score, rng, M=M, N=140, softcap=softcap)
    got = problem.run()
    np.testing.assert_allclose(got["weights"], 1 / 140, rtol=1e-6)
    for name, x in got.items():
        assert np.isfinite(x).all(), name
        assert name in ("output", "weights", "lse", "d_values") or not x.any(), name
    signs = np.sign(textbook_scores(problem, np.float64)[0])
    np.testing.assert_array_equal(scores_of(problem), signs * np.float32(softcap))


@pytest.mark.parametrize("M", [1, 2, 40])
def test_gradients_near_the_cap_keep_their_digits(M: int) -> None:
    """1 - tanh^2 of 40 is 7e-35. From a tanh in float32, which is 1, it would be 0 from 9 on."""
    x = np.array([0.1, 0.6, 0.65, 1.0, 3.0, 9.0, 20.0, 40.0], np.float32)
    k = np.concatenate([x, -x])[:, None]
    v = np.arange(16, dtype=np.float32)[:, None]
    q, g = np.ones((M, 1), np.float32), np.ones((M, 1), np.float32)
    d_k = attnext.dot_product_attention_backward(g, q, k, v, scale=1.0, softcap=1.0)[1]
    exact = reference.dot_product_attention_backward(g, q, k, v, scale=1.0, softcap=1.0)[1]
    np.testing.assert_allclose(d_k, exact, rtol=2e-6)
    assert np.abs(exact).min() < 1e-33
