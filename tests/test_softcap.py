"""softcap: every score s becomes c * tanh(s / c), before bias and masks, forward and backward.

The exact results are those of the textbook in float64 (helpers.py); the reference, PyTorch's
autograd and ONNX's own operator are held against it here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import dask.array as da
import numpy as np
import onnx
import onnx.reference
import pytest
import torch
from helpers import (
    FUNCTION,
    PARAMETERS,
    SCORES,
    SCORES_FUNCTION,
    Array,
    Problem,
    assert_same_bits,
    check,
    error_of,
    make_problem,
    random_masks,
    textbook,
    textbook_scores,
    under_cap,
)

import attnext
import attnext.dask
import attnext.torch
from attnext import explain, reference
from attnext.testing import assert_gradients_close, numerical_gradient

CAPS = (0.3, 2.0, 50.0)  # most scores are at the first, hardly any near the last
PART_KEYS = 4096  # of plan_split.c

score_cases = pytest.mark.parametrize("score", SCORES)


def scores_of(problem: Problem, module: Any = attnext) -> Array:
    """What the function of the scores alone makes of the problem."""
    inputs = {name: x for name, x in problem.inputs.items() if name != "values"}
    scores: Array = getattr(module, SCORES_FUNCTION[problem.score])(**inputs, **problem.options)
    return scores


# ---- against the textbook ------------------------------------------------------------------------


@pytest.mark.parametrize("M", [1, 2, 3, 17, 70])
@pytest.mark.parametrize("softcap", CAPS)
@score_cases
def test_queries_and_keys_around_every_boundary(
    score: str, softcap: float, M: int, rng: np.random.Generator
) -> None:
    for N in (1, 16, 17, 129):
        check(make_problem(score, rng, M=M, N=N, D=5, Dv=3, H=7, softcap=softcap))


@pytest.mark.parametrize("M", [1, 2, 20])
@score_cases
def test_with_every_other_option(score: str, M: int, rng: np.random.Generator) -> None:
    for softcap, empty_rows in product(CAPS, ("uniform", "zero", "nan")):
        options: dict[str, Any] = {"softcap": softcap, "empty_rows": empty_rows}
        options |= {"dropout_mask": rng.random((2, 1, 140)) < 0.7, "dropout_p": 0.3}
        options |= random_masks(rng, (2, 2), M, 140)
        check(make_problem(score, rng, lead=(2, 2), M=M, N=140, H=5, kv_heads=1, **options))


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


@score_cases
def test_what_the_forward_returned_saves_computing_it(score: str, rng: np.random.Generator) -> None:
    """The slope at a score is not in the weights: they are handed back, and it is computed."""
    for N in (40, 300):
        problem = make_problem(score, rng, M=20, N=N, valid_lens=[N - 3, N // 2], softcap=0.5)
        output, weights, lse = problem.forward(return_weights=True, return_lse=True)
        saved = {"output": output, "weights": weights, "lse": lse}
        expected = textbook(problem, np.float64)
        for names in (["weights"], ["lse"], ["output", "lse"], ["weights", "output", "lse"]):
            got = problem.backward(**{name: saved[name] for name in names})
            for name, x in got.items():
                assert error_of(x, expected[name]) <= 1e-5 * np.abs(expected[name]).max(), name


# ---- against others ------------------------------------------------------------------------------


@score_cases
def test_reference(score: str, rng: np.random.Generator) -> None:
    for softcap in CAPS:
        masks = random_masks(rng, (2,), 4, 6)
        problem = make_problem(score, rng, M=4, N=6, softcap=np.float32(softcap), **masks)
        exact, got = textbook(problem, np.float64), problem.run(reference)
        for name, x in exact.items():
            np.testing.assert_allclose(got[name], x, rtol=1e-10, atol=1e-13, err_msg=name)
        expected, _ = under_cap(problem, textbook_scores(problem, np.float64)[0])
        alone = Problem(score, problem.inputs, {"softcap": np.float32(softcap)})
        if score == "gaussian":
            alone = alone.but(w=problem.options["w"])
        np.testing.assert_allclose(scores_of(alone, reference), expected, rtol=1e-12, atol=1e-14)


def by_autograd(problem: Problem) -> dict[str, Array]:
    """Every gradient by PyTorch, of formulas as one writes them there, in float64."""
    x = {name: torch.tensor(a, dtype=torch.float64) for name, a in problem.inputs.items()}
    if problem.score == "gaussian":
        x["w"] = torch.tensor(float(problem.options["w"]), dtype=torch.float64)
    for leaf in x.values():
        leaf.requires_grad_()
    q, k, c = x["queries"], x["keys"], problem.options["softcap"]
    if problem.score == "dot":
        s = q @ k.mT / q.shape[-1] ** 0.5
    elif problem.score == "cosine":
        s = torch.nn.functional.normalize(q, dim=-1) @ torch.nn.functional.normalize(k, dim=-1).mT
    elif problem.score == "gaussian":
        s = -((x["w"] * (q[..., :, None, :] - k[..., None, :, :])) ** 2).sum(-1) / 2
    else:
        hidden = (q @ x["W_q"].T)[..., :, None, :] + (k @ x["W_k"].T)[..., None, :, :]
        s = torch.tanh(hidden) @ x["w_v"]
    weights = torch.softmax(c * torch.tanh(s / c), dim=-1)
    outputs = (weights @ x["values"], weights)
    grads = [torch.tensor(problem.grads[name]) for name in ("grad_output", "grad_weights")]
    torch.autograd.backward(outputs, grads)
    return {f"d_{name}": leaf.grad.numpy() for name, leaf in x.items() if leaf.grad is not None}


@pytest.mark.parametrize("softcap", CAPS)
@score_cases
def test_autograd_of_pytorch(score: str, softcap: float, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=6, N=9, softcap=softcap)
    del problem.grads["grad_lse"]
    expected, got = by_autograd(problem), problem.backward()
    assert got.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(got[name], x, rtol=2e-5, atol=2e-6, err_msg=name)


@score_cases
def test_central_differences(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=2, N=4, softcap=0.8)
    names = [name for name in problem.inputs if name not in ("grad_output", "b_h")]

    def loss(*arrays: Any) -> float:
        but = Problem(score, dict(zip(names, arrays, strict=True)), problem.options)
        results = but.forward(reference, return_weights=True, return_lse=True)
        return float(
            sum(np.sum(a * b) for a, b in zip(problem.grads.values(), results, strict=True))
        )

    arrays = [problem.inputs[name].astype(np.float64) for name in names]
    d = problem.backward()
    for i, name in enumerate(names):
        numerical = numerical_gradient(
            lambda x, i=i: loss(*arrays[:i], x, *arrays[i + 1 :]), arrays[i]
        )
        assert_gradients_close(d[f"d_{name}"], numerical, rtol=1e-4, atol=1e-5)


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
@score_cases
def test_padding_is_never_read(score: str, M: int, rng: np.random.Generator) -> None:
    """Whatever a key is that takes no part: its score, and the slope there, reach nothing."""
    problem = make_problem(
        score, rng, M=M, N=140, valid_lens=[60, 0], softcap=0.6, empty_rows="zero"
    )
    mask = rng.random((2, 1, 140)) < 0.8
    problem = problem.but(mask=mask)
    unused = ~(mask[:, 0] & (np.arange(140) < [[60], [0]]))
    results = []
    for poison in (0.0, np.nan, np.inf, 3e38):
        inputs = {name: x.copy() for name, x in problem.inputs.items()}
        inputs["keys"][unused] = inputs["values"][unused] = poison
        inputs["queries"][1] = poison
        results.append(Problem(score, inputs, problem.options, problem.grads).run())
        assert not np.any(results[-1]["d_keys"][unused])
    for each in results[1:]:
        assert_same_bits(each, results[0])


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


@pytest.mark.parametrize("softcap", [1e30, float(np.finfo(np.float32).max)])
@pytest.mark.parametrize("M", [1, 35])
@score_cases
def test_a_huge_cap_changes_no_bit(
    score: str, M: int, softcap: float, rng: np.random.Generator
) -> None:
    problem = make_problem(score, rng, M=M, N=140, valid_lens=[100, 0])
    expected, got = problem.run(), problem.but(softcap=softcap).run()
    if score == "gaussian":  # whose sum for w starts at the nearest key only without a cap
        np.testing.assert_allclose(got.pop("d_w"), expected.pop("d_w"), rtol=1e-5)
    assert_same_bits(got, expected)
    np.testing.assert_array_equal(attnext.dot_product_scores([[0.0]], [[1.0]], softcap=softcap), 0)


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


# ---- the same bits -------------------------------------------------------------------------------


@pytest.mark.parametrize("N", [77, 300, 2 * PART_KEYS + 9])
@score_cases
def test_a_query_alone_gives_the_bits_that_it_gives_among_others(
    score: str, N: int, rng: np.random.Generator
) -> None:
    many = make_problem(score, rng, M=19, N=N, D=7, H=5, extra_grads=False, softcap=0.9)
    inputs = {**many.inputs, "queries": many.inputs["queries"][:, 7:8]}
    grads = {"grad_output": many.grads["grad_output"][:, 7:8]}
    few = Problem(score, inputs, many.options, grads)
    extras = {"return_weights": True, "return_lse": True}
    for one, all_of_them in zip(few.forward(**extras), many.forward(**extras), strict=True):
        np.testing.assert_array_equal(one, all_of_them[:, 7:8])
    np.testing.assert_array_equal(few.backward()["d_queries"], many.backward()["d_queries"][:, 7:8])


@pytest.mark.parametrize(("M", "N"), [(1, 3 * PART_KEYS), (300, 259)])
@score_cases
def test_any_number_of_threads(
    score: str, M: int, N: int, rng: np.random.Generator, threads: None
) -> None:
    problem = make_problem(score, rng, M=M, N=N, D=16, Dv=8, H=8, softcap=0.9)
    attnext.set_num_threads(1)
    expected = problem.run()
    for n in (2, 3):
        attnext.set_num_threads(n)
        assert_same_bits(problem.run(), expected)


# ---- the other modules ---------------------------------------------------------------------------


@score_cases
def test_torch(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=6, N=9, softcap=0.7, extra_grads=False)
    x = {name: torch.tensor(a, requires_grad=True) for name, a in problem.inputs.items()}
    output = getattr(attnext.torch, FUNCTION[score])(**x, **problem.options)
    output.backward(torch.tensor(problem.grads["grad_output"]))
    lse = problem.forward(return_lse=True)[1]  # which attnext.torch keeps for the backward
    expected = problem.backward(lse=lse, output=problem.forward())
    np.testing.assert_array_equal(output.detach().numpy(), problem.forward())
    for name, leaf in x.items():
        assert leaf.grad is not None
        np.testing.assert_array_equal(leaf.grad.numpy(), expected[f"d_{name}"])


@score_cases
def test_dask(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=6, N=9, softcap=0.7, extra_grads=False)
    blocks = {
        name: da.from_array(x, chunks=(1, 4, -1)) if x.ndim == 3 else x
        for name, x in problem.inputs.items()
    }
    chunked = Problem(score, blocks, problem.options, problem.grads)
    output = chunked.forward(attnext.dask).compute()
    np.testing.assert_allclose(output, problem.forward(), rtol=1e-5, atol=1e-6)
    expected = problem.backward()
    for name, d in chunked.backward(attnext.dask).items():
        np.testing.assert_allclose(d.compute(), expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lang", ["en", "zh"])
@score_cases
def test_explain(score: str, lang: str, rng: np.random.Generator) -> None:
    """A step of its own between the scores and the bias; the weights are the fast function's."""
    for softcap in CAPS:
        bias = rng.standard_normal((3, 5), dtype=np.float32)
        problem = make_problem(score, rng, softcap=softcap, bias=bias, valid_lens=[3, 5])
        trace = getattr(explain, FUNCTION[score])(**problem.inputs, **problem.options, lang=lang)
        step = trace["softcap"]
        live = problem.takes_part()
        expected, _ = under_cap(problem, textbook_scores(problem, np.float64)[0])
        np.testing.assert_allclose(step.values[live], expected[live], rtol=1e-6)
        keys = [step.key for step in trace.steps]
        assert keys.index("softcap") + 1 == keys.index("bias")
        assert step.formula == f"scores = {softcap:.6g} * tanh(scores / {softcap:.6g})"
        assert ("cap" in step.name) if lang == "en" else ("软上限" in step.name)


