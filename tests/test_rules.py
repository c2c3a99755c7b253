"""The rules that never bend: NaN, infinities, lse, no sizes at all.

Who is read, and which rows are empty, under lengths as under every other mask: test_mask_rules.py.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest
from helpers import (
    EMPTY_ROWS,
    SCORES,
    SCORES_FUNCTION,
    TESTS,
    Array,
    Problem,
    assert_same_bits,
    bits,
    check,
    make_problem,
    run_python,
)

import attnext
from attnext import reference

POISON = [np.nan, np.inf, -np.inf, 3e38]
score_cases = pytest.mark.parametrize("score", SCORES)
poison_cases = pytest.mark.parametrize("poison", POISON)


def copy_of(problem: Problem) -> Problem:
    """Arrays that may be changed without changing the problem's."""
    copies = (
        {name: x.copy() for name, x in part.items()} for part in (problem.inputs, problem.grads)
    )
    inputs, grads = copies
    return Problem(problem.score, inputs, problem.options, grads)


# ---- rule 1: a pair that takes no part is never read ---------------------------------------------


@poison_cases
@score_cases
def test_no_row_at_all_takes_part(score: str, poison: float, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=5, N=9, valid_lens=0, empty_rows="zero")
    for x in [*problem.inputs.values(), *problem.grads.values()]:
        x[...] = poison
    for name, x in problem.run().items():
        expected = -np.inf if name == "lse" else 0
        np.testing.assert_array_equal(x, np.full_like(x, expected), err_msg=name)


@poison_cases
def test_softmax_reads_no_padding(poison: float, rng: np.random.Generator) -> None:
    lens = rng.integers(0, 71, size=(4, 30))
    dead = np.arange(70) >= lens[..., None]
    X, grad = rng.standard_normal((2, 4, 30, 70), dtype=np.float32)
    weights = attnext.masked_softmax(X, lens, empty_rows="zero")
    d_X = attnext.masked_softmax_backward(grad, weights, lens)
    X[dead] = grad[dead] = poison
    found = attnext.masked_softmax(X, lens, empty_rows="zero")
    np.testing.assert_array_equal(bits(found), bits(weights))
    weights[dead] = poison
    found = attnext.masked_softmax_backward(grad, weights, lens)
    np.testing.assert_array_equal(bits(found), bits(d_X))


@poison_cases
def test_sequence_mask_overwrites_poison(poison: float) -> None:
    X = np.full((2, 3, 4), poison, dtype=np.float32)
    assert not attnext.sequence_mask(X, 0).any()


def test_memory_beyond_the_arrays_and_padding_itself_may_be_missing() -> None:
    """Every function, arrays beside unmapped pages, and padding in pages that do not exist."""
    done = run_python(TESTS / "unmapped.py", check=False)
    assert done.returncode == 0, f"ended by {done.returncode}\n{done.stderr}"


# ---- rule 2: NaN in a pair that takes part -------------------------------------------------------


