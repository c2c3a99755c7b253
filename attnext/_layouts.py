"""The names of a layer's parameters in state dicts of PyTorch.

A MultiHeadAttention has two counterparts in PyTorch. d2l's class consists of four torch.nn.Linear.
torch.nn.MultiheadAttention stores W_q, W_k and W_v in one array if queries, keys and values have
the same number of features. So an entry of a state dict may be several stacked parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

Layout = dict[str, tuple[str, ...]]  # the parameters of each entry

PACKED: Layout = {"in_proj_weight": ("W_q", "W_k", "W_v")}
APART: Layout = {f"{part}_proj_weight": (f"W_{part}",) for part in "qkv"}
_ALWAYS: Layout = {
    "in_proj_bias": ("b_q", "b_k", "b_v"),
    "out_proj.weight": ("W_o",),
    "out_proj.bias": ("b_o",),
}
OF_TORCH = PACKED | APART | _ALWAYS
_BIASES = {"b_h"}
_BIASES_OF_HEADS = {"in_proj_bias", "out_proj.bias", *(f"W_{part}.bias" for part in "qkvo")}


def of_d2l(letters: Mapping[str, str]) -> Layout:
    """Return d2l's layout for parameters with these shapes, given as letters (attn.h).

    A matrix such as W_q is the weight of a torch.nn.Linear, and b_q is the bias of that Linear.
    Other vectors are separate parameters.
    """
    layout: Layout = {}
    for name, shape in letters.items():
        linear = "W" + name[1:]
        matrix = len(shape) > 1
        entry = f"{linear}.bias" if linear in letters and not matrix else name + ".weight" * matrix
        layout[entry] = (name,)
    return layout


def of_torch(packed: bool) -> Layout:
    """Return torch's layout; packed: queries, keys and values have equally many features."""
    return (PACKED if packed else APART) | _ALWAYS


def bias_hint(own: Collection[str], given: Collection[str]) -> str:
    """Return a hint if biases are given to a layer without biases."""
    biases = _BIASES if "w_v.weight" in own else _BIASES_OF_HEADS
    if biases.isdisjoint(given) or not biases.isdisjoint(own):
        return ""
    return ": to load biases, create the layer with bias=True"


def is_torch(layout: object) -> bool:
    """True for 'torch', False for 'd2l'."""
    expected = "'d2l' or 'torch'"
    if not isinstance(layout, str):
        from attnext._options import type_name

        raise TypeError(f"layout must be {expected}, got {type_name(layout)}")
    if layout not in ("d2l", "torch"):
        raise ValueError(f"layout is {layout!r}, expected {expected}")
    return layout == "torch"


def check_torch(layer: Any, query_size: int) -> None:
    """Raise ValueError if torch.nn.MultiheadAttention cannot have the layer's sizes."""
    if query_size != layer.num_hiddens:
        refuse(f"query_size ({query_size}) is not num_hiddens ({layer.num_hiddens})")
    if layer.num_kv_heads != layer.num_heads:
        refuse(f"num_kv_heads ({layer.num_kv_heads}) is not num_heads ({layer.num_heads})")


def refuse(reason: str) -> None:
    """Raise ValueError with this reason."""
    raise ValueError(f"layout is 'torch', expected 'd2l' because {reason}")
