"""attnext.explain.layer: of attnext's objects, of torch modules, and of what is no layer."""

from __future__ import annotations

import copy
import re
from typing import Any

import d2l_layers
import numpy as np
import pytest
import torch
from helpers import bits
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import attnext
import attnext.torch
from attnext import explain
from attnext.explain import Trace
from attnext.kernel_regression import NWKernelRegression

Array = NDArray[Any]

LENS = [2, 6]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


QUERIES, KEYS, VALUES = random(2, 3, 5), random(2, 7, 4, seed=1), random(2, 7, 6, seed=2)


def assert_same_bits(a: Any, b: Any) -> None:
    assert a.shape == b.shape
    assert_array_equal(bits(a), bits(b))


def keys_of(trace: Trace) -> list[str]:
    return [step.key for step in trace.steps]


# ---- the layers of attnext -----------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_additive(bias: bool) -> None:
    attn = attnext.AdditiveAttention(4, 5, 8, bias=bias, rng=0)
    trace = explain.layer(attn, QUERIES, KEYS, VALUES, LENS)
    assert_same_bits(trace.output, attn(QUERIES, KEYS, VALUES, LENS))
    assert_same_bits(trace.weights, attn.attention_weights)
    assert trace.call == (
        "AdditiveAttention(queries (2, 3, 5), keys (2, 7, 4), values (2, 7, 6), valid_lens=[2, 6])"
    )
    b_h = " + b_h" if bias else ""
    assert trace["features"].formula == f"features[i, j] = hidden_q[i] + hidden_k[j]{b_h}"


@pytest.mark.parametrize("scale", [None, 0.3])
def test_dot_product(scale: float | None) -> None:
    attn = attnext.DotProductAttention(scale=scale)
    keys, mask = random(2, 7, 5), random(2, 1, 7) > 0
    trace = explain.layer(attn, QUERIES, keys, VALUES, LENS, mask=mask, causal=True)
    assert_same_bits(trace.output, attn(QUERIES, keys, VALUES, LENS, mask=mask, causal=True))
    assert_same_bits(trace.weights, attn.attention_weights)
    assert trace["takes_part"].formula == (
        "takes_part[i, j] = j < valid_len and mask[i, j] and j <= i"
    )
    assert trace.steps[1].key == ("scaled" if scale is None else "scaled_by")


@pytest.mark.parametrize("scale", [2.0, [0.5, -1.0]])
def test_the_scale_of_a_call(scale: Any) -> None:
    attn = attnext.DotProductAttention(scale=0.3)
    keys = random(2, 7, 5)
    trace = explain.layer(attn, QUERIES, keys, VALUES, LENS, scale=scale, softcap=1.0, sink=0.5)
    output = attn(QUERIES, keys, VALUES, LENS, scale=scale, softcap=1.0, sink=0.5)
    assert_same_bits(trace.output, output)
    assert "scale" in trace.call
    for other in (attnext.AdditiveAttention(4, 5, 8), attnext.torch.AdditiveAttention(4, 5, 8, 0)):
        with pytest.raises(TypeError, match="scale is not an option of AdditiveAttention"):
            explain.layer(other, QUERIES, KEYS, VALUES, scale=scale)


def test_every_option_of_the_call() -> None:
    attn = attnext.AdditiveAttention(4, 5, 8, rng=0)
    queries = random(2, 4, 3, 5)
    keys, values = random(2, 2, 7, 4), random(2, 2, 7, 3, seed=1)
    options: dict[str, Any] = {
        "softcap": 1.5,
        "bias": random(7),
        "sink": random(4, 1),
        "window": (2, 1),
        "causal_offset": [-3, 1],
        "enable_gqa": True,
        "empty_rows": "zero",
    }
    trace = explain.layer(attn, queries, keys, values, **options)
    assert_same_bits(trace.output, attn(queries, keys, values, **options))
    assert_same_bits(trace.weights, attn.attention_weights)
    with pytest.raises(TypeError, match=r"layer\(\) got an unexpected keyword argument 'seed'"):
        explain.layer(attn, queries, keys, values, seed=1)  # type: ignore[call-arg]


