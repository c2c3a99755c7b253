"""The sink: one more logit in each row's softmax, which takes weight and has no value (gpt-oss)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    EMPTY_ROWS,
    FUNCTION,
    SCORES,
    Array,
    Problem,
    assert_all_accurate,
    assert_same_bits,
    bits,
    check,
    check_padding,
    make_problem,
    over_broadcast,
    random_masks,
    repr_id,
    textbook,
    textbook_scores,
)

import attnext
import attnext.torch
from attnext import explain, reference
from attnext.testing import numerical_gradient, rel_error

score_cases = pytest.mark.parametrize("score", SCORES)
INF = np.float32(np.inf)


def random_sink(rng: np.random.Generator, *shape: int) -> Array:
    """One in four is none."""
    sink = rng.standard_normal(shape, dtype=np.float32)
    return np.where(rng.random(shape) < 0.25, -INF, sink)


# ---- against formulas in float64 -----------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (6,), (3, 1), (2, 1, 1), (2, 3, 6)], ids=str)
@score_cases
def test_any_shape(score: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    sink = rng.standard_normal(shape, dtype=np.float32)
    lens = rng.integers(0, 131, size=(2, 6))
    problem = make_problem(
        score, rng, lead=(2, 3), M=6, N=130, D=3, Dv=2, H=3, sink=sink, valid_lens=lens
    )
    got = check(problem)
    assert got["d_sink"].shape == shape
    assert (got["weights"].sum(axis=-1) < 1).all()


@pytest.mark.parametrize("which", range(30))
def test_with_all_other_options(which: int, rng: np.random.Generator) -> None:
    """Masks of every kind, empty rows, shared heads, dropout; a query, a few, several blocks."""
    rng = np.random.default_rng(which)
    M, N = [(1, 300), (2, 7), (5, 130), (35, 140), (70, 20)][which % 5]
    options = random_masks(rng, (2, 4), M, N)
    if which % 3 == 0:
        options |= {"dropout_p": 0.3, "seed": which}
    problem = make_problem(
        SCORES[which % 4],
        rng,
        lead=(2, 4),
        M=M,
        N=N,
        kv_heads=[None, 1, 2][which % 3],
        sink=random_sink(rng, *[(4, 1), (2, 1, M), (M,), (2, 4, M)][which // 4 % 4]),
        empty_rows=EMPTY_ROWS[which % 3],
        **options,
    )
    got = problem.run()
    assert_all_accurate(got, textbook(problem, np.float64), problem)
    check_padding(problem, got)


@pytest.mark.parametrize("N", [5, 140])
@score_cases
def test_the_reference(score: str, N: int, rng: np.random.Generator) -> None:
    options = random_masks(rng, (2, 2), 6, N)
    problem = make_problem(
        score, rng, lead=(2, 2), M=6, N=N, sink=random_sink(rng, 2, 6), **options
    )
    exact, found = textbook(problem, np.float64), problem.run(reference)
    assert exact.keys() == found.keys()
    for name, x in found.items():
        np.testing.assert_allclose(x, exact[name], rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("lens", [None, [3, 0]], ids=str)
@score_cases
def test_central_differences(score: str, lens: list[int] | None, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, lead=(2, 2), M=3, N=5, valid_lens=lens, sink=[[0.3], [-1.0]])
    d = problem.backward(reference, return_grad_sink=True)

    def loss(sink: Array) -> float:
        results = problem.but(sink=sink).forward(reference, return_weights=True, return_lse=True)
        return float(sum(np.sum(g * x) for g, x in zip(grads, results, strict=True)))

    grads = [problem.grads[f"grad_{name}"] for name in ("output", "weights", "lse")]
    slope = numerical_gradient(loss, np.array(problem.options["sink"]))
    assert rel_error(d["d_sink"], slope) < 1e-7


@score_cases
def test_autograd_of_a_softmax_with_one_more_column(score: str, rng: np.random.Generator) -> None:
    """The code of gpt-oss: the logits get a column, and the softmax loses it."""
    problem = make_problem(score, rng, lead=(2, 3), M=4, N=7, sink=random_sink(rng, 3, 1))
    scores, _ = textbook_scores(problem, np.float64)
    s = torch.tensor(scores, requires_grad=True)
    sink = torch.tensor(problem.options["sink"].astype(float), requires_grad=True)
    column = sink[..., None].expand(2, 3, 4, 1)
    logits = torch.cat([s, column], dim=-1)
    weights, lse = logits.softmax(dim=-1)[..., :-1], logits.logsumexp(dim=-1)
    output = weights @ torch.tensor(problem.inputs["values"]).double()
    grads = {name: torch.tensor(g).double() for name, g in problem.grads.items()}
    flow = grads["grad_output"].mul(output).sum() + grads["grad_weights"].mul(weights).sum()
    (flow + grads["grad_lse"].mul(lse).sum()).backward()
    got = problem.run()
    for name, x in [("output", output), ("weights", weights), ("lse", lse), ("d_sink", sink.grad)]:
        assert rel_error(got[name], x.detach().numpy()) < 1e-5, name


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
def test_no_sink(score: str, M: int, rng: np.random.Generator) -> None:
    """-inf is none, bit by bit, head by head."""
    problem = make_problem(score, rng, lead=(2, 3), M=M, N=140, valid_lens=[0, 100])
    without = problem.run()
    none = problem.but(sink=np.full((3, 1), -np.inf)).run()
    assert not np.any(none.pop("d_sink"))
    assert_same_bits(none, without)
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


# ---- what the forward handed back, and what flows ------------------------------------------------


@pytest.mark.parametrize("M, N", [(1, 20), (1, 300), (20, 100), (70, 300)])
@score_cases
def test_saved_results(score: str, M: int, N: int, rng: np.random.Generator) -> None:
    """Weights say little of a sink that is small or large beside them."""
    sink = np.float32([[-9], [0], [9]])
    problem = make_problem(
        score, rng, lead=(2, 3), M=M, N=N, valid_lens=[N, N // 3], sink=sink, extra_grads=False
    )
    problem.grads["grad_lse"] = rng.standard_normal((2, 3, M), dtype=np.float32)
    output, weights, lse = problem.forward(return_weights=True, return_lse=True)
    exact = problem.backward(return_grad_sink=True)
    for saved in ({"weights": weights}, {"lse": lse}, {"output": output, "lse": lse},
                  {"weights": weights, "lse": lse, "output": output}):  # fmt: skip
        found = problem.backward(return_grad_sink=True, **saved)
        for name, x in exact.items():
            np.testing.assert_allclose(
                found[name], x, rtol=2e-4, atol=1e-5 * np.abs(x).max(), err_msg=name
            )


@pytest.mark.parametrize("name", ["output", "weights", "lse"])
@score_cases
def test_the_gradient_flows_through_every_output(
    score: str, name: str, rng: np.random.Generator
) -> None:
    problem = make_problem(score, rng, M=20, N=140, sink=np.ones((2, 1)), valid_lens=[100, 140])
    every = problem.grads
    problem.grads = {"grad_output": np.zeros_like(every["grad_output"])}
    problem.grads[f"grad_{name}"] = every[f"grad_{name}"]
    assert np.any(check(problem)["d_sink"])


@score_cases
def test_asked_for_or_not(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=35, N=140, sink=np.ones((2, 1)), bias=np.zeros(140))
    plain = problem.backward()
    both = problem.backward(return_grad_sink=True, return_grad_bias=True)
    assert list(both)[-2:] == ["d_bias", "d_sink"]
    assert_same_bits({name: both[name] for name in plain}, plain)
    function = getattr(attnext, FUNCTION[score] + "_backward")
    none = problem.but(sink=None)
    d = function(**none.grads, **none.inputs, **none.options, return_grad_sink=True)
    assert d[-1] is None


# ---- the same bits -------------------------------------------------------------------------------


@pytest.mark.parametrize("N", [130, 4096, 5000, 9000])
@score_cases
def test_split_keys(score: str, N: int, rng: np.random.Generator) -> None:
    """The sink enters once, not in every part of the keys; a query alone gives its bits."""
    sink = rng.standard_normal((2, 1), dtype=np.float32) + 5
    problem = make_problem(score, rng, M=20, N=N, D=3, Dv=2, H=3, sink=sink, extra_grads=False)
    got = problem.run()
    assert_all_accurate(got, textbook(problem, np.float64), problem)
    inputs = {**problem.inputs, "queries": problem.inputs["queries"][:, 7:8]}
    output, lse = Problem(score, inputs, problem.options).forward(return_lse=True)
    np.testing.assert_array_equal(bits(output[:, 0]), bits(got["output"][:, 7]))
    np.testing.assert_array_equal(bits(lse[:, 0]), bits(got["lse"][:, 7]))


@pytest.mark.parametrize("M", [1, 33])
@score_cases
def test_padding(score: str, M: int, rng: np.random.Generator) -> None:
    """Behind the lengths, and above them, by whatever is there: no bit of any result."""
    N, lens = 130, rng.integers(0, 131, size=(2, M))
    problem = make_problem(score, rng, M=M, N=N, valid_lens=lens, sink=rng.normal(size=(2, 1)))
    expected = problem.run()
    for padding, filling in [(1, np.nan), (16, np.inf), (300, np.nan), (9000, 0.0)]:
        padded = Problem(score, dict(problem.inputs), problem.options, dict(problem.grads))
        behind = ((0, 0), (0, padding), (0, 0))
        for name in ("keys", "values"):
            padded.inputs[name] = np.pad(problem.inputs[name], behind, constant_values=filling)
        grad = problem.grads["grad_weights"]
        padded.grads["grad_weights"] = np.pad(grad, behind[::2] + behind[1:2], constant_values=0.5)
        got = padded.run()
        got["weights"] = got["weights"][..., :N]
        got["d_keys"], got["d_values"] = got["d_keys"][:, :N], got["d_values"][:, :N]
        assert_same_bits(got, expected)


@score_cases
def test_threads(score: str, rng: np.random.Generator, threads: None) -> None:
    sinks = [rng.standard_normal(shape, dtype=np.float32) for shape in [(3, 1), (), (300,)]]
    for sink in sinks:
        problem = make_problem(score, rng, lead=(2, 3), M=300, N=140, kv_heads=1, sink=sink)
        attnext.set_num_threads(1)
        expected = problem.run()
        for n in (2, 5):
            attnext.set_num_threads(n)
            assert_same_bits(problem.run(), expected)


@score_cases
def test_a_shared_sink_has_the_sum_of_the_gradients(score: str, rng: np.random.Generator) -> None:
    sink = rng.standard_normal((3, 1), dtype=np.float32)
    problem = make_problem(score, rng, lead=(2, 3), M=70, N=140, sink=sink)
    got = problem.run()
    full = problem.but(sink=np.broadcast_to(sink, (2, 3, 70))).run()
    d_sink, d_full = got.pop("d_sink"), full.pop("d_sink").astype(np.float64)
    assert_same_bits(got, full)
    np.testing.assert_allclose(d_sink, over_broadcast(np.sum, d_full, sink.shape), rtol=1e-6)


# ---- arguments -----------------------------------------------------------------------------------


WRONG: list[tuple[Any, type[Exception], str]] = [
    (np.ones(3), ValueError, r"sink has shape \(3,\), expected a .* broadcasts to \(2, 5\)"),
    (np.ones((2, 5, 1)), ValueError, r"sink has shape \(2, 5, 1\), expected .* \(2, 5\)"),
    (np.ones((4, 2, 5)), ValueError, r"sink has shape \(4, 2, 5\), expected .* \(2, 5\)"),
    (np.nan, ValueError, "sink contains nan, expected finite .*numbers, or -inf for none"),
    ([0, np.inf, 0, 0, 0], ValueError, "sink contains inf, expected finite"),
    (True, TypeError, "sink has dtype bool, expected real numbers"),
    ([True] * 5, TypeError, "sink has dtype bool, expected real numbers"),
    (1j, TypeError, "sink has dtype complex128, expected real numbers"),
    ("0", TypeError, "sink has dtype"),
    (np.ma.ones(5), TypeError, "sink is a .*MaskedArray"),
    (torch.ones(5, requires_grad=True), TypeError, "sink is a tensor that requires grad"),
]  # fmt: skip


@pytest.mark.parametrize("sink, error, message", WRONG, ids=repr_id)
def test_wrong_sinks(
    sink: Any, error: type[Exception], message: str, rng: np.random.Generator
) -> None:
    for score in SCORES:
        problem = make_problem(score, rng, M=5, sink=sink)
        for module in (attnext, reference):
            for call in (problem.forward, problem.backward):
                with pytest.raises(error, match=message):
                    call(module)
    if error is ValueError and "inf" in message:
        with pytest.raises(ValueError, match="sink contains inf"):
            attnext.dot_product_attention(**problem.inputs, sink=1e39)  # in float32
    with pytest.raises(TypeError, match="unexpected keyword argument 'sink'"):
        attnext.dot_product_scores(np.ones((1, 2)), np.ones((1, 2)), sink=0.0)


def test_forms_and_ownership(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, lead=(2, 3), M=4, N=6)
    sink = np.array([[1.0], [-2.0], [3.0]], dtype=np.float32)
    expected = problem.but(sink=sink).run()
    for form in (sink.tolist(), sink.astype(np.float64), sink.astype(np.float16),
                 sink.astype(int), np.asfortranarray(sink), sink[::-1][::-1],
                 torch.tensor(sink), sink.astype(">f4")):  # fmt: skip
        assert_same_bits(problem.but(sink=form).run(), expected)
    np.testing.assert_array_equal(sink, [[1], [-2], [3]])
    out = np.ones((2, 3, 4, 3), np.float32)
    with pytest.raises(ValueError, match="out shares memory with sink"):
        problem.but(sink=out[0, :, :1, 0]).forward(out=out)


# ---- attnext.torch -------------------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES)
def test_tensors(score: str, rng: np.random.Generator) -> None:
    """The sink is an input, to which a gradient flows."""
    problem = make_problem(score, rng, lead=(2, 3), M=4, N=7, w=np.float32(0.5))
    if score != "gaussian":
        del problem.options["w"]
    sink = torch.tensor([[0.5], [-np.inf], [2.0]], requires_grad=True)
    inputs = {name: torch.tensor(x) for name, x in problem.inputs.items()}
    function = getattr(attnext.torch, FUNCTION[score])
    output = function(**inputs, **problem.options, sink=sink)
    output.backward(torch.tensor(problem.grads["grad_output"]))
    problem.grads = {"grad_output": problem.grads["grad_output"]}
    expected = problem.but(sink=sink.detach().numpy())
    np.testing.assert_array_equal(bits(output.detach().numpy()), bits(expected.forward()))
    d_sink = expected.backward(return_grad_sink=True)["d_sink"]
    assert sink.grad is not None
    np.testing.assert_allclose(sink.grad.numpy(), d_sink, rtol=1e-5)
    for wrong, message in (
        ([0.5], "sink is of type list, expected a torch.Tensor"),
        (sink.double(), "sink has dtype torch.float64 and queries torch.float32, expected one"),
    ):
        with pytest.raises(TypeError, match=message):
            function(**inputs, **problem.options, sink=wrong)


# ---- attnext.explain -----------------------------------------------------------------------------


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("which", range(8))
def test_explained(which: int, lang: str) -> None:
    """A step of its own, in both languages; every step is within rounding of the fast function."""
    rng = np.random.default_rng(which)
    options = random_masks(rng, (2, 2), 4, 5)
    score = SCORES[which % 4]
    if score in ("dot", "cosine"):
        options["scale"] = rng.standard_normal([(2,), (2, 1)][which // 4], dtype=np.float32)
    problem = make_problem(
        score,
        rng,
        lead=(2, 2),
        M=4,
        N=5,
        kv_heads=1,
        sink=random_sink(rng, *[(2, 1), (4,)][which % 2]),
        empty_rows=EMPTY_ROWS[which % 3],
        **options,
    )
    trace = getattr(explain, FUNCTION[score])(**problem.inputs, **problem.options, lang=lang)
    output, weights = problem.forward(return_weights=True)
    np.testing.assert_array_equal(bits(trace.output), bits(output))
    np.testing.assert_array_equal(bits(trace["weights"].values), bits(weights))
    sink = np.broadcast_to(problem.options["sink"], (2, 2, 4))
    np.testing.assert_array_equal(trace["sink"].values, sink)
    assert ("sink" if lang == "zh" else "Sink") in str(trace)
    if score == "dot":
        asked = dict.fromkeys(("return_grad_sink", "return_grad_bias", "return_grad_scale"), True)
        back = explain.dot_product_attention_backward(
            **problem.grads, **problem.inputs, **problem.options, **asked, lang=lang
        )
        d = problem.backward(**asked)
        for name in ("d_sink", "d_scale"):
            np.testing.assert_array_equal(bits(back[name].values), bits(d[name]), name)
