"""Which pairs of a query and a key take part in a call: its rules, as tensors of bools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnext.reference.arguments import as_lens
from attnext.reference.band import OFFSET, as_offset, band_of, in_reach
from attnext.reference.masks import broadcast_lens

from .rules import is_wrapped, outside_transforms, unwrapped
from .tensors import to_array


class Pairs(NamedTuple):
    """What broadcasts to these shapes; None: all of them, and nothing is formed."""

    live: Tensor | None  # (..., M, N): which take part
    alive: Tensor | None  # (..., M, 1): rows that have one, or a sink
    pooled: Tensor | None  # (..., M, N): whose values are read


def pairs_of(rows: Sequence[int], N: int, options: Mapping[str, Any], heads: bool = False) -> Pairs:
    """What the options say of every pair. rows = (..., M), with heads (..., heads, M)."""
    rules = [rule for rule in _rules(rows, N, options, heads) if not _holds(rule)]
    if N and not rules:
        return Pairs(None, None, None)
    live, alive = None, torch.zeros((*rows[-1:], 1), dtype=torch.bool, device="cpu")
    if rules:
        said = reduce(and_, rules)
        live = said.expand(np.broadcast_shapes(said.shape, (*rows[-1:], N)))
        alive = live.any(-1, keepdim=True)
    if options.get("sink") is not None:
        alive = alive | (options["sink"] > -torch.inf)[..., None]
    return known_pairs(live, alive, options.get("empty_rows", "uniform") == "uniform")


def known_pairs(live: Tensor | None, alive: Tensor, uniform: bool) -> Pairs:
    """uniform: rows that are not alive read all values."""
    if _holds(alive):
        return Pairs(live, None, live)
    return Pairs(live, alive, live | ~alive if uniform and live is not None else live)


def lengths(name: str, lens: Any, N: int) -> Any:
    """Lengths as a tensor of integers, at most N."""
    if isinstance(lens, Tensor) and is_wrapped(lens):
        return lens.long()
    return torch.from_numpy(as_lens(name, array_of(lens, name), N))


def arange(n: int) -> Tensor:
    return torch.arange(n, device="cpu")


def array_of(x: Any, name: str) -> Any:
    """A tensor as an array; anything else as it is."""
    if not isinstance(x, Tensor):
        return x
    with outside_transforms():
        return to_array(x, name)


def _rules(
    rows: Sequence[int], N: int, options: Mapping[str, Any], heads: bool
) -> Iterator[Tensor]:
    """Each broadcasts to (*rows, N); a pair takes part if all of them say so."""
    if options.get("valid_lens") is not None:
        queries = (*rows[:-2], rows[-1]) if heads else tuple(rows)
        lens: Any = broadcast_lens(lengths("valid_lens", options["valid_lens"], N), queries)
        lens = lens.unsqueeze(-2) if heads and lens.ndim else lens
        yield arange(N) < lens[..., None]
    if options.get("mask") is not None:
        mask = options["mask"]
        yield mask if isinstance(mask, Tensor) else torch.from_numpy(np.array(mask, bool))
    if options.get("bias") is not None:
        yield options["bias"] != -torch.inf
    if rows:  # one row without an axis for it has no diagonal
        yield from _near(rows, N, options)


def _near(rows: Sequence[int], N: int, options: Mapping[str, Any]) -> Iterator[Tensor]:
    """Which keys lie near enough to the diagonal, on either side of it."""
    left, right, offset = band_of(options)
    if left is None and right is None:
        return
    place = arange(rows[-1]) + _as_offset(offset, rows)
    place, key = place[..., None], arange(N)  # (M, 1) or (B, 1, ..., M, 1)
    if left is not None:
        yield place - int(in_reach(left)) <= key
    if right is not None:
        yield key <= place + int(in_reach(right))


def _as_offset(offset: Any, rows: Sequence[int]) -> Tensor:
    if isinstance(offset, Tensor) and is_wrapped(offset):
        return offset.long().reshape(offset.shape + (1,) * (len(rows) - 1) * offset.ndim)
    return torch.from_numpy(in_reach(as_offset(array_of(offset, OFFSET), tuple(rows))))


def _holds(rule: Tensor) -> bool:
    return bool(unwrapped(rule).all())
