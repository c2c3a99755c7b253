"""Convert the arguments of kernel regression to float32 arrays, or raise an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnext import _reading

if TYPE_CHECKING:
    Array: TypeAlias = NDArray[np.float32]


def as_float32(name: str, array: ArrayLike, *dims: int | str) -> Array:
    """Return `array` as C-contiguous float32. A dim that is a letter allows any size."""
    if isinstance(array, np.ma.MaskedArray | np.matrix):
        raise TypeError(f"{name} is a {type(array).__name__}, expected a plain array")
    if getattr(array, "requires_grad", False):
        raise TypeError(
            f"{name} is a tensor that requires grad, expected one that does not: call "
            f"{name}.detach() or use attnext.torch"
        )
    numbers = _reading.real(name, array)
    _reading.check_shape(name, numbers, dims)
    return np.ascontiguousarray(numbers, dtype=np.float32)
