"""Convert arguments that the C code does not read itself, or raise an error about them.

C reads exact ndarrays of a suitable dtype, ints, floats, bools, and lists and tuples of ints, if
their values are valid; it also checks the shapes of arrays. All other objects are converted here,
before C uses any argument, because a conversion may run arbitrary Python code. `plain` converts
the arguments of a call, each with the reader function that py_read.c names for it. A reader gets
the argument's name and value, and returns a value that C can read.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from attnext import _wrong
from attnext._wrong import type_name

if TYPE_CHECKING:  # as in _positions.py
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any]"
_LISTS = (list, tuple)

REAL = "real numbers (any float or integer dtype)"
# Hints for valid_lens that looks like a mask, which other libraries have at this position.
_WHICH = "; to choose keys by bools, use the argument mask"
_ADDED = "; to add floats to the scores, use the argument bias of an attention function"

# No function here has variables that an inner function or a comprehension uses: without memory for
# their cells, CPython 3.11 loses a reference to the function's arguments.

# ---- errors of other code ----------------------------------------------------------------------


def note(name: str, error: Exception) -> None:
    if not isinstance(error, MemoryError):
        error.add_note(f"raised while reading the argument {name}")


def _each(read: Callable[[str, Any], Any], name: str, items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return each item, read under the name ``name[i]``."""
    found = []
    for i, item in enumerate(items):
        found.append(read(f"{name}[{i}]", item))
    return tuple(found)


# ---- arrays ------------------------------------------------------------------------------------


def read(name: str, value: Any) -> Array:
    """Return the value as an array, with the dtype that it has."""
    if isinstance(value, np.ndarray):
        array = value
    else:
        if type(value) is not list:
            _refuse_tensor(name, value)
        try:
            array = np.asanyarray(value)
        except Exception as error:
            if type(value) in _LISTS and "inhomogeneous" in str(error):  # in NumPy's message
                raise _ragged(name) from None
            if type(error) in (ValueError, TypeError, RuntimeError):
                raise type(error)(f"{name} cannot be read as an array: {error}") from error
            note(name, error)
            raise
    if type(value) in _LISTS and _is_ragged(array):
        raise _ragged(name)
    if type(array) is not np.ndarray:
        _refuse_subclass(name, array)
        array = np.asarray(array)
    return array


def _refuse_tensor(name: str, value: Any) -> None:
    """Refuse a torch tensor that requires grad, or one whose memory has no values.

    torch.nn.attention.bias.CausalBias stands for a rule; the values in its memory are random.
    """
    if type(value).__module__ == "torch.nn.attention.bias":
        raise TypeError(
            f"{name} is a {type_name(value)}, expected an array: use the argument causal instead"
        )
    try:
        refused = getattr(value, "requires_grad", False) is True
    except Exception as error:
        note(name, error)
        raise
    if refused:
        raise TypeError(
            f"{name} is a tensor that requires grad, but a NumPy function computes no gradient: "
            f"use the function of the same name in attnext.torch, or pass {name}.detach()"
        )


def _ragged(name: str) -> ValueError:
    return ValueError(f"{name} cannot be read as an array: its lists have different lengths")


def _is_ragged(array: Array) -> bool:
    """True if NumPy before 1.24 made an array of lists from lists of different lengths.

    Only for an array that NumPy filled itself, from an exact list or tuple. A subclass may have an
    `__array_interface__` that calls floats objects, and to read such an object ends the process.
    """
    return array.dtype.kind == "O" and array.size > 0 and isinstance(array.flat[0], list)


