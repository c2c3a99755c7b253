"""Faults that other projects had, each a short test with the report that taught it.

Where a class of them has its test already, that stands here, with its report:

    rows without keys give NaN             pytorch #24816 #103749 #103963 #109517
        test_rules.py      test_bug_fully_masked_rows_give_nan
    NaN comes out of the padding           pytorch #101967
        test_rules.py      test_bug_padding_enters_through_zero_times_infinity
    a maximum swallows NaN                 dotnet/coreclr #1714
        test_rules.py      test_bug_nan_swallowed_by_max
    more than 2^31 numbers                 onnxruntime #32299, Paddle #71935
        test_rules.py      test_bug_offsets_over_two_to_the_31
    sequences of length 0 in a batch       pytorch #81077, flash-attention #1155
        test_rules.py      test_bug_zero_length_sequences_inside_a_batch
    sizes of heads that are not usual      FasterTransformer #89, mlc-llm #1889
        test_rules.py      test_bug_head_sizes_that_are_no_multiple_of_the_vector
    grad_output expanded or with strides   flash-attention #355, xformers #282
        test_rules.py      test_bug_expanded_and_strided_gradients
    what True means in a mask              TransformerEngine #614, x-transformers #164
        test_mask_rules.py test_bug_mask_of_the_wrong_polarity
    where the diagonal of causal starts    pytorch #108108, flash-attention #517, mlx #2835
        test_mask_rules.py test_bug_causal_alignment_when_queries_and_keys_differ_in_number
"""

from __future__ import annotations

import copy
import re
from pathlib import Path

import numpy as np
import pytest
from helpers import SCORES, TESTS, assert_same_bits, make_problem

score_cases = pytest.mark.parametrize("score", SCORES)


def test_the_tests_named_above_are_there() -> None:
    named = re.findall(r"(test_\w+\.py) +(test_\w+)", str(__doc__))
    assert len(named) == 9
    for file, test in named:
        assert f"def {test}(" in Path(TESTS, file).read_text()


@score_cases
def test_gradients_of_rows_that_no_loss_looks_at(score: str, rng: np.random.Generator) -> None:
    """pytorch #41508: a row without keys gave its 0 * NaN to the gradients of all others."""
    problem = make_problem(score, rng, M=4, N=5, valid_lens=[5, 0])
    for x in problem.grads.values():
        x[1] = 0
    alone = copy.deepcopy(problem)
    alone.options["valid_lens"] = [5]
    for part in (alone.inputs, alone.grads):
        part |= {name: x[:1] for name, x in part.items() if x.ndim == 3 or name == "grad_lse"}
    expected = alone.backward()
    for name, found in problem.backward().items():
        assert np.isfinite(found).all(), name
        same = found[:1] if np.ndim(found) == 3 else found
        np.testing.assert_array_equal(same, expected[name], err_msg=name)


@score_cases
def test_what_padding_is_makes_no_difference(score: str, rng: np.random.Generator) -> None:
    """pytorch #64525: 1e10 in the place of 1e-10 changed the tokens that are attended to."""
    problem = make_problem(score, rng, M=4, N=7, valid_lens=[3, 5])
    results = []
    for padding in (1e-10, 1e10, np.nan):
        for entry, length in enumerate([3, 5]):
            for name in ("keys", "values"):
                problem.inputs[name][entry, length:] = padding
        results.append(problem.run())
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])


@score_cases
def test_gradients_of_keys_that_are_a_slice(score: str, rng: np.random.Generator) -> None:
    """pytorch #146377: keys[:, :-128] gave garbage for the gradient of the keys."""
    problem = make_problem(score, rng, M=4, N=140)
    for name in ("keys", "values"):
        problem.inputs[name] = problem.inputs[name][:, :-128]
    problem.grads.pop("grad_weights", None)
    copied = copy.deepcopy(problem)
    copied.inputs = {name: x.copy() for name, x in problem.inputs.items()}
    assert_same_bits(problem.backward(), copied.backward())


@score_cases
def test_more_queries_than_keys_counted_from_the_end(score: str, rng: np.random.Generator) -> None:
    """flash-attention #1778: the queries before the first key see nothing, and give 0."""
    problem = make_problem(score, rng, M=5, N=2, causal=True, causal_offset=2 - 5)
    output, weights = problem.but(empty_rows="zero").forward(return_weights=True)
    np.testing.assert_array_equal(weights[0] > 0, [[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]])
    assert not output[:, :3].any() and output[:, 3:].all()


@score_cases
def test_one_query_behind_many_keys(score: str, rng: np.random.Generator) -> None:
    """pytorch #103082: while decoding, causal left the one new query its first key alone."""
    problem = make_problem(score, rng, M=1, N=9, causal=True)
    weights = problem.but(causal_offset=8).forward(return_weights=True)[1]
    assert (weights > 0).all()
    assert_same_bits(problem.but(causal_offset=8).run(), problem.but(causal=False).run())


@score_cases
def test_a_bias_of_the_lowest_number_is_no_mask(score: str, rng: np.random.Generator) -> None:
    """pytorch #110213: finfo.min in a whole row, meant to hide it, gave NaN in one version."""
    bias = np.zeros((3, 5), dtype=np.float32)
    bias[1] = np.finfo(np.float32).min
    problem = make_problem(score, rng, M=3, N=5, bias=bias)
    results = problem.run()
    for name, x in results.items():
        assert np.isfinite(x).all(), name
    np.testing.assert_allclose(results["weights"].sum(axis=-1), 1, rtol=1e-6)


@score_cases
def test_no_keys_in_some_entries_and_one_query(score: str, rng: np.random.Generator) -> None:
    """flash-attention #1537: lengths of 0 with at most one query were a wrong shape."""
    lens = [0, 3, 0, 5]
    problem = make_problem(score, rng, lead=(4,), M=1, N=5, valid_lens=lens, empty_rows="zero")
    output = problem.forward()
    assert output.shape[:2] == (4, 1)
    assert [bool(x.any()) for x in output] == [length > 0 for length in lens]
