"""attnext.torch.MultiHeadAttention beside d2l's classes and torch's, in float64 and float32."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from d2l_layers import LazyMultiHeadAttention, MultiHead, MultiHeadAttention
from torch import Tensor, nn

import attnext.torch as ours

E, HEADS, B, M, N = 12, 4, 2, 5, 7
LENS = torch.tensor([3, 7])


# ---- how near is near ----------------------------------------------------------------------------


def assert_as_near(ours: Tensor, theirs: Tensor, truth: Tensor, name: str = "") -> None:
    """As near to float64 as torch's float32: twice its error, and 2e-6 of the largest number.

    The bias of the keys adds the same to all scores of a row: its gradient is 0 but for rounding.
    """
    assert ours.shape == truth.shape, name
    error, bound = ((x - truth).abs().max() for x in (ours.detach(), theirs.detach()))
    largest = 10.0 if name == "W_k.bias" else truth.abs().max()
    assert error <= 2 * bound + 2e-6 * largest, name


def inputs(*sizes: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = (M, N, N)
    made = [torch.randn(B, n, d, generator=generator) for n, d in zip(rows, sizes, strict=True)]
    return [x.to(dtype).requires_grad_() for x in made]


def results(layer: Any, x: list[Tensor], lens: Tensor | None) -> dict[str, Tensor]:
    output = layer(*x, lens)
    weights = layer.attention_weights
    (output.square().sum() + weights.square().sum()).backward()
    made = {"output": output, "weights": weights.reshape(B, HEADS, M, N)}
    made |= {f"d_{n}": each.grad for n, each in zip(("q", "k", "v"), x, strict=True)}
    return made | {name: p.grad for name, p in layer.named_parameters()}


# ---- both editions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "arguments", "named"),
    [
        (MultiHeadAttention, (8, 6, 5, E, HEADS, 0.0), {}),
        (MultiHeadAttention, (8, 6, 5, E, HEADS, 0.0, True), {}),
        (
            MultiHeadAttention,
            (8, 6),
            {"value_size": 5, "num_hiddens": E, "num_heads": HEADS, "dropout": 0},
        ),
        (LazyMultiHeadAttention, (E, HEADS, 0.0), {}),
        (LazyMultiHeadAttention, (E, HEADS, 0.0, True), {}),
        (
            LazyMultiHeadAttention,
            (),
            {"num_hiddens": E, "num_heads": HEADS, "dropout": 0, "bias": True},
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("lens", [None, LENS, torch.arange(10).reshape(2, 5) % 8], ids=str)
def test_the_same_seed_gives_the_same_numbers(
    theirs: type[MultiHead], arguments: tuple[Any, ...], named: dict[str, Any], lens: Tensor | None
) -> None:
    made = []
    for kind in (ours.MultiHeadAttention, theirs):
        torch.manual_seed(1)
        layer: Any = kind(*arguments, **named)
        double = copy.deepcopy(layer).double()
        torch.manual_seed(2 if theirs is LazyMultiHeadAttention else 1)  # drawn at the call, or not
        made.append(results(layer, inputs(6, 8, 5), lens))
        made[-1] |= {f"drawn {name}": x.detach() for name, x in layer.named_parameters()}
        made[-1]["next"] = torch.rand(())  # nothing else was drawn
    exact = made[1]
    if theirs is MultiHeadAttention:
        exact = results(double, inputs(6, 8, 5, dtype=torch.float64), lens)
    assert made[0].keys() == made[1].keys()
    for name, x in made[0].items():
        if name.startswith("drawn") or name == "next":
            assert torch.equal(x, made[1][name])
        else:
            assert_as_near(x, made[1][name], exact[name].double(), name)


def test_help_shows_the_sizes() -> None:
    shown = list(inspect.signature(ours.MultiHeadAttention).parameters)
    expected = "key_size query_size value_size num_hiddens num_heads dropout bias num_kv_heads"
    assert shown == expected.split()


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ((E, HEADS, 0.0, 1), {}, r"bias must be a bool, got int"),
        ((E,), {}, r"MultiHeadAttention\(12\): expected \(key_size, query_size, value_size, "
         r"num_hiddens, num_heads, dropout=0.0, bias=False\), as in d2l's Chinese edition, or "
         r"\(num_hiddens, num_heads, dropout=0.0, bias=False\), as in the English edition; "
         r"pass num_kv_heads by name"),
        ((E, HEADS), {"key_size": 3}, r"MultiHeadAttention\(12, 4, key_size=3\): expected"),
        ((E, 5), {}, r"num_hiddens is 12, expected a multiple of num_heads \(5\)"),
        ((E, 0), {}, "num_heads is 0, expected num_heads >= 1"),
        ((E, HEADS), {"num_kv_heads": 3},
         r"num_kv_heads is 3, expected a divisor of num_heads \(4\)"),
        ((E, HEADS, 1.5), {}, "dropout is 1.5, expected 0 <= dropout < 1"),
        ((1.5, 2, 2, E, HEADS), {}, "key_size must be an int, got float"),
    ],
)  # fmt: skip
def test_wrong_constructions(arguments: Any, named: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        ours.MultiHeadAttention(*arguments, **named)


def test_wrong_calls() -> None:
    layer = ours.MultiHeadAttention(8, 6, 5, E, HEADS)
    q, k, v = (x.detach() for x in inputs(6, 8, 5))
    for call, message in {
        lambda: layer(
            k, k, v
        ): r"queries has shape \(2, 7, 8\), expected \(..., M, 6\) because query_size",
        lambda: layer(
            q, q, v
        ): r"keys has shape \(2, 5, 6\), expected \(..., N, 8\) because key_size is 8",
        lambda: layer(
            q, k, k
        ): r"values has shape \(2, 7, 8\), expected \(..., N, 5\) because value_size",
        lambda: layer(
            q, k, v.double()
        ): "values has dtype torch.float64 and queries has torch.float32",
        lambda: layer(q, k, v, mask=torch.ones(B, M, N).bool()): "mask has shape",
        lambda: layer(q, k, v, key_padding_mask=None): r"forward\(\) got an unexpected keyword",
        lambda: layer(q, k, v, need_weights=1): "need_weights must be a bool, got int",
        lambda: ours.MultiHeadAttention(E, HEADS)(q[0, 0], k, v): r"queries has shape \(6,\), exp",
    }.items():
        with pytest.raises((TypeError, ValueError), match=f"^{message}"):
            call()


# ---- state dicts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_state_dicts_of_d2l(bias: bool) -> None:
    theirs = MultiHeadAttention(8, 6, 5, E, HEADS, 0.0, bias)
    x = inputs(6, 8, 5)
    for layer in (
        ours.MultiHeadAttention(8, 6, 5, E, HEADS, 0.0, bias),
        ours.MultiHeadAttention(E, HEADS, 0.0, bias),
    ):
        assert layer.load_state_dict(theirs.state_dict()) is not None
        assert_as_near(layer(*x, LENS), theirs(*x, LENS), theirs(*x, LENS).detach().double())
        theirs.load_state_dict(layer.state_dict())
        assert list(layer.state_dict()) == list(theirs.state_dict())


@pytest.mark.parametrize("sizes", [(E, E, E), (E, 8, 5)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
def test_state_dicts_of_torch(sizes: tuple[int, int, int], bias: bool, lazy: bool) -> None:
    """Of a layer in another module, whose names have a prefix."""
    query_size, key_size, value_size = sizes
    theirs = nn.ModuleList(
        [nn.MultiheadAttention(E, HEADS, 0, bias, kdim=sizes[1], vdim=sizes[2], batch_first=True)]
    )
    if bias:
        nn.init.normal_(theirs[0].in_proj_bias)
        nn.init.normal_(theirs[0].out_proj.bias)
    of_inputs = () if lazy else (key_size, query_size, value_size)
    layer = nn.ModuleList([ours.MultiHeadAttention(*of_inputs, E, HEADS, 0.0, bias)])
    state = theirs.state_dict()
    layer.load_state_dict(state)
    assert state.keys() == theirs.state_dict().keys()  # left as it was
    x = inputs(*sizes)
    expected, weights = theirs[0](*x, average_attn_weights=False)
    exact, exact_weights = copy.deepcopy(theirs[0]).double()(
        *inputs(*sizes, dtype=torch.float64), average_attn_weights=False
    )
    assert_as_near(layer[0](*x), expected, exact.detach())
    assert_as_near(layer[0].attention_weights, weights, exact_weights.detach())


def test_unknown_names_in_a_state_dict() -> None:
    layer = ours.MultiHeadAttention(E, E, E, E, HEADS)
    theirs = nn.MultiheadAttention(E, HEADS, bias=False, add_bias_kv=True)
    with pytest.raises(RuntimeError, match="bias_k"):
        layer.load_state_dict(theirs.state_dict())


# ---- what it computes ----------------------------------------------------------------------------


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_shared_heads(kv_heads: int) -> None:
    """As with the heads of keys and values repeated."""
    torch.manual_seed(0)
    layer = ours.MultiHeadAttention(E, E, E, E, HEADS, bias=True, num_kv_heads=kv_heads)
    assert layer.W_k.weight.shape == (3 * kv_heads, E) and "num_kv_heads" in repr(layer)
    whole = MultiHeadAttention(E, E, E, E, HEADS, 0.0, True).double()
    state = {name: x.double() for name, x in layer.state_dict().items()}
    for name in ("W_k.weight", "W_k.bias", "W_v.weight", "W_v.bias"):
        parts = state[name].unflatten(0, (kv_heads, -1))
        state[name] = parts.repeat_interleave(HEADS // kv_heads, 0).flatten(0, 1)
    whole.load_state_dict(state)
    x = inputs(E, E, E)
    made = results(layer, x, LENS)
    exact = results(whole, inputs(E, E, E, dtype=torch.float64), LENS)
    for name, truth in exact.items():
        if name[:3] in ("W_k", "W_v"):
            truth = truth.unflatten(0, (kv_heads, -1, 3)).sum(1).flatten(0, 1)
        assert_as_near(made[name], truth.float(), truth, name)


def test_options_flow_to_the_function() -> None:
    layer = ours.MultiHeadAttention(E, E, E, E, HEADS, bias=True)
    x = inputs(E, E, E)
    bias = torch.randn(1, HEADS, 1, N, requires_grad=True)
    sink = torch.randn(HEADS, 1, requires_grad=True)
    options = {"causal": True, "causal_offset": 2, "softcap": 3.0, "bias": bias, "sink": sink}
    output = layer(*x, LENS, **options)
    parameters = {f"W_{n}": getattr(layer, f"W_{n}").weight for n in "qkvo"}
    parameters |= {f"b_{n}": getattr(layer, f"W_{n}").bias for n in "qkvo"}
    same, weights, lse = ours.multi_head_attention(
        *x, **parameters, valid_lens=LENS, num_heads=HEADS, **options,
        return_weights=True, return_lse=True,
    )  # fmt: skip
    assert torch.equal(output, same) and torch.equal(layer.attention_weights, weights)
    output.sum().backward()
    assert bias.grad is not None and sink.grad is not None and lse.shape == (B, HEADS, M)


def test_the_weights_of_d2l() -> None:
    """Where its code looks for them, and in its shape; in the graph, until the next call."""
    layer = ours.MultiHeadAttention(E, E, E, E, HEADS)
    x = inputs(E, E, E)
    layer(*x, LENS)
    assert layer.attention_weights.shape == (B, HEADS, M, N)
    flat = layer.attention.attention_weights
    assert torch.equal(flat.reshape(B, HEADS, M, N), layer.attention_weights)
    flat.square().sum().backward()
    assert layer.W_q.weight.grad is not None and layer.W_o.weight.grad is not None
    assert (layer.W_o.weight.grad == 0).all()
    layer(*x, need_weights=False)
    assert layer.attention_weights is None and layer.attention.attention_weights is None
    layer(*(each[0] for each in x))
    assert layer.attention.attention_weights.shape == (HEADS, M, N)


def test_dropout() -> None:
    """In training only; by torch's generator; on the weights after they were shown."""
    layer = ours.MultiHeadAttention(E, E, E, E, HEADS, dropout=0.5)
    x = inputs(E, E, E)
    torch.manual_seed(3)
    first, weights = layer(*x), layer.attention_weights
    torch.manual_seed(3)
    assert torch.equal(layer(*x), first)
    assert not torch.equal(layer(*x), first)
    layer.eval()
    assert torch.equal(layer(*x), layer(*x))
    assert torch.equal(layer.attention_weights, weights)