def _refuse_subclass(name: str, array: Array) -> None:
    """Refuse a masked array, whose mask would be lost, and np.matrix, which changes products."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a numpy.ma.MaskedArray, expected a plain array: its mask would be lost, so "
            "use the argument valid_lens for padding"
        )
    if isinstance(array, np.matrix):
        raise TypeError(f"{name} is a numpy.matrix, expected a plain array: numpy.asarray({name})")


def check_shape(name: str, array: Any, shape: tuple[int | str, ...]) -> None:
    """Raise ValueError unless the array has this shape; a letter means any size."""
    fits = array.ndim == len(shape) and all(
        isinstance(size, str) or size == here for size, here in zip(shape, array.shape, strict=True)
    )
    if not fits:
        expected = ", ".join(map(str, shape)) + "," * (len(shape) == 1)
        raise ValueError(f"{name} has shape {array.shape}, expected ({expected})")


def check_broadcasts(name: str, array: Any, shape: tuple[int, ...]) -> None:
    sizes = zip(array.shape[::-1], shape[::-1], strict=False)
    if array.ndim > len(shape) or any(size not in (1, full) for size, full in sizes):
        expected = f"a shape that broadcasts to {shape}"
        raise ValueError(f"{name} has shape {array.shape}, expected {expected}")


def _dtype_error(name: str, value: Any, array: Array, expected: str) -> TypeError:
    if value is None:
        return TypeError(f"{name} is None, expected {expected}")
    if array.dtype == object and array.ndim == 0:
        return TypeError(f"{name} is of type {type_name(value)}, expected {expected}")
    return TypeError(f"{name} has dtype {array.dtype}, expected {expected}")


def _is_empty_list(value: Any, array: Array) -> bool:
    """True for an empty list, which NumPy makes float64 whatever it should contain."""
    return array.size == 0 and isinstance(value, _LISTS)


def real(name: str, value: Any) -> Array:
    """Return an array of floats or integers."""
    array = read(name, value)
    if array.dtype.kind not in "fiu":
        from attnext._core import Memory  # not at import: it imports what this file imports

        if isinstance(value, Memory):
            raise _wrong.sentence("memory_of_layer")
        raise _dtype_error(name, value, array, REAL)
    return array


def floats(name: str, value: Any) -> Array:
    """Return an array of floats, for bias. Refuse integers and bools."""
    array = read(name, value)
    if array.dtype.kind != "f":
        hint = ": use the argument mask for a bool mask" if array.dtype.kind == "b" else ""
        raise _dtype_error(name, value, array, f"floats{hint}")
    return array


def bools(name: str, value: Any) -> Array:
    """Return an array of bools, for mask and dropout_mask."""
    array = read(name, value)
    if array.dtype == bool or _is_empty_list(value, array):
        return array.astype(bool, copy=False)
    hint = ""
    if array.dtype.kind in "fiu":
        adds = ": to add floats to the scores, use the argument bias"
        hint = adds if array.dtype.kind == "f" else ": True means attend"
        hint = ": True means keep" if name == "dropout_mask" else hint
        if array.size > 0 and not np.any((array != 0) & (array != 1)):
            hint += f"; all values are 0 or 1, so pass {_cast(name, value, 'bool')}"
    raise _dtype_error(name, value, array, f"bools{hint}")


def integers(name: str, value: Any, X: Any = None) -> Array | int | list[int]:
    """Return lengths or offsets as an array, an int or a list of ints; ints may have any size.

    X: the scores of the same call, to notice that X and the lengths were swapped.
    """
    if _is_int(value):
        return value  # type: ignore[no-any-return]
    if type(value) is list and set(map(type, value)) <= {int}:
        return value.copy()  # other threads may change the list
    array = read(name, value)
    if _is_empty_list(value, array):
        return array.astype(np.int64)
    if array.dtype.kind in "iu":
        return array
    if array.dtype.kind == "f" and X is not None and _are_swapped(X, array):
        function = "sequence_mask" if name == "valid_len" else "masked_softmax"
        raise TypeError(
            f"X contains integers and {name} floats, expected the opposite order: "
            f"{function}(X, {name})"
        )
    expected = "integers"
    is_like_a_mask = name == "valid_lens" and array.ndim > 1
    if array.dtype.kind == "b" and name.startswith("valid_len"):
        what = "keys" if name == "valid_lens" else "steps"
        expected = f"integers: {name} counts {what}{_WHICH * is_like_a_mask}"
    elif array.dtype.kind == "f" and array.size > 0 and _are_whole(array):
        whole = "the value is a whole number" if array.ndim == 0 else "all values are whole numbers"
        expected = f"integers; {whole}, so pass {_cast(name, value, 'int')}"
    if array.dtype.kind == "f" and is_like_a_mask:
        expected += _ADDED
    raise _dtype_error(name, value, array, expected)


def _are_whole(array: Array) -> bool:
    """True if every value is an integer. Infinity and NaN are not."""
    return bool(np.all(np.isfinite(array) & (np.trunc(array) == array)))


def _cast(name: str, value: Any, kind: str) -> str:
    """Return the code that converts the value to `kind`, "int" or "bool"."""
    if hasattr(value, "long"):  # a torch tensor
        return f"{name}.long()" if kind == "int" else f"{name}.bool()"
    if isinstance(value, np.ndarray):
        of_tensor = hasattr(value.base, "long")  # attnext.torch's, or tensor.numpy()
        return f"{name} != 0" if of_tensor and kind == "bool" else f"{name}.astype({kind})"
    return f"numpy.array({name}, {kind})" if isinstance(value, _LISTS) else f"{kind}({name})"


def _are_swapped(X: Any, lens: Array) -> bool:
    try:
        scores = read("X", X)
    except Exception:
        return False
    return scores.dtype.kind in "iu" and lens.ndim > scores.ndim


def parts(name: str, value: Any) -> Array | tuple[Array, ...]:
    """Return real arrays: a tuple of them, or one array that stacks them."""
    if not isinstance(value, _LISTS):
        return real(name, value)
    try:
        items = tuple(value)  # another thread may change a list
    except Exception as error:
        note(name, error)
        raise
    return _each(real, name, items)


def out(name: str, value: Any) -> Array:
    """Return an array to write into."""
    if not isinstance(value, np.ndarray):
        raise _wrong.kind(name, value, "a numpy.ndarray")
    _refuse_subclass(name, value)
    if value.dtype != np.dtype(np.float32):
        raise TypeError(f"{name} has dtype {value.dtype}, expected float32")
    how = "read-only" if not value.flags.writeable else "not C-contiguous"
    if value.flags.writeable and not value.flags.aligned:
        how = "unaligned"
    if not value.flags.carray:
        raise ValueError(f"{name} is {how}, expected a writable C-contiguous array")
    return value


def overlap(name: str, value: Array, out: Array) -> None:
    """Raise ValueError if two arrays whose address ranges overlap share elements."""
    try:
        shared = np.shares_memory(out, value, 100_000)  # type: ignore[arg-type]
    except RuntimeError:  # TooHardError: NumPy cannot decide
        shared = True
    if shared:
        raise ValueError(f"out shares memory with {name}, expected an array with its own memory")


# ---- numbers -----------------------------------------------------------------------------------


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def number(name: str, value: Any, expected: str = "a number") -> float:
    """Return a number, which may be a Python or NumPy number or an array without axes."""
    found: float = value
    if not isinstance(value, float) and not _is_int(value):
        array = read(name, value)
        if array.dtype.kind not in "fiu":
            if type(value) is np.ndarray:
                raise _dtype_error(name, value, array, "a real number")
            raise TypeError(f"{name} must be {expected}, got {type_name(value)}")
        if array.ndim != 0 and not (array.size == 1 and expected != "a number"):
            raise ValueError(f"{name} has shape {array.shape}, expected {expected}")
        with np.errstate(all="ignore"):
            found = float(array.astype(np.float32).reshape(()))
    try:
        float(found)
    except OverflowError:
        raise ValueError(f"{name} is an int too large for a float") from None
    return found


_INFINITE = 2.0**128 - 2.0**103  # from here on float32 rounds to infinity


def finite(name: str, value: Any, expected: str = "a number") -> float:
    """Return a number that is finite also as float32."""
    found = number(name, value, expected)
    if not abs(float(found)) < _INFINITE:
        raise _wrong.value(name, value, "a finite float32 number")
    return found


def positive(name: str, value: Any) -> float:
    found = finite(name, value)
    if not found > 2.0**-150:  # smaller numbers round to 0
        raise _wrong.value(name, value, "{name} > 0 in float32")
    return found


def probability(name: str, value: Any) -> float:
    """Return a number with 0 <= p < 1, also as float32."""
    found = number(name, value)
    if not 0.0 <= found < 1.0 - 2.0**-25:  # larger numbers round to 1
        rounded = " in float32" if 0.0 <= found < 1.0 else ""
        raise _wrong.value(name, value, f"0 <= {name} < 1{rounded}")
    return found


_ONE = "a number or an array of one element"


def w(name: str, value: Any) -> float:
    """Return the factor w of the Gaussian kernel."""
    return finite(name, value, _ONE)


def sigma(name: str, value: Any) -> float:
    """Return the bandwidth sigma, which is 1 / w."""
    found = number(name, value, _ONE)
    if not 0.0 < found < math.inf or not 1.0 / found < _INFINITE:
        raise _wrong.value(name, value, "a finite sigma > 0 with a finite 1 / sigma")
    return found


def scale(name: str, value: Any) -> Array | float:
    """Return a number, or an array of numbers if the value has items."""
    has_items = hasattr(type(value), "__getitem__") and not isinstance(value, str | dict)
    return real(name, value) if has_items else finite(name, value)


def index(name: str, value: Any) -> int:
    """Return an int, also from an object with `__index__`. Refuse bools."""
    if _is_int(value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{name} must be an int, got {type_name(value)}")
    try:
        return operator.index(value)
    except Exception as error:  # arrays, tensors
        if type(error) is TypeError:
            raise TypeError(f"{name} must be an int: {error}") from error
        note(name, error)
        raise


def between(name: str, value: Any, low: int, high: int | None, expected: str) -> int:
    found = index(name, value)
    if found < low or (high is not None and found > high):
        raise _wrong.value(name, value, expected)
    return found


def heads(name: str, value: Any) -> int:
    """Return a number of heads, at least 1."""
    return between(name, value, 1, None, "{name} >= 1")


def seed(name: str, value: Any) -> int:
    return between(name, value, 0, 2**64 - 1, "0 <= seed < 2**64")


def drawn_seed(rng: Any) -> int:
    """Return a seed for dropout, drawn from a layer's generator."""
    return seed("a seed drawn from rng", rng.integers(0, 2**64 - 1, None, "uint64", True))


