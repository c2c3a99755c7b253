"""attnext.explain: its steps against the textbook, its last step against the fast function."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    EMPTY_ROWS,
    FUNCTION,
    SCORES,
    Problem,
    bits,
    make_problem,
    run_python,
    textbook,
    textbook_scores,
)
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from sampling import (
    EDGES,
    SCORES_AND_SIZES,
    cases,
    problem_at_the_edges,
    problems_of_size,
    random_problem,
)

import attnext
from attnext import _core, explain
from attnext.explain import Step, Trace, accuracy, scores, steps
from attnext.explain.multi_head import ARRAYS
from attnext.explain.words import AXES, LANGUAGES, PHRASES, STEPS, TITLES

Array = NDArray[Any]
BACKWARDS = ("masked_softmax_backward", "dot_product_attention_backward")

# The scores of the notes that walk through masked_softmax, and the weights for lengths 2 and 3.
X = np.array(
    [
        [[0.8, 0.2, 0.9, 0.4], [0.1, 0.7, 0.3, 0.5]],
        [[0.6, 0.2, 0.7, 0.1], [0.9, 0.8, 0.3, 0.4]],
    ]
)
WEIGHTS = [
    [[0.6457, 0.3543, 0, 0], [0.3543, 0.6457, 0, 0]],
    [[0.3603, 0.2415, 0.3982, 0], [0.4076, 0.3688, 0.2237, 0]],
]


def keys_of(trace: Trace) -> list[str]:
    return [step.key for step in trace.steps]


def explained(problem: Problem, **more: Any) -> Trace:
    function = getattr(explain, FUNCTION[problem.score])
    trace: Trace = function(**problem.inputs, **problem.options, **more)
    return trace


def assert_is_fast(got: Any, fast: Any) -> None:
    assert got.dtype == np.float32 and got.shape == fast.shape
    assert_array_equal(bits(got), bits(fast))


# ---- the last step is the fast function's, the others are the textbook's -------------------------


@pytest.mark.parametrize("seed", cases(10, of=40))
@pytest.mark.parametrize("score", SCORES)
def test_attention(score: str, seed: int) -> None:
    problem = random_problem(score, seed)
    trace = explained(problem)
    output, weights = problem.forward(return_weights=True)
    assert_is_fast(trace.output, output)
    assert_is_fast(trace.weights, weights)
    assert trace.steps[-1].values is trace.output and trace.steps[-1].key == "output"
    assert trace["weights"].values is trace.weights

    live = problem.takes_part()
    expected, hidden = textbook_scores(problem, np.float64)
    last = [step for step in trace.steps if step.key in ("scaled", "scaled_by", score, "gaussian")]
    last += [step for step in trace.steps if step.key in ("softcap", "bias")]
    if cap := problem.options.get("softcap"):
        expected = cap * np.tanh(expected / cap)
    if problem.options.get("bias") is not None:
        expected = expected + problem.options["bias"].astype(np.float64)
    assert_allclose(last[-1].values[live], expected[live], rtol=1e-12, atol=1e-12)
    assert np.isnan(last[-1].values[~live]).all()
    if hidden is not None:
        assert_allclose(trace["activations"].values[live], hidden[live], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", cases(15, of=60))
def test_dot_product_backward(seed: int) -> None:
    problem = random_problem("dot", seed)
    more = {"return_grad_bias": True} if problem.options.get("bias") is not None else {}
    arguments = {**problem.grads, **problem.inputs, **problem.options, **more}
    trace = explain.dot_product_attention_backward(**arguments)
    results = attnext.dot_product_attention_backward(**arguments)
    names = ["d_queries", "d_keys", "d_values", "d_bias"][: len(results)]
    assert keys_of(trace)[-len(names) :] == names
    for got, step, fast in zip(trace.output, trace.steps[-len(names) :], results, strict=True):
        assert_is_fast(got, fast)
        assert step.values is got or (got.shape == () and step.values[0] == got)
    exact = textbook(problem, np.float64)
    live = problem.takes_part()
    assert_allclose(trace["again"].values[live], exact["weights"][live], rtol=1e-12, atol=1e-12)
    if problem.options.get("bias") is not None and problem.options["bias"].shape == live.shape:
        d_scores = np.where(live, trace["d_scores"].values, 0)
        assert_allclose(d_scores, exact["d_bias"], rtol=1e-10, atol=1e-12)


def test_backward_without_a_bias_and_with_what_the_forward_returned(
    rng: np.random.Generator,
) -> None:
    problem = make_problem("dot", rng)
    output, weights, lse = problem.forward(return_weights=True, return_lse=True)
    more = {"weights": weights, "output": output, "lse": lse, "return_grad_bias": True}
    arguments = {**problem.grads, **problem.inputs, **more}
    trace = explain.dot_product_attention_backward(**arguments)
    results = attnext.dot_product_attention_backward(**arguments)
    assert trace.output[3] is None and results[3] is None
    for got, fast in zip(trace.output[:3], results[:3], strict=True):
        assert_is_fast(got, fast)


@pytest.mark.parametrize("seed", cases(20, of=40))
def test_masked_softmax_and_its_backward(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = [(5,), (3, 5), (2, 3, 5), (2, 2, 3, 5)][seed % 4]
    scores = 3 * rng.standard_normal(shape, dtype=np.float32)
    options: dict[str, Any] = {"empty_rows": EMPTY_ROWS[seed % 3]}
    lens = [(), shape[:1], (shape[0], shape[-2]) if len(shape) > 2 else (), shape[:-1]]
    size = lens[rng.integers(4)] if len(shape) > 1 else ()
    options["valid_lens"] = rng.integers(0, 7, size=size) if seed % 5 else None
    options["mask"] = rng.random(shape) < 0.7 if seed % 3 else None
    trace = explain.masked_softmax(scores, **options)
    weights = attnext.masked_softmax(scores, **options)
    assert_is_fast(trace.output, weights)
    assert trace.steps[-1].values is trace.output is trace.weights
    live = trace["takes_part"].values if "takes_part" in keys_of(trace) else np.True_
    e = np.where(live, trace["exp"].values, 0)
    assert_allclose(trace["total"].values, e.sum(-1), rtol=1e-15)
    full = trace["total"].values > 0
    assert_array_equal(e.max(-1)[full], 1)  # relative to the largest score that takes part
    by_hand = (e[full] / trace["total"].values[full, None]).ravel()
    assert_allclose(weights.reshape(e.shape)[full].ravel(), by_hand, rtol=2e-6, atol=1e-30)

    g = rng.standard_normal(shape, dtype=np.float32)
    back = explain.masked_softmax_backward(g, weights, **options)
    assert_is_fast(back.output, attnext.masked_softmax_backward(g, weights, **options))
    assert back.steps[-1].values is back.output and back.steps[-1].key == "d_scores"
    empty = [key for key in keys_of(trace) if key == "empty_rows"]
    assert keys_of(back) == [*empty, "given", "grad_output", "mean", "d_scores"]


def variables(trace: Trace, **more: Any) -> dict[str, Any]:
    """What the formulas of a trace may name."""

    def softmax(x: Array) -> Array:
        e = np.exp(x - x.max(-1, keepdims=True))
        return np.asarray(e / e.sum(-1, keepdims=True))

    def norm(x: Array) -> Array:
        return np.linalg.norm(x, axis=-1, keepdims=True)

    numpy = {"where": np.where, "exp": np.exp, "repeat": np.repeat, "full": np.full}
    numpy |= {"sqrt": np.sqrt, "tanh": np.tanh, "inf": np.inf, "max": np.maximum, "norm": norm}
    arrays = {name: np.asarray(x, np.float64) for name, x in more.items() if x is not None}
    return {**numpy, "softmax": softmax, **arrays}


def run_formula(formula: str, names: dict[str, Any]) -> Array:
    """The right side of a formula as NumPy code: x^T, x^2 and |x| are all that is not Python."""
    name, code = formula.split(" = ", 1)
    code = re.sub(r"(\w+)\^T", r"\1.swapaxes(-1, -2)", code).replace("^2", "**2")
    code = re.sub(r"\|(\w+)\|", r"norm(\1)", code)
    names[name] = np.asarray(eval(code, {}, names))
    return np.asarray(names[name])


def assert_follows(step: Step, names: dict[str, Any]) -> None:
    """To float64's rounding; where the fast function's result is shown, to that of float32."""
    tolerance = 1e-12 if step.values.dtype == np.float64 else 2e-5
    got = run_formula(step.formula, names)
    assert_allclose(got, step.values, rtol=tolerance, atol=tolerance, err_msg=step.key)


@pytest.mark.parametrize("score", SCORES)
def test_formulas_are_what_is_computed(score: str, rng: np.random.Generator) -> None:
    """Run one after the other as code, from the inputs, they give the values of the steps."""
    options: dict[str, Any] = {"dropout_p": 0.5, "seed": 3}
    if score == "gaussian":
        options["sigma"] = 2.0
    if score == "cosine":
        options["scale"] = 3.0
    if score == "additive":
        options["b_h"] = rng.standard_normal(6, dtype=np.float32)
    problem = make_problem(score, rng, **options)
    bias = {} if score == "additive" else {"bias": rng.standard_normal((3, 5), dtype=np.float32)}
    trace = explained(problem, **bias)
    names = variables(trace, **problem.inputs, **options, **bias)
    by_hand = ("features", "distance", "keep")  # of pairs, and random: checked in other tests
    for step in trace.steps:
        if step.key in by_hand:
            names[step.key] = step.values
        else:
            assert_follows(step, names)
    assert len(trace.steps) > 4


def test_formulas_of_the_backward_are_what_is_computed(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, M=4)
    trace = explain.dot_product_attention_backward(**problem.grads, **problem.inputs)
    names = variables(trace, **problem.inputs, **problem.grads)
    names["grad_lse"] = names["grad_lse"][..., None]
    for step in trace.steps:
        if step.key == "again":
            names["weights"] = step.values
        elif step.key == "mean":
            d = (names["weights"] * names["d_weights"]).sum(-1)
            assert_allclose(step.values, d, rtol=1e-12)
            names["mean"] = step.values[..., None]
        else:
            assert_follows(step, names)


# ---- the walks of the notes ----------------------------------------------------------------------


def test_the_walk_through_masked_softmax() -> None:
    trace = explain.masked_softmax(X, [2, 3])
    assert keys_of(trace) == [
        *("X", "lens", "flat", "takes_part", "masked", "exp", "total", "softmax")
    ]
    assert_array_equal(trace["lens"].values, [2, 2, 3, 3])
    assert_array_equal(trace["flat"].values, X.astype(np.float32).reshape(4, 4))
    assert_array_equal(trace["takes_part"].values.sum(axis=1), [2, 2, 3, 3])
    assert_array_equal(np.isneginf(trace["masked"].values), ~trace["takes_part"].values)
    assert [step.shape for step in trace.steps[:5]] == [(2, 2, 4), (4,), (4, 4), (4, 4), (4, 4)]
    assert_array_equal(trace.output.round(4), np.array(WEIGHTS, np.float32))
    assert trace.call == "masked_softmax(X (2, 2, 4), valid_lens=[2, 3])"


def test_the_walk_without_a_mask() -> None:
    assert keys_of(explain.masked_softmax(X)) == ["X", "exp", "total", "softmax"]


@pytest.mark.parametrize(
    ("shape", "lens", "formula", "expanded"),
    [
        ((4,), 3, "lens = full(1, valid_lens)", [3]),
        ((2, 4), 3, "lens = full(2, valid_lens)", [3, 3]),
        ((2, 4), [1, 9], "lens = valid_lens.reshape(-1)", [1, 4]),
        ((2, 2, 4), [2, 3], "lens = repeat(valid_lens, 2)", [2, 2, 3, 3]),
        ((2, 2, 4), [[1, 3], [2, 4]], "lens = valid_lens.reshape(-1)", [1, 3, 2, 4]),
        ((2, 3, 1, 4), [1, 2], "lens = repeat(valid_lens, 3)", [1, 1, 1, 2, 2, 2]),
        (
            (2, 3, 2, 4),
            [[1, 2], [3, 4]],
            "lens = repeat(valid_lens, 3, axis=0).reshape(-1)",
            [1, 2] * 3 + [3, 4] * 3,
        ),
    ],
)
def test_lengths_expand_as_the_formula_says(
    shape: tuple[int, ...], lens: Any, formula: str, expanded: list[int]
) -> None:
    step = explain.masked_softmax(np.zeros(shape), lens)["lens"]
    assert step.formula == formula
    assert_array_equal(step.values, expanded)
    names = {"repeat": np.repeat, "full": np.full, "valid_lens": np.array(lens)}
    assert_array_equal(np.minimum(run_formula(formula, names), 4), expanded)


def test_the_walk_through_additive_attention(rng: np.random.Generator) -> None:
    q, k, v = rng.normal(size=(1, 1, 4)), rng.normal(size=(1, 3, 5)), rng.normal(size=(1, 3, 6))
    W_q, W_k, w_v = rng.normal(size=(8, 4)), rng.normal(size=(8, 5)), rng.normal(size=(1, 8))
    trace = explain.additive_attention(q, k, v, W_q, W_k, w_v, [2])
    assert {step.key: step.shape for step in trace.steps} == {
        "hidden_q": (1, 1, 8),
        "hidden_k": (1, 3, 8),
        "features": (1, 1, 3, 8),
        "activations": (1, 1, 3, 8),
        "additive": (1, 1, 3),
        "takes_part": (1, 1, 3),
        "masked": (1, 1, 3),
        "weights": (1, 1, 3),
        "output": (1, 1, 6),
    }
    q32, k32, W_q32, W_k32 = (np.float64(np.float32(x)) for x in (q, k, W_q, W_k))
    features = (q32 @ W_q32.T)[:, :, None] + (k32 @ W_k32.T)[:, None]  # as d2l's class has it
    assert_allclose(trace["features"].values[:, :, :2], features[:, :, :2], rtol=1e-13)
    assert trace["features"].masked is not None and trace["features"].masked[:, :, 2].all()


@pytest.mark.parametrize(
    ("scale", "second", "formula"),
    [(None, "scaled", "scores = raw / sqrt(4)"), (1, "scaled_by", "scores = 1 * raw")],
)
def test_the_dot_product_in_four_steps(
    scale: float | None, second: str, formula: str, rng: np.random.Generator
) -> None:
    x1, x2 = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 5, 4))
    trace = explain.dot_product_attention(x1, x2, x2, scale=scale)
    assert keys_of(trace) == ["raw", second, "weights", "output"]
    assert trace[second].formula == formula
    x1, x2 = torch.tensor(x1, dtype=torch.float32), torch.tensor(x2, dtype=torch.float32)
    raw = torch.bmm(x1, x2.transpose(1, 2)) / (2 if scale is None else 1)
    weights = torch.softmax(raw, dim=2)
    assert_allclose(trace[second].values, raw, rtol=1e-5, atol=1e-6)
    assert_allclose(trace["weights"].values, weights, rtol=1e-5, atol=1e-6)
    assert_allclose(trace.output, torch.bmm(weights, x2), rtol=1e-5, atol=1e-6)


# ---- masks, empty rows, dropout ------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES)
def test_padding_is_never_read(score: str, rng: np.random.Generator) -> None:
    """NaN and infinity in keys, values and bias that take no part change nothing that is shown."""
    problem = make_problem(score, rng, valid_lens=[2, 4], bias=np.zeros((2, 3, 5), np.float32))
    poisoned = {name: x.copy() for name, x in problem.inputs.items()}
    bias = problem.options["bias"].copy()
    for name, bad in (("keys", np.nan), ("values", np.inf)):
        poisoned[name][0, 2:], poisoned[name][1, 4:] = bad, bad
    bias[0, :, 2:], bias[1, :, 4:] = np.nan, np.inf
    clean = explained(problem)
    dirty = explained(Problem(score, poisoned, {**problem.options, "bias": bias}))
    for a, b in zip(clean.steps, dirty.steps, strict=True):
        assert_array_equal(a.values, b.values, err_msg=a.key)
    assert str(clean) == str(dirty) and clean._repr_html_() == dirty._repr_html_()
    for key in ("weights", "masked"):
        masked = clean[key].masked
        assert masked is not None
        assert_array_equal(masked, ~problem.takes_part())


def test_padding_is_never_read_in_the_backwards(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, valid_lens=[2, 4])
    poisoned = {name: x.copy() for name, x in {**problem.grads, **problem.inputs}.items()}
    for name in ("keys", "values"):
        poisoned[name][0, 2:], poisoned[name][1, 4:] = np.nan, np.inf
    poisoned["grad_weights"][0, :, 2:] = np.nan
    clean = explain.dot_product_attention_backward(
        **problem.grads, **problem.inputs, valid_lens=[2, 4]
    )
    dirty = explain.dot_product_attention_backward(**poisoned, valid_lens=[2, 4])
    for a, b in zip(clean.steps, dirty.steps, strict=True):
        assert_array_equal(a.values, b.values, err_msg=a.key)
    g, w = np.ones((2, 3)), np.full((2, 3), 0.5)
    g[:, 2:], w[:, 2:] = np.nan, np.inf
    assert not explain.masked_softmax_backward(g, w, 2).output.any()


def test_a_nan_that_takes_part_is_shown() -> None:
    trace = explain.dot_product_attention([[1.0]], [[np.nan], [1.0]], [[1.0], [2.0]])
    assert np.isnan(trace.output).all() and "nan" in str(trace["raw"])


@pytest.mark.parametrize(("mode", "fill"), [("uniform", "1/4"), ("zero", "0"), ("nan", "NaN")])
def test_empty_rows_are_explained(mode: str, fill: str) -> None:
    trace = explain.masked_softmax(X, [0, 3], empty_rows=mode)
    step = trace["empty_rows"]
    assert_array_equal(step.values, [True, True, False, False])
    assert step.note == (
        f"All keys are masked in 2 of 4 rows. Because empty_rows={mode!r}, each weight in such a "
        f"row is {fill}."
    )
    attended = explain.dot_product_attention(X, X, X, [0, 3], empty_rows=mode)["empty_rows"]
    assert attended.shape == (2, 2) and attended.values[0].all() and not attended.values[1].any()
    assert fill.replace("4", "2") in attended.note  # N is 2
    assert "empty_rows" not in keys_of(explain.masked_softmax(X, [1, 3], empty_rows=mode))


def test_masks_are_named_in_the_formula() -> None:
    q = np.ones((2, 3, 4))
    bias = np.zeros((3, 3), np.float32)

    def formula(**options: Any) -> str:
        trace = explain.dot_product_attention(q, q, q, **options)
        step = [step.formula for step in trace.steps if step.key == "takes_part"]
        return step[0] if step else ""

    assert formula() == formula(bias=bias) == formula(window=(-1, -1)) == ""
    assert formula(valid_lens=2, causal=True) == "takes_part[i, j] = j < valid_len and j <= i"
    assert formula(mask=bias == 0, causal=True, causal_offset=1) == (
        "takes_part[i, j] = mask[i, j] and j <= i + causal_offset"
    )
    bias[0, 0] = -np.inf
    assert formula(bias=bias, window=(1, 0)) == (
        "takes_part[i, j] = bias[i, j] > -inf and i - 1 <= j and j <= i + 0"
    )


@pytest.mark.parametrize(
    "how", [{"seed": 7}, {"dropout_mask": np.arange(30).reshape(2, 3, 5) % 2 == 0}]
)
def test_dropout_shows_what_is_kept(how: dict[str, Any], rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, dropout_p=0.5, valid_lens=[2, 5], **how)
    trace = explained(problem)
    plain = explained(make_problem("dot", rng, valid_lens=[2, 5]).but())
    assert "keep" not in keys_of(plain)
    keep, kept = trace["keep"], trace["kept"]
    assert_allclose(kept.values, trace.weights * keep.values / 0.5, rtol=1e-6, atol=1e-8)
    _, weights = attnext.dot_product_attention(
        **problem.inputs, valid_lens=[2, 5], return_weights=True
    )
    assert_array_equal(trace.weights, weights)  # those before dropout
    live = problem.takes_part()
    assert f"Dropout keeps {keep.values[live].sum()} of {live.sum()} weights." in keep.note
    rule = "philox(seed=7) >= 0.5" if "seed" in how else "dropout_mask"
    assert keep.formula == f"keep = {rule}" and trace["output"].formula == "output = kept @ values"


def test_shared_heads(rng: np.random.Generator) -> None:
    trace = explained(make_problem("dot", rng, lead=(2, 6), kv_heads=3))
    assert trace.steps[0].key == "shared_heads" and trace.steps[0].shape[:2] == (2, 6)
    assert trace.steps[0].formula == "keys = repeat(keys, 2, axis=-3)"
    assert keys_of(explained(make_problem("dot", rng, lead=(2, 6), kv_heads=6)))[0] == "raw"


# ---- the bounds ----------------------------------------------------------------------------------


def spoiled(function: Callable[..., Any], factor: float) -> Callable[..., Any]:
    """The function with its first result wrong in one entry by this factor."""

    def run(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        array = result[0] if isinstance(result, tuple) else result
        array[np.unravel_index(np.argmax(np.abs(array)), array.shape)] *= np.float32(factor)
        return result

    return run


@pytest.mark.parametrize("name", [*FUNCTION.values(), "masked_softmax", *BACKWARDS])
def test_a_wrong_fast_function_is_noticed(
    name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem("additive" if name.startswith("additive") else "dot", rng)
    arguments: dict[str, Any] = {**problem.inputs}
    if name == "masked_softmax":
        arguments = {"X": X}
    elif name == "masked_softmax_backward":
        arguments = {"grad_output": X - 0.5, "weights": X / 4}
    elif name.endswith("backward"):
        arguments |= problem.grads
    getattr(explain, name)(**arguments)
    monkeypatch.setattr(_core, name, spoiled(getattr(_core, name), 1.001))
    with pytest.raises(RuntimeError, match=rf"of attnext\.{name} is .* please report it"):
        getattr(explain, name)(**arguments)


def test_a_wrong_infinity_or_nan_is_noticed() -> None:
    exact, bound = np.array([1.0, np.nan, np.inf]), np.full(3, 1e-6)
    assert accuracy.largest_difference("f", "x", exact, exact, bound) == 0
    for i, wrong in ((0, np.nan), (0, np.inf), (1, 0.0)):
        got = exact.copy()
        got[i] = wrong
        with pytest.raises(RuntimeError, match=rf"x of attnext\.f is {wrong:g} at index \({i},\)"):
            accuracy.largest_difference("f", "x", got, exact, bound)


def test_a_product_is_within_its_bound_down_to_nothing_and_has_none_beyond_float32() -> None:
    x, y = 10.0 ** np.random.default_rng(0).uniform(-27, 25, (2, 2000))
    x, y = (a.astype(np.float32).astype(float) for a in (x, y))
    with np.errstate(all="ignore"):
        product = (x.astype(np.float32) * y.astype(np.float32)).astype(float)
    bound = accuracy.rounded(x * y, 1)
    off = np.abs(product - x * y)
    assert (off <= bound).all()
    assert (off[x * y < accuracy.TINY] > accuracy.gamma(1) * (x * y)[x * y < accuracy.TINY]).any()
    assert_array_equal(np.isinf(bound), x * y > accuracy.HUGE)
    assert np.isinf(bound).sum() > 10


def test_the_bound_of_a_softmax_holds_and_is_nearly_reached() -> None:
    """Where the largest score is too high by as much as all others are too low."""
    scores, error = np.zeros((1, 1000)), 0.01 * np.ones((1, 1000))
    moved = scores - error
    moved[0, 0] += 2 * error[0, 0]
    relative = (np.exp(moved) / np.exp(moved).sum())[0, 0] * 1000 - 1
    live = np.ones(scores.shape, dtype=bool)
    bound = accuracy.relative_error(scores, error, live)
    assert bound.shape == (1, 1)
    assert 0.9 * bound[0, 0] < relative < bound[0, 0]
    scores[0, 1] = -np.inf  # a weight of 0, which no error moves
    assert_array_equal(accuracy.relative_error(scores, error, live), bound)
    error[0, 2] = 5.0
    live[0, 2] = False
    assert_array_equal(accuracy.relative_error(scores, error, live), bound)


@pytest.mark.parametrize(("score", "size"), SCORES_AND_SIZES)
def test_the_bounds_hold_at_any_size(score: str, size: float) -> None:
    """Where softmax saturates, where float32 overflows, where it underflows: no false alarm."""
    for problem in problems_of_size(score, size):
        problem.options.pop("w", None)
        trace = explained(problem)
        assert_is_fast(trace.output, problem.forward())
        if score == "dot":
            explain.dot_product_attention_backward(**problem.grads, **problem.inputs)


@pytest.mark.parametrize("seed", cases(8, of=40))
@pytest.mark.parametrize("score", SCORES)
def test_the_bounds_hold_at_the_edges_of_float32(score: str, seed: int) -> None:
    """One of these numbers anywhere, under masks and dropout of all kinds: no false alarm."""
    rng = np.random.default_rng(seed)
    problem = problem_at_the_edges(score, seed, rng)
    assert_is_fast(explained(problem).output, problem.forward())
    if score == "dot":
        explain.dot_product_attention_backward(**problem.grads, **problem.inputs, **problem.options)
    scores = 10.0 ** rng.uniform(-5, 37) * rng.standard_normal((3, 6))
    scores.flat[rng.integers(18)] = rng.choice(EDGES)
    weights = explain.masked_softmax(scores, rng.integers(0, 8, size=3)).output
    explain.masked_softmax_backward(scores, weights)
    explain.masked_softmax_backward(weights, scores)


def test_the_bounds_hold_where_there_are_many(rng: np.random.Generator) -> None:
    """And what is found between fast and float64 lies in the fifth digit or behind it."""
    for score in SCORES:
        problem = make_problem(score, rng, lead=(1,), M=2, N=3000, D=300, H=100)
        trace = explained(problem)
        assert 0 < trace.difference < 1e-5


def test_difference_and_agreement(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng)
    trace = explained(problem)
    exact = textbook(problem, np.float64)
    difference = max(
        np.max(np.abs(trace.weights - exact["weights"])),
        np.max(np.abs(trace.output - exact["output"])),
    )
    assert_allclose(trace.difference, difference, rtol=1e-6)
    assert f"The two differ by at most {trace.difference:.2g}, which" in trace.agreement
    assert "attnext.dot_product_attention" in trace.agreement and trace.agreement in " ".join(
        str(trace).split()
    )


# ---- large ones ----------------------------------------------------------------------------------


def test_too_many_pairs() -> None:
    q, k = np.zeros((2049, 1), np.float32), np.zeros((2048, 1), np.float32)
    message = (
        "queries and keys form 4196352 pairs, expected at most 4194304 because every step is "
        "kept in memory: pass fewer queries or keys"
    )
    with pytest.raises(ValueError, match=message):
        explain.dot_product_attention(q, k, k)
    with pytest.raises(ValueError, match=message):
        explain.dot_product_attention_backward(q, q, k, k)
    with pytest.raises(ValueError, match=message):
        explain.masked_softmax(np.zeros((2049, 2048), np.float32))


def test_a_large_broadcast_sum_is_summarised(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem("additive", rng, M=4, N=6, H=8, valid_lens=[3, 6])
    whole = explained(problem)
    monkeypatch.setattr(scores, "HIDDEN", 2 * 4 * 6 * 8 - 1)
    trace = explained(problem)
    for key in ("features", "activations"):
        assert trace[key].shape == whole[key].shape == (2, 4, 6, 8)
        assert trace[key].values.shape == (1, 1, 6, 8)
        assert_array_equal(trace[key].values, whole[key].values[:1, :1])
        assert_array_equal(trace[key].masked, whole[key].masked[:1, :1])  # type: ignore[index]
        a, b = trace[key].summary, whole[key].summary
        assert (a.count, a.least, a.largest) == (b.count, b.least, b.largest)
        assert_allclose(a.mean, b.mean, rtol=1e-12)
        assert "288 numbers: min" in str(trace[key])
    assert_array_equal(trace.output, whole.output)


def test_a_broadcast_sum_of_its_real_limit() -> None:
    H = 2**21 // (4 * 8) + 1
    rng = np.random.default_rng(0)
    problem = make_problem("additive", rng, lead=(), M=4, N=8, D=2, H=H)
    trace = explained(problem)
    assert trace["features"].shape == (4, 8, H) and trace["features"].values.shape == (1, 8, H)
    assert trace["features"].summary.count == 4 * 8 * H
    assert len(trace._repr_html_()) < 50_000


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("sizes", [{"M": 0}, {"N": 0}, {"lead": (0,)}, {"D": 0}])
def test_nothing_to_attend_to(score: str, sizes: dict[str, Any], rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, **sizes)
    trace = explained(problem)
    assert_is_fast(trace.output, problem.forward())
    assert str(trace) and trace._repr_html_()
    if "M" in sizes:
        assert "no numbers" in str(trace["output"]) and "no numbers" in trace._repr_html_()
    if score == "dot":
        back = explain.dot_product_attention_backward(**problem.grads, **problem.inputs)
        assert str(back) and back._repr_html_()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 3), (0, 2, 0)])
def test_softmax_of_nothing(shape: tuple[int, ...]) -> None:
    trace = explain.masked_softmax(np.zeros(shape), 2)
    assert trace.output.shape == shape and str(trace) and trace._repr_html_()
    back = explain.masked_softmax_backward(np.zeros(shape), np.zeros(shape), 2)
    assert back.output.shape == shape and str(back) and back._repr_html_()


# ---- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FUNCTION.values(), "masked_softmax", *BACKWARDS])
def test_signatures_are_those_of_the_fast_functions(name: str) -> None:
    def parameters(function: Any) -> list[tuple[str, Any, Any]]:
        found = inspect.signature(function).parameters.values()
        return [(p.name, p.kind, p.default) for p in found]

    not_here = {"return_weights", "return_lse", "out"}
    fast = [p for p in parameters(getattr(attnext, name)) if p[0] not in not_here]
    here = parameters(getattr(explain, name))
    assert here == [*fast, ("lang", inspect.Parameter.KEYWORD_ONLY, "en")]


ONES = np.ones((2, 3, 4))
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("masked_softmax", {"X": ONES, "valid_lens": [1, 2, 3]}),
    ("masked_softmax", {"X": ONES, "valid_lens": [1.5, 2.0]}),
    ("masked_softmax", {"X": ONES, "valid_lens": -1}),
    ("masked_softmax", {"X": ONES, "mask": ONES}),
    ("masked_softmax", {"X": "text"}),
    ("masked_softmax", {"X": 1.0}),
    ("masked_softmax", {"X": ONES, "empty_rows": "one"}),
    ("masked_softmax_backward", {"grad_output": ONES, "weights": ONES[0]}),
    ("dot_product_attention", {"queries": ONES, "keys": ONES[..., :2], "values": ONES}),
    ("dot_product_attention", {"queries": ONES, "keys": ONES, "values": ONES[:1]}),
    ("dot_product_attention", {"queries": ONES, "keys": ONES, "values": ONES, "dropout_p": 0.5}),
    ("dot_product_attention", {"queries": ONES, "keys": ONES, "values": ONES, "window": 3}),
    ("dot_product_attention", {"queries": ONES, "keys": ONES, "values": ONES, "bias": [True]}),
    ("dot_product_attention", {"queries": ONES, "keys": ONES, "values": ONES, "scale": np.inf}),
    ("gaussian_attention", {"queries": ONES, "keys": ONES, "values": ONES, "sigma": 0}),
    ("gaussian_attention", {"queries": ONES, "keys": ONES, "values": ONES, "w": 1, "sigma": 1}),
    ("cosine_attention", {"queries": ONES, "keys": ONES, "values": ONES, "eps": 0}),
    (
        "additive_attention",
        {
            **{"queries": ONES, "keys": ONES, "values": ONES},
            **{"W_q": np.ones((8, 3)), "W_k": np.ones((8, 4)), "w_v": np.ones(8)},
        },
    ),
    (
        "dot_product_attention_backward",
        {"grad_output": ONES[..., :1], "queries": ONES, "keys": ONES, "values": ONES},
    ),
    (
        "dot_product_attention",
        {"queries": torch.ones(1, 2, requires_grad=True), "keys": ONES[0], "values": ONES[0]},
    ),
]


@pytest.mark.parametrize(("name", "arguments"), WRONG)
def test_errors_are_the_fast_functions(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as fast:
        getattr(attnext, name)(**arguments)
    with pytest.raises(type(fast.value), match=re.escape(str(fast.value))):
        getattr(explain, name)(**arguments)


@pytest.mark.parametrize("lang", ["de", "EN", "", None, 1, ["en"]])
def test_an_unknown_language(lang: Any) -> None:
    message = re.escape(f"lang is {lang!r}, expected 'en' or 'zh'")
    with pytest.raises(ValueError, match=message):
        explain.masked_softmax(X, lang=lang)
    with pytest.raises(ValueError, match=message):
        explain.dot_product_attention(X, X, X, lang=lang)
    with pytest.raises(ValueError, match=message):
        explain.dot_product_attention_backward(X, X, X, X, lang=lang)
    with pytest.raises(ValueError, match=message):
        explain.layer(attnext.DotProductAttention(), X, X, X, lang=lang)


def test_inputs_of_any_kind() -> None:
    """Lists, integers, float64, float16 and tensors are what the fast function takes them for."""
    q, k, v = [[1, 2]], np.array([[3.1, 4], [5, 6]]), torch.tensor([[1.0], [2.0]])
    trace = explain.dot_product_attention(q, k, v, torch.tensor(1), scale=np.float16(0.1))
    assert_is_fast(trace.output, attnext.dot_product_attention(q, k, v, 1, scale=np.float16(0.1)))
    assert trace.call == (
        "dot_product_attention(queries=[[1, 2]], keys (2, 2), values (2, 1), valid_lens=1, "
        "scale=0.0999756)"
    )
    beyond = explain.masked_softmax(np.array([1e300, 0.0]))  # inf in float32, without a warning
    assert np.isnan(beyond.output).all()
    biased = explain.dot_product_attention(
        *([[1.0]], [[1.0], [1.0]], [[1.0], [2.0]]), bias=np.array([[-1e300, 0.0]])
    )  # -inf in float32, which masks
    assert biased.output == 2 and biased["takes_part"].values.tolist() == [[False, True]]


def test_the_call_leaves_out_what_is_as_by_default() -> None:
    """Of the options of all attentions, and of a score's own."""
    x, inputs = [[3, 4]], "queries=[[3, 4]], keys=[[3, 4]]"
    assert explain.cosine_scores(x, x).call == f"cosine_scores({inputs})"
    given = explain.cosine_scores(x, x, scale=1.0, eps=1e-3)
    assert given.call == f"cosine_scores({inputs}, eps=0.001)"
    attended = explain.cosine_attention(x, x, x, causal=False, softcap=None)
    assert attended.call == f"cosine_attention({inputs}, values=[[3, 4]])"
    back = explain.cosine_attention_backward([[1, 1]], x, x, x)
    assert back.call.endswith(f"_backward(grad_output=[[1, 1]], {inputs}, values=[[3, 4]])")
    assert explain.sequence_mask(x, [1]).call == "sequence_mask(X=[[3, 4]], valid_len=[1])"


