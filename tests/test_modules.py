"""AdditiveAttention and DotProductAttention: what they compute, keep, exchange and refuse.

That they compute the same as the functions is tested bit for bit; the functions have their own
tests against the reference. How the objects live, die and are copied: test_modules_life.py.
"""

from __future__ import annotations

import collections
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import d2l_layers
import numpy as np
import pytest
import torch
from helpers import (
    Problem,
    assert_all_accurate,
    assert_same_bits,
    repr_id,
)
from layered import KINDS, SIZES, TAKEN, Layer, call, make_layer, problem_of, run
from numpy.typing import DTypeLike, NDArray
from wrong_calls import Call, Wrong, each, raised_by

import attnext
from attnext import AdditiveAttention, DotProductAttention, _options, reference

Array = NDArray[Any]


# ---- what they compute ---------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [AdditiveAttention(2, 20, 8, 0.1), DotProductAttention(0.5)])
def test_toy_example_of_the_book(layer: Layer, rng: np.random.Generator) -> None:
    queries = rng.normal(size=(2, 1, 20 if isinstance(layer, AdditiveAttention) else 2))
    keys = np.ones((2, 10, 2))
    values = np.arange(40).reshape(1, 10, 4).repeat(2, axis=0)
    output = layer.eval()(queries, keys, values, [2, 6])
    golden = [[[2, 3, 4, 5]], [[10, 11, 12, 13]]]
    np.testing.assert_allclose(output, golden, rtol=1e-6)
    weights = np.zeros((2, 1, 10))
    weights[0, 0, :2], weights[1, 0, :6] = 1 / 2, 1 / 6
    assert layer.attention_weights is not None
    np.testing.assert_allclose(layer.attention_weights, weights, rtol=1e-6)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_against_the_reference(kind: str, dropout: float, rng: np.random.Generator) -> None:
    layer = make_layer(kind, dropout, rng=5)
    problem = problem_of(layer, rng, lead=(3,), M=6, N=20).but(valid_lens=[0, 7, 99])
    if dropout > 0:
        twin = np.random.default_rng(5)
        twin.random(sum(p.size for p in layer.parameters().values()))
        problem = problem.but(dropout_p=dropout, seed=int(seed_of(twin)))
    exact = problem.run(reference)
    del exact["lse"]
    assert_all_accurate(run(layer, problem), exact, problem)


