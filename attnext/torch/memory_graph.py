"""The keys and values of a Memory in autograd's graph: as tokens, tensors that take no memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function

from .autograd import first_derivatives

Tokens: TypeAlias = tuple[Tensor | None, Tensor | None]  # of keys and values; None: no gradient

# Up to this number of elements the graph holds a copy of the tensor, because its node in C++ takes
# less time than a node in Python, which needs no memory.
_SMALL = 2**16


class Parts(NamedTuple):
    """The keys and values of one append in the graph, and a link to those before them."""

    before: Parts | None
    rows: int  # the number of keys
    tokens: Tokens  # (..., rows, width)


def is_recorded(tensors: Iterable[Tensor]) -> bool:
    """True if autograd records a function of these tensors."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def tokens_of(keys: Tensor, values: Tensor, parameters: Mapping[str, Tensor]) -> Tokens:
    """Return what stands for projected keys and values in the graph: (..., n, width) each.

    The graph gets a copy of a tensor that has a history, so changing it in place later has no
    effect. A leaf is used itself, because an in-place change does not alter its place in the graph:
    one node less halves the time of a backward through many appended leaves.
    """
    found: list[Tensor | None] = []
    for x, letter in ((keys, "k"), (values, "v")):
        W, b = parameters.get(f"W_{letter}"), parameters.get(f"b_{letter}")
        if not is_recorded([y for y in (x, W, b) if y is not None]):
            found.append(None)
        elif W is None and x.numel() <= _SMALL:
            found.append(x if x.is_leaf else x.clone())
        elif W is None:
            found.append(_join([x.shape[-2]], (x,)))
        else:
            found.append(_Projection.apply(x, W, b))  # type: ignore[no-untyped-call]
    return found[0], found[1]


def joined(parts: Parts) -> Tokens:
    """Return the tokens of all keys and values of the parts."""
    all_parts, part = [parts], parts.before
    while part is not None:
        all_parts.append(part)
        part = part.before
    all_parts.reverse()
    counts = [part.rows for part in all_parts]
    keys, values = zip(*(part.tokens for part in all_parts), strict=True)
    return _join(counts, keys), _join(counts, values)


def _join(counts: list[int], tokens: tuple[Tensor | None, ...]) -> Tensor | None:
    if all(token is None for token in tokens):
        return None
    token: Tensor = _Join.apply(counts, *tokens)  # type: ignore[no-untyped-call]
    return token


class _Join(Function):
    """A token of sum(counts) rows for tokens of counts[0], counts[1], ... rows."""

    @staticmethod
    def forward(ctx: Any, counts: list[int], *tokens: Tensor | None) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.counts = counts
        like = next(token for token in tokens if token is not None)
        return _token(like, sum(counts), like.shape[-1])

    @staticmethod
    def backward(ctx: Any, d: Tensor | None) -> Any:
        if d is None:
            return None, *[None] * len(ctx.counts)
        # forward was: the rows one behind the other
        parts: tuple[Tensor, ...] = torch.split(d, ctx.counts, -2)
        needed = zip(parts, ctx.needs_input_grad[1:], strict=True)
        return None, *first_derivatives([x if need else None for x, need in needed], d)


class _Projection(Function):
    """The token of x @ W.T + b, which C computes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, W)
        return _token(x, x.shape[-2], W.shape[0])

    @staticmethod
    def backward(ctx: Any, d: Tensor | None) -> Any:
        if d is None:
            return None, None, None
        x, W = ctx.saved_tensors
        with torch.no_grad():
            used = (d != 0).any(-1)  # no query was scored against the others, which may be NaN
            rows = d[used]
            d_x = torch.zeros_like(x)
            # forward was: projected = x @ W.T + b
            d_x[used] = rows @ W
            found = d_x, rows.T @ x[used], rows.sum(0)
        needed = zip(found, ctx.needs_input_grad, strict=True)
        return tuple(first_derivatives([y if need else None for y, need in needed], x, W, d))


def _token(like: Tensor, rows: int, width: int) -> Tensor:
    """Return a tensor (..., rows, width) that takes no memory."""
    zero = torch.zeros((), dtype=like.dtype, device=like.device)
    return zero.expand(*like.shape[:-2], rows, width)
