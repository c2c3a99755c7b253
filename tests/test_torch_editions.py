"""attnext.torch.AdditiveAttention beside the classes of both editions of d2l, Chinese and English.

What they draw, what they compute and their gradients are ours.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from d2l_layers import Additive, AdditiveAttention, LazyAdditiveAttention
from torch import Tensor, nn

import attnext.torch as ours

LENS = torch.tensor([2, 6])
Call = tuple[Tensor, Tensor, Tensor, Tensor]


def call() -> Call:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3, 20), (2, 10, 2), (2, 10, 4))
    q, k, v = (torch.randn(shape, generator=generator).requires_grad_() for shape in shapes)
    return q, k, v, LENS


def results(layer: Any) -> dict[str, Tensor]:
    q, k, v, lens = call()
    output = layer(q, k, v, lens)
    (output.square().sum() + layer.attention_weights.square().sum()).backward()
    made = {"output": output, "weights": layer.attention_weights, "q": q.grad, "k": k.grad}
    return made | {"v": v.grad} | {name: x.grad for name, x in layer.named_parameters()}


@pytest.mark.parametrize(
    ("theirs", "arguments", "named"),
    [
        (AdditiveAttention, (2, 20, 8, 0.0), {}),
        (AdditiveAttention, (2, 20), {"num_hiddens": 8, "dropout": 0.0}),
        (AdditiveAttention, (), {"key_size": 2, "query_size": 20, "num_hiddens": 8, "dropout": 0}),
        (LazyAdditiveAttention, (8, 0.0), {}),
        (LazyAdditiveAttention, (8,), {"dropout": 0.0}),
        (LazyAdditiveAttention, (), {"num_hiddens": 8, "dropout": 0.0}),
    ],
    ids=str,
)
def test_the_same_seed_gives_the_same_numbers(
    theirs: type[Additive], arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    made = []
    for kind in (ours.AdditiveAttention, theirs):
        torch.manual_seed(1)
        layer: Any = kind(*arguments, **named)
        torch.manual_seed(2 if theirs is LazyAdditiveAttention else 1)  # drawn at the call, or not
        made.append(results(layer))
        made[-1] |= {f"drawn {name}": x.detach() for name, x in layer.named_parameters()}
        made[-1]["next"] = torch.rand(())  # nothing else was drawn
    assert made[0].keys() == made[1].keys()
    for name, x in made[0].items():
        if name.startswith("drawn") or name == "next":
            assert torch.equal(x, made[1][name]), name
        else:
            torch.testing.assert_close(x, made[1][name], rtol=1e-4, atol=1e-6, msg=name)


# ---- before the first call -----------------------------------------------------------------------


def through_pickle(layer: Any) -> Any:
    return pickle.loads(pickle.dumps(layer))


@pytest.mark.parametrize(
    "moved",
    [copy.deepcopy, through_pickle, lambda layer: layer.to("cpu"), lambda layer: layer.eval()],
    ids=["deepcopy", "pickle", "to", "eval"],
)
def test_a_layer_without_sizes_may_be_copied_and_moved(moved: Callable[[Any], Any]) -> None:
    layer = moved(ours.AdditiveAttention(8))
    assert repr(layer) == repr(LazyAdditiveAttention(8, 0.0)).replace(
        "LazyAdditiveAttention", "AdditiveAttention"
    ).replace("p=0.0", f"p={layer.dropout.p}")
    assert [name for name, _ in layer.named_parameters()] == [
        "W_k.weight",
        "W_q.weight",
        "w_v.weight",
    ]
    torch.manual_seed(3)
    expected = LazyAdditiveAttention(8, 0.0)
    output = expected(*call())
    torch.manual_seed(3)
    torch.testing.assert_close(layer(*call()), output, rtol=1e-5, atol=1e-6)
    assert type(layer.W_q) is nn.Linear and layer.W_k.in_features == 2
    assert repr(layer).splitlines()[1:] == repr(expected).splitlines()[1:]
    assert torch.equal(copy.deepcopy(layer)(*call()), layer(*call()))


@pytest.mark.parametrize("bias", [False, True])
def test_a_state_dict_goes_before_what_would_be_drawn(bias: bool) -> None:
    sized = ours.AdditiveAttention(2, 20, 8, bias=bias)
    file = io.BytesIO()
    torch.save(sized.state_dict(), file)
    file.seek(0)
    lazy = ours.AdditiveAttention(8, bias=bias)
    before = torch.get_rng_state()
    lazy.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(lazy(*call()), sized(*call()))
    assert torch.equal(torch.get_rng_state(), before)
    again = ours.AdditiveAttention(8, bias=bias)
    again.load_state_dict(ours.AdditiveAttention(8, bias=bias).state_dict())  # nothing, to nothing
    again.load_state_dict(lazy.state_dict())
    assert torch.equal(again(*call()), sized(*call()))


def test_an_optimizer_after_the_first_call() -> None:
    layer = ours.AdditiveAttention(8, 0.1)
    with torch.no_grad():
        layer(*call())
    before = layer.W_q.weight.clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(*call()).square().sum().backward()
    optimizer.step()
    assert not torch.equal(layer.W_q.weight, before)


def test_a_bias_is_drawn_with_the_rest() -> None:
    layer = ours.AdditiveAttention(200, bias=True)
    layer(*call())
    largest = layer.b_h.detach().abs().max()
    assert 0.9 * 20**-0.5 < largest <= 20**-0.5
    kept = layer.b_h.detach().clone()
    layer(*call())
    assert torch.equal(layer.b_h, kept)


def test_without_sizes_in_a_compiled_graph() -> None:
    layer = ours.AdditiveAttention(8)
    with torch.no_grad():
        layer(*call())
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*call()), layer(*call()))


# ---- what is refused -----------------------------------------------------------------------------

OTHERS = (
    "expected (key_size, query_size, num_hiddens, dropout=0.0), as in d2l's Chinese edition, or "
)


@pytest.mark.parametrize(
    ("arguments", "named", "kind", "message"),
    [
        ((), {}, TypeError, "AdditiveAttention(): " + OTHERS),
        ((2,), {"query_size": 20}, TypeError, "AdditiveAttention(2, query_size=20): " + OTHERS),
        ((1, 2, 3, 0.1, True), {}, TypeError, "AdditiveAttention(1, 2, 3, 0.1, True): " + OTHERS),
        ((8,), {"heads": 2}, TypeError, "AdditiveAttention(8, heads=2): " + OTHERS),
        ((8,), {"num_hiddens": 8}, TypeError, "AdditiveAttention(8, num_hiddens=8): " + OTHERS),
        ((2, 20), {}, ValueError, "dropout is 20"),
        ((8.0, 0.1), {}, TypeError, "num_hiddens must be an int, got float"),
        ((0, 0.1), {}, ValueError, "num_hiddens is 0, expected num_hiddens >= 1"),
    ],
    ids=str,
)
def test_other_arguments(
    arguments: tuple[Any, ...], named: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        ours.AdditiveAttention(*arguments, **named)
    assert str(caught.value).startswith(message)


def test_a_wrong_first_call_draws_nothing() -> None:
    q, k, v, lens = call()
    layer = ours.AdditiveAttention(8)
    for queries, keys, message in (
        (q[0, 0], k, "queries has shape"),
        (q, k[0, 0], "keys has shape"),
        (q.double(), k, "keys has dtype"),
        (q.double(), k.double(), "W_q has dtype"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            layer(queries, keys, v, lens)
    assert layer.W_q.has_uninitialized_params()
