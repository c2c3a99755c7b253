"""What the layers are made of: the arguments of their constructors, read, and initial values.

C makes a layer, all at once, of what the function `make` returns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import sqrt
from typing import Any

import numpy as np

from attnext import _core, _reading, _wrong

# What the method _install of a layer takes; the parameters are arrays that nobody else has.
Made = tuple[Any, ...]

# ---- numbers whose values are looked at --------------------------------------------------------


def _size(name: str, value: Any, least: int) -> int:
    found = _reading.index(name, value)
    if found < least:
        raise _wrong.value(name, found, f"{name} >= {least}")
    return found


def _divisor(name: str, value: Any, of: str, whole: int) -> int:
    found = _size(name, value, 1)
    if whole % found != 0:
        raise _wrong.value(name, found, f"a divisor of {of}, {whole}")
    return found


# ---- sizes -------------------------------------------------------------------------------------

_MOST = sys.maxsize // 8  # numbers are drawn as float64


def no_sizes() -> dict[str, int]:
    """All sizes that a layer may have, in the order that _install takes them."""
    names = "key_size", "query_size", "value_size", "num_hiddens", "num_heads", "num_kv_heads"
    return dict.fromkeys(names, 0)


def sizes(key_size: Any, query_size: Any, num_hiddens: Any) -> dict[str, int]:
    """Of a layer with parameters."""
    found = no_sizes()
    found["key_size"] = keys = _size("key_size", key_size, 0)
    found["query_size"] = queries = _size("query_size", query_size, 0)
    found["num_hiddens"] = hiddens = _size("num_hiddens", num_hiddens, 1)
    if hiddens * max(keys, queries, 1) > _MOST:
        shown = _wrong.shown
        raise ValueError(
            f"key_size is {shown(keys)}, query_size {shown(queries)} and num_hiddens "
            f"{shown(hiddens)}, expected sizes whose products do not overflow"
        )
    return found


def add_heads(sizes: dict[str, int], value_size: Any, num_heads: Any, num_kv_heads: Any) -> None:
    """And of a layer with heads."""
    hiddens = sizes["num_hiddens"]
    sizes["value_size"] = width = _size("value_size", value_size, 0)
    sizes["num_heads"] = heads = _divisor("num_heads", num_heads, "num_hiddens", hiddens)
    if hiddens * max(width, hiddens) > _MOST:
        raise ValueError(
            f"value_size is {min(width, sys.maxsize)} and num_hiddens {hiddens}, expected sizes "
            "whose products do not overflow"
        )
    sizes["num_kv_heads"] = heads
    if num_kv_heads is not None:
        sizes["num_kv_heads"] = _divisor("num_kv_heads", num_kv_heads, "num_heads", heads)


def shapes(
    score: str, sizes: dict[str, int], bias: bool
) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Each parameter's name, shape, and how many numbers meet in each that it makes."""
    letters = {"H": sizes["num_hiddens"], "V": sizes["value_size"]}
    letters |= {"Q": sizes["query_size"], "K": sizes["key_size"]}
    if sizes["num_heads"] > 0:
        letters["G"] = letters["H"] // sizes["num_heads"] * sizes["num_kv_heads"]
    *_, parameters = _core.ATTENTIONS[score]
    for name, shape, optional, fan_in in parameters:
        if bias or not optional:
            yield name, tuple(map(letters.__getitem__, shape.lstrip("1"))), letters[fan_in]


# ---- random numbers -----------------------------------------------------------------------------

_MOST_ENTROPY = 1 << 20  # NumPy would go through more, and hear no Ctrl-C


def _owns_memory(array: np.ndarray[Any, Any]) -> bool:
    """True if NumPy allocated the array's memory, so an object array does hold objects.

    An `__array_interface__` may call floats objects, and to read such an object ends the process.
    """
    owner: Any = array
    while isinstance(owner, np.ndarray) and not owner.flags.owndata:
        owner = owner.base
    return isinstance(owner, np.ndarray)


def _entropy(value: Any) -> Any:
    """A seed of ints in sequences, as lists and plain arrays.

    NumPy goes through them without counting how deep it is, and the process ends where they have no
    end: in a list that contains itself, or in a row of a np.matrix, which is one itself.
    """
    if isinstance(value, str) or not hasattr(value, "__len__"):
        return value
    count = value.size if isinstance(value, np.ndarray) else len(value)
    if count > _MOST_ENTROPY:
        raise ValueError(f"{count} numbers are more than a seed has")
    if isinstance(value, np.ndarray):
        value = np.asarray(value)
        if value.dtype != object or value.ndim == 0:
            return value
        if not _owns_memory(value):
            raise TypeError("an array of objects whose memory no NumPy array owns")
    return [_entropy(item) for item in value]


def generator(name: str, value: Any) -> np.random.Generator:
    """A generator of random numbers, or what makes one."""
    try:
        if isinstance(value, list | tuple | range | np.ndarray):
            value = _entropy(value)
        return np.random.default_rng(value)
    except RecursionError as error:
        raise ValueError(f"{name} is a sequence without an end, expected one of ints") from error
    except Exception as error:
        if type(error) in (TypeError, ValueError):
            what = f"{name} is not what numpy.random.default_rng takes: {error}"
            raise type(error)(what) from error
        _reading.note(name, error)
        raise


# ---- the constructors --------------------------------------------------------------------------


def options(dropout: Any, scale: Any = None) -> tuple[float, float | None]:
    """What a layer with any score has."""
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
        parameters[name] = drawn.copy()  # where somebody's own generator has kept it
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
    """An AdditiveAttention."""
    found = sizes(key_size, query_size, num_hiddens)
    return _drawn("additive", found, options(dropout), bias, rng)


def dot_product(dropout: Any = 0.0, *, scale: Any = None, rng: Any = None) -> Made:
    """A DotProductAttention."""
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
    """A MultiHeadAttention."""
    found = sizes(key_size, query_size, num_hiddens)
    add_heads(found, value_size, num_heads, num_kv_heads)
    return _drawn("multi_head", found, options(dropout), bias, rng)


_CONSTRUCTORS = {
    "AdditiveAttention": additive,
    "DotProductAttention": dot_product,
    "MultiHeadAttention": multi_head,
}


# What the classes of d2l's English edition take, and the sizes that come before that here.
_ENGLISH = {
    "AdditiveAttention": (("num_hiddens", "dropout"), ("key_size", "query_size")),
    "MultiHeadAttention": (
        ("num_hiddens", "num_heads", "dropout", "bias"),
        ("key_size", "query_size", "value_size"),
    ),
}


def _of_english_edition(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return what to write for a call that fits d2l's English edition, whose sizes are lazy."""
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
        f": {kind}({english}) is that of d2l's English edition; here the sizes of the inputs come "
        f"first, {kind}({', '.join(shown)})"
    )


def make(kind: type, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Made:
    """What the constructor of a layer makes of what it is given."""
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
