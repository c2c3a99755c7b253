"""A student's function, called: with what it takes, and with what may come of that."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnext.lab.cases import Arguments, Case
from attnext.lab.tasks import Answer, Task, is_data

Function = Callable[..., Any]


@dataclass(frozen=True)
class Fault:
    """What is wrong before any number is looked at: words.py says it."""

    key: str
    numbers: dict[str, Any]
    error: Exception | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of one call: an answer, or a fault; or both, if an input was changed."""

    answer: Answer | None
    fault: Fault | None


class Student:
    """A function, and whether it takes NumPy's arrays or PyTorch's tensors."""

    def __init__(self, function: Function, task: Task) -> None:
        self.function, self.task = function, task
        kinds = ["numpy"]
        if "torch" in sys.modules:
            kinds.insert(0 if _uses_torch(function) else 1, "torch")
        self.kind = kinds[0]
        for kind in kinds:  # whose operators do not trip over what they are given
            fault = self._run(task.cases[0], kind).fault
            if fault is None or fault.key not in ("raised", "return-type"):
                self.kind = kind
                break

    def takes(self, case: Case) -> bool:
        """Whether this case can be asked of it."""
        return self.kind == "numpy" or not case.numpy_only

    def run(self, case: Case) -> Outcome:
        """What it makes of a case, of which it gets a copy."""
        return self._run(case, self.kind)

    def bound(self, arguments: Arguments) -> Callable[[], Any]:
        """A call with these arguments, which are converted now."""
        given = list(arguments.values())
        if self.kind == "torch":
            given = [_tensor(x) for x in given]
        return lambda: self.function(*given)

    def _run(self, case: Case, kind: str) -> Outcome:
        given = {name: _copy(name, x, case.strided) for name, x in case.arguments.items()}
        arguments = [_tensor(x) if kind == "torch" else x for x in given.values()]
        try:
            arguments = self._fitting(arguments)
        except TypeError:
            return Outcome(None, self._misfit())
        try:
            with np.errstate(all="ignore"):
                result = self.function(*arguments)
        except Exception as error:
            return Outcome(None, _raised(error, self.function, kind))
        answer, fault = _read(result, self.task)
        return Outcome(answer, fault or _changed(case.arguments, given))

    def _fitting(self, arguments: list[Any]) -> list[Any]:
        """The arguments, without a last one that is None if the function has no place for it."""
        try:
            signature = inspect.signature(self.function)
        except ValueError:  # a function in C may not say
            return arguments
        try:
            signature.bind(*arguments)
        except TypeError:
            if arguments[-1] is not None:
                raise
            signature.bind(*arguments[:-1])
            return arguments[:-1]
        return arguments

    def _misfit(self) -> Fault:
        signature = str(inspect.signature(self.function))
        return Fault("signature", {"parameters": self.task.parameters, "signature": signature})


# ---- what goes in --------------------------------------------------------------------------------


def _uses_torch(function: Function) -> bool:
    """Whether PyTorch is named in the function, or in what that calls."""
    if any(cls.__module__.startswith("torch") for cls in type(function).__mro__):
        return True  # a module
    seen: set[int] = set()

    def names(f: Any) -> bool:
        f = inspect.unwrap(getattr(f, "__func__", f))
        code = getattr(f, "__code__", None)
        if code is None or id(code) in seen:
            return False
        seen.add(id(code))
        known = {**f.__globals__, **inspect.getclosurevars(f).nonlocals}
        values = [known[name] for name in _names(code) if name in known]
        return any(map(_is_torchs, values)) or any(map(names, values))

    return names(function)


def _is_torchs(value: Any) -> bool:
    """Whether a module, a class or a function is PyTorch's."""
    home = getattr(value, "__name__" if inspect.ismodule(value) else "__module__", "")
    return str(home).split(".")[0] == "torch"


def _names(code: CodeType) -> Iterator[str]:
    """Names that the code reads, functions inside of it included."""
    yield from (*code.co_names, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _copy(name: str, x: Any, strided: bool) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    if strided and is_data(name, x):
        return x.copy("F") if x.ndim > 1 else np.repeat(x, 2)[::2]
    return x.copy()


def _tensor(x: Any) -> Any:
    """PyTorch computes in float32, unless asked not to."""
    if not isinstance(x, np.ndarray):
        return x
    torch = sys.modules["torch"]
    if x.dtype.kind != "f":
        return torch.from_numpy(x)
    return torch.from_numpy(x.astype(np.float32))  # in the order of memory that it had


# ---- what comes out ------------------------------------------------------------------------------


def _read(result: Any, task: Task) -> tuple[Answer | None, Fault | None]:
    """The arrays that were returned, as float64; or what is wrong with them."""
    if result is None:
        return None, Fault("none", {})
    wanted = len(task.returns)
    several = isinstance(result, tuple) or (wanted > 1 and hasattr(result, "__len__"))
    parts = list(result) if several else [result]
    if len(parts) != wanted:
        return None, Fault("count", {"count": len(parts), "wanted": ", ".join(task.returns)})
    arrays = []
    for name, part in zip(task.returns, parts, strict=True):
        if part is None:
            return None, Fault("none-among-them", {"name": name})
        array = _as_array(part)
        if array is None:
            return None, Fault("return-type", {"name": name, "type": type(part).__name__})
        if array.dtype.kind in "iu" and not task.keeps_integers:
            return None, Fault("integers", {"name": name, "dtype": array.dtype})
        if array.dtype.kind not in "fiu":
            return None, Fault("dtype", {"name": name, "dtype": array.dtype})
        arrays.append(array.astype(np.float64))
    return tuple(arrays), None


def _as_array(part: Any) -> NDArray[Any] | None:
    """An array, a tensor, or lists of numbers."""
    try:
        if hasattr(part, "detach"):
            part = part.detach().cpu().numpy()
        return np.asarray(part)
    except Exception:
        return None


def _changed(before: Arguments, after: Arguments) -> Fault | None:
    """An input that is not what it was."""
    for name, x in before.items():
        if isinstance(x, np.ndarray) and not np.array_equal(
            x, after[name], equal_nan=x.dtype.kind == "f"
        ):
            return Fault("changed", {"name": name})
    return None


def _raised(error: Exception, function: Function, kind: str) -> Fault:
    """What was raised, and the student's line in which it was."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if code and frame.filename == code.co_filename] or frames
    line = own[-1].line if own else ""
    text = str(error).strip().split("\n")[0]
    numbers = {"kind": type(error).__name__, "text": text, "line": line or "", "given": kind}
    return Fault("raised", numbers, error)
