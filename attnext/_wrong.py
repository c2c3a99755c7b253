"""What is wrong with the arguments of a call, in words: what C finds, as an exception.

C looks at shapes and at what is in arrays and says nothing itself. Where something is wrong it
calls the function here that is named for it, with what it knows of it, and raises what comes back.
An argument is told by its name, what was expected and what came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from attnext._hints import call as call  # which a signature does not fit

if TYPE_CHECKING:  # as in _positions.py
    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[Any]"
Dims = list[int] | tuple[int, ...]  # of an expected shape: a number below 0 stands for a letter

_LETTERS = ("", "M", "N", "H", "D", "Dq", "Dk", "Dv", "heads")  # as PY_M and so on
_M, _N, _DK, _HEADS = -1, -2, -6, -8

# As in _reading.py, no function has variables that an inner one sees.

# ---- words -------------------------------------------------------------------------------------


def type_name(value: object) -> str:
    """As C's messages have it: of types made by a class statement the name alone."""
    kind = type(value)
    by_statement = kind.__flags__ & 1 << 9
    whole = f"{kind.__module__}.{kind.__name__}"
    return kind.__name__ if by_statement or kind.__module__ == "builtins" else whole


def _text(dims: Dims) -> str:
    """A shape as NumPy writes it: ``(2, N, 4)``."""
    entries = [_LETTERS[-n] if n < 0 else str(n) for n in dims]
    return f"({entries[0]},)" if len(entries) == 1 else f"({', '.join(entries)})"


def shown(value: object) -> str:
    """Python refuses to write out ints of more than 4300 digits."""
    try:
        return repr(value)
    except Exception:
        huge = isinstance(value, int)
        return f"a huge {type_name(value)}" if huge else f"an object of type {type_name(value)}"


# ---- one argument ------------------------------------------------------------------------------


def value(name: str, came: object, expected: str) -> ValueError:
    """`expected` may have ``{name}`` in it."""
    return ValueError(f"{name} is {shown(came)}, expected {expected.replace('{name}', name)}")


def kind(name: str, came: object, expected: str) -> TypeError:
    return TypeError(f"{name} must be {expected}, got {type_name(came)}")


def shape(name: str, came: Any, expected: str | Dims) -> ValueError:
    if isinstance(expected, str):
        return ValueError(f"{name} has shape {np.shape(came)}, expected {expected}")
    hint = _if_transposed(name, came, expected)
    return ValueError(f"{name} has shape {np.shape(came)}, expected {_text(expected)}{hint}")


def _if_transposed(name: str, came: Any, dims: Dims) -> str:
    """Return what to write if queries, keys or values fit with their last two axes exchanged."""
    shape = np.shape(came)
    if name not in ("queries", "keys", "values") or len(shape) != len(dims) or len(shape) < 2:
        return ""
    exchanged = (*shape[:-2], shape[-1], shape[-2])
    fits = True
    for size, expected in zip(exchanged, dims, strict=True):
        fits = fits and (expected < 0 or size == expected)
    return f"; if it is transposed: {name}.swapaxes(-1, -2)" if fits else ""


def overflow(name: str) -> ValueError:
    return ValueError(f"{name} has a size that overflows")


def arrays_too_large(memory: str) -> ValueError:
    return ValueError(f"the arrays are too large: the memory {memory} has a size that overflows")


def lost_memory(name: str) -> ValueError:
    return ValueError(f"{name} lost its memory: the array that it is a view of gave it back")


def parameter(name: str, came: Array, dims: Dims) -> ValueError:
    """The parameter may lack a leading axis of size 1."""
    either = f"{_text(dims[1:])} or {_text(dims)}" if dims[0] == 1 else _text(dims)
    return shape(name, came, either)


def divisor(name: str, came: int, whose: str, number: int) -> ValueError:
    return ValueError(f"{name} is {came}, expected a divisor of {whose}, {number}")


def contains(name: str, came: float, expected: str) -> ValueError:
    return ValueError(f"{name} contains {came}, expected {expected}")


# ---- in the light of others --------------------------------------------------------------------


def both(first: str, second: str, hint: str) -> ValueError:
    return ValueError(f"{first} and {second} are both given, expected one of them{hint}")


def no_seed(dropout_p: object) -> ValueError:
    wanted = "an int 0 <= seed < 2**64 because dropout_p is"
    return ValueError(f"seed is not given, expected {wanted} {dropout_p!r}")


def _fits(came: Array, dims: Dims) -> bool:
    for own, expected in zip(came.shape, dims, strict=False):
        if expected >= 0 and own != expected:
            return False
    return came.ndim == len(dims)


def keys(came: Any, queries: Array, own_size: bool, enable_gqa: bool, N: int) -> ValueError:
    """keys do not fit queries; N: so many of a memory's keys, which came, or -1 for others."""
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
        hint = "; with enable_gqa=True the heads (axis -3) may be fewer"
    if N >= 0:
        return _of_memory(came, queries, own_size, enable_gqa, N, hint)
    if enable_gqa and fewer:
        divides = f"a number of heads (axis -3) that divides the {heads} of queries"
        return shape("keys", came, divides)
    return shape("keys", came, _text(dims) + hint) if hint else shape("keys", came, dims)