def _end(name: str, value: Any) -> int:
    return between(name, value, -1, None, "0 or more, or -1 for no bound")


def window(name: str, value: Any) -> tuple[int, ...]:
    """Return a window as a tuple of two ints."""
    if not isinstance(value, _LISTS):
        raise TypeError(f"{name} must be a pair of ints (left, right), got {type_name(value)}")
    try:
        ends = tuple(value)
    except Exception as error:
        note(name, error)
        raise
    if len(ends) != 2:
        raise ValueError(f"{name} has length {len(ends)}, expected 2: (left, right)")
    return _each(_end, name, ends)


# ---- flags and words ---------------------------------------------------------------------------


def flag(name: str, value: Any) -> bool:
    """Return a bool from a Python bool, a NumPy bool or a 0-d array of bools.

    Other objects are refused, because the truth value of the string 'no' is True.
    """
    if isinstance(value, (bool, np.bool_)):  # a tuple is faster than a union
        return bool(value)
    if isinstance(value, np.ndarray) and value.dtype == bool and value.ndim == 0:
        return bool(value)
    raise _wrong.kind(name, value, "a bool")


def rule(name: str, value: Any) -> str:
    """Return the rule for rows whose keys are all masked."""
    if not isinstance(value, str):
        raise _wrong.kind(name, value, "a str")
    found = str.__str__(value)  # the text itself, also of a subclass
    if found not in ("uniform", "zero", "nan"):
        raise _wrong.value(name, value, "'uniform', 'zero' or 'nan'")
    return found


