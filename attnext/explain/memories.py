"""Read the keys and values of a Memory, so that its call can be explained as a normal call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnext._wrong import beside_memory
from attnext.explain.accuracy import Array
from attnext.explain.steps import Arguments, Steps, as_float64, leading_axes
from attnext.explain.trace import Trace
from attnext.explain.words import phrase
from attnext.reference.sharing import share_heads

_ONCE = ("hidden_k",)  # steps that a memory computes only once


@runtime_checkable
class Memory(Protocol):
    """An `attnext.Memory` or `attnext.torch.Memory`, without importing attnext.torch."""

    def _given_to(self, layer: Any, /) -> tuple[NDArray[Any] | None, ...]: ...


def recall(attn: Any, memory: Memory, arguments: Arguments) -> Arguments:
    """Return the keys, values, lengths and mask that ``attn(queries, memory)`` uses.

    arguments: the other arguments of the call. Raises the same errors as the call.
    """
    for name in ("values", "valid_lens"):
        if arguments[name] is not None:
            raise beside_memory(name)
    keys, values, lens, mask = memory._given_to(attn)
    if mask is not None:
        mask = mask.swapaxes(-1, -2)
    return {"keys": keys, "values": values, "valid_lens": lens, "mask": mask}


def both(mask: NDArray[Any], of_call: ArrayLike | None, queries: ArrayLike) -> NDArray[Any]:
    """Combine the mask of the memory (..., 1, N) with the mask of the call."""
    shared = share_heads(mask, np.shape(queries)[:-2])
    return shared if of_call is None else shared & np.asarray(of_call)


def remembered(trace: Trace, recalled: Arguments) -> Trace:
    """Return the trace with the stored keys as first step, and a note on steps computed once."""
    keys: Array = as_float64(recalled["keys"])
    *lead, N, _ = keys.shape
    live = np.ones((*lead, N), bool)
    if recalled["valid_lens"] is not None:
        lens = recalled["valid_lens"]
        live &= np.arange(N) < lens.reshape(*lens.shape, *[1] * (live.ndim - lens.ndim))
    if recalled["mask"] is not None:
        live &= recalled["mask"][..., 0, :]
    first = Steps("memory", trace.lang)
    masked = ~live[..., None]
    axes = (*leading_axes(len(lead)), "key", "feature")
    first.add("memory", np.where(masked, np.nan, keys), axes, masked, N=N)
    once = phrase("once", trace.lang)
    rest = [replace(s, note=s.note + once) if s.key in _ONCE else s for s in trace.steps]
    return replace(trace, steps=(*first.steps, *rest))