@pytest.mark.parametrize("kind", KINDS)
def test_lists_and_tensors(kind: str, rng: np.random.Generator) -> None:
    layer = make_layer(kind)
    problem = problem_of(layer, rng, M=2, N=3).but(valid_lens=np.array([1, 3]))
    expected = run(layer, problem)
    for convert in (np.ndarray.tolist, torch.from_numpy):
        x = {name: convert(array) for name, array in problem.inputs.items()}
        g = {name: convert(array) for name, array in problem.grads.items()}
        options = problem.options | {"valid_lens": convert(problem.options["valid_lens"])}
        assert_same_bits(run(layer, Problem(problem.score, x, options, g)), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_no_keys(kind: str, rng: np.random.Generator) -> None:
    layer = make_layer(kind)
    got = run(layer, problem_of(layer, rng, N=0))
    assert got["weights"].shape == (2, 3, 0)
    assert got["output"].shape == (2, 3, 3)
    assert all(not x.any() for x in got.values())


# ---- mask and causal -----------------------------------------------------------------------------


def test_a_context_refers_to_its_mask(rng: np.random.Generator) -> None:
    """Once, without a copy, and no longer than it lives."""
    layer = make_layer("dot")
    problem = problem_of(layer, rng, M=6, N=9)
    mask = np.ones((6, 9), dtype=bool)
    before = sys.getrefcount(mask)
    call(layer, problem, mask=mask)
    assert sys.getrefcount(mask) == before + 1
    with pytest.raises(ValueError):
        call(layer, problem, mask=mask[:5])
    assert sys.getrefcount(mask) == before + 1
    call(layer, problem)
    assert sys.getrefcount(mask) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_mask_leaves_the_last_call_alone(kind: str, rng: np.random.Generator) -> None:
    layer = make_layer(kind, dropout=0.5)
    problem = problem_of(layer, rng)
    call(layer, problem)
    context, weights = layer.context, layer.attention_weights
    for mask in (np.ones((3, 5)), np.ones((2, 5), dtype=bool)):
        with pytest.raises((TypeError, ValueError), match="^mask has "):
            call(layer, problem, mask=mask)
    assert layer.context is context
    assert layer.attention_weights is weights


# ---- beside torch --------------------------------------------------------------------------------


def run_torch(problem: Problem, dtype: DTypeLike) -> dict[str, Array]:
    """What PyTorch's autograd makes of an additive problem."""
    x = {name: torch.from_numpy(np.array(a, dtype=dtype)) for name, a in problem.inputs.items()}
    g = {name: torch.from_numpy(np.array(a, dtype=dtype)) for name, a in problem.grads.items()}
    b_h = problem.options.get("b_h")
    module = d2l_layers.AdditiveAttention(**SIZES, dropout=0, bias=b_h is not None)
    module.to(x["queries"].dtype)
    state = {"W_q.weight": x["W_q"], "W_k.weight": x["W_k"], "w_v.weight": x["w_v"][None]}
    module.load_state_dict(state | ({} if b_h is None else {"b_h": torch.from_numpy(b_h)}))
    leaves = [x[name].requires_grad_() for name in ("queries", "keys", "values")]
    output = module(*leaves, torch.from_numpy(problem.options["valid_lens"]))
    weights = module.attention_weights
    torch.autograd.backward([output, weights], [g["grad_output"], g["grad_weights"]])
    result = {"output": output, "weights": weights}
    result |= {f"d_{name}": x[name].grad for name in ("queries", "keys", "values")}
    for name, parameter in module.named_parameters():
        gradient = parameter.grad[0] if name == "w_v.weight" else parameter.grad
        result[f"d_{name.removesuffix('.weight')}"] = gradient
    return {name: tensor.detach().numpy() for name, tensor in result.items()}


@pytest.mark.parametrize("bias", [False, True])
def test_against_torch(bias: bool, rng: np.random.Generator) -> None:
    """Values and gradients of a PyTorch module whose state dict was loaded."""
    layer = AdditiveAttention(**SIZES, bias=bias)
    layer.load_state_dict(d2l_layers.AdditiveAttention(**SIZES, dropout=0, bias=bias).state_dict())
    problem = problem_of(layer, rng, M=6, N=20).but(valid_lens=np.array([4, 17]))
    exact = run_torch(problem, np.float64)
    assert_all_accurate(run(layer, problem), exact, problem, run_torch)


@pytest.mark.parametrize("bias", [False, True])
def test_state_dict_there_and_back(bias: bool) -> None:
    layer, other = (AdditiveAttention(**SIZES, bias=bias, rng=seed) for seed in (1, 2))
    module = d2l_layers.AdditiveAttention(**SIZES, dropout=0, bias=bias)
    module.load_state_dict({name: torch.from_numpy(x) for name, x in layer.state_dict().items()})
    other.load_state_dict(module.state_dict())
    assert_same_bits(other.state_dict(), layer.state_dict())


# ---- construction --------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_initial_parameters(bias: bool) -> None:
    layer = AdditiveAttention(key_size=2, query_size=20, num_hiddens=8, bias=bias, rng=7)
    draw = np.random.default_rng(7).uniform
    bounds = {"W_q": 20, "W_k": 2, "w_v": 8, "b_h": 20}
    shapes: dict[str, tuple[int, ...]] = {"W_q": (8, 20), "W_k": (8, 2), "w_v": (8,), "b_h": (8,)}
    if not bias:
        del shapes["b_h"]
    expected = {
        name: draw(-(bounds[name] ** -0.5), bounds[name] ** -0.5, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    assert_same_bits(layer.parameters(), expected)
    assert list(layer.grads) == list(expected)
    assert all(not grad.any() for grad in layer.grads.values())


def test_initial_parameters_of_no_features() -> None:
    layer = AdditiveAttention(0, 0, 3, bias=True)
    assert layer.W_q.shape == layer.W_k.shape == (3, 0)
    np.testing.assert_array_equal(layer.b_h, [0, 0, 0])  # as torch.nn.Linear(0, 3).bias
    output = layer(np.ones((1, 0)), np.ones((2, 0)), [[1], [2]])
    np.testing.assert_allclose(output, [[1.5]], rtol=1e-6)


@pytest.mark.parametrize(
    "rng", [7, [1, 2], np.random.SeedSequence(3), np.random.PCG64(4), np.int64(5)], ids=repr_id
)
def test_anything_default_rng_takes(rng: Any) -> None:
    a = AdditiveAttention(**SIZES, rng=rng)
    if not isinstance(rng, np.random.PCG64):  # that one goes on where it was
        assert_same_bits(a.parameters(), AdditiveAttention(**SIZES, rng=rng).parameters())


def test_without_a_seed_every_object_is_different() -> None:
    a, b = AdditiveAttention(**SIZES), AdditiveAttention(**SIZES)
    assert not np.array_equal(a.W_q, b.W_q)


def test_a_generator_is_used_not_copied() -> None:
    shared, alone = np.random.default_rng(1), np.random.default_rng(1)
    AdditiveAttention(2, 3, 4, rng=shared)
    alone.random(3 * 4 + 2 * 4 + 4)
    assert shared.random() == alone.random()


def test_repr() -> None:
    class Mine(AdditiveAttention):
        pass

    text = "AdditiveAttention(key_size=2, query_size=20, num_hiddens=8, dropout=0.1, bias=False)"
    assert repr(AdditiveAttention(2, 20, 8, 0.1)) == text
    text = "Mine(key_size=2, query_size=20, num_hiddens=8, dropout=0.0, bias=True)"
    assert repr(Mine(2, 20, 8, bias=True)) == text
    assert repr(DotProductAttention()) == "DotProductAttention(dropout=0.0)"
    assert repr(DotProductAttention(0.5, scale=1)) == "DotProductAttention(dropout=0.5, scale=1.0)"


def test_attributes_as_given() -> None:
    a = AdditiveAttention(2, 20, 8, 0.1)
    assert (a.key_size, a.query_size, a.num_hiddens, a.dropout) == (2, 20, 8, 0.1)
    d = DotProductAttention(0.5, scale=0.1)
    assert (d.dropout, d.scale, DotProductAttention().scale) == (0.5, 0.1, None)
    for layer, name in [(a, "key_size"), (a, "dropout"), (a, "training"), (a, "grads")]:
        with pytest.raises(AttributeError):
            setattr(layer, name, 1)


def test_signatures() -> None:
    signature = inspect.signature
    assert str(signature(AdditiveAttention)) == (
        "(key_size, query_size, num_hiddens, dropout=0.0, *, bias=False, rng=None)"
    )
    assert str(signature(DotProductAttention)) == "(dropout=0.0, *, scale=None, rng=None)"
    shared = ", ".join(
        f"{name}={option.default!r}" for name, option in _options.OPTIONS.items() if name in TAKEN
    )
    asked = "return_grad_bias=False, return_grad_sink=False, "
    for layer in (a := AdditiveAttention(2, 20, 8), DotProductAttention()):
        own, grad = ("", "") if layer is a else ("scale=None, ", "return_grad_scale=False, ")
        text = f"(queries, keys, values=None, valid_lens=None, *, {own}{shared}, need_weights=True)"
        assert str(signature(layer)) == text
        text = f"(grad_output, *, grad_weights=None, {asked}{grad}context=None)"
        assert str(signature(layer.backward)) == text
        assert str(signature(layer.train)) == "(mode=True)"


# ---- training and dropout ------------------------------------------------------------------------


def seed_of(rng: np.random.Generator) -> Any:
    return rng.integers(0, 2**64, dtype=np.uint64)


@pytest.mark.parametrize("kind", KINDS)
def test_train_and_eval(kind: str) -> None:
    layer = make_layer(kind)
    assert layer.training
    assert layer.eval() is layer
    assert not layer.training
    assert layer.train() is layer
    assert layer.training
    assert not layer.train(False).training
    assert layer.train(mode=True).training


def test_each_training_call_has_a_fresh_seed_from_the_generator(rng: np.random.Generator) -> None:
    twin = np.random.default_rng(11)
    layer = DotProductAttention(0.5, rng=11)
    problem = problem_of(layer, rng, M=8, N=16)
    for _ in range(3):
        output = call(layer, problem)
        assert layer.context is not None
        assert layer.context.seed == seed_of(twin)
        assert layer.context.dropout_p == 0.5
        expected = problem.but(dropout_p=0.5, seed=layer.context.seed).forward()
        np.testing.assert_array_equal(output, expected)


def test_no_seed_is_drawn_without_dropout(rng: np.random.Generator) -> None:
    shared, twin = np.random.default_rng(11), np.random.default_rng(11)
    for layer in (DotProductAttention(0.5, rng=shared).eval(), DotProductAttention(rng=shared)):
        call(layer, problem_of(layer, rng))
        assert layer.context is not None
        assert layer.context.seed is None
        assert layer.context.dropout_p == 0
    assert shared.random() == twin.random()


def test_weights_are_those_before_dropout(rng: np.random.Generator) -> None:
    layer = DotProductAttention(0.9)
    problem = problem_of(layer, rng, M=8, N=16)
    dropped = call(layer, problem)
    weights = layer.attention_weights
    output = call(layer.eval(), problem)
    np.testing.assert_array_equal(weights, layer.attention_weights)
    assert not np.array_equal(dropped, output)


def test_backward_uses_the_dropout_of_its_call(rng: np.random.Generator) -> None:
    """Also when the object was switched to evaluation, or called again, in between."""
    layer = DotProductAttention(0.5, rng=3)
    problem = problem_of(layer, rng)
    call(layer, problem)
    context = layer.context
    assert context is not None
    expected = layer.backward(**problem.grads)
    call(layer, problem)
    layer.eval()
    again = layer.backward(**problem.grads, context=context)
    for a, b in zip(again, expected, strict=True):
        np.testing.assert_array_equal(a, b)


class Broken(np.random.Generator):
    """A generator whose seeds are whatever `seed` says."""

    seed: Any = 0

    def integers(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.seed, Exception):
            raise self.seed
        return self.seed


@pytest.mark.parametrize(
    ("seed", "error"),
    [
        (2**64, ValueError),
        (-1, ValueError),
        (0.5, TypeError),
        (None, TypeError),
        (KeyError("x"), KeyError),
    ],
    ids=repr,
)
def test_a_broken_generator(seed: Any, error: type[Exception], rng: np.random.Generator) -> None:
    generator = Broken(np.random.PCG64(0))
    generator.seed = seed
    layer = DotProductAttention(0.5, rng=generator)
    with pytest.raises(error):
        call(layer, problem_of(layer, rng))
    assert layer.context is None


# ---- attention weights ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_attention_weights_of_the_last_call(kind: str, rng: np.random.Generator) -> None:
    layer = make_layer(kind)
    problem = problem_of(layer, rng)
    assert layer.attention_weights is None
    output = call(layer, problem)
    weights = layer.attention_weights
    assert weights is not None
    assert weights is layer.attention_weights
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
    np.testing.assert_array_equal(call(layer, problem, need_weights=False), output)
    assert layer.attention_weights is None
    gradients = layer.backward(**problem.grads)
    call(layer, problem)
    for a, b in zip(layer.backward(**problem.grads), gradients, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_call_leaves_the_last_one_in_place(kind: str, rng: np.random.Generator) -> None:
    layer = make_layer(kind)
    problem = problem_of(layer, rng)
    call(layer, problem)
    context, weights = layer.context, layer.attention_weights
    with pytest.raises(ValueError, match="valid_lens"):
        call(layer, problem.but(valid_lens=-1))
    assert layer.context is context
    assert layer.attention_weights is weights


# ---- contexts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_backward_through_several_calls(kind: str, rng: np.random.Generator) -> None:
    """The time steps of a decoder: one query at a time, the gradients in reverse order."""
    layer = make_layer(kind)
    problem = problem_of(layer, rng, M=4)
    x, g = problem.inputs, problem.grads
    contexts = []
    for t in range(4):
        layer(x["queries"][:, t : t + 1], x["keys"], x["values"])
        contexts.append(layer.context)
    dk, dv = np.zeros_like(x["keys"]), np.zeros_like(x["values"])
    dq = np.zeros_like(x["queries"])
    for t in reversed(range(4)):
        step = {name: grad[:, t : t + 1] for name, grad in g.items()}
        dq[:, t : t + 1], step_dk, step_dv = layer.backward(**step, context=contexts[t])
        dk += step_dk
        dv += step_dv
    got = {"d_queries": dq, "d_keys": dk, "d_values": dv}
    got |= {f"d_{name}": grad for name, grad in layer.grads.items()}
    assert_all_accurate(got, problem.backward(reference), problem)


@pytest.mark.parametrize("kind", ["additive", "additive with bias"])
def test_a_second_backward_adds_again(kind: str, rng: np.random.Generator) -> None:
    layer = make_layer(kind)
    problem = problem_of(layer, rng)
    call(layer, problem)
    first = layer.backward(**problem.grads)
    once = {name: grad.copy() for name, grad in layer.grads.items()}
    second = layer.backward(**problem.grads)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    for name, grad in layer.grads.items():
        np.testing.assert_array_equal(grad, 2 * once[name])


def test_writing_into_the_output_does_not_change_the_gradients(rng: np.random.Generator) -> None:
    layer = DotProductAttention()
    problem = problem_of(layer, rng, N=200)
    del problem.grads["grad_weights"]  # without it and with many keys the output is of use
    output = call(layer, problem)
    expected = layer.backward(**problem.grads)
    output.fill(np.nan)
    for a, b in zip(layer.backward(**problem.grads), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_backward_before_a_forward() -> None:
    for kind in KINDS:
        with pytest.raises(
            RuntimeError, match=r"^backward\(\) needs a forward pass: call the layer first"
        ):
            make_layer(kind).backward([[1.0]])


def test_a_context_of_another_object(rng: np.random.Generator) -> None:
    layer, other = DotProductAttention(), DotProductAttention()
    problem = problem_of(layer, rng)
    call(other, problem)
    text = "^context belongs to another layer, expected the attribute context of this layer$"
    with pytest.raises(ValueError, match=text):
        layer.backward(**problem.grads, context=other.context)


@pytest.mark.parametrize("context", [0, "x", {}, DotProductAttention(), object()], ids=repr_id)
def test_a_context_of_another_type(context: Any, rng: np.random.Generator) -> None:
    layer = DotProductAttention()
    problem = problem_of(layer, rng)
    call(layer, problem)
    with pytest.raises(TypeError, match=r"^context must be a Context \(an attribute of the layer"):
        layer.backward(**problem.grads, context=context)


def test_repr_of_a_context(rng: np.random.Generator) -> None:
    layer = DotProductAttention()
    assert layer.context is None
    call(layer, problem_of(layer, rng))
    text = "<Context: queries (2, 3, 4), keys (2, 5, 4), values (2, 5, 3)>"
    assert repr(layer.context) == text


def test_a_context_comes_from_a_forward_only() -> None:
    with pytest.raises(TypeError, match="cannot create"):
        attnext._core.Context()


# ---- parameters ----------------------------------------------------------------------------------


def test_parameters_are_live(rng: np.random.Generator) -> None:
    layer = make_layer("additive with bias")
    parameters = layer.parameters()
    assert list(parameters) == ["W_q", "W_k", "w_v", "b_h"]
    assert {name: p.shape for name, p in parameters.items()} == {
        "W_q": (6, 4),
        "W_k": (6, 5),
        "w_v": (6,),
        "b_h": (6,),
    }
    problem = problem_of(layer, rng)
    for name, p in parameters.items():
        assert p is getattr(layer, name)
        p += 0.5
    copies = {name: p.copy() for name, p in parameters.items()}
    b_h = copies.pop("b_h")
    expected = Problem("additive", problem.inputs | copies, {"b_h": b_h}).forward()
    np.testing.assert_array_equal(call(layer, problem), expected)
    assert DotProductAttention().parameters() == {}


def test_gradient_descent_lowers_a_loss(rng: np.random.Generator) -> None:
    layer = make_layer("additive with bias")
    problem = problem_of(layer, rng, M=1, N=8)
    target = problem.inputs["values"][:, :1]
    losses = []
    for _ in range(200):
        error = call(layer, problem)
        error -= target
        losses.append(float((error**2).sum()))
        layer.zero_grad()
        layer.backward(2 * error)
        for name, p in layer.parameters().items():
            p -= 0.1 * layer.grads[name]
    assert losses[-1] < losses[0] / 20


@pytest.mark.parametrize("name", ["W_q", "W_k", "w_v", "b_h"])
def test_setting_a_parameter_copies_into_the_live_array(name: str) -> None:
    layer = make_layer("additive with bias")
    live = getattr(layer, name)
    for dtype in (np.float32, np.float64, np.int8, ">f4"):
        new = np.arange(live.size).reshape(live.shape).astype(dtype)
        for given in (new, np.asfortranarray(new), new.tolist()):
            live.fill(-1)
            setattr(layer, name, given)
            assert getattr(layer, name) is live
            np.testing.assert_array_equal(live, new)
    assert not np.shares_memory(live, new)
    setattr(layer, name, live[::-1])  # an overlapping view of itself
    np.testing.assert_array_equal(live, new[::-1])
    setattr(layer, name, torch.from_numpy(new.astype(np.float64)))
    np.testing.assert_array_equal(live, new)


def test_setting_a_parameter_in_place() -> None:
    layer = make_layer("additive")
    live, before = layer.W_q, layer.W_q.copy()
    layer.W_q -= 1
    assert layer.W_q is live
    np.testing.assert_array_equal(live, before - 1)


def test_w_v_may_be_set_as_a_row() -> None:
    layer = make_layer("additive")
    layer.w_v = np.arange(6).reshape(1, 6)
    np.testing.assert_array_equal(layer.w_v, np.arange(6))


def test_b_h_without_a_bias() -> None:
    layer = make_layer("additive")
    assert layer.b_h is None
    text = "^b_h cannot be set: the layer was created with bias=False$"
    for value in (np.zeros(6), None):
        with pytest.raises(AttributeError, match=text):
            layer.b_h = value
    assert "b_h" not in layer.parameters() | layer.grads | layer.state_dict()


@pytest.mark.parametrize("name", ["W_q", "W_k", "w_v", "b_h"])
def test_parameters_cannot_be_deleted(name: str) -> None:
    layer = make_layer("additive with bias")
    with pytest.raises(AttributeError, match=f"^{name} cannot be deleted$"):
        delattr(layer, name)
    assert getattr(layer, name) is not None


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("W_q", np.zeros((4, 6)), ValueError, r"W_q has shape \(4, 6\), expected \(6, 4\)"),
        ("W_k", np.zeros(6), ValueError, r"W_k has shape \(6,\), expected \(6, 5\)"),
        ("w_v", np.zeros(5), ValueError, r"w_v has shape \(5,\), expected \(6,\) or \(1, 6\)"),
        ("b_h", np.zeros((1, 6)), ValueError, r"b_h has shape \(1, 6\), expected \(6,\)"),
        ("W_q", 1.0, ValueError, r"W_q has shape \(\), expected \(6, 4\)"),
        ("W_q", "x", TypeError, "W_q has dtype <U1, expected real numbers"),
        ("W_q", None, TypeError, "W_q is None, expected real numbers"),
        ("W_q", np.zeros((6, 4), complex), TypeError, "W_q has dtype complex128"),
        ("W_q", np.zeros((6, 4), bool), TypeError, "W_q has dtype bool"),
        ("W_q", np.ma.masked_array(np.zeros((6, 4))), TypeError, "W_q is a numpy.ma.MaskedArray"),
        ("W_q", torch.zeros(6, 4, requires_grad=True), TypeError, "requires grad"),
    ],
)
def test_setting_a_parameter_to_what_it_cannot_be(
    name: str, value: Any, error: type[Exception], text: str
) -> None:
    layer = make_layer("additive with bias")
    before = layer.state_dict()
    with pytest.raises(error, match=text):
        setattr(layer, name, value)
    assert_same_bits(layer.state_dict(), before)


# ---- live arrays in the hands of users -----------------------------------------------------------

SPOILED: list[tuple[Callable[[Array], Any], type[Exception], str]] = [
    (lambda p: setattr(p, "shape", p.shape[::-1]), ValueError, r"W_q has shape \(4, 6\)"),
    (lambda p: setattr(p, "shape", (24,)), ValueError, r"has shape \(24,\), expected \(6, 4\)"),
    (lambda p: setattr(p, "dtype", np.int32), TypeError, "has dtype int32, expected float32"),
    (lambda p: setattr(p, "dtype", ">f4"), TypeError, "has dtype >f4, expected float32"),
    (
        lambda p: setattr(p, "strides", (4, 24)),
        ValueError,
        "is not C-contiguous, expected the strides",
    ),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("spoil", "error", "text"), SPOILED)
def test_a_live_array_that_is_not_what_it_was(
    spoil: Callable[[Array], Any], error: type[Exception], text: str, rng: np.random.Generator
) -> None:
    layer = make_layer("additive")
    problem = problem_of(layer, rng)
    call(layer, problem)
    state = layer.state_dict()
    spoil(layer.W_q)
    actions: list[Callable[[], Any]] = [
        lambda: call(layer, problem),
        lambda: layer.backward(**problem.grads),
        lambda: setattr(layer, "W_q", state["W_q.weight"]),
        lambda: layer.load_state_dict(state),
        layer.state_dict,
        layer.__reduce__,
    ]
    for action in actions:
        with pytest.raises(error, match=text):
            action()
    assert not layer.grads["W_q"].any()


def test_a_live_array_cannot_be_resized() -> None:
    layer = make_layer("additive")
    for check in (True, False):
        with pytest.raises(ValueError, match="cannot resize this array"):
            layer.W_q.resize((60, 40), refcheck=check)
    assert layer.W_q.shape == (6, 4)


def test_a_read_only_live_array_can_be_used_but_not_set(rng: np.random.Generator) -> None:
    layer = make_layer("additive")
    problem = problem_of(layer, rng)
    expected, state = run(layer, problem), layer.state_dict()
    layer.W_k.flags.writeable = False
    assert_same_bits(run(layer, problem), expected)
    changed = {name: x + 1 for name, x in state.items()}
    for action in (
        lambda: setattr(layer, "W_k", changed["W_k.weight"]),
        lambda: layer.load_state_dict(changed),
    ):
        with pytest.raises(ValueError, match=r"^W_k is read-only, expected a writable array: set "):
            action()
    assert_same_bits(layer.state_dict(), state)  # W_q comes first, and was not changed either
    layer.W_k.flags.writeable = True
    layer.load_state_dict(changed)
    assert_same_bits(layer.state_dict(), changed)


# ---- gradients -----------------------------------------------------------------------------------


def test_zero_grad_keeps_the_arrays() -> None:
    layer = make_layer("additive with bias")
    grads = layer.grads
    before = dict(grads)
    for grad in grads.values():
        grad += 1
    assert layer.zero_grad() is None
    assert layer.grads is grads
    for name, grad in before.items():
        assert grads[name] is grad
        assert not grad.any()


def test_backward_adds_in_place(rng: np.random.Generator) -> None:
    layer = make_layer("additive")
    problem = problem_of(layer, rng)
    call(layer, problem)
    layer.backward(**problem.grads)
    before = dict(layer.grads)
    once = {name: grad.copy() for name, grad in before.items()}
    layer.grads["W_q"] *= 0.5  # as gradient clipping does
    layer.backward(**problem.grads)
    for name, grad in layer.grads.items():
        assert grad is before[name]
    np.testing.assert_array_equal(layer.grads["W_q"], np.float32(0.5) * once["W_q"] + once["W_q"])


def replacements(grad: Array) -> Iterator[tuple[Any, Array]]:
    """What a user may put in the place of a gradient, and what it stands for."""
    ones = np.ones_like(grad)
    read_only = ones.copy()
    read_only.flags.writeable = False
    yield None, 0 * grad
    yield ones.astype(np.float64), ones
    yield np.asfortranarray(ones), ones
    yield ones.tolist(), ones
    yield read_only, ones
    yield ones[::-1], ones


def test_gradients_replaced_by_the_user(rng: np.random.Generator) -> None:
    layer = make_layer("additive")
    problem = problem_of(layer, rng)
    call(layer, problem)
    layer.backward(**problem.grads)
    once = layer.grads["W_q"].copy()
    for given, start in replacements(once):
        layer.grads["W_q"] = given
        layer.backward(**problem.grads)
        np.testing.assert_array_equal(layer.grads["W_q"], start + once)
        layer.grads["W_q"] = given
        layer.zero_grad()
        np.testing.assert_array_equal(layer.grads["W_q"], 0 * once)
    del layer.grads["W_q"]
    layer.backward(**problem.grads)
    np.testing.assert_array_equal(layer.grads["W_q"], once)
    layer.grads.clear()
    layer.zero_grad()
    assert list(layer.grads) == ["W_q", "W_k", "w_v"]


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (np.zeros(3), ValueError, r"^grads\['w_v'\] has shape \(3,\), expected \(6,\)$"),
        ("x", TypeError, r"^grads\['w_v'\] has dtype <U1"),
        (object(), TypeError, r"^grads\['w_v'\] is of type object"),
        (np.zeros(6, complex), TypeError, r"^grads\['w_v'\] has dtype complex128"),
    ],
)
def test_gradients_that_cannot_be_added_to(
    value: Any, error: type[Exception], text: str, rng: np.random.Generator
) -> None:
    layer = make_layer("additive")
    problem = problem_of(layer, rng)
    call(layer, problem)
    layer.grads["w_v"] = value
    with pytest.raises(error, match=text):
        layer.backward(**problem.grads)
    assert not layer.grads["W_q"].any()  # nothing was added to those before it either
    layer.zero_grad()
    np.testing.assert_array_equal(layer.grads["w_v"], np.zeros(6))


# ---- state dict ----------------------------------------------------------------------------------


def test_state_dict_has_torchs_names_and_shapes_and_copies() -> None:
    layer = make_layer("additive with bias")
    state = layer.state_dict()
    assert {name: x.shape for name, x in state.items()} == {
        "W_q.weight": (6, 4),
        "W_k.weight": (6, 5),
        "w_v.weight": (1, 6),
        "b_h": (6,),
    }
    live = [layer.W_q, layer.W_k, layer.w_v, layer.b_h]
    for copy, array in zip(state.values(), live, strict=True):
        assert copy.dtype == np.float32
        assert copy.flags.owndata
        assert copy.flags.writeable
        np.testing.assert_array_equal(copy.reshape(array.shape), array)
    assert DotProductAttention().state_dict() == {}
    DotProductAttention().load_state_dict({})


@pytest.mark.parametrize(
    "wrap",
    [
        dict,
        collections.OrderedDict,
        collections.UserDict,
        types.MappingProxyType,
        lambda state: {name: torch.from_numpy(x) for name, x in state.items()},
        lambda state: {name: x.astype(np.float64) for name, x in state.items()},
        lambda state: {name: x.tolist() for name, x in state.items()},
    ],
)
def test_load_state_dict_of_every_kind(wrap: Callable[[dict[str, Array]], Any]) -> None:
    a, b = make_layer("additive with bias", rng=1), make_layer("additive with bias", rng=2)
    live = a.parameters()
    assert a.load_state_dict(wrap(b.state_dict())) is None
    assert_same_bits(a.parameters(), b.parameters())
    assert all(p is live[name] for name, p in a.parameters().items())


def test_load_state_dict_from_its_own_live_arrays() -> None:
    """W_q and W_k trade places: each is read before either is written."""
    layer = AdditiveAttention(4, 4, 6)
    W_q, W_k = layer.W_q.copy(), layer.W_k.copy()
    state = {"W_q.weight": layer.W_k, "W_k.weight": layer.W_q, "w_v.weight": layer.w_v[None]}
    layer.load_state_dict(state)
    np.testing.assert_array_equal(layer.W_q, W_k)
    np.testing.assert_array_equal(layer.W_k, W_q)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (
            {"W_q.weight": ..., "x": 1},
            KeyError,
            "wrong names: missing ['W_q.weight'], unexpected ['x']",
        ),
        ({"w_v.weight": ..., "b_h": ...}, KeyError, "missing ['w_v.weight', 'b_h'], unexpected []"),
        ({"W_q": 1, 3: 1}, KeyError, "missing [], unexpected ['W_q', 3]"),
        (
            {"w_v.weight": np.zeros(6)},
            ValueError,
            "state_dict['w_v.weight'] has shape (6,), expected (1, 6)",
        ),
        (
            {"b_h": np.zeros(5)},
            ValueError,
            "state_dict['b_h'] has shape (5,), expected (6,)",
        ),
        ({"b_h": None}, TypeError, "state_dict['b_h'] is None, expected real numbers"),
        (
            {"b_h": torch.zeros(6, requires_grad=True)},
            TypeError,
            "state_dict['b_h'] is a tensor that requires grad",
        ),
    ],
)
def test_load_state_dict_is_strict_and_all_or_nothing(
    change: dict[Any, Any], error: type[Exception], text: str
) -> None:
    layer = make_layer("additive with bias")
    before = layer.state_dict()
    state: dict[Any, Any] = {name: x + 1 for name, x in before.items()} | change
    state = {name: x for name, x in state.items() if x is not ...}
    with pytest.raises(error) as raised:
        layer.load_state_dict(state)
    assert text in raised.value.args[0]
    assert_same_bits(layer.state_dict(), before)


