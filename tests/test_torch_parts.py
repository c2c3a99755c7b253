"""Where a layer of attnext.torch finds its parameters, and what it does before it computes."""

from __future__ import annotations

import warnings
from typing import Any

import d2l_layers
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import attnext.torch

QUERIES, KEYS, VALUES = torch.randn(2, 3, 5), torch.randn(2, 7, 4), torch.randn(2, 7, 6)


def additive(**more: Any) -> attnext.torch.AdditiveAttention:
    torch.manual_seed(0)
    return attnext.torch.AdditiveAttention(4, 5, 8, bias=True, **more)


class Negative(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return -x


@pytest.mark.parametrize("name", ["b_h", "W_k.weight", "w_v.weight"])
def test_a_parametrized_parameter_is_what_it_is_made_to(name: str) -> None:
    layer, expected = additive(), additive()
    owner, _, last = name.rpartition(".")
    parametrize.register_parametrization(layer.get_submodule(owner), last, Negative())
    with torch.no_grad():
        expected.get_parameter(name).neg_()
    output = layer(QUERIES, KEYS, VALUES)
    assert torch.equal(output, expected(QUERIES, KEYS, VALUES))
    output.sum().backward()
    (gradient,) = (p.grad for n, p in layer.named_parameters() if n.endswith(".original"))
    assert gradient is not None and gradient.any()


def test_a_weight_that_is_no_parameter() -> None:
    """As functional code puts it in the place of one."""
    layer, expected = additive(), additive()
    weight = layer.W_q.weight.detach().clone().requires_grad_()
    del layer.W_q.weight
    layer.W_q.weight = weight
    output = layer(QUERIES, KEYS, VALUES)
    assert torch.equal(output, expected(QUERIES, KEYS, VALUES))
    output.sum().backward()
    expected(QUERIES, KEYS, VALUES).sum().backward()
    assert torch.equal(weight.grad, expected.W_q.weight.grad)


def test_functional_calls_have_the_parameters_they_are_given() -> None:
    layer, expected = additive(), additive()
    given = {name: 2 * p.detach() for name, p in layer.named_parameters()}
    output = torch.func.functional_call(layer, given, (QUERIES, KEYS, VALUES))
    expected.load_state_dict(given)
    assert torch.equal(output, expected(QUERIES, KEYS, VALUES))


# ---- parts of other classes ----------------------------------------------------------------------


class Wrapped(nn.Module):
    """A linear layer behind another class, as quantisation and LoRA put there."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x)
        return result


OPTIONS: dict[str, dict[str, Any]] = {
    "lengths": {"valid_lens": torch.tensor([7, 2])},
    "a mask and a band": {"mask": torch.arange(7) != 1, "causal": True, "causal_offset": 4},
    "a bias": {"bias": torch.linspace(-1, 1, 21).reshape(3, 7)},
    "softcap": {"softcap": 0.3, "bias": torch.linspace(-1, 1, 21).reshape(3, 7)},
    "a sink": {"sink": torch.tensor(0.5)},
    "empty rows": {"valid_lens": torch.tensor([0, 2]), "empty_rows": "zero"},
    "without weights": {"need_weights": False},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_called_w_v_takes_every_option(options: str, dtype: torch.dtype) -> None:
    layer, expected = (additive(dropout=0.4).to(dtype) for _ in range(2))
    layer.w_v = Wrapped(layer.w_v)
    found = []
    for each in (layer, expected):
        torch.manual_seed(3)
        x = [y.to(dtype).requires_grad_() for y in (QUERIES, KEYS, VALUES)]
        given = {
            name: y.to(dtype) if isinstance(y, Tensor) and y.is_floating_point() else y
            for name, y in OPTIONS[options].items()
        }
        output = each(*x, **given)
        d = torch.autograd.grad(output.square().sum(), [*x, *each.parameters()])
        found.append([output, each.attention_weights, *d])
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_called_w_v_with_heads_that_share_keys() -> None:
    layer, expected = additive(), additive()
    layer.w_v = Wrapped(layer.w_v)
    queries = torch.randn(2, 4, 3, 5)
    keys, values = torch.randn(2, 2, 7, 4), torch.randn(2, 2, 7, 6)
    got, wanted = (each(queries, keys, values, enable_gqa=True) for each in (layer, expected))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@pytest.mark.parametrize("kind", ["additive", "multi-head"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised_parts_are_called(kind: str, dtype: torch.dtype) -> None:
    """As in d2l's class with the same parts. Where a sum rounds to another number, its 8 bits may
    be the next ones, a step of 1/127 of the largest input, times a weight below 0.4."""
    torch.manual_seed(0)
    sizes = (8, 8, 4, 0.5) if kind == "additive" else (8, 8, 8, 8, 2, 0.5)
    name = "AdditiveAttention" if kind == "additive" else "MultiHeadAttention"
    layer, plain = (getattr(m, name)(*sizes).eval() for m in (attnext.torch, d2l_layers))
    layer = torch.ao.quantization.quantize_dynamic(layer, {nn.Linear}, dtype=dtype)
    for each in ("W_q", "W_k", "w_v" if kind == "additive" else "W_v", "W_o"):
        if hasattr(layer, each):
            assert type(getattr(layer, each)) is torch.ao.nn.quantized.dynamic.Linear
            setattr(plain, each, getattr(layer, each))
    x, lens = torch.randn(2, 3, 8), torch.tensor([3, 2])
    step = float(x.abs().max()) / 127 * 0.4 if dtype is torch.qint8 else 0.0
    torch.testing.assert_close(layer(x, x, x, lens), plain(x, x, x, lens), rtol=0, atol=1e-5 + step)
    if kind == "multi-head":
        memory = layer.memory(x, x, lens)
        assert torch.equal(layer(x, memory), layer(x, x, x, lens))


def test_parametrized_and_normed_parts() -> None:
    """torch's parametrizations change the class of a layer, its older norms add hooks."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8)
    layer = attnext.torch.MultiHeadAttention(8, 8, 8, 8, 2, bias=True)
    expected = layer(x, x, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(layer.W_q)
    nn.utils.parametrizations.weight_norm(layer.W_k)
    layer.W_v, layer.W_o = Wrapped(layer.W_v), Wrapped(layer.W_o)
    output = layer(x, x, x)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer(x, layer.memory(x, x)), expected, rtol=1e-5, atol=1e-6)
    output.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


class Made(nn.Module):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def forward(self, x: Tensor) -> Any:
        return self.result


def heads(**parts: Any) -> attnext.torch.MultiHeadAttention:
    layer = attnext.torch.MultiHeadAttention(4, 5, 6, 8, 2)
    for name, part in parts.items():
        setattr(layer, name, part)
    return layer


MADE = f"a {__name__}.Made, returned"
WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda: heads(W_q=Made(None))(QUERIES, KEYS, VALUES), TypeError,
     f"MultiHeadAttention.W_q, {MADE} an object of type NoneType, expected a torch.Tensor"),
    (lambda: heads(W_v=Made(torch.ones(2, 7, 9)))(QUERIES, KEYS, VALUES), ValueError,
     f"MultiHeadAttention.W_v, {MADE} a tensor of shape (2, 7, 9), expected (2, 7, 8)"),
    (lambda: heads(W_o=Made(torch.ones(3, 8)))(QUERIES, KEYS, VALUES), ValueError,
     f"MultiHeadAttention.W_o, {MADE} a tensor of shape (3, 8), expected (2, 3, 8)"),
    (lambda: other(W_q=Made(torch.ones(2, 3, 9)))(QUERIES, KEYS, VALUES), ValueError,
     f"AdditiveAttention.W_q, {MADE} a tensor of shape (2, 3, 9), expected (2, 3, 8)"),
    (lambda: other(w_v=Made(torch.ones(2, 3, 7, 2)))(QUERIES, KEYS, VALUES), ValueError,
     f"AdditiveAttention.w_v, {MADE} a tensor of shape (2, 3, 7, 2), expected (2, 3, 7, 1)"),
    (lambda: other(w_v=Made(None)).memory(KEYS, VALUES), TypeError,
     f"AdditiveAttention.w_v is a {__name__}.Made, expected a torch.nn.Linear with a memory: pass "
     "keys and values to each call instead"),
]  # fmt: skip


