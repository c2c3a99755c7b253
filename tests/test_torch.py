"""attnext beside PyTorch: the meaning users know, and torch's own accuracy as the yardstick.

The d2l functions are transcribed here from what Dive into Deep Learning (sections 11.2 and 11.3)
says they do. Each problem is computed by torch twice, in float32 and in float64; attnext's error
against float64 may be twice that of float32 torch, plus 2e-6 of the tensor's largest entry.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    Array,
    Problem,
    assert_all_accurate,
    keep_pattern,
    make_problem,
)
from numpy.typing import DTypeLike
from sampling import cases
from torch import Tensor
from torch.nn import functional

import attnext

# ---- what d2l's code computes, in any dtype ------------------------------------------------------


def d2l_masked_softmax(X: Tensor, valid_lens: Tensor | None) -> Tensor:
    """Softmax over the last axis, scores beyond the length set to -1e6."""
    if valid_lens is None:
        return functional.softmax(X, dim=-1)
    lens = valid_lens[:, None] if valid_lens.dim() == 1 else valid_lens
    mask = torch.arange(X.shape[-1]) < lens[..., None]
    return functional.softmax(X.masked_fill(~mask, -1e6), dim=-1)


def d2l_additive(x: dict[str, Tensor], valid_lens: Tensor | None) -> tuple[Tensor, Tensor]:
    a = x["queries"] @ x["W_q"].T
    if "b_h" in x:
        a = a + x["b_h"]
    features = torch.tanh(a.unsqueeze(2) + (x["keys"] @ x["W_k"].T).unsqueeze(1))
    weights = d2l_masked_softmax((features @ x["w_v"].reshape(-1, 1)).squeeze(-1), valid_lens)
    return torch.bmm(weights, x["values"]), weights


def d2l_dot(x: dict[str, Tensor], valid_lens: Tensor | None) -> tuple[Tensor, Tensor]:
    d = x["queries"].shape[-1]
    scores = torch.bmm(x["queries"], x["keys"].transpose(1, 2)) / d**0.5
    weights = d2l_masked_softmax(scores, valid_lens)
    return torch.bmm(weights, x["values"]), weights


def nadaraya_watson(x: dict[str, Tensor], valid_lens: Tensor | None) -> tuple[Tensor, Tensor]:
    """Section 11.2, for points of any number of coordinates."""
    distance2 = ((x["queries"].unsqueeze(2) - x["keys"].unsqueeze(1)) ** 2).sum(-1)
    weights = d2l_masked_softmax(-distance2 * x["w"] ** 2 / 2, valid_lens)
    return torch.bmm(weights, x["values"]), weights


# ---- running both --------------------------------------------------------------------------------

Model = Callable[[dict[str, Tensor], Tensor | None], tuple[Tensor, Tensor]]
D2L: dict[str, Model] = {"dot": d2l_dot, "additive": d2l_additive, "gaussian": nadaraya_watson}


def torch_results(model: Model, problem: Problem, dtype: DTypeLike) -> dict[str, Array]:
    """Output, weights and every gradient, by autograd."""
    arrays = dict(problem.inputs)
    arrays |= {name: problem.options[name] for name in ("b_h", "w") if name in problem.options}
    x = {name: as_tensor(a, dtype).requires_grad_() for name, a in arrays.items()}
    lens = problem.options.get("valid_lens")
    output, weights = model(x, None if lens is None else torch.as_tensor(lens))
    loss = (output * as_tensor(problem.grads["grad_output"], dtype)).sum()
    if "grad_weights" in problem.grads:
        loss = loss + (weights * as_tensor(problem.grads["grad_weights"], dtype)).sum()
    loss.backward()
    result = {"output": output, "weights": weights}
    return as_arrays(result | {f"d_{name}": t.grad for name, t in x.items()})


def as_tensor(x: Any, dtype: DTypeLike) -> Tensor:
    return torch.from_numpy(np.array(x, dtype=dtype))


def as_arrays(tensors: dict[str, Tensor | None]) -> dict[str, Array]:
    return {name: t.detach().numpy() for name, t in tensors.items() if t is not None}


def compare(problem: Problem, model: Model) -> None:
    output, weights = problem.forward(return_weights=True)
    got = {"output": output, "weights": weights, **problem.backward()}
    peer = partial(torch_results, model)
    assert_all_accurate(got, peer(problem, np.float64), problem, peer)


# ---- random cases --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases(30, of=300))
def test_random_case(case: int) -> None:
    """Values and every gradient of the d2l layers and of Nadaraya-Watson."""
    rng = np.random.default_rng([2015, case])
    score = ("dot", "additive", "gaussian")[case % 3]
    B, M, N = rng.integers(1, 6), rng.integers(1, 40), rng.integers(2, 200)
    D, Dv, H = rng.integers(2, 60), rng.integers(2, 60), rng.integers(2, 60)
    shape = [None, (B,), (B, M)][rng.integers(3)]
    lens = None if shape is None else rng.integers(0, N + 3, size=shape)
    options: dict[str, Any] = {"valid_lens": lens}
    if score == "additive" and rng.integers(2):
        options["b_h"] = rng.standard_normal(H, dtype=np.float32)
    problem = make_problem(score, rng, lead=(B,), M=M, N=N, D=D, Dv=Dv, H=H, **options)
    del problem.grads["grad_lse"]
    if rng.integers(2):
        del problem.grads["grad_weights"]
    compare(problem, D2L[score])


# ---- d2l's calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lens", [None, [2, 6], [[1, 3, 10], [0, 2, 30]]], ids=str)
def test_masked_softmax_is_d2ls(lens: Any, rng: np.random.Generator) -> None:
    X = torch.from_numpy(rng.standard_normal((2, 3, 10), dtype=np.float32)).requires_grad_()
    grad = rng.standard_normal((2, 3, 10), dtype=np.float32)
    expected = d2l_masked_softmax(X, None if lens is None else torch.tensor(lens))
    expected.backward(torch.from_numpy(grad))
    weights = attnext.masked_softmax(X.detach(), lens)
    d_X = attnext.masked_softmax_backward(grad, weights, lens)
    np.testing.assert_allclose(weights, expected.detach(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(d_X, X.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("score", ["dot", "additive", "gaussian"])
def test_rows_of_length_0_are_d2ls(score: str, rng: np.random.Generator) -> None:
    """With every score at -1e6 d2l attends uniformly, which "uniform" does by rule."""
    problem = make_problem(score, rng, M=4, N=7, valid_lens=np.array([[0, 3, 0, 7], [0] * 4]))
    del problem.grads["grad_lse"]
    compare(problem, D2L[score])


def test_lengths_may_be_tensors(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng)
    expected = problem.but(valid_lens=[2, 4]).forward()
    for dtype in (torch.int32, torch.int64, torch.uint8):
        lens = torch.tensor([2, 4], dtype=dtype)
        np.testing.assert_array_equal(problem.but(valid_lens=lens).forward(), expected)


@pytest.mark.parametrize(
    ("n", "count"), [(16, 60_000), (64, 15_000), (512, 2000), (4096, 250)], ids=str
)
def test_softmax_is_as_accurate_as_torchs_to_the_last_place(
    n: int, count: int, rng: np.random.Generator
) -> None:
    X = rng.standard_normal((count, n), dtype=np.float32)
    exact = torch.softmax(torch.from_numpy(X).double(), -1).numpy()
    ulp = np.spacing(exact.astype(np.float32))
    errors, torch_errors = (
        np.abs(weights - exact) / ulp
        for weights in (attnext.masked_softmax(X), torch.softmax(torch.from_numpy(X), -1).numpy())
    )
    assert np.sqrt(np.mean(errors**2)) <= np.sqrt(np.mean(torch_errors**2))
    assert errors.max() <= torch_errors.max() + 0.5  # both are maxima over luck


# ---- torch's scaled_dot_product_attention --------------------------------------------------------


def sdpa(problem: Problem, dtype: DTypeLike) -> dict[str, Array]:
    """Output and gradients of torch's own function, lengths given as a bool mask."""
    x = {name: as_tensor(a, dtype).requires_grad_() for name, a in problem.inputs.items()}
    output = functional.scaled_dot_product_attention(
        x["queries"],
        x["keys"],
        x["values"],
        attn_mask=torch.from_numpy(problem.takes_part()),
        scale=problem.options.get("scale"),
    )
    output.backward(as_tensor(problem.grads["grad_output"], dtype))
    return as_arrays({"output": output, **{f"d_{name}": t.grad for name, t in x.items()}})


