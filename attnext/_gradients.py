"""What the backward of each attention returns, which is a tuple, by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from attnext._core import ATTENTIONS

SHARED = ("bias", "sink", "scale")  # whose gradients are returned if return_grad_... says so


def asked_for(arguments: Mapping[str, Any]) -> list[str]:
    """Those of `SHARED` whose gradients these arguments of a backward ask for."""
    return [name for name in SHARED if arguments.get(f"return_grad_{name}")]


@cache
def names_of(function: str, with_bias: bool, *more: str) -> tuple[str, ...]:
    """What the gradients that the backward of `function` returns belong to, in order.

    more: others of `SHARED` whose gradients were asked for.
    """
    _, gradients, *_ = ATTENTIONS[function.removesuffix("_attention")]
    return (*gradients, *["bias"] * with_bias, *more)


def by_name(function: str, d: Any, with_bias: bool, *more: str) -> dict[str, Any]:
    """The gradients `d` that the backward of `function` returned, by what they belong to."""
    if (with_bias or more) and isinstance(d[0], tuple):  # the named tuple, and what was asked for
        d = (*d[0], *d[1:])
    return dict(zip(names_of(function, with_bias, *more), d, strict=True))