def test_inputs_are_not_written_and_results_share_no_memory(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, valid_lens=[2, 4], bias=np.zeros((3, 5), np.float32))
    before = {name: x.copy() for name, x in problem.inputs.items()}
    trace = explained(problem)
    for step in trace.steps:
        for name, x in problem.inputs.items():
            assert not np.shares_memory(step.values, x), (step.key, name)
    for name, x in problem.inputs.items():
        assert_array_equal(x, before[name])


# ---- words ---------------------------------------------------------------------------------------


def placeholders(text: str) -> set[str]:
    return set(re.findall(r"\{(\w+)", text))


@pytest.mark.parametrize("key", STEPS)
def test_every_step_is_worded_in_both_languages(key: str) -> None:
    words = STEPS[key]
    assert words.formula and words.en[0] and words.zh[0]
    assert words.en[1].endswith(".") and words.zh[1].endswith("。")
    assert words.formula.isascii() and (words.en[0] + words.en[1]).isascii()
    assert re.search(r"[\u4e00-\u9fff]", words.zh[0] + words.zh[1])
    assert not re.search(r"[\u4e00-\u9fff][,.;:!?()]", words.zh[1]), "a mark of the wrong width"


@pytest.mark.parametrize("table", [TITLES, AXES, PHRASES])
def test_phrases_are_worded_in_both_languages(table: dict[str, dict[str, str]]) -> None:
    for key, words in table.items():
        assert tuple(words) == LANGUAGES and all(words.values()), key
        assert placeholders(words["en"]) == placeholders(words["zh"]), key


