"""State dicts of attnext.torch.MultiHeadAttention in the layout of torch.nn.MultiheadAttention."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnext
from attnext import _core
from attnext._layouts import of_d2l, of_torch
from attnext.torch import MultiHeadAttention

E, HEADS = 12, 4


def equal(state: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """In the same order, too."""
    return list(state) == list(other) and all(torch.equal(x, other[n]) for n, x in state.items())


def make(sizes: tuple[int, ...] = (E, E, E), bias: bool = True, **more: Any) -> MultiHeadAttention:
    return MultiHeadAttention(*sizes, E, HEADS, 0.0, bias, **more)


def test_every_parameter_has_its_place_by_name() -> None:
    """In both layouts, once: those are the parameters that multi-head attention declares."""
    *_, rows = _core.ATTENTIONS["multi_head"]
    declared = {name: letters for name, letters, *_ in rows}
    for layout in (of_torch(True), of_torch(False), of_d2l(declared)):
        assert sorted(name for names in layout.values() for name in names) == sorted(declared)


@pytest.mark.parametrize("sizes", [(E, E, E), (8, E, 8), (E, E, 5), (8, E, E)])
@pytest.mark.parametrize("bias", [False, True])
def test_both_ways(sizes: tuple[int, int, int], bias: bool) -> None:
    """The names, their order and the numbers of torch's class, and of the class in C."""
    key_size, _, value_size = sizes
    layer = make(sizes, bias)
    state = layer.state_dict(layout="torch")
    theirs = nn.MultiheadAttention(E, HEADS, 0.0, bias, kdim=key_size, vdim=value_size)
    theirs.load_state_dict(state)
    assert equal(theirs.state_dict(), state)
    in_c = attnext.MultiHeadAttention(*sizes, E, HEADS, bias=bias)
    in_c.load_state_dict(state)
    assert equal({n: torch.from_numpy(x) for n, x in in_c.state_dict("torch").items()}, state)
    for twin in (make(sizes, bias), make((), bias)):  # the second has no sizes before
        twin.load_state_dict(state)
        assert equal(twin.state_dict(), layer.state_dict())
        assert equal(twin.state_dict(layout="torch"), state)


def test_the_contract_of_modules() -> None:
    """Prefix, destination and keep_vars; in a model every part has the names that it has alone."""
    layer = make(bias=False)
    into: OrderedDict[str, Tensor] = OrderedDict(before=torch.ones(1))
    state = layer.state_dict(destination=into, prefix="0.", keep_vars=True, layout="torch")
    assert state is into and list(into) == ["before", "0.in_proj_weight", "0.out_proj.weight"]
    assert into["0.out_proj.weight"] is layer.W_o.weight
    into["0.in_proj_weight"].sum().backward()  # in the graph of its three parts
    for part in (layer.W_q, layer.W_k, layer.W_v):
        assert part.weight.grad is not None and (part.weight.grad == 1).all()
    own = ["W_q.weight", "W_k.weight", "W_v.weight", "W_o.weight"]
    assert list(nn.Sequential(layer).state_dict()) == [f"0.{name}" for name in own]
    with pytest.warns(FutureWarning, match="[Pp]ositional"):
        state = layer.state_dict(OrderedDict(), "1.", layout="torch")
    assert list(state) == ["1.in_proj_weight", "1.out_proj.weight"]


@pytest.mark.parametrize(
    ("make_layer", "reason"),
    [
        (lambda: make((E, 8, E)), r"query_size \(8\) is not num_hiddens \(12\)"),
        (lambda: make(num_kv_heads=2), r"num_kv_heads \(2\) is not num_heads \(4\)"),
        (lambda: make(()), "W_q has no sizes yet"),
    ],
)
def test_what_torch_has_no_layer_for(
    make_layer: Callable[[], MultiHeadAttention], reason: str
) -> None:
    layer = make_layer()
    with pytest.raises(ValueError, match=f"^layout is 'torch', expected 'd2l' because {reason}$"):
        layer.state_dict(layout="torch")


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer, "W_k", nn.Sequential(layer.W_k)),
        lambda layer: nn.utils.parametrizations.orthogonal(layer.W_k),
        lambda layer: layer.W_k.register_forward_hook(lambda module, args, output: 2 * output),
    ],
    ids=["another module", "parametrized", "hook"],
)
def test_projections_that_are_more_than_linear(change: Callable[[Any], None]) -> None:
    layer = make()
    change(layer)
    with pytest.raises(ValueError, match="^layout is 'torch', .* W_k is not a plain torch.nn.Lin"):
        layer.state_dict(layout="torch")


def test_wrong_layouts() -> None:
    """In the words of the class in C."""
    for wrong in ("keras", 3):
        with pytest.raises((TypeError, ValueError)) as error:
            attnext.MultiHeadAttention(E, E, E, E, HEADS).state_dict(wrong)  # type: ignore[arg-type]
        with pytest.raises(error.type, match=f"^{re.escape(str(error.value))}$"):
            make().state_dict(layout=wrong)  # type: ignore[arg-type]
