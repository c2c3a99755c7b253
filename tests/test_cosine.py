"""Cosine attention: torch's cosine_similarity as a score, small and huge norms, eps, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    EMPTY_ROWS,
    Array,
    Problem,
    assert_accurate,
    assert_all_accurate,
    bits,
    check,
    error_of,
    make_problem,
    random_masks,
)
from numpy.typing import DTypeLike
from torch.nn import functional

import attnext
from attnext import reference

nan, inf = np.nan, np.inf


def torch_scores(q: Any, k: Any, scale: float = 1.0, eps: float = 1e-8) -> Any:
    """(..., M, N), for tensors."""
    similarity = functional.cosine_similarity(q.unsqueeze(-2), k.unsqueeze(-3), dim=-1, eps=eps)
    return scale * similarity


def by_torch(problem: Problem, dtype: DTypeLike) -> dict[str, Array]:
    """Output, weights, lse and every gradient by autograd, all pairs taking part."""
    q, k, v = (torch.tensor(x.astype(dtype), requires_grad=True) for x in problem.inputs.values())
    scores = torch_scores(q, k, **problem.options)
    weights, lse = torch.softmax(scores, dim=-1), torch.logsumexp(scores, dim=-1)
    result = {"output": weights @ v, "weights": weights, "lse": lse}
    g = {name: torch.tensor(x.astype(dtype)) for name, x in problem.grads.items()}
    loss = (result["output"] * g["grad_output"]).sum()
    loss = loss + (weights * g["grad_weights"]).sum() + (lse * g["grad_lse"]).sum()
    d = torch.autograd.grad(loss, (q, k, v))
    result |= dict(zip(("d_queries", "d_keys", "d_values"), d, strict=True))
    return {name: x.detach().numpy() for name, x in result.items()}


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, dtype=np.float32)


# ---- values and gradients ------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 10.0, -3.0, 0.0])
@pytest.mark.parametrize(
    ("M", "N", "D"), [(1, 1, 1), (3, 5, 4), (17, 33, 7), (20, 140, 30), (40, 20, 260)]
)
def test_against_torch(M: int, N: int, D: int, scale: float, rng: np.random.Generator) -> None:
    """Values, and gradients by autograd through output, weights and lse."""
    problem = make_problem("cosine", rng, M=M, N=N, D=D, scale=scale)
    exact = by_torch(problem, np.float64)
    assert_all_accurate(problem.run(), exact, problem, by_torch)


@pytest.mark.parametrize("case", range(12))
def test_under_masks(case: int, rng: np.random.Generator) -> None:
    masks = random_masks(rng, (2, 4), 9, 40)
    options: dict[str, Any] = {"empty_rows": EMPTY_ROWS[case % 3], "scale": 4.0}
    kv_heads = [None, 1, 2][case % 3]
    check(
        make_problem("cosine", rng, lead=(2, 4), M=9, N=40, kv_heads=kv_heads, **masks, **options)
    )


@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 3), (2, 1, 2)], ids=str)
@pytest.mark.parametrize(("M", "N", "D"), [(1, 1, 1), (3, 5, 4), (20, 140, 30), (33, 20, 300)])
def test_scores_are_torchs(
    lead: tuple[int, ...], M: int, N: int, D: int, rng: np.random.Generator
) -> None:
    q, k = normal(rng, *lead, M, D), normal(rng, *lead, N, D)
    single, double = (
        torch_scores(torch.tensor(q.astype(t)), torch.tensor(k.astype(t)), 2.5).numpy()
        for t in (np.float32, np.float64)
    )
    got = attnext.cosine_scores(q, k, scale=2.5)
    assert got.dtype == np.float32 and got.shape == (*lead, M, N)
    assert_accurate(got, double, error_of(single, double))
    assert_accurate(got, reference.cosine_scores(q, k, scale=2.5), error_of(single, double))


def test_composition_of_scores_softmax_and_product(rng: np.random.Generator) -> None:
    problem = make_problem("cosine", rng, M=20, N=140, scale=7.0)
    q, k, v = problem.inputs.values()
    mask, lens = rng.random((2, 20, 140)) < 0.5, rng.integers(0, 141, size=(2, 20))
    scores = attnext.cosine_scores(q, k, scale=7)
    weights = attnext.masked_softmax(scores, lens, mask=mask)
    output, expected = problem.but(valid_lens=lens, mask=mask).forward(return_weights=True)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(weights @ v, output, rtol=1e-5, atol=1e-6)
    assert np.array_equal(weights == 0, expected == 0)


def test_the_length_of_a_vector_does_not_matter(rng: np.random.Generator) -> None:
    """Powers of two in its place: the same bits, and gradients smaller by as much."""
    problem = make_problem("cosine", rng, M=20, N=140)
    before = problem.run()
    sizes = {"queries": 2.0 ** rng.integers(-20, 20, (2, 20, 1))}
    sizes["keys"] = 2.0 ** rng.integers(-20, 20, (2, 140, 1))
    for name, size in sizes.items():
        problem.inputs[name] = (problem.inputs[name] * size).astype(np.float32)
    after = problem.run()
    for name, x in after.items():
        scaled = x * np.asarray(sizes.get(name.removeprefix("d_"), 1.0), dtype=np.float32)
        np.testing.assert_array_equal(bits(scaled), bits(before[name]), err_msg=name)


def test_scores_in_closed_form() -> None:
    q, k = [[3.0, 4.0]], [[6.0, 8.0], [-3.0, -4.0], [4.0, -3.0], [0.0, 0.0], [1.0, 0.0]]
    expected = np.array([[1, -1, 0, 0, 0.6]])
    np.testing.assert_allclose(attnext.cosine_scores(q, k), expected, rtol=2e-7, atol=1e-7)
    np.testing.assert_allclose(attnext.cosine_scores(q, k, scale=-2), -2 * expected, 2e-7, 1e-7)
    assert attnext.cosine_scores(q, k)[0, 3] == 0


def test_gradients_are_at_right_angles(rng: np.random.Generator) -> None:
    """To what they belong to: a longer vector has the same score."""
    problem = make_problem("cosine", rng, M=20, N=140, D=8, scale=3.0)
    d = problem.backward()
    for name in ("queries", "keys"):
        x, g = problem.inputs[name], d[f"d_{name}"]
        along = (x * g).sum(axis=-1) / np.linalg.norm(x, axis=-1)
        assert np.abs(along).max() <= 1e-6 * np.abs(g).max()


# ---- norms: zero, around eps, huge, tiny ---------------------------------------------------------


def with_norms(problem: Problem, norms: Array) -> Problem:
    """The first queries and keys of each entry with these norms."""
    for name in ("queries", "keys"):
        x = problem.inputs[name]
        n = min(len(norms), x.shape[-2])
        unit = x[..., :n, :] / np.linalg.norm(x[..., :n, :].astype(float), axis=-1, keepdims=True)
        x[..., :n, :] = unit * norms[:n, None]
    return problem


def check_rows(problem: Problem) -> None:
    """As `check`, with a tolerance for each vector: their gradients differ by many powers of 10."""
    got, exact = problem.run(), problem.run(reference)
    for name in ("output", "weights", "lse", "d_values"):
        np.testing.assert_allclose(got[name], exact[name], rtol=1e-5, atol=2e-6, err_msg=name)
    for name in ("d_queries", "d_keys"):
        size = np.abs(exact[name]).max(axis=-1, keepdims=True)
        error = np.abs(got[name] - exact[name])
        assert np.isfinite(got[name]).all()
        assert (error <= 2e-5 * size + 1e-37).all(), name


@pytest.mark.parametrize("scale", [1.0, 6.0])
@pytest.mark.parametrize("eps", [1e-8, 1e-3, 1.0])
def test_norms_on_both_sides_of_eps(eps: float, scale: float, rng: np.random.Generator) -> None:
    norms = eps * np.array([0.5, 2.0, 1e-3, 1e3, 0.9, 1.1, 0.0])
    problem = make_problem("cosine", rng, M=9, N=30, D=6, Dv=5, eps=eps, scale=scale)
    check_rows(with_norms(problem, norms))


@pytest.mark.parametrize("D", [1, 2, 6, 33])
@pytest.mark.parametrize("norm", [1e30, 1e19, 1e-15, 1e-19, 1e-25, 1e-30])
def test_huge_and_tiny_norms(norm: float, D: int, rng: np.random.Generator) -> None:
    """Squares of 1e30 overflow, those of 1e-30 vanish; with a smaller eps they are as any other."""
    norms = np.full(4, norm)
    problem = make_problem("cosine", rng, M=6, N=9, D=D, scale=3.0, eps=1e-35)
    with_norms(problem, norms)
    scores = attnext.cosine_scores(*list(problem.inputs.values())[:2], scale=3.0, eps=1e-35)
    exact = reference.cosine_scores(*list(problem.inputs.values())[:2], scale=3.0, eps=1e-35)
    np.testing.assert_allclose(scores, exact, rtol=1e-5, atol=3e-6)
    check_rows(problem)


def test_one_large_entry_among_small_ones(rng: np.random.Generator) -> None:
    problem = make_problem("cosine", rng, M=6, N=9, D=7)
    problem.inputs["queries"][..., 2] = 1e25
    problem.inputs["keys"][..., 5] = -1e22
    problem.inputs["keys"][0, 3, 2] = 1e28
    check_rows(problem)


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
def test_vectors_of_zeros(empty_rows: str, rng: np.random.Generator) -> None:
    """They score 0 with every other. Gradients: dq = scale * sum dS k/|k| / eps."""
    eps = 1e-3
    problem = make_problem("cosine", rng, M=6, N=9, D=7, eps=eps, scale=2.0, empty_rows=empty_rows)
    problem.inputs["queries"][0, 2] = problem.inputs["keys"][0, 4] = 0
    problem.inputs["queries"][1, :] = -0.0
    scores = attnext.cosine_scores(*list(problem.inputs.values())[:2], scale=2.0, eps=eps)
    assert not scores[0, 2].any() and not scores[0, :, 4].any() and not scores[1].any()
    weights = problem.forward(return_weights=True)[1]
    np.testing.assert_allclose(weights[0, 2], np.full(9, 1 / 9), rtol=1e-6)
    check(problem)


@pytest.mark.parametrize("eps", [1.0, 1e-8, 1e-30, 1e-40])
def test_vectors_of_zeros_whatever_eps_is(eps: float) -> None:
    q, k = np.zeros((1, 3)), [[0.0, 0.0, 0.0], [1.0, 2.0, 2.0]]
    np.testing.assert_array_equal(attnext.cosine_scores(q, k, eps=eps), [[0, 0]])
    output, lse = attnext.cosine_attention(q, k, [[1.0], [2.0]], eps=eps, return_lse=True)
    np.testing.assert_allclose(output, [[1.5]], rtol=1e-6)
    np.testing.assert_allclose(lse, [np.log(2)], rtol=1e-6)


def test_all_below_eps_is_a_dot_product(rng: np.random.Generator) -> None:
    """Then eps is a constant divisor, and the gradients are those of the dot product."""
    problem = make_problem("cosine", rng, M=6, N=30, D=5, eps=64.0, scale=1.0)
    dot = Problem("dot", problem.inputs, {"scale": 1 / 64**2}, problem.grads)
    expected = dot.run()
    for name, x in problem.run().items():
        np.testing.assert_allclose(x, expected[name], rtol=1e-4, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_vectors_that_are_not_finite(bad: float, rng: np.random.Generator) -> None:
    """A direction they do not have: NaN in their row, and nowhere else."""
    problem = make_problem("cosine", rng, M=6, N=9, D=4)
    clean = problem.run()
    problem.inputs["queries"][1, 2, 3] = bad
    found = problem.run()
    for name in ("output", "weights", "d_queries"):
        assert np.isnan(found[name][1, 2]).all(), name
        found[name][1, 2] = clean[name][1, 2]
    assert np.isnan(found["lse"][1, 2])
    found["lse"][1, 2] = clean["lse"][1, 2]
    for name in ("output", "weights", "lse", "d_queries"):
        np.testing.assert_array_equal(bits(found[name]), bits(clean[name]), err_msg=name)


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_keys_that_are_not_finite(bad: float, rng: np.random.Generator) -> None:
    """Infinity over infinity is NaN, as in torch: no key scores -inf and goes unnoticed."""
    q, k, v = normal(rng, 3, 4), normal(rng, 5, 4), normal(rng, 5, 2)
    k[2, 1] = bad
    q[1, 1] = 0  # and 0 times infinity is NaN too
    scores = attnext.cosine_scores(q, k)
    expected = torch_scores(torch.tensor(q), torch.tensor(k)).numpy()
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)
    assert np.isnan(scores[:, 2]).all() and np.isfinite(np.delete(scores, 2, axis=1)).all()
    output, lse = attnext.cosine_attention(q, k, v, return_lse=True)
    assert np.isnan(output).all() and np.isnan(lse).all()


def test_norms_beyond_float32(rng: np.random.Generator) -> None:
    """Finite vectors that are longer than the largest number: still cosines."""
    problem = make_problem("cosine", rng, M=6, N=9, D=16, scale=4.0)
    sign = np.where(problem.inputs["queries"] < 0, np.float32(-1), np.float32(1))
    problem.inputs["queries"] = np.float32(3e38) * sign
    problem.inputs["keys"][:, ::2] = np.float32(2.5e38) * np.sign(problem.inputs["keys"][:, ::2])
    arrays = list(problem.inputs.values())[:2]
    scores = attnext.cosine_scores(*arrays)
    np.testing.assert_allclose(scores, reference.cosine_scores(*arrays), rtol=1e-5, atol=1e-6)
    assert (np.abs(scores) <= 1 + 1e-6).all()
    check_rows(problem)


# ---- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1, np.float32(0.5), np.float64(2), np.array(0.25), np.int8(3)])
def test_eps_may_be_any_number(eps: Any, rng: np.random.Generator) -> None:
    problem = make_problem("cosine", rng, eps=eps)
    check(problem)
    np.testing.assert_array_equal(problem.forward(), problem.but(eps=float(eps)).forward())


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("eps", 0, ValueError),
        ("eps", -1e-8, ValueError),
        ("eps", 1e-300, ValueError),  # 0 in float32
        ("eps", nan, ValueError),
        ("eps", inf, ValueError),
        ("eps", [1e-8, 1e-8], ValueError),
        ("eps", None, TypeError),
        ("eps", "1e-8", TypeError),
        ("eps", 1j, TypeError),
        ("eps", True, TypeError),
        ("scale", nan, ValueError),
        ("scale", inf, ValueError),
        ("scale", 1e39, ValueError),
        ("scale", [1.0, 2.0], ValueError),
        ("scale", None, TypeError),
        ("scale", "1", TypeError),
        ("scale", False, TypeError),
    ],
)
@pytest.mark.parametrize("function", ["forward", "backward", "scores"])
def test_wrong_numbers(function: str, name: str, value: Any, error: type[Exception]) -> None:
    x = np.ones((2, 3))
    calls: dict[str, Callable[..., Any]] = {
        "forward": lambda **o: attnext.cosine_attention(x, x, x, **o),
        "backward": lambda **o: attnext.cosine_attention_backward(x, x, x, x, **o),
        "scores": lambda **o: attnext.cosine_scores(x, x, **o),
    }
    with pytest.raises(error, match=f"^{name} "):
        calls[function](**{name: value})


def test_queries_and_keys_need_as_many_features() -> None:
    with pytest.raises(ValueError, match="keys has shape"):
        attnext.cosine_attention(np.ones((2, 3)), np.ones((2, 4)), np.ones((2, 3)))
    with pytest.raises(ValueError, match="keys has shape"):
        attnext.cosine_scores(np.ones((2, 3)), np.ones((2, 4)))
