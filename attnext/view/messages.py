"""Check each message of a page completely before any part of it is used."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from attnext.explain.words import check_lang
from attnext.reference.arguments import shown as written
from attnext.view.packing import unpack_array

# The options that a page may set. The call itself checks their values.
OPTIONS = ("scale", "sigma", "w", "softcap", "dropout_p", "seed") + (
    *("valid_lens", "window", "causal", "kernel"),
)
FROM_PAGE = ("_request", "_at")  # the traits that a page sets; the kernel sets all others
LARGEST = 2**53 - 1  # the largest integer that JavaScript counts exactly


@dataclass(frozen=True)
class Request:
    """The request of a page. An option that is None has its default."""

    number: int
    options: dict[str, Any]
    lang: str
    arrays: dict[str, np.ndarray[Any, Any]]


def number_of(message: object) -> int | None:
    """Return the number of a request, or None if it is invalid. The answer repeats this number."""
    number = message.get("number") if isinstance(message, dict) else None
    return number if _is_index(number) else None


def read_request(message: object, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Request:
    """Check a request for a picture with these arrays, and return it."""
    asked = _dict("_request", message, ("number", "options", "lang", "arrays"))
    number = number_of(asked)
    if number is None:
        got = shown(asked.get("number"))
        raise ValueError(f"_request.number: expected an int from 0 to {LARGEST}, got {got}")
    options = _dict("_request.options", asked.get("options"), OPTIONS)
    lang = asked.get("lang")
    check_lang(lang)
    packed = _dict("_request.arrays", asked.get("arrays", {}), arrays)
    changed = {n: _array(f"_request.arrays.{n}", x, arrays[n].shape) for n, x in packed.items()}
    return Request(number, options, str(lang), changed)


def check_place(message: object) -> None:
    """Raise TypeError or ValueError unless the message is a valid position of the selected cell."""
    at = _dict("_at", message, ("lead", "row", "column", "step"))
    lead = at.get("lead", [])
    if not isinstance(lead, list) or not all(map(_is_index, lead)):
        raise ValueError(f"_at.lead: expected a list of ints >= 0, got {shown(lead)}")
    for name in ("row", "column"):
        if at.get(name) is not None and not _is_index(at[name]):
            raise ValueError(f"_at.{name}: expected an int >= 0, got {shown(at[name])}")
    if at.get("step") is not None and not isinstance(at["step"], str):
        raise TypeError(f"_at.step: expected a str, got {shown(at['step'])}")


def check_state(state: object) -> None:
    """Raise TypeError or ValueError unless the message sets only traits that a page may set."""
    _dict("data.state", state, FROM_PAGE)


def check_envelope(message: object) -> None:
    """Raise TypeError or ValueError unless ipywidgets can read this comm message."""
    whole: dict[str, Any] = message if isinstance(message, dict) else {}
    content = whole.get("content")
    data = content.get("data") if isinstance(content, dict) else None
    data = _dict("data", data, ("method", "state", "buffer_paths"))
    method = data.get("method")
    if method not in ("update", "request_state"):
        raise ValueError(f"data.method: expected 'update' or 'request_state', got {shown(method)}")
    if method == "request_state":
        return
    check_state(data.get("state"))
    paths, buffers = data.get("buffer_paths", []), whole.get("buffers") or []
    if not isinstance(paths, list) or len(paths) != len(buffers):
        expected = f"a list of {len(buffers)} paths, one for each buffer"
        raise ValueError(f"data.buffer_paths: expected {expected}, got {shown(paths)}")
    for path in paths:
        _check_path(path, data["state"])


def _check_path(path: object, state: Any) -> None:
    """Raise ValueError unless the path is a valid position for a buffer in the state."""
    keys: list[Any] = path if isinstance(path, list) and path else [None]
    for key in keys:
        in_list = isinstance(state, list) and _is_index(key) and key < len(state)
        if not in_list and not (isinstance(state, dict) and isinstance(key, str)):
            expected = "paths into data.state"
            raise ValueError(f"data.buffer_paths: expected {expected}, got {shown(path)}")
        state = state[key] if in_list else state.get(key)


def _dict(name: str, value: object, known: Collection[str]) -> dict[str, Any]:
    """Return the value. Raise an error unless it is a dict that has only known names."""
    if not isinstance(value, dict):
        raise TypeError(f"{name}: expected a dict, got {shown(value)}")
    for each in value:
        if each not in known:
            raise ValueError(
                f"{name}: expected only the names {', '.join(known)}; got {shown(each)}"
            )
    return value


def shown(value: object) -> str:
    """Return a value as text of at most 80 characters."""
    return short(written(value), 80)


def short(text: str, most: int = 400) -> str:
    """Return the text in one line. A text that is too long loses its middle."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 33]}...{line[-30:]}"


def _is_index(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _array(name: str, packed: object, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the array that a page sent. It must have the shape of the picture's array."""
    given = _dict(name, packed, ("shape", "data"))
    if given.get("shape") != list(shape):
        got = shown(given.get("shape"))
        raise ValueError(f"{name}.shape: expected {list(shape)}, got {got}")
    data, count = given.get("data"), 4 * math.prod(shape)
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"{name}.data: expected bytes, got a {type(data).__name__}")
    if memoryview(data).nbytes != count:
        size = memoryview(data).nbytes
        raise ValueError(f"{name}.data: expected {count} bytes, got {size}")
    return unpack_array(given)
