"""The state dict of a MultiHeadAttention under the names of torch.nn.MultiheadAttention."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from attnext._options import type_name

from .projections import is_its_weight, is_undrawn

# Where the sizes differ, weights have names of their own; else queries, keys and values share one.
_ALONE = {f"{part}_proj_weight": f"W_{part}.weight" for part in "qkv"}
_OUT = {f"out_proj.{kind}": f"W_o.{kind}" for kind in ("weight", "bias")}


def is_torch(layout: object) -> bool:
    """Is it 'torch'? Else it is 'd2l'."""
    expected = "'d2l' or 'torch'"
    if not isinstance(layout, str):
        raise TypeError(f"layout must be {expected}, got {type_name(layout)}")
    if layout not in ("d2l", "torch"):
        raise ValueError(f"layout is {layout!r}, expected {expected}")
    return layout == "torch"


def from_torch(state: dict[str, Any], prefix: str) -> None:
    """Its names become d2l's, in the dict itself."""
    for kind in ("weight", "bias"):
        if (joined := state.pop(f"{prefix}in_proj_{kind}", None)) is not None:
            for part, x in zip("qkv", joined.chunk(3), strict=True):
                state[f"{prefix}W_{part}.{kind}"] = x
    for theirs, ours in (_ALONE | _OUT).items():
        if prefix + theirs in state:
            state[prefix + ours] = state.pop(prefix + theirs)


def to_torch(state: dict[str, Any], prefix: str) -> None:
    """The other way, of a layer that `check_torch` let pass."""

    def taken(kind: str) -> list[Any]:
        return [state.pop(f"{prefix}W_{part}.{kind}") for part in "qkv"]

    weights = taken("weight")
    if len({x.shape[1] for x in weights}) == 1:
        state[f"{prefix}in_proj_weight"] = torch.cat(weights)
    else:
        state.update((prefix + name, x) for name, x in zip(_ALONE, weights, strict=True))
    if f"{prefix}W_q.bias" in state:
        state[f"{prefix}in_proj_bias"] = torch.cat(taken("bias"))
    for theirs, ours in _OUT.items():
        if prefix + ours in state:
            state[prefix + theirs] = state.pop(prefix + ours)


def check_torch(layer: Any) -> None:
    """Has torch's class such a layer? In the words of the class in C."""
    for name in ("W_q", "W_k", "W_v", "W_o"):
        linear = getattr(layer, name)
        if is_undrawn(linear):
            _refuse(f"{name} has no sizes yet")
        if not _is_plain(linear):
            _refuse(f"{name} is more than a torch.nn.Linear")
    if (size := layer.W_q.weight.shape[1]) != layer.num_hiddens:
        _refuse(f"query_size, {size}, is not num_hiddens, {layer.num_hiddens}")
    if layer.num_kv_heads != layer.num_heads:
        _refuse(f"num_kv_heads, {layer.num_kv_heads}, is not num_heads, {layer.num_heads}")


def _refuse(reason: str) -> None:
    raise ValueError(f"layout is 'torch', expected 'd2l' where {reason}")


def _is_plain(linear: nn.Module) -> bool:
    """Are its weight and its bias, which its state dict has, all there is to it?"""
    if isinstance(linear, LazyModuleMixin):  # drawn or loaded, and not yet called
        return True
    return is_its_weight(linear, and_bias=True) and "weight" in linear._parameters