def other(**parts: Any) -> attnext.torch.AdditiveAttention:
    layer = additive()
    for name, part in parts.items():
        setattr(layer, name, part)
    return layer


@pytest.mark.parametrize(
    ("call", "error", "message"), WRONG, ids=lambda x: x[:30] if isinstance(x, str) else ""
)
def test_a_part_that_does_not_fit(call: Any, error: type[Exception], message: str) -> None:
    """The error names the layer, the part, what it gave and what was expected."""
    with pytest.raises(error) as refused:
        call()
    assert str(refused.value) == message


# ---- before it computes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"need_weights": 1}, "need_weights must be a bool, got int"),
        ({"causal": "no"}, "causal must be a bool, got str"),
        ({"dropout_p": 0.5}, "unexpected keyword argument 'dropout_p'"),
    ],
)
def test_a_call_that_is_refused_draws_no_seed(wrong: dict[str, Any], message: str) -> None:
    layer = additive(dropout=0.5)
    layer(QUERIES, KEYS, VALUES)
    weights, before = layer.attention_weights, torch.get_rng_state()
    with pytest.raises(TypeError, match=message):
        layer(QUERIES, KEYS, VALUES, **wrong)
    assert torch.equal(torch.get_rng_state(), before)
    assert layer.attention_weights is weights
