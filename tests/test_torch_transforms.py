"""attnext.torch under autocast, torch.func and forward-mode AD, and in a compiled graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import attnext.torch as ours

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated")  # torch's own, of torch.jit

torch.manual_seed(0)
Q, K, V = torch.randn(2, 3, 4), torch.randn(2, 150, 4), torch.randn(2, 150, 5)
W = torch.randn(6, 4), torch.randn(6, 4), torch.randn(6)
LENS = torch.tensor([2, 60])

FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "dot": lambda q, k, v: ours.dot_product_attention(q, k, v, LENS, bias=q[..., :1]),
    "cosine": lambda q, k, v: ours.cosine_attention(q, k, v, mask=torch.ones(150) > 0, eps=1e-3),
    "additive": lambda q, k, v: ours.additive_attention(
        q, k, v, *W, LENS, b_h=W[2], return_weights=True, return_lse=True
    ),
    "gaussian": lambda q, k, v: ours.gaussian_attention(q, k, v, sigma=q.abs().mean()),
    "sink": lambda q, k, v: ours.dot_product_attention(
        q, k, v, LENS, sink=q[..., 0], scale=q[:, 0, 1], softcap=0.8, return_lse=True
    ),
    "scales of cosines": lambda q, k, v: ours.cosine_attention(q, k, v, scale=q[0, 0, 0]),
    "scales of scores": lambda q, k, v: ours.cosine_scores(q, k, scale=v[:, 0, 0], softcap=0.8),
    "dot scores": lambda q, k, v: ours.dot_product_scores(q, k, scale=0.3),
    "cosine scores": lambda q, k, v: ours.cosine_scores(q, k, scale=10),
    "additive scores": lambda q, k, v: ours.additive_scores(q, k, *W, b_h=W[2]),
    "gaussian scores": lambda q, k, v: ours.gaussian_scores(q, k, w=v.abs().mean()),
    "masked_softmax": lambda q, k, v: ours.masked_softmax(k, LENS, empty_rows="zero"),
    "sequence_mask": lambda q, k, v: ours.sequence_mask(k, LENS, value=0.5),
    "merge": lambda q, k, v: ours.merge_attention([k, k + 1], [k[..., 0], k[..., 1]]),
}


def results(function: Callable[..., Any], *inputs: Tensor) -> list[Tensor | None]:
    """What it makes, and the gradients."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    made = function(*leaves)
    made = made if isinstance(made, tuple) else (made,)
    loss = torch.stack([x.square().sum() for x in made]).sum()
    return [*made, *torch.autograd.grad(loss, leaves, allow_unused=True)]


def assert_equal(got: list[Tensor | None], expected: list[Tensor | None]) -> None:
    for x, y in zip(got, expected, strict=True):
        assert (x is None and y is None) or torch.equal(x, y)


