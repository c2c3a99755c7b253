"""What C does not read: any object as an array, a number or a pair, or what is wrong with it.

C takes what is plain, arrays of NumPy's own class and of a dtype that fits, ints, floats, bools,
lists of ints, and looks at shapes and values. Whatever else comes is read here, before the first
look: reading may run anybody's code. Each function is called with the name of an argument and what
was given, and returns what is plain; it is named as the kinds in py_read.c are.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_LISTS = (list, tuple)

REAL = "real numbers (any float or integer dtype)"
HOW_MANY = "integers: how many keys take part, not which"
# Where other libraries have a mask.
_WHICH = "; which, says the argument mask"
_ADDED = "; floats to be added to the scores are an attention's argument bias"

# No function here has variables that an inner one sees, not even that of a comprehension: where
# there is no memory for them CPython 3.11 loses what the function was given.

# ---- what others raise, and what they are ------------------------------------------------------


def _note(name: str, error: Exception) -> None:
    if not isinstance(error, MemoryError):
        error.add_note(f"raised when the argument {name} was read")


def type_name(value: object) -> str:
    """As C's messages have it: of types made by a class statement the name alone."""
    kind = type(value)
    by_statement = kind.__flags__ & 1 << 9
    whole = f"{kind.__module__}.{kind.__name__}"
    return kind.__name__ if by_statement or kind.__module__ == "builtins" else whole


def _each(read: Callable[[str, Any], Any], name: str, items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Each item, read as ``name[i]``."""
    found = []
    for i, item in enumerate(items):
        found.append(read(f"{name}[{i}]", item))
    return tuple(found)


class _Shown:
    """A number that shows itself as what it was read from: C says what is wrong with its value."""

    came: Any

    def __repr__(self) -> str:
        try:
            return repr(self.came)
        except Exception:
            return f"an object of type {type_name(self.came)}"


class _Float(_Shown, float):
    pass


class _Int(_Shown, int):
    pass


# ---- arrays ------------------------------------------------------------------------------------


def read(name: str, value: Any) -> Array:
    """The value as an array of whatever dtype it has."""
    if isinstance(value, np.ndarray):
        array = value
    else:
        if type(value) is not list:
            _refuse_requires_grad(name, value)
        try:
            array = np.asanyarray(value)
        except Exception as error:
            if type(error) in (ValueError, TypeError, RuntimeError):
                raise type(error)(f"{name} cannot be read as an array: {error}") from error
            _note(name, error)
            raise
    if array.dtype.kind == "O" and isinstance(value, _LISTS) and _is_ragged(array):
        what = "cannot be read as an array: its lists have different lengths"
        raise ValueError(f"{name} {what}")
    if type(array) is np.ndarray:
        return array
    _refuse_subclass(name, array)
    return np.asarray(array)


def _refuse_requires_grad(name: str, value: Any) -> None:
    """A torch tensor that wants gradients cannot have them from here."""
    try:
        refused = getattr(value, "requires_grad", False) is True
    except Exception as error:
        _note(name, error)
        raise
    if refused:
        raise TypeError(
            f"{name} is a tensor that requires grad, which a NumPy function cannot give it: use "
            f"the function of the same name in attnext.torch, or pass {name}.detach()"
        )


def _is_ragged(array: Array) -> bool:
    """What NumPy before 1.24 makes of lists of different lengths: an array of lists."""
    return array.size > 0 and isinstance(array.flat[0], list)


def _refuse_subclass(name: str, array: Array) -> None:
    """Those whose meaning would be lost: a masked array's mask, the rules of np.matrix."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a numpy.ma.MaskedArray, whose mask would be lost; expected a plain array "
            "(for padding, use valid_lens)"
        )
    if isinstance(array, np.matrix):
        raise TypeError(f"{name} is a numpy.matrix, expected a plain array (numpy.asarray of it)")


def check_shape(name: str, array: Any, shape: tuple[int | str, ...]) -> None:
    """The array's shape is this one; a letter in it stands for any size."""
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
    """NumPy calls [] floats, whatever it is meant to be."""
    return array.size == 0 and isinstance(value, _LISTS)


def real(name: str, value: Any) -> Array:
    """Floats or integers."""
    array = read(name, value)
    if array.dtype.kind not in "fiu":
        raise _dtype_error(name, value, array, REAL)
    return array


def floats(name: str, value: Any) -> Array:
    """A bias: floats, but no integers and no bools."""
    array = read(name, value)
    if array.dtype.kind != "f":
        hint = ": a bool mask is the argument mask" if array.dtype.kind == "b" else ""
        raise _dtype_error(name, value, array, f"floats{hint}")
    return array


def bools(name: str, value: Any) -> Array:
    """A mask or a dropout_mask."""
    array = read(name, value)
    if array.dtype == bool or _is_empty_list(value, array):
        return array.astype(bool, copy=False)
    hint = ""
    if array.dtype.kind in "fiu":
        adds = ": floats to be added to the scores are the argument bias"
        hint = adds if array.dtype.kind == "f" else ": True = attend"
        hint = ": True = keep" if name == "dropout_mask" else hint
    raise _dtype_error(name, value, array, f"bools{hint}")


