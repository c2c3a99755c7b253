"""attnext.reference: masks, bias, heads in groups, dropout masks, cosines, merging.

As in test_reference.py, nothing here leans on the fast functions: central differences prove the
gradients, PyTorch in float64 and rules that can be told without computing anything the meaning.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    EMPTY_ROWS,
    SCORES,
    Array,
    Problem,
    check_padding,
    make_problem,
    random_masks,
    random_modifiers,
    textbook,
)
from numpy.testing import assert_allclose, assert_array_equal
from sampling import cases
from torch.nn import functional
from wrong_calls import Call, Wrong, each, raised_by

from attnext import reference as ref
from attnext.testing import assert_gradients_close, numerical_gradient

score_cases = pytest.mark.parametrize("score", SCORES)
LEADS = [(), (2,), (1, 4), (2, 1, 2)]
nan, inf = np.nan, np.inf


def as_float64(problem: Problem) -> Problem:
    """Its numbers in the precision that differences need."""
    options = {
        name: x.astype(np.float64) if getattr(x, "dtype", None) == np.float32 else x
        for name, x in problem.options.items()
    }
    inputs = {name: x.astype(np.float64) for name, x in problem.inputs.items()}
    return replace(problem, inputs=inputs, options=options)


def random_problem(case: int, **options: Any) -> Problem:
    """Any score, leading axes, composition of masks and of modifiers; in turn heads in groups and
    dropout."""
    rng = np.random.default_rng([4, case])
    score, lead = SCORES[case % 4], LEADS[rng.integers(len(LEADS))]
    M, N = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    if len(lead) > 1 and rng.integers(2):
        options["kv_heads"] = int(rng.choice([1, 2]))
    if score == "additive" and rng.integers(2):
        options["b_h"] = rng.standard_normal(3)
    dropout = rng.integers(4)
    if dropout == 1:
        options |= {"dropout_p": 0.3, "seed": case}
    if dropout >= 2:
        options |= {"dropout_mask": rng.random((M, N)) < 0.7, "dropout_p": (dropout - 2) / 2}
    options |= random_masks(rng, lead, M, N) | random_modifiers(score, rng, lead, M)
    sizes = {"M": M, "N": N, "D": 3, "Dv": 2, "H": 3}
    return as_float64(make_problem(score, rng, lead=lead, **sizes, **options))


def with_array(problem: Problem, name: str, x: Any) -> Problem:
    """The same with another array of this name, an input or an option."""
    if name in problem.inputs:
        return replace(problem, inputs={**problem.inputs, name: x})
    return problem.but(**{name: x})


def is_empty(problem: Problem) -> Array:
    """(..., M): the rows without a key or a sink."""
    live = problem.takes_part()
    sink = problem.options.get("sink")
    sinks = np.broadcast_to(-inf if sink is None else sink, live.shape[:-1])
    return np.asarray(~live.any(axis=-1) & np.isneginf(sinks))


def loss(problem: Problem) -> float:
    """A sum over output, weights and lse, of which problem.grads are the gradients."""
    output, weights, lse = problem.forward(ref, return_weights=True, return_lse=True)
    live = ~is_empty(problem)  # the lse of an empty row is -inf, whatever goes in
    assert_array_equal(np.isfinite(lse), live)
    g = problem.grads
    through_lse = np.sum((g["grad_lse"] * lse)[live])
    return float(
        np.sum(g["grad_output"] * output) + np.sum(g["grad_weights"] * weights) + through_lse
    )


def assert_gradients_are_those_of_differences(problem: Problem, *names: str) -> None:
    """The gradients of these names, or all."""
    got = problem.run(ref)
    arrays = {**problem.inputs, **problem.options}
    for name in names or [name[2:] for name in got if name.startswith("d_")]:
        x = np.asarray(arrays[name])
        finite = np.isfinite(x)  # a bias of -inf stays what it is

        def f(moved: Array, name: str = name, x: Array = x, finite: Array = finite) -> float:
            return loss(with_array(problem, name, np.where(finite, moved, x)))

        numerical = numerical_gradient(f, np.where(finite, x, 0))
        assert got[f"d_{name}"].shape == x.shape
        assert_gradients_close(got[f"d_{name}"], numerical, rtol=1e-7, atol=1e-9, names=name)


# ---- every gradient, by central differences ----------------------------------------------------


@pytest.mark.parametrize("case", cases(8, of=64))
def test_gradients_of_any_composition(case: int) -> None:
    """Through output, weights and lse together, into inputs, parameters, bias, sink and scale."""
    empty_rows = ["uniform", "zero"][case // 4 % 2]
    assert_gradients_are_those_of_differences(random_problem(case, empty_rows=empty_rows))


@pytest.mark.parametrize("eps", [1e-8, 2.0, 100.0])
def test_gradients_of_cosines_on_both_sides_of_eps(eps: float, rng: np.random.Generator) -> None:
    problem = as_float64(make_problem("cosine", rng, M=4, N=6, scale=2.5, eps=eps))
    norms = np.linalg.norm(problem.inputs["keys"], axis=-1)
    assert np.abs(norms - eps).min() > 1e-3  # a difference must not cross it
    assert (norms < eps).any() == (eps > 1e-8) and (norms > eps).any() == (eps < 100)
    assert_gradients_are_those_of_differences(problem)


def test_cosines_of_nothing(rng: np.random.Generator) -> None:
    """A vector of zeros scores 0, and its gradient is that of a division by eps."""
    problem = as_float64(make_problem("cosine", rng, lead=(), M=2, N=3, eps=0.5, scale=2.0))
    problem.inputs["queries"][0] = problem.inputs["keys"][1] = 0
    scores = ref.cosine_scores(problem.inputs["queries"], problem.inputs["keys"], eps=0.5)
    assert_array_equal(scores[0], np.zeros(3))
    assert_array_equal(scores[:, 1], np.zeros(2))
    assert_gradients_are_those_of_differences(problem)
    assert_array_equal(ref.cosine_scores(np.ones((1, 0)), np.ones((2, 0))), np.zeros((1, 2)))


# ---- values: the same formulas on whole arrays, PyTorch ----------------------------------------


def assert_textbook_agrees(problem: Problem) -> None:
    """The formulas on whole arrays, which the fast functions are tested with, are the reference."""
    got = problem.run(ref)
    expected = textbook(problem, np.float64)
    assert got.keys() == expected.keys()
    for name, x in expected.items():
        largest = np.max(np.abs(x), where=np.isfinite(x), initial=0.01)
        assert_allclose(got[name], x, rtol=1e-11, atol=1e-11 * largest, err_msg=name)
    check_padding(problem, got)


@pytest.mark.parametrize("case", cases(24, of=60))
def test_against_the_textbook_on_whole_arrays(case: int) -> None:
    for empty_rows in EMPTY_ROWS:
        assert_textbook_agrees(random_problem(case, empty_rows=empty_rows))


@pytest.mark.parametrize("case", cases(48, of=96))
def test_against_the_textbook_at_the_sizes_of_other_tests(case: int) -> None:
    """Also without keys, with scores next to nothing, sharp, and saturated."""
    rng = np.random.default_rng([9, case])
    score, lead = SCORES[case % 4], LEADS[rng.integers(len(LEADS))]
    M, N = int(rng.integers(0, 20)), int(rng.choice([0, 1, 2, 33, 70]))
    D, Dv, H = (int(n) for n in rng.integers(1, 40, size=3))
    options = random_masks(rng, lead, M, N) if M and N else {"valid_lens": 1}
    options["empty_rows"] = EMPTY_ROWS[case // 4 % 3]
    problem = make_problem(score, rng, lead=lead, M=M, N=N, D=D, Dv=Dv, H=H, **options)
    for name in ("queries", "keys"):
        problem.inputs[name] *= np.float32([1e-3, 1.0, 1.0, 30.0][case // 12 % 4])
    assert_textbook_agrees(as_float64(problem))


@pytest.mark.parametrize("kv_heads", [None, 1, 2, 4])
@pytest.mark.parametrize("masked", ["nothing", "mask", "bias", "causal"])
def test_against_torch_scaled_dot_product_attention(
    masked: str, kv_heads: int | None, rng: np.random.Generator
) -> None:
    """Values and gradients; rows without a key are 0 there: empty_rows="zero"."""
    M, N, options = 4, 5, {}
    t_options: dict[str, Any] = {}
    if masked == "mask":
        options["mask"] = rng.random((2, 1, M, N)) < 0.6
        options["mask"][1, 0, 2] = False
        t_options["attn_mask"] = torch.from_numpy(options["mask"])
    if masked == "bias":
        bias = rng.normal(size=(4, M, N))
        bias[rng.random(bias.shape) < 0.3] = bias[1, 2] = -inf
        options["bias"] = bias
        t_options["attn_mask"] = torch.from_numpy(bias).requires_grad_()
    if masked == "causal":
        options["causal"] = t_options["is_causal"] = True
    problem = make_problem("dot", rng, lead=(2, 4), M=M, N=N, kv_heads=kv_heads, **options)
    problem = as_float64(problem.but(scale=0.3, empty_rows="zero"))
    t = {name: torch.from_numpy(x).requires_grad_() for name, x in problem.inputs.items()}
    t_output = functional.scaled_dot_product_attention(
        t["queries"],
        t["keys"],
        t["values"],
        scale=0.3,
        enable_gqa=kv_heads is not None,
        **t_options,
    )
    problem.grads = {"grad_output": rng.normal(size=t_output.shape)}
    if masked == "bias":
        t["bias"] = t_options["attn_mask"]
    d = torch.autograd.grad(
        t_output, list(t.values()), torch.from_numpy(problem.grads["grad_output"])
    )

    got = problem.run(ref)
    assert_allclose(got["output"], t_output.detach(), rtol=1e-12, atol=1e-14)
    for name, x in zip(t, d, strict=True):
        assert_allclose(got[f"d_{name}"], x, rtol=1e-11, atol=1e-13, err_msg=name)


def test_cosine_is_torchs(rng: np.random.Generator) -> None:
    q, k = rng.normal(size=(3, 4)), rng.normal(size=(5, 4))
    q[1], k[2], k[3] = 0, 0, 1e-9
    t_q, t_k = torch.from_numpy(q), torch.from_numpy(k)
    expected = functional.cosine_similarity(t_q[:, None], t_k[None], dim=-1, eps=1e-8)
    assert_allclose(ref.cosine_scores(q, k), expected, rtol=1e-13, atol=1e-16)
    assert_allclose(ref.cosine_scores(q, 7 * k, scale=-2)[0, 0], -2 * expected[0, 0], rtol=1e-13)


# ---- who takes part ----------------------------------------------------------------------------


def pairs(M: int, N: int, lead: tuple[int, ...] = (), **masks: Any) -> Array:
    """Which pairs take part, 0 or 1, seen by their weights."""
    q, k, v = np.zeros((*lead, M, 1)), np.zeros((*lead, N, 1)), np.zeros((*lead, N, 1))
    _, weights = ref.dot_product_attention(q, k, v, **masks, empty_rows="zero", return_weights=True)
    return (weights > 0).astype(int)


@pytest.mark.parametrize(
    "masks, expected",
    [
        ({"causal": True}, ["1000", "1100", "1110"]),
        ({"causal": True, "causal_offset": 1}, ["1100", "1110", "1111"]),  # N - M: bottom-right
        ({"causal": True, "causal_offset": -1}, ["0000", "1000", "1100"]),
        ({"causal": True, "causal_offset": -3}, ["0000", "0000", "0000"]),
        ({"causal": True, "causal_offset": 2**80}, ["1111", "1111", "1111"]),
        ({"causal": True, "causal_offset": -(2**80)}, ["0000", "0000", "0000"]),
        ({"causal_offset": -3}, ["1111", "1111", "1111"]),
        ({"window": (-1, -1)}, ["1111", "1111", "1111"]),
        ({"window": (0, 0)}, ["1000", "0100", "0010"]),
        ({"window": [1, 0]}, ["1000", "1100", "0110"]),
        ({"window": (0, 1)}, ["1100", "0110", "0011"]),
        ({"window": (-1, 1)}, ["1100", "1110", "1111"]),
        ({"window": (1, -1)}, ["1111", "1111", "0111"]),
        ({"window": (2**80, 0)}, ["1000", "1100", "1110"]),
        ({"window": (0, 1), "causal_offset": 2}, ["0011", "0001", "0000"]),
        ({"window": (1, 0), "causal_offset": -2}, ["0000", "0000", "1000"]),
        ({"window": (1, -1), "causal": True}, ["1000", "1100", "0110"]),
        ({"window": (1, 2), "causal": True}, ["1000", "1100", "0110"]),
        ({"window": (1, 2), "causal": True, "causal_offset": 1}, ["1100", "0110", "0011"]),
        ({"mask": [True, False, True, True]}, ["1011", "1011", "1011"]),
        ({"mask": [[True], [False], [True]]}, ["1111", "0000", "1111"]),
        ({"mask": False}, ["0000", "0000", "0000"]),
        ({"bias": [0.0, -inf, 1.0, -1.0]}, ["1011", "1011", "1011"]),
        ({"bias": [[-inf], [0.0], [1.0]]}, ["0000", "1111", "1111"]),
        ({"valid_lens": 2, "causal": True}, ["1000", "1100", "1100"]),
        ({"valid_lens": [4, 1, 3], "mask": [False, True, True, True], "causal": True,
          "causal_offset": 1, "window": (2, -1), "bias": [0.0, 0.0, -inf, 0.0]},
         ["0100", "0000", "0100"]),
    ],
    ids=str,
)  # fmt: skip
def test_pairs_of_every_mask(masks: dict[str, Any], expected: list[str]) -> None:
    assert ["".join(map(str, row)) for row in pairs(3, 4, **masks)] == expected


def test_offsets_belong_to_the_first_axis() -> None:
    for lead in [(3,), (3, 2), (3, 3)]:
        together = pairs(3, 3, lead, causal=True, window=(1, -1), causal_offset=[0, -2, 1])
        for entry, offset in zip(together, [0, -2, 1], strict=True):
            alone = pairs(3, 3, causal=True, window=(1, -1), causal_offset=offset)
            assert_array_equal(entry, np.broadcast_to(alone, entry.shape))


@pytest.mark.parametrize("case", cases(40, of=80))
def test_any_composition_is_one_mask(case: int) -> None:
    """The same bits as with the pairs written out as a bool mask; NaN in a bias of -inf is dead."""
    problem = random_problem(case)
    bias = problem.options.get("bias")
    names = ("valid_lens", "causal", "causal_offset", "window")
    others = {name: x for name, x in problem.options.items() if name not in names}
    if bias is not None:
        others["bias"] = np.where(np.isneginf(bias), nan, bias)
    one = replace(problem, options={**others, "mask": problem.takes_part()})
    got, expected = problem.run(ref), one.run(ref)
    for name, x in expected.items():
        assert_array_equal(got[name], x, err_msg=name)


def test_masks_and_bias_of_any_kind_that_are_never_written(rng: np.random.Generator) -> None:
    q, k, v = rng.normal(size=(3, 3, 4, 2))
    mask, bias = rng.random((4, 4)) < 0.7, rng.normal(size=(4, 4)).round(1).astype(np.float16)
    keep, options = mask.T, {"dropout_p": 0.5}
    expected = ref.dot_product_attention(
        q, k, v, mask=mask, bias=bias.astype(float), dropout_mask=keep, **options
    )
    for convert in [
        lambda x: x.tolist(),
        lambda x: np.asfortranarray(x),
        lambda x: x.astype(x.dtype.newbyteorder()),
        lambda x: torch.from_numpy(x.copy()),
        lambda x: x.astype(np.longdouble) if x.dtype.kind == "f" else x,
    ]:
        arrays = {"mask": convert(mask), "bias": convert(bias), "dropout_mask": convert(keep)}
        before = repr(arrays)
        assert_array_equal(ref.dot_product_attention(q, k, v, **arrays, **options), expected)
        ref.dot_product_attention_backward(v, q, k, v, **arrays, **options)
        assert repr(arrays) == before


# ---- what takes no part is never read; bias that is not finite ---------------------------------


@pytest.mark.parametrize("case", cases(24, of=40))
def test_what_takes_no_part_is_never_read(case: int) -> None:
    poison = [nan, inf, -inf][case // 4 % 3]
    problem = random_problem(case, empty_rows="zero")
    live = problem.takes_part()
    empty, shape = ~live.any(axis=-1), problem.inputs["keys"].shape
    group = live.shape[-3] // shape[-3] if len(shape) > 2 else 1
    unused = ~live.any(axis=-2).reshape(*shape[:-2], group, shape[-2]).any(axis=-2)
    clean = problem.run(ref)

    dirty = replace(problem, inputs={name: x.copy() for name, x in problem.inputs.items()})
    dirty.grads = {name: x.copy() for name, x in problem.grads.items()}
    dirty.inputs["keys"][unused] = dirty.inputs["values"][unused] = poison
    dirty.inputs["queries"][empty] = poison
    dirty.grads["grad_weights"][~live] = poison
    dirty.grads["grad_output"][empty] = dirty.grads["grad_lse"][is_empty(problem)] = poison
    if "bias" in problem.options:
        bias = np.broadcast_to(problem.options["bias"], live.shape)
        dirty = dirty.but(bias=np.where(live, bias, poison), mask=live)
    got = dirty.run(ref)
    for name in set(clean) - {"d_bias"}:
        assert_array_equal(got[name], clean[name], err_msg=name)
    if "d_bias" in got:
        assert np.isfinite(got["d_bias"]).all() and not got["d_bias"][~live].any()


@pytest.mark.parametrize("bias, lse", [(nan, nan), (inf, inf)])
@score_cases
def test_a_bias_that_is_nan_or_inf_makes_its_row_nan(
    score: str, bias: float, lse: float, rng: np.random.Generator
) -> None:
    problem = as_float64(make_problem(score, rng, lead=(), M=3, N=4, valid_lens=[4, 4, 2]))
    every = np.zeros((3, 4))
    clean = problem.but(bias=every.copy()).run(ref)
    every[1, 2] = every[2, 3] = bias  # row 1 attends to it, row 2 does not
    got = problem.but(bias=every).run(ref)
    for name in ("output", "weights", "lse", "d_queries", "d_bias"):
        assert_array_equal(got[name][[0, 2]], clean[name][[0, 2]], err_msg=name)
    for name in ("output", "weights", "d_queries", "d_bias"):
        assert np.isnan(got[name][1]).all(), name
    assert_array_equal(got["lse"][1], lse)


def test_a_row_of_scores_that_overflow_is_nan_not_empty() -> None:
    """Beside a row that a bias of -inf empties."""
    output, lse = ref.dot_product_attention(
        [[1.0], [1.0]], [[-inf], [-inf]], [[1.0], [2.0]], bias=[[0.0], [-inf]], return_lse=True
    )
    assert_array_equal(output, [[nan], [1.5]])
    assert_array_equal(lse, [-inf, -inf])


# ---- heads in groups ---------------------------------------------------------------------------


def test_no_heads_at_all(rng: np.random.Generator) -> None:
    for kv_heads in (0, 3):
        problem = make_problem("dot", rng, lead=(2, 0), kv_heads=kv_heads)
        got = problem.run(ref)
        assert got["output"].shape == (2, 0, 3, 3)
        assert_array_equal(got["d_keys"], np.zeros((2, kv_heads, 5, 4)))


# ---- a dropout mask ----------------------------------------------------------------------------


def test_a_dropout_mask_alone_scales_nothing() -> None:
    q, k, v = np.zeros((1, 1)), np.zeros((4, 1)), np.eye(4)
    mask = [True, False, True, True]
    output, weights = ref.dot_product_attention(q, k, v, dropout_mask=mask, return_weights=True)
    assert_array_equal(output, [[0.25, 0, 0.25, 0.25]])
    assert_array_equal(weights, [[0.25] * 4])
    output = ref.dot_product_attention(q, k, v, dropout_mask=mask, dropout_p=0.5)
    assert_array_equal(output, [[0.5, 0, 0.5, 0.5]])
    uniform = ref.dot_product_attention(q, k, v, 0, dropout_mask=mask)  # empty rows too
    assert_array_equal(uniform, [[0.25, 0, 0.25, 0.25]])


# ---- what the forward returned -----------------------------------------------------------------


@score_cases
def test_what_the_forward_returned_changes_no_gradient(
    score: str, rng: np.random.Generator
) -> None:
    problem = make_problem(score, rng, valid_lens=[0, 3], bias=np.ones((3, 5)))
    output, weights, lse = problem.forward(ref, return_weights=True, return_lse=True)
    expected = problem.backward(ref)
    got = problem.backward(ref, output=output, weights=weights, lse=lse)
    assert_gradients_close(got, expected, rtol=0, atol=0)


# ---- masked softmax ----------------------------------------------------------------------------


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
@pytest.mark.parametrize("shape", [(), (4,), (3, 1), (1, 4), (3, 4), (2, 1, 1, 1), (2, 2, 3, 4)])
def test_masked_softmax_with_a_mask(
    shape: tuple[int, ...], empty_rows: str, rng: np.random.Generator
) -> None:
    """Alone and with lengths: the softmax of what both leave, and its gradient."""
    X, g = rng.normal(size=(2, 2, 2, 3, 4))
    mask = np.array(rng.random(shape) < 0.6)
    for lens in (None, [[1, 0, 4], [2, 9, 3]]):
        options = {"mask": mask, "empty_rows": empty_rows}
        weights = ref.masked_softmax(X, lens, **options)
        dX = ref.masked_softmax_backward(g, weights, lens, **options)
        part = ref.masked_softmax(np.zeros_like(X), lens, empty_rows="zero") > 0
        part &= mask
        for row in np.ndindex(2, 2, 3):
            live = part[row]
            if live.any():
                assert_allclose(weights[row][live], ref.masked_softmax(X[row][live]), rtol=1e-14)
                assert not weights[row][~live].any() and not dX[row][~live].any()
            else:
                fill = {"uniform": 0.25, "zero": 0.0, "nan": nan}[empty_rows]
                assert_array_equal(weights[row], np.full(4, fill))
                assert_array_equal(dX[row], np.full(4, nan if empty_rows == "nan" else 0))
        if empty_rows != "nan":
            numerical = numerical_gradient(
                lambda x, lens=lens, options=options: ref.masked_softmax(x, lens, **options),
                X,
                grad_output=g,
            )
            assert_gradients_close(dX, numerical, rtol=1e-7)


def test_masked_softmax_of_one_row_with_a_mask() -> None:
    weights = ref.masked_softmax([0.0, nan, 0.0, 5.0], 3, mask=[True, False, True, True])
    assert_array_equal(weights, [0.5, 0, 0.5, 0])
    assert_array_equal(ref.masked_softmax([1.0, 2.0], mask=False), [0.5, 0.5])


# ---- merging -----------------------------------------------------------------------------------


def over_keys(problem: Problem, keys: slice) -> Problem:
    """The attention over some of the keys."""
    part = replace(problem, inputs=dict(problem.inputs), options=dict(problem.options))
    for name in ("keys", "values"):
        part.inputs[name] = problem.inputs[name][..., keys, :]
    for name in ("mask", "bias"):
        part.options[name] = problem.options[name][..., keys]
    return part


@pytest.mark.parametrize("cuts", [[], [3], [0, 2], [1, 1, 4, 5]], ids=str)
@score_cases
def test_attention_over_split_keys_is_attention_over_all(
    score: str, cuts: list[int], rng: np.random.Generator
) -> None:
    """Values, and gradients through the merged output and lse, those of the bias included."""
    N = 6
    mask, bias = rng.random((2, 3, N)) < 0.5, rng.normal(size=(2, 3, N))
    mask[0, 1] = False  # empty in every part
    problem = make_problem(score, rng, M=3, N=N, mask=mask, bias=bias, empty_rows="zero")
    problem = as_float64(problem)
    del problem.grads["grad_weights"]
    whole = problem.run(ref)

    bounds = [0, *cuts, N]
    parts = [over_keys(problem, slice(*pair)) for pair in zip(bounds, bounds[1:], strict=False)]
    outputs, lses = zip(*(part.forward(ref, return_lse=True) for part in parts), strict=True)
    output, lse = ref.merge_attention(outputs, lses)
    assert_allclose(output, whole["output"], rtol=1e-12, atol=1e-14)
    assert_allclose(lse, whole["lse"], rtol=1e-13, atol=1e-14)

    g = problem.grads
    d_outputs, d_lses = ref.merge_attention_backward(
        g["grad_output"], outputs, lses, grad_lse=g["grad_lse"]
    )
    results = []
    for part, d_output, d_lse in zip(parts, d_outputs, d_lses, strict=True):
        part.grads = {"grad_output": d_output, "grad_lse": d_lse}
        results.append(part.run(ref))
    for name in (name for name in whole if name.startswith("d_")):
        each = [result[name] for result in results]
        if name in ("d_keys", "d_values"):
            merged = np.concatenate(each, axis=-2)
        elif name == "d_bias":
            merged = np.concatenate(each, axis=-1)
        else:
            merged = np.sum(each, axis=0)
        assert_allclose(merged, whole[name], rtol=1e-10, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_merge_gradients(lead: tuple[int, ...], parts: int, rng: np.random.Generator) -> None:
    outputs, lses = rng.normal(size=(parts, *lead, 3, 2)), rng.normal(size=(parts, *lead, 3))
    lses[rng.random(lses.shape) < 0.2] = -inf
    live = np.isfinite(lses)
    g, g_lse = rng.normal(size=outputs.shape[1:]), rng.normal(size=lses.shape[1:])
    some = live.any(axis=0)

    def merged_loss(outputs: Array, lses: Array) -> float:
        output, lse = ref.merge_attention(outputs, np.where(live, lses, -inf))
        assert_array_equal(lse == -inf, ~some)
        return float(np.sum(g * output) + np.sum((g_lse * lse)[some]))

    d_outputs, d_lses = ref.merge_attention_backward(g, outputs, lses, grad_lse=g_lse)
    finite = np.where(live, lses, 0)
    for got, expected in [
        (d_outputs, numerical_gradient(lambda x: merged_loss(x, finite), outputs)),
        (d_lses, numerical_gradient(lambda x: merged_loss(outputs, x), finite)),
    ]:
        assert_gradients_close(got, expected, rtol=1e-7, atol=1e-9)
    assert not d_lses[~live].any() and not d_outputs[~live].any()
    without = ref.merge_attention_backward(g, outputs, lses)
    assert_array_equal(without[0], d_outputs)
    zeros = ref.merge_attention_backward(g, outputs, lses, grad_lse=np.zeros_like(g_lse))
    assert_gradients_close(without, zeros, rtol=0, atol=0)


@pytest.mark.parametrize(
    "lses, output, lse",
    [
        ([0.0, 0.0], 3.0, np.log(2)),
        ([-inf, 2.0], 5.0, 2.0),
        ([-inf, -inf], 0.0, -inf),
        ([inf, 0.0], nan, inf),
        ([inf, inf], nan, inf),
        ([inf, -inf], nan, inf),
        ([nan, 0.0], nan, nan),
        ([nan, inf], nan, nan),
        ([nan, -inf], nan, nan),
        ([1e4, 1e4], 3.0, 1e4 + np.log(2)),
        ([-1e4, 1e4], 5.0, 1e4),
    ],
)
def test_merging_lses_that_are_not_finite_or_large(
    lses: list[float], output: float, lse: float
) -> None:
    outputs = np.array([[[1.0]], [[5.0]]])
    dead = np.isneginf(lses)
    for poison in (1.0, nan, inf):
        outputs[dead] = poison
        results = ref.merge_attention(outputs, np.array(lses)[:, None])
        assert_array_equal(results[0], [[output]])
        assert_allclose(results[1], [lse], rtol=1e-15)
        d_outputs, d_lses = ref.merge_attention_backward(
            [[1.0]], outputs, np.array(lses)[:, None], grad_lse=[1.0]
        )
        assert not d_outputs[dead].any() and not d_lses[dead].any()
        if not dead.all():
            assert np.isnan(d_outputs[~dead]).all() == np.isnan(output)


def test_merge_takes_stacks_and_sequences(rng: np.random.Generator) -> None:
    outputs, lses = rng.normal(size=(3, 2, 4, 5)), rng.normal(size=(3, 2, 4))
    expected = ref.merge_attention(outputs, lses)
    for convert in [
        list,
        tuple,
        np.ndarray.tolist,
        torch.from_numpy,
        lambda x: list(map(torch.from_numpy, x)),
    ]:
        got = ref.merge_attention(convert(outputs), convert(lses))
        assert_array_equal(got[0], expected[0])
        assert_array_equal(got[1], expected[1])
    for result in expected:
        assert result.flags.owndata and result.flags.c_contiguous and result.dtype == np.float64


# ---- arguments ---------------------------------------------------------------------------------


def dot(M: int = 5, N: int = 7, lead: tuple[int, ...] = (2,), **options: Any) -> Any:
    q, k, v = np.ones((*lead, M, 4)), np.ones((*lead, N, 4)), np.ones((*lead, N, 3))
    return ref.dot_product_attention(q, k, v, **options)


def grouped(heads: int, kv_heads: int) -> Any:
    q, k = np.ones((2, heads, 3, 4)), np.ones((2, kv_heads, 5, 4))
    return ref.dot_product_attention(q, k, k, enable_gqa=True)


def backward(**options: Any) -> Any:
    q, k = np.ones((2, 4)), np.ones((3, 4))
    return ref.dot_product_attention_backward(q, q, k, k, **options)


merge = ref.merge_attention
o32, l3 = np.ones((3, 2)), np.ones(3)

WRONG: list[Wrong] = [
    (lambda: dot(mask=np.ones((3, 4), bool)), ValueError,
     "mask has shape (3, 4), expected a shape that broadcasts to (2, 5, 7)"),
    (lambda: dot(mask=np.ones((1, 2, 5, 7), bool)), ValueError, "mask has shape (1, 2, 5, 7)"),
    (lambda: dot(mask=np.ones(7)), TypeError,
     "mask has dtype float64, expected bools: to add floats to the scores, use the argument bias"),
    (lambda: dot(mask=np.ones(7, int)), TypeError,
     "mask has dtype int64, expected bools: True means attend"),
    (lambda: dot(mask=np.ones(7, np.uint8)), TypeError,
     "mask has dtype uint8, expected bools: True means attend"),
    (lambda: dot(mask=np.ma.masked_array(np.ones(7, bool))), TypeError, "mask is a MaskedArray"),
    (lambda: dot(mask=["yes"]), TypeError, "mask has dtype <U3, expected bools"),
    (lambda: dot(bias=np.ones(7, bool)), TypeError,
     "bias has dtype bool, expected floats: use the argument mask for a bool mask"),
    (lambda: dot(bias=np.ones(7, int)), TypeError, "bias has dtype int64, expected floats"),
    (lambda: dot(bias=np.ones(7, complex)), TypeError,
     "bias has dtype complex128, expected floats"),
    (lambda: dot(bias=np.ones(6)), ValueError,
     "bias has shape (6,), expected a shape that broadcasts to (2, 5, 7)"),
    (lambda: dot(bias=torch.ones(7, requires_grad=True)), TypeError,
     "bias is a tensor that requires grad"),
    (lambda: dot(causal_offset=1.0), TypeError,
     "causal_offset has dtype float64, expected integers"),
    (lambda: dot(causal_offset=True), TypeError, "causal_offset has dtype bool, expected integers"),
    (lambda: dot(causal_offset=[1, 2, 3]), ValueError,
     "causal_offset has shape (3,), expected an int or (2,)"),
    (lambda: dot(lead=(), causal_offset=[1] * 5), ValueError,
     "causal_offset has shape (5,), expected an int"),
    (lambda: dot(window=3), TypeError,
     "window must be a pair of ints (left, right), got int"),
    (lambda: dot(window=np.array([1, 2])), TypeError, "window must be a pair of ints"),
    (lambda: dot(window=(1, 2.0)), TypeError, "window[1] must be an int, got float"),
    (lambda: dot(window=(1, True)), TypeError, "window[1] must be an int, got bool"),
    (lambda: dot(window=(1, None)), TypeError, "window[1] must be an int, got NoneType"),
    (lambda: dot(window=(1, 2, 3)), ValueError, "window is (1, 2, 3), expected a pair"),
    (lambda: dot(window=()), ValueError, "window is (), expected a pair"),
    (lambda: dot(window=(-2, 1)), ValueError,
     "window is (-2, 1), expected a pair (left, right) of ints of 0 or more, or -1 for no bound"),
    (lambda: dot(lead=(), enable_gqa=True), ValueError,
     "queries has shape (5, 4), expected three axes or more with enable_gqa: (..., heads, M, D)"),
    (lambda: grouped(4, 3), ValueError,
     "keys has shape (2, 3, 5, 4), expected a number of heads (axis -3) that divides 4, the heads "
     "of queries"),
    (lambda: grouped(2, 4), ValueError,
     "expected a number of heads (axis -3) that divides 2, the heads of queries"),
    (lambda: grouped(2, 0), ValueError,
     "expected a number of heads (axis -3) that divides 2, the heads of queries"),
    (lambda: ref.dot_product_attention(np.ones((4, 3, 2)), *np.ones((2, 2, 5, 2))), ValueError,
     "keys has shape (2, 5, 2), expected (4, N, Dk)"),
    (lambda: dot(dropout_mask=np.ones(7, bool), seed=1), ValueError,
     "seed and dropout_mask are both given, expected only one"),
    (lambda: dot(dropout_mask=np.ones(7)), TypeError,
     "dropout_mask has dtype float64, expected bools: True means keep"),
    (lambda: dot(dropout_mask=np.ones(5, bool)), ValueError,
     "dropout_mask has shape (5,), expected a shape that broadcasts to (2, 5, 7)"),
    (lambda: dot(dropout_mask=np.ones(7, bool), dropout_p=1), ValueError, "dropout_p is 1"),
    (lambda: backward(weights=np.ones((3, 2))), ValueError,
     "weights has shape (3, 2), expected (2, 3)"),
    (lambda: ref.cosine_attention([[1.0]], [[1.0]], [[1.0]], eps=0), ValueError,
     "eps is 0, expected eps > 0"),
    (lambda: ref.cosine_scores([[1.0]], [[1.0]], eps=nan), ValueError,
     "eps is nan, expected a finite number"),
    (lambda: ref.cosine_scores([[1.0]], [[1.0]], scale=inf), ValueError, "scale is inf"),
    (lambda: ref.cosine_scores([[1.0]], [[1.0, 2.0]]), ValueError,
     "keys has shape (1, 2), expected (N, 1)"),
    (lambda: ref.masked_softmax(np.ones((2, 3)), mask=np.ones((2, 1, 3), bool)), ValueError,
     "mask has shape (2, 1, 3), expected a shape that broadcasts to (2, 3)"),
    (lambda: ref.masked_softmax_backward(o32, o32, mask=[1, 0]), TypeError,
     "mask has dtype int64, expected bools: True means attend"),
    (lambda: merge([], []), ValueError, "outputs has shape (0,), expected three axes or more"),
    (lambda: merge(np.ones((0, 3, 2)), np.ones((0, 3))), ValueError, "expected at least one part"),
    (lambda: merge([o32, o32], [l3]), ValueError, "lses has shape (1, 3), expected (2, 3)"),
    (lambda: merge([o32, o32[:2]], [l3, l3]), ValueError,
     "outputs[1] has shape (2, 2), expected (3, 2)"),
    (lambda: merge([o32], [l3[:2]]), ValueError, "lses has shape (1, 2), expected (1, 3)"),
    (lambda: merge([l3], [1.0]), ValueError,
     "outputs has shape (1, 3), expected three axes or more: (P, ..., M, Dv)"),
    (lambda: merge([o32, o32 > 0], [l3, l3]), TypeError, "outputs[1] has dtype bool"),
    (lambda: ref.merge_attention_backward(l3, [o32], [l3]), ValueError,
     "grad_output has shape (3,), expected (3, 2)"),
    (lambda: ref.merge_attention_backward(o32, [o32], [l3], grad_lse=o32), ValueError,
     "grad_lse has shape (3, 2), expected (3,)"),
]  # fmt: skip


@each(WRONG)
def test_wrong_calls_say_what_is_wrong(call: Call, error: type[Exception], message: str) -> None:
    assert message in raised_by(call, error)
