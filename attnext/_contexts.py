"""Inputs that a context stores although their memory is not owned by an exact ndarray.

An array holds a reference to the owner of its memory, which the garbage collector cannot see. If
the owner refers to the layer of the context, the two form a cycle that is never freed.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_IMMUTABLE, _HEAP, _COLLECTED = 1 << 8, 1 << 9, 1 << 14  # of a type's flags


def _leads_nowhere(owner: Any) -> bool:
    """True if the object can never refer to other objects. An mmap, for example, cannot."""
    kind = type(owner)
    if not kind.__flags__ & _COLLECTED:
        return True
    fixed = not kind.__flags__ & _HEAP or bool(kind.__flags__ & _IMMUTABLE)
    return fixed and kind.__dictoffset__ == 0 and gc.get_referents(owner) in ([], [kind])


def _copied(array: Array) -> Array:
    """Return a copy that is no larger than the distinct data: np.broadcast_to repeats the rest."""
    once = []
    for size, stride in zip(array.shape, array.strides, strict=True):
        once.append(slice(0, 1) if stride == 0 and size > 1 else slice(None))
    distinct = array[tuple(once)].copy()
    return distinct if distinct.shape == array.shape else np.broadcast_to(distinct, array.shape)


def kept(array: Array) -> Array:
    """Return what a context stores for an input.

    That is the array itself if neither it nor the owner of its memory can refer to other objects.
    If an array of a subclass is between the two, it is a new view of the memory. If the owner can
    refer to other objects, it is a copy.
    """
    owner: Any = array
    plain = True
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
        plain = plain and (type(owner) is np.ndarray or not isinstance(owner, np.ndarray))
    if not _leads_nowhere(owner):
        return _copied(array)
    if plain:
        return array
    buffer = owner.ravel(order="K") if isinstance(owner, np.ndarray) else owner
    try:
        memory = np.frombuffer(buffer, np.uint8)
    except (TypeError, ValueError, BufferError):  # empty, or without a readable buffer
        return _copied(array)
    start = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    return np.ndarray(array.shape, array.dtype, buffer, start, array.strides)