def compare_with_sdpa(problem: Problem) -> None:
    problem.grads = {"grad_output": problem.grads["grad_output"]}
    got = {"output": problem.forward(), **problem.backward()}
    assert_all_accurate(got, sdpa(problem, np.float64), problem, sdpa)


@pytest.mark.parametrize("scale", [None, 0.3, -1.0])
@pytest.mark.parametrize("lead", [(3,), (2, 3), (2, 1, 2)], ids=str)
def test_sdpa_with_lengths(
    lead: tuple[int, ...], scale: float | None, rng: np.random.Generator
) -> None:
    """Empty rows included: since 2.5 torch gives them output and gradients 0."""
    lens = rng.integers(0, 150, size=(*lead, 33))
    lens[..., 5] = 0
    options = {"valid_lens": lens, "scale": scale, "empty_rows": "zero"}
    compare_with_sdpa(make_problem("dot", rng, lead=lead, M=33, N=140, D=24, Dv=24, **options))


def test_values_of_another_size_than_keys_and_no_leading_axes(rng: np.random.Generator) -> None:
    compare_with_sdpa(make_problem("dot", rng, lead=(), M=10, N=20, D=6, Dv=11))


def test_lse_is_torchs_logsumexp(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, M=9, N=140, D=8, valid_lens=[130, 0])
    x = {name: as_tensor(a, np.float64).requires_grad_() for name, a in problem.inputs.items()}
    live = torch.from_numpy(problem.takes_part())
    scores = (x["queries"] @ x["keys"].transpose(1, 2) / 8**0.5).masked_fill(~live, -torch.inf)
    expected = torch.logsumexp(scores[0], -1)
    expected.backward(as_tensor(problem.grads["grad_lse"][0], np.float64))

    _, lse = problem.forward(return_lse=True)
    np.testing.assert_allclose(lse[0], expected.detach(), rtol=1e-6)
    assert np.all(lse[1] == -np.inf)

    problem.grads["grad_output"][:] = 0
    del problem.grads["grad_weights"]
    d = problem.backward()
    np.testing.assert_allclose(d["d_queries"], x["queries"].grad, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(d["d_keys"], x["keys"].grad, rtol=1e-5, atol=1e-7)
    assert not d["d_values"][0].any()


@pytest.mark.parametrize("empty_rows", ["uniform", "zero"])
@pytest.mark.parametrize("score", ["dot", "additive", "gaussian"])
def test_dropout_is_torchs_with_this_pattern(
    score: str, empty_rows: str, rng: np.random.Generator
) -> None:
    """torch.dropout draws a pattern of its own; here it is given ours."""
    p, seed = 0.3, 11
    options = {"valid_lens": np.array([[0, 3, 0, 7], [5, 1, 2, 6]]), "empty_rows": empty_rows}
    problem = make_problem(score, rng, M=4, N=7, dropout_p=p, seed=seed, **options)
    del problem.grads["grad_lse"]
    keep = torch.from_numpy(keep_pattern((2, 4, 7), p, seed))
    empty = torch.from_numpy(~problem.takes_part().any(-1, keepdims=True))

    def model(x: dict[str, Tensor], valid_lens: Tensor | None) -> tuple[Tensor, Tensor]:
        _, weights = D2L[score](x, valid_lens)
        if empty_rows == "zero":
            weights = torch.where(empty, 0, weights)
        return torch.bmm(torch.where(keep, weights / (1 - p), 0), x["values"]), weights

    compare(problem, model)
