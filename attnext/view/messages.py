"""Messages of a page: each is checked whole before anything of it is used."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from attnext.explain.words import check_lang
from attnext.reference.arguments import shown as written
from attnext.view.packing import unpack_array

# The options that a page may ask for; the call itself checks their values.
OPTIONS = ("scale", "sigma", "w", "softcap", "dropout_p", "seed") + (
    *("valid_lens", "window", "causal", "kernel"),
)
FROM_PAGE = ("_request", "_at")  # the traits that a page sets; the kernel sets all others
LARGEST = 2**53 - 1  # the largest integer that JavaScript counts exactly


@dataclass(frozen=True)
class Request:
    """What a page asks for; options that are None are as by default."""

    number: int
    options: dict[str, Any]
    lang: str
    arrays: dict[str, np.ndarray[Any, Any]]


def number_of(message: object) -> int | None:
    """Return the number of a request, which its answer repeats; None if it has no right number."""
    number = message.get("number") if isinstance(message, dict) else None
    return number if _is_index(number) else None


def read_request(message: object, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Request:
    """Return the request, checked for a picture with these arrays."""
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
    """Raise TypeError or ValueError unless the message says where a reader looks."""
    at = _dict("_at", message, ("lead", "row", "column", "step"))
    lead = at.get("lead", [])
    if not isinstance(lead, list) or not all(map(_is_index, lead)):
        raise ValueError(f"_at.lead: expected a list of ints of 0 or more, got {shown(lead)}")
    for name in ("row", "column"):
        if at.get(name) is not None and not _is_index(at[name]):
            raise ValueError(f"_at.{name}: expected an int of 0 or more, got {shown(at[name])}")
    if at.get("step") is not None and not isinstance(at["step"], str):
        raise TypeError(f"_at.step: expected a str, got {shown(at['step'])}")


def check_state(state: object) -> None:
    """Raise TypeError or ValueError unless the message sets only what a page may set."""
    _dict("data.state", state, FROM_PAGE)


def check_envelope(message: object) -> None:
    """Raise TypeError or ValueError unless ipywidgets can read the message of a comm."""
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
    """Raise ValueError unless the path leads to a place in the state where a buffer can be put."""
    keys: list[Any] = path if isinstance(path, list) and path else [None]
    for key in keys:
        in_list = isinstance(state, list) and _is_index(key) and key < len(state)
        if not in_list and not (isinstance(state, dict) and isinstance(key, str)):
            expected = "paths into data.state"
            raise ValueError(f"data.buffer_paths: expected {expected}, got {shown(path)}")
        state = state[key] if in_list else state.get(key)


def _dict(name: str, value: object, known: Collection[str]) -> dict[str, Any]:
    """Return the value, which must be a dict with no other names than these."""
    if not isinstance(value, dict):
        raise TypeError(f"{name}: expected a dict, got {shown(value)}")
    for each in value:
        if each not in known:
            raise ValueError(f"{name}: expected names of {', '.join(known)}; got {shown(each)}")
    return value


def shown(value: object) -> str:
    """Return a value as a text of at most 80 characters."""
    return short(written(value), 80)


def short(text: str, most: int = 400) -> str:
    """Return the text in one line, without its middle if it is longer."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 33]}...{line[-30:]}"


def _is_index(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _array(name: str, packed: object, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the array that a page sent, which must have the shape of the picture's own."""
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