def test_copies() -> None:
    layer = ours.MultiHeadAttention(E, HEADS, 0.25, True)
    for unused in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert unused.dropout.p == 0.25
    x = inputs(E, E, E)
    layer.eval()
    expected = layer(*x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin.attention_weights is None and twin.attention.attention_weights is None
        assert torch.equal(twin(*x), expected)


# ---- linear layers that are more -----------------------------------------------------------------


def _hooks(layer: Any) -> None:
    for name in ("W_q", "W_k", "W_v", "W_o"):
        getattr(layer, name).register_forward_hook(lambda module, args, output: 2 * output)


def _parametrized(layer: Any) -> None:
    for name in ("W_q", "W_o"):
        nn.utils.parametrizations.orthogonal(getattr(layer, name))


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.linspace(-1, 1, 2 * base.in_features).reshape(2, -1))
        self.B = nn.Parameter(torch.linspace(-1, 1, 2 * base.out_features).reshape(-1, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.A.T @ self.B.T


def _lora(layer: Any) -> None:
    for name in ("W_q", "W_v", "W_o"):
        setattr(layer, name, LoRA(getattr(layer, name)))


@pytest.mark.parametrize("change", [_hooks, _parametrized, _lora])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_layers_that_do_more(change: Callable[[Any], None], bias: bool) -> None:
    theirs = MultiHeadAttention(E, E, E, E, HEADS, 0.0, bias)
    layer = ours.MultiHeadAttention(E, E, E, E, HEADS, 0.0, bias)
    layer.load_state_dict(theirs.state_dict())
    for each in (layer, theirs):
        torch.manual_seed(0)
        change(each)
    exact = copy.deepcopy(theirs).double()
    found = results(layer, inputs(E, E, E), LENS)
    near = results(theirs, inputs(E, E, E), LENS)
    truth = results(exact, inputs(E, E, E, dtype=torch.float64), LENS)
    assert found.keys() == near.keys()
    for name, x in found.items():
        assert_as_near(x, near[name], truth[name], name)


# ---- compiled, autocast, refused -----------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_compiled() -> None:
    """One graph, sizes left open, the bits of eager, forward and backward."""
    torch._dynamo.reset()
    layer = ours.MultiHeadAttention(E, E, E, E, HEADS, bias=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for rows in (5, 6, 9):
        both = []
        for call in (layer, compiled):
            x = torch.randn(2, rows, E, generator=torch.Generator().manual_seed(1))
            x.requires_grad_()
            layer.zero_grad()
            output = call(x, x, x, LENS, causal=True)
            (output.sum() + layer.attention_weights.square().sum()).backward()
            both.append([output, x.grad, *(p.grad for p in layer.parameters())])
        for eager, graph in zip(*both, strict=True):
            assert torch.equal(eager, graph)


def test_autocast() -> None:
    """Inputs of bfloat16 are computed in float32."""
    layer = ours.MultiHeadAttention(E, E, E, E, HEADS)
    x = [each.detach().bfloat16() for each in inputs(E, E, E)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(*x, LENS)
    assert output.dtype is torch.float32
    assert torch.equal(output, layer(*(each.float() for each in x), LENS))


def test_padding_is_not_read() -> None:
    layer = ours.MultiHeadAttention(E, E, E, E, HEADS, bias=True)
    clean, dirty = inputs(E, E, E), inputs(E, E, E)
    with torch.no_grad():
        for x in dirty[1:]:
            x[0, 3:] = np.nan
    made = [results(layer, x, LENS) for x in (clean, dirty)]
    # Gradients of the parameters add up over both.
    for name in ("output", "weights", "d_q", "d_k", "d_v"):
        assert torch.equal(made[0][name], made[1][name]), name
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


# ---- how the three classes differ: the table of docs/semantics.md --------------------------------


def test_what_torchs_class_does_otherwise() -> None:
    """Each row of the table that is about torch.nn.MultiheadAttention."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(E, HEADS, dropout=0.5, batch_first=True).eval()
    X = torch.randn(B, M, E)
    padding = torch.tensor([[False] * 3 + [True] * 2, [True] * M])  # True: leave out
    layer = ours.MultiHeadAttention(E, E, E, E, HEADS, bias=True)
    layer.load_state_dict(theirs.state_dict())
    mask = ~padding[:, None, None, :]

    output, weights = theirs(X, X, X, key_padding_mask=padding)
    assert weights.shape == (B, M, M)  # the mean of the heads
    same = layer(X, X, X, mask=mask)
    assert_as_near(same[0], output[0], output[0].detach().double())
    assert_as_near(layer.attention_weights[0].mean(0), weights[0], weights[0].detach().double())

    assert output[1].isnan().all()  # a query with no key
    theirs(X, X, X, key_padding_mask=padding)[0][0].sum().backward()
    assert theirs.in_proj_weight.grad.isnan().any()  # though the loss leaves that row out
    same[0].sum().backward()
    assert torch.isfinite(layer.W_q.weight.grad).all()
    zero = theirs(X, X, X, key_padding_mask=padding, need_weights=False)[0][1]
    assert torch.equal(zero, layer(X, X, X, mask=mask, empty_rows="zero")[1])  # the bias of W_o

    poisoned = X.clone()
    poisoned[0, 3:] = torch.nan
    assert theirs(X, poisoned, poisoned, key_padding_mask=padding)[0][0].isnan().any()
    assert torch.isfinite(layer(X, poisoned, poisoned, mask=mask)[0]).all()

    theirs.train()
    _, dropped = theirs(X, X, X, average_attn_weights=False)
    assert (dropped == 0).any() and dropped.shape == (B, HEADS, M, M)  # after dropout
    assert (theirs.in_proj_bias == 0).all()


def test_a_key_of_zeros_is_a_sink_of_zero() -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(E, HEADS, add_zero_attn=True, batch_first=True)
    layer = ours.MultiHeadAttention(E, E, E, E, HEADS, bias=True)
    layer.load_state_dict(theirs.state_dict())
    X = torch.randn(B, M, E)
    expected, _ = theirs(X, X, X)
    exact = copy.deepcopy(theirs).double()(*[X.double()] * 3)[0].detach()
    assert_as_near(layer(X, X, X, sink=torch.zeros(1)), expected, exact)
