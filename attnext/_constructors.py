"""Read the arguments of the layers' constructors, and draw the initial parameters.

C creates a layer in one step from what `make` returns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import sqrt
from typing import Any

import numpy as np

from attnext import _core, _reading, _wrong

# The arguments of a layer's _install(). No other object references the parameter arrays.
Made = tuple[Any, ...]

# ---- numbers -----------------------------------------------------------------------------------


def _size(name: str, value: Any, least: int) -> int:
    found = _reading.index(name, value)
    if found < least:
        raise _wrong.value(name, found, f"{name} >= {least}")
    return found


def _divisor(name: str, value: Any, of: str, whole: int) -> int:
    found = _size(name, value, 1)
    if whole % found != 0:
        raise _wrong.value(name, found, f"a divisor of {of} ({whole})")
    return found


# ---- sizes -------------------------------------------------------------------------------------

_MOST = sys.maxsize // 8  # random numbers are drawn as float64, 8 bytes each


def no_sizes() -> dict[str, int]:
    """Return all sizes of a layer as 0, in the order of the arguments of _install()."""
    names = "key_size", "query_size", "value_size", "num_hiddens", "num_heads", "num_kv_heads"
    return dict.fromkeys(names, 0)


def sizes(key_size: Any, query_size: Any, num_hiddens: Any) -> dict[str, int]:
    """Return the sizes of a layer with parameters."""
    found = no_sizes()
    found["key_size"] = keys = _size("key_size", key_size, 0)
    found["query_size"] = queries = _size("query_size", query_size, 0)
    found["num_hiddens"] = hiddens = _size("num_hiddens", num_hiddens, 1)
    if hiddens * max(keys, queries, 1) > _MOST:
        shown = _wrong.shown
        raise ValueError(
            f"key_size is {shown(keys)}, query_size is {shown(queries)} and num_hiddens is "
            f"{shown(hiddens)}, expected sizes whose products do not overflow"
        )
    return found


def add_heads(sizes: dict[str, int], value_size: Any, num_heads: Any, num_kv_heads: Any) -> None:
    """Add the sizes of a layer with heads."""
    hiddens = sizes["num_hiddens"]
    sizes["value_size"] = width = _size("value_size", value_size, 0)
    sizes["num_heads"] = heads = _divisor("num_heads", num_heads, "num_hiddens", hiddens)
    if hiddens * max(width, hiddens) > _MOST:
        raise ValueError(
            f"value_size is {min(width, sys.maxsize)} and num_hiddens is {hiddens}, "
            "expected sizes whose product does not overflow"
        )
    sizes["num_kv_heads"] = heads
    if num_kv_heads is not None:
        sizes["num_kv_heads"] = _divisor("num_kv_heads", num_kv_heads, "num_heads", heads)


def shapes(
    score: str, sizes: dict[str, int], bias: bool
) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield each parameter's name, shape and fan-in (the number of inputs of each output)."""
    letters = {"H": sizes["num_hiddens"], "V": sizes["value_size"]}
    letters |= {"Q": sizes["query_size"], "K": sizes["key_size"]}
    if sizes["num_heads"] > 0:
        letters["G"] = letters["H"] // sizes["num_heads"] * sizes["num_kv_heads"]
    *_, parameters = _core.ATTENTIONS[score]
    for name, shape, optional, fan_in in parameters:
        if bias or not optional:
            yield name, tuple(map(letters.__getitem__, shape.lstrip("1"))), letters[fan_in]


# ---- random numbers -----------------------------------------------------------------------------

_MOST_ENTROPY = 1 << 20  # NumPy would read longer seeds without reacting to Ctrl-C


