"""explain: the backward of every attention, the scores alone, parts and sequences."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from helpers import (
    EMPTY_ROWS,
    FUNCTION,
    PARAMETERS,
    SCORES,
    SCORES_FUNCTION,
    Problem,
    bits,
    make_problem,
    textbook,
)
from numpy.testing import assert_allclose, assert_array_equal
from sampling import SCORES_AND_SIZES, cases, problem_at_the_edges, problems_of_size, random_problem

import attnext
from attnext import explain

NOT_EXPLAINED = {"set_num_threads", "get_num_threads", "empty_cache", "show_config"}


def leaves(results: Any) -> list[Any]:
    """The arrays of nested tuples, but for what was not given."""
    if isinstance(results, tuple | list):
        return [leaf for part in results for leaf in leaves(part)]
    return [] if results is None else [np.asarray(results)]


def assert_are_fast(got: Any, fast: Any) -> None:
    for a, b in zip(leaves(got), leaves(fast), strict=True):
        assert a.dtype == np.float32 and a.shape == b.shape
        assert_array_equal(bits(a), bits(b))


def explained(problem: Problem, lang: str = "en", **more: Any) -> explain.Trace:
    name = f"{FUNCTION[problem.score]}_backward"
    arguments = {**problem.grads, **problem.inputs, **problem.options, **more}
    trace: explain.Trace = getattr(explain, name)(**arguments, lang=lang)
    assert_are_fast(trace.output, getattr(attnext, name)(**arguments))
    return trace


def test_every_function_is_explained() -> None:
    functions = {name for name in attnext.__all__ if inspect.isroutine(getattr(attnext, name))}
    assert functions - NOT_EXPLAINED <= set(explain.__all__)


@pytest.mark.parametrize("seed", cases(8, of=40))
@pytest.mark.parametrize("score", SCORES)
def test_the_steps_are_those_of_the_textbook(score: str, seed: int) -> None:
    problem = random_problem(score, seed)
    bias = problem.options.get("bias") is not None
    trace = explained(problem, **({"return_grad_bias": True} if bias else {}))
    exact, live = textbook(problem, np.float64), problem.takes_part()
    assert_allclose(trace["again"].values[live], exact["weights"][live], rtol=1e-10, atol=1e-12)
    for name in ("queries", "keys", "values", *PARAMETERS[score]):
        if f"d_{name}" in exact and name != "w":
            expected = exact[f"d_{name}"]
            got, top = trace[f"d_{name}"].values, np.nanmax(np.abs(expected), initial=1)
            assert_allclose(got, expected, rtol=1e-3, atol=2e-5 * top)
    assert str(trace) and trace._repr_html_()


@pytest.mark.parametrize(("score", "size"), SCORES_AND_SIZES)
def test_the_bounds_hold_at_any_size(score: str, size: float) -> None:
    for problem in problems_of_size(score, size):
        explained(problem)


@pytest.mark.parametrize("seed", cases(8, of=40))
@pytest.mark.parametrize("score", SCORES)
def test_the_bounds_hold_at_the_edges_of_float32(score: str, seed: int) -> None:
    explained(problem_at_the_edges(score, seed, np.random.default_rng(seed)))


@pytest.mark.parametrize("score", SCORES)
def test_the_chain_rule_step_by_step(score: str, rng: np.random.Generator) -> None:
    """What the formulas of the steps say is what the next step has."""
    problem = make_problem(score, rng, lead=(2,), M=3, N=5)
    trace = explained(problem)
    d_scores = np.asarray(trace["d_scores"])
    q, k = (problem.inputs[name].astype(np.float64) for name in ("queries", "keys"))
    if score == "additive":
        d = np.asarray(trace["d_features"])
        assert_allclose(trace["d_hidden_q"], d.sum(axis=-2), rtol=1e-12)
        assert_allclose(trace["d_hidden_k"], d.sum(axis=-3), rtol=1e-12)
        assert_allclose(trace["d_queries"], d.sum(axis=-2) @ problem.inputs["W_q"], rtol=1e-3)
    if score == "gaussian":
        distance = np.linalg.norm(q[:, :, None] - k[:, None], axis=-1)
        given = {"w": 1.0, **problem.options, **problem.inputs}
        w = 1 / given["sigma"] if given.get("sigma") else float(np.asarray(given["w"]).reshape(()))
        assert_allclose(trace["d_w"], [-w * (d_scores * distance**2).sum()], rtol=1e-4)
    if score == "cosine":
        unit = k / np.linalg.norm(k, axis=-1, keepdims=True)
        scale = problem.options.get("scale", 1.0)
        assert_allclose(trace["d_unit_q"], scale * d_scores @ unit, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("score", SCORES)
def test_the_scores_alone(score: str, lang: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, lead=(2,), M=3, N=5)
    inputs = {name: x for name, x in problem.inputs.items() if name != "values"}
    name, softcap = SCORES_FUNCTION[score], {"softcap": 2.0}
    trace = getattr(explain, name)(**inputs, **softcap, lang=lang)
    assert_are_fast(trace.output, getattr(attnext, name)(**inputs, **softcap))
    assert trace.steps[-1].values is trace.output and trace.steps[-1].key == "softcap"
    g = rng.standard_normal(trace.output.shape)
    asked = {"return_grad_scale": True} if score in ("dot", "cosine") else {}
    back = getattr(explain, f"{name}_backward")(g, **inputs, **softcap, **asked, lang=lang)
    fast = getattr(attnext, f"{name}_backward")(g, **inputs, **softcap, **asked)
    assert_are_fast(back.output, fast)
    assert [step.key for step in back.steps][:2] == ["grad_scores", "d_softcap"]
    assert ("d_scale" in [step.key for step in back.steps]) == bool(asked)
    assert_are_fast(back["d_queries"].values, back.output[0])


@pytest.mark.parametrize("seed", cases(8, of=24))
def test_multi_head(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lead = [(), (2,), (2, 3)][seed % 3]
    M, N, kv_heads = int(rng.integers(1, 6)), int(rng.integers(1, 8)), [4, 2, 1][seed % 3]
    sizes = {"W_q": (8, 3), "W_k": (2 * kv_heads, 4), "W_v": (2 * kv_heads, 5), "W_o": (8, 8)}
    biases = {"b_q": 8, "b_k": 2 * kv_heads, "b_v": 2 * kv_heads, "b_o": 8} if seed % 4 else {}
    rows = {"grad_output": (M, 8), "queries": (M, 3), "keys": (N, 4), "values": (N, 5)}
    arguments: dict[str, Any] = {n: rng.standard_normal((*lead, *s)) for n, s in rows.items()}
    arguments |= {n: rng.standard_normal(s) for n, s in {**sizes, **biases}.items()}
    arguments |= {"num_heads": 4, "num_kv_heads": kv_heads, "empty_rows": EMPTY_ROWS[seed % 3]}
    arguments |= {"valid_lens": int(rng.integers(0, N + 1)), "return_grad_scale": True}
    arguments |= {"dropout_p": 0.3, "seed": 4} if seed % 2 else {"softcap": 2.0}
    arguments |= {"sink": rng.standard_normal(M), "return_grad_sink": True} if seed % 5 else {}
    trace = explain.multi_head_attention_backward(**arguments)
    assert_are_fast(trace.output, attnext.multi_head_attention_backward(**arguments))
    joined = np.asarray(trace["d_joined"])
    assert_allclose(joined, arguments["grad_output"] @ arguments["W_o"], rtol=1e-5, atol=1e-5)
    other = explain.multi_head_attention_backward(**arguments, lang="zh")
    assert [step.key for step in other.steps] == [step.key for step in trace.steps]
    assert all(a.name != b.name for a, b in zip(trace.steps, other.steps, strict=True))


def test_parts_of_the_keys(rng: np.random.Generator) -> None:
    outputs, lses = rng.standard_normal((3, 2, 4, 5)), rng.standard_normal((3, 2, 4))
    lses[0, 0], outputs[0, 0], lses[:, 1, 1] = -np.inf, np.nan, -np.inf
    trace = explain.merge_attention(list(outputs), list(lses))
    assert_are_fast(trace.output, attnext.merge_attention(outputs, lses))
    share = np.asarray(trace["share"])
    assert_allclose(share.sum(axis=-1)[:, 0], 1)
    assert share[1, 1].sum() == 0
    grads = rng.standard_normal((2, 4, 5)), rng.standard_normal((2, 4))
    back = explain.merge_attention_backward(grads[0], outputs, lses, grad_lse=grads[1])
    fast = attnext.merge_attention_backward(grads[0], outputs, lses, grad_lse=grads[1])
    assert_are_fast(back.output, fast)
    named = trace.with_labels(queries=list("abcd"), keys=["x", "y", "z"])
    assert "x" in str(named["share"]) and "部分" in str(
        explain.merge_attention(outputs, lses, lang="zh")
    )


def test_sequences() -> None:
    X = np.arange(24.0).reshape(2, 3, 4)
    trace = explain.sequence_mask(X, [1, 10**30], value=-1)
    assert_are_fast(trace.output, attnext.sequence_mask(X, [1, 10**30], value=-1))
    assert_array_equal(trace["kept"], [[True, False, False], [True] * 3])
    assert "6" not in explain.sequence_mask(X, 3, lang="zh").steps[1].note
    assert "cat" in str(trace.with_labels(queries=["the", "cat", "sat"])["kept"])


def test_a_step_by_the_name_in_its_formula_is_an_array() -> None:
    trace = explain.masked_softmax([[1.0, 2.0]])
    assert trace["weights"] is trace["softmax"] and trace["scores"].key == "X"
    assert_array_equal(np.asarray(trace["weights"]), trace.output)
    assert_allclose(np.sum(trace["weights"], axis=-1), 1)
    back = explain.dot_product_attention_backward([[1.0]], [[1.0]], [[1.0]], [[1.0]])
    assert back["weights"].key == "again"