def _of_memory(
    came: Array, queries: Array, own_size: bool, enable_gqa: bool, N: int, hint: str
) -> ValueError:
    dims, wanted = list(came.shape), list(came.shape)
    dims[-2] = N
    wanted[-2:] = [_M, queries.shape[-1] if own_size else dims[-1]]
    if enable_gqa and len(wanted) > 2:
        wanted[-3] = _HEADS
    of_memory = f"{_text(wanted)} for a memory with keys of shape {_text(dims)}{hint}"
    return shape("queries", queries, of_memory)


def lengths(name: str, came: Any, rows: Dims) -> ValueError:
    """Valid lengths fit none of the shapes that they may have: rows is queries.shape[:-1]."""
    if name != "valid_lens":  # of sequence_mask
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
        hint = f"; if it has an entry for each key of each batch element: {name}[:, {axes}]"
    return shape(name, came, f"a shape that broadcasts to {_text(dims)}{hint}")


def pairs_of_heads(name: str, came: Array, dims: Dims) -> ValueError:
    """Between M and N alone and all axes of pairs, whose heads the call makes itself."""
    hint = ""
    if len(dims) == 4:
        each = f"{name}[:, None] if there is one for each entry of the batch"
        hint = f": {each}, {name}[None] if one for each head"
    pairs = f"a shape that broadcasts to {_text(dims[-2:])}, or all axes of {_text(dims)}"
    return shape(name, came, pairs + hint)


def count_of_parts(name: str, came: int, expected: int) -> ValueError:
    return ValueError(f"{name} has {came} parts, expected {expected}, as outputs")


# ---- layers and memories -----------------------------------------------------------------------

_SIZES = {"queries": ("M", "query_size"), "keys": ("N", "key_size"), "values": ("N", "value_size")}


def not_made(kind: str) -> RuntimeError:
    return RuntimeError(f"{kind}.__init__() has not been called")


def no_parameter(name: str) -> KeyError:
    return KeyError(name)


def features(name: str, came: Array, size: int) -> ValueError:
    rows, size_name = _SIZES[name]
    swapped = f"; if it is transposed: {name}.swapaxes(-1, -2)" * (came.shape[-2] == size)
    return shape(name, came, f"(..., {rows}, {size}): {size_name} is {size}{swapped}")


def live(name: str, came: Array, dims: Dims) -> Exception:
    """The array of a parameter is no longer what it was made, or cannot be written into."""
    if came.dtype != np.dtype(np.float32):
        return TypeError(f"{name} has dtype {came.dtype}, expected float32")
    if came.shape != dims:
        return shape(name, came, dims)
    if not came.flags.c_contiguous or not came.flags.aligned:
        return ValueError(f"{name} is no longer C-contiguous")
    return ValueError(f"{name} is read-only: its flags.writeable is False")


def changed(name: str, same_size: bool) -> RuntimeError:
    """A parameter is not what projected the keys of a memory."""
    what = "has changed since the memory projected its keys with it"
    if not same_size:
        what = "has another shape than when the memory was made"
    return RuntimeError(f"{name} {what}: make a new memory")


def beside_memory(name: str) -> TypeError:
    return TypeError(f"{name} is given beside a memory, expected none: it has its own")


# ---- whatever came -----------------------------------------------------------------------------

_SENTENCES: dict[str, tuple[type[Exception], str]] = {
    "changing": (RuntimeError, "the arguments change whenever they are read"),
    "no_parts": (ValueError, "outputs has no parts, expected one or more"),
    "no_values": (TypeError, "__call__() missing required argument 'values' (position 3)"),
    "no_forward": (RuntimeError, "backward() needs a forward before it: call the object first"),
    "context_of_another": (
        ValueError,
        "context was saved by another object, expected one of this object's own forwards",
    ),
    "memory_of_another": (
        ValueError,
        "the memory was made by another object, expected one that memory() of this object returned",
    ),
    "memory_of_layer": (
        TypeError,
        "keys is a Memory, which only the layer that made it reads: layer(queries, memory)",
    ),
    "made_memory": (
        TypeError,
        "a Memory is made by an object that reads it: attn.memory(keys, values)",
    ),
    "other_sizes": (
        ValueError,
        "sizes are not those of such an object, or dropout is not 0 <= dropout < 1",
    ),
    "fixed_memory": (TypeError, "nothing is appended to a memory as it was"),
    "other_rows": (ValueError, "keys or values changed shape in the call"),
    "too_many_rows": (ValueError, "keys are more than a memory can have"),
    "layer_is_gone": (
        RuntimeError,
        "the object that made this memory is gone, and its parameters with it",
    ),
}


def sentence(what: str) -> Exception:
    """What is wrong whatever came."""
    kind, text = _SENTENCES[what]
    return kind(text)
