"""The options of a layer's call: what the functions take, and the same bits as they."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import EMPTY_ROWS, assert_same_bits, random_masks, random_modifiers, repr_id
from layered import (
    KINDS,
    call,
    gradients,
    make_layer,
    problem_of,
    run,
    run_functions,
)
from numpy.typing import NDArray

import attnext
from attnext import DotProductAttention

Array = NDArray[Any]


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_as_the_functions(kind: str, rng: np.random.Generator) -> None:
    """Any masks and modifiers together, heads in groups, every rule for empty rows; dropout, which
    evaluation has not."""
    for i in range(48):
        layer = make_layer(kind, dropout=0.3 * (i % 2)).train(i % 8 < 6)
        lead = [(), (2,), (2, 4)][i % 3]
        heads = {"kv_heads": 2} if i % 3 == 2 else {}
        M, N = ((3, 5), (1, 9), (20, 140), (7, 200))[i // 3 % 4]
        problem = problem_of(layer, rng, lead=lead, M=M, N=N, **heads)
        if N == 200:
            del problem.grads["grad_weights"]  # now the backward uses the saved output and lse
        problem = problem.but(**random_masks(rng, lead, M, N), empty_rows=EMPTY_ROWS[i % 3])
        problem = problem.but(**random_modifiers(problem.score, rng, lead, M))
        got = run(layer, problem)
        assert layer.context is not None
        assert (layer.context.seed is not None) == (layer.training and layer.dropout > 0)
        if layer.context.seed is not None:
            problem = problem.but(dropout_p=layer.dropout, seed=layer.context.seed)
        assert_same_bits(got, run_functions(problem))


@pytest.mark.parametrize("kind", KINDS)
def test_contexts_know_their_options(kind: str, rng: np.random.Generator) -> None:
    """Backward through several calls, each with options of its own, in any order."""
    layer = make_layer(kind)
    problems = [
        (problem := problem_of(layer, rng, lead=(2, 4), M=6, N=9, kv_heads=2)).but(
            **random_masks(rng, (2, 4), 6, 9),
            **random_modifiers(problem.score, rng, (2, 4), 6),
            empty_rows=EMPTY_ROWS[i % 3],
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


def test_gradients_that_are_asked_for_come_behind_in_order(rng: np.random.Generator) -> None:
    """In the shapes of what they belong to; of a scale that is a number, a number."""
    layer = DotProductAttention()
    problem = problem_of(layer, rng, lead=(2, 4))
    given = {"scale": rng.random((4,)), "bias": rng.random((1, 5)), "sink": rng.random((4, 1))}
    wanted: dict[str, Any] = {f"return_grad_{name}": True for name in given}
    call(layer, problem.but(**given))
    _, _, _, dbias, dsink, dscale = layer.backward(**problem.grads, **wanted)
    assert (dbias.shape, dsink.shape, dscale.shape) == ((1, 5), (4, 1), (4,))
    call(layer, problem)
    _, _, _, dbias, dsink, dscale = layer.backward(**problem.grads, **wanted)
    assert dbias is None and dsink is None and isinstance(dscale, np.float32)


@pytest.mark.parametrize("own", [None, 0.3])
@pytest.mark.parametrize("of_call", [None, 0.7, [0.1, 0.9], np.float64(-2.0), np.array(0.5)])
def test_the_scale_of_a_call(own: float | None, of_call: Any, rng: np.random.Generator) -> None:
    """It takes the place of the object's own, in its call alone."""
    layer = DotProductAttention(scale=own)
    problem = problem_of(layer, rng)
    plain = call(layer, problem)
    x, g = problem.inputs.values(), problem.grads
    output = layer(*x, scale=of_call)
    context, weights = layer.context, layer.attention_weights
    assert layer.scale == own
    np.testing.assert_array_equal(call(layer, problem), plain)
    scale = own if of_call is None else of_call
    expected = attnext.dot_product_attention(*x, scale=scale, return_weights=True, return_lse=True)
    assert_same_bits({"o": output, "w": weights}, {"o": expected[0], "w": expected[1]})
    d = layer.backward(**g, context=context, return_grad_scale=True)
    names = ("queries", "keys", "values", "scale")
    saved = dict(zip(("output", "lse"), expected[::2], strict=True))
    problem = problem.but(scale=scale)
    assert_same_bits(
        {f"d_{name}": np.asarray(part) for name, part in zip(names, d, strict=True)},
        {
            name: np.asarray(part)
            for name, part in problem.backward(**saved, return_grad_scale=True).items()
        },
    )