@score_cases
def test_nan_in_a_live_value_reaches_its_column_and_no_weight(
    score: str, rng: np.random.Generator
) -> None:
    problem = make_problem(score, rng, M=35, N=140, Dv=5, valid_lens=[77, 140])
    clean = problem.forward(return_weights=True, return_lse=True)
    problem.inputs["values"][0, 76, 3] = np.nan
    output, *extras = problem.forward(return_weights=True, return_lse=True)
    assert np.isnan(output[0, :, 3]).all()
    output[0, :, 3] = clean[0][0, :, 3]
    for before, after in zip(clean, (output, *extras), strict=True):
        np.testing.assert_array_equal(bits(after), bits(before))


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
@pytest.mark.parametrize(
    ("score", "scores"),
    [
        (score, x)
        for score in SCORES
        for x in (np.nan, -np.inf)
        if (score, x) != ("cosine", -np.inf)
    ],
)
def test_emptiness_is_decided_by_lengths_never_by_scores(
    score: str, empty_rows: str, scores: float, rng: np.random.Generator
) -> None:
    """Rows without a single usable score are not empty rows: they are NaN in every mode.
    (A cosine is never infinite.)"""
    problem = make_problem(score, rng, M=3, N=200, valid_lens=[130, 0], empty_rows=empty_rows)
    if score == "dot":
        problem.inputs["queries"] = np.ones_like(problem.inputs["queries"])
        problem.inputs["keys"][...] = scores
    elif score in ("gaussian", "cosine"):
        problem.inputs["keys"][...] = scores
    else:
        problem.inputs["w_v"][...] = scores if np.isnan(scores) else -3e38
        problem.inputs["queries"][...] = problem.inputs["keys"][...] = 50
        problem.inputs["W_q"][...] = problem.inputs["W_k"][...] = 1  # tanh = 1, the sum overflows
    output, weights, lse = problem.forward(return_weights=True, return_lse=True)
    assert np.isnan(output[0]).all() and np.isnan(weights[0, :, :130]).all()
    assert not weights[0, :, 130:].any()
    np.testing.assert_array_equal(lse[0], np.full(3, scores))
    assert np.isnan(problem.backward()["d_queries"][0]).all()
    np.testing.assert_array_equal(lse[1], np.full(3, -np.inf))


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
def test_softmax_decides_emptiness_by_lengths(empty_rows: str) -> None:
    X = np.array([[np.nan, 1, 2], [-np.inf, -np.inf, 5], [-np.inf, 0, -np.inf]])
    weights = attnext.masked_softmax(X, [3, 2, 3], empty_rows=empty_rows)
    nan = np.nan
    np.testing.assert_array_equal(weights, [[nan, nan, nan], [nan, nan, 0], [0, 1, 0]])


@score_cases
def test_live_nan_reaches_the_gradients(score: str, rng: np.random.Generator) -> None:
    """Of what it took part with, and of nothing that it did not."""
    problem = make_problem(score, rng, M=35, N=140, valid_lens=[77, 140])
    clean = problem.backward()
    problem.grads["grad_output"][0, 5, 1] = np.nan
    d = problem.backward()
    assert np.isnan(d["d_queries"][0, 5]).all()
    assert np.isnan(d["d_values"][0, :77, 1]).all() and np.isnan(d["d_keys"][0, :77]).all()
    d["d_queries"][0, 5] = clean["d_queries"][0, 5]
    d["d_values"][0, :77, 1] = clean["d_values"][0, :77, 1]
    d["d_keys"][0, :77] = clean["d_keys"][0, :77]
    for name in ("d_queries", "d_keys", "d_values"):
        np.testing.assert_array_equal(bits(d[name]), bits(clean[name]), err_msg=name)
    for name in set(d) - {"d_queries", "d_keys", "d_values"}:
        assert np.isnan(d[name]).all(), name


# ---- rule 3: empty rows --------------------------------------------------------------------------


@score_cases
def test_empty_rows_by_name(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=3, N=7, valid_lens=[[0, 7, 0], [3, 0, 5]])
    empty = np.array([[True, False, True], [False, True, False]])
    values, grad = problem.inputs["values"], problem.grads["grad_output"]
    for mode, weight in (("uniform", 1 / 7), ("zero", 0.0), ("nan", np.nan)):
        got = problem.but(empty_rows=mode).run()
        np.testing.assert_array_equal(got["lse"][empty], -np.inf)
        np.testing.assert_array_equal(got["weights"][empty], np.float32(weight))
        mean = weight * values.sum(axis=1, keepdims=True).repeat(3, axis=1)
        np.testing.assert_allclose(got["output"][empty], mean[empty], rtol=2e-6, atol=1e-6)
        expected = np.nan if mode == "nan" else 0
        np.testing.assert_array_equal(got["d_queries"][empty], expected)
        assert np.isfinite(got["d_keys"]).all() and np.isfinite(got["d_values"]).all()
        if mode == "uniform":  # keys 5, 6 of entry 1 are reached by its empty row alone
            np.testing.assert_allclose(
                got["d_values"][1, 5:], (grad[1, 1] / 7)[None].repeat(2, axis=0), rtol=1e-6
            )


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
@score_cases
def test_nothing_from_extras_reaches_the_scores_of_an_empty_row(
    score: str, empty_rows: str, rng: np.random.Generator
) -> None:
    problem = make_problem(score, rng, M=3, N=7, valid_lens=0, empty_rows=empty_rows)
    problem.grads["grad_output"][...] = 0
    d = problem.backward()
    for name in set(d) - {"d_queries"}:
        assert not np.any(d[name]), name
    expected = np.nan if empty_rows == "nan" else 0
    np.testing.assert_array_equal(d["d_queries"], np.full_like(d["d_queries"], expected))


