"""Check the arguments of all functions and convert them to float64. Errors name the argument."""

from __future__ import annotations

import math
import operator
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]


# ---- reading -------------------------------------------------------------------------------------


def read_array(name: str, value: Any) -> NDArray[Any]:
    """Return the value as an array, with the dtype that it has; an error names the argument."""
    try:
        return np.asarray(value)
    except Exception as error:
        raise_for(name, "cannot be read as an array", error)


def as_index(name: str, value: Any) -> int:
    """Return an int, or an object with `__index__`, as an int. Reject bools."""
    if isinstance(value, bool | type) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    try:
        return operator.index(value)
    except Exception as error:
        raise_for(name, "must be an int", error)


def raise_for(name: str, what: str, error: Exception) -> NoReturn:
    """Raise a built-in error again with the argument's name; raise other errors unchanged."""
    if type(error) in (ValueError, TypeError, RuntimeError):
        raise type(error)(f"{name} {what}: {error}") from error
    if not isinstance(error, MemoryError):
        error.add_note(f"raised while reading the argument {name}")
    raise error


def shown(value: object) -> str:
    """Return the value for a message; Python refuses the repr of ints above 4300 digits."""
    try:
        return repr(value)
    except Exception:
        kind = type(value).__name__
        return f"a huge {kind}" if isinstance(value, int) else f"an object of type {kind}"


# ---- arrays ------------------------------------------------------------------------------------


def _plain_array(
    name: str, value: ArrayLike, kinds: str, expected: str, **hints: str
) -> NDArray[Any]:
    """Return the value as an array with its dtype, if the dtype is one of these NumPy kinds."""
    if isinstance(value, np.ma.MaskedArray | np.matrix):
        raise TypeError(f"{name} is a {type(value).__name__}, expected a plain array")
    if getattr(value, "requires_grad", False):
        raise TypeError(f"{name} is a tensor that requires grad: pass {name}.detach()")
    array = read_array(name, value)
    if array.size == 0 and isinstance(value, list | tuple):
        return array  # NumPy gives every empty list the dtype float64
    if array.dtype.kind not in kinds:
        hint = hints.get(array.dtype.kind, "")
        raise TypeError(f"{name} has dtype {array.dtype}, expected {expected}{hint}")
    return array


def as_array(name: str, value: ArrayLike, shape: tuple[int | str, ...] | None = None) -> Array:
    """Return the value as float64, if it has this shape; a letter means any size."""
    array = _plain_array(name, value, "fiu", "real numbers (any float or integer dtype)")
    if shape is not None and (
        array.ndim != len(shape)
        or any(e not in (a, str(e)) for e, a in zip(shape, array.shape, strict=True))
    ):
        expected = ", ".join(map(str, shape)) + "," * (len(shape) == 1)
        raise ValueError(f"{name} has shape {array.shape}, expected ({expected})")
    return array.astype(np.float64, order="C", copy=False)


def as_array_or_zeros(name: str, value: ArrayLike | None, shape: tuple[int, ...]) -> Array:
    """Return the value as float64 of this shape, or zeros if it is None."""
    return np.zeros(shape) if value is None else as_array(name, value, shape)


def as_scores(name: str, value: ArrayLike) -> Array:
    """Return scores or weights (..., M, N); the shape (N,) is a single row."""
    array = as_array(name, value)
    if array.ndim == 0:
        raise ValueError(f"{name} has shape (), expected one axis or more: (..., M, N)")
    return array


def as_mask(name: str, value: ArrayLike, shape: tuple[int, ...], meaning: str, hint: str) -> Mask:
    """Return bools that broadcast to this shape.

    meaning: what True means, for the message about integers; hint: for the message about floats.
    """
    true = f": True means {meaning}"
    array = _plain_array(name, value, "b", "bools", i=true, u=true, f=hint)
    _check_broadcasts(name, array, shape)
    return array.astype(bool)