def test_in_training_it_is_the_next_call() -> None:
    """What dropout will drop is shown before it happens, again and again."""
    attn = attnext.AdditiveAttention(4, 5, 8, dropout=0.5, rng=0)
    first = explain.layer(attn, QUERIES, KEYS, VALUES, LENS)
    again = explain.layer(attn, QUERIES, KEYS, VALUES, LENS)
    assert_same_bits(first.output, again.output)
    assert_same_bits(first.output, attn(QUERIES, KEYS, VALUES, LENS))
    second = explain.layer(attn, QUERIES, KEYS, VALUES, LENS)
    assert (second.output != first.output).any()
    assert_same_bits(second.output, attn(QUERIES, KEYS, VALUES, LENS))
    assert_same_bits(second.weights, first.weights)  # those before dropout
    assert "keep" in keys_of(second)
    attn.eval()
    evaluated = explain.layer(attn, QUERIES, KEYS, VALUES, LENS)
    assert "keep" not in keys_of(evaluated)
    assert_same_bits(evaluated.output, attn(QUERIES, KEYS, VALUES, LENS))


def test_the_layer_is_left_as_it_is() -> None:
    attn = attnext.AdditiveAttention(4, 5, 8, dropout=0.5, rng=0)
    output = attn(QUERIES, KEYS, VALUES, LENS)
    weights, context = attn.attention_weights, attn.context
    parameters = copy.deepcopy(attn.parameters())
    explain.layer(attn, 2 * QUERIES, KEYS, VALUES)
    assert attn.attention_weights is weights and attn.context is context
    for name, p in attn.parameters().items():
        assert_array_equal(p, parameters[name])
    attn.backward(np.ones_like(output))  # of the call before


class Renamed(attnext.AdditiveAttention):
    """A subclass is a layer too."""


