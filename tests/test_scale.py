"""A scale for each head, and the gradient of a scale: of dot products and cosines."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    EMPTY_ROWS,
    FUNCTION,
    SCORES_FUNCTION,
    Array,
    Problem,
    assert_accurate,
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
from attnext import reference
from attnext.testing import numerical_gradient, rel_error

SCALED = ("dot", "cosine")
score_cases = pytest.mark.parametrize("score", SCALED)


def random_scale(rng: np.random.Generator, *shape: int) -> Array:
    return rng.normal(scale=2, size=shape).astype(np.float32)


def gradient(problem: Problem, **more: Any) -> Any:
    return problem.backward(**more, return_grad_scale=True)["d_scale"]


# ---- against formulas in float64 -----------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 1), (1, 3), (2, 3)], ids=str)
@pytest.mark.parametrize("M", [1, 20])
@score_cases
def test_any_shape(score: str, M: int, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    lens = rng.integers(0, 131, size=(2, M))
    scale = random_scale(rng, *shape)
    problem = make_problem(score, rng, lead=(2, 3), M=M, N=130, valid_lens=lens, scale=scale)
    assert check(problem)["d_scale"].shape == shape


@pytest.mark.parametrize("which", range(20))
def test_with_all_other_options(which: int) -> None:
    rng = np.random.default_rng(which)
    M, N = [(1, 300), (2, 7), (5, 130), (35, 140), (70, 20)][which % 5]
    options = random_masks(rng, (2, 4), M, N)
    if which % 3 == 0:
        options |= {"dropout_p": 0.3, "seed": which}
    if which % 4 < 2:
        options["sink"] = rng.standard_normal((4, 1), dtype=np.float32)
    problem = make_problem(
        SCALED[which % 2],
        rng,
        lead=(2, 4),
        M=M,
        N=N,
        D=[3, 1, 40][which % 3],
        kv_heads=[None, 1, 2][which % 3],
        scale=random_scale(rng, *[(4,), (2, 1), (2, 4)][which % 3]),
        empty_rows=EMPTY_ROWS[which // 3 % 3],
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
        score, rng, lead=(2, 2), M=6, N=N, scale=random_scale(rng, 2, 1), **options
    )
    exact, found = textbook(problem, np.float64), problem.run(reference)
    assert exact.keys() == found.keys()
    for name, x in found.items():
        np.testing.assert_allclose(x, exact[name], rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("scale", [0.7, 0.0, [[0.3], [-1.0]]], ids=str)
@score_cases
def test_central_differences(score: str, scale: Any, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, lead=(2, 2), M=3, N=5, valid_lens=[3, 0], scale=scale)
    grads = [problem.grads[f"grad_{name}"] for name in ("output", "weights", "lse")]

    def loss(scale: Array) -> float:
        moved = problem.but(scale=scale, empty_rows="zero")
        results = moved.forward(reference, return_weights=True, return_lse=True)
        return float(
            sum(np.sum((g * x)[0]) for g, x in zip(grads, results, strict=True))
        )  # the second entry is empty

    d = problem.backward(reference, return_grad_scale=True)["d_scale"]
    assert np.shape(d) == np.shape(scale)
    assert rel_error(d, numerical_gradient(loss, np.array(scale))) < 1e-7


@score_cases
def test_autograd(score: str, rng: np.random.Generator) -> None:
    """A learned temperature of each head, as in Swin v2."""
    problem = make_problem(score, rng, lead=(2, 3), M=4, N=7, scale=random_scale(rng, 3))
    cosines, _ = textbook_scores(problem.but(scale=1.0), np.float64)
    scale = torch.tensor(problem.options["scale"].astype(float), requires_grad=True)
    logits = scale[:, None, None] * torch.tensor(cosines)
    weights, lse = logits.softmax(dim=-1), logits.logsumexp(dim=-1)
    output = weights @ torch.tensor(problem.inputs["values"]).double()
    grads = {name: torch.tensor(g).double() for name, g in problem.grads.items()}
    flow = grads["grad_output"].mul(output).sum() + grads["grad_weights"].mul(weights).sum()
    (flow + grads["grad_lse"].mul(lse).sum()).backward()
    assert scale.grad is not None
    assert rel_error(problem.run()["d_scale"], scale.grad.numpy()) < 1e-5


@pytest.mark.parametrize("scale", [None, 0.0, 1e-30, 0.7, -3.5, np.float32(2), np.array(0.5)])
@score_cases
def test_gradient_of_a_number(score: str, scale: Any, rng: np.random.Generator) -> None:
    """The default is one too; of scale 0, where no gradient reaches the queries, as well."""
    options = {} if scale is None else {"scale": scale}
    problem = make_problem(score, rng, lead=(2,), M=70, N=140, valid_lens=[3, 140], **options)
    d = gradient(problem)
    assert np.shape(d) == () and d.dtype == np.float32
    number = {"dot": 0.5, "cosine": 1.0}[score] if scale is None else float(scale)
    as_array = problem.but(scale=np.float32([number]))
    exact = textbook(as_array, np.float64)["d_scale"][0]
    peer = textbook(as_array, np.float32)["d_scale"][0]
    assert_accurate(d, exact, max(abs(peer - exact), 1e-6 * abs(exact)))
    function = getattr(attnext, FUNCTION[score] + "_backward")
    *_, d_bias, d_sink, last = function(
        **problem.grads,
        **problem.inputs,
        **problem.options,
        return_grad_bias=True,
        return_grad_sink=True,
        return_grad_scale=True,
    )
    assert d_bias is None and d_sink is None and last == d


# ---- what a number does, head by head ------------------------------------------------------------


@pytest.mark.parametrize("M", [1, 33])
@score_cases
def test_each_head_is_a_call_with_its_number(score: str, M: int, rng: np.random.Generator) -> None:
    scale = np.float32([0.37, -2, 0])
    problem = make_problem(score, rng, lead=(2, 3), M=M, N=140, valid_lens=[20, 140], scale=scale)
    got = problem.run()
    scores = {name: problem.inputs[name] for name in ("queries", "keys")}
    found = getattr(attnext, SCORES_FUNCTION[score])(**scores, scale=scale)
    for head, number in enumerate(scale):
        alone = problem.but(scale=number).run()
        for name, x in alone.items():
            np.testing.assert_array_equal(bits(got[name][:, head]), bits(x[:, head]), err_msg=name)
        expected = getattr(attnext, SCORES_FUNCTION[score])(**scores, scale=number)
        np.testing.assert_array_equal(bits(found[:, head]), bits(expected[:, head]))
    exact = getattr(reference, SCORES_FUNCTION[score])(**scores, scale=scale)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


@score_cases
def test_forms(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, lead=(2, 3), M=17, N=20)
    scale = np.float32([0.5, -2, 3])
    expected = problem.but(scale=scale).run()
    for form in (scale.tolist(), scale.astype(float), scale[::-1][::-1], torch.tensor(scale),
                 scale.astype(">f4"), scale.astype(np.float16)):  # fmt: skip
        assert_same_bits(problem.but(scale=form).run(), expected)
    number = problem.but(scale=0.5).run()
    for one in (np.float64(0.5), np.float32(0.5), np.array(0.5), torch.tensor(0.5)):
        assert_same_bits(problem.but(scale=one).run(), number)
    whole = problem.but(scale=np.full((2, 1), 0.5)).run()
    del whole["d_scale"]
    assert_same_bits(whole, number)
    single = make_problem(score, rng, lead=(), M=17, N=20, scale=np.array(-0.7))
    assert_same_bits(single.run(), single.but(scale=np.float32(-0.7)).run())


@score_cases
def test_asked_for_or_not(score: str, rng: np.random.Generator) -> None:
    for options in ({"scale": -0.3}, {"scale": [[0.3], [2]], "bias": np.zeros(140)}, {}):
        problem = make_problem(score, rng, lead=(2, 2), M=35, N=140, kv_heads=1, **options)
        plain, asked = problem.backward(), problem.backward(return_grad_scale=True)
        del asked["d_scale"]
        assert_same_bits(asked, plain)


# ---- the same gradient ---------------------------------------------------------------------------


@pytest.mark.parametrize("M, N", [(1, 300), (20, 100), (70, 300)])
@score_cases
def test_saved_results(score: str, M: int, N: int, rng: np.random.Generator) -> None:
    problem = make_problem(
        score, rng, lead=(2, 3), M=M, N=N, scale=random_scale(rng, 3), extra_grads=False
    )
    output, weights, lse = problem.forward(return_weights=True, return_lse=True)
    exact = gradient(problem)
    for saved in ({"weights": weights}, {"output": output, "lse": lse}):
        found = gradient(problem, **saved)
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("M", [1, 33])
@score_cases
def test_padding(score: str, M: int, rng: np.random.Generator) -> None:
    N, lens = 130, rng.integers(0, 131, size=(2, M))
    problem = make_problem(score, rng, M=M, N=N, valid_lens=lens, scale=random_scale(rng, 2))
    expected = gradient(problem)
    for padding, filling in [(1, np.nan), (16, np.inf), (300, np.nan)]:
        padded = Problem(score, dict(problem.inputs), problem.options, dict(problem.grads))
        behind = ((0, 0), (0, padding), (0, 0))
        for name in ("keys", "values"):
            padded.inputs[name] = np.pad(problem.inputs[name], behind, constant_values=filling)
        grad = problem.grads["grad_weights"]
        padded.grads["grad_weights"] = np.pad(grad, behind[::2] + behind[1:2], constant_values=0.5)
        np.testing.assert_array_equal(bits(gradient(padded)), bits(expected))


@score_cases
def test_threads(score: str, rng: np.random.Generator, threads: None) -> None:
    for scale in (random_scale(rng, 3), random_scale(rng, 2, 1), np.float32([0.3])):
        problem = make_problem(score, rng, lead=(2, 3), M=300, N=140, kv_heads=1, scale=scale)
        attnext.set_num_threads(1)
        expected = problem.run()
        for n in (2, 5):
            attnext.set_num_threads(n)
            assert_same_bits(problem.run(), expected)


@score_cases
def test_a_shared_scale_has_the_sum_of_the_gradients(score: str, rng: np.random.Generator) -> None:
    scale = random_scale(rng, 2, 1)
    problem = make_problem(score, rng, lead=(2, 3), M=70, N=140, scale=scale)
    got = problem.run()
    full = problem.but(scale=np.broadcast_to(scale, (2, 3))).run()
    d_scale, d_full = got.pop("d_scale"), full.pop("d_scale").astype(np.float64)
    assert_same_bits(got, full)
    np.testing.assert_allclose(d_scale, over_broadcast(np.sum, d_full, scale.shape), rtol=1e-6)


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
@score_cases
def test_nothing_comes_from_empty_rows(
    score: str, empty_rows: str, rng: np.random.Generator
) -> None:
    problem = make_problem(
        score, rng, M=9, N=20, valid_lens=[0, 20], scale=[0.5, 2], empty_rows=empty_rows
    )
    problem.inputs["keys"][0] = problem.inputs["queries"][0] = np.nan
    d = gradient(problem)
    assert d[0] == 0 and d[1] != 0
    assert not np.any(gradient(problem.but(valid_lens=0)))
    for lead, M, N in [((2,), 0, 5), ((2,), 5, 0), ((0,), 3, 4)]:
        nothing = make_problem(score, rng, lead=lead, M=M, N=N, scale=np.ones(lead))
        np.testing.assert_array_equal(gradient(nothing), np.zeros(lead))
        assert gradient(nothing.but(scale=2.0)) == 0


# ---- arguments -----------------------------------------------------------------------------------

WRONG: list[tuple[Any, type[Exception], str]] = [
    (np.ones(3), ValueError, r"scale has shape \(3,\), expected a .* broadcasts to \(2,\)"),
    (np.ones((2, 1)), ValueError, r"scale has shape \(2, 1\), expected a .* broadcasts to \(2,\)"),
    ([1, np.nan], ValueError, "scale contains nan, expected finite"),
    ([1, np.inf], ValueError, "scale contains inf, expected finite"),
    ([1, -np.inf], ValueError, "scale contains -inf, expected finite"),
    ([True, False], TypeError, "scale has dtype bool, expected real numbers"),
    ([1j, 1], TypeError, "scale has dtype complex128, expected real numbers"),
    (torch.ones(2, requires_grad=True), TypeError, "scale is a tensor that requires grad"),
]


@pytest.mark.parametrize("scale, error, message", WRONG, ids=repr_id)
def test_wrong_scales(
    scale: Any, error: type[Exception], message: str, rng: np.random.Generator
) -> None:
    for score in SCALED:
        problem = make_problem(score, rng, M=5, scale=scale)
        q, k = problem.inputs["queries"], problem.inputs["keys"]
        for module in (attnext, reference):
            scores = partial(getattr(module, SCORES_FUNCTION[score]), q, k, scale=scale)
            back = getattr(module, SCORES_FUNCTION[score] + "_backward")
            for call in (
                partial(problem.forward, module),
                partial(problem.backward, module),
                scores,
                partial(back, np.zeros((*q.shape[:-1], k.shape[-2])), q, k, scale=scale),
            ):
                with pytest.raises(error, match=message):
                    call()


def test_only_where_a_scale_is_a_factor(rng: np.random.Generator) -> None:
    for score in ("additive", "gaussian"):
        problem = make_problem(score, rng)
        for module in (attnext, reference):
            with pytest.raises(TypeError, match="unexpected keyword argument 'scale'"):
                problem.but(scale=np.ones(2)).forward(module)
            with pytest.raises(TypeError, match="unexpected keyword argument 'return_grad_scale'"):
                problem.backward(module, return_grad_scale=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'return_grad_scale'"):
        make_problem("dot", rng).forward(return_grad_scale=True)


def test_out_must_not_be_the_scale(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, lead=(3,), M=1, Dv=1)
    out = np.ones((3, 1, 1), np.float32)
    with pytest.raises(ValueError, match="out shares memory with scale"):
        problem.but(scale=out[:, 0, 0]).forward(out=out)


@score_cases
def test_tensors(score: str, rng: np.random.Generator) -> None:
    """A scale that is a tensor has a gradient, of its own shape."""
    problem = make_problem(score, rng, lead=(2, 3), M=4, N=7)
    problem.grads = {"grad_output": problem.grads["grad_output"]}
    inputs = {name: torch.tensor(x) for name, x in problem.inputs.items()}
    for numbers in ([0.5, -1.0, 2.0], [[0.5], [2.0]], 0.7):
        scale = torch.tensor(numbers, requires_grad=True)
        output = getattr(attnext.torch, FUNCTION[score])(**inputs, scale=scale)
        output.backward(torch.tensor(problem.grads["grad_output"]))
        expected = problem.but(scale=np.float32(numbers))
        np.testing.assert_array_equal(bits(output.detach().numpy()), bits(expected.forward()))
        assert scale.grad is not None and scale.grad.shape == scale.shape
        np.testing.assert_allclose(scale.grad.numpy(), gradient(expected), rtol=1e-5)
