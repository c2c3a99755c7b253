"""The arguments of kernel regression: float32 arrays of the shape expected, or a clear error."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnext import _reading

if TYPE_CHECKING:
    Array: TypeAlias = NDArray[np.float32]


def as_float32(name: str, array: ArrayLike, *dims: int | str) -> Array:
    """`array` as float32, C-contiguous; a dim of its shape that is a letter fits any size."""
    if isinstance(array, np.ma.MaskedArray | np.matrix):
        raise TypeError(f"{name} must be a plain array, got {type(array).__name__}")
    if getattr(array, "requires_grad", False):
        raise TypeError(f"{name} is a tensor that requires grad: detach() it, or use attnext.torch")
    numbers = _reading.real(name, array)
    _reading.check_shape(name, numbers, dims)
    return np.ascontiguousarray(numbers, dtype=np.float32)