# ---- rule 6: infinite scores ---------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 5, 127, 128, 200])
@pytest.mark.parametrize("score", ["dot", "additive"])
def test_one_infinite_score(score: str, at: int, rng: np.random.Generator) -> None:
    """+inf: the row is NaN and its lse +inf. -inf: that pair has weight 0, like any small one."""
    for sign in (1, -1):
        problem = make_problem(score, rng, lead=(1,), M=3, N=201, D=2, Dk=2, H=4)
        if score == "dot":
            problem.inputs["queries"][...] = 1
            problem.inputs["keys"][0, at] = sign * np.inf
        else:
            problem.inputs["w_v"][...] = 1e38  # with tanh = sign in all four units it overflows
            problem.inputs["W_q"][...] = 0
            problem.inputs["W_k"][...] = 1
            problem.inputs["keys"][...] = 0
            problem.inputs["keys"][0, at] = sign * 50
        output, weights, lse = problem.forward(return_weights=True, return_lse=True)
        if sign > 0:
            assert np.isnan(output).all() and np.isnan(weights).all()
            np.testing.assert_array_equal(lse, np.full((1, 3), np.inf))
        else:
            assert np.isfinite(output).all() and np.isfinite(lse).all()
            assert not weights[0, :, at].any()
            np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)


def test_scores_that_overflow_from_finite_arrays() -> None:
    big = np.float32(2e38)
    one = dict(queries=[[big]], values=[[1.0], [2.0]], scale=1, return_lse=True)
    output, lse = attnext.dot_product_attention(keys=[[big], [0]], **one)
    assert np.isnan(output).all() and lse[0] == np.inf
    output, lse = attnext.dot_product_attention(keys=[[-big], [-big]], **one)
    assert np.isnan(output).all() and lse[0] == -np.inf
    output, lse = attnext.dot_product_attention(keys=[[-big], [0]], **one)
    assert output[0, 0] == 2 and lse[0] == 0


def test_far_keys_of_a_gaussian_are_like_any_score() -> None:
    far = dict(queries=[[0.0]], values=[[1.0], [2.0]], return_lse=True)
    output, lse = attnext.gaussian_attention(keys=[[1e30], [0.0]], **far)
    assert output[0, 0] == 2 and lse[0] == 0
    output, lse = attnext.gaussian_attention(keys=[[1e30], [1e30]], **far)
    assert np.isnan(output).all() and lse[0] == -np.inf


def test_infinite_scores_of_softmax() -> None:
    X = np.array([[np.inf, 0, 1], [-np.inf, 0, 0], [np.inf, np.inf, np.inf], [-np.inf] * 3])
    nan = np.nan
    expected = [[nan] * 3, [0, 0.5, 0.5], [nan] * 3, [nan] * 3]
    np.testing.assert_array_equal(attnext.masked_softmax(X), expected)


# ---- lse -----------------------------------------------------------------------------------------


@score_cases
def test_lse_of_one_key_is_its_score(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=20, N=1)
    _, lse = problem.forward(return_lse=True)
    names = {"queries", "keys", "W_q", "W_k", "w_v"}
    arrays = {name: x for name, x in problem.inputs.items() if name in names}
    options = {name: x for name, x in problem.options.items() if name == "w"}
    scores = getattr(attnext, SCORES_FUNCTION[score])(**arrays, **options)
    np.testing.assert_allclose(lse, scores[..., 0], rtol=3e-7, atol=2e-6)


