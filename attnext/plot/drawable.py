"""Convert the arguments of a plot to float64 arrays, or raise an error."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]


def as_numbers(name: str, value: Any) -> Numbers:
    """Return an array, a tensor or a list of these as float64, without gradients."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a MaskedArray, expected a plain array")
    try:
        array = np.asarray(_without_gradient(value))
        # An object array that NumPy did not fill from lists may hold no objects: not looked into.
        from_lists = isinstance(value, list | tuple) and array.dtype == object and array.size > 0
        if from_lists and isinstance(array.flat[0], list):
            raise ValueError("its lists have different lengths")  # NumPy 1.24 says so itself
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} cannot be read as an array: {error}") from None
    if array.dtype.kind not in "fiub":
        came = f"dtype {array.dtype}"
        if array.ndim == 0 and not isinstance(value, np.ndarray):
            came = "the value None" if value is None else f"the type {type(value).__name__}"
        raise TypeError(f"{name} has {came}, expected real numbers")
    return array.astype(np.float64)


def as_vector(name: str, value: Any, size: int | str) -> Numbers:
    """Return the value as a float64 vector. A size given as a letter allows any size but 0."""
    array = as_numbers(name, value)
    vector = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if vector.ndim != 1 or not (isinstance(size, str) or vector.size == size):
        raise ValueError(f"{name} has shape {array.shape}, expected ({size},) or ({size}, 1)")
    if vector.size == 0:
        raise ValueError(f"{name} has shape {array.shape}, expected at least one number")
    return vector


def _without_gradient(value: Any) -> Any:
    """Return tensors, also in nested lists, as arrays, without importing PyTorch."""
    if isinstance(value, list | tuple):
        return [_without_gradient(item) for item in value]
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    # NumPy has no bfloat16.
    return np.asarray(tensor.double() if tensor.is_floating_point() else tensor)