@pytest.mark.parametrize("score", SCORES)
def test_languages_differ_in_words_alone(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, valid_lens=[0, 4], dropout_p=0.5, seed=1)
    en, zh = explained(problem), explained(problem, lang="zh")
    assert keys_of(en) == keys_of(zh) and en.title != zh.title and en.call == zh.call
    for a, b in zip(en.steps, zh.steps, strict=True):
        assert a.formula == b.formula and a.name != b.name and a.note != b.note
        assert a.shape == b.shape
        assert_array_equal(a.values, b.values)
    assert "{" not in str(en) + str(zh)


def test_every_step_of_the_table_is_used(rng: np.random.Generator) -> None:
    bias = np.zeros((3, 5), np.float32)
    modifiers: dict[str, Any] = {"softcap": 2.0, "bias": bias}
    traces = [
        explain.masked_softmax(X, [0, 3]),
        explain.masked_softmax_backward(X, X),
        *(
            explained(make_problem(s, rng, valid_lens=2, dropout_p=0.5, seed=1, **modifiers))
            for s in SCORES
        ),
        explained(make_problem("dot", rng, lead=(2, 4), kv_heads=2, scale=2.0, sink=0.5)),
        explain.layer(
            attnext.kernel_regression.NWKernelRegression(), [1.0], [[1.0, 2.0]], [[1.0, 2.0]]
        ),
        explain.positional_encoding(2, 3),
        explain.multi_head_attention(*[np.eye(2)] * 7, num_heads=1),
        explain.layer(dot := attnext.DotProductAttention(), X, dot.memory(X, X)),
    ]
    problem = make_problem("dot", rng)
    traces.append(
        explain.dot_product_attention_backward(
            **problem.grads,
            **problem.inputs,
            **modifiers,
            sink=[0.5],
            return_grad_bias=True,
            return_grad_sink=True,
            return_grad_scale=True,
        )
    )
    for score in ("additive", "gaussian", "cosine"):
        problem = make_problem(score, rng)
        backward = getattr(explain, f"{FUNCTION[score]}_backward")
        traces.append(backward(**problem.grads, **problem.inputs, **problem.options))
    square = [np.eye(2)] * 7
    traces += [
        explain.multi_head_attention_backward(np.eye(2), *square, num_heads=1),
        explain.dot_product_scores_backward(np.eye(2), *square[:2]),
        explain.sequence_mask(np.eye(2), [1, 2]),
        explain.merge_attention([np.eye(2)], [np.ones(2)]),
        explain.merge_attention_backward(np.eye(2), [np.eye(2)], [np.ones(2)]),
    ]
    used = {step.key for trace in traces for step in trace.steps}
    of_heads = {"d_q", "d_k", "d_v"} | {f"d_{name}" for name in ARRAYS if name[1] == "_"}
    assert used - of_heads - {"d_w_v", "d_b_h"} == set(STEPS)  # those have words of several


