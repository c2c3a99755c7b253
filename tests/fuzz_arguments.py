"""What fuzz_door.py hands over: well-formed arguments by name, and words that make others of them.

A word stands for a change of one argument. What those of `SAME` make, attnext.reference reads as
attnext does, wrong sizes included: what comes of the call can be held against it; those of `OTHER`
are strange. ``acts-<deed>`` makes an object that does the deed whenever something of it is read.
"""

from __future__ import annotations

import array
import math
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Word = Callable[[Any], Any]

# ---- well-formed ---------------------------------------------------------------------------------


class Sizes(NamedTuple):
    lead: tuple[int, ...] = (2,)
    M: int = 3
    N: int = 5
    D: int = 4
    Dv: int = 3
    H: int = 6

    def shapes(self, about: str, asked: frozenset[str]) -> dict[str, tuple[int, ...]]:
        """Of arrays of floats, for a function or a kind of layer."""
        lead, M, N, D, Dv, H = self
        many = about.startswith("multi")
        rows, heads = (*lead, M), (2,) * many
        kv_lead = (*lead[:-1], 1) if lead and "enable_gqa" in asked else lead
        kv_H = H // 2 if many and "num_kv_heads" in asked else H
        pairs = (*lead, *heads, M, N)
        scores = "scores" in about or "softmax" in about
        output = pairs if scores else (*rows, H if many else Dv)
        found = {"queries": (*rows, D), "keys": (*kv_lead, N, D), "values": (*kv_lead, N, Dv)}
        found |= {"W_q": (H, D), "W_k": (kv_H, D), "W_v": (kv_H, Dv), "W_o": (H, H), "w_v": (H,)}
        found |= {"b_h": (H,), "b_q": (H,), "b_k": (kv_H,), "b_v": (kv_H,), "b_o": (H,)}
        found |= {"X": (*lead, M, N), "weights": pairs, "lse": (*lead, *heads, M)}
        found |= {"outputs": (2, *rows, Dv), "lses": (2, *rows), "bias": (M, N), "sink": (M,)}
        found |= {"output": output, "out": output, "grad_output": output}
        return found | {"grad_weights": pairs, "grad_lse": found["lse"]}

    def construction(self) -> dict[str, int]:
        """What layers are made with."""
        features = {"key_size": self.D, "query_size": self.D, "value_size": self.Dv}
        return features | {"num_hiddens": self.H, "num_heads": 2}


SIZE_OF_FIRST = {"valid_lens": "queries", "valid_len": "X"}  # a length for each of its entries
NUMBERS: dict[str, Any] = {"scale": 0.5, "eps": 1e-3, "w": 0.7, "sigma": 1.5, "softcap": 2.0}
NUMBERS |= {"value": 1.5, "dropout_p": 0.5, "seed": 7, "causal_offset": 1, "num_heads": 2}
NUMBERS |= {"num_kv_heads": 1, "n": 2, "num_steps": 5, "num_hiddens": 6, "window": (2, 3)}
NUMBERS |= {"dropout": 0.5, "empty_rows": "zero", "mode": "dicts", "layout": "torch", "rng": 3}


SHARED = "mask", "dropout_mask", "bias", "sink"  # by several pairs, or of each its own
DRAWN = np.random.default_rng(0).standard_normal(1 << 16, dtype=np.float32)


def numbers(seed: int, shape: tuple[int, ...]) -> Array:
    """Of those that were drawn once, so many from a place of their own."""
    first = 97 * (seed % 64)
    return DRAWN[first : first + math.prod(shape)].reshape(shape).copy()


def well_formed(name: str, about: str, sizes: Sizes, asked: frozenset[str], seed: int) -> Any:
    """An argument of that name, for a function or a kind of layer."""
    shapes = sizes.shapes(about, asked)
    if about == "new":
        return sizes.construction().get(name, NUMBERS.get(name, True))
    if name in SHARED:
        rows = shapes["weights"] if about != "layer" else (*sizes.lead, 1, sizes.N)
        ways = [rows[-2:], rows, (*rows[:-2], 1, rows[-1])]
        shape = ways[seed % 3][:-1] if name == "sink" else ways[seed % 3]
        return numbers(seed, shape) if name in ("bias", "sink") else numbers(seed, shape) < 0.8
    if name in shapes:
        return numbers(seed, shapes[name])
    if name in SIZE_OF_FIRST:
        first = ((*sizes.lead, sizes.M) if about != "layer" else sizes.lead)[:1]
        lens = (abs(numbers(seed, first)) * 3).astype("i8")
        return lens if len(sizes.lead) > 0 else 2
    return NUMBERS.get(name, True)