def test_lse_of_large_scores_neither_overflows_nor_loses_the_sum() -> None:
    for shift in (0.0, 1e3, -1e3, 1e6):
        q, k = np.array([[1.0]]), np.full((4, 1), shift)
        _, lse = attnext.dot_product_attention(q, k, k, scale=1, return_lse=True)
        np.testing.assert_allclose(lse, [shift + np.log(4)], rtol=2e-7)


@score_cases
def test_lse_splits_attention_over_disjoint_keys(score: str, rng: np.random.Generator) -> None:
    """exp(lse) of the parts add up, and weigh the parts' outputs."""
    problem = make_problem(score, rng, M=20, N=150)
    whole, lse = problem.forward(return_lse=True)
    outputs, lses = [], []
    for part in (slice(0, 40), slice(40, 150)):
        inputs = {
            name: x[:, part] if name in ("keys", "values") else x
            for name, x in problem.inputs.items()
        }
        o, part_lse = Problem(score, inputs, problem.options).forward(return_lse=True)
        outputs.append(o)
        lses.append(part_lse)
    np.testing.assert_allclose(np.logaddexp(*lses), lse, rtol=1e-6, atol=1e-6)
    merged = sum(np.exp(a - lse)[..., None] * o for a, o in zip(lses, outputs, strict=True))
    np.testing.assert_allclose(merged, whole, rtol=1e-5, atol=1e-6)


# ---- no sizes at all -----------------------------------------------------------------------------


NOTHING: list[dict[str, Any]] = [
    *({"N": 0}, {"M": 0}, {"lead": (0,)}, {"lead": (2, 0)}, {"D": 0}, {"D": 0, "Dk": 0}, {"Dv": 0}),
    *({"H": 0}, {"M": 0, "N": 0}, {"N": 0, "D": 0}, {"lead": (0,), "N": 0}, {"N": 0, "Dv": 0}),
]


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
@score_cases
def test_axes_of_size_0(score: str, empty_rows: str, rng: np.random.Generator) -> None:
    for sizes in NOTHING:
        problem = make_problem(score, rng, **sizes, empty_rows=empty_rows)
        if score == "additive":
            problem.options["b_h"] = rng.standard_normal(
                problem.inputs["W_q"].shape[0], dtype=np.float32
            )
        check(problem)
        rows, N = problem.inputs["queries"].shape[:-1], problem.inputs["keys"].shape[-2]
        lens = rng.integers(0, N + 1, size=rows)
        check(problem.but(valid_lens=lens))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 3), (0, 2, 3), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
def test_softmax_of_nothing(shape: tuple[int, ...], empty_rows: str) -> None:
    X = np.zeros(shape, dtype=np.float32)
    for lens in (None, 0, 2):
        assert attnext.masked_softmax(X, lens, empty_rows=empty_rows).shape == shape
        assert attnext.masked_softmax_backward(X, X, lens, empty_rows=empty_rows).shape == shape
    if len(shape) > 1:
        assert attnext.sequence_mask(X, np.zeros(shape[0], dtype=int)).shape == shape
        assert attnext.sequence_mask(X, [] if shape[0] == 0 else 1).shape == shape


# ---- bug classes found elsewhere, by name --------------------------------------------------------


@score_cases
def test_bug_fully_masked_rows_give_nan(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, valid_lens=[0, 5])
    for mode in ("uniform", "zero"):
        for name, x in problem.but(empty_rows=mode).run().items():
            assert not np.isnan(x).any(), name


@score_cases
def test_bug_padding_enters_through_zero_times_infinity(
    score: str, rng: np.random.Generator
) -> None:
    problem = make_problem(score, rng, M=3, N=8, valid_lens=4)
    problem.inputs["values"][:, 4:] = np.inf
    problem.inputs["keys"][:, 4:] = np.nan
    for name, x in problem.run().items():
        assert np.isfinite(x).all(), name