@pytest.mark.parametrize("softcap", CAPS)
def test_explain_backward(softcap: float, rng: np.random.Generator) -> None:
    bias = rng.standard_normal((3, 5), dtype=np.float32)
    problem = make_problem("dot", rng, softcap=softcap, bias=bias, valid_lens=[3, 5])
    options = {**problem.grads, **problem.inputs, **problem.options, "return_grad_bias": True}
    trace = explain.dot_product_attention_backward(**options)
    exact = reference.dot_product_attention_backward(**options)
    for got, x in zip(trace.output, exact, strict=True):
        np.testing.assert_allclose(got, x, rtol=1e-4, atol=1e-5)
    live = problem.takes_part()
    assert np.all(np.abs(trace["d_softcap"].values[live]) < np.abs(trace["d_scores"].values[live]))


# ---- what it may be ------------------------------------------------------------------------------

X = np.zeros((2, 3, 4), np.float32)
WRONG: list[tuple[Any, type[Exception], str]] = [
    (-1.0, ValueError, "softcap is -1.0, expected softcap > 0"),
    (0, ValueError, "softcap is 0, expected softcap > 0"),
    (1e-60, ValueError, "softcap is 1e-60, expected softcap > 0 in float32"),
    (np.inf, ValueError, "softcap is inf, expected a finite float32 number"),
    (1e39, ValueError, "softcap is 1e+39, expected a finite float32 number"),
    (np.nan, ValueError, "softcap is nan, expected a finite float32 number"),
    ([1.0], ValueError, "softcap has shape (1,), expected a number"),
    (True, TypeError, "softcap must be a number, got bool"),
    ("1", TypeError, "softcap must be a number, got str"),
    (1j, TypeError, "softcap must be a number, got complex"),
]
TAKE_IT: list[Callable[[Any], Any]] = [
    lambda c: attnext.dot_product_attention(X, X, X, softcap=c),
    lambda c: attnext.gaussian_attention_backward(X, X, X, X, softcap=c),
    lambda c: attnext.cosine_scores(X, X, softcap=c),
    lambda c: attnext.cosine_scores_backward(np.zeros((2, 3, 3)), X, X, softcap=c),
    lambda c: attnext.torch.dot_product_attention(*[torch.tensor(X)] * 3, softcap=c),
    lambda c: attnext.torch.dot_product_scores(*[torch.tensor(X)] * 2, softcap=c),
    lambda c: explain.dot_product_attention(X, X, X, softcap=c),
    lambda c: attnext.dask.dot_product_attention(*[da.from_array(X)] * 3, softcap=c),
]


@pytest.mark.parametrize("take", range(len(TAKE_IT)))
@pytest.mark.parametrize(("softcap", "error", "message"), WRONG, ids=repr)
def test_wrong(softcap: Any, error: type[Exception], message: str, take: int) -> None:
    with pytest.raises(error) as caught:
        TAKE_IT[take](softcap)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("softcap", [0.5, 2, np.float64(0.5), np.int16(3), np.array(0.5)], ids=repr)
def test_any_number(softcap: Any, rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng)
    expected = problem.but(softcap=float(softcap)).run()
    assert_same_bits(problem.but(softcap=softcap).run(), expected)
    assert_same_bits(problem.but(softcap=None).run(), problem.run())
    assert not np.array_equal(problem.forward(), expected["output"])


def test_every_parameter_has_a_gradient_through_the_cap(rng: np.random.Generator) -> None:
    for score in SCORES:
        capped = make_problem(score, rng, softcap=0.5).backward()
        assert all(np.any(capped[f"d_{name}"]) for name in PARAMETERS[score] if name != "b_h")