# ---- words for what the reference reads, too -----------------------------------------------------


class Given:
    """An object that NumPy asks for an array."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.asarray(self.value, dtype)

    def __getitem__(self, i: Any) -> Any:  # so that a scale counts as an array
        return self.value[i]


class Mine(np.ndarray[Any, Any]):
    owner: Any = None


def in_columns(x: Any) -> Any:
    return np.array(x, order="F")


def unaligned(x: Any) -> Any:
    x = np.asarray(x)
    room = np.zeros(x.nbytes + 1, np.uint8)
    moved = room[1:].view(x.dtype).reshape(x.shape)
    moved[...] = x
    return moved


def every_second(x: Any) -> Any:
    x = np.asarray(x)
    wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), 77, x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


def a_field(x: Any) -> Any:
    x = np.asarray(x)
    records = np.zeros(x.shape, [("one", "u1"), ("other", x.dtype)])
    records["other"] = x
    return records["other"]


def read_only(x: Any) -> Any:
    x = np.array(x)
    x.flags.writeable = False
    return x


def with_strides_of_zero(x: Any) -> Any:
    x = np.asarray(x)
    return np.broadcast_to(x[:1], x.shape)


def interface(x: Any) -> Any:
    x = np.asarray(x)
    return types.SimpleNamespace(__array_interface__=x.__array_interface__, kept=x)


def longer(x: Any) -> Any:
    x = np.asarray(x)
    return np.concatenate([x, x[:1]])


SAME: dict[str, Word] = {
    "f8": lambda x: np.asarray(x).astype("f8"),
    "f2": lambda x: np.asarray(x).astype("f2"),
    "g": lambda x: np.asarray(x).astype("g"),
    "i4": lambda x: (np.asarray(x) * 3).astype("i4"),
    "u1": lambda x: np.abs(np.asarray(x) * 3).astype("u1"),
    "i8": lambda x: (np.asarray(x) * 3).astype("i8"),
    "swapped": lambda x: np.asarray(x).astype(np.asarray(x).dtype.newbyteorder()),
    "columns": in_columns,
    "reversed": lambda x: np.ascontiguousarray(np.asarray(x)[::-1])[::-1],
    "turned": lambda x: np.ascontiguousarray(np.asarray(x)[..., ::-1])[..., ::-1],
    "second": every_second,
    "unaligned": unaligned,
    "field": a_field,
    "readonly": read_only,
    "zerostride": with_strides_of_zero,
    "list": lambda x: np.asarray(x).tolist(),
    "tuple": lambda x: tuple(np.asarray(x).tolist()),
    "rows": lambda x: list(np.asarray(x)),
    "buffer": lambda x: np.ascontiguousarray(x).data,
    "given": Given,
    "interface": interface,
    "mine": lambda x: np.asarray(x).view(Mine),
    "ones": lambda x: np.ones_like(x),
    "zeros": lambda x: np.zeros_like(x),
    "first": lambda x: np.asarray(x)[..., :1],
    "all": lambda x: np.ones_like(x) > 0,
    "none": lambda x: None,
    "uniform": lambda x: "uniform",
    "nanrule": lambda x: "nan",
    "false": lambda x: False,
    "true": lambda x: True,
    "less": lambda x: x / 2,
    "minus": lambda x: -x,
    "longer": longer,
    "shorter": lambda x: np.asarray(x)[1:],
    "empty": lambda x: np.asarray(x)[:0],
    "narrow": lambda x: np.asarray(x)[..., :0],
    "flat": lambda x: np.asarray(x).reshape(-1),
    "more": lambda x: np.asarray(x)[None],
    "deep": lambda x: np.asarray(x).reshape((1,) * 28 + np.shape(x)),
}

# ---- words for something else --------------------------------------------------------------------


class Sequence:
    """As much of one as asks for __len__ and __getitem__."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, i: Any) -> Any:
        return self.value[i]


class Indexed:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __index__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)


class Liar:
    """Its interface calls its floats objects: whoever looks at one of them falls."""

    def __init__(self, value: Any) -> None:
        self.kept = np.asarray(value)
        self.__array_interface__ = {**self.kept.__array_interface__, "typestr": "|O8"}


