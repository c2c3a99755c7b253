"""From text to steps, what they may call, and what must hold: parts of fuzz_door.py."""

from __future__ import annotations

import inspect
import pickle
import re
from binascii import crc32
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from fuzz_arguments import NUMBERS, Array, Sizes

import attnext

Items = list[tuple[str, list[str]]]


class Broken(Exception):
    """What must hold does not. No code under test raises this."""


class Thrown(Exception):
    """An argument's own exception, which goes through as it is."""


DOCUMENTED: tuple[type[Exception], ...] = TypeError, ValueError, RuntimeError, MemoryError, KeyError
DOCUMENTED += AttributeError, Thrown, pickle.PicklingError, BufferError


# ---- from text to steps --------------------------------------------------------------------------


class Step(NamedTuple):
    verb: str
    rest: list[str]

    def items(self) -> Items:
        """Names of arguments, and the words for each."""
        parts = [part.partition(":") for part in self.rest[:9]]
        return [(name, [word for word in words.split(",")[:5] if word]) for name, _, words in parts]


def steps_of(data: bytes) -> list[Step]:
    lines = [line.split() for line in data.decode("latin-1").split("\n")[:10]]
    return [Step(words[0], words[1:]) for words in lines if words]


def known_or_some(word: str, known: Iterable[str]) -> str:
    """The word, if it is one of those, and else one of them."""
    names = list(known)
    return word if word in names else names[crc32(word.encode("latin-1")) % len(names)]


def numbers_of(words: list[str]) -> list[int]:
    return [int(digits[-3:]) for digits in re.findall(r"\d+", " ".join(words))]


# ---- what is called ------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: function
    for name, function in sorted(vars(attnext).items())
    if name in attnext.__all__ and not inspect.isclass(function) and callable(function)
}
LAYERS = {
    "dot": attnext.DotProductAttention,
    "additive": attnext.AdditiveAttention,
    "multi": attnext.MultiHeadAttention,
}
HAVE_NO_TWIN = {"show_config", "get_num_threads", "set_num_threads", "empty_cache"}
NAMES = [*Sizes().shapes("", frozenset()), *NUMBERS, "valid_lens", "valid_len", "mask"]
NAMES += ["dropout_mask", "causal", "enable_gqa", "return_weights", "return_lse", "need_weights"]
NAMES += ["return_grad_bias", "return_grad_sink", "return_grad_scale", "context"]


SIGNATURES: dict[Any, tuple[list[str], list[str]]] = {}  # which take their time to be read


def names_of(function: Any) -> tuple[list[str], list[str]]:
    """What it takes, and what of that it cannot do without."""
    owner = function if inspect.isclass(function) else type(getattr(function, "__self__", function))
    key = owner, getattr(function, "__name__", "")
    if key not in SIGNATURES:
        SIGNATURES[key] = read_signature(function)
    return SIGNATURES[key]


def read_signature(function: Any) -> tuple[list[str], list[str]]:
    try:
        taken = inspect.signature(function).parameters.values()
    except ValueError:
        return NAMES, []
    taken = [one for one in taken if one.kind != one.VAR_KEYWORD]  # type: ignore[assignment]
    needed = [one.name for one in taken if one.default is one.empty and one.name != "self"]
    return [one.name for one in taken] or NAMES, needed


# ---- what must hold ------------------------------------------------------------------------------


def must(holds: object, what: str, *facts: object) -> None:
    if not holds:
        raise Broken(what, *facts)


def bytes_of(x: Any) -> Any:
    """What is in an array, if that can be told."""
    plain = isinstance(x, np.ndarray) and x.dtype.kind in "fiub" and x.size < 10_000
    return (x.shape, x.strides, x.tobytes()) if plain else None


def arrays_of(result: Any) -> list[Array]:
    """Those of a result, which may be a tuple."""
    found = result if isinstance(result, tuple) else (result,)
    return [x for x in found if isinstance(x, np.ndarray)]


def same_bits(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same_bits, a, b))
    if isinstance(a, np.ndarray | np.generic):
        nan = a != a  # whatever NaN it is
        return bool(np.all((a == b) | (nan & (b != b))))
    return type(a) is type(b)


def check_results(result: Any, given: dict[str, Any]) -> None:
    """float32 arrays, contiguous and writable, that share nothing with what was given."""
    for x in arrays_of(result):
        must(x.dtype == np.float32 and x.flags.c_contiguous and x.flags.writeable, "result", x)
        for name, other in given.items():
            apart = not isinstance(other, np.ndarray) or not np.may_share_memory(x, other)
            must(apart or name == "out", "a result shares memory with", name)


def is_modest(given: dict[str, Any]) -> bool:
    """Numbers of ordinary size, for which rounding is known."""
    arrays = [np.asarray(x) for x in given.values() if isinstance(x, np.ndarray | float)]
    return all(x.size < 10_000 for x in arrays) and all(
        np.all(np.abs(x) < 64) for x in arrays if x.dtype.kind == "f"
    )


def check_numbers(found: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        must(len(found) == len(expected), "how many results", len(found), len(expected))
        for a, b in zip(found, expected, strict=True):
            check_numbers(a, b)
    elif expected is None or found is None:
        must(found is expected, "None", found, expected)
    elif isinstance(expected, np.ndarray | np.generic):
        must(np.shape(found) == np.shape(expected), "shape", np.shape(found), np.shape(expected))
        finite = np.isfinite(expected)
        largest = np.max(np.abs(expected), where=finite, initial=1.0)
        with np.errstate(all="ignore"):
            close = (np.abs(found - expected) <= 1e-3 * largest) | (found == expected)
        must(np.all(close | (np.isnan(found) & np.isnan(expected))), "numbers", found, expected)