# ---- the trace -----------------------------------------------------------------------------------


def test_a_trace_is_indexed_by_key() -> None:
    trace = explain.masked_softmax(X)
    assert trace["exp"] is trace.steps[1]
    with pytest.raises(KeyError, match="there is no step 'keep', expected one of: X, exp, total"):
        trace["keep"]
    assert repr(trace) == "<Trace of 4 steps: X, exp, total, softmax>"
    assert repr(trace["total"]) == "<Step total, shape (4,)>"
    with pytest.raises(AttributeError):
        trace.title = "another"  # type: ignore[misc]


def test_summaries() -> None:
    step = explain.masked_softmax([1.0, 2.0, np.nan, 7.0], mask=[True, True, False, True])["flat"]
    assert step.summary.count == 4 and math.isnan(step.summary.largest)  # the scores as they came
    masked = explain.masked_softmax([1.0, 2.0, np.nan, 7.0], mask=[True, True, False, True])
    s = masked["masked"].summary
    assert (s.count, s.least, s.largest) == (3, 1.0, 7.0) and s.mean == 10 / 3
    nothing = steps.summarise(np.zeros(0))
    assert nothing.count == 0 and math.isnan(nothing.mean)


def test_importing_attnext_does_not_load_it() -> None:
    code = (
        "import sys, attnext; assert 'attnext.explain' not in sys.modules; "
        "attnext.explain.masked_softmax([1.0, 2.0]); "
        "print(sorted({'torch', 'matplotlib', 'dask', 'IPython'} & set(sys.modules)))"
    )
    assert run_python("-c", code).stdout == "[]\n"