def test_bug_nan_swallowed_by_max() -> None:
    """max(NaN, x) may be x: the NaN has to come through the sum."""
    for at in range(20):
        X = np.linspace(0, 1, 20)
        X[at] = np.nan
        assert np.isnan(attnext.masked_softmax(X)).all()


def test_bug_lengths_of_the_wrong_polarity() -> None:
    """Length 1 lets the first key in, not the others."""
    weights = attnext.masked_softmax(np.zeros((1, 3)), [1])
    np.testing.assert_array_equal(weights, [[1, 0, 0]])


def test_bug_length_equal_to_n_is_not_off_by_one() -> None:
    X = np.zeros((5, 4))
    counts = (attnext.masked_softmax(X, [0, 1, 3, 4, 5], empty_rows="zero") > 0).sum(axis=1)
    np.testing.assert_array_equal(counts, [0, 1, 3, 4, 4])


@score_cases
def test_bug_zero_length_sequences_inside_a_batch(score: str, rng: np.random.Generator) -> None:
    """An entry of length 0 changes nothing for the entries around it."""
    problem = make_problem(score, rng, lead=(3,), M=4, N=9, valid_lens=[5, 0, 9], empty_rows="zero")
    got = problem.run()
    full = problem.but(valid_lens=[5, 9, 9]).run()
    for name in ("output", "weights", "lse", "d_queries", "d_keys", "d_values"):
        np.testing.assert_array_equal(
            bits(got[name][[0, 2]]), bits(full[name][[0, 2]]), err_msg=name
        )


@pytest.mark.parametrize("D", [1, 3, 7, 15, 17, 33, 63, 65, 80, 96, 100])
@score_cases
def test_bug_head_sizes_that_are_no_multiple_of_the_vector(
    score: str, D: int, rng: np.random.Generator
) -> None:
    check(make_problem(score, rng, lead=(1, 2), M=17, N=33, D=D, Dv=D, H=D))


@score_cases
def test_bug_expanded_and_strided_gradients(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=5, N=9, Dv=4)
    ones = copy_of(problem)
    ones.grads = {name: np.ones_like(x) for name, x in problem.grads.items()}
    expanded = copy_of(problem)
    one = np.float32(1)
    expanded.grads = {name: np.broadcast_to(one, x.shape) for name, x in problem.grads.items()}
    assert_same_bits(expanded.backward(), ones.backward())
    strided = copy_of(problem)
    strided.grads = {name: np.asfortranarray(x) for name, x in problem.grads.items()}
    strided.grads["grad_output"] = problem.grads["grad_output"][..., ::-1].copy()[..., ::-1]
    assert_same_bits(strided.backward(), problem.backward())


def huge(*shape: int) -> Array:
    """Zeros in memory that exists only where it is written."""
    size = 4 * int(np.prod(shape))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    array: Array = np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=np.float32)
    return array.reshape(shape)


@pytest.mark.parametrize("score", ["dot", "gaussian"])
def test_bug_offsets_over_two_to_the_31(score: str, rng: np.random.Generator) -> None:
    """The second entry starts 2^31 + 8 numbers behind the first; only valid keys have memory."""
    N, lens = 2**28 + 1, [3, 5]
    small = make_problem(score, rng, M=2, N=5, D=8, Dv=8, valid_lens=lens)
    large = copy_of(small)
    for name in ("keys", "values"):
        large.inputs[name] = huge(2, N, 8)
        large.inputs[name][:, :5] = small.inputs[name]
    np.testing.assert_array_equal(large.forward(), small.forward())


def test_the_reference_obeys_the_same_rules(rng: np.random.Generator) -> None:
    """The tests above hold attnext against rules; this one holds the reference against them."""
    problem = make_problem("dot", rng, M=3, N=8, valid_lens=4)
    clean = problem.run(reference)
    problem.inputs["values"][:, 4:] = np.inf
    problem.inputs["keys"][:, 4:] = np.nan
    for name, x in problem.run(reference).items():
        np.testing.assert_array_equal(x, clean[name], err_msg=name)
