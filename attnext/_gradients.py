"""What the backward of each attention returns, which is a tuple, by name."""

from __future__ import annotations

from typing import Any

from attnext._core import AdditiveGradients

# The names of what the gradients belong to, in order; that of a bias comes after them.
GRADIENTS = {
    "dot_product_attention": ("queries", "keys", "values"),
    "cosine_attention": ("queries", "keys", "values"),
    "additive_attention": AdditiveGradients._fields,
    "gaussian_attention": ("queries", "keys", "values", "w"),
}


def by_name(function: str, d: Any, with_bias: bool) -> dict[str, Any]:
    """The gradients `d` that the backward of `function` returned, by what they belong to."""
    if with_bias and function == "additive_attention":  # a pair: the named tuple, the bias's
        d = (*d[0], d[1])
    return dict(zip((*GRADIENTS[function], *["bias"] * with_bias), d, strict=True))
