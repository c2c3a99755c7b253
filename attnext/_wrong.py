"""Create the exceptions for invalid arguments.

The C code checks the arguments but writes no messages. When a check fails, it calls the function
here that is named after the check, and raises the exception that the function returns. A message
names the argument, what was given and what was expected, and then says what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from attnext._hints import call as call  # for C: the arguments do not fit the signature

if TYPE_CHECKING:  # as in _positions.py
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any]"
Dims = list[int] | tuple[int, ...]  # an expected shape; a size below 0 is an index of _LETTERS

_LETTERS = ("", "M", "N", "H", "D", "Dq", "Dk", "Dv", "heads")  # the order of PY_M, PY_N, ...
_M, _N, _DK, _HEADS = -1, -2, -6, -8

# No function here has variables that an inner function uses; _reading.py says why.

# ---- words -------------------------------------------------------------------------------------


def type_name(value: object) -> str:
    """Return the type's name as CPython's messages show it: with its module if the type is in C."""
    kind = type(value)
    by_statement = kind.__flags__ & 1 << 9
    whole = f"{kind.__module__}.{kind.__name__}"
    return kind.__name__ if by_statement or kind.__module__ == "builtins" else whole


def _text(dims: Dims) -> str:
    """Return a shape as NumPy writes it: ``(2, N, 4)``."""
    entries = [_LETTERS[-n] if n < 0 else str(n) for n in dims]
    return f"({entries[0]},)" if len(entries) == 1 else f"({', '.join(entries)})"


def shown(value: object) -> str:
    """Return repr(value), or a description if repr fails, as it does for ints of 4301 digits."""
    try:
        return repr(value)
    except Exception:
        huge = isinstance(value, int)
        return f"a huge {type_name(value)}" if huge else f"an object of type {type_name(value)}"


# ---- one argument ------------------------------------------------------------------------------


def value(name: str, came: object, expected: str) -> ValueError:
    """Return a ValueError for a value; `expected` may contain ``{name}``."""
    return ValueError(f"{name} is {shown(came)}, expected {expected.replace('{name}', name)}")


def kind(name: str, came: object, expected: str) -> TypeError:
    return TypeError(f"{name} must be {expected}, got {type_name(came)}")


def shape(name: str, came: Any, expected: str | Dims) -> ValueError:
    if isinstance(expected, str):
        return ValueError(f"{name} has shape {np.shape(came)}, expected {expected}")
    hint = _if_transposed(name, came, expected)
    return ValueError(f"{name} has shape {np.shape(came)}, expected {_text(expected)}{hint}")


_TRANSPOSED = "; if its last two axes are swapped, pass {name}.swapaxes(-1, -2)"


def _if_transposed(name: str, came: Any, dims: Dims) -> str:
    """Return a hint if queries, keys or values fit after their last two axes are swapped."""
    shape = np.shape(came)
    if name not in ("queries", "keys", "values") or len(shape) != len(dims) or len(shape) < 2:
        return ""
    exchanged = (*shape[:-2], shape[-1], shape[-2])
    fits = True
    for size, expected in zip(exchanged, dims, strict=True):
        fits = fits and (expected < 0 or size == expected)
    return _TRANSPOSED.format(name=name) if fits else ""


def overflow(name: str) -> ValueError:
    return ValueError(f"{name} is too large: its batch size times num_heads is 2**63 or more")


def arrays_too_large(what: str) -> ValueError:
    text = "the arrays are too large: {} need more bytes than the computer can address"
    return ValueError(text.format(what))


def lost_memory(name: str) -> ValueError:
    return ValueError(f"{name} is a view of an array whose memory was freed: pass a new array")


def parameter(name: str, came: Array, dims: Dims) -> ValueError:
    """Return the error for a parameter, which may lack a leading axis of size 1."""
    either = f"{_text(dims[1:])} or {_text(dims)}" if dims[0] == 1 else _text(dims)
    return shape(name, came, either)


def divisor(name: str, came: int, whose: str, number: int) -> ValueError:
    return ValueError(f"{name} is {came}, expected a divisor of {whose} ({number})")


def contains(name: str, came: float, expected: str) -> ValueError:
    return ValueError(f"{name} contains {came}, expected {expected}")


# ---- several arguments -------------------------------------------------------------------------


def both(first: str, second: str, hint: str) -> ValueError:
    return ValueError(f"{first} and {second} are both given, expected only one{hint}")


def no_seed(dropout_p: object) -> ValueError:
    expected = f"0 <= seed < 2**64 because dropout_p is {dropout_p!r}"
    return ValueError(f"seed is not given, expected {expected}")


def _fits(came: Array, dims: Dims) -> bool:
    for own, expected in zip(came.shape, dims, strict=False):
        if expected >= 0 and own != expected:
            return False
    return came.ndim == len(dims)


def keys(came: Any, queries: Array, own_size: bool, enable_gqa: bool, N: int) -> ValueError:
    """Return the error for keys that do not fit queries.

    came: the keys, or a memory; N: the number of the memory's keys, or -1 if there is none.
    """
    came = came if N < 0 else came._parts(False)[0]
    *leading, _, features = queries.shape
    dims = [*leading, _N, _DK if own_size else features]
    heads = leading[-1] if leading else 1
    any_heads = [*leading[:-1], _HEADS, *dims[-2:]]
    fewer = _fits(came, any_heads)
    hint = ""
    if enable_gqa:
        dims = any_heads
    elif fewer and len(dims) > 3 and came.shape[-3] > 0 and heads % came.shape[-3] == 0:
        hint = "; if several query heads share one key head, pass enable_gqa=True"
    if N >= 0:
        return _of_memory(came, queries, own_size, enable_gqa, N, hint)
    if enable_gqa and fewer:
        expected = f"a number of heads (axis -3) that divides {heads}, the heads of queries"
        return shape("keys", came, expected)
    return shape("keys", came, _text(dims) + hint) if hint else shape("keys", came, dims)


def _of_memory(
    came: Array, queries: Array, own_size: bool, enable_gqa: bool, N: int, hint: str
) -> ValueError:
    dims, wanted = list(came.shape), list(came.shape)
    dims[-2] = N
    wanted[-2:] = [_M, queries.shape[-1] if own_size else dims[-1]]
    if enable_gqa and len(wanted) > 2:
        wanted[-3] = _HEADS
    expected = f"{_text(wanted)} because the memory has keys of shape {_text(dims)}{hint}"
    return shape("queries", queries, expected)


def lengths(name: str, came: Any, rows: Dims) -> ValueError:
    """Return the error for lengths of a wrong shape; rows is queries.shape[:-1]."""
    if name != "valid_lens":  # valid_len of sequence_mask
        return shape(name, came, rows)
    texts = [_text(rows[:1]), _text((rows[0], rows[-1])), _text(rows)] if rows else ["an int"]
    if len(rows) == 1:
        texts = [texts[0], "an int"]
    elif len(rows) == 2:
        texts = texts[:2]
    *first, last = texts
    return shape(name, came, f"{', '.join(first)} or {last}" if first else last)


def negative_length(name: str, came: object, length: int) -> ValueError:
    if isinstance(came, int):
        return value(name, came, "a length of 0 or more")
    return contains(name, length, "lengths of 0 or more")


def offset(name: str, came: Array, rows: Dims) -> ValueError:
    expected = f"an int or {_text(rows[:1])}" if len(rows) > 1 else "an int"
    return shape(name, came, expected)


def broadcast(name: str, came: Array, dims: Dims) -> ValueError:
    hint = ""
    if len(dims) > 2 and came.shape == (dims[0], dims[-1]) and name != "sink":
        axes = ", ".join(["None"] * (len(dims) - 2))
        hint = f"; if it has one value per key of each batch element, pass {name}[:, {axes}]"
    return shape(name, came, f"a shape that broadcasts to {_text(dims)}{hint}")


def pairs_of_heads(name: str, came: Array, dims: Dims) -> ValueError:
    """Return the error for a mask or bias of multi-head attention: only (M, N) or all axes fit."""
    hint = ""
    if len(dims) == 4:
        each = f"{name}[:, None] if it has one {name} per batch element"
        hint = f"; pass {each}, or {name}[None] if it has one {name} per head"
    all_axes = f"a shape with {len(dims)} axes that broadcasts to {_text(dims)}"
    return shape(name, came, f"a shape that broadcasts to {_text(dims[-2:])}, or {all_axes}{hint}")


def count_of_parts(name: str, came: int, expected: int) -> ValueError:
    return ValueError(f"{name} has {came} parts, expected {expected}, as many as outputs has")


# ---- layers and memories -----------------------------------------------------------------------

_SIZES = {"queries": ("M", "query_size"), "keys": ("N", "key_size"), "values": ("N", "value_size")}


def not_made(kind: str) -> RuntimeError:
    return RuntimeError(f"{kind}.__init__() has not been called")


def no_parameter(name: str) -> KeyError:
    return KeyError(name)


def features(name: str, came: Array, size: int) -> ValueError:
    rows, size_name = _SIZES[name]
    hint = _TRANSPOSED.format(name=name) if came.shape[-2] == size else ""
    return shape(name, came, f"(..., {rows}, {size}) because {size_name} is {size}{hint}")


def live(name: str, came: Array, dims: Dims) -> Exception:
    """Return the error for a parameter whose array was changed in place, or is read-only."""
    if came.dtype != np.dtype(np.float32):
        return TypeError(f"{name} has dtype {came.dtype}, expected float32")
    if came.shape != dims:
        return shape(name, came, dims)
    if not came.flags.c_contiguous or not came.flags.aligned:
        return ValueError(f"{name} is not C-contiguous, expected the strides it was created with")
    text = "{0} is read-only, expected a writable array: set {0}.flags.writeable = True"
    return ValueError(text.format(name))


def changed(name: str, same_size: bool) -> RuntimeError:
    """Return the error for a parameter that changed after a memory projected its keys with it."""
    what = "has changed since the memory projected its keys"
    if not same_size:
        what = "has a different shape than when the memory was created"
    return RuntimeError(f"{name} {what}: create a new memory with layer.memory()")


def beside_memory(name: str) -> TypeError:
    text = "{name} and a memory are both given: leave out {name}, which the memory already contains"
    return TypeError(text.format(name=name))


# ---- fixed messages ----------------------------------------------------------------------------

_SENTENCES: dict[str, tuple[type[Exception], str]] = {
    "changing": (
        RuntimeError,
        "the arguments changed each time they were read: do not modify them during the call",
    ),
    "no_parts": (ValueError, "outputs is empty, expected at least one part"),
    "no_values": (TypeError, "__call__() missing required argument 'values' (position 3)"),
    "no_forward": (
        RuntimeError,
        "backward() needs a forward pass: call the layer first",
    ),
    "context_of_another": (
        ValueError,
        "context belongs to another layer, expected the attribute context of this layer",
    ),
    "memory_of_another": (
        ValueError,
        "the memory belongs to another layer, expected a memory that this layer created",
    ),
    "memory_of_layer": (
        TypeError,
        "keys is a Memory, expected an array: call the memory's layer, layer(queries, memory)",
    ),
    "made_memory": (
        TypeError,
        "a Memory cannot be created directly: call layer.memory(keys, values)",
    ),
    "other_sizes": (
        ValueError,
        "the saved sizes do not fit this class, or dropout is not in 0 <= dropout < 1",
    ),
    "fixed_memory": (TypeError, "this memory is a snapshot: append to the original memory"),
    "other_rows": (ValueError, "the shape of keys or values changed during the call"),
    "too_many_rows": (
        ValueError,
        "keys has too many rows: the memory would have 2**63 keys or more",
    ),
    "layer_is_gone": (
        RuntimeError,
        "the layer that created this memory was deleted: keep the layer while you use its memory",
    ),
}


def sentence(what: str) -> Exception:
    """Return the error of this name, whose message needs no facts."""
    kind, text = _SENTENCES[what]
    return kind(text)