def with_one(value: float) -> Word:
    def change(x: Any) -> Any:
        x = np.array(x)
        x.reshape(-1)[x.size // 2] = value
        return x

    return change


def huge(x: Any) -> Any:
    """More elements than there is memory, in no memory."""
    return np.broadcast_to(np.zeros(1, np.asarray(x).dtype), (2**43, *np.shape(x)[1:]))


def growing(x: Any) -> Any:
    """A list that is another one whenever it is looked at."""
    items: list[Any] = []

    class Item(float):
        def __float__(self) -> float:
            items.append(1.0)
            return 1.0

    items += [Item(), Item()]
    return items


OTHER: dict[str, Word] = {
    "bool": lambda x: np.asarray(x).astype(bool),
    "complex": lambda x: np.asarray(x).astype(complex),
    "object": lambda x: np.asarray(x).astype(object),
    "str": lambda x: np.asarray(x).astype(str),
    "time": lambda x: np.asarray(x).astype("i8").astype("M8[s]"),
    "void": lambda x: np.ascontiguousarray(x).view("V4"),
    "text": lambda x: "causal",
    "ellipsis": lambda x: ...,
    "type": lambda x: type(x),
    "module": lambda x: math,
    "range": lambda x: range(5),
    "iterator": iter,
    "generator": lambda x: (item for item in x),
    "dict": lambda x: {"W_q": x},
    "set": lambda x: {1, 2},
    "bytes": lambda x: np.asarray(x).tobytes(),
    "stdarray": lambda x: array.array("f", np.asarray(x).reshape(-1).tolist()),
    "sequence": Sequence,
    "index": Indexed,
    "liar": Liar,
    "masked": lambda x: np.ma.masked_array(x),
    "matrix": lambda x: np.matrix(x),
    "huge": huge,
    "scalar": lambda x: np.asarray(x).reshape(-1)[0],
    "single": lambda x: np.asarray(x).reshape(-1)[0].reshape(()),
    "ragged": lambda x: [[1.0], [1.0, 2.0]],
    "growing": growing,
    "nan": with_one(np.nan),
    "inf": with_one(np.inf),
    "ninf": with_one(-np.inf),
    "big": lambda x: x * np.float32(1e30),
    "tiny": lambda x: x * np.float32(1e-42),
    "negative": lambda x: -1,
    "int": lambda x: 3,
    "bigint": lambda x: 10**30,
    "far": lambda x: (2**62, 2**63 - 1),
    "three": lambda x: (1, 2, 3),
    "infinite": lambda x: math.inf,
    "nothing": lambda x: [],
}


# ---- objects that act while they are read --------------------------------------------------------


class Acts:
    """A number, an array_like or an int that does a deed before its value is read."""

    def __init__(self, value: Any, deed: Callable[[], object]) -> None:
        self._value, self.deed = value, deed

    @property
    def value(self) -> Any:
        self.deed()
        return self._value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.asarray(self.value, dtype)

    def __index__(self) -> int:
        return int(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, i: Any) -> Any:
        return self.value[i]

    @property
    def requires_grad(self) -> bool:
        self.deed()
        return False


class ActsAlways(Acts):
    """Whatever is read of it, the deed comes first."""

    def __float__(self) -> float:
        return float(self.value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        self.deed()
        return "an object that acts"


class ActsInterface:
    """The same by an attribute, which NumPy asks for first."""

    def __init__(self, value: Any, deed: Callable[[], object]) -> None:
        self.value, self.deed = np.asarray(value), deed

    @property
    def __array_interface__(self) -> dict[str, Any]:
        self.deed()
        return self.value.__array_interface__


class ActsInt(int):
    """An int with a deed, which is no plain int."""

    deed: Callable[[], object]

    def __index__(self) -> int:
        self.deed()
        return int(self)

    def __repr__(self) -> str:
        self.deed()
        return "3"


def acting(value: Any, deed: Callable[[], object], how: int) -> Any:
    if isinstance(value, Liar):
        return value
    if how % 3 == 1 and not isinstance(value, int | float | str | tuple):
        return ActsInterface(value, deed)
    if how % 3 == 2 and isinstance(value, int):
        number = ActsInt(value)
        number.deed = deed
        return number
    return ActsAlways(value, deed)


def changed(value: Any, word: str, known: dict[str, Word]) -> Any:
    """What the word makes of the value; the value, where it makes nothing.

    Nothing is made of a liar: that would look at it.
    """
    if isinstance(value, Liar):
        return value
    try:
        return known[word](value)
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError):
        return value
