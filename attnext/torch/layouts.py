"""The state dict of a MultiHeadAttention with the names of torch.nn.MultiheadAttention."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from attnext import _layouts

from .projections import is_its_weight, is_undrawn

_OURS = {
    f"{kind}_{part}": entry
    for part in "qkvo"
    for kind, entry in (("W", f"W_{part}.weight"), ("b", f"W_{part}.bias"))
}


def from_torch(state: dict[str, Any], prefix: str) -> None:
    """Convert torch's names to d2l's, in place."""
    for entry, names in _layouts.OF_TORCH.items():
        if (joined := state.pop(prefix + entry, None)) is not None:
            parts = joined.chunk(len(names)) if len(names) > 1 else [joined]
            state.update((prefix + _OURS[n], x) for n, x in zip(names, parts, strict=True))


def to_torch(state: dict[str, Any], prefix: str) -> None:
    """Convert d2l's names to torch's, in place, after `check_torch`."""
    widths = {state[f"{prefix}W_{part}.weight"].shape[1] for part in "qkv"}
    for entry, names in _layouts.of_torch(len(widths) == 1).items():
        if prefix + _OURS[names[0]] in state:
            parts = [state.pop(prefix + _OURS[name]) for name in names]
            state[prefix + entry] = torch.cat(parts) if len(parts) > 1 else parts[0]


def check_torch(layer: Any) -> None:
    """Raise ValueError unless torch.nn.MultiheadAttention can represent the layer."""
    for name in ("W_q", "W_k", "W_v", "W_o"):
        linear = getattr(layer, name)
        if is_undrawn(linear):
            _layouts.refuse(f"{name} has no sizes yet")
        if not _is_plain(linear):
            _layouts.refuse(f"{name} is not a plain torch.nn.Linear")
    _layouts.check_torch(layer, layer.W_q.weight.shape[1])


def _is_plain(linear: nn.Module) -> bool:
    """True if the state dict's weight and bias determine what the layer computes."""
    if isinstance(linear, LazyModuleMixin):  # drawn or loaded, and not yet called
        return True
    return is_its_weight(linear, and_bias=True) and "weight" in linear._parameters
