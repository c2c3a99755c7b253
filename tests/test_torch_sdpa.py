"""attnext.torch.scaled_dot_product_attention beside torch.nn.functional's.

The cases are those that PyTorch tests its own with (test/test_transformers.py): sizes, leading axes
that broadcast, kinds and shapes of masks, strides, heads that are shared, rows that are masked out.
"""

from __future__ import annotations

import copy
import inspect
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from attnext.torch import scaled_dot_product_attention

theirs = functional.scaled_dot_product_attention


def tensors(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def check(inputs: list[Tensor], **options: Any) -> Tensor:
    """Both, forward and backward."""
    found = []
    for function in (scaled_dot_product_attention, theirs):
        leaves = [x.detach() for x in inputs]
        more = copy.deepcopy(options)
        mask = more.get("attn_mask")
        if mask is not None and mask.is_floating_point():
            leaves.append(mask)
        for x in leaves:
            x.requires_grad_()
        output = function(*leaves[:3], **more)
        weight = torch.linspace(-1, 1, output.numel()).reshape(output.shape)
        found.append([output, *torch.autograd.grad(output, leaves, weight, allow_unused=True)])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-5, atol=3e-6)
    return found[0][0]


def mask_of(kind: str, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    if kind == "bool":
        return torch.rand(shape, generator=generator) < 0.6
    floats = torch.randn(shape, generator=generator)
    return floats if kind == "float" else floats.masked_fill(floats > 0.7, -torch.inf)


Q3, K3, V3 = (2, 6, 8), (2, 5, 8), (2, 5, 8)
Q4, K4, V4 = (2, 3, 6, 8), (2, 3, 5, 8), (2, 3, 5, 8)

SHAPES = {
    "one sequence": [(6, 8), (5, 8), (5, 8)],
    "3 axes": [Q3, K3, V3],
    "4 axes": [Q4, K4, V4],
    "5 axes": [(2, 1, 3, 6, 8), (2, 1, 3, 5, 8), (2, 1, 3, 5, 8)],
    "other features of values": [Q4, K4, (2, 3, 5, 9)],
    "one query": [(2, 3, 1, 8), K4, V4],
    "one key": [Q4, (2, 3, 1, 8), (2, 3, 1, 8)],
    "no key": [Q4, (2, 3, 0, 8), (2, 3, 0, 8)],
    "no query": [(2, 3, 0, 8), K4, V4],
    "batch of 1 in the queries": [(1, 3, 6, 8), K4, V4],
    "batch of 1 in keys and values": [Q4, (1, 3, 5, 8), (1, 3, 5, 8)],
    "a head in the keys, a batch in the values": [Q4, (2, 1, 5, 8), (1, 3, 5, 8)],
    "no batch in the keys": [Q4, (5, 8), (3, 5, 8)],
}
MASKS: dict[str, tuple[int, ...]] = {
    "(L, S)": (6, 5), "(1, S)": (1, 5), "(L, 1)": (6, 1), "(heads, L, S)": (3, 6, 5),
    "(B, 1, L, S)": (2, 1, 6, 5), "(B, heads, L, S)": (2, 3, 6, 5), "(B, 1, 1, S)": (2, 1, 1, 5),
}  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}], ids=str)
def test_shapes(shapes: list[tuple[int, ...]], options: dict[str, Any]) -> None:
    check(tensors(*shapes), **options)


@pytest.mark.parametrize("kind", ["bool", "float", "-inf"])
@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_masks(shape: tuple[int, ...], kind: str) -> None:
    check(tensors(Q4, K4, V4), attn_mask=mask_of(kind, *shape))


@pytest.mark.parametrize("kind", ["bool", "-inf"])
def test_rows_that_are_masked_out_are_zero(kind: str) -> None:
    mask = torch.ones(6, 5, dtype=torch.bool)
    mask[2] = False
    if kind == "-inf":
        mask = torch.zeros(6, 5).masked_fill(~mask, -torch.inf)
    assert not check(tensors(Q4, K4, V4), attn_mask=mask)[:, :, 2].any()


@pytest.mark.parametrize("key_heads", [1, 2, 3, 6])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": "float"}], ids=str)
def test_heads_that_are_shared(key_heads: int, options: dict[str, Any]) -> None:
    x = tensors((2, 6, 4, 8), (2, key_heads, 5, 8), (2, key_heads, 5, 7))
    if "attn_mask" in options:
        options = {"attn_mask": mask_of("float", 2, 6, 4, 5)}
    check(x, enable_gqa=True, **options)
    check([x[0], x[1][:1], x[2][:1]], enable_gqa=True, **options)


def test_strides() -> None:
    q, k, v = tensors((2, 6, 3, 8), (2, 5, 3, 8), (2, 5, 3, 16))
    mask = mask_of("float", 2, 5, 6).transpose(1, 2)[:, None]
    check([q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)[..., ::2]], attn_mask=mask)
    row = mask_of("bool", 2, 1, 1, 5).expand(2, 3, 6, 5)
    check([q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)[..., 1::2]], attn_mask=row)


