"""Masks, bias, heads and the rest beside PyTorch, with torch's own accuracy as the yardstick.

What scaled_dot_product_attention has is compared with it, and everything else with autograd
through formulas as they are in the books. As in test_torch.py, torch computes each problem in
float32 and in float64: attnext's error may be twice that of float32 torch, plus 2e-6 of the
tensor's largest entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    PARAMETERS,
    SCORES,
    SHARED,
    Array,
    Problem,
    assert_all_accurate,
    keep_pattern,
    make_problem,
    random_masks,
    random_modifiers,
)
from numpy.typing import DTypeLike
from sampling import cases
from torch import Tensor
from torch.nn import functional

import attnext

Forward = Callable[[Problem, dict[str, Tensor]], dict[str, Tensor]]


@pytest.fixture(scope="module", autouse=True)
def one_thread_of_torch() -> Iterator[None]:
    """Tensors as small as these only wait for a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- running both --------------------------------------------------------------------------------


def torch_results(forward: Forward, problem: Problem, dtype: DTypeLike) -> dict[str, Array]:
    """What forward returns, and the gradient of everything that went in, by autograd."""
    names = {*problem.inputs, *PARAMETERS[problem.score]}
    names |= {name for name in SHARED if problem.shares(name)}
    arrays = {**problem.options, **problem.inputs}
    x = {
        name: torch.from_numpy(np.array(arrays[name], dtype=dtype)).requires_grad_()
        for name in names
        if arrays.get(name) is not None
    }
    result = forward(problem, x)
    loss = torch.zeros(())
    for name, grad in problem.grads.items():
        y, g = result[name.removeprefix("grad_")], torch.from_numpy(grad.astype(dtype))
        finite = torch.isfinite(y)  # the lse of an empty row is -inf, and nothing comes from it
        loss = loss + (y[finite] * g[finite]).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    result |= {f"d_{name}": t.grad for name, t in x.items() if t.grad is not None}
    return {name: t.detach().numpy() for name, t in result.items()}


def compare(problem: Problem, forward: Forward) -> None:
    """Everything that this forward returns, and every gradient."""
    peer = partial(torch_results, forward)
    exact = peer(problem, np.float64)
    got = problem.run(attnext)
    extras = {"output", "weights", "lse"} - exact.keys()
    assert_all_accurate({name: got[name] for name in got.keys() - extras}, exact, problem, peer)


# ---- scaled_dot_product_attention ----------------------------------------------------------------


def sdpa(
    problem: Problem, x: dict[str, Tensor], attn_mask: Tensor | None = None, is_causal: bool = False
) -> dict[str, Tensor]:
    output = functional.scaled_dot_product_attention(
        x["queries"],
        x["keys"],
        x["values"],
        attn_mask=attn_mask,
        is_causal=is_causal,
        scale=problem.options.get("scale"),
        enable_gqa=problem.options.get("enable_gqa", False),
    )
    return {"output": output}


