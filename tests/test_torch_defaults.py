"""What attnext.torch computes does not depend on torch's default dtype and default device.

Every function and layer runs, forward and backward, as a program has it that has set a default, and
gives the bits, dtypes and devices that it gives without. What it makes inside it makes for what
came.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnext.torch as ours
from attnext.torch.nn import MultiheadAttention

X, Y = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
W = torch.randn(4, 8, 8) / 4
LENS, MASK = torch.tensor([2, 5]), torch.rand(2, 3, 5) < 0.6
PADDING = torch.tensor([[False] * 5, [False, False, True, False, True]])
AT_THE_END = torch.arange(5) >= LENS[:, None]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


SETTINGS: dict[str, Callable[[], Any]] = {
    "float64": lambda: default_dtype(torch.float64),
    "float16": lambda: default_dtype(torch.float16),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "meta": lambda: default_device("meta"),
    "block on meta": lambda: torch.device("meta"),
}


# ---- calls ---------------------------------------------------------------------------------------

# Each takes tensors that learn, queries and keys, and gives tensors.
Run = Callable[[Tensor, Tensor], Any]
ALL: dict[str, Any] = {"return_weights": True, "return_lse": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lens": {"valid_lens": LENS, **ALL},
    "list": {"valid_lens": [2, 0], "empty_rows": "nan", **ALL},
    "dropout": {"dropout_p": 0.4, **ALL},
    "mask": {"mask": MASK, "causal": True, "empty_rows": "zero", "return_lse": True},
    "window": {"window": (1, 2), "causal_offset": [1, 0], "softcap": 2.0},
    "bias": {"bias": torch.randn(5), "sink": torch.randn(()), **ALL},
}


def functions() -> Iterator[tuple[str, Run]]:
    def of(function: Any, more: tuple[Any, ...], options: dict[str, Any]) -> Run:
        def run(q: Tensor, k: Tensor) -> Any:
            parameters = [w.to(q.dtype) if isinstance(w, Tensor) else w for w in more]
            given = {n: x.to(q.dtype) if n in ("bias", "sink") else x for n, x in options.items()}
            return function(q, k, k, *parameters, **given)

        return run

    for name, options in OPTIONS.items():
        yield f"dot {name}", of(ours.dot_product_attention, (), options)
        yield f"cosine {name}", of(ours.cosine_attention, (), options)
        yield f"additive {name}", of(ours.additive_attention, (W[0], W[1], W[2, 0]), options)
        yield f"gaussian {name}", of(ours.gaussian_attention, (), {**options, "sigma": 1.5})
        heads = {n: x for n, x in options.items() if n not in ("causal_offset", "mask")}
        yield f"heads {name}", of(ours.multi_head_attention, tuple(W), {**heads, "num_heads": 2})
    yield "dot_scores", lambda q, k: ours.dot_product_scores(q, k, scale=0.5)
    yield "cosine_scores", lambda q, k: ours.cosine_scores(q, k)
    yield "gaussian_scores", lambda q, k: ours.gaussian_scores(q, k, w=0.5)
    yield "softmax", lambda q, k: ours.masked_softmax(q @ k.mT, LENS, empty_rows="nan")
    yield "sequence_mask", lambda q, k: ours.sequence_mask(k, [2, 0], value=-1.0)
    yield "merge", lambda q, k: ours.merge_attention([q, q + 1], [q.sum(-1), q.mean(-1)])
    yield "learned scale", _learned_numbers
    for p in (0.0, 0.3, 1.0):
        yield f"sdpa {p}", lambda q, k, p=p: ours.scaled_dot_product_attention(q, k, k, MASK, p)


def _learned_numbers(q: Tensor, k: Tensor) -> list[Tensor]:
    scale, sigma = (q.detach().abs().mean().requires_grad_() for _ in range(2))
    output = ours.dot_product_attention(q, k, k, scale=scale)
    output = output + ours.gaussian_attention(q, k, k, sigma=sigma)
    return [output, *torch.autograd.grad(output.sum(), [scale, sigma], retain_graph=True)]


RUNS: dict[str, Run] = dict(functions())


def gradients(run: Run, dtype: torch.dtype, which: Callable[[list[Tensor]], list[Tensor]]) -> Any:
    """What a call gives, and the gradients from these of its results."""
    torch.manual_seed(5)
    q, k = (x.to(dtype, copy=True).requires_grad_() for x in (X, Y))
    made = run(q, k)
    results = [x for x in (made if isinstance(made, tuple | list) else [made]) if x is not None]
    roots = [x for x in which(results) if x.requires_grad]
    if not roots:
        return results
    loss = sum((x.masked_fill(x == -math.inf, 0).square().sum() for x in roots), X.new_zeros(()))
    found = torch.autograd.grad(loss, [q, k], allow_unused=True)
    return [*results, *found]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            assert x.dtype is y.dtype and x.device == y.device
            assert torch.equal(x.isnan(), y.isnan())
            assert torch.equal(x.nan_to_num(), y.nan_to_num())


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_functions(name: str, setting: str, dtype: torch.dtype) -> None:
    for which in (lambda x: x, lambda x: x[-1:]):  # lse alone, say: the output's gradient is zeros
        expected = gradients(RUNS[name], dtype, which)
        with SETTINGS[setting]():
            found = gradients(RUNS[name], dtype, which)
        assert_same(found, expected)


# ---- layers --------------------------------------------------------------------------------------


def pytorchs(mask: Tensor | None = None, weights: bool = True, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        layer = MultiheadAttention(8, 2, batch_first=True, **options)
        return lambda q, k: layer(q, k, k, key_padding_mask=mask, need_weights=weights)

    return make


def of_layer(layer: Any, **options: Any) -> Run:
    return lambda q, k: [layer(q, k, k, **options), layer.attention_weights]


def of_hooks() -> Run:
    layer = ours.AdditiveAttention(8, 8, 4, bias=True)
    for linear in (layer.W_q, layer.W_k, layer.w_v):
        linear.register_forward_hook(lambda module, args, output: output * 1.0)
    return of_layer(layer, valid_lens=LENS)


def of_memory(layer: Any) -> Run:
    def run(q: Tensor, k: Tensor) -> list[Tensor]:
        memory = layer.memory(k[:, :3], k[:, :3], LENS, mask=MASK[:, :1, :3])
        memory.append(k[:, 3:], k[:, 3:])
        steps = [layer(q[:, i : i + 1], memory) for i in range(3)]
        return [torch.cat(steps, 1), layer.attention_weights]

    return run


def nested(**options: Any) -> Run:
    layer = MultiheadAttention(8, 2, batch_first=True, **options)

    def run(q: Tensor, k: Tensor) -> Tensor:
        sequences = torch.nested.as_nested_tensor([k[0], k[1, :2]])
        output: Tensor = layer(sequences, sequences, sequences, need_weights=False)[0]
        return output.to_padded_tensor(0.0) + 0 * q[:, :1]

    return run


LAYERS: dict[str, Callable[[], Run]] = {
    "additive": lambda: of_layer(ours.AdditiveAttention(8, 8, 4, 0.5, bias=True)),
    "dot": lambda: of_layer(ours.DotProductAttention(0.5), valid_lens=[1, 0]),
    "heads": lambda: of_layer(ours.MultiHeadAttention(8, 8, 8, 8, 2, 0.5, True), valid_lens=LENS),
    "hooks": of_hooks,
    "additive memory": lambda: of_memory(ours.AdditiveAttention(8, 8, 4, 0.5)),
    "dot memory": lambda: of_memory(ours.DotProductAttention(0.5)),
    "heads memory": lambda: of_memory(ours.MultiHeadAttention(8, 8, 8, 8, 2, 0.5)),
    "nn": pytorchs(),
    "nn lengths": pytorchs(AT_THE_END),
    "nn padding": pytorchs(PADDING, weights=False),
    "nn dropout": pytorchs(PADDING, dropout=0.5),
    "nn dropout alone": pytorchs(PADDING, weights=False, dropout=0.5),
    "nn dropout of all": pytorchs(weights=False, dropout=1.0),
    "nn bias_kv": pytorchs(PADDING, add_bias_kv=True),
    "nn zero_attn": pytorchs(AT_THE_END, add_zero_attn=True, add_bias_kv=True, dropout=0.5),
    "nn nested": lambda: nested(),
    "nn nested zero_attn": lambda: nested(add_zero_attn=True),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_layers(name: str, setting: str) -> None:
    run = LAYERS[name]()
    expected = gradients(run, torch.float32, lambda x: x[:1])
    with SETTINGS[setting]():
        found = gradients(run, torch.float32, lambda x: x[:1])
    assert_same(found, expected)


@pytest.mark.parametrize("setting", SETTINGS)
def test_layers_of_float64(setting: str) -> None:
    layers = [ours.AdditiveAttention(8, 8, 4, 0.5, bias=True), ours.DotProductAttention(0.5)]
    layers += [ours.MultiHeadAttention(8, 8, 8, 8, 2, 0.5, True)]
    for layer in layers:
        run = of_layer(layer.double(), valid_lens=LENS)
        expected = gradients(run, torch.float64, lambda x: x)
        with SETTINGS[setting]():
            found = gradients(run, torch.float64, lambda x: x)
        assert_same(found, expected)


@pytest.mark.parametrize("setting", ["float64", "float16", "bfloat16"])
def test_second_derivatives_and_vmap(setting: str) -> None:
    def both() -> list[Tensor]:
        q, k = X.clone().requires_grad_(), Y.clone().requires_grad_()
        output = ours.dot_product_attention(q, k, k, LENS, causal=True, empty_rows="nan")
        (first,) = torch.autograd.grad(output.nan_to_num().square().sum(), q, create_graph=True)
        (second,) = torch.autograd.grad(first.nan_to_num().square().sum(), k)
        mapped = torch.func.vmap(lambda q, k: ours.dot_product_attention(q, k, k, 2))(X, Y)
        return [first.detach(), second, mapped]

    expected = both()
    with SETTINGS[setting]():
        found = both()
    assert_same(found, expected)


def test_parameters_are_made_as_pytorch_makes_them() -> None:
    """Parameters follow the defaults, as those of nn.Linear do."""
    makers: list[Callable[[], nn.Module]] = [
        lambda: ours.AdditiveAttention(8, 8, 4, bias=True),
        lambda: ours.MultiHeadAttention(8, 8, 8, 8, 2),
        lambda: MultiheadAttention(8, 2),
    ]
    for make in makers:
        with default_dtype(torch.float64), torch.device("meta"):
            assert {(p.dtype, p.is_meta) for p in make().parameters()} == {(torch.float64, True)}


def test_positions_are_float32_on_the_cpu() -> None:
    expected = ours.positional_encoding(3, 8)
    for setting in SETTINGS.values():
        with setting():
            found = ours.positional_encoding(3, 8)
        assert_same([found], [expected])