def _owns_memory(array: np.ndarray[Any, Any]) -> bool:
    """True if NumPy allocated the array's memory, so an object array does hold objects.

    An `__array_interface__` may declare floats as objects; reading such an object would crash.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray) and not owner.flags.owndata:
        owner = owner.base
    return isinstance(owner, np.ndarray)


def _entropy(value: Any) -> Any:
    """Return a seed of nested sequences of ints as lists and plain arrays.

    NumPy reads nested sequences without a limit of depth, so endless ones would crash the process:
    a list that contains itself, or an np.matrix, whose rows are matrices again.
    """
    if isinstance(value, str) or not hasattr(value, "__len__"):
        return value
    count = value.size if isinstance(value, np.ndarray) else len(value)
    if count > _MOST_ENTROPY:
        raise ValueError(f"the seed has {count} numbers, expected at most {_MOST_ENTROPY}")
    if isinstance(value, np.ndarray):
        value = np.asarray(value)
        if value.dtype != object or value.ndim == 0:
            return value
        if not _owns_memory(value):
            raise TypeError("the seed is an array of objects in memory that NumPy does not own")
    return [_entropy(item) for item in value]


def generator(name: str, value: Any) -> np.random.Generator:
    """Return a random generator, created with numpy.random.default_rng if it is none yet."""
    try:
        if isinstance(value, list | tuple | range | np.ndarray):
            value = _entropy(value)
        return np.random.default_rng(value)
    except RecursionError as error:
        raise ValueError(f"{name} is nested without end, expected a sequence of ints") from error
    except Exception as error:
        if type(error) in (TypeError, ValueError):
            what = f"{name} is refused by numpy.random.default_rng: {error}"
            raise type(error)(what) from error
        _reading.note(name, error)
        raise


# ---- the constructors --------------------------------------------------------------------------


def options(dropout: Any, scale: Any = None) -> tuple[float, float | None]:
    """Return dropout and scale, which every layer has."""
    dropout = _reading.probability("dropout", float(_reading.number("dropout", dropout)))
    return dropout, None if scale is None else _reading.finite("scale", scale)


def _drawn(
    score: str, sizes: dict[str, int], options: tuple[Any, ...], bias: Any, rng: Any
) -> Made:
    bias = _reading.flag("bias", bias)
    rng = generator("rng", rng)
    parameters, grads = {}, {}
    for name, shape, fan_in in shapes(score, sizes, bias):
        bound = 1.0 / sqrt(fan_in) if fan_in > 0 else 0.0
        drawn = _core.AdditiveAttention._read(rng.uniform(-bound, bound, shape), name, shape)
        parameters[name] = drawn.copy()  # a user's generator may keep a reference to the array
        grads[name] = np.zeros(shape, np.float32)
    return tuple(sizes.values()), *options, True, rng, parameters, grads


def additive(
    key_size: Any,
    query_size: Any,
    num_hiddens: Any,
    dropout: Any = 0.0,
    *,
    bias: Any = False,
    rng: Any = None,
) -> Made:
    """Return the arguments of _install() for an AdditiveAttention."""
    found = sizes(key_size, query_size, num_hiddens)
    return _drawn("additive", found, options(dropout), bias, rng)


def dot_product(dropout: Any = 0.0, *, scale: Any = None, rng: Any = None) -> Made:
    """Return the arguments of _install() for a DotProductAttention."""
    return _drawn("dot_product", no_sizes(), options(dropout, scale), False, rng)


def multi_head(
    key_size: Any,
    query_size: Any,
    value_size: Any,
    num_hiddens: Any,
    num_heads: Any,
    dropout: Any = 0.0,
    *,
    bias: Any = False,
    num_kv_heads: Any = None,
    rng: Any = None,
) -> Made:
    """Return the arguments of _install() for a MultiHeadAttention."""
    found = sizes(key_size, query_size, num_hiddens)
    add_heads(found, value_size, num_heads, num_kv_heads)
    return _drawn("multi_head", found, options(dropout), bias, rng)


_CONSTRUCTORS = {
    "AdditiveAttention": additive,
    "DotProductAttention": dot_product,
    "MultiHeadAttention": multi_head,
}


# The arguments of the classes in d2l's English edition, and attnext's arguments before them.
_ENGLISH = {
    "AdditiveAttention": (("num_hiddens", "dropout"), ("key_size", "query_size")),
    "MultiHeadAttention": (
        ("num_hiddens", "num_heads", "dropout", "bias"),
        ("key_size", "query_size", "value_size"),
    ),
}


def _of_english_edition(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return a hint if the call is that of d2l's English edition, which gives no input sizes."""
    if kind not in _ENGLISH:
        return ""
    names, sizes = _ENGLISH[kind]
    given = dict(zip(names, args, strict=False)) | kwargs
    fits = len(args) + len(kwargs) == len(given) and given.keys() <= set(names)
    dropout = given.get("dropout", 0.0)
    fits = fits and isinstance(dropout, int | float) and 0 <= dropout < 1
    if not fits or not {*names} - {"dropout", "bias"} <= given.keys():
        return ""
    shown = [*sizes]
    for name in names:
        if name in given:
            written = _wrong.shown(given[name])
            shown.append(f"bias={written}" if name == "bias" else written)
    english = ", ".join(name for name in names if name in given)
    return (
        f": {kind}({english}) is the signature in d2l's English edition; in attnext the input "
        f"sizes come first, {kind}({', '.join(shown)})"
    )


def make(kind: type, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Made:
    """Return the arguments of _install() for the arguments of a constructor."""
    kwargs = kwargs or {}
    try:
        constructor: Any = _CONSTRUCTORS[kind.__name__]
        made: Made = constructor(*args, **kwargs)
        return made
    except TypeError:
        signature = f"{kind.__name__}{kind.__text_signature__}"
        misfit = _wrong.call(signature.removesuffix(")"), len(args), tuple(kwargs))
        if misfit is None:
            raise
        hint = _of_english_edition(kind.__name__, args, kwargs)
    raise TypeError(f"{misfit}{hint}")