def integers(name: str, value: Any) -> Array | int | list[int]:
    """Lengths or offsets; Python ints, or a list of them, may have any size."""
    if _is_int(value) or (type(value) is list and set(map(type, value)) <= {int}):
        return value  # type: ignore[no-any-return]
    array = read(name, value)
    if _is_empty_list(value, array):
        return array.astype(np.int64)
    if array.dtype.kind in "iu":
        return array
    expected = "integers"
    is_like_a_mask = name == "valid_lens" and array.ndim > 1
    if array.dtype.kind == "b" and name.startswith("valid_len"):
        expected = HOW_MANY + _WHICH * is_like_a_mask
    elif array.dtype.kind == "f" and hasattr(value, "long"):  # a tensor of torch
        expected = "integers: .long(), if these are whole numbers"
    elif array.dtype.kind == "f" and isinstance(value, np.ndarray):
        expected = "integers: .astype(int), if these are whole numbers"
    if array.dtype.kind == "f" and is_like_a_mask:
        expected += _ADDED
    raise _dtype_error(name, value, array, expected)


def parts(name: str, value: Any) -> Array | tuple[Array, ...]:
    """Real arrays, a list or tuple of them or one that stacks them."""
    if not isinstance(value, _LISTS):
        return real(name, value)
    try:
        items = tuple(value)  # a list may change while it is read
    except Exception as error:
        _note(name, error)
        raise
    return _each(real, name, items)


def out(name: str, value: Array) -> Array:
    """An array to write into, of a subclass."""
    _refuse_subclass(name, value)
    return value


def overlap(name: str, value: Array, out: Array) -> None:
    """Bytes between the first and the last of both are the same: are elements?"""
    try:
        shared = np.shares_memory(out, value, 100_000)  # type: ignore[arg-type]
    except RuntimeError:  # TooHardError: undecided counts as shared
        shared = True
    if shared:
        raise ValueError(f"out shares memory with {name}, expected memory of its own")


def rng(name: str, value: Any) -> "np.random.Generator":  # which NumPy imports when asked for
    """A generator of random numbers, or what makes one."""
    try:
        return np.random.default_rng(value)
    except Exception as error:
        if type(error) in (TypeError, ValueError):
            what = f"{name} is not what numpy.random.default_rng takes: {error}"
            raise type(error)(what) from error
        _note(name, error)
        raise


# ---- numbers -----------------------------------------------------------------------------------


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def number(name: str, value: Any, expected: str = "a number") -> float:
    """A Python or NumPy number, or an array without axes."""
    if isinstance(value, float) or _is_int(value):
        return value  # type: ignore[no-any-return]
    array = read(name, value)
    if array.dtype.kind not in "fiu":
        if type(value) is np.ndarray:
            raise _dtype_error(name, value, array, "a real number")
        raise TypeError(f"{name} must be {expected}, got {type_name(value)}")
    if array.ndim != 0 and not (array.size == 1 and expected != "a number"):
        raise ValueError(f"{name} has shape {array.shape}, expected {expected}")
    with np.errstate(all="ignore"):
        found = _Float(array.astype(np.float32).reshape(()))
    found.came = value
    return found


def one_number(name: str, value: Any) -> float:
    """Likewise, or any array of one element."""
    return number(name, value, "a number or an array of one element")


def scale(name: str, value: Any) -> Array | float:
    """A number, or an array of them: what has items."""
    has_items = hasattr(type(value), "__getitem__") and not isinstance(value, str | dict)
    return real(name, value) if has_items else number(name, value)


def index(name: str, value: Any) -> int:
    """What can stand for an int; a bool cannot."""
    if _is_int(value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{name} must be an int, got {type_name(value)}")
    try:
        found = _Int(operator.index(value))
    except Exception as error:  # arrays, tensors
        if type(error) is TypeError:
            raise TypeError(f"{name} must be an int: {error}") from error
        _note(name, error)
        raise
    found.came = value
    return found


def window(name: str, value: Any) -> tuple[int, ...]:
    """Ints, which should be two."""
    if not isinstance(value, _LISTS):
        raise TypeError(f"{name} must be a pair of ints (left, right), got {type_name(value)}")
    try:
        ends = tuple(value)
    except Exception as error:
        _note(name, error)
        raise
    if len(ends) != 2:
        raise ValueError(f"{name} has {len(ends)} entries, expected two: (left, right)")
    return _each(index, name, ends)


# ---- arguments that say something about others -------------------------------------------------

FAR = 2**60  # further than any key is from any query


def near_offset(offset: Any, window: tuple[int, int], causal: object) -> Array:
    """The offset that gives the same band if a far end of the window is moved to 2 * `FAR`.

    A band that wide has at most one of its ends in reach; the offset puts that where it belongs.
    """
    left, right = window
    if isinstance(causal, bool | np.bool_ | np.ndarray) and causal:
        right = 0
    exact = np.array(offset, dtype=object)  # Python ints, of any size
    near = np.empty(exact.shape, np.int64)
    for i, x in enumerate(exact.flat):
        first = max(-FAR, min(x - left, FAR)) if left != -1 else -FAR
        last = max(-FAR, min(x + right, FAR)) if right != -1 else FAR
        by_last = last < FAR or left == -1
        near.flat[i] = last - min(right, 2 * FAR) if by_last else first + min(left, 2 * FAR)
    return near


def swapped(function: str, X: Any, lens: Any, name: str) -> TypeError | None:
    """What a call f(X, lens) that failed is told if integers came as X and floats as lengths."""
    try:
        scores, lengths = read("X", X), read(name, lens)
    except Exception:
        return None
    if scores.dtype.kind in "iu" and lengths.dtype.kind == "f" and lengths.ndim > scores.ndim:
        return TypeError(
            f"X holds integers and {name} floats, as if they were swapped: expected "
            f"{function}(X, {name})"
        )
    return None
