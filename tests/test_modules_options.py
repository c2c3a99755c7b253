"""The options of a layer's call: what the functions take, and the same bits as they."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from helpers import EMPTY_ROWS, assert_same_bits, random_masks, repr_id
from layered import KINDS, call, gradients, make_layer, problem_of, run, run_functions
from numpy.typing import NDArray

import attnext
from attnext import DotProductAttention


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_as_the_functions(kind: str, rng: np.random.Generator) -> None:
    """Any masks together, heads in groups, every rule for empty rows; with dropout and without."""
    for i in range(24):
        layer = make_layer(kind, dropout=0.3 * (i % 2))
        lead = [(), (2,), (2, 4)][i % 3]
        heads = {"kv_heads": 2} if i % 3 == 2 else {}
        M, N = ((3, 5), (1, 9), (20, 140))[i // 3 % 3]
        problem = problem_of(layer, rng, lead=lead, M=M, N=N, **heads)
        problem = problem.but(**random_masks(rng, lead, M, N), empty_rows=EMPTY_ROWS[i % 3])
        got = run(layer, problem)
        assert layer.context is not None
        if layer.context.seed is not None:
            problem = problem.but(dropout_p=layer.dropout, seed=layer.context.seed)
        assert_same_bits(got, run_functions(problem))


@pytest.mark.parametrize("kind", KINDS)
def test_contexts_know_their_options(kind: str, rng: np.random.Generator) -> None:
    """Backward through several calls, each with options of its own, in any order."""
    layer = make_layer(kind)
    problems = [
        problem_of(layer, rng, lead=(2, 4), M=6, N=9, kv_heads=2).but(
            **random_masks(rng, (2, 4), 6, 9), empty_rows=EMPTY_ROWS[i % 3]
        )
        for i in range(6)
    ]
    contexts = []
    for problem in problems:
        call(layer, problem)
        contexts.append(layer.context)
    for i in rng.permutation(6):
        expected = run_functions(problems[i])
        assert_same_bits(
            gradients(layer, problems[i], contexts[i]),
            {name: d for name, d in expected.items() if name.startswith("d_")},
        )


def test_the_gradient_of_the_bias_comes_behind(rng: np.random.Generator) -> None:
    layer = make_layer("additive")
    problem = problem_of(layer, rng)
    call(layer, problem)
    *_, dbias = layer.backward(**problem.grads, return_grad_bias=True)
    assert dbias is None  # there was none
    call(layer, problem.but(bias=np.zeros(5, np.float32)))
    assert len(layer.backward(**problem.grads)) == 3
    *_, dbias = layer.backward(**problem.grads, return_grad_bias=True)
    assert dbias is not None and dbias.shape == (5,)


def test_a_copy_knows_nothing_of_the_options_of_a_call(rng: np.random.Generator) -> None:
    layer = make_layer("dot")
    problem = problem_of(layer, rng, lead=(2, 4), kv_heads=2)
    saved = pickle.dumps(layer)
    call(layer, problem.but(window=(1, 0), empty_rows="zero", causal_offset=[1, 2]))
    assert len(pickle.dumps(layer)) == len(saved)
    for twin in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert_same_bits(run(twin, problem), run(layer, problem))


X = np.zeros((2, 3, 4))
WRONG: list[dict[str, Any]] = [
    {"bias": X > 0},
    {"bias": np.zeros((2, 4))},
    {"causal": True, "causal_offset": [1, 2, 3]},
    {"causal": True, "causal_offset": 0.5},
    {"window": (1,)},
    {"window": (1, -2)},
    {"enable_gqa": True, "mask": np.ones((2, 2), bool)},
    {"empty_rows": "one"},
    {"softmax": True},
]


@pytest.mark.parametrize("wrong", WRONG, ids=repr_id)
def test_errors_are_those_of_the_functions(wrong: dict[str, Any]) -> None:
    layer = DotProductAttention()
    output = layer(X, X, X)
    context: Any = layer.context
    with pytest.raises((TypeError, ValueError)) as expected:
        attnext.dot_product_attention(X, X, X, **wrong)
    with pytest.raises(expected.type) as raised:
        layer(X, X, X, **wrong)
    message = str(expected.value).replace("dot_product_attention()", "__call__()")
    assert str(raised.value) == message
    assert layer.context is context
    layer.backward(output)


def test_what_a_backward_does_not_take() -> None:
    layer = DotProductAttention()
    output: NDArray[np.float32] = layer(X, X, X, bias=X[..., :3])
    for name in ("mask", "bias", "seed", "grad_lse"):
        with pytest.raises(TypeError, match=f"backward.. got an unexpected keyword .*{name}"):
            layer.backward(output, **{name: X})  # type: ignore[arg-type]
