"""The rules that never bend, under every kind of mask: mask, bias, causal, window, lengths.

Each rule meets each kind, and random compositions; what is not about masks: test_rules.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import (
    EMPTY_ROWS,
    SCORES,
    Array,
    Problem,
    assert_same_bits,
    bits,
    check_padding,
    make_problem,
    over_broadcast,
    over_groups,
    random_masks,
)

import attnext

POISON = [np.nan, np.inf, -np.inf, 3e38]
KINDS = ["lens", "mask", "keys", "queries", "bias", "causal", "window"]
COMPOSITIONS = [f"composed {i}" for i in range(6)]
score_cases = pytest.mark.parametrize("score", SCORES)
kind_cases = pytest.mark.parametrize("kind", KINDS)
every_kind = pytest.mark.parametrize("kind", KINDS + COMPOSITIONS)

nan, inf = np.nan, np.inf


def options_of(
    kind: str, rng: np.random.Generator, lead: tuple[int, ...], M: int, N: int
) -> dict[str, Any]:
    """Masks of one kind; some rows are empty, some keys nobody's, most rows have both sorts."""
    if kind.startswith("composed"):
        return random_masks(rng, lead, M, N)
    holes = rng.random((*lead, M, N)) < 0.6
    holes[..., 3, :] = holes[..., N - 9 :] = False
    options: dict[str, dict[str, Any]] = {
        "lens": {"valid_lens": rng.choice([0, 1, N // 2, N - 6], size=(*lead, M))},
        "mask": {"mask": holes},
        "keys": {"mask": holes[..., :1, :] & (np.arange(lead[0]) > 0)[:, None, None]},
        "queries": {"mask": holes[..., :1]},
        "bias": {"bias": np.where(holes, rng.normal(size=holes.shape), -inf).astype(np.float32)},
        "causal": {"causal": True, "causal_offset": -4},
        "window": {"window": (10, 5), "causal_offset": N - 20},
    }
    return options[kind]


def problem_of(kind: str, score: str, rng: np.random.Generator, **options: Any) -> Problem:
    """35 queries and 140 keys; the compositions in four heads that share two of keys."""
    composed = kind.startswith("composed")
    lead = (2, 4) if composed else (2,)
    masks = options_of(kind, rng, lead, 35, 140)
    kv_heads = 2 if composed else None
    return make_problem(score, rng, lead=lead, M=35, N=140, kv_heads=kv_heads, **masks, **options)


def copy_of(problem: Problem) -> Problem:
    """Arrays that may be changed without changing the problem's."""
    inputs, grads = (
        {name: x.copy() for name, x in part.items()} for part in (problem.inputs, problem.grads)
    )
    options = {
        name: x.copy() if isinstance(x, np.ndarray) else x for name, x in problem.options.items()
    }
    return Problem(problem.score, inputs, options, grads)


def of_keys(problem: Problem, pairs: Array) -> Array:
    """(..., N), as the keys are: which of them any of these pairs has."""
    shape = problem.inputs["keys"].shape
    return over_groups(np.any, np.asarray(pairs.any(axis=-2))[..., None], shape)[..., 0]


# ---- rule 1: a pair that takes no part is never read ---------------------------------------------


def poisoned(problem: Problem, poison: float) -> Problem:
    """Poison in everything that belongs to no pair that takes part.

    Under "uniform" an empty row reads all values, and passes its output's gradient on to them.
    """
    live = problem.takes_part()
    some = np.asarray(live.any(axis=-1))
    empty, used = ~some, of_keys(problem, live)
    dirty = copy_of(problem)
    dirty.inputs["keys"][~used] = poison
    dirty.inputs["queries"][empty] = poison
    dirty.grads["grad_weights"][~live] = poison
    dirty.grads["grad_lse"][empty] = poison
    if problem.options.get("empty_rows", "uniform") != "uniform":
        dirty.grads["grad_output"][empty] = poison
        dirty.inputs["values"][~used] = poison
    elif not empty.any():
        dirty.inputs["values"][~used] = poison
    if "bias" in problem.options:
        shape = problem.options["bias"].shape
        decided = ~over_broadcast(np.any, problem.but(bias=None).takes_part(), shape)
        dirty.options["bias"][decided] = poison  # the other masks forbid these pairs already
    return dirty


@every_kind
@score_cases
def test_what_takes_no_part_is_poison(score: str, kind: str, rng: np.random.Generator) -> None:
    for empty_rows in EMPTY_ROWS:
        problem = problem_of(kind, score, rng, empty_rows=empty_rows)
        clean = problem.run()
        for poison in POISON:
            assert_same_bits(poisoned(problem, poison).run(), clean, poison)
        check_padding(problem, clean)


@kind_cases
@score_cases
def test_a_bias_may_be_poison_where_a_mask_forbids(
    score: str, kind: str, rng: np.random.Generator
) -> None:
    """A full bias, so that every forbidden pair has an entry of its own."""
    problem = problem_of(kind, score, rng, empty_rows="zero")
    live = problem.takes_part()
    if kind == "bias":  # forbidden twice
        problem = problem.but(mask=live)
    else:
        problem = problem.but(bias=rng.standard_normal(live.shape, dtype=np.float32))
    clean = problem.run()
    for poison in POISON:
        bias = np.where(live, problem.options["bias"], np.float32(poison))
        found = problem.but(bias=bias).run()
        assert_same_bits(found, clean, poison)
        assert not found["d_bias"][~live].any(), poison


@score_cases
def test_handed_weights_may_be_poison_where_a_mask_forbids(
    score: str, rng: np.random.Generator
) -> None:
    problem = problem_of("mask", score, rng, empty_rows="zero", valid_lens=[100, 131])
    output, weights, lse = problem.forward(return_weights=True, return_lse=True)
    live = problem.takes_part()
    empty = ~live.any(axis=-1)
    by_weights = problem.backward(weights=weights)
    by_lse = problem.backward(output=output, lse=lse)
    for poison in POISON:
        weights = np.where(live, weights, np.float32(poison))
        assert_same_bits(problem.backward(weights=weights), by_weights, poison)
        output[empty] = lse[empty] = poison
        assert_same_bits(problem.backward(output=output, lse=lse), by_lse, poison)


# ---- rule 2: NaN in a pair that does take part stays with the row that reads it ------------------


def assert_touched(
    problem: Problem,
    found: Mapping[str, Array],
    clean: Mapping[str, Array],
    rows: Array,
    spared: tuple[str, ...] = (),
) -> None:
    """NaN in what these rows (..., M) have a live pair with; elsewhere the bits of before.

    spared: results that stay as they were altogether. Gradients of parameters are sums over all
    rows and not looked at.
    """
    live = problem.takes_part()
    pairs = live & rows[..., None]
    of_those = {"weights": pairs, "output": rows[..., None], "lse": rows}
    of_those |= {"d_queries": rows[..., None]}
    for name in ("d_keys", "d_values"):
        of_those[name] = of_keys(problem, pairs)[..., None]
    if "d_bias" in clean:
        of_those["d_bias"] = over_broadcast(np.any, pairs, clean["d_bias"].shape)
    for name, those in of_those.items():
        expected = clean[name].copy()
        if name not in spared:
            expected[np.broadcast_to(those, expected.shape)] = nan
        np.testing.assert_array_equal(bits(found[name]), bits(expected), err_msg=name)


def some_row(problem: Problem, rng: np.random.Generator) -> Array:
    """One row that attends to some keys and not to others, as a mask of shape (..., M)."""
    live = problem.takes_part()
    mixed = np.argwhere(live.any(axis=-1) & ~live.all(axis=-1))
    row = np.zeros(live.shape[:-1], dtype=bool)
    row[tuple(mixed[rng.integers(len(mixed))])] = True
    return row


def with_mixed_rows(
    kind: str, score: str, rng: np.random.Generator, **options: Any
) -> tuple[Problem, Array]:
    """A problem, with a bias in any case, and one of its rows."""
    kind = "mask" if kind == "queries" else kind  # its rows have all keys or none
    problem = problem_of(kind, score, rng, empty_rows="zero", **options)
    if "bias" not in problem.options:
        pairs = problem.takes_part().shape
        problem = problem.but(bias=rng.standard_normal(pairs, dtype=np.float32))
    return problem, some_row(problem, rng)


@kind_cases
@score_cases
def test_a_query_that_is_nan(score: str, kind: str, rng: np.random.Generator) -> None:
    """Its weights and gradients are NaN where it attends, and exactly 0 where it does not."""
    problem, row = with_mixed_rows(kind, score, rng)
    dirty = copy_of(problem)
    dirty.inputs["queries"][row] = nan
    found = dirty.run()
    assert_touched(problem, found, problem.run(), row)
    assert not np.any(found["weights"][~problem.takes_part()])


@pytest.mark.parametrize("bias", [nan, inf])
@kind_cases
@score_cases
def test_a_live_bias_that_is_not_finite(
    score: str, kind: str, bias: float, rng: np.random.Generator
) -> None:
    """Rule 6: a score of +inf makes its row NaN, and its lse +inf."""
    problem, row = with_mixed_rows(kind, score, rng)
    dirty, clean = copy_of(problem), problem.run()
    at = np.argwhere(problem.takes_part() & row[..., None])
    dirty.options["bias"][tuple(at[rng.integers(len(at))])] = bias
    found = dirty.run()
    assert np.isnan(bias) == np.isnan(found["lse"][row]).all()
    assert np.isnan(bias) or (found["lse"][row] == inf).all()
    found["lse"][row] = nan
    assert_touched(problem, found, clean, row)


@kind_cases
@score_cases
def test_a_gradient_that_is_nan(score: str, kind: str, rng: np.random.Generator) -> None:
    """It reaches no key that its query does not attend to."""
    for grad in ("grad_output", "grad_weights", "grad_lse"):
        problem, row = with_mixed_rows(kind, score, rng)
        dirty = copy_of(problem)
        dirty.grads[grad][row] = nan
        spared = () if grad == "grad_output" else ("d_values",)
        forward = ("output", "weights", "lse")
        assert_touched(problem, dirty.run(), problem.run(), row, forward + spared)


@kind_cases
@score_cases
def test_a_key_that_few_attend_to_is_poison_to_no_other(
    score: str, kind: str, rng: np.random.Generator
) -> None:
    """Key 70 and its value: rows that do not attend to it stay as they were."""
    for poison in POISON:
        problem = problem_of(kind, score, rng, empty_rows="zero")
        if kind in ("lens", "keys", "queries"):  # all rows or none, or nearly so
            problem = problem.but(mask=rng.random((2, 35, 140)) < 0.5)
        elif kind in ("causal", "window"):
            problem = problem.but(causal_offset=52)
        live = problem.takes_part()
        row = live[..., 70]
        assert row.any() and not row.all()
        dirty = copy_of(problem)
        dirty.inputs["keys"][:, 70] = dirty.inputs["values"][:, 70] = poison
        clean, found = problem.run(), dirty.run()
        for name in ("output", "weights", "lse", "d_queries"):
            np.testing.assert_array_equal(bits(found[name][~row]), bits(clean[name][~row]), name)
        of_others = ~of_keys(problem, live & row[..., None])
        for name in ("d_keys", "d_values"):
            x, expected = found[name][of_others], clean[name][of_others]
            np.testing.assert_array_equal(bits(x), bits(expected), name)
        if np.isnan(poison):
            for name in ("output", "lse", "d_queries"):
                assert np.isnan(found[name][row]).all(), name
        assert not np.any(found["weights"][~live])


# ---- rule 3: empty rows --------------------------------------------------------------------------


def emptied(how: str) -> dict[str, Any]:
    """Masks under which rows 1 and 4 of 6 attend to none of 9 keys, the others to all."""
    rows = np.array([1, 0, 1, 1, 0, 1], dtype=bool)
    bias = np.where(rows[:, None], np.float32(0), np.float32(-inf))
    even = np.arange(9) % 2 == 0
    mixed = np.where(rows[:, None], True, even)
    return {
        "lens": {"valid_lens": np.where(rows, 9, 0)[None].repeat(2, axis=0)},
        "mask": {"mask": rows[:, None].repeat(9, axis=1)},
        "mask of rows": {"mask": rows[:, None]},
        "bias": {"bias": bias.repeat(9, axis=1)},
        "bias of rows": {"bias": bias},
        "mask and bias": {"mask": mixed, "bias": np.where(~mixed | rows[:, None], 0.0, -inf)},
        "mask and lens": {
            "mask": rows[:, None] | ~even,
            "valid_lens": np.where(rows, 9, 1)[None].repeat(2, axis=0),
        },
    }[how]


@pytest.mark.parametrize("how", ["mask", "mask of rows", "bias", "bias of rows", "mask and bias",
                                 "mask and lens"])  # fmt: skip
@score_cases
def test_rows_emptied_by_any_mask_are_those_emptied_by_lengths(
    score: str, how: str, rng: np.random.Generator
) -> None:
    for empty_rows in EMPTY_ROWS:
        problem = make_problem(score, rng, M=6, N=9, empty_rows=empty_rows)
        masks, expected = emptied(how), problem.but(**emptied("lens"))
        if "bias" in masks:
            expected = expected.but(bias=np.zeros_like(masks["bias"]))
        found = problem.but(**masks).run()
        assert_same_bits(found, expected.run())
        if "bias" in masks:
            assert np.isfinite(found["d_bias"]).all() and not found["d_bias"][[1, 4]].any()
        empty = np.zeros((2, 6), dtype=bool)
        empty[:, [1, 4]] = True
        weight = {"uniform": 1 / 9, "zero": 0, "nan": nan}[empty_rows]
        np.testing.assert_array_equal(found["weights"][empty], np.float32(weight))
        np.testing.assert_array_equal(found["lse"][empty], -inf)
        mean = (weight * problem.inputs["values"].sum(axis=1, keepdims=True)).repeat(6, axis=1)
        np.testing.assert_allclose(found["output"][empty], mean[empty], rtol=1e-5, atol=1e-6)


ALL = [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("masks", "rows"),
    [
        ({"causal": True, "causal_offset": -2}, [0, 1]),
        ({"window": (0, 0), "causal_offset": 7}, [2, 3, 4, 5]),
        ({"window": (-1, 0), "causal_offset": -(2**60)}, ALL),
        ({"window": (2, 2**70), "causal_offset": 2**60}, ALL),
        ({"window": (0, -1), "causal_offset": 9, "causal": True}, ALL),
        ({"causal": True, "window": (-1, 3), "causal_offset": -1}, [0]),
        ({"causal": True, "mask": np.arange(9) > 2}, [0, 1, 2]),
        ({"window": (1, 0), "bias": np.where(np.arange(9) == 3, 0.5, -inf)}, [0, 1, 2, 5]),
        ({"window": (-1, 1), "valid_lens": 2, "mask": np.arange(9) > 0}, []),
        ({"window": (0, -1), "valid_lens": 2}, [2, 3, 4, 5]),
    ],
    ids=str,
)
@score_cases
def test_rows_that_a_band_leaves_empty(
    score: str, masks: dict[str, Any], rows: list[int], rng: np.random.Generator
) -> None:
    """Of six queries and nine keys; in the second entry of two, one key further ahead."""
    for empty_rows in EMPTY_ROWS:
        problem = make_problem(score, rng, M=6, N=9, empty_rows=empty_rows, **masks)
        found = problem.run()
        empty = np.isin(np.arange(6), rows)[None].repeat(2, axis=0)
        weight = {"uniform": 1 / 9, "zero": 0, "nan": nan}[empty_rows]
        np.testing.assert_array_equal(np.isneginf(found["lse"]), empty)
        np.testing.assert_array_equal(found["weights"][empty], np.float32(weight))
        np.testing.assert_allclose(found["weights"][~empty].sum(axis=-1), 1, rtol=1e-6)
        expected = np.float32(nan if empty_rows == "nan" else 0)
        np.testing.assert_array_equal(found["d_queries"][empty], expected)
        for name in ("d_keys", "d_values"):
            assert np.isfinite(found[name]).all(), name
        offset = masks.get("causal_offset", 0)
        moved = problem.but(causal_offset=[offset, offset]).run()  # one for each entry
        assert_same_bits(moved, found)


@pytest.mark.parametrize("case", range(8))
@score_cases
def test_any_composition_is_one_mask(score: str, case: int, rng: np.random.Generator) -> None:
    """Bit for bit, whichever of the arguments say so."""
    for empty_rows in EMPTY_ROWS:
        problem = problem_of(f"composed {case}", score, rng, empty_rows=empty_rows)
        live = problem.takes_part()
        one = {name: x for name, x in problem.options.items() if name in ("w", "enable_gqa")}
        one |= {"mask": live, "empty_rows": empty_rows}
        expected = problem.run()
        if "bias" in problem.options:
            bias = problem.options["bias"]
            one["bias"] = np.where(np.isneginf(bias), np.float32(0), bias)
        assert_same_bits(replace(problem, options=one).run(), expected)


@pytest.mark.parametrize("scores", [nan, -inf])
@kind_cases
def test_emptiness_is_decided_by_masks_never_by_scores(
    kind: str, scores: float, rng: np.random.Generator
) -> None:
    """Rows without a single usable score are not empty: they are NaN in every mode."""
    for empty_rows in EMPTY_ROWS:
        problem = problem_of(kind, "dot", rng, empty_rows=empty_rows)
        problem.inputs["queries"] = np.ones_like(problem.inputs["queries"])
        problem.inputs["keys"][...] = scores
        live = problem.takes_part()
        empty = ~live.any(axis=-1)
        assert empty.any()
        output, weights, lse = problem.forward(return_weights=True, return_lse=True)
        assert np.isnan(output[~empty]).all()
        np.testing.assert_array_equal(np.isnan(weights[~empty]), live[~empty])
        np.testing.assert_array_equal(lse[~empty], np.float32(scores))
        np.testing.assert_array_equal(lse[empty], -inf)
        weight = {"uniform": 1 / 140, "zero": 0, "nan": nan}[empty_rows]
        np.testing.assert_array_equal(weights[empty], np.float32(weight))
        d = problem.backward()
        assert np.isnan(d["d_queries"][~empty]).all()
        assert np.isnan(d["d_queries"][empty]).all() == (empty_rows == "nan")


def test_scores_that_overflow_by_a_finite_bias_are_not_masked() -> None:
    """-2e38 - 2e38 is -inf in float32; a bias of -inf forbids, one of -2e38 does not."""
    one: dict[str, Any] = {"queries": [[2e38], [2e38]], "keys": [[-1.0], [-1.0]], "scale": 1}
    one["values"] = [[1.0], [3.0]]
    output, lse = attnext.dot_product_attention(**one, bias=[[-2e38], [-inf]], return_lse=True)
    np.testing.assert_array_equal(output, [[nan], [2]])
    np.testing.assert_array_equal(lse, [-inf, -inf])
    output, lse = attnext.dot_product_attention(**one, bias=[[-2e38, 0]], return_lse=True)
    np.testing.assert_array_equal(output, [[3], [3]])  # beside a score that is finite: weight 0
    np.testing.assert_array_equal(lse, np.full(2, np.float32(-2e38)))


# ---- no sizes at all -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"mask": True}, {"mask": np.zeros((3, 0), bool)},
                                     {"mask": np.zeros(1, bool)}, {"bias": np.zeros((2, 1, 0))},
                                     {"bias": -inf}, {"causal": True}], ids=str)  # fmt: skip
@score_cases
def test_no_keys(score: str, options: dict[str, Any], rng: np.random.Generator) -> None:
    """Output 0 and lse -inf in all three modes, and a gradient of 0."""
    for empty_rows in EMPTY_ROWS:
        if "bias" in options:
            options = {"bias": np.asarray(options["bias"], dtype=np.float32)}
        got = make_problem(score, rng, M=3, N=0, empty_rows=empty_rows, **options).run()
        np.testing.assert_array_equal(got["output"], np.zeros((2, 3, 3)))
        assert got["weights"].shape == (2, 3, 0)
        np.testing.assert_array_equal(got["lse"], np.full((2, 3), -inf))
        for name in set(got) - {"output", "weights", "lse"}:
            assert not np.any(got[name]), name


@kind_cases
@score_cases
def test_no_features_attend_equally_where_they_may(
    score: str, kind: str, rng: np.random.Generator
) -> None:
    masks = options_of(kind, rng, (2,), 35, 140)
    masks.pop("bias", None)  # would be the score
    sizes: dict[str, Any] = {"H": 0} if score == "additive" else {"D": 0}
    problem = make_problem(score, rng, M=35, N=140, empty_rows="zero", **masks, **sizes)
    live = problem.takes_part()
    _, weights, lse = problem.forward(return_weights=True, return_lse=True)
    keys = live.sum(axis=-1)
    np.testing.assert_allclose(weights, live / np.maximum(keys, 1)[..., None], rtol=1e-6)
    assert not weights[~live].any()
    np.testing.assert_allclose(
        lse, np.where(keys > 0, np.log(np.maximum(keys, 1)), -inf), rtol=1e-6
    )


# ---- rule 4: inputs are never written ------------------------------------------------------------


@every_kind
@score_cases
def test_inputs_are_never_written(score: str, kind: str, rng: np.random.Generator) -> None:
    for empty_rows in EMPTY_ROWS:
        options = {"empty_rows": empty_rows, "dropout_p": 0.5}
        problem = problem_of(kind, score, rng, **options)
        problem.options["dropout_mask"] = rng.random((35, 140)) < 0.5
        before = copy_of(problem)
        output, weights, lse = problem.forward(return_weights=True, return_lse=True)
        handed = {"output": output.copy(), "weights": weights.copy(), "lse": lse.copy()}
        problem.run()
        problem.backward(**handed)
        for part in ("inputs", "grads", "options"):
            for name, x in getattr(before, part).items():
                if isinstance(x, np.ndarray):
                    now = getattr(problem, part)[name]
                    assert x.dtype == now.dtype and x.tobytes() == now.tobytes(), name
        assert_same_bits(handed, {"output": output, "weights": weights, "lse": lse})


# ---- bug classes found elsewhere, by name --------------------------------------------------------


@score_cases
def test_bug_mask_of_the_wrong_polarity(score: str, rng: np.random.Generator) -> None:
    """True lets a key in, as in torch's scaled_dot_product_attention; not out, as elsewhere."""
    problem = make_problem(score, rng, N=3)
    weights = problem.but(mask=[True, False, False]).forward(return_weights=True)[1]
    np.testing.assert_array_equal(weights, [[[1, 0, 0]] * 3] * 2)


@score_cases
def test_bug_causal_alignment_when_queries_and_keys_differ_in_number(
    score: str, rng: np.random.Generator
) -> None:
    """Top-left by default; the offset N - M is bottom-right."""
    problem = make_problem(score, rng, M=3, N=5, causal=True)
    counts = (problem.forward(return_weights=True)[1] > 0).sum(axis=-1)
    np.testing.assert_array_equal(counts, [[1, 2, 3]] * 2)
    counts = (problem.but(causal_offset=2).forward(return_weights=True)[1] > 0).sum(axis=-1)
    np.testing.assert_array_equal(counts, [[3, 4, 5]] * 2)


@score_cases
def test_bug_a_mask_of_one_head_is_that_of_its_neighbour(
    score: str, rng: np.random.Generator
) -> None:
    """Masks of (B, 1, M, N), (1, heads, M, N) and (heads, M, N) go to their own heads."""
    problem = make_problem(score, rng, lead=(3, 2), M=4, N=7, empty_rows="zero")
    for shape in [(3, 1, 4, 7), (1, 2, 4, 7), (2, 4, 7), (3, 1, 1, 7), (3, 2, 1, 1), (2, 4, 1)]:
        mask = rng.random(shape) < 0.5
        whole = np.broadcast_to(mask, (3, 2, 4, 7)).copy()
        assert_same_bits(problem.but(mask=mask).run(), problem.but(mask=whole).run())