def as_bias(value: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return floats that broadcast to this shape."""
    hint = ": use the argument mask for a bool mask"
    array = _plain_array("bias", value, "f", "floats", b=hint)
    _check_broadcasts("bias", array, shape)
    return array.astype(np.float64, order="C", copy=False)


def as_sink(value: ArrayLike, rows: tuple[int, ...]) -> Array:
    """Return numbers, finite or -inf, that broadcast to rows = (..., M)."""
    sink = as_array("sink", value)
    _check_broadcasts("sink", sink, rows)
    if not (sink < np.inf).all():  # also catches NaN
        worst = "nan" if np.isnan(sink).any() else "inf"
        raise ValueError(f"sink contains {worst}, expected finite numbers or -inf")
    return sink


def as_scale(value: ArrayLike, lead: tuple[int, ...]) -> Array:
    """Return finite numbers that broadcast to the leading axes."""
    scale = as_array("scale", value)
    _check_broadcasts("scale", scale, lead)
    if scale.ndim == 0:
        return np.array(as_finite("scale", value))
    if not np.isfinite(scale).all():
        worst = scale[~np.isfinite(scale)][0]
        raise ValueError(f"scale contains {worst}, expected finite numbers")
    return scale


def _check_broadcasts(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    try:
        np.broadcast_to(array, shape)
    except ValueError:
        expected = f"a shape that broadcasts to {shape}"
        raise ValueError(f"{name} has shape {array.shape}, expected {expected}") from None


# ---- queries, keys and values ------------------------------------------------------------------


def as_queries_and_keys(
    queries: ArrayLike, keys: ArrayLike, enable_gqa: bool = False
) -> tuple[Array, Array]:
    """Return queries (..., M, Dq) and keys (..., N, Dk) with the same leading axes.

    With `enable_gqa` the keys may have fewer heads, which are the last leading axis.
    """
    q = as_array("queries", queries)
    if not enable_gqa:
        if q.ndim < 2:
            raise ValueError(f"queries has shape {q.shape}, expected two axes or more: (..., M, D)")
        return q, as_array("keys", keys, (*q.shape[:-2], "N", "Dk"))
    if q.ndim < 3:
        expected = "three axes or more with enable_gqa: (..., heads, M, D)"
        raise ValueError(f"queries has shape {q.shape}, expected {expected}")
    k = as_array("keys", keys, (*q.shape[:-3], "heads", "N", "Dk"))
    heads, key_heads = q.shape[-3], k.shape[-3]
    if heads != key_heads and (key_heads == 0 or heads % key_heads != 0):
        expected = f"a number of heads (axis -3) that divides {heads}, the heads of queries"
        raise ValueError(f"keys has shape {k.shape}, expected {expected}")
    return q, k


def as_inputs(
    queries: ArrayLike, keys: ArrayLike, values: ArrayLike, enable_gqa: bool
) -> tuple[Array, Array, Array]:
    """Return queries (..., M, Dq), keys (..., N, Dk) and values (..., N, Dv)."""
    q, k = as_queries_and_keys(queries, keys, enable_gqa)
    return q, k, as_array("values", values, (*k.shape[:-1], "Dv"))


def check_same_features(q: Array, k: Array) -> None:
    """Check that keys have the D of the queries, for dot products and distances."""
    as_array("keys", k, (*k.shape[:-2], "N", q.shape[-1]))


# ---- flags and numbers -------------------------------------------------------------------------


def as_flag(name: str, value: object) -> bool:
    """Return a Python or NumPy bool as a bool. Reject everything else."""
    if not isinstance(value, bool | np.bool_) and not (
        isinstance(value, np.ndarray) and value.dtype == bool and value.ndim == 0
    ):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return bool(value)


def as_number(name: str, value: ArrayLike, one_element: bool = False) -> float:
    """Return the value as a float; with `one_element` also an array of one element."""
    array = as_array(name, value)
    if array.ndim != 0 and not (one_element and array.size == 1):
        expected = "a number or an array of one element" if one_element else "a number"
        raise ValueError(f"{name} has shape {array.shape}, expected {expected}")
    return float(array.reshape(()))


def as_finite(name: str, value: ArrayLike, one_element: bool = False) -> float:
    """Return the value as a finite float."""
    number = as_number(name, value, one_element)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {shown(value)}, expected a finite number")
    return number


def as_positive(name: str, value: ArrayLike, one_element: bool = False) -> float:
    """Return the value as a finite float greater than 0."""
    number = as_finite(name, value, one_element)
    if number <= 0:
        raise ValueError(f"{name} is {shown(value)}, expected {name} > 0")
    return number


def as_size(name: str, value: object, least: int = 0) -> int:
    """Return an int of at least `least`, with the same messages as the classes in C."""
    size = as_index(name, value)
    if size < least:
        raise ValueError(f"{name} is {shown(value)}, expected {name} >= {least}")
    if size >= 2**63:
        raise ValueError(f"{name} is {shown(value)}, expected {name} < 2**63")
    return size


def as_seed(seed: int) -> int:
    """Return the seed as an unsigned 64-bit int, the key of Philox."""
    seed = as_index("seed", seed)
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed is {shown(seed)}, expected 0 <= seed < 2**64")
    return seed


def as_lens(name: str, value: ArrayLike, N: int) -> NDArray[np.int64]:
    """Return lengths as int64; a length above N becomes N."""
    whole, which = ": if they are whole numbers, pass .astype(int)", f": {name} counts keys"
    lens = as_integers(name, value, f=whole, b=which)
    if (lens < 0).any():
        raise ValueError(f"{name} contains {shown(lens.min())}, expected lengths of 0 or more")
    return np.array(np.minimum(lens, N), dtype=np.int64)


def as_integers(name: str, value: ArrayLike, **hints: str) -> NDArray[np.object_]:
    """Return integers of any dtype and size as an array of Python ints."""
    # np.asarray of a subclass of list may return objects, if it has an __array_interface__
    plain: Any = value
    if isinstance(plain, int) or type(plain) is list:  # ints may exceed int64
        exact = np.array(value, dtype=object)
        if all(isinstance(i, int) and not isinstance(i, bool) for i in exact.flat):
            return exact
    return _plain_array(name, value, "iu", "integers", **hints).astype(object)


def check_empty_rows(empty_rows: str) -> None:
    """Check the rule for a query whose keys are all masked."""
    if not isinstance(empty_rows, str):
        raise TypeError(f"empty_rows must be a str, got {type(empty_rows).__name__}")
    if empty_rows not in ("uniform", "zero", "nan"):
        raise ValueError(f"empty_rows is {empty_rows!r}, expected 'uniform', 'zero' or 'nan'")


# ---- results -----------------------------------------------------------------------------------


def deliver(result: Array, out: Array | None, *inputs: Array) -> Array:
    """Return the result, or copy it into out and return out."""
    if out is None:
        return result
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy.ndarray, got {type(out).__name__}")
    if out.dtype != np.float64:
        raise TypeError(f"out has dtype {out.dtype}, expected float64")
    if out.shape != result.shape:
        raise ValueError(f"out has shape {out.shape}, expected {result.shape}")
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise ValueError("out is not a writable C-contiguous array, expected one")
    if any(np.shares_memory(out, x) for x in inputs):
        raise ValueError("out shares memory with an input, expected an array with its own memory")
    out[...] = result
    return out
