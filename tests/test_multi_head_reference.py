"""attnext.reference's multi-head attention: against torch, d2l and central differences, float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from d2l_layers import MultiHeadAttention
from multi_headed import of_pairs
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

import attnext
from attnext import reference
from attnext.reference import multi_head_attention, multi_head_attention_backward
from attnext.testing import assert_gradients_close, numerical_gradient

B, M, N, E = 2, 3, 5, 12
NAMES = ("queries", "keys", "values", "W_q", "W_k", "W_v", "W_o", "b_q", "b_k", "b_v", "b_o")


def make(
    rng: np.random.Generator,
    heads: int = 4,
    kv_heads: int | None = None,
    sizes: tuple[int, int, int] = (E, E, E),
    biases: bool = True,
    d: int = 3,
    keys: int = N,
) -> dict[str, Any]:
    kv = kv_heads or heads
    Dq, Dk, Dv = sizes
    x = {
        "queries": rng.normal(size=(B, M, Dq)),
        "keys": rng.normal(size=(B, keys, Dk)),
        "values": rng.normal(size=(B, keys, Dv)),
        "W_q": rng.normal(size=(heads * d, Dq)) / 2,
        "W_k": rng.normal(size=(kv * d, Dk)) / 2,
        "W_v": rng.normal(size=(kv * d, Dv)) / 2,
        "W_o": rng.normal(size=(heads * d, heads * d)) / 2,
    }
    if biases:
        x |= {f"b_{n}": rng.normal(size=len(x[f"W_{n}"])) for n in "qkvo"}
    return x | {"num_heads": heads, "num_kv_heads": kv_heads}


def of_d2l(x: dict[str, Any]) -> MultiHeadAttention:
    """The layer of both editions of the book with these parameters, in float64."""
    (H, Dq), Dk, Dv = x["W_q"].shape, x["W_k"].shape[1], x["W_v"].shape[1]
    layer = MultiHeadAttention(Dk, Dq, Dv, H, x["num_heads"], 0, "b_q" in x).double()
    state = {f"W_{n}.weight": x[f"W_{n}"] for n in "qkvo"}
    state |= {f"W_{n}.bias": x[f"b_{n}"] for n in "qkvo" if f"b_{n}" in x}
    layer.load_state_dict({name: torch.from_numpy(a) for name, a in state.items()})
    return layer


@pytest.mark.parametrize("lens", [[1, 5], [[1, 2, 3], [5, 4, 1]]])
@pytest.mark.parametrize("biases", [False, True])
def test_d2l(rng: np.random.Generator, lens: Any, biases: bool) -> None:
    x = make(rng, sizes=(7, 6, 5), biases=biases)
    inputs = [torch.tensor(x[n], requires_grad=True) for n in ("queries", "keys", "values")]
    layer = of_d2l(x)
    expected = layer(*inputs, torch.tensor(lens))
    output, weights = multi_head_attention(**x, valid_lens=lens, return_weights=True)
    assert_allclose(output, expected.detach(), rtol=1e-12, atol=1e-12)
    expected_weights = layer.attention_weights.detach().reshape(weights.shape)
    assert_allclose(weights, expected_weights, rtol=1e-12, atol=1e-12)

    grad = rng.normal(size=output.shape)
    expected.backward(torch.tensor(grad))
    d = multi_head_attention_backward(grad, **x, valid_lens=lens)
    for name, tensor in zip(("queries", "keys", "values"), inputs, strict=True):
        assert_allclose(getattr(d, name), tensor.grad, rtol=1e-11, atol=1e-12)
    for n in "qkvo":
        linear = getattr(layer, f"W_{n}")
        assert_allclose(getattr(d, f"W_{n}"), linear.weight.grad, rtol=1e-11, atol=1e-12)
        if biases:
            assert_allclose(getattr(d, f"b_{n}"), linear.bias.grad, rtol=1e-11, atol=1e-12)
        else:
            assert getattr(d, f"b_{n}") is None


@pytest.mark.parametrize("causal", [False, True])
def test_torch(rng: np.random.Generator, causal: bool) -> None:
    """nn.MultiheadAttention, True in whose masks means: leave out."""
    x = make(rng, sizes=(E, 6, 5))
    layer = nn.MultiheadAttention(E, 4, kdim=6, vdim=5, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for name, W in zip(("q", "k", "v"), ("W_q", "W_k", "W_v"), strict=True):
            getattr(layer, f"{name}_proj_weight").copy_(torch.tensor(x[W]))
        layer.in_proj_bias.copy_(torch.tensor(np.concatenate([x["b_q"], x["b_k"], x["b_v"]])))
        layer.out_proj.weight.copy_(torch.tensor(x["W_o"]))
        layer.out_proj.bias.copy_(torch.tensor(x["b_o"]))
    padding = torch.tensor([[False] * 4 + [True], [False] * 2 + [True] * 3])
    later = torch.ones(M, N, dtype=torch.bool).triu(1) if causal else None
    inputs = [torch.tensor(x[n], requires_grad=True) for n in ("queries", "keys", "values")]
    expected, expected_weights = layer(
        *inputs, key_padding_mask=padding, attn_mask=later, average_attn_weights=False
    )
    options = {"mask": ~padding.numpy()[:, None, None, :], "causal": causal}
    output, weights = multi_head_attention(**x, **options, return_weights=True)
    assert_allclose(output, expected.detach(), rtol=1e-12, atol=1e-12)
    assert_allclose(weights, expected_weights.detach(), rtol=1e-12, atol=1e-12)

    grad = rng.normal(size=output.shape)
    expected.backward(torch.tensor(grad))
    d = multi_head_attention_backward(grad, **x, **options)
    for name, tensor in zip(("queries", "keys", "values"), inputs, strict=True):
        assert_allclose(getattr(d, name), tensor.grad, rtol=1e-11, atol=1e-12)
    biases = np.concatenate([d.b_q, d.b_k, d.b_v])
    assert_allclose(biases, layer.in_proj_bias.grad, rtol=1e-11, atol=1e-12)
    assert_allclose(d.W_k, layer.k_proj_weight.grad, rtol=1e-11, atol=1e-12)
    assert_allclose(d.W_o, layer.out_proj.weight.grad, rtol=1e-11, atol=1e-12)


OPTIONS: dict[str, dict[str, Any]] = {
    "2-D lengths, empty rows; a mask of each head, capped": {
        "valid_lens": [[0, 2, 3], [1, 0, 3]],
        "softcap": 1.5,
        "mask": np.arange(24).reshape(2, 4, 1, 3) % 5,
    },
    "no weights in empty rows": {"valid_lens": [0, 2], "empty_rows": "zero", "num_kv_heads": 1},
    "dropout, a window": {
        **{"dropout_p": 0.4, "seed": 7, "num_kv_heads": 2, "window": (1, 0)},
        "causal_offset": [2, 1],
    },
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_central_differences(rng: np.random.Generator, options: dict[str, Any]) -> None:
    """Every gradient, those of bias, sink and scale too; through output, weights and lse."""
    x = make(rng, kv_heads=options.get("num_kv_heads"), sizes=(3, 2, 4), d=2, keys=3)
    x |= {"bias": rng.normal(size=(1, 4, 1, 3)), "scale": rng.normal(size=4), **options}
    x["mask"] = x["mask"] > 0 if "mask" in options else None
    x["sink"] = None if "empty_rows" in options else rng.normal(size=(4, 1))
    extras = {"return_weights": True, "return_lse": True}
    made = multi_head_attention(**x, **extras)
    flow = [rng.normal(size=each.shape) for each in made]
    lse_counts = np.isfinite(made[2])
    d, d_bias, d_sink, d_scale = multi_head_attention_backward(
        flow[0],
        **x,
        grad_weights=flow[1],
        grad_lse=flow[2],
        **{f"return_grad_{name}": True for name in ("bias", "sink", "scale")},
    )

    def loss(name: str, value: Any) -> Any:
        output, weights, lse = multi_head_attention(**{**x, name: value}, **extras)
        # Neither the weights nor the lse of an empty row have a gradient.
        rest = (weights * flow[1])[lse_counts].sum() + (lse * flow[2])[lse_counts].sum()
        return (output * flow[0]).sum() + rest

    found = {**d._asdict(), "bias": d_bias, "sink": d_sink, "scale": d_scale}
    for name, gradient in found.items():
        if x[name] is not None:
            slope = numerical_gradient(lambda value, n=name: loss(n, value), x[name])
            assert_gradients_close(gradient, slope)
    assert (d_sink is None) == (x["sink"] is None)


def test_heads_in_words(rng: np.random.Generator) -> None:
    """Each head is an attention of its own rows of the weights; W_o adds up what they pooled."""
    x = make(rng, heads=4, kv_heads=2, biases=False)
    output, weights, lse = multi_head_attention(
        **x, valid_lens=[3, 5], return_weights=True, return_lse=True
    )
    total = np.zeros_like(output)
    for h in range(4):
        of_q, of_k = slice(3 * h, 3 * h + 3), slice(3 * (h // 2), 3 * (h // 2) + 3)
        one = reference.dot_product_attention(
            x["queries"] @ x["W_q"][of_q].T,
            x["keys"] @ x["W_k"][of_k].T,
            x["values"] @ x["W_v"][of_k].T,
            [3, 5],
            return_weights=True,
            return_lse=True,
        )
        total += one[0] @ x["W_o"][:, of_q].T
        assert_allclose(weights[:, h], one[1], rtol=1e-12)
        assert_allclose(lse[:, h], one[2], rtol=1e-12)
    assert_allclose(output, total, rtol=1e-12, atol=1e-14)


def test_leading_axes(rng: np.random.Generator) -> None:
    """None, or several: lengths for each query are of all heads."""
    x = make(rng)
    lens = np.array([[1, 2, 3], [5, 0, 1]])
    expected, expected_weights = multi_head_attention(**x, valid_lens=lens, return_weights=True)
    inputs = ("queries", "keys", "values")
    two = {**x, **{n: np.stack([x[n]] * 3, axis=1) for n in inputs}}
    output, weights = multi_head_attention(
        **two, valid_lens=np.stack([lens] * 3, axis=1), return_weights=True
    )
    assert weights.shape == (B, 3, 4, M, N)
    for i in range(3):
        assert_array_equal(output[:, i], expected)
        assert_array_equal(weights[:, i], expected_weights)
    none = {**x, **{n: x[n][0] for n in inputs}}
    output, weights = multi_head_attention(**none, valid_lens=lens[0], return_weights=True)
    assert_array_equal(output, expected[0])
    assert_array_equal(weights, expected_weights[0])


def test_padding_is_not_read(rng: np.random.Generator) -> None:
    x = make(rng)
    poisoned = {**x, "keys": x["keys"].copy(), "values": x["values"].copy()}
    for name in ("keys", "values"):
        poisoned[name][0, 2:] = np.nan
        poisoned[name][1, 4:] = np.inf
    assert_array_equal(
        multi_head_attention(**poisoned, valid_lens=[2, 4]),
        multi_head_attention(**x, valid_lens=[2, 4]),
    )
    grad = rng.normal(size=(B, M, E))
    ours, theirs = (
        multi_head_attention_backward(grad, **each, valid_lens=[2, 4]) for each in (poisoned, x)
    )
    for name in NAMES:
        assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-13, atol=1e-15)
    assert (ours.keys[0, 2:] == 0).all() and (ours.values[1, 4:] == 0).all()


def test_no_keys(rng: np.random.Generator) -> None:
    """The heads pool nothing: what is left is the bias of the last layer."""
    x = make(rng)
    x["keys"], x["values"] = x["keys"][:, :0], x["values"][:, :0]
    assert_array_equal(multi_head_attention(**x), np.broadcast_to(x["b_o"], (B, M, E)))
    d = multi_head_attention_backward(np.ones((B, M, E)), **x)
    assert d.keys.shape == (B, 0, E) and (d.W_k == 0).all() and (d.b_o == B * M).all()


def test_out(rng: np.random.Generator) -> None:
    x = make(rng)
    out = np.empty((B, M, E))
    assert multi_head_attention(**x, out=out) is out
    assert_array_equal(out, multi_head_attention(**x))
    with pytest.raises(ValueError, match="^out shares memory with an input"):
        multi_head_attention(**x, out=x["queries"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_heads": 5}, "W_q has shape (12, 12), expected (H, 12), where H is a multiple "
         "of num_heads (5)"),
        ({"num_heads": 0}, "num_heads is 0, expected num_heads >= 1"),
        ({"num_kv_heads": 3}, "num_kv_heads is 3, expected a divisor of num_heads (4)"),
        ({"W_k": np.ones((9, E))}, "W_k has shape (9, 12), expected (12, 12)"),
        ({"W_v": np.ones((12, 4))}, "W_v has shape (12, 4), expected (12, 12)"),
        ({"W_o": np.ones((E, 4))}, "W_o has shape (12, 4), expected (12, 12)"),
        ({"b_k": np.ones(3)}, "b_k has shape (3,), expected (12,)"),
        ({"keys": np.ones((N, E))}, "keys has shape (5, 12), expected (2, N, Dk)"),
        ({"queries": np.ones(E)}, "queries has shape (12,), expected two axes or more: (..., M, "
         "Dq)"),
        ({"valid_lens": [1, 2, 3]}, "valid_lens has shape (3,), expected (2,) or (2, 3)"),
        ({"mask": np.ones((B, M, N), bool)}, "mask has shape (2, 3, 5), expected a shape that "
         "broadcasts to (3, 5), or a shape with 4 axes that broadcasts to (2, 4, 3, 5); pass "
         "mask[:, None] if it has one mask per batch element, or mask[None] if it has one mask per "
         "head"),
        ({"scale": np.ones(3)}, "scale has shape (3,), expected a shape that broadcasts to (2, 4)"),
        ({"causal_offset": [1] * 4}, "causal_offset has shape (4,), expected an int or (2,)"),
        ({"enable_gqa": True}, "multi_head_attention() got an unexpected keyword argument "
         "'enable_gqa'"),
        ({"widow": 1}, "multi_head_attention() got an unexpected keyword argument 'widow': did you "
         "mean window?"),
    ],
    ids=lambda x: "".join(x) if isinstance(x, dict) else "",
)  # fmt: skip
def test_errors(rng: np.random.Generator, changed: dict[str, Any], message: str) -> None:
    x = make(rng) | changed
    with pytest.raises((TypeError, ValueError)) as caught:
        multi_head_attention(**x)
    assert str(caught.value) == message
    with pytest.raises((TypeError, ValueError)) as caught:
        multi_head_attention_backward(np.ones((B, M, E)), **x)
    assert str(caught.value).replace("_backward", "") == message


# ---- the fast function ---------------------------------------------------------------------------


def random_call(rng: np.random.Generator) -> dict[str, Any]:
    """Sizes, leading axes and options at random."""
    heads = int(rng.choice([1, 2, 4, 6]))
    kv_heads = int(rng.choice([n for n in range(1, heads + 1) if heads % n == 0]))
    lead = tuple(rng.integers(1, 3, size=rng.integers(0, 3)))
    M, N, d = rng.integers(0, 6), rng.integers(0, 8), rng.integers(1, 6)
    x = make(rng, heads, kv_heads, tuple(rng.integers(1, 8, 3)), bool(rng.integers(2)), d)
    for name, rows in (("queries", M), ("keys", N), ("values", N)):
        x[name] = rng.normal(size=(*lead, rows, x[name].shape[-1]))
    shapes = [(), (*lead, M)] + ([lead[:1], (lead[0], M)] if lead else [])
    options = {
        "valid_lens": rng.integers(0, N + 2, size=shapes[rng.integers(len(shapes))]),
        "mask": rng.random((*lead, heads, M, N) if rng.random() < 0.5 else (M, N)) < 0.7,
        "bias": of_pairs(rng.normal(size=(heads, 1, N)), lead),
        "sink": rng.normal(size=(heads, 1)),
        "scale": rng.normal(size=heads),
        "causal": True,
        "window": tuple(map(int, rng.integers(-1, 3, 2))),
        "softcap": 1.5,
    }
    x |= {name: value for name, value in options.items() if rng.random() < 0.3}
    x |= {"dropout_p": 0.3, "seed": 5} if rng.random() < 0.3 else {}
    return x | {"empty_rows": str(rng.choice(["uniform", "zero", "nan"]))}


def assert_near(got: Any, expected: Any, name: str) -> None:
    if expected is None:
        assert got is None, name
        return
    finite = np.abs(np.asarray(expected)[np.isfinite(expected)])
    atol = 1e-4 * max(1.0, float(finite.max(initial=0)))
    assert_allclose(got, expected, rtol=1e-4, atol=atol, err_msg=name)


@pytest.mark.parametrize("seed", range(40))
def test_the_fast_function_is_this_one(seed: int) -> None:
    """NaN included, and what it does not reach. (How near float32 is, test_multi_head.py tells.)"""
    rng = np.random.default_rng(seed)
    x = random_call(rng)
    extras = {"return_weights": True, "return_lse": True}
    fast = attnext.multi_head_attention(**x, **extras)
    slow = multi_head_attention(**x, **extras)
    for name, got, expected in zip(("output", "weights", "lse"), fast, slow, strict=True):
        assert_near(got, expected, name)
    flow = [rng.normal(size=each.shape) for each in slow]
    more: dict[str, Any] = {"grad_weights": flow[1], "grad_lse": flow[2]}
    more |= {f"return_grad_{name}": True for name in ("bias", "sink", "scale")}
    d_fast = attnext.multi_head_attention_backward(flow[0], **x, **more)
    d_slow = multi_head_attention_backward(flow[0], **x, **more)
    for name in NAMES:
        assert_near(getattr(d_fast[0], name), getattr(d_slow[0], name), name)
    for name, got, expected in zip(("bias", "sink", "scale"), d_fast[1:], d_slow[1:], strict=True):
        assert_near(got, expected, name)
