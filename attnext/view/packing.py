"""Convert traces and arrays for a page: arrays to bytes, everything else to JSON values."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from attnext.explain.trace import Step, Trace
from attnext.explain.words import AXES

Packed = dict[str, Any]

MOST = 2**18  # largest step that is sent to a page, in elements
SAVED = 2**14  # largest step that is stored in a saved notebook, in elements


def pack_trace(trace: Trace, most: int = MOST) -> Packed:
    """Return title, call and steps of a trace for a page."""
    return {
        "title": trace.title,
        "call": trace.call,
        "steps": [_pack_step(step, most) for step in trace.steps],
    }


def pack_array(x: np.ndarray[Any, Any]) -> Packed:
    """Return an array as float32 bytes in little-endian order, the order of all browsers."""
    return {"shape": list(x.shape), "data": np.ascontiguousarray(x, "<f4").tobytes()}


def unpack_array(packed: Packed) -> np.ndarray[Any, Any]:
    """Return the array that a page sent."""
    return np.frombuffer(packed["data"], "<f4").astype(np.float32).reshape(packed["shape"])


def as_json(packed: Packed) -> str:
    """Return JSON for a saved page, with bytes in base64. It is safe inside a script element."""

    def in_letters(data: bytes) -> str:
        return base64.b64encode(data).decode("ascii")

    text = json.dumps(packed, ensure_ascii=False, default=in_letters, separators=(",", ":"))
    return text.replace("</", "<\\/").replace("<!--", "<\\!--")


def _pack_step(step: Step, most: int) -> Packed:
    kinds = {words[step.lang]: kind for kind, words in AXES.items()}
    kept = step.values.shape == step.shape and step.values.size <= most
    masked = step.masked if kept else None
    with np.errstate(over="ignore"):  # of float64; a page has float32
        data = np.ascontiguousarray(step.values, "<f4").tobytes() if kept else None
    return {
        "key": step.key,
        "name": step.name,
        "formula": step.formula,
        "note": step.note,
        "shape": list(step.shape),
        "axes": [kinds[axis] for axis in step.axes],
        "data": data,
        "masked": None if masked is None else np.ascontiguousarray(masked, np.uint8).tobytes(),
    }