def test_a_subclass() -> None:
    attn = Renamed(4, 5, 8, rng=0)
    trace = explain.layer(attn, QUERIES, KEYS, VALUES)
    assert trace.call.startswith("Renamed(queries (2, 3, 5)")
    assert_same_bits(trace.output, attn(QUERIES, KEYS, VALUES))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"queries": QUERIES[..., :2]}, "queries has shape (2, 3, 2), expected"),
    ({"keys": KEYS[:1]}, "keys has shape (1, 7, 4), expected"),
    ({"valid_lens": [1, 2, 3]}, "valid_lens has shape (3,), expected (2,) or (2, 3)"),
    ({"mask": np.ones(7)}, "mask has dtype float64, expected bools"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_errors_are_those_of_the_call(wrong: dict[str, Any], message: str) -> None:
    attn = attnext.AdditiveAttention(4, 5, 8)
    arguments = {"queries": QUERIES, "keys": KEYS, "values": VALUES, **wrong}
    with pytest.raises((TypeError, ValueError), match=re.escape(message)) as called:
        attn(**arguments)
    with pytest.raises(type(called.value), match=re.escape(str(called.value))):
        explain.layer(attn, **arguments)


@pytest.mark.parametrize("attn", [None, 3, np.tanh, attnext.AdditiveAttention, torch.nn.Dropout()])
def test_what_is_no_layer(attn: Any) -> None:
    message = (
        f"attn is of type {type(attn).__name__}, expected an AdditiveAttention, a "
        "DotProductAttention, a MultiHeadAttention or an NWKernelRegression"
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        explain.layer(attn, QUERIES, KEYS, VALUES)


# ---- kernel regression ---------------------------------------------------------------------------


def test_kernel_regression() -> None:
    net = NWKernelRegression(rng=0)
    queries, keys, values = random(4), random(4, 9), random(4, 9, seed=1)
    trace = explain.layer(net, queries, keys, values)
    assert net.attention_weights is None  # as before
    assert_same_bits(trace.output, net(queries, keys, values))
    assert net.attention_weights is not None
    assert_same_bits(trace.weights[:, 0], net.attention_weights)
    assert keys_of(trace) == ["distance", "gaussian", "weights", "output", "predictions"]
    assert trace.steps[-1].values is trace.output and trace.output.shape == (4,)
    distance = np.abs(queries[:, None].astype(np.float64) - keys)
    assert_allclose(trace["distance"].values[:, 0], distance, rtol=1e-14)
    assert f"{net.w[0]:.6g} * distance" in trace["gaussian"].formula
    assert trace.call == "NWKernelRegression(queries (4,), keys (4, 9), values (4, 9))"


@pytest.mark.parametrize(
    "more",
    [
        {"valid_lens": 0},
        {"valid_lens": LENS},
        {"mask": np.ones((2, 3), bool)},
        {"causal": True},
        {"window": (1, 1)},
        {"scale": 1.0},
    ],
)
def test_kernel_regression_has_no_masks(more: dict[str, Any]) -> None:
    (name,) = more
    message = f"{name} is not an option of NWKernelRegression, expected only queries, keys"
    with pytest.raises(TypeError, match=message):
        explain.layer(NWKernelRegression(), random(2), random(2, 3), random(2, 3), **more)


def test_kernel_regression_checks_its_arguments() -> None:
    with pytest.raises(ValueError, match=re.escape("keys has shape (3, 3), expected (2, N)")):
        explain.layer(NWKernelRegression(), random(2), random(3, 3), random(3, 3))


# ---- torch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_a_module_of_attnext_torch(bias: bool) -> None:
    attn = attnext.torch.AdditiveAttention(4, 5, 8, dropout=0.1, bias=bias).eval()
    q, k, v = (torch.from_numpy(x).requires_grad_() for x in (QUERIES, KEYS, VALUES))
    trace = explain.layer(attn, q, k, v, torch.tensor(LENS))
    output = attn(q, k, v, torch.tensor(LENS))
    assert_same_bits(trace.output, output.detach().numpy())
    assert_same_bits(trace.weights, attn.attention_weights.detach().numpy())
    after = explain.layer(attn, q, k, v, torch.tensor(LENS))  # now with weights in a graph
    assert_same_bits(after.output, trace.output)


@pytest.mark.parametrize("scale", [None, 2.0])
def test_a_dot_product_module_of_attnext_torch(scale: float | None) -> None:
    attn = attnext.torch.DotProductAttention(0.0, scale=scale)  # in training, without dropout
    q, k, v = torch.from_numpy(QUERIES), torch.from_numpy(random(2, 7, 5)), torch.from_numpy(VALUES)
    trace = explain.layer(attn, q, k, v, LENS, causal=True)
    assert_same_bits(trace.output, attn(q, k, v, LENS, causal=True).numpy())


def test_modules_of_the_book() -> None:
    q, k, v = torch.from_numpy(QUERIES), torch.from_numpy(KEYS), torch.from_numpy(VALUES)
    additive = d2l_layers.AdditiveAttention(4, 5, 8, dropout=0.1).eval()
    output = additive(q, k, v).detach()
    assert_allclose(explain.layer(additive, q, k, v).output, output, rtol=1e-5, atol=1e-6)
    dot = d2l_layers.DotProductAttention(0.5).eval()
    k = torch.from_numpy(random(2, 7, 5))
    trace = explain.layer(dot, q, k, v)
    assert_allclose(trace.output, dot(q, k, v), rtol=1e-5, atol=1e-6)
    assert trace["scaled"].formula == "scores = raw / sqrt(5)"


@pytest.mark.parametrize(
    "attn", [d2l_layers.DotProductAttention(0.5), attnext.torch.DotProductAttention(0.5)]
)
def test_a_module_in_training_with_dropout(attn: Any) -> None:
    message = (
        "attn is in training mode with dropout 0.5, expected evaluation mode because torch's "
        "dropout mask is not known before the call: call attn.eval() first"
    )
    x = torch.ones(1, 2, 3)
    with pytest.raises(ValueError, match=re.escape(message)):
        explain.layer(attn, x, x, x)
    assert explain.layer(attn.eval(), x, x, x).output.shape == (1, 2, 3)


class OwnAdditiveAttention(torch.nn.Module):
    """A layer of that name, whose score is another one."""

    def __init__(self, **layers: torch.nn.Module) -> None:
        super().__init__()
        for name, each in layers.items():
            self.add_module(name, each)


OwnAdditiveAttention.__name__ = "AdditiveAttention"


def test_parameters_that_are_not_the_books() -> None:
    linear = torch.nn.Linear(3, 3)
    x = torch.ones(1, 2, 3)
    expected = "expected W_k.weight, W_q.weight, w_v.weight"
    biased = OwnAdditiveAttention(W_q=linear, W_k=linear, w_v=linear)
    message = "attn has parameters W_k.bias, W_k.weight, W_q.bias, W_q.weight, w_v.bias, w_v.weight"
    with pytest.raises(TypeError, match=re.escape(f"{message}, {expected}")):
        explain.layer(biased, x, x, x)
    with pytest.raises(TypeError, match=re.escape(f"attn has parameters none, {expected}")):
        explain.layer(OwnAdditiveAttention(), x, x, x)
    dot = d2l_layers.DotProductAttention(0.0)
    dot.register_parameter("W", torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(TypeError, match="attn has parameters W, expected none"):
        explain.layer(dot, x, x, x)
