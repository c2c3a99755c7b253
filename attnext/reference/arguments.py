"""The arguments of all functions: checked, and made float64. What is wrong is said by name."""

from __future__ import annotations

import math
import operator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]


def _plain_array(name: str, value: ArrayLike) -> NDArray[Any]:
    """The value as an array of whatever dtype it has."""
    if isinstance(value, np.ma.MaskedArray | np.matrix):
        raise TypeError(f"{name} is a {type(value).__name__}, expected a plain array")
    if getattr(value, "requires_grad", False):
        raise TypeError(f"{name} is a tensor that requires grad: pass {name}.detach()")
    return np.asarray(value)


def as_array(name: str, value: ArrayLike, shape: tuple[int | str, ...] | None = None) -> Array:
    """The value as float64, of the shape expected; a letter in it stands for any size."""
    array = _plain_array(name, value)
    if array.dtype.kind not in "fiu":
        raise TypeError(
            f"{name} has dtype {array.dtype}, expected real numbers (any float or integer dtype)"
        )
    if shape is not None and (
        array.ndim != len(shape)
        or any(e not in (a, str(e)) for e, a in zip(shape, array.shape, strict=True))
    ):
        expected = ", ".join(map(str, shape)) + "," * (len(shape) == 1)
        raise ValueError(f"{name} has shape {array.shape}, expected ({expected})")
    return array.astype(np.float64, order="C", copy=False)


def as_array_or_zeros(name: str, value: ArrayLike | None, shape: tuple[int, ...]) -> Array:
    """The value as float64 of this shape; zeros if there is none."""
    return np.zeros(shape) if value is None else as_array(name, value, shape)


def as_scores(name: str, value: ArrayLike) -> Array:
    """Scores or weights (..., M, N); one axis, (N,), is a single row."""
    array = as_array(name, value)
    if array.ndim == 0:
        raise ValueError(f"{name} has shape (), expected one axis or more: (..., M, N)")
    return array


def as_queries_and_keys(queries: ArrayLike, keys: ArrayLike) -> tuple[Array, Array]:
    """queries (..., M, Dq) and keys (..., N, Dk) with the same leading axes."""
    q = as_array("queries", queries)
    if q.ndim < 2:
        raise ValueError(f"queries has shape {q.shape}, expected two axes or more: (..., M, D)")
    return q, as_array("keys", keys, (*q.shape[:-2], "N", "Dk"))


def as_inputs(queries: ArrayLike, keys: ArrayLike, values: ArrayLike) -> tuple[Array, Array, Array]:
    """queries (..., M, Dq), keys (..., N, Dk) and values (..., N, Dv)."""
    q, k = as_queries_and_keys(queries, keys)
    return q, k, as_array("values", values, (*k.shape[:-1], "Dv"))


def check_same_features(q: Array, k: Array) -> None:
    """A dot product and a distance need keys with the D of the queries."""
    as_array("keys", k, (*q.shape[:-2], "N", q.shape[-1]))


def as_number(name: str, value: ArrayLike, one_element: bool = False) -> float:
    """The value as a float; with `one_element`, from an array of one element too."""
    array = as_array(name, value)
    if array.ndim != 0 and not (one_element and array.size == 1):
        expected = "a number or an array of one element" if one_element else "a number"
        raise ValueError(f"{name} has shape {array.shape}, expected {expected}")
    return float(array.reshape(()))


def as_finite(name: str, value: ArrayLike, one_element: bool = False) -> float:
    """The same of a number that must not be inf or NaN."""
    number = as_number(name, value, one_element)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {value!r}, expected a finite number")
    return number


def as_seed(seed: int) -> int:
    """The seed as an int of 64 bits, the key of Philox."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"seed must be an int, got {type(seed).__name__}")
    seed = operator.index(seed)
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed is {seed}, expected 0 <= seed < 2**64")
    return seed


def as_lens(name: str, value: ArrayLike, N: int) -> NDArray[np.int64]:
    """Lengths as int64, those above N as N."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = min(value, N)  # an int of any size
    lens = _plain_array(name, value)
    if lens.size == 0 and isinstance(value, list | tuple):
        lens = lens.astype(np.int64)  # NumPy calls an empty list floats
    if lens.dtype.kind not in "iu":
        hint = {"f": ": .astype(int), if these are whole numbers", "b": ": how many, not which"}
        raise TypeError(
            f"{name} has dtype {lens.dtype}, expected integers{hint.get(lens.dtype.kind, '')}"
        )
    if (lens < 0).any():
        raise ValueError(f"{name} contains {lens.min()}, expected lengths of 0 or more")
    clipped: NDArray[np.int64] = np.minimum(lens, N).astype(np.int64)
    return clipped


def check_empty_rows(empty_rows: str) -> None:
    """The rule for a query that no key takes part in must be one of three."""
    if empty_rows not in ("uniform", "zero", "nan"):
        raise ValueError(f"empty_rows is {empty_rows!r}, expected 'uniform', 'zero' or 'nan'")


def deliver(result: Array, out: Array | None, *inputs: Array) -> Array:
    """The result itself or, if there is an out, the result in it."""
    if out is None:
        return result
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy.ndarray, got {type(out).__name__}")
    if out.dtype != np.float64:
        raise TypeError(f"out has dtype {out.dtype}, expected float64")
    if out.shape != result.shape:
        raise ValueError(f"out has shape {out.shape}, expected {result.shape}")
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise ValueError("out is read-only or not C-contiguous, expected neither")
    if any(np.shares_memory(out, x) for x in inputs):
        raise ValueError("out shares memory with an input, expected memory of its own")
    out[...] = result
    return out
