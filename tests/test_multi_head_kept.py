"""What multi-head attention keeps of its projections, from a forward to its backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_same_bits
from multi_headed import HeadsProblem, make_heads, with_nan

from attnext import _core


def keeping(problem: HeadsProblem, **more: Any) -> tuple[Array, ...]:
    """Output, weights, lse and what is kept."""
    made: tuple[Array, ...] = _core._multi_head_attention(
        **problem.inputs,
        **problem.options,
        return_weights=True,
        return_lse=True,
        return_kept=True,
        **more,
    )
    return made


def gradients(problem: HeadsProblem, **more: Any) -> dict[str, Array]:
    arguments = {**problem.grads, **problem.inputs, **problem.options}
    d = _core._multi_head_attention_backward(**arguments, **more)._asdict()
    return {name: x for name, x in d.items() if x is not None}


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal, shared": {"causal": True, "kv_heads": 1, "bias_terms": False},
    "lengths": {"valid_lens": [2, 0]},
    "lengths, zero": {"valid_lens": [2, 0], "empty_rows": "zero"},
    "lengths, nan": {"valid_lens": [2, 0], "empty_rows": "nan", "sink": None},
    "dropout": {"dropout_p": 0.5, "seed": 3, "softcap": 2.0},
    "several groups": {"M": 70, "N": 130, "d": 8},
    "rows apart": {"heads": 4, "d": 64, "valid_lens": [2, 0]},
    "no keys": {"N": 0},
    "no queries": {"M": 0},
    "no entries": {"lead": (0,)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_bits_are_those_without(options: dict[str, Any], rng: np.random.Generator) -> None:
    problem = with_nan(make_heads(rng, **options), rng)
    *made, kept = keeping(problem)
    expected = problem.forward(return_weights=True, return_lse=True)
    assert_same_bits(dict(enumerate(made)), dict(enumerate(expected)))
    found = {f"d_{name}": x for name, x in gradients(problem, lse=made[2], kept=kept).items()}
    assert_same_bits(found, problem.backward())


def test_it_may_lie_anywhere(rng: np.random.Generator) -> None:
    """Saved tensors are moved by hooks, and need not be aligned then."""
    problem = make_heads(rng, M=9, N=11, d=5)
    kept = keeping(problem)[-1]
    expected = gradients(problem, kept=kept)
    for shift in (1, 5):
        moved = np.full(kept.size + shift, np.nan, np.float32)[shift:]
        moved[:] = kept
        assert_same_bits(gradients(problem, kept=moved), expected)


def test_nothing_is_projected_again(rng: np.random.Generator) -> None:
    """The weight and bias that made the queries are no longer needed for what was pooled."""
    problem = make_heads(rng)
    kept = keeping(problem)[-1]
    expected = gradients(problem, kept=kept)
    problem.inputs["W_v"] = np.full_like(problem.inputs["W_v"], np.nan)
    found = gradients(problem, kept=kept)
    assert np.isnan(found["values"]).all()
    for name in ("queries", "W_q", "W_k", "W_v", "W_o"):
        assert_same_bits({name: found[name]}, {name: expected[name]})


def test_what_is_not_kept(rng: np.random.Generator) -> None:
    problem = make_heads(rng)
    kept = keeping(problem)[-1]
    other = keeping(make_heads(rng, N=40))[-1]
    size = rf"expected \({kept.size},\)"
    for wrong in (other, kept[:-1], kept[None], kept[:0]):
        with pytest.raises(ValueError, match=rf"kept has shape \(.*\), {size}"):
            gradients(problem, kept=wrong)
    for nothing in ("kept", object(), [None]):
        with pytest.raises(TypeError, match="kept"):
            gradients(problem, kept=nothing)
    with pytest.raises(TypeError, match="return_kept"):
        _core._multi_head_attention(**problem.inputs, **problem.options, return_kept="yes")
    with pytest.raises(TypeError, match="unexpected keyword argument 'return_kept'"):
        problem.forward(return_kept=True)


def test_without_being_asked_it_is_the_public_function(rng: np.random.Generator) -> None:
    problem = make_heads(rng, bias_terms=False)
    output = _core._multi_head_attention(**problem.inputs, **problem.options)
    assert_same_bits({"output": output}, {"output": problem.forward()})
    found = {f"d_{name}": x for name, x in gradients(problem).items()}
    assert_same_bits(found, problem.backward())
