"""The names of a layer's parameters in PyTorch's state dicts, and which of them lie together.

Of a MultiHeadAttention there are two such layers in PyTorch: the one of d2l, made of four
torch.nn.Linear, and torch.nn.MultiheadAttention, where what projects queries, keys and values is
one array, if they have as many features. So an entry is some parameters, one on top of the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

Layout = dict[str, tuple[str, ...]]  # an entry: its parameters

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
    """Of parameters and the letters of their shapes (attn.h).

    A matrix is the weight of a torch.nn.Linear, whose bias b_q is that of W_q; another vector is a
    parameter of its own.
    """
    layout: Layout = {}
    for name, shape in letters.items():
        linear = "W" + name[1:]
        matrix = len(shape) > 1
        entry = f"{linear}.bias" if linear in letters and not matrix else name + ".weight" * matrix
        layout[entry] = (name,)
    return layout


def of_torch(packed: bool) -> Layout:
    """packed: queries, keys and values have as many features."""
    return (PACKED if packed else APART) | _ALWAYS


def bias_hint(own: Collection[str], given: Collection[str]) -> str:
    """What is to be done where a layer with these entries is given biases and has none."""
    biases = _BIASES if "w_v.weight" in own else _BIASES_OF_HEADS
    if biases.isdisjoint(given) or not biases.isdisjoint(own):
        return ""
    return ": biases are for a layer that is made with bias=True"


def is_torch(layout: object) -> bool:
    """Is it 'torch'? Else it is 'd2l'."""
    expected = "'d2l' or 'torch'"
    if not isinstance(layout, str):
        from attnext._options import type_name

        raise TypeError(f"layout must be {expected}, got {type_name(layout)}")
    if layout not in ("d2l", "torch"):
        raise ValueError(f"layout is {layout!r}, expected {expected}")
    return layout == "torch"


def check_torch(layer: Any, query_size: int) -> None:
    """Has torch's class such a layer?"""
    if query_size != layer.num_hiddens:
        refuse(f"query_size, {query_size}, is not num_hiddens, {layer.num_hiddens}")
    if layer.num_kv_heads != layer.num_heads:
        refuse(f"num_kv_heads, {layer.num_kv_heads}, is not num_heads, {layer.num_heads}")


def refuse(reason: str) -> None:
    """Say why it has not."""
    raise ValueError(f"layout is 'torch', expected 'd2l' where {reason}")
