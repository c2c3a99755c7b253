"""Dot-product, additive and Gaussian attention, forward and backward, against the textbook.

What is special about the sizes: a block has 16, 32 or 64 queries (lanes), a tile 128 keys, a sum
is cut into chunks of 256 terms, keys are projected 64 and hidden units reduced 16 at a time, and
backward splits queries into groups of 256, or more if there are over 2048.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import (
    EMPTY_ROWS,
    FUNCTION,
    SCORES,
    SCORES_FUNCTION,
    Problem,
    assert_accurate,
    assert_all_accurate,
    assert_same_bits,
    bits,
    check,
    error_of,
    exact_gradients,
    make_problem,
    textbook,
    textbook_scores,
)
from hypothesis import given
from hypothesis import strategies as st

import attnext
from attnext import reference

BOUNDARIES = {
    "M": [127, 128, 129, 255, 256, 257, 258, 300, 513],
    "N": [127, 128, 129, 191, 193, 255, 256, 257, 384, 385, 513],
    "D": [127, 128, 129, 255, 256, 257, 511, 512, 513],
    "Dv": [127, 128, 129, 255, 256, 257],
    "H": [127, 128, 129, 255, 256, 257],
    "Dk": [127, 128, 129, 255, 256, 257],
}


def sizes_of(score: str) -> list[str]:
    return [name for name in BOUNDARIES if score == "additive" or name not in ("H", "Dk")]


# ---- sizes ---------------------------------------------------------------------------------------


UP_TO = 4 * 16 + 3


@pytest.mark.parametrize("first", range(1, 5))
@pytest.mark.parametrize("score", SCORES)
def test_every_size_up_to_four_vectors(score: str, first: int, rng: np.random.Generator) -> None:
    """All axes walk through all sizes at once, each at a pace of its own; then with few queries."""
    paces = {"M": 1, "N": 5, "D": 11, "Dv": 18, "H": 29, "Dk": 40}
    for size in range(first, UP_TO + 1, 4):
        sizes = {axis: 1 + pace * size % UP_TO for axis, pace in paces.items()}
        if score != "additive":
            del sizes["Dk"]
        for queries in ({}, {"M": 1 + size % 3}):
            lens = rng.integers(1, sizes["N"] + 1, size=2)
            check(make_problem(score, rng, **(sizes | queries), valid_lens=lens))


@pytest.mark.parametrize(("score", "axis"), [(s, axis) for s in SCORES for axis in sizes_of(s)])
def test_sizes_around_tiles_and_chunks(score: str, axis: str, rng: np.random.Generator) -> None:
    for size in BOUNDARIES[axis]:
        sizes = {"M": 5, "N": 7, axis: size}
        lens = rng.integers(0, sizes["N"] + 1, size=(2, sizes["M"]))
        check(make_problem(score, rng, **sizes, valid_lens=lens))


@pytest.mark.parametrize("edge", [16, 32, 64, 128, 192, 256])
def test_blocks_and_tiles_that_straddle_a_limit(edge: int, rng: np.random.Generator) -> None:
    """Lengths at both sides of every edge of a tile, in blocks at both sides of one."""
    near = np.array([0, 1, edge - 1, edge, edge + 1, 2 * edge])
    for score, M in product(SCORES, (15, 33, 65)):
        lens = rng.choice(near, size=(2, M))
        check(make_problem(score, rng, M=M, N=edge + 5, valid_lens=lens))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("M", [2047, 2048, 2049, 2113, 2600])
def test_more_queries_than_eight_groups_hold(score: str, M: int, rng: np.random.Generator) -> None:
    lens = rng.integers(0, 8, size=(1, M))
    check(make_problem(score, rng, lead=(1,), M=M, N=7, D=3, Dv=2, H=4, valid_lens=lens))


@pytest.mark.parametrize("score", SCORES)
def test_large_on_every_axis(score: str, rng: np.random.Generator) -> None:
    lens = rng.integers(0, 301, size=(2, 2, 270))
    D = 260 if score == "dot" else 6
    check(make_problem(score, rng, lead=(2, 2), M=270, N=300, D=D, Dv=70, H=12, valid_lens=lens))


# ---- valid lengths, empty rows, leading axes -----------------------------------------------------


def lens_of_kind(kind: str, rows: tuple[int, ...], N: int, rng: np.random.Generator) -> Any:
    shape = {"1-D": rows[:1], "2-D": (rows[0], rows[-1]), "full": rows}.get(kind)
    if shape is None:
        return {"none": None, "0": 0, "1": 1, "part": N // 2, "N": N, "above N": N + 9}[kind]
    return rng.choice([0, 1, 2, N - 1, N, N + 1, 10**12], size=shape)


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
@pytest.mark.parametrize("kind", ["none", "0", "1", "part", "N", "above N", "1-D", "2-D", "full"])
def test_lengths_in_every_shape(kind: str, empty_rows: str, rng: np.random.Generator) -> None:
    """The scores take turns: each meets every kind and every mode."""
    M, N = 4, 6
    for i, lead in enumerate([(), (1,), (3,), (2, 3), (2, 1, 3), (2, 3, 1, 2)]):
        one_shape = kind == "2-D" and not lead  # rows (M,)
        lens = lens_of_kind("1-D" if one_shape else kind, (*lead, M), N, rng)
        options = {"valid_lens": lens, "empty_rows": empty_rows}
        check(make_problem(SCORES[i % 4], rng, lead=lead, M=M, N=N, **options))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("M", [3, 40, 300])
def test_empty_rows_among_others_over_several_tiles(
    score: str, M: int, rng: np.random.Generator
) -> None:
    """Blocks that are all empty, blocks with one empty row, tiles only empty rows reach."""
    for empty_rows in EMPTY_ROWS:
        lens = rng.integers(0, 140, size=(2, M))
        lens[0, : M // 2] = 0
        lens[1, -1] = 0
        check(make_problem(score, rng, M=M, N=260, D=3, valid_lens=lens, empty_rows=empty_rows))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64", ">i4"])
def test_lengths_of_any_integer_dtype(score: str, dtype: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng)
    expected = problem.but(valid_lens=[2, 4]).run()
    assert_same_bits(problem.but(valid_lens=np.array([2, 4], dtype=dtype)).run(), expected)
    spread = np.array([2, 9, 4, 9], dtype=dtype)[::2]
    assert_same_bits(problem.but(valid_lens=spread).run(), expected)


def test_1d_lengths_belong_to_the_first_axis_even_if_others_have_its_size(
    rng: np.random.Generator,
) -> None:
    problem = make_problem("dot", rng, lead=(3, 3), M=3)
    lens = np.array([1, 2, 5])
    expected = problem.but(valid_lens=np.broadcast_to(lens[:, None, None], (3, 3, 3))).run()
    assert_same_bits(problem.but(valid_lens=lens).run(), expected)


# ---- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scale", [None, 1, 0.0, -0.5, 2.5, np.float32(0.125), np.array(3.0), 1e-30]
)
def test_scale(scale: Any, rng: np.random.Generator) -> None:
    check(make_problem("dot", rng, M=5, N=9, scale=scale, valid_lens=[4, 9]))


def test_default_scale_is_one_over_the_root_of_d(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, D=7)
    assert_same_bits(problem.run(), problem.but(scale=1 / np.sqrt(7)).run())


@pytest.mark.parametrize(
    "option",
    [
        {"w": 2.0},
        {"w": -2.0},
        {"w": 0.0},
        {"w": np.array([0.7])},
        {"w": np.array([[0.7]], dtype=np.float32)},
        {"w": [1.5]},
        {"w": 3},
        {"sigma": 0.5},
        {"sigma": np.float32(2)},
        {"sigma": [4.0]},
        {},
    ],
    ids=str,
)
def test_bandwidth(option: dict[str, Any], rng: np.random.Generator) -> None:
    problem = make_problem("gaussian", rng, M=5, N=9, valid_lens=[4, 9], w=None)
    check(problem.but(**option))


def test_sigma_is_one_over_w(rng: np.random.Generator) -> None:
    problem = make_problem("gaussian", rng, w=None)
    assert_same_bits(problem.but(sigma=0.25).run(), problem.but(w=4.0).run())
    assert_same_bits(problem.run(), problem.but(w=1.0).run())


def test_distances_of_far_points_do_not_cancel(rng: np.random.Generator) -> None:
    """|q|^2 - 2 q.k + |k|^2 would lose every digit here; differences lose none."""
    problem = make_problem("gaussian", rng, M=20, N=30, D=3, w=1.0)
    for name in ("queries", "keys"):
        problem.inputs[name] = np.round(problem.inputs[name] * 64) / 64 + np.float32(4096)
    check(problem)


@pytest.mark.parametrize("valid_lens", [None, 0, [3, 0], [[2, 0, 5], [1, 1, 0]]], ids=str)
@pytest.mark.parametrize("M", [3])
def test_hidden_bias(valid_lens: Any, M: int, rng: np.random.Generator) -> None:
    b_h = rng.standard_normal(6, dtype=np.float32)
    problem = make_problem("additive", rng, M=M, b_h=b_h, valid_lens=valid_lens)
    assert "d_b_h" in check(problem)
    without = make_problem("additive", rng).backward()
    assert "d_b_h" not in without


def test_w_v_keeps_the_shape_it_came_in(rng: np.random.Generator) -> None:
    problem = make_problem("additive", rng)
    flat = problem.run()
    problem.inputs["w_v"] = problem.inputs["w_v"].reshape(1, -1)
    row = check(problem)
    assert flat["d_w_v"].shape == (6,)
    assert row["d_w_v"].shape == (1, 6)
    assert_same_bits({**row, "d_w_v": row["d_w_v"].reshape(-1)}, flat)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("grad_weights", [False, True])
@pytest.mark.parametrize("grad_lse", [False, True])
def test_gradients_into_the_extras(
    score: str, grad_weights: bool, grad_lse: bool, rng: np.random.Generator
) -> None:
    problem = make_problem(score, rng, M=20, N=140, valid_lens=[[3] * 20, [140] * 20])
    given = {"grad_weights": grad_weights, "grad_lse": grad_lse}
    problem.grads = {name: x for name, x in problem.grads.items() if given.get(name, True)}
    check(problem)


@pytest.mark.parametrize("score", SCORES)
def test_missing_gradients_of_extras_are_zero(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=20, N=140, valid_lens=[3, 140])
    grads = problem.grads
    problem.grads = {"grad_output": grads["grad_output"]}
    none = problem.backward(grad_weights=None, grad_lse=None)
    zeros = problem.backward(
        grad_weights=np.zeros_like(grads["grad_weights"]), grad_lse=np.zeros_like(grads["grad_lse"])
    )
    for name in none:
        np.testing.assert_array_equal(none[name], zeros[name], err_msg=name)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("handed", [("output", "lse"), ("output",), ("lse",)], ids=str)
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_backward_with_what_the_forward_returned(
    score: str,
    handed: tuple[str, ...],
    dropout_p: float,
    rng: np.random.Generator,
) -> None:
    for empty_rows in EMPTY_ROWS:
        lens = rng.integers(0, 141, size=(2, 20))
        lens[0, 3], lens[1, 5] = 0, 140
        options = {"valid_lens": lens, "empty_rows": empty_rows, "dropout_p": dropout_p, "seed": 5}
        problem = make_problem(score, rng, M=20, N=140, **options)
        del problem.grads["grad_weights"]
        output, lse = problem.forward(return_lse=True)
        saved = {name: {"output": output, "lse": lse}[name] for name in handed}
        got, exact = problem.backward(**saved), exact_gradients(problem)
        peer = partial(textbook, handed=len(saved) == 2)
        assert_all_accurate(got, exact, problem, peer)


@pytest.mark.parametrize("score", SCORES)
def test_of_few_keys_output_and_lse_are_of_no_use(score: str, rng: np.random.Generator) -> None:
    """So the layers keep neither (attn_reads_saved): 128 keys are one tile."""
    for N in (1, 128, 129):
        problem = make_problem(score, rng, M=20, N=N, dropout_p=0.4, seed=5, extra_grads=False)
        expected = problem.backward()
        output, lse = (np.full_like(x, np.nan) for x in problem.forward(return_lse=True))
        got = problem.backward(output=output, lse=lse)
        same = [np.array_equal(got[name], expected[name], equal_nan=True) for name in expected]
        assert all(same) == (N < 129)


@pytest.mark.parametrize("score", SCORES)
def test_handed_output_and_lse_beside_grad_weights(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=20, N=140, valid_lens=[30, 140])
    output, lse = problem.forward(return_lse=True)
    got, exact = problem.backward(output=output, lse=lse), exact_gradients(problem)
    assert_all_accurate(got, exact, problem)


# ---- what comes back -----------------------------------------------------------------------------


def test_saved_lse_is_as_good_as_its_digits() -> None:
    """P = exp(s - lse), whose error is that of lse near 64: half of its last digit, 2^-19.

    Keys are alike, so that each P is 1 / N, and dV = P. On top come the rounding of 2^t (2^-23), of
    the factor (2^-24) and of their product (2^-24).
    """
    N = 200
    q = np.linspace(56, 58.6, 256, dtype=np.float32)[:, None, None]
    k, v, ones = np.ones((256, N, 1), "f4"), np.ones((256, N, 1), "f4"), np.ones((256, 1, 1), "f4")
    output, lse = attnext.dot_product_attention(q, k, v, scale=1, return_lse=True)
    assert 61 < lse.min() < lse.max() < 64
    _, _, dv = attnext.dot_product_attention_backward(
        ones, q, k, v, scale=1, output=output, lse=lse
    )
    assert np.abs(N * np.float64(dv) - 1).max() <= 2**-19 + 2**-22


@pytest.mark.parametrize("score", SCORES)
def test_extras_come_in_the_order_weights_lse(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, lead=(2, 3), M=4, N=5, Dv=7)
    shapes = {"output": (2, 3, 4, 7), "weights": (2, 3, 4, 5), "lse": (2, 3, 4)}
    for flags in [(False, False), (True, False), (False, True), (True, True)]:
        result = problem.forward(return_weights=flags[0], return_lse=flags[1])
        names = ["output", *np.array(["weights", "lse"])[list(flags)]]
        if len(names) == 1:
            assert isinstance(result, np.ndarray)
            result = (result,)
        assert isinstance(result, tuple)
        assert [x.shape for x in result] == [shapes[name] for name in names]


@pytest.mark.parametrize("score", SCORES)
def test_results_are_fresh_float32_arrays(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng)
    for _ in range(2):
        for name, x in problem.run().items():
            if name == "d_w":
                assert isinstance(x, np.float32)
                continue
            assert type(x) is np.ndarray
            assert x.dtype == np.float32
            assert x.flags.c_contiguous and x.flags.writeable and x.flags.aligned
            assert x.flags.owndata
            for array in [*problem.inputs.values(), *problem.grads.values()]:
                assert not np.shares_memory(x, array)


def test_additive_gradients_are_a_named_tuple(rng: np.random.Generator) -> None:
    problem = make_problem("additive", rng)
    d = attnext.additive_attention_backward(**problem.grads, **problem.inputs)
    assert isinstance(d, attnext.AdditiveGradients)
    assert isinstance(d, tuple)
    assert d._fields == ("queries", "keys", "values", "W_q", "W_k", "w_v", "b_h")
    assert d.b_h is None


@pytest.mark.parametrize("score", SCORES)
def test_out_is_where_the_output_goes(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=20, N=140, valid_lens=[0, 70])
    expected = problem.forward()
    out = np.full_like(expected, np.nan)
    assert problem.forward(out=out) is out
    np.testing.assert_array_equal(bits(out), bits(expected))
    output, _, _ = problem.forward(out=out, return_weights=True, return_lse=True)
    assert output is out


@pytest.mark.parametrize("score", SCORES)
def test_positional_arguments_come_in_the_documented_order(
    score: str, rng: np.random.Generator
) -> None:
    problem = make_problem(score, rng, valid_lens=[1, 3])
    options = dict(problem.options)
    lens = options.pop("valid_lens")
    forward = getattr(attnext, FUNCTION[score])
    backward = getattr(attnext, FUNCTION[score] + "_backward")
    arrays = problem.inputs.values()
    np.testing.assert_array_equal(forward(*arrays, lens, **options), problem.forward())
    grads = dict(problem.grads)
    by_position = backward(grads.pop("grad_output"), *arrays, lens, **grads, **options)
    by_name = problem.backward()
    present = [x for x in by_position if x is not None]
    assert_same_bits(dict(zip(by_name, present, strict=True)), by_name)


# ---- scores alone --------------------------------------------------------------------------------


def scores_of(problem: Problem, module: Any = attnext) -> Any:
    names = {"queries", "keys", "W_q", "W_k", "w_v"}
    arrays = {name: x for name, x in problem.inputs.items() if name in names}
    options = {n: x for n, x in problem.options.items() if n in ("scale", "w", "sigma", "b_h")}
    return getattr(module, SCORES_FUNCTION[problem.score])(**arrays, **options)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    ("M", "N", "D"),
    [(1, 1, 1), (3, 5, 2), (16, 128, 16), (33, 129, 17), (65, 257, 5), (7, 9, 300), (257, 3, 4)],
)
def test_scores(score: str, M: int, N: int, D: int, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, lead=(2, 2), M=M, N=N, D=D)
    if score == "additive":
        problem.options["b_h"] = rng.standard_normal(6, dtype=np.float32)
    peer, exact = (textbook_scores(problem, dtype)[0] for dtype in (np.float32, np.float64))
    peer_error = error_of(peer, exact)
    assert_accurate(scores_of(problem), scores_of(problem, reference), peer_error)


@pytest.mark.parametrize("score", SCORES)
def test_composition_of_scores_softmax_and_product(score: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, M=20, N=140, valid_lens=[0, 70])
    weights = attnext.masked_softmax(scores_of(problem), [0, 70])
    output, whole, _ = problem.forward(return_weights=True, return_lse=True)
    np.testing.assert_allclose(weights, whole, rtol=5e-6, atol=1e-7)
    np.testing.assert_allclose(weights @ problem.inputs["values"], output, rtol=1e-5, atol=2e-6)


# ---- anything at once ----------------------------------------------------------------------------


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    score = draw(st.sampled_from(SCORES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = st.integers(1, 40) | st.sampled_from([16, 32, 33, 64, 65, 128, 129, 140])
    lead = draw(st.sampled_from([(), (1,), (2,), (1, 2), (2, 1), (3, 1, 2)]))
    sizes = {name: draw(size) for name in ("M", "N")}
    sizes |= {name: draw(st.integers(1, 20)) for name in ("D", "Dv", "H", "Dk")}
    rows = (*lead, sizes["M"])
    shapes = [(), rows[:1], (rows[0], rows[-1]) if lead else rows, rows]
    shape = draw(st.sampled_from(shapes))
    lens = draw(st.none() | st.just(rng.integers(0, sizes["N"] + 2, size=shape)))
    options = {"valid_lens": lens, "empty_rows": draw(st.sampled_from(EMPTY_ROWS))}
    if draw(st.booleans()):
        options |= {"dropout_p": draw(st.floats(0, 0.9)), "seed": draw(st.integers(0, 2**64 - 1))}
    if score == "dot":
        options["scale"] = draw(st.none() | st.floats(-2, 2))
    if score == "gaussian":
        options["w"] = draw(st.none() | st.floats(-1, 1))
    problem = make_problem(score, rng, lead=lead, **sizes, **options)
    if score == "additive" and draw(st.booleans()):
        problem.options["b_h"] = rng.standard_normal(sizes["H"], dtype=np.float32)
    return problem


@given(problems())
def test_any_problem(problem: Problem) -> None:
    check(problem)