@pytest.mark.parametrize("state", [None, 1, [("b_h", 1)], "W_q.weight"], ids=repr)
def test_load_state_dict_of_no_mapping(state: Any) -> None:
    text = "^state_dict must be a mapping of names to arrays, got"
    with pytest.raises(TypeError, match=text):
        make_layer("additive").load_state_dict(state)


# ---- messages ------------------------------------------------------------------------------------

X = np.zeros((2, 3, 4))
CYCLE: list[Any] = []
CYCLE.append(CYCLE)  # NumPy alone ends the process

MESSAGES: list[Wrong] = [
    (lambda: AdditiveAttention(2, 3), TypeError,
     "AdditiveAttention() missing required argument 'num_hiddens' (position 3)"),
    (lambda: AdditiveAttention(2, 3, 4, drop_out=0.1), TypeError,
     "AdditiveAttention() got an unexpected keyword argument 'drop_out': did you mean dropout?"),
    (lambda: AdditiveAttention(2, 3, 4, query_size=3), TypeError,
     "AdditiveAttention() got multiple values for argument 'query_size'"),
    (lambda: AdditiveAttention(2.0, 3, 4), TypeError, "key_size must be an int, got float"),
    (lambda: AdditiveAttention(2, True, 4), TypeError, "query_size must be an int, got bool"),
    (lambda: AdditiveAttention(2, 3, "4"), TypeError, "num_hiddens must be an int, got str"),
    (lambda: AdditiveAttention(-1, 3, 4), ValueError, "key_size is -1, expected key_size >= 0"),
    (lambda: AdditiveAttention(2, 3, 0), ValueError, "num_hiddens is 0, expected num_hiddens >= 1"),
    (lambda: AdditiveAttention(2, -(10**30), 4), ValueError,
     f"query_size is {-(10**30)}, expected query_size >= 0"),
    (lambda: AdditiveAttention(2, 3, 10**30), ValueError,
     f"key_size is 2, query_size is 3 and num_hiddens is {10**30}, expected sizes whose products "
     "do not overflow"),
    (lambda: AdditiveAttention(2**62, 3, 8), ValueError,
     f"key_size is {2**62}, query_size is 3 and num_hiddens is 8, expected sizes whose products "
     "do not overflow"),
    (lambda: DotProductAttention(1), ValueError, "dropout is 1.0, expected 0 <= dropout < 1"),
    (lambda: AdditiveAttention(2, 3, 4, -0.1), ValueError,
     "dropout is -0.1, expected 0 <= dropout < 1"),
    (lambda: DotProductAttention(math.nan), ValueError,
     "dropout is nan, expected 0 <= dropout < 1"),
    (lambda: DotProductAttention(scale=math.inf), ValueError,
     "scale is inf, expected a finite float32 number"),
    (lambda: DotProductAttention(scale=1e39), ValueError,
     "scale is 1e+39, expected a finite float32 number"),
    (lambda: DotProductAttention(rng="x"), TypeError,
     "rng is refused by numpy.random.default_rng: "
     "SeedSequence expects int or sequence of ints for entropy not x"),
    (lambda: DotProductAttention(rng=-1), ValueError,
     "rng is refused by numpy.random.default_rng: expected non-negative integer"),
    (lambda: DotProductAttention(rng=range(2**40)), ValueError,
     "rng is refused by numpy.random.default_rng: the seed has 1099511627776 numbers, "
     "expected at most 1048576"),
    (lambda: DotProductAttention(rng=np.broadcast_to(3, (2**20, 2))), ValueError,
     "rng is refused by numpy.random.default_rng: the seed has 2097152 numbers, expected at most "
     "1048576"),
    (lambda: DotProductAttention(rng=CYCLE), ValueError,
     "rng is nested without end, expected a sequence of ints"),
    (lambda: DotProductAttention(0.0, 1.0), TypeError,
     "DotProductAttention() takes at most 1 positional argument, got 2"),
    (lambda: DotProductAttention()(X, X), TypeError,
     "__call__() missing required argument 'values' (position 3)"),
    (lambda: DotProductAttention()(X, X, X, None, True), TypeError,
     "__call__() takes at most 4 positional arguments, got 5"),
    (lambda: DotProductAttention()(X, X, X, seed=1), TypeError,
     "__call__() got an unexpected keyword argument 'seed'"),
    (lambda: DotProductAttention()(X, X, X, mask=np.ones((3, 3))), TypeError,
     "mask has dtype float64, expected bools: to add floats to the scores, use the "
     "argument bias; all values are 0 or 1, so pass mask.astype(bool)"),
    (lambda: AdditiveAttention(4, 4, 6)(X, X, X, mask=np.ones((3, 4), dtype=bool)), ValueError,
     "mask has shape (3, 4), expected a shape that broadcasts to (2, 3, 3)"),
    (lambda: DotProductAttention()(X, X[:, :, :3], X), ValueError,
     "keys has shape (2, 3, 3), expected (2, N, 4)"),
    (lambda: DotProductAttention()(X, X, X, [1, 2, 3]), ValueError,
     "valid_lens has shape (3,), expected (2,) or (2, 3)"),
    (lambda: AdditiveAttention(4, 5, 6)(X, X, X), ValueError,
     "queries has shape (2, 3, 4), expected (..., M, 5) because query_size is 5"),
    (lambda: AdditiveAttention(5, 4, 6)(X, X, X), ValueError,
     "keys has shape (2, 3, 4), expected (..., N, 5) because key_size is 5"),
    (lambda: DotProductAttention().backward(), TypeError,
     "backward() missing required argument 'grad_output' (position 1)"),
    (lambda: DotProductAttention().train(True, False), TypeError,
     "train() takes from 1 to 2 positional arguments but 3 were given"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_seeds_in_sequences() -> None:
    """Each row of a np.matrix is one, which NumPy takes apart until the stack ends."""
    expected = AdditiveAttention(2, 3, 4, rng=[3, 4]).W_q
    for rng in (np.matrix([[3, 4]]), [3, np.matrix([[4]])], np.array([3, 4], dtype=object)):
        assert np.array_equal(AdditiveAttention(2, 3, 4, rng=rng).W_q, expected)


@each(MESSAGES)
def test_messages(call: Call, error: type[Exception], message: str) -> None:
    assert raised_by(call, error) == message


@pytest.mark.parametrize(
    ("grads", "message"),
    [
        (
            {"grad_output": np.zeros((2, 3, 4))},
            "grad_output has shape (2, 3, 4), expected (2, 3, 3)",
        ),
        (
            {"grad_output": np.zeros((2, 3, 3)), "grad_weights": np.zeros((2, 3))},
            "grad_weights has shape (2, 3), expected (2, 3, 5)",
        ),
    ],
)
def test_messages_of_backward(
    grads: dict[str, Array], message: str, rng: np.random.Generator
) -> None:
    layer = make_layer("additive")
    call(layer, problem_of(layer, rng))
    with pytest.raises(ValueError) as raised:
        layer.backward(**grads)
    assert str(raised.value) == message
    assert not layer.grads["W_q"].any()