def test_large_scores_do_not_overflow() -> None:
    q, k, v = tensors(Q4, K4, V4)
    torch.testing.assert_close(
        scaled_dot_product_attention(100 * q, 100 * k, v), theirs(100 * q, 100 * k, v)
    )


def test_dropout() -> None:
    """Drawn from torch's generator, whatever is in training; its mean is what it is without."""
    q, k = torch.zeros(1, 4), torch.zeros(20_000, 4)
    v = torch.eye(2).repeat(10_000, 1)
    for p in (0.2, 0.5):
        torch.manual_seed(3)
        first, other = (scaled_dot_product_attention(q, k, v, dropout_p=p) for _ in range(2))
        torch.manual_seed(3)
        assert torch.equal(scaled_dot_product_attention(q, k, v, dropout_p=p), first)
        assert not torch.equal(first, other)
        torch.testing.assert_close(first, torch.full((1, 2), 0.5), rtol=0, atol=0.03)
    for function in (scaled_dot_product_attention, theirs):
        assert not function(q, k, v, dropout_p=1.0).any()


def test_signature() -> None:
    """torch's own has none that could be read, but its documentation."""
    shown = str(theirs.__doc__).split("->")[0].split("(", 1)[1]
    words = re.findall(r"(\w+)(?:=([\w.]+))?[,)]", shown.replace("\n", ""))
    ours = inspect.signature(scaled_dot_product_attention).parameters
    assert list(ours) == [name for name, _ in words]
    for name, default in words[3:]:
        assert str(ours[name].default) == default


def test_padding_is_not_read() -> None:
    q, k, v = tensors(Q4, K4, V4)
    part = torch.arange(5) < 3
    clean = scaled_dot_product_attention(q, k, v, part)
    k[..., 3:, :], v[..., 3:, :] = torch.nan, torch.inf
    assert torch.equal(scaled_dot_product_attention(q, k, v, part), clean)


def test_compiled() -> None:
    compiled = torch.compile(scaled_dot_product_attention, backend="eager", fullgraph=True)
    for shapes in ([Q4, K4, V4], [Q4, (1, 3, 5, 8), (1, 3, 5, 8)]):
        x = tensors(*shapes)
        assert torch.equal(compiled(*x, is_causal=True), scaled_dot_product_attention(
            *x, is_causal=True))  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"query": np.ones(Q4)}, TypeError, "query is of type numpy.ndarray, expected a "
         "torch.Tensor"),
        ({"key": torch.ones(K4, dtype=torch.int64)}, TypeError, "key has dtype torch.int64, "
         "expected torch.float32"),
        ({"key": torch.ones(2, 3, 5, 7)}, ValueError, "key has shape (2, 3, 5, 7), expected "
         "(2, 3, N, 8)"),
        ({"value": torch.ones(2, 3, 4, 8)}, ValueError, "value has shape (2, 3, 4, 8), expected "
         "(2, 3, 5, Dv)"),
        ({"key": torch.ones(4, 3, 5, 8)}, ValueError, "query, key and value have shapes "
         "(2, 3, 6, 8), (4, 3, 5, 8), (2, 3, 5, 8), expected leading axes that broadcast"),
        ({"query": torch.ones(8), "key": torch.ones(8), "value": torch.ones(8)}, ValueError,
         "query has shape (8,), expected two axes or more: (..., M, D)"),
        ({"attn_mask": torch.ones(6, 4, dtype=torch.bool)}, ValueError, "attn_mask has shape "
         "(6, 4), expected a shape that broadcasts to (2, 3, 6, 5)"),
        ({"attn_mask": torch.ones(6, 4)}, ValueError, "attn_mask has shape (6, 4), expected a "
         "shape that broadcasts to (2, 3, 6, 5)"),
        ({"attn_mask": torch.ones(6, 5, dtype=torch.int64)}, TypeError, "attn_mask has dtype "
         "torch.int64, expected bools or floats"),
        ({"attn_mask": [[True]]}, TypeError, "attn_mask is of type list, expected a torch.Tensor"),
        ({"attn_mask": torch.ones(6, 5), "is_causal": True}, ValueError, "attn_mask and "
         "is_causal=True are both given, expected only one"),
        ({"dropout_p": 1.5}, ValueError, "dropout_p is 1.5, expected 0 <= dropout_p <= 1"),
        ({"dropout_p": "1"}, TypeError, "dropout_p must be a number, got str"),
        ({"is_causal": 1}, TypeError, "is_causal must be a bool, got int"),
        ({"enable_gqa": True, "key": torch.ones(2, 2, 5, 8)}, ValueError, "key has shape "
         "(2, 2, 5, 8), expected a number of heads (axis -3) that divides 3, the heads of queries"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)  # fmt: skip
def test_errors(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    given = dict(zip(("query", "key", "value"), tensors(Q4, K4, V4), strict=True)) | changed
    with pytest.raises(error) as refused:
        scaled_dot_product_attention(**given)
    assert type(refused.value) is error and str(refused.value) == message