def sdpa_with_mask(problem: Problem, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Given a bool mask."""
    return sdpa(problem, x, torch.from_numpy(np.array(problem.options["mask"])))


def sdpa_with_bias(problem: Problem, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Given a float mask, in which -inf masks."""
    return sdpa(problem, x, x["bias"])


def sdpa_causal(problem: Problem, x: dict[str, Tensor]) -> dict[str, Tensor]:
    return sdpa(problem, x, is_causal=True)


def sdpa_with_all(problem: Problem, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Given all masks as one float mask: it takes no more than one."""
    live = torch.from_numpy(problem.takes_part())
    bias = x.get("bias", torch.zeros((), dtype=x["queries"].dtype))
    return sdpa(problem, x, bias.masked_fill(~live, -torch.inf))


SDPA = {
    "mask": sdpa_with_mask,
    "bias": sdpa_with_bias,
    "causal": sdpa_causal,
    "all": sdpa_with_all,
}


def shape_of_masks(
    rng: np.random.Generator, lead: tuple[int, ...], M: int, N: int
) -> tuple[int, ...]:
    shapes = [(M, N), (*lead, M, N), (*[1] * len(lead), M, N), (*lead, 1, N), (*lead, M, 1), (1, N)]
    return shapes[rng.integers(len(shapes))]


@pytest.mark.parametrize("kind", SDPA)
@pytest.mark.parametrize("case", cases(12, of=60))
def test_random_case_of_sdpa(case: int, kind: str) -> None:
    """M and N in any order; rows without any key among them, which torch gives output 0."""
    rng = np.random.default_rng([2025, case])
    lead = [(3,), (2, 4), (1, 2), (2, 1, 2)][rng.integers(4)]
    M, N = int(rng.integers(1, 40)), int(rng.choice([1, 5, 33, 128, 130, 200]))
    D, Dv = (int(n) for n in rng.integers(1, 40, size=2))
    shape = shape_of_masks(rng, lead, M, N)
    options: dict[str, Any] = {"scale": [None, 0.3, 1.0][rng.integers(3)], "empty_rows": "zero"}
    if len(lead) > 1 and rng.integers(2):
        options["kv_heads"] = int(rng.choice([n for n in (1, 2, 4) if lead[-1] % n == 0]))
    if kind == "mask":
        options["mask"] = rng.random(shape) < [0.2, 0.8][rng.integers(2)]
    if kind == "bias":
        bias = rng.standard_normal(shape, dtype=np.float32)
        options["bias"] = np.where(rng.random(shape) < 0.3, -np.float32(np.inf), bias)
    if kind == "causal":
        options["causal"] = True
    if kind == "all":
        options |= random_masks(rng, lead, M, N)
    sizes: dict[str, Any] = {"lead": lead, "M": M, "N": N, "D": D, "Dv": Dv}
    compare(make_problem("dot", rng, **sizes, **options, extra_grads=False), SDPA[kind])


@pytest.mark.parametrize("kind", ["mask", "bias"])
def test_rows_without_any_key(kind: str, rng: np.random.Generator) -> None:
    """Output and gradients 0 since torch 2.5; in the second entry there is no other row."""
    mask = rng.random((2, 33, 140)) < 0.7
    mask[0, [0, 7, 32]] = mask[1] = False
    bias = np.where(mask, rng.standard_normal(mask.shape), -np.inf).astype(np.float32)
    options = {"mask": mask} if kind == "mask" else {"bias": bias}
    sizes: dict[str, Any] = {"M": 33, "N": 140, "D": 24, "Dv": 24, "extra_grads": False}
    problem = make_problem("dot", rng, **sizes, **options, empty_rows="zero")
    compare(problem, SDPA[kind])
    got = problem.run()
    assert not got["output"][1].any() and not got["d_queries"][0, [0, 7, 32]].any()


@pytest.mark.parametrize(("M", "N"), [(5, 9), (9, 5), (33, 140), (140, 33)])
def test_causal_begins_at_the_top_left(M: int, N: int, rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, M=M, N=N, causal=True, extra_grads=False)
    compare(problem, sdpa_causal)
    explicit = problem.but(causal=False, mask=np.tri(M, N, dtype=bool))
    compare(explicit, sdpa_with_mask)


def test_the_lowest_float32_as_a_mask(rng: np.random.Generator) -> None:
    """As many models mask; in a row with nothing else all keys weigh the same."""
    bias = np.where(rng.random((4, 140)) < 0.7, np.float32(0), np.finfo(np.float32).min)
    bias[2] = np.finfo(np.float32).min
    problem = make_problem("dot", rng, M=4, N=140, bias=bias, extra_grads=False)
    q, k, v = (torch.from_numpy(problem.inputs[name]) for name in ("queries", "keys", "values"))
    expected = functional.scaled_dot_product_attention(q, k, v, attn_mask=torch.from_numpy(bias))
    np.testing.assert_allclose(problem.forward(), expected, rtol=1e-5, atol=1e-6)


# ---- what it lacks -------------------------------------------------------------------------------


def textbook_scores(problem: Problem, x: dict[str, Tensor]) -> Tensor:
    q, k = x["queries"], x["keys"]
    if problem.options.get("enable_gqa"):
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    scale = problem.options.get("scale")
    if "scale" in x:  # one for each head
        scale = x["scale"][..., None, None]
    if problem.score == "dot":
        scaled: Tensor = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
        return scaled
    if problem.score == "cosine":
        cosine: Tensor = functional.cosine_similarity(q.unsqueeze(-2), k.unsqueeze(-3), dim=-1)
        return cosine * (1.0 if scale is None else scale)
    if problem.score == "gaussian":
        return -((q.unsqueeze(-2) - k.unsqueeze(-3)) ** 2).sum(-1) * x["w"] ** 2 / 2
    hidden = functional.linear(q, x["W_q"], x.get("b_h"))
    features = torch.tanh(hidden.unsqueeze(-2) + functional.linear(k, x["W_k"]).unsqueeze(-3))
    scores: Tensor = features @ x["w_v"]
    return scores


def formula(problem: Problem, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """softmax(scores + bias) @ values over the pairs that take part; output, weights and lse.

    A sink is one more column of the logits, which the weights lose, as in the code of gpt-oss.
    """
    live = torch.from_numpy(problem.takes_part())
    s, cap = textbook_scores(problem, x), problem.options.get("softcap")
    s = s if cap is None else cap * torch.tanh(s / cap)
    s = (s if "bias" not in x else s + x["bias"]).masked_fill(~live, -torch.inf)
    column = torch.as_tensor(x.get("sink", -torch.inf), dtype=s.dtype).expand(live.shape[:-1])
    empty = ~live.any(-1, keepdim=True) & torch.isneginf(column)[..., None]
    s = torch.cat([s, column[..., None]], -1)
    s = s.masked_fill(empty, 0)  # so that autograd meets no NaN; these rows are replaced
    share = 1 / live.shape[-1] if problem.options["empty_rows"] == "uniform" else 0.0
    weights = torch.softmax(s, -1)[..., :-1].masked_fill(empty, share)
    lse = torch.logsumexp(s, -1).masked_fill(empty[..., 0], -torch.inf)
    values = x["values"]
    if problem.options.get("enable_gqa"):
        values = values.repeat_interleave(s.shape[-3] // values.shape[-3], dim=-3)
    return {"output": (weights * keep(problem, weights)) @ values, "weights": weights, "lse": lse}


def keep(problem: Problem, weights: Tensor) -> Tensor:
    """What dropout multiplies the weights by."""
    p = float(np.float32(problem.options.get("dropout_p", 0.0)))
    pattern = problem.options.get("dropout_mask", True)
    if problem.options.get("seed") is not None:
        pattern = keep_pattern(tuple(weights.shape), p, problem.options["seed"])
    scaled: Tensor = torch.tensor(pattern).to(weights.dtype) / (1 - p)
    return scaled


@pytest.mark.parametrize("case", cases(40, of=240))
def test_random_case_of_the_formula(case: int) -> None:
    """Every score, mask, modifier and option, and what flows into weights and lse."""
    rng = np.random.default_rng([2024, case])
    score, lead = SCORES[case % 4], [(), (2,), (2, 2), (1, 4), (2, 1, 2)][rng.integers(5)]
    M, N = int(rng.integers(1, 30)), int(rng.choice([2, 5, 33, 127, 130]))
    D, Dv, H = (int(n) for n in rng.integers(1, 20, size=3))
    options: dict[str, Any] = {"empty_rows": ["uniform", "zero"][rng.integers(2)]}
    if len(lead) > 1 and rng.integers(2):
        options["kv_heads"] = int(rng.choice([n for n in (1, 2, 4) if lead[-1] % n == 0]))
    dropout = rng.integers(4)
    if dropout == 1:
        options["dropout_mask"] = rng.random((*lead, M, N)) < 0.7
    if dropout == 2:
        options |= {"dropout_mask": rng.random((M, N)) < 0.7, "dropout_p": 0.3}
    if dropout == 3 and M * N < 500:
        options |= {"dropout_p": 0.3, "seed": case}
    if score == "additive" and rng.integers(2):
        options["b_h"] = rng.standard_normal(H, dtype=np.float32)
    options |= random_modifiers(score, rng, lead, M)
    sizes: dict[str, Any] = {"lead": lead, "M": M, "N": N, "D": D, "Dv": Dv, "H": H}
    problem = make_problem(score, rng, **sizes, **options, **random_masks(rng, lead, M, N))
    for name in ("grad_weights", "grad_lse"):
        if rng.integers(3) == 0:
            del problem.grads[name]
    compare(problem, formula)


@pytest.mark.parametrize("eps", [1e-8, 0.5, 2.0, 100.0])
def test_cosine_similarity(eps: float, rng: np.random.Generator) -> None:
    """Norms on both sides of eps. A query of zeros scores 0."""
    q = rng.standard_normal((2, 33, 5), dtype=np.float32)
    k = rng.standard_normal((2, 140, 5), dtype=np.float32)
    q[:, 3] = 0
    each, other = torch.from_numpy(q[:, :, None]), torch.from_numpy(k[:, None])
    expected = functional.cosine_similarity(each, other, dim=-1, eps=eps)
    scores = attnext.cosine_scores(q, k, eps=eps)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)
    assert not scores[:, 3].any()


@pytest.mark.parametrize("eps", [1e-8, 0.5, 2.0, 100.0])
@pytest.mark.parametrize("scale", [-4.0, 20.0])
def test_gradients_of_cosines_on_both_sides_of_eps(
    scale: float, eps: float, rng: np.random.Generator
) -> None:
    """Where eps takes the place of a norm it is a constant, as clamp_min has it. The gradient of
    cosine_similarity is another there: it clamps behind the back of autograd."""

    def model(problem: Problem, x: dict[str, Tensor]) -> dict[str, Tensor]:
        q, k = (
            x[name] / torch.linalg.vector_norm(x[name], dim=-1, keepdim=True).clamp_min(eps)
            for name in ("queries", "keys")
        )
        s = ((q @ k.mT) * scale).masked_fill(~torch.ones(33, 140).tril().bool(), -torch.inf)
        weights = torch.softmax(s, -1)
        output, lse = weights @ x["values"], torch.logsumexp(s, -1)
        return {"output": output, "weights": weights, "lse": lse}

    compare(make_problem("cosine", rng, M=33, N=140, D=5, scale=scale, eps=eps, causal=True), model)
