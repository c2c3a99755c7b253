"""What attnext.torch hands from a multi-head forward to its backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attnext.torch as ours
from attnext import _core
from attnext.torch.calls import RULES

B, M, N, E, HEADS = 2, 5, 7, 12, 3
INPUTS = ("queries", "keys", "values")


def make() -> tuple[ours.MultiHeadAttention, list[Tensor]]:
    torch.manual_seed(0)
    layer = ours.MultiHeadAttention(E, E, E, E, HEADS, bias=True, num_kv_heads=1)
    return layer, [torch.randn(B, rows, E, requires_grad=True) for rows in (M, N, N)]


def gradients(output: Tensor, layer: Any, x: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(output.square().sum(), [*x, *layer.parameters()]))


def test_the_backward_gets_it_and_the_bits_are_those_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, x = make()
    lens = torch.tensor([4, 0])
    calls: list[dict[str, Any]] = []
    function = _core._multi_head_attention_backward

    def spied(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs)
        return function(*args, **kwargs)

    def forgetful(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**kwargs, "kept": None})

    found = []
    for way in (spied, forgetful):
        monkeypatch.setattr(_core, "_multi_head_attention_backward", way)
        found.append(gradients(layer(*x, lens), layer, x))
    assert calls[0]["kept"].ndim == 1
    for with_it, without in zip(*found, strict=True):
        assert torch.equal(with_it, without)


def test_nothing_is_kept_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = make()
    calls: list[dict[str, Any]] = []
    function = _core._multi_head_attention

    def spied(**kwargs: Any) -> Any:
        calls.append(kwargs)
        return function(**kwargs)

    monkeypatch.setattr(_core, "_multi_head_attention", spied)
    with torch.no_grad():
        layer(*x)
    layer(*x)
    assert ["return_kept" in call for call in calls] == [False, True]


def test_saved_tensors_may_be_moved_by_hooks() -> None:
    layer, x = make()
    expected = gradients(layer(*x), layer, x)

    def moved(saved: Tensor) -> Tensor:
        """To where nothing is aligned."""
        return torch.cat([torch.zeros(1, dtype=saved.dtype), saved.flatten()])[1:].view_as(saved)

    with torch.autograd.graph.saved_tensors_hooks(moved, lambda saved: saved):
        output = layer(*x)
    for found, same in zip(gradients(output, layer, x), expected, strict=True):
        assert torch.equal(found, same)


@pytest.mark.parametrize("changed", ["queries", "keys", "W_q.weight", "W_o.bias"])
def test_what_is_changed_in_place_before_the_backward_is_noticed(changed: str) -> None:
    layer, x = make()
    inputs = [leaf * 1 for leaf in x]
    output = layer(*inputs)
    named = {"queries": inputs[0], "keys": inputs[1], **dict(layer.named_parameters())}
    with torch.no_grad():
        named[changed].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("H", [6, 250, 256, 512])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_its_size_is_told_without_computing_it(H: int, kv_heads: int) -> None:
    W = {name: torch.randn(H if name in "qo" else H // 2 * kv_heads, 3) for name in "qkv"}
    x = {name: torch.randn(2, 3, rows, 3) for name, rows in zip(INPUTS, (5, 7, 7), strict=True)}
    x |= {f"W_{name}": weight for name, weight in W.items()} | {"W_o": torch.randn(H, H)}
    heads = {"num_heads": 2, "num_kv_heads": kv_heads}
    arrays = {name: tensor.numpy() for name, tensor in x.items()}
    *_, kept = _core._multi_head_attention(**arrays, **heads, return_kept=True)
    assert RULES["multi_head_attention"].shapes({**x, **heads})["kept"] == kept.shape


def test_a_compiled_graph_knows_its_size() -> None:
    """Where sizes are left open, and in those that one of 1 has made for it."""
    layer, _ = make()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for sizes in ((M, N), (64, 33), (M, 1), (1, N)):
        x = [torch.randn(B, rows, E, requires_grad=True) for rows in (sizes[0], *sizes[1:] * 2)]
        expected = gradients(layer(*x), layer, x)
        for found, same in zip(gradients(compiled(*x), layer, x), expected, strict=True):
            assert torch.equal(found, same), sizes