def test_additive_attention_has_no_scale() -> None:
    layer = attnext.AdditiveAttention(4, 4, 8)
    output = layer(X, X, X)
    memory = layer.memory(X, X)
    for attend in (lambda: layer(X, X, X, scale=1.0), lambda: layer(X, memory, scale=None)):  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"__call__\(\) got an unexpected keyword .*'scale'"):
            attend()
    with pytest.raises(TypeError, match=r"backward\(\) got an unexpected .*'return_grad_scale'"):
        layer.backward(output, return_grad_scale=True)  # type: ignore[call-arg]


def test_a_copy_knows_nothing_of_the_options_of_a_call(rng: np.random.Generator) -> None:
    layer = make_layer("dot")
    problem = problem_of(layer, rng, lead=(2, 4), kv_heads=2)
    saved = pickle.dumps(layer)
    modifiers = {"softcap": 0.5, "sink": np.ones((4, 1)), "scale": np.ones(4)}
    call(layer, problem.but(window=(1, 0), empty_rows="zero", causal_offset=[1, 2], **modifiers))
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
    {"softcap": 0.0},
    {"softcap": np.ones(2)},
    {"sink": True},
    {"sink": np.nan},
    {"sink": np.ones((2, 2))},
    {"sink": "0.5"},
    {"scale": np.inf},
    {"scale": "1"},
    {"scale": [1.0, np.nan]},
    {"scale": np.ones((2, 3))},
    {"scale": [True, False]},
    {"scale": {}},
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


class Meddler:
    """Numbers that do something else while they are read."""

    def __init__(self, numbers: list[float], action: Callable[[], Any]) -> None:
        self.numbers, self.action = np.array(numbers), action

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, i: int) -> float:
        return float(self.numbers[i])

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        self.action()
        return self.numbers


@pytest.mark.parametrize(("name", "numbers"), [("sink", [0.5, 1.5, 1.0]), ("scale", [0.5, 1.5])])
def test_a_call_in_the_middle_of_a_call(
    name: str, numbers: list[float], rng: np.random.Generator
) -> None:
    """The call goes on as the layer was when it began; the last to end is the last call."""
    layer = DotProductAttention(scale=2.0)
    q, k, v = (rng.random((2, 3, 4)) for _ in range(3))
    given: dict[str, Any] = {"scale": 2.0} | {name: numbers}
    expected = attnext.dot_product_attention(q, k, v, **given)
    inner = Meddler(numbers, lambda: layer(k, q, v, softcap=1.0))
    np.testing.assert_array_equal(layer(q, k, v, **{name: inner}), expected)
    layer.backward(np.ones_like(expected))
    outer = layer.context
    again = Meddler(numbers, lambda: layer.__init__(scale=3.0))  # type: ignore[misc]
    np.testing.assert_array_equal(layer(q, k, v, **{name: again}), expected)
    with pytest.raises(ValueError, match="context belongs to another layer"):
        layer.backward(np.ones_like(expected), context=outer)


def test_what_was_given_may_go_bad_before_the_backward(rng: np.random.Generator) -> None:
    """A context refers to sink and scale; numbers that a call refuses its backward refuses."""
    layer = DotProductAttention()
    q = rng.random((2, 3, 4), dtype=np.float32)
    given = {"sink": np.ones((2, 1), np.float32), "scale": np.ones(2, np.float32)}
    for name, array in given.items():
        output = layer(q, q, q, **given)
        array[0] = np.nan
        with pytest.raises(ValueError, match=f"{name} contains nan"):
            layer.backward(output)
        array[0] = 1
        layer.backward(output)
        array.resize((1, 1, 2), refcheck=False)
        with pytest.raises(ValueError, match=f"{name} has shape"):
            layer.backward(output)
        array.resize((2, 1) if name == "sink" else (2,), refcheck=False)


def test_what_a_backward_does_not_take() -> None:
    layer = DotProductAttention()
    output: NDArray[np.float32] = layer(X, X, X, bias=X[..., :3])
    for name in ("mask", "bias", "softcap", "sink", "scale", "seed", "grad_lse"):
        with pytest.raises(TypeError, match=f"backward.. got an unexpected keyword .*{name}"):
            layer.backward(output, **{name: X})  # type: ignore[arg-type]
