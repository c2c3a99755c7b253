"""What the backward of each attention returns, which is a tuple, by name."""

from __future__ import annotations

from typing import Any

from attnext._core import SCORES


def names_of(function: str, with_bias: bool) -> tuple[str, ...]:
    """What the gradients that the backward of `function` returns belong to, in order."""
    _, gradients, _ = SCORES[function.removesuffix("_attention")]
    return (*gradients, *["bias"] * with_bias)


def by_name(function: str, d: Any, with_bias: bool) -> dict[str, Any]:
    """The gradients `d` that the backward of `function` returned, by what they belong to."""
    if with_bias and isinstance(d[0], tuple):  # a pair: the named tuple, the bias's
        d = (*d[0], d[1])
    return dict(zip(names_of(function, with_bias), d, strict=True))
