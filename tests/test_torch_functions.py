"""attnext.torch, the functions: against the same formulas in plain torch with its own autograd.

Truth is plain torch in float64, the yardstick plain torch in float32: see helpers.py. The rest is
what autograd asks of a function: which gradients flow, from where, what is saved, what is refused.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    FUNCTION,
    SCORES,
    Array,
    Problem,
    assert_all_accurate,
    assert_same_bits,
    keep_pattern,
    lost_blocks,
    make_problem,
    repr_id,
    run_python,
)
from numpy.typing import DTypeLike
from sampling import any_attention, cases
from torch import Tensor
from wrong_calls import BOTH, HALF, Call, Wrong, each, raised_by

import attnext
import attnext.torch as ours
from attnext import _core, reference
from attnext.testing import assert_gradients_close, numerical_gradient

LEARNED = ("b_h", "w", "sigma", "bias")  # options that gradients flow to

# ---- the formulas in plain torch -----------------------------------------------------------------


def plain_scores(score: str, x: dict[str, Tensor], options: Mapping[str, Any]) -> Tensor:
    """(..., M, N), every intermediate formed."""
    q, k = x["queries"], x["keys"]
    if options.get("enable_gqa"):
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    if score == "dot":
        scale = options.get("scale")
        return q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if score == "cosine":
        cosine = torch.nn.functional.cosine_similarity(q[..., :, None, :], k[..., None, :, :], -1)
        return options.get("scale", 1.0) * cosine
    if score == "gaussian":
        w = 1 / x["sigma"] if "sigma" in x else x["w"]
        return -(((q[..., :, None, :] - k[..., None, :, :]) * w) ** 2).sum(-1) / 2
    projected = q @ x["W_q"].T + x.get("b_h", 0)
    features = torch.tanh(projected[..., :, None, :] + (k @ x["W_k"].T)[..., None, :, :])
    return (features @ x["w_v"].reshape(-1, 1)).squeeze(-1)


def plain_attention(problem: Problem, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Output, weights before dropout, and lse; for empty_rows "uniform" and "zero"."""
    options = problem.options
    live = torch.from_numpy(np.array(problem.takes_part()))
    empty = ~live.any(-1, keepdim=True)
    s = plain_scores(problem.score, x, options)
    if "bias" in x:
        s = s + x["bias"]
    s = torch.where(empty, 0, torch.where(live, s, -torch.inf))  # an empty row: all scores alike
    weights = torch.softmax(s, -1)
    if options.get("empty_rows") == "zero":
        weights = torch.where(empty, 0, weights)
    lse = torch.where(empty.squeeze(-1), -torch.inf, torch.logsumexp(s, -1))
    v = x["values"]
    if options.get("enable_gqa"):
        v = v.repeat_interleave(x["queries"].shape[-3] // v.shape[-3], dim=-3)
    kept = weights
    if options.get("dropout_p", 0) > 0:
        mask = options.get("dropout_mask")
        if mask is None:
            mask = keep_pattern(live.shape, options["dropout_p"], options["seed"]).astype(bool)
        kept = torch.where(torch.as_tensor(mask), weights / (1 - options["dropout_p"]), 0)
    return {"output": kept @ v, "weights": weights, "lse": lse}


# ---- running both --------------------------------------------------------------------------------


def leaves(problem: Problem, dtype: DTypeLike = np.float32) -> dict[str, Tensor]:
    """Fresh tensors that require grad: the inputs, and the options that gradients flow to."""
    learned = {name: problem.options[name] for name in LEARNED if name in problem.options}
    arrays = {**problem.inputs, **learned}
    return {
        name: torch.from_numpy(np.array(array, dtype=dtype)).requires_grad_()
        for name, array in arrays.items()
    }


def backward(problem: Problem, made: dict[str, Tensor], dtype: DTypeLike = np.float32) -> None:
    """Let the problem's gradients flow into what was made."""
    grads = {
        name.removeprefix("grad_"): torch.from_numpy(grad.astype(dtype))
        for name, grad in problem.grads.items()
    }
    torch.autograd.backward([made[name] for name in grads], list(grads.values()))


def as_arrays(made: dict[str, Tensor], x: dict[str, Tensor]) -> dict[str, Array]:
    d = {f"d_{name}": leaf.grad for name, leaf in x.items() if leaf.grad is not None}
    return {name: t.detach().numpy() for name, t in {**made, **d}.items()}


def call(problem: Problem, x: Mapping[str, Any], **more: Any) -> Any:
    options = {**problem.options, **{name: x[name] for name in LEARNED if name in x}}
    inputs = {name: x[name] for name in problem.inputs}
    return getattr(ours, FUNCTION[problem.score])(**inputs, **options, **more)


def forward(problem: Problem, x: Mapping[str, Any]) -> dict[str, Tensor]:
    made = call(problem, x, return_weights=True, return_lse=True)
    return dict(zip(("output", "weights", "lse"), made, strict=True))


def run_ours(problem: Problem) -> dict[str, Array]:
    x = leaves(problem)
    made = forward(problem, x)
    backward(problem, made)
    return as_arrays(made, x)


def run_plain(problem: Problem, dtype: DTypeLike) -> dict[str, Array]:
    x = leaves(problem, dtype)
    made = plain_attention(problem, x)
    backward(problem, made, dtype)
    return as_arrays(made, x)


def compare(problem: Problem) -> None:
    assert_all_accurate(run_ours(problem), run_plain(problem, np.float64), problem, run_plain)


# ---- values and gradients ------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases(40, of=160))
def test_random_case(case: int) -> None:
    """Output, weights, lse and all gradients, with random masks, lengths, bands, biases."""
    rng = np.random.default_rng([6, case])
    problem = any_attention(rng, SCORES[case % 4], 30)
    if problem.score in ("dot", "cosine") and rng.integers(2):
        problem = problem.but(scale=float(rng.uniform(0.2, 2)))
    if rng.integers(2):
        problem = problem.but(empty_rows="zero")
    compare(problem)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
@pytest.mark.parametrize("name", ["w", "sigma"])
def test_the_bandwidth_has_a_gradient_in_its_shape(
    name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    width = np.full(shape, 0.7, np.float32)
    problem = make_problem("gaussian", rng, M=6, N=9, valid_lens=[9, 4], **{name: width})
    x = leaves(problem)
    made = forward(problem, x)
    backward(problem, made)
    assert x[name].grad is not None and x[name].grad.shape == shape
    compare(problem)


@pytest.mark.parametrize(("distance", "expected"), [(0.0, 0.0), (1e-22, np.inf)])
def test_a_tiny_bandwidth(distance: float, expected: float) -> None:
    """No 0/0 where sigma**2 is 0 in float32, and no warning where the gradient overflows."""
    sigma = torch.tensor(1e-22, requires_grad=True)
    keys, values = torch.tensor([[0.0], [distance]]), torch.tensor([[0.0], [1e20]])
    ours.gaussian_attention(torch.zeros(1, 1), keys, values, sigma=sigma).sum().backward()
    assert sigma.grad is not None and sigma.grad.item() == expected


@pytest.mark.parametrize("shape", [(6,), (1, 6)], ids=str)
def test_w_v_has_a_gradient_in_its_shape(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    problem = make_problem("additive", rng, H=6)
    problem.inputs["w_v"] = problem.inputs["w_v"].reshape(shape)
    x = leaves(problem)
    backward(problem, forward(problem, x))
    assert x["w_v"].grad is not None and x["w_v"].grad.shape == shape
    compare(problem)


@pytest.mark.parametrize("score", SCORES)
def test_against_central_differences_of_the_reference(score: str, rng: np.random.Generator) -> None:
    """Not autograd but the definition of a gradient, in float64."""
    problem = make_problem(score, rng, M=2, N=4, valid_lens=[2, 4])
    x = leaves(problem)
    made = forward(problem, x)
    backward(problem, made)

    for name in problem.inputs:

        def loss(value: Array, name: str = name) -> float:
            near = Problem(score, {**problem.inputs, name: value}, problem.options)
            results = near.forward(reference, return_weights=True, return_lse=True)
            grads = (problem.grads[f"grad_{made}"] for made in ("output", "weights", "lse"))
            return float(sum(np.sum(r * g) for r, g in zip(results, grads, strict=True)))

        expected = numerical_gradient(loss, problem.inputs[name])
        # float32 against differences that are right to 1e-7 or so: the rounding of float32 counts
        assert_gradients_close(x[name].grad, expected, rtol=2e-5, atol=2e-5, names=[name])


def run_numpy(problem: Problem) -> dict[str, Array]:
    """The NumPy function, whose backward is handed what its forward returned."""
    results = problem.forward(return_weights=True, return_lse=True)
    made = dict(zip(("output", "weights", "lse"), results, strict=True))
    return {**made, **problem.backward(**made)}


@pytest.mark.parametrize("score", SCORES)
def test_the_bits_are_those_of_the_numpy_functions(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=7, N=19, valid_lens=[5, 19], dropout_p=0.3, seed=5)
    assert_same_bits(run_ours(problem), run_numpy(problem))


@pytest.mark.parametrize("extras", [(), ("weights",), ("lse",), ("weights", "lse")], ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_what_is_returned(score: str, extras: tuple[str, ...], rng: np.random.Generator) -> None:
    problem = make_problem(score, rng)
    x = leaves(problem)
    result = call(problem, x, **{f"return_{name}": True for name in extras})
    if not extras:
        assert type(result) is Tensor
        return
    all_of_them = forward(problem, x)
    assert type(result) is tuple and len(result) == 1 + len(extras)
    for name, made in zip(("output", *extras), result, strict=True):
        assert torch.equal(made, all_of_them[name])
        assert made.requires_grad and made.dtype == torch.float32


@pytest.mark.parametrize("only", ["output", "weights", "lse"])
@pytest.mark.parametrize("score", SCORES)
def test_a_loss_of_one_result_alone(score: str, only: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=5, N=8, valid_lens=[8, 3])
    problem.grads = {f"grad_{only}": problem.grads[f"grad_{only}"]}
    x, exact = leaves(problem), run_plain(problem, np.float64)
    made = forward(problem, x)
    backward(problem, made)
    got = as_arrays(made, x)
    exact.setdefault("d_values", np.zeros_like(got["d_values"]))  # plain torch: not reached

    def peer(near: Problem, dtype: DTypeLike) -> dict[str, Array]:
        return {"d_values": exact["d_values"], **run_plain(near, dtype)}

    assert_all_accurate(got, exact, problem, peer)


@pytest.mark.parametrize("score", SCORES)
def test_gradients_flow_only_where_they_are_wanted(score: str, rng: np.random.Generator) -> None:
    bias = rng.standard_normal((3, 5), dtype=np.float32)
    problem = (
        make_problem(score, rng, bias=bias, b_h=np.ones(6, np.float32))
        if (score == "additive")
        else make_problem(score, rng, bias=bias)
    )
    everything = leaves(problem)
    backward(problem, forward(problem, everything))
    for wanted in everything:
        x = {name: leaf.detach() for name, leaf in leaves(problem).items()}
        x[wanted].requires_grad_()
        backward(problem, forward(problem, x))
        assert [name for name in x if x[name].grad is not None] == [wanted]
        assert torch.equal(x[wanted].grad, everything[wanted].grad), wanted


def test_the_gradient_of_a_bias_is_computed_only_if_it_is_wanted(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = spy(monkeypatch, "dot_product_attention_backward")
    problem = make_problem("dot", rng, bias=rng.standard_normal((3, 5), dtype=np.float32))
    for wanted in (True, False):
        x = leaves(problem)
        x["bias"].requires_grad_(wanted)
        backward(problem, forward(problem, x))
        assert calls[-1].get("return_grad_bias", False) is wanted


@pytest.mark.parametrize("used", ["output", "weights", "lse"])
def test_no_gradient_is_made_up_for_extras_that_the_loss_leaves_out(
    used: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros of shape (..., M, N) would cost memory and time."""
    calls = spy(monkeypatch, "dot_product_attention_backward")
    problem = make_problem("dot", rng)
    forward(problem, leaves(problem))[used].sum().backward()
    extras = {name: calls[0].get(f"grad_{name}") is not None for name in ("weights", "lse")}
    assert extras == {"weights": used == "weights", "lse": used == "lse"}


def test_gradients_add_up_over_uses(rng: np.random.Generator) -> None:
    """Self-attention: one tensor as queries, keys and values."""
    x = torch.from_numpy(rng.standard_normal((2, 5, 4), dtype=np.float32)).requires_grad_()
    parts = [x.detach().clone().requires_grad_() for _ in range(3)]
    grad = torch.from_numpy(rng.standard_normal((2, 5, 4), dtype=np.float32))
    ours.dot_product_attention(x, x, x).backward(grad)
    ours.dot_product_attention(*parts).backward(grad)
    torch.testing.assert_close(x.grad, sum(part.grad for part in parts), rtol=1e-6, atol=1e-6)


# ---- layouts -------------------------------------------------------------------------------------


def unusual_layouts(x: Tensor) -> dict[str, Tensor]:
    """Tensors with the numbers of x, and strides of their own."""
    apart = torch.zeros(*x.shape, 2)
    apart[..., 0] = x.detach()
    by_columns = x.detach().mT.contiguous().mT if x.dim() > 1 else x.detach()
    negative = torch.complex(torch.zeros(x.shape), -x.detach()).conj().imag
    assert negative.is_neg() and torch.equal(negative, x)
    return {"apart": apart[..., 0], "by columns": by_columns, "negative": negative}


@pytest.mark.parametrize("layout", ["apart", "by columns", "negative"])
@pytest.mark.parametrize("score", SCORES)
def test_layouts_of_inputs_and_gradients(score: str, layout: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, valid_lens=[3, 5])
    expected = run_ours(problem)
    x = {name: unusual_layouts(leaf)[layout] for name, leaf in leaves(problem).items()}
    x = {name: leaf.requires_grad_() for name, leaf in x.items()}
    made = forward(problem, x)
    grads = [torch.from_numpy(problem.grads[f"grad_{name}"]) for name in made]
    torch.autograd.backward(list(made.values()), [unusual_layouts(g)[layout] for g in grads])
    assert_same_bits(as_arrays(made, x), expected)


@pytest.mark.parametrize("score", SCORES)
def test_expanded_gradients(score: str, rng: np.random.Generator) -> None:
    """What sum().backward() sends has stride 0 along every axis."""
    problem = make_problem(score, rng, valid_lens=[3, 5])
    problem.grads = {name: np.ones_like(grad) for name, grad in problem.grads.items()}
    expected = run_ours(problem)
    x = leaves(problem)
    made = forward(problem, x)
    torch.stack([tensor.sum() for tensor in made.values()]).sum().backward()
    assert_same_bits(as_arrays(made, x), expected)


def test_expanded_inputs(rng: np.random.Generator) -> None:
    """One set of keys for all of a batch: the gradient is summed over it by torch."""
    keys = torch.from_numpy(rng.standard_normal((1, 5, 4), dtype=np.float32)).requires_grad_()
    queries, grad = torch.from_numpy(rng.standard_normal((2, 3, 3, 4), dtype=np.float32))
    ours.dot_product_attention(queries, keys.expand(3, -1, -1), keys.expand(3, -1, -1)).backward(
        grad
    )
    twin = keys.detach().repeat(3, 1, 1).requires_grad_()
    ours.dot_product_attention(queries, twin, twin).backward(grad)
    torch.testing.assert_close(keys.grad, twin.grad.sum(0, keepdim=True), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sizes", [{"M": 0}, {"N": 0}, {"lead": (0,)}, {"Dv": 0}], ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_sizes_of_0(score: str, sizes: dict[str, Any], rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, **sizes)
    assert_same_bits(run_ours(problem), run_numpy(problem))


# ---- options: tensors, arrays and lists ----------------------------------------------------------


@pytest.mark.parametrize(
    "lens",
    [
        [2, 4],
        np.array([2, 4]),
        np.array([2, 4], np.uint8),
        torch.tensor([2, 4]),
        torch.tensor([2, 4], dtype=torch.int32),
        torch.tensor([2, 4], dtype=torch.uint8),
        torch.tensor([[2, 2, 2], [4, 4, 4]]),
        torch.tensor([2, 0, 4, 0])[::2],
    ],
    ids=repr_id,
)
def test_kinds_of_lengths(lens: Any, rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, valid_lens=np.array([[2] * 3, [4] * 3]))
    assert_same_bits(run_ours(problem.but(valid_lens=lens)), run_ours(problem))


@pytest.mark.parametrize("as_tensor", [False, True], ids=["array", "tensor"])
def test_masks_and_offsets_may_be_arrays_or_tensors(
    as_tensor: bool, rng: np.random.Generator
) -> None:
    options: dict[str, Any] = {
        "mask": rng.random((3, 5)) < 0.8,
        "dropout_mask": rng.random((2, 3, 5)) < 0.7,
        "causal_offset": np.array([1, 2]),
    }
    problem = make_problem("dot", rng, causal=True, dropout_p=0.5, **options)
    given = {name: torch.from_numpy(x) for name, x in options.items()} if as_tensor else {}
    assert_same_bits(run_ours(problem.but(**given)), {**run_ours(problem)})
    compare(problem)


def test_numbers_may_be_tensors(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, scale=0.5, dropout_p=0.25, seed=7, valid_lens=3)
    tensors = {name: torch.tensor(x) for name, x in problem.options.items()}
    assert_same_bits(run_ours(problem.but(**tensors)), run_ours(problem))


@pytest.mark.parametrize("bandwidth", [{"w": 0.7}, {"sigma": 2.0}, {}], ids=str)
def test_the_bandwidth_may_be_a_number(
    bandwidth: dict[str, float], rng: np.random.Generator
) -> None:
    q, k, v = (torch.from_numpy(x) for x in make_problem("gaussian", rng).inputs.values())
    got = ours.gaussian_attention(q, k, v, **bandwidth)
    expected = attnext.gaussian_attention(q.numpy(), k.numpy(), v.numpy(), **bandwidth)
    np.testing.assert_array_equal(got, expected)


def test_a_row_that_is_nan_by_rule(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, valid_lens=[0, 3], empty_rows="nan")
    got = run_ours(problem)
    assert np.isnan(got["output"][0]).all() and np.isnan(got["d_queries"][0]).all()
    assert np.isneginf(got["lse"][0]).all()
    assert np.isfinite(got["d_keys"]).all() and np.isfinite(got["d_queries"][1]).all()


def test_what_takes_no_part_is_not_read(rng: np.random.Generator) -> None:
    problem = make_problem("additive", rng, valid_lens=[2, 4])
    expected = run_ours(problem)
    for name in ("keys", "values"):
        problem.inputs[name][0, 2:], problem.inputs[name][1, 4:] = np.nan, np.inf
    assert_same_bits(run_ours(problem), expected)


# ---- masked_softmax and sequence_mask ------------------------------------------------------------


def d2l_masked_softmax(X: Tensor, valid_lens: Tensor | None) -> Tensor:
    """What d2l's function computes, without its writing into X."""
    if valid_lens is None:
        return torch.softmax(X, -1)
    lens = valid_lens[:, None] if valid_lens.dim() == 1 else valid_lens
    return torch.softmax(X.masked_fill(torch.arange(X.shape[-1]) >= lens[..., None], -1e6), -1)


@pytest.mark.parametrize("lens", [None, [2, 6], [[1, 3, 10], [0, 2, 30]]], ids=str)
def test_masked_softmax_is_d2ls(lens: Any, rng: np.random.Generator) -> None:
    X, grad = torch.from_numpy(rng.standard_normal((2, 2, 3, 10), dtype=np.float32))
    lens = None if lens is None else torch.tensor(lens)
    results = []
    for function, dtype in [
        (ours.masked_softmax, torch.float32),
        (d2l_masked_softmax, torch.float32),
        (d2l_masked_softmax, torch.float64),
    ]:
        leaf = X.to(dtype, copy=True).requires_grad_()
        weights = function(leaf, lens)
        weights.backward(grad.to(dtype))
        results.append((weights.detach(), leaf.grad))
    for got, peer, exact in zip(*results, strict=True):
        allowed = 2 * (peer - exact).abs().max() + 2e-6 * exact.abs().max()
        assert (got - exact).abs().max() <= allowed


@pytest.mark.parametrize("empty_rows", ["uniform", "zero", "nan"])
def test_masked_softmax_with_a_mask_is_the_numpy_function(
    empty_rows: Any, rng: np.random.Generator
) -> None:
    X, grad = rng.standard_normal((2, 4, 3, 7), dtype=np.float32)
    mask = rng.random((4, 3, 7)) < 0.6
    mask[1, 2] = False
    options: dict[str, Any] = {"mask": mask, "empty_rows": empty_rows}
    leaf = torch.from_numpy(X).requires_grad_()
    weights = ours.masked_softmax(leaf, 6, mask=torch.from_numpy(mask), empty_rows=empty_rows)
    weights.backward(torch.from_numpy(grad))
    expected = attnext.masked_softmax(X, 6, **options)
    d_X = attnext.masked_softmax_backward(grad, expected, 6, **options)
    got = {"weights": weights.detach().numpy(), "d_X": leaf.grad.numpy()}
    assert_same_bits(got, {"weights": expected, "d_X": d_X})


def test_masked_softmax_of_a_single_row_and_an_expanded_gradient() -> None:
    X = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    ours.masked_softmax(X, 2)[:1].sum().backward()
    p = 1 / (1 + np.e)
    torch.testing.assert_close(X.grad, torch.tensor([p * (1 - p), -p * (1 - p), 0.0]))


@pytest.mark.parametrize("valid_len", [[1, 2], torch.tensor([1, 2]), 2], ids=repr_id)
@pytest.mark.parametrize("shape", [(2, 3), (2, 4, 3)], ids=str)
def test_sequence_mask_is_d2ls(shape: tuple[int, ...], valid_len: Any) -> None:
    X = torch.arange(1.0, 1 + np.prod(shape)).reshape(shape).requires_grad_()
    got = ours.sequence_mask(X, valid_len, value=-1)
    beyond = torch.arange(shape[1]) >= torch.as_tensor(valid_len).expand(2)[:, None]
    beyond = beyond.reshape(2, shape[1], *[1] * (len(shape) - 2)).expand(shape)
    assert torch.equal(got, X.masked_fill(beyond, -1))
    grad = torch.full(shape, 3.0)
    got.backward(grad)
    assert torch.equal(X.grad, grad.masked_fill(beyond, 0))


@pytest.mark.parametrize("name", ["bool", "uint8", "int8", "int16", "int32", "int64"])
def test_sequence_mask_of_integers_is_float32(name: str) -> None:
    """As the NumPy function; bools, which that one refuses, are 0 and 1."""
    X = torch.tensor([[1, 2, 3], [0, 5, 6]]).to(getattr(torch, name))
    lens = torch.tensor([1, 2])
    got = ours.sequence_mask(X, lens, value=-0.5)
    assert got.dtype == torch.float32
    expected = attnext.sequence_mask(X.float().numpy(), lens.numpy(), -0.5)
    np.testing.assert_array_equal(got, expected)
    compiled = torch.compile(ours.sequence_mask, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X, lens, value=-0.5), got)


def test_the_loss_of_d2ls_translation_models_trains() -> None:
    """MaskedSoftmaxCELoss of the Chinese edition (9.7): it masks weights of the labels' dtype."""

    class MaskedSoftmaxCELoss(torch.nn.CrossEntropyLoss):
        def forward(self, pred: Tensor, label: Tensor, valid_len: Tensor) -> Tensor:
            weights = torch.ones_like(label)
            weights = ours.sequence_mask(weights, valid_len)
            self.reduction = "none"
            unweighted_loss = super().forward(pred.permute(0, 2, 1), label)
            return (unweighted_loss * weights).mean(dim=1)

    pred = torch.ones(3, 4, 10, requires_grad=True)
    loss = MaskedSoftmaxCELoss()(pred, torch.ones(3, 4, dtype=torch.long), torch.tensor([4, 2, 0]))
    torch.testing.assert_close(loss, torch.tensor([2.3026, 1.1513, 0.0]), rtol=1e-4, atol=1e-4)
    loss.sum().backward()
    assert pred.grad is not None
    assert pred.grad[0].any() and pred.grad[1, :2].any()
    assert not pred.grad[1, 2:].any() and not pred.grad[2].any()


# ---- merge_attention -----------------------------------------------------------------------------


@pytest.mark.parametrize("stacked", [False, True], ids=["list", "stacked"])
@pytest.mark.parametrize("score", SCORES)
def test_attention_in_parts_has_the_gradients_of_the_whole(
    score: str, stacked: bool, rng: np.random.Generator
) -> None:
    problem = make_problem(score, rng, M=6, N=12)
    del problem.grads["grad_weights"]

    def run_merged(near: Problem, dtype: DTypeLike = np.float32) -> dict[str, Array]:
        x = leaves(near, dtype)
        outputs, lses = [], []
        for part in (slice(0, 3), slice(3, 4), slice(4, 12)):
            shared = {**x, "keys": x["keys"][:, part], "values": x["values"][:, part]}
            output, lse = call(near, shared, return_lse=True)
            outputs.append(output)
            lses.append(lse)
        merged = (
            ours.merge_attention(torch.stack(outputs), torch.stack(lses))
            if stacked
            else ours.merge_attention(outputs, tuple(lses))
        )
        made = dict(zip(("output", "lse"), merged, strict=True))
        backward(near, made)
        return as_arrays(made, x)

    def whole(near: Problem, dtype: DTypeLike) -> dict[str, Array]:
        made = run_plain(near, dtype)
        del made["weights"]
        return made

    assert_all_accurate(run_merged(problem), whole(problem, np.float64), problem, whole)


@pytest.mark.parametrize("only", ["output", "lse"])
def test_merging_with_a_loss_of_one_result(only: str, rng: np.random.Generator) -> None:
    outputs = torch.from_numpy(rng.standard_normal((3, 4, 2), dtype=np.float32)).requires_grad_()
    lses = torch.from_numpy(rng.standard_normal((3, 4), dtype=np.float32)).requires_grad_()
    made = dict(zip(("output", "lse"), ours.merge_attention(outputs, lses), strict=True))
    made[only].sum().backward()
    o, s = (x.detach().double().requires_grad_() for x in (outputs, lses))
    lse = torch.logsumexp(s, 0)
    output = ((s - lse).exp()[..., None] * o).sum(0)
    {"output": output, "lse": lse}[only].sum().backward()
    torch.testing.assert_close(lses.grad.double(), s.grad, rtol=1e-5, atol=1e-6)
    expected = torch.zeros_like(o) if o.grad is None else o.grad
    torch.testing.assert_close(outputs.grad.double(), expected, rtol=1e-5, atol=1e-6)


def test_merging_gives_gradients_only_where_they_are_wanted(rng: np.random.Generator) -> None:
    outputs = list(torch.from_numpy(rng.standard_normal((3, 4, 2), dtype=np.float32)))
    lses = torch.zeros(3, 4)
    outputs[1].requires_grad_()
    output, lse = ours.merge_attention(outputs, lses)
    output.sum().backward()
    torch.testing.assert_close(outputs[1].grad, torch.full((4, 2), 1 / 3))
    assert outputs[0].grad is None and lses.grad is None


# ---- one call, no copy ---------------------------------------------------------------------------


def spy(monkeypatch: pytest.MonkeyPatch, name: str) -> list[dict[str, Any]]:
    """The arguments, by name, and the "result" of every call of this function in C."""
    calls: list[dict[str, Any]] = []
    name = f"_{name}" if hasattr(_core, f"_{name}") else name  # attnext.torch's own
    function = getattr(_core, name)

    def spied(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(function).bind(*args, **kwargs)
        calls.append({**bound.arguments, "result": function(*args, **kwargs)})
        return calls[-1]["result"]

    monkeypatch.setattr(_core, name, spied)
    return calls


def address(x: Any) -> int:
    return int(x.data_ptr() if isinstance(x, Tensor) else x.ctypes.data)


def is_of(tensor: Tensor, array: Array) -> bool:
    """Is the tensor the array's own memory? Few numbers may have been copied."""
    few = array.nbytes <= 4096
    return address(tensor) == address(array) or (
        few and np.array_equal(tensor.detach().numpy(), array)
    )


@pytest.mark.parametrize("score", SCORES)
def test_one_call_into_c_each_way_on_the_tensors_own_memory(
    score: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    forwards = spy(monkeypatch, FUNCTION[score])
    backwards = spy(monkeypatch, FUNCTION[score] + "_backward")
    problem = make_problem(score, rng, mask=torch.ones(3, 5, dtype=torch.bool))
    x = leaves(problem)
    made = forward(problem, x)
    (first,) = forwards
    assert not backwards
    for name, tensor in {**x, "mask": problem.options["mask"]}.items():
        assert address(first[name]) == address(tensor), name
    for tensor, array in zip(made.values(), first["result"], strict=True):
        assert is_of(tensor, array)

    grads = [torch.from_numpy(problem.grads[f"grad_{name}"]) for name in made]
    d = torch.autograd.grad(list(made.values()), list(x.values()), grads)
    (second,) = backwards
    assert len(forwards) == 1
    for name, tensor in {**x, **made}.items():  # what the forward made is not made again
        assert address(second[name]) == address(tensor), name
    for name, grad in zip(made, grads, strict=True):
        assert address(second[f"grad_{name}"]) == address(grad), name
    for name, tensor in zip(x, d, strict=True):
        if name != "w":  # a number
            assert any(a is not None and is_of(tensor, a) for a in second["result"]), name


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("masked_softmax", (torch.randn(2, 3, 4), torch.tensor([2, 3]))),
        ("sequence_mask", (torch.randn(2, 3, 4), torch.tensor([2, 3]))),
        ("merge_attention", (torch.randn(2, 3, 4), torch.randn(2, 3))),
    ],
)
def test_one_call_into_c_each_way_of_the_others(
    name: str, arguments: tuple[Tensor, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    forwards = spy(monkeypatch, name)
    undone_by = "sequence_mask" if name == "sequence_mask" else f"{name}_backward"
    backwards = forwards if undone_by == name else spy(monkeypatch, undone_by)
    x = arguments[0].clone().requires_grad_()
    result = getattr(ours, name)(x, *arguments[1:])
    output = result[0] if isinstance(result, tuple) else result
    assert len(forwards) == 1
    assert address(x) in map(address, (v for v in forwards[0].values() if hasattr(v, "ctypes")))
    made = forwards[0]["result"]
    assert is_of(output, made[0] if isinstance(made, tuple) else made)
    output.backward(torch.ones_like(output))
    assert len(backwards) == (2 if backwards is forwards else 1)


def test_large_results_are_of_the_memory_that_c_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    forwards, backwards = (
        spy(monkeypatch, f"dot_product_attention{way}") for way in ("", "_backward")
    )
    x = torch.randn(2, 64, 16, requires_grad=True)
    output = ours.dot_product_attention(x, x.detach(), x.detach())
    (d,) = torch.autograd.grad(output, x, torch.ones_like(output))
    assert address(output) == address(forwards[0]["result"][0])
    assert address(d) == address(backwards[0]["result"][0])


# ---- what autograd asks --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_autograd_nothing_is_saved(
    mode: Callable[[], Any], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = spy(monkeypatch, "dot_product_attention")
    problem = make_problem("dot", rng)
    x = leaves(problem)
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with mode():
            output = call(problem, x)
            weights = ours.masked_softmax(x["queries"])
            merged = ours.merge_attention([output], [torch.zeros(output.shape[:-1])])
        assert not saved and "return_lse" not in calls[0]
        assert not any(y.requires_grad for y in (output, weights, *merged))
        call(problem, x)
        assert len(saved) == 3  # queries, keys, values: few keys
        many = torch.zeros(2, 65, 4).requires_grad_()
        ours.dot_product_attention(x["queries"], many, many)
        assert len(saved) == 3 + 5  # with output and lse
    assert torch.equal(output, call(problem, x).detach())


def test_constants_save_nothing(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng)
    x = {name: torch.from_numpy(array) for name, array in problem.inputs.items()}
    output = call(problem, x)
    assert output.grad_fn is None and not output.requires_grad


@pytest.mark.parametrize("changed", ["queries", "keys", "values", "valid_lens", "mask"])
def test_what_is_changed_in_place_before_the_backward_is_noticed(
    changed: str, rng: np.random.Generator
) -> None:
    options = {
        "valid_lens": torch.tensor([2, 4]),
        "mask": torch.ones(3, 5, dtype=torch.bool),
    }
    problem = make_problem("dot", rng, **options)
    x = {name: leaf * 1 for name, leaf in leaves(problem).items()}
    output = call(problem, x)
    {**x, **options}[changed].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_an_output_that_is_changed_in_place_is_noticed_where_it_is_kept() -> None:
    x = torch.randn(3, 65, 4).requires_grad_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        ours.dot_product_attention(x, x, x).mul_(2).sum().backward()
    few = x[:, :64].detach().requires_grad_()
    (expected,) = torch.autograd.grad(2 * ours.dot_product_attention(few, few, few).sum(), few)
    (found,) = torch.autograd.grad(ours.dot_product_attention(few, few, few).mul_(2).sum(), few)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["valid_lens", "mask", "causal_offset"])
def test_arrays_and_lists_changed_before_the_backward_do_no_harm(
    name: str, rng: np.random.Generator
) -> None:
    options: dict[str, Any] = {
        "valid_lens": [2, 4],
        "mask": rng.random((3, 5)) < 0.7,
        "causal_offset": np.array([1, 2]),
    }
    problem = make_problem("dot", rng, causal=True, **options)
    expected = run_ours(problem)
    x = leaves(problem)
    made = forward(problem, x)
    options[name][:] = [0] * len(options[name]) if name == "valid_lens" else 0
    backward(problem, made)
    assert_same_bits(as_arrays(made, x), expected)


def test_saved_tensors_may_be_moved_by_hooks(rng: np.random.Generator) -> None:
    problem = make_problem("additive", rng)
    x = leaves(problem)
    with torch.autograd.graph.save_on_cpu():
        made = forward(problem, x)
    backward(problem, made)
    assert_same_bits(as_arrays(made, x), run_ours(problem))


# ---- storage that is not there -------------------------------------------------------------------


def given_back(x: Tensor) -> Tensor:
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


def cut_short(x: Tensor) -> Tensor:
    x = x.clone()
    x.untyped_storage().resize_(x.nbytes - 4)
    return x


def cut_in_the_back(x: Tensor) -> Tensor:
    """As many bytes as the tensor has, but not where it lies."""
    base = torch.cat([x.flatten(), x.flatten()])
    view = base[x.numel() :].reshape(x.shape)
    base.untyped_storage().resize_(x.nbytes)
    return view


def every_other(x: Tensor) -> Tensor:
    view = x.repeat_interleave(2, -1)[..., ::2]
    view.untyped_storage().resize_(x.nbytes)
    return view


@pytest.mark.parametrize("lost", [given_back, cut_short, cut_in_the_back, every_other])
@pytest.mark.parametrize("name", ["queries", "keys", "values", "bias", "mask", "valid_lens"])
def test_storage_that_was_resized_is_refused(name: str, lost: Callable[[Tensor], Tensor]) -> None:
    x = {"queries": Q, "keys": K, "values": V, "bias": torch.zeros(3, 5)}
    x |= {"mask": torch.ones(3, 5) > 0, "valid_lens": torch.tensor([1, 2])}
    x[name] = lost(x[name])
    held = x[name].untyped_storage().nbytes()
    with pytest.raises(RuntimeError, match=f"^{name} has a storage of {held} bytes, expected "):
        ours.dot_product_attention(**x)


def test_storage_that_is_smaller_than_the_tensor_but_holds_it(rng: np.random.Generator) -> None:
    one = torch.randn(1, 1, 4)
    ours.dot_product_attention(one.expand(2, 3, 4), one.expand(2, 5, 4), V)
    empty = torch.empty(2, 0, 4)
    empty.untyped_storage().resize_(0)
    assert ours.dot_product_attention(Q, empty, empty).shape == (2, 3, 4)


@pytest.mark.parametrize("name", ["dot_product_attention", "multi_head_attention"])
def test_dropout_without_a_seed_draws_one_from_torch(name: str) -> None:
    """So that torch.manual_seed makes it repeatable, and each call drops others."""
    x = torch.randn(2, 8, 8)
    heads = {"num_heads": 2} if name.startswith("multi") else {}
    inputs = x, x, x, *[torch.eye(8)] * (4 if heads else 0)

    def call(**options: Any) -> Tensor:
        output: Tensor = getattr(ours, name)(*inputs, dropout_p=0.5, **heads, **options)
        return output

    torch.manual_seed(3)
    first, second = call(), call()
    torch.manual_seed(3)
    assert torch.equal(call(), first) and not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(call(seed=torch.randint(2**63 - 1, ())), first)
    state = torch.get_rng_state()
    call(seed=1)
    call(dropout_mask=torch.ones(8, 8) > 0)
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn that nobody needs


def test_threads_do_not_disturb_each_other() -> None:
    problems = [
        make_problem(SCORES[i % 4], np.random.default_rng(i), M=20 + i, N=40, valid_lens=[7, 33])
        for i in range(8)
    ]
    expected = [run_ours(problem) for problem in problems]
    start = threading.Barrier(4)

    def work(i: int) -> list[dict[str, Array]]:
        start.wait()
        return [run_ours(problem) for problem in problems[i:] + problems[:i]]

    with ThreadPoolExecutor(4) as pool:
        for i, results in enumerate(pool.map(work, range(4))):
            for got, want in zip(results, expected[i:] + expected[:i], strict=True):
                assert_same_bits(got, want)


def leaky(case: str) -> Callable[[], Any]:
    """A call that is to leave nothing behind."""
    x = torch.zeros(2, 3, 4, requires_grad=True)
    made = ours.merge_attention if case == "merge" else getattr(ours, case, ours.masked_softmax)
    arguments = {"merge": ([x, x], [x[..., 0]] * 2), "dot_product_attention": (x, x, x)}

    def run() -> None:
        result = made(*arguments.get(case, (x,)))
        output = result[0] if isinstance(result, tuple) else result
        torch.autograd.grad(output.sum(), x, create_graph=case == "second derivatives")

    def fail() -> None:
        with contextlib.suppress(ValueError):
            ours.dot_product_attention(x, x[:1], x)

    return fail if case == "errors" else run


@pytest.mark.parametrize(
    "case",
    ["dot_product_attention", "masked_softmax", "merge", "second derivatives", "errors"],
)
def test_nothing_is_left_behind(case: str) -> None:
    """Less than one block of memory for each call: nothing that a call made."""
    assert lost_blocks(leaky(case)) < 1


def test_without_torch_the_error_says_what_is_missing() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "try: import attnext.torch\n"
        "except ImportError as error: print(error)"
    )
    message = "attnext.torch needs PyTorch, which is not installed: pip install torch\n"
    assert run_python("-c", program).stdout == message


# ---- signatures and what is refused --------------------------------------------------------------

FUNCTIONS = [name for name in ours.__all__ if name.islower() and name in attnext.__all__]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_are_those_of_the_numpy_functions(name: str) -> None:
    """The same names, order, kinds, defaults. Only out= is missing: autograd owns what it makes."""

    def parameters(module: Any) -> list[tuple[str, Any, Any]]:
        signature = inspect.signature(getattr(module, name)).parameters.values()
        return [(p.name, p.kind, p.default) for p in signature if p.name != "out"]

    assert parameters(ours) == parameters(attnext)


Q, K, V = torch.zeros(2, 3, 4), torch.zeros(2, 5, 4), torch.zeros(2, 5, 6)
W = torch.zeros(8, 4)
dot, additive, gaussian = (
    ours.dot_product_attention,
    ours.additive_attention,
    ours.gaussian_attention,
)
sparse = Q.to_sparse()

WRONG: list[Wrong] = [
    (
        lambda: dot(Q.double(), K, V),
        TypeError,
        "keys has dtype torch.float32 and queries has torch.float64, " + BOTH,
    ),
    (
        lambda: dot(Q, K.half(), V),
        TypeError,
        "keys has dtype torch.float16, expected torch.float32" + HALF,
    ),
    (
        lambda: dot(Q, K, V.bfloat16()),
        TypeError,
        "values has dtype torch.bfloat16, expected torch.float32" + HALF,
    ),
    (
        lambda: dot(Q.long(), K, V),
        TypeError,
        "queries has dtype torch.int64, expected torch.float32",
    ),
    (
        lambda: dot(Q.to(torch.complex64), K, V),
        TypeError,
        "queries has dtype torch.complex64, expected torch.float32",
    ),
    (
        lambda: dot(torch.quantize_per_tensor(Q, 0.1, 0, torch.qint8), K, V),
        TypeError,
        "queries has dtype torch.qint8, expected torch.float32",
    ),
    (lambda: dot(Q.to("meta"), K, V), TypeError, "queries is on device meta, expected cpu"),
    (lambda: dot(Q, K, V, bias=Q.to("meta")), TypeError, "bias is on device meta, expected cpu"),
    (
        lambda: dot(Q, K, V, torch.ones(2, dtype=torch.long, device="meta")),
        TypeError,
        "valid_lens is on device meta, expected cpu",
    ),
    (
        lambda: dot(sparse, K, V),
        TypeError,
        "queries has layout torch.sparse_coo, expected torch.strided",
    ),
    (
        lambda: dot(torch.nested.nested_tensor([Q[0], Q[1]]), K, V),
        TypeError,
        "queries is a nested tensor, expected a tensor that is not nested",
    ),
    (
        lambda: dot(Q.numpy(), K, V),
        TypeError,
        "queries is of type numpy.ndarray, expected a torch.Tensor",
    ),
    (lambda: dot(Q, [[1.0]], V), TypeError, "keys is of type list, expected a torch.Tensor"),
    (lambda: dot(Q, K, None), TypeError, "values is of type NoneType, expected a torch.Tensor"),
    (
        lambda: additive(Q, K, V, W.numpy(), W, W[:, 0]),
        TypeError,
        "W_q is of type numpy.ndarray, expected a torch.Tensor",
    ),
    (
        lambda: additive(Q, K, V, W, W.double(), W[:, 0]),
        TypeError,
        "W_k has dtype torch.float64 and queries has torch.float32, " + BOTH,
    ),
    (
        lambda: additive(Q, K, V, W, W, W[:, 0], b_h=np.zeros(8)),
        TypeError,
        "b_h is of type numpy.ndarray, expected a torch.Tensor",
    ),
    (
        lambda: dot(Q, K, V, bias=np.zeros(5)),
        TypeError,
        "bias is of type numpy.ndarray, expected a torch.Tensor",
    ),
    (
        lambda: dot(Q, K, V, bias=torch.ones(3, 5, dtype=torch.bool)),
        TypeError,
        "bias has dtype torch.bool, expected torch.float32: use the argument mask for a bool mask",
    ),
    (
        lambda: gaussian(Q, K, V, w=torch.ones((), dtype=torch.float64)),
        TypeError,
        "w has dtype torch.float64 and queries has torch.float32, " + BOTH,
    ),
    (
        lambda: dot(Q, K, V, softcap=torch.tensor(0.5, requires_grad=True)),
        TypeError,
        "softcap is a tensor that requires grad, but attnext computes no gradient of it: "
        "pass softcap.detach()",
    ),
    (
        lambda: dot(Q, K, V, mask=torch.zeros(3, 5, requires_grad=True)),
        TypeError,
        "mask is a tensor that requires grad, but attnext computes no gradient of it: "
        "pass mask.detach()",
    ),
    (
        lambda: dot(Q, K, V, mask=torch.zeros(3, 5, dtype=torch.bfloat16)),
        TypeError,
        "mask has dtype torch.bfloat16, expected a dtype that NumPy has",
    ),
    (
        lambda: dot(Q, K, V, mask=torch.zeros(3, 5)),
        TypeError,
        "mask has dtype float32, expected bools: to add floats to the scores, use the "
        "argument bias; all values are 0 or 1, so pass mask != 0",
    ),
    (
        lambda: dot(Q, K, V, torch.tensor([1.0, 2.0])),
        TypeError,
        "valid_lens has dtype torch.float32, expected integers: if they are whole numbers, "
        "pass valid_lens.long(); to add floats to the scores, use the argument bias of an "
        "attention function",
    ),
    (
        lambda: dot(Q, K, V, torch.tensor([1, 2, 3])),
        ValueError,
        "valid_lens has shape (3,), expected (2,) or (2, 3)",
    ),
    (
        lambda: dot(Q, K, V, torch.tensor([1, -2])),
        ValueError,
        "valid_lens contains -2, expected lengths of 0 or more",
    ),
    (
        lambda: dot(Q, K[:, :, :3], V),
        ValueError,
        "keys has shape (2, 5, 3), expected (2, N, 4)",
    ),
    (lambda: dot(Q, K, V[:, :4]), ValueError, "values has shape (2, 4, 6), expected (2, 5, Dv)"),
    (
        lambda: additive(Q, K, V, W[:, :3], W, W[:, 0]),
        ValueError,
        "W_q has shape (8, 3), expected (H, 4)",
    ),
    (
        lambda: gaussian(Q, K, V, w=torch.ones(2)),
        ValueError,
        "w has shape (2,), expected a number or an array of one element",
    ),
    (
        lambda: gaussian(Q, K, V, w=torch.ones(()), sigma=torch.ones(())),
        ValueError,
        "w and sigma are both given, expected only one because w = 1 / sigma",
    ),
    (
        lambda: dot(Q, K, V, dropout_p=1.0),
        ValueError,
        "dropout_p is 1.0, expected 0 <= dropout_p < 1",
    ),
    (
        lambda: dot(Q, K, V, casual=True),
        TypeError,
        "dot_product_attention() got an unexpected keyword argument 'casual': did you mean causal?",
    ),
    (
        lambda: dot(Q, K, V, valid_len=2),
        TypeError,
        "dot_product_attention() got an unexpected keyword argument 'valid_len': use "
        "valid_lens instead",
    ),
    (
        lambda: dot(Q, K, V, torch.ones(3, 5) > 0),
        TypeError,
        "valid_lens has dtype torch.bool, expected integers: to choose keys by bools, "
        "use the argument mask",
    ),
    (
        lambda: dot(Q, K, V, empty_rows="mean"),
        ValueError,
        "empty_rows is 'mean', expected 'uniform', 'zero' or 'nan'",
    ),
    (
        lambda: ours.masked_softmax([1.0, 2.0]),
        TypeError,
        "X is of type list, expected a torch.Tensor",
    ),
    (
        lambda: ours.masked_softmax(Q, [1]),
        ValueError,
        "valid_lens has shape (1,), expected (2,) or (2, 3)",
    ),
    (
        lambda: ours.sequence_mask(Q.to(torch.complex64), [1, 2]),
        TypeError,
        "X has dtype torch.complex64, expected torch.float32",
    ),
    (
        lambda: ours.sequence_mask(Q, [1, 2, 3]),
        ValueError,
        "valid_len has shape (3,), expected (2,)",
    ),
    (
        lambda: ours.merge_attention(Q.numpy(), Q),
        TypeError,
        "outputs is of type numpy.ndarray, expected a torch.Tensor, or a list or tuple of them",
    ),
    (
        lambda: ours.merge_attention([Q, Q.double()], [Q[..., 0]] * 2),
        TypeError,
        "outputs[1] has dtype torch.float64 and outputs[0] has torch.float32, " + BOTH,
    ),
    (
        lambda: ours.merge_attention([Q], [Q.numpy()]),
        TypeError,
        "lses[0] is of type numpy.ndarray, expected a torch.Tensor",
    ),
    (
        lambda: ours.merge_attention([], []),
        ValueError,
        "outputs is empty, expected at least one part",
    ),
    (
        lambda: ours.merge_attention([Q, Q], [Q[..., 0]]),
        ValueError,
        "lses has 1 parts, expected 2, as many as outputs has",
    ),
]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:.* nested tensors is in")
@each(WRONG)
def test_wrong_calls(call: Call, error: type[Exception], message: str) -> None:
    assert raised_by(call, error) == message
