"""Names for the gradients in the tuple that a backward pass returns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from attnext._core import ATTENTIONS

SHARED = ("bias", "sink", "scale")  # their gradients are returned if return_grad_... is True


def asked_for(arguments: Mapping[str, Any]) -> list[str]:
    """Return the names in `SHARED` whose gradients the arguments of a backward pass request."""
    return [name for name in SHARED if arguments.get(f"return_grad_{name}")]


@cache
def names_of(function: str, with_bias: bool, *more: str) -> tuple[str, ...]:
    """Return the names of the gradients that the backward pass of `function` returns, in order.

    more: other names in `SHARED` whose gradients were requested.
    """
    _, gradients, *_ = ATTENTIONS[function.removesuffix("_attention")]
    return (*gradients, *["bias"] * with_bias, *more)


def by_name(function: str, d: Any, with_bias: bool, *more: str) -> dict[str, Any]:
    """Return the gradients `d` of the backward pass of `function` as a dict by name."""
    if (with_bias or more) and isinstance(
        d[0], tuple
    ):  # a named tuple, then the requested gradients
        d = (*d[0], *d[1:])
    return dict(zip(names_of(function, with_bias, *more), d, strict=True))