# ---- several arguments -------------------------------------------------------------------------

_FAR = 2**61  # twice the largest possible distance between a query and a key


def _move_near(name: str, given: dict[str, Any]) -> None:
    """Limit the window to +-`_FAR`, so that C can add, and adjust the offset to it."""
    left, right = given[name]
    if max(left, right) > _FAR:
        from attnext.reference import band  # not at import: such large numbers are rare

        ends = left if left != -1 else None, right if right != -1 else None
        if band.OFFSET in given:
            after = 0 if given.get("causal") is True else ends[1]
            given[band.OFFSET] = band.near(given[band.OFFSET], ends[0], after)
        given[name] = min(left, _FAR), min(right, _FAR)


def plain(arguments: list[tuple[str | None, str, Any]]) -> tuple[Any, ...]:
    """Return the arguments of a call in their order, converted if they have a reader.

    arguments: (reader or None, name, value). C calls this until all arguments are plain, because
    the code that one conversion runs may change another argument.
    """
    readers = globals()
    if len(arguments) == 1 and arguments[0][0] not in (None, "window"):
        return (readers[arguments[0][0]](*arguments[0][1:]),)
    given: dict[str, Any] = {}
    for _, name, value in arguments:
        given[name] = value
    for reader, name, value in arguments:
        if reader == "integers" and "X" in given:
            given[name] = integers(name, value, given["X"])
        elif reader is not None:
            given[name] = readers[reader](name, value)
        if reader == "window":
            _move_near(name, given)
    if given.get("out") is not None:
        for name, value in given.items():
            if name != "out" and isinstance(value, np.ndarray):
                overlap(name, value, given["out"])
    return tuple(given.values())
