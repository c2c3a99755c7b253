"""Read what a student's function returned: arrays, tensors or lists of numbers."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnext.lab.compare import Answer
from attnext.lab.tasks import Task


@dataclass(frozen=True)
class Fault:
    """What is wrong apart from the numbers. texts/faults.txt has its words."""

    key: str
    numbers: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None


@dataclass(frozen=True)
class Returned:
    """The arrays as float64, and the dtype that each had."""

    answer: Answer
    dtypes: tuple[str, ...]


def read(result: Any, task: Task) -> Returned | Fault:
    """Return the arrays of a result, or what is wrong with it."""
    if result is None:
        return Fault("none")
    parts = _parts(result, len(task.returns))
    if len(parts) != len(task.returns):
        key = "one" if len(parts) == 1 else "count"
        numbers = {"count": len(parts), "expected": len(task.returns)}
        return Fault(key, numbers | {"names": ", ".join(task.returns)})
    arrays, dtypes = [], []
    for name, part in zip(task.returns, parts, strict=True):
        found = _read_array(name, part)
        if isinstance(found, Fault):
            return found
        array, dtype = found
        if array.dtype.kind in "iu" and not task.keeps_integers:
            return Fault("integers", {"name": name, "dtype": dtype})
        if array.dtype.kind not in "fiu":
            return Fault("dtype", {"name": name, "dtype": dtype})
        arrays.append(array.astype(np.float64))
        dtypes.append(dtype)
    return Returned(tuple(arrays), tuple(dtypes))


def _parts(result: Any, expected: int) -> list[Any]:
    """Return the arrays one by one: a tuple's elements; a list's or an array's too, if expected."""
    if issubclass(type(result), tuple):
        return list(result)
    if expected > 1 and not _unreturned(result) and not issubclass(type(result), dict | str):
        try:
            return [result[i] for i in range(len(result))]
        except Exception:  # one array without axes
            return [result]
    return [result]


def _unreturned(result: Any) -> str | None:
    """Return the fault of an async function or a generator, whose body has not run yet."""
    if inspect.iscoroutine(result):
        result.close()  # otherwise Python warns that it was never awaited
        return "async"
    if inspect.isasyncgen(result):
        return "async"
    return "generator" if inspect.isgenerator(result) else None


def _read_array(name: str, part: Any) -> tuple[NDArray[Any], str] | Fault:
    """Return an array and the name of its dtype."""
    if part is None:
        return Fault("none-among-them", {"name": name})
    unreturned = _unreturned(part)
    if unreturned:
        return Fault(unreturned, {"name": name})
    try:
        array, dtype = _as_array(part)
    except Exception:
        ragged = issubclass(type(part), list | tuple)
        return Fault("ragged" if ragged else "return-type", _type(name, part))
    if array.dtype.kind == "O":
        return Fault("return-type", _type(name, part))
    return array, dtype


def _type(name: str, part: Any) -> dict[str, Any]:
    return {"name": name, "type": type(part).__name__}


def _as_array(part: Any) -> tuple[NDArray[Any], str]:
    """Return an array, a tensor, or lists of numbers or tensors as an array, and its dtype."""
    if hasattr(part, "detach"):
        tensor = part.detach().cpu()
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype == "bfloat16":  # NumPy has no such dtype
            tensor = tensor.float()
        return tensor.numpy(), dtype
    if issubclass(type(part), list | tuple):
        part = [_as_array(item)[0] for item in part]
    array = np.asarray(part)
    return array, str(array.dtype)
