"""Where a layer of attnext.torch finds its parameters, and what it does before it computes."""

from __future__ import annotations

from typing import Any

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
