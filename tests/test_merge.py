"""merge_attention: attention over split keys is attention over all, values and every gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import (
    SCORES,
    Array,
    Problem,
    assert_accurate,
    assert_same_bits,
    bits,
    error_of,
    make_problem,
    random_masks,
)
from hypothesis import given
from hypothesis import strategies as st

import attnext
from attnext import reference

nan, inf = np.nan, np.inf


# ---- attention over parts of the keys ------------------------------------------------------------


def part_of(problem: Problem, start: int, stop: int) -> Problem:
    """The attention over the keys start <= j < stop alone."""
    inputs, options = dict(problem.inputs), dict(problem.options)
    for name in ("keys", "values"):
        inputs[name] = problem.inputs[name][..., start:stop, :]
    for name in {"mask", "bias"} & options.keys():
        if np.ndim(options[name]) and options[name].shape[-1] > 1:
            options[name] = options[name][..., start:stop]
    if "valid_lens" in options:
        options["valid_lens"] = np.clip(np.asarray(options["valid_lens"]) - start, 0, None)
    if {"causal", "window"} & options.keys():
        options["causal_offset"] = np.asarray(options.get("causal_offset", 0)) - start
    return Problem(problem.score, inputs, options)


def merged(problem: Problem, cuts: list[int]) -> dict[str, Array]:
    """Output, lse and every gradient, by way of the parts between the cuts."""
    bounds = [0, *cuts, problem.inputs["keys"].shape[-2]]
    parts = [part_of(problem, *bounds[i : i + 2]) for i in range(len(bounds) - 1)]
    outputs, lses = zip(*(part.forward(return_lse=True) for part in parts), strict=True)
    output, lse = attnext.merge_attention(outputs, lses)
    d_outputs, d_lses = attnext.merge_attention_backward(
        problem.grads["grad_output"], outputs, lses, grad_lse=problem.grads["grad_lse"]
    )
    more: dict[str, Any] = {"return_grad_bias": True} if "bias" in problem.options else {}
    gradients = []
    for part, d_output, d_lse in zip(parts, d_outputs, d_lses, strict=True):
        part.grads = {"grad_output": d_output, "grad_lse": d_lse}
        gradients.append(part.backward(**more))
    result = {"output": output, "lse": lse}
    for name in gradients[0]:
        each = [d[name] for d in gradients]
        shape = problem.options["bias"].shape if name == "d_bias" else ()
        if name in ("d_keys", "d_values"):
            result[name] = np.concatenate(each, axis=-2)
        elif shape and shape[-1] > 1:
            result[name] = np.concatenate(each, axis=-1)
        else:
            result[name] = np.sum(each, axis=0, dtype=np.float32)
    return result


def check_split(problem: Problem, cuts: list[int]) -> None:
    """As accurate as attention over all keys at once, within a factor."""
    problem.grads.pop("grad_weights")
    exact, whole = problem.run(reference), problem.run()
    found = merged(problem, cuts)
    for name in set(exact) - {"weights"}:
        peer = error_of(whole[name], exact[name])
        scale = float(np.max(np.abs(exact[name]), where=np.isfinite(exact[name]), initial=0))
        assert_accurate(found[name], exact[name], 2 * peer + 2e-6 * scale, name)


@pytest.mark.parametrize("parts", range(1, 10))
@pytest.mark.parametrize("score", SCORES)
def test_split_keys(score: str, parts: int, rng: np.random.Generator) -> None:
    """Parts of any size, some of them without a single key."""
    N = 150
    cuts = sorted(rng.integers(0, N + 1, size=parts - 1).tolist())
    check_split(make_problem(score, rng, M=20, N=N), cuts)


@pytest.mark.parametrize("case", range(12))
@pytest.mark.parametrize("score", SCORES)
def test_split_keys_under_masks(score: str, case: int, rng: np.random.Generator) -> None:
    """Parts that are empty for some rows, for all, or for a row in every part; shared heads."""
    lead, M, N = (2, 4), 9, 40
    masks = random_masks(rng, lead, M, N)
    kv_heads = [None, 1, 2][case % 3]
    problem = make_problem(score, rng, lead=lead, M=M, N=N, kv_heads=kv_heads, **masks)
    cuts = sorted(rng.integers(0, N + 1, size=case % 5).tolist())
    check_split(problem.but(empty_rows="zero"), cuts)


@pytest.mark.parametrize("empty_rows", ["uniform", "nan"])
@pytest.mark.parametrize("score", SCORES)
def test_what_an_empty_row_holds_is_not_merged(
    score: str, empty_rows: str, rng: np.random.Generator
) -> None:
    """Its lse is -inf: the mean of the values in its place, or NaN, has no weight."""
    problem = make_problem(score, rng, M=9, N=40, valid_lens=[[30] * 9, [12] * 9])
    del problem.grads["grad_weights"]
    whole = problem.run()
    found = merged(problem.but(empty_rows=empty_rows), [20])
    for name in ("output", "lse"):
        np.testing.assert_allclose(found[name], whole[name], rtol=1e-5, atol=1e-6)
    d_values = found["d_values"]
    np.testing.assert_allclose(d_values, whole["d_values"], rtol=1e-5, atol=1e-6)
    assert not d_values[1, 12:].any() and not found["d_keys"][1, 12:].any()


# ---- the merge itself ----------------------------------------------------------------------------


def parts_of(
    rng: np.random.Generator, parts: int, rows: tuple[int, ...], Dv: int
) -> tuple[Array, Array]:
    """Outputs (parts, *rows, Dv) and lses (parts, *rows), a quarter of them empty."""
    outputs = rng.standard_normal((parts, *rows, Dv), dtype=np.float32)
    lses = 3 * rng.standard_normal((parts, *rows), dtype=np.float32)
    lses[rng.random(lses.shape) < 0.25] = -inf
    return outputs, lses


def textbook(outputs: Array, lses: Array, g: Array, g_lse: Array, dtype: Any) -> dict[str, Array]:
    """The formulas of a merge, as they stand, for rows that some part has keys for."""
    o, s, g, g_lse = (np.asarray(x, dtype=dtype) for x in (outputs, lses, g, g_lse))
    top = s.max(axis=0)
    top = np.where(np.isinf(top), 0, top).astype(dtype)
    e = np.exp(s - top)
    total = e.sum(axis=0)
    w = e / np.where(total == 0, 1, total)
    output = (w[..., None] * o).sum(axis=0)
    with np.errstate(divide="ignore"):
        lse = top + np.log(total)
    d_outputs = w[..., None] * g
    d_lses = w * (((o - output) * g).sum(axis=-1) + g_lse)
    return {"output": output, "lse": lse, "d_outputs": d_outputs, "d_lses": d_lses}


def run(
    outputs: Any, lses: Any, g: Any, g_lse: Any = None, module: Any = attnext
) -> dict[str, Array]:
    output, lse = module.merge_attention(outputs, lses)
    d_outputs, d_lses = module.merge_attention_backward(g, outputs, lses, grad_lse=g_lse)
    return {"output": output, "lse": lse, "d_outputs": d_outputs, "d_lses": d_lses}


def check(outputs: Array, lses: Array, g: Array, g_lse: Array) -> dict[str, Array]:
    """Against the reference, held to the textbook in float32; exact where nothing has weight."""
    got, exact = run(outputs, lses, g, g_lse), run(outputs, lses, g, g_lse, reference)
    single, double = (textbook(outputs, lses, g, g_lse, t) for t in (np.float32, np.float64))
    for name in exact:
        assert got[name].dtype == np.float32 and got[name].flags.c_contiguous
        assert_accurate(got[name], exact[name], error_of(single[name], double[name]), name)
    dead = np.isneginf(lses)
    assert not got["d_outputs"][dead].any() and not got["d_lses"][dead].any()
    assert not got["output"][dead.all(axis=0)].any()
    return got


def grads_of(rng: np.random.Generator, outputs: Array, lses: Array) -> tuple[Array, Array]:
    return (
        rng.standard_normal(outputs.shape[1:], dtype=np.float32),
        rng.standard_normal(lses.shape[1:], dtype=np.float32),
    )


@pytest.mark.parametrize("parts", [*range(1, 10), 16, 17, 33, 100])
@pytest.mark.parametrize("rows", [(1,), (7,), (2, 5), (2, 3, 4), (1, 2, 1, 3)], ids=str)
def test_against_the_reference(parts: int, rows: tuple[int, ...], rng: np.random.Generator) -> None:
    outputs, lses = parts_of(rng, parts, rows, 5)
    check(outputs, lses, *grads_of(rng, outputs, lses))


@pytest.mark.parametrize("Dv", [*range(1, 36), 63, 64, 65, 255, 256, 257])
def test_every_size_of_value(Dv: int, rng: np.random.Generator) -> None:
    outputs, lses = parts_of(rng, 3, (5,), Dv)
    check(outputs, lses, *grads_of(rng, outputs, lses))


@pytest.mark.parametrize("M", [63, 64, 65, 128, 129, 1000])
def test_rows_are_cut_into_tasks(M: int, rng: np.random.Generator) -> None:
    outputs, lses = parts_of(rng, 4, (2, M), 6)
    check(outputs, lses, *grads_of(rng, outputs, lses))


@given(
    parts=st.integers(1, 6),
    rows=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    Dv=st.integers(0, 5),
    seed=st.integers(0, 2**32),
)
def test_any_parts(parts: int, rows: list[int], Dv: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs, lses = parts_of(rng, parts, tuple(rows), Dv)
    check(outputs, lses, *grads_of(rng, outputs, lses))


def test_one_part_stays_as_it_is(rng: np.random.Generator) -> None:
    outputs, lses = parts_of(rng, 1, (2, 30), 7)
    outputs[np.isneginf(lses)] = 0
    output, lse = attnext.merge_attention(outputs, lses)
    np.testing.assert_array_equal(output, outputs[0])
    np.testing.assert_array_equal(lse, lses[0])


def test_merging_in_two_steps(rng: np.random.Generator) -> None:
    """Parts merged to greater parts, and those to the whole."""
    outputs, lses = parts_of(rng, 5, (2, 30), 7)
    whole = attnext.merge_attention(outputs, lses)
    first = attnext.merge_attention(outputs[:2], lses[:2])
    other = attnext.merge_attention(outputs[2:], lses[2:])
    for a, b in zip(attnext.merge_attention(*zip(first, other, strict=True)), whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# ---- lses that are not finite, or large ----------------------------------------------------------


@pytest.mark.parametrize("poison", [nan, inf, -inf, 3e38])
def test_what_a_part_without_weight_holds_is_never_read(
    poison: float, rng: np.random.Generator
) -> None:
    outputs, lses = parts_of(rng, 4, (2, 40), 9)
    lses[:, 0, :3] = -inf
    g, g_lse = grads_of(rng, outputs, lses)
    clean = check(outputs, lses, g, g_lse)
    outputs[np.isneginf(lses)] = poison
    nobody = np.isneginf(lses).all(axis=0)
    g[nobody] = g_lse[nobody] = poison
    found = run(outputs, lses, g, g_lse)
    assert_same_bits(found, clean)
    assert nobody.any() and not found["output"][nobody].any()
    np.testing.assert_array_equal(found["lse"][nobody], -inf)


@pytest.mark.parametrize(
    ("lses", "output", "lse"),
    [
        ([0.0, 0.0], 3.0, np.log(2)),
        ([-inf, 2.0], 5.0, 2.0),
        ([2.0, -inf], 1.0, 2.0),
        ([-inf, -inf], 0.0, -inf),
        ([inf, 0.0], nan, inf),
        ([0.0, inf], nan, inf),
        ([inf, inf], nan, inf),
        ([inf, -inf], nan, inf),
        ([nan, 0.0], nan, nan),
        ([0.0, nan], nan, nan),
        ([nan, inf], nan, nan),
        ([inf, nan], nan, nan),
        ([nan, -inf], nan, nan),
        ([-inf, nan], nan, nan),
        ([1e4, 1e4], 3.0, 1e4 + np.log(2)),
        ([-1e4, -1e4], 3.0, -1e4 + np.log(2)),
        ([-1e4, 1e4], 5.0, 1e4),
        ([3e38, -3e38], 1.0, 3e38),
        ([-3e38, -3e38], 3.0, -3e38),
    ],
)
def test_lses_by_name(lses: list[float], output: float, lse: float) -> None:
    outputs = np.array([[[1.0]], [[5.0]]])
    found = run(outputs, np.array(lses)[:, None], [[1.0]], [1.0])
    np.testing.assert_allclose(found["output"], [[output]], rtol=3e-7)
    np.testing.assert_allclose(found["lse"], [lse], rtol=3e-7)
    dead = np.isneginf(lses)
    if np.isnan(output):
        assert np.isnan(found["d_outputs"][~dead]).all() and np.isnan(found["d_lses"][~dead]).all()
    else:
        assert np.isfinite(found["d_outputs"]).all() and np.isfinite(found["d_lses"]).all()
    assert not found["d_outputs"][dead].any() and not found["d_lses"][dead].any()


@pytest.mark.parametrize("bad", [nan, inf])
def test_a_row_that_is_nan_touches_no_other(bad: float, rng: np.random.Generator) -> None:
    outputs, lses = parts_of(rng, 3, (2, 70), 5)
    g, g_lse = grads_of(rng, outputs, lses)
    clean = run(outputs, lses, g, g_lse)
    lses[1, 1, 66] = bad
    found = run(outputs, lses, g, g_lse)
    assert np.isnan(found["output"][1, 66]).all()
    np.testing.assert_array_equal(found["lse"][1, 66], bad)
    for name in found:
        rows = (slice(None),) * name.startswith("d_") + (1, 66)
        found[name][rows] = clean[name][rows]
    assert_same_bits(found, clean)


@pytest.mark.parametrize("shift", [0.0, 1e2, -1e2, 1e4, -1e4, 1e6])
def test_large_lses_lose_no_digits(shift: float, rng: np.random.Generator) -> None:
    """What float32 holds of them: the weights depend on their differences alone."""
    outputs, lses = parts_of(rng, 6, (50,), 4)
    lses = (lses + np.float32(shift)).astype(np.float32)
    check(outputs, lses, *grads_of(rng, outputs, lses))
    exact = reference.merge_attention(outputs, lses)[1]
    found = attnext.merge_attention(outputs, lses)[1]
    live = np.isfinite(exact)
    rounding = np.spacing(np.abs(exact[live]).astype(np.float32)) / 2
    assert (np.abs(found[live] - exact[live]) <= rounding + 3e-7).all()


def test_many_equal_parts() -> None:
    """log of their number is what the lse grows by; they are added up one after the other."""
    for parts in (1, 2, 3, 10, 1000, 4096):
        outputs = np.full((parts, 1, 1), 2.0)
        output, lse = attnext.merge_attention(outputs, np.full((parts, 1), -5.0))
        np.testing.assert_allclose(output, [[2]], rtol=1e-6 + parts * 2.0**-24)
        np.testing.assert_allclose(lse, [-5 + np.log(parts)], rtol=1e-6)


# ---- stacks, sequences, layouts ------------------------------------------------------------------


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        np.ndarray.tolist,
        lambda x: list(x.astype(np.float64)),
        lambda x: tuple(np.asfortranarray(part) for part in x),
        lambda x: [x[0].tolist(), *x[1:]],
        np.asfortranarray,
        lambda x: x.astype(">f4"),
        lambda x: np.repeat(x, 2, axis=0)[::2],
        lambda x: x[::-1].copy()[::-1],
    ],
)
def test_stacks_and_sequences(convert: Callable[[Array], Any], rng: np.random.Generator) -> None:
    outputs, lses = parts_of(rng, 3, (2, 4), 5)
    g, g_lse = grads_of(rng, outputs, lses)
    expected = run(outputs, lses, g, g_lse)
    assert_same_bits(run(convert(outputs), convert(lses), g, g_lse), expected)
    assert_same_bits(run(convert(outputs), lses, g, g_lse), expected)
    assert_same_bits(run(outputs, convert(lses), g, g_lse), expected)


def test_gradients_are_stacked(rng: np.random.Generator) -> None:
    outputs, lses = parts_of(rng, 3, (2, 4), 5)
    g, g_lse = grads_of(rng, outputs, lses)
    d_outputs, d_lses = attnext.merge_attention_backward(g, list(outputs), list(lses))
    assert d_outputs.shape == (3, 2, 4, 5) and d_lses.shape == (3, 2, 4)
    zeros = attnext.merge_attention_backward(g, outputs, lses, grad_lse=np.zeros_like(g_lse))
    np.testing.assert_array_equal(bits(d_lses), bits(zeros[1]))
    np.testing.assert_array_equal(bits(d_outputs), bits(zeros[0]))


def test_inputs_are_never_written_and_results_are_fresh(rng: np.random.Generator) -> None:
    outputs, lses = parts_of(rng, 1, (2, 4), 5)
    g, g_lse = grads_of(rng, outputs, lses)
    arrays = (outputs, lses, g, g_lse)
    before = [x.copy() for x in arrays]
    for result in run(outputs, lses, g, g_lse).values():
        assert result.flags.owndata and result.flags.writeable
        assert not any(np.shares_memory(result, x) for x in arrays)
        result[...] = 7
    for x, y in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("rows", [(0,), (2, 0), (0, 3), (2**40, 0), (0, 2**40)], ids=str)
def test_no_rows(rows: tuple[int, ...]) -> None:
    outputs = np.zeros((2, *rows, 4), dtype=np.float32)
    lses = np.zeros((2, *rows), dtype=np.float32)
    found = run(outputs, lses, outputs[0], lses[0])
    shapes = [(*rows, 4), rows, (2, *rows, 4), (2, *rows)]
    assert [x.shape for x in found.values()] == shapes


# ---- threads and instruction sets ----------------------------------------------------------------


def test_any_number_of_threads(rng: np.random.Generator, threads: None) -> None:
    outputs, lses = parts_of(rng, 7, (3, 2000), 33)
    g, g_lse = grads_of(rng, outputs, lses)
    attnext.set_num_threads(1)
    expected = run(outputs, lses, g, g_lse)
    for n in (2, 3, 5):
        attnext.set_num_threads(n)
        assert_same_bits(run(outputs, lses, g, g_lse), expected)


def test_place_among_the_rows(rng: np.random.Generator) -> None:
    outputs, lses = parts_of(rng, 4, (131,), 6)
    g, g_lse = grads_of(rng, outputs, lses)
    whole = run(outputs, lses, g, g_lse)
    for rows in (rng.permutation(131), np.arange(60, 131)):
        found = run(outputs[:, rows], lses[:, rows], g[rows], g_lse[rows])
        for name, x in whole.items():
            part = x[:, rows] if name.startswith("d_") else x[rows]
            np.testing.assert_array_equal(bits(found[name]), bits(part), err_msg=name)


# ---- wrong calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "lses", "error", "names"),
    [
        ([], [], ValueError, "outputs"),
        (np.zeros((0, 3, 2)), np.zeros((0, 3)), ValueError, "outputs"),
        ([np.zeros((3, 2))], [], ValueError, "lses|outputs"),
        ([np.zeros((3, 2))] * 2, [np.zeros(3)] * 3, ValueError, "lses|outputs"),
        ([np.zeros((3, 2)), np.zeros((4, 2))], [np.zeros(3)] * 2, ValueError, "outputs"),
        ([np.zeros((3, 2))] * 2, [np.zeros(3), np.zeros(4)], ValueError, "lses"),
        ([np.zeros((3, 2))] * 2, [np.zeros((3, 2))] * 2, ValueError, "lses"),
        ([np.zeros(2)], [np.zeros(())], ValueError, "outputs"),
        (np.zeros((3, 2)), np.zeros(3), ValueError, "outputs"),
        (1.0, 1.0, ValueError, "outputs"),
        (None, np.zeros((2, 3)), TypeError, "outputs"),
        ([None], [np.zeros(3)], TypeError, "outputs"),
        ([np.zeros((3, 2), complex)], [np.zeros(3)], TypeError, "outputs"),
        ([np.zeros((3, 2))], [np.zeros(3, bool)], TypeError, "lses"),
        ("ab", [np.zeros(3)], TypeError, "outputs"),
        (np.zeros((1, 3, 2)), {1: 2}, TypeError, "lses"),
    ],
)
def test_wrong_calls(outputs: Any, lses: Any, error: type[Exception], names: str) -> None:
    with pytest.raises(error, match=names):
        attnext.merge_attention(outputs, lses)
    with pytest.raises(error, match=names):
        attnext.merge_attention_backward(np.zeros((3, 2)), outputs, lses)


@pytest.mark.parametrize("grads", [{"grad_output": np.zeros((3, 1))}, {"grad_output": np.zeros(2)},
                                   {"grad_lse": np.zeros((3, 1))}, {"grad_lse": 0.0}],
                         ids=str)  # fmt: skip
def test_gradients_of_wrong_shapes(grads: dict[str, Any]) -> None:
    grads = {"grad_output": np.zeros((3, 2)), **grads}
    with pytest.raises(ValueError, match="grad_"):
        attnext.merge_attention_backward(
            grads.pop("grad_output"), np.zeros((2, 3, 2)), np.zeros((2, 3)), **grads
        )