# ---- autocast ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_autocast_computes_in_float32(name: str, dtype: torch.dtype) -> None:
    """The results are those of the numbers in float32, gradients come back in the dtype given."""
    low = [x.to(dtype) for x in (Q, K, V)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = results(FUNCTIONS[name], *low)
    expected = results(FUNCTIONS[name], *[x.float() for x in low])
    exact = name not in (
        "gaussian",
        "gaussian scores",
        "merge",
        "sink",
    )  # which compute something in dtype, or add up gradients in it
    for x, y in zip(got[-3:], expected[-3:], strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            assert x.dtype == dtype
            assert not exact or torch.equal(x, y.to(dtype))
    assert all(x.dtype == torch.float32 for x in got[:-3])
    if exact:
        assert_equal(got[:-3], expected[:-3])


def test_a_layer_under_autocast() -> None:
    layer = ours.AdditiveAttention(4, 4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        head = torch.nn.Linear(4, 4)
        output = layer(head(Q), head(K), V, LENS)
    assert output.dtype == torch.float32
    output.sum().backward()
    assert layer.W_q.weight.grad.dtype == head.weight.grad.dtype == torch.float32
    half = ours.AdditiveAttention(4, 4, 6).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half(Q, K, V, LENS).sum().backward()
    assert half.W_q.weight.grad.dtype == torch.bfloat16


def test_autocast_leaves_float64_as_it_is() -> None:
    with torch.autocast("cpu"):
        low = ours.dot_product_attention(Q.double(), K.double(), V.double(), LENS)
    assert torch.equal(low, ours.dot_product_attention(Q.double(), K.double(), V.double(), LENS))
    with torch.autocast("cpu", enabled=False), pytest.raises(TypeError, match=r"\.float\(\)"):
        ours.masked_softmax(Q.bfloat16())


# ---- transforms ----------------------------------------------------------------------------------


def to_sum(q: Tensor) -> Tensor:
    return ours.dot_product_attention(q, K, V).sum()


def test_constants_within_a_transform_are_computed_in_c() -> None:
    """Those that the transform does not know."""
    of_c = to_sum(Q)
    with forward_ad.dual_level():
        assert torch.equal(to_sum(Q), of_c)
    assert torch.equal(torch.func.vmap(lambda x: x + to_sum(Q))(Q), Q + of_c)
    d, value = torch.func.grad_and_value(lambda x: (x * to_sum(Q)).sum())(Q)
    assert torch.equal(d, of_c.expand_as(Q)) and torch.equal(value, (Q * of_c).sum())


# ---- torch.compile -------------------------------------------------------------------------------


def compiled(function: Callable[..., Any], **how: Any) -> Any:
    """Without Inductor, which would compile C++ for a minute; one graph or an error."""
    return torch.compile(function, backend="aot_eager", fullgraph=True, **how)


def test_compiled_functions_have_the_bits_of_the_eager_ones() -> None:
    """All of them in one graph, each with inputs of its own."""
    of: list[str] = []  # whose result each is

    def together(*inputs: Tensor) -> tuple[Tensor, ...]:
        made: list[Tensor] = []
        for i, function in enumerate(FUNCTIONS.values()):
            found = function(*inputs[3 * i : 3 * i + 3])
            made.extend(found if isinstance(found, tuple) else (found,))
        return tuple(made)

    inputs = len(FUNCTIONS) * (Q, K, V)
    got, expected = results(compiled(together), *inputs), results(together, *inputs)
    for name, function in FUNCTIONS.items():
        made = function(Q, K, V)
        of += [name] * (len(made) if isinstance(made, tuple) else 1)
    of += [f"gradients of {name}" for name in FUNCTIONS for _ in range(3)]
    for name, x, y in zip(of, got, expected, strict=True):
        assert (x is None and y is None) or torch.equal(x, y), name


def test_a_loss_of_the_output_alone_and_one_of_nothing() -> None:
    """A graph has zeros where eager has no gradient, and C adds up in another order with them."""
    torch._dynamo.reset()  # below, one function becomes several graphs
    cases = (("additive", 1.0), ("merge", 1.0), ("dot scores", 0.0), ("sequence_mask", 0.0))
    for name, factor in cases:

        def scaled(*x: Tensor, name: str = name, factor: float = factor) -> Any:
            made = FUNCTIONS[name](*x)
            made = made if isinstance(made, tuple) else (made,)
            return made[0] * factor, *[x.detach() for x in made[1:]]

        leaves = [[x.clone().requires_grad_() for x in (Q, K, V)] for _ in range(2)]
        d = [
            torch.autograd.grad(f(*x)[0].sum(), x, allow_unused=True)
            for f, x in zip((compiled(scaled), scaled), leaves, strict=True)
        ]
        assert_equal(list(d[0]), list(d[1]))


def test_compiled_options() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return ours.dot_product_attention(
            q, k, v, [[2, 3, 4], [60, 0, 7]], scale=0.3, window=(60, 70), causal_offset=40,
            softcap=0.8, empty_rows="zero", dropout_p=0.2, seed=2**64 - 1,
            mask=np.arange(150) % 7 > 0,
        )  # fmt: skip

    assert_equal(results(compiled(function), Q, K, V), results(function, Q, K, V))


def test_a_compiled_call_with_lists_of_scales() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return ours.dot_product_attention(q, k, v, scale=[0.3, 2.0], softcap=2)

    assert_equal(results(compiled(function), Q, K, V), results(function, Q, K, V))


def test_one_graph_for_many_sizes() -> None:
    """Sizes, and numbers made of them, are left open."""
    graphs: list[Any] = []

    def count(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        n, m = k.shape[1], q.shape[1]
        return ours.dot_product_attention(q, k, v, n - 3, causal=True, causal_offset=n - m)

    one = torch.compile(function, backend=count, fullgraph=True, dynamic=True)
    for n in (9, 14, 150):
        assert_equal(results(one, Q, K[:, :n], V[:, :n]), results(function, Q, K[:, :n], V[:, :n]))
    assert len(graphs) == 1


@pytest.mark.parametrize("kind", ["dot", "additive"])
def test_a_compiled_layer(kind: str) -> None:
    torch._dynamo.reset()
    layer: Any = ours.DotProductAttention() if kind == "dot" else ours.AdditiveAttention(4, 4, 6)
    expected = results(lambda *x: layer(*x, LENS), Q, K, V)
    assert_equal(results(lambda *x: compiled(layer)(*x, LENS), Q, K, V), expected)
    assert layer.attention_weights.shape == (2, 3, 150)


def test_a_compiled_layer_in_training_draws_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = ours.DotProductAttention(0.5)
    one = compiled(layer)
    torch.manual_seed(3)
    first, second = one(Q, K, V, LENS), one(Q, K, V, LENS)
    torch.manual_seed(3)
    assert torch.equal(one(Q, K, V, LENS), first) and not torch.equal(first, second)


def test_errors_of_a_compiled_call_are_those_of_the_eager_one() -> None:
    one = compiled(lambda q: ours.dot_product_attention(q, K, V, torch.tensor([1, 2, 3])))
    with pytest.raises(ValueError, match=r"valid_lens has shape \(3,\), expected"):
        one(Q)


def test_transforms_in_a_compiled_graph() -> None:
    """The graph breaks there."""
    for transformed in (
        torch.func.vmap(ours.masked_softmax),
        torch.func.grad(to_sum),
        lambda q: torch.func.jvp(to_sum, (q,), (q,))[1],
        lambda q: ours.masked_softmax(q.double()),
    ):
        compiled_one = torch.compile(transformed, backend="aot_eager")
        torch.testing.assert_close(compiled_one(Q), transformed(Q))


def test_what_a_broken_graph_leaves_is_not_compiled() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    torch.compile(lambda q: ours.masked_softmax(q.double(), LENS) * 2, backend=keep)(Q)
    called = [node.target for graph in graphs for node in graph.graph.nodes if "call" in node.op]
    assert called[-1] is operator.mul and not {torch.softmax, torch.where} & {*called}


# ---- torch.jit.trace -----------------------------------------------------------------------------


LAYERS: dict[str, Callable[[], Any]] = {
    "dot": ours.DotProductAttention,
    "additive": lambda: ours.AdditiveAttention(4, 4, 6, bias=True),
    "heads": lambda: ours.MultiHeadAttention(4, 4, 5, 6, 2),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_a_traced_layer_computes(kind: str, tmp_path: Path) -> None:
    """Not what it gave while it was traced: other numbers, sizes and lengths."""
    layer = LAYERS[kind]()
    torch.jit.trace(layer, (Q, K, V, LENS)).save(tmp_path / "layer.pt")
    traced = torch.jit.load(tmp_path / "layer.pt")
    inputs = torch.randn(3, 2, 4), torch.randn(3, 9, 4), torch.randn(3, 9, 5)
    lens = torch.tensor([9, 1, 4])
    assert_equal(
        results(lambda *x: traced(*x, lens), *inputs), results(lambda *x: layer(*x, lens), *inputs)
    )
