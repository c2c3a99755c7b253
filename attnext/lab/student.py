"""Call a student's function on a case, and say what came of it."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from traceback import FrameSummary
from typing import Any

import numpy as np

from attnext.lab import returned as returns  # by its module: a reload replaces its classes
from attnext.lab.cases import Arguments, Case
from attnext.lab.compare import Answer, same
from attnext.lab.reach import uses_torch
from attnext.lab.tasks import Task, is_data
from attnext.lab.time_limit import TimeUp, run_limited
from attnext.lab.words import is_plain

Function = Callable[..., Any]
MESSAGE = 1.0  # seconds for the message of an exception


@dataclass(frozen=True)
class Outcome:
    """What came of a case: an answer, or a fault; and the inputs that the function wrote into."""

    answer: Answer | None
    fault: returns.Fault | None = None
    dtypes: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class Student:
    """A function, and whether it takes NumPy arrays or PyTorch tensors."""

    def __init__(self, function: Function, task: Task, seconds: float = 10.0) -> None:
        self.function, self.task, self.seconds = function, task, seconds
        self._outcomes: dict[str, Outcome] = {}  # by the key of a case
        kinds = ["numpy"]
        if "torch" in sys.modules:
            kinds.insert(0 if uses_torch(function) else 1, "torch")
        outcomes = {}
        for kind in kinds:  # the kind that the function's operators take
            outcomes[kind] = self._run(task.cases[0], kind)
            fault = outcomes[kind].fault
            if fault is None or fault.key not in ("raised", "return-type"):
                break
        else:
            kind = kinds[0]
        self.kind = kind
        self._outcomes[task.cases[0].key] = outcomes[kind]

    def takes(self, case: Case) -> bool:
        """True if this case can be asked of the function."""
        return self.kind == "numpy" or not case.numpy_only

    def run(self, case: Case) -> Outcome:
        """Return what comes of a case, which is run once."""
        if case.key not in self._outcomes:
            self._outcomes[case.key] = self._run(case, self.kind)
        return self._outcomes[case.key]

    def bound(self, arguments: Arguments) -> Callable[[], Any]:
        """Return a call with these arguments, which are converted now."""
        given = [_converted(x, self.kind) for x in arguments.values()]
        return lambda: self.function(*given)

    def misnamed(self) -> str | None:
        """Return the function's parameters if one has the name of another of the task's."""
        names = [part.split("=")[0] for part in self.task.parameters.split(", ")]
        own = self._parameters() or []
        swapped = any(n in names and names.index(n) != i for i, n in enumerate(own))
        return ", ".join(own) if swapped else None

    # ---- one case --------------------------------------------------------------------------------

    def _run(self, case: Case, kind: str) -> Outcome:
        """Call the function twice: the same inputs must give the same numbers."""
        if any(o.fault and o.fault.key == "time" for o in self._outcomes.values()):
            return Outcome(None, returns.Fault("time"))  # one endless call is enough
        first, second = self._call(case, kind), None
        if first.answer is not None:
            second = self._call(case, kind)
        if second and second.fault and second.fault.key == "time":
            return second
        if second and not _agree(first, second, self.task.judged[case.key].tolerance):
            return Outcome(first.answer, returns.Fault("varies"), first.dtypes)
        return first

    def _call(self, case: Case, kind: str) -> Outcome:
        """Call the function on a copy of the case."""
        copied = {name: _copy(name, x, case.strided) for name, x in case.arguments.items()}
        given = {name: _converted(x, kind) for name, x in copied.items()}
        before = {name: _snapshot(x) for name, x in given.items()}
        try:
            arguments = self._fitting(list(given.values()))
        except TypeError:
            return Outcome(None, self._misfit())

        def call() -> returns.Returned | returns.Fault:
            with np.errstate(all="ignore"):
                return returns.read(self.function(*arguments), self.task)

        try:
            returned = run_limited(call, self.seconds)
        except KeyboardInterrupt:
            raise
        except TimeUp as up:
            where = {
                "seconds": self.seconds,
                "more": 6 * self.seconds,
                "line": self._line(up.frames),
            }
            return Outcome(None, returns.Fault("time", where))
        except BaseException as error:
            return Outcome(None, self._raised(error))
        if isinstance(returned, returns.Fault):
            return Outcome(None, returned)
        changed = tuple(name for name, x in given.items() if not _equal(before[name], x))
        return Outcome(returned.answer, None, returned.dtypes, changed)

    def _fitting(self, arguments: list[Any]) -> list[Any]:
        """Return the arguments, without a last None that the function has no parameter for."""
        signature = self._signature()
        if signature is None:
            return arguments
        try:
            signature.bind(*arguments)
        except TypeError:
            if arguments[-1] is not None:
                raise
            signature.bind(*arguments[:-1])
            return arguments[:-1]
        return arguments

    def _signature(self) -> inspect.Signature | None:
        """Return the signature; None if there is none, as for some functions in C."""
        try:
            return inspect.signature(self.function)
        except Exception:
            return None

    def _parameters(self) -> list[str] | None:
        """Return the names of the parameters, with * where Python has it."""
        signature = self._signature()
        if signature is None:
            return None
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
        return [stars.get(p.kind.name, "") + n for n, p in signature.parameters.items()]

    def _misfit(self) -> returns.Fault:
        own = ", ".join(self._parameters() or [])
        return returns.Fault("signature", {"parameters": self.task.parameters, "own": own})

    # ---- what was raised -------------------------------------------------------------------------

    def _raised(self, error: BaseException) -> returns.Fault:
        """Return the type, the message and the student's line of an exception."""
        try:  # the student may have written __str__ too
            text = run_limited(lambda: text_of(error), MESSAGE)
        except TimeUp:
            text = None
        message = (text or "").strip().split("\n")[0]
        kind = type(error).__name__
        numbers = {
            "raised": f"{kind}: {message}" if message else kind,
            "line": self._line(traceback.extract_tb(error.__traceback__)),
        }
        key = "exit" if isinstance(error, SystemExit) else "raised"
        return returns.Fault(key, numbers, error if text is not None and is_plain(text) else None)

    def _line(self, frames: list[FrameSummary]) -> str:
        """Return the innermost line of the student's file; else the innermost line of all."""
        file = getattr(_code(self.function), "co_filename", None)
        inside = [frame for frame in frames if frame.filename not in _OURS]
        own = [frame for frame in frames if frame.filename == file] or inside
        return own[-1].line or "" if own else ""


_OURS = (__file__, run_limited.__code__.co_filename, returns.read.__code__.co_filename)


def _code(function: Any) -> Any:
    """Return the code of a function, of a method, or of what an object does when it is called."""
    try:
        function = inspect.unwrap(getattr(function, "__func__", function))
        if not hasattr(function, "__code__"):
            function = getattr(type(function), "forward", type(function).__call__)
        return getattr(function, "__code__", None)
    except Exception:
        return None


def text_of(error: BaseException) -> str | None:
    """Return an exception's message; None if its __str__ raises."""
    try:
        return str(error)
    except (KeyboardInterrupt, TimeUp):
        raise
    except BaseException:
        return None


# ---- inputs --------------------------------------------------------------------------------------


def _copy(name: str, x: Any, strided: bool) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    if strided and is_data(name, x):
        return x.copy("F") if x.ndim > 1 else np.repeat(x, 2)[::2]
    return x.copy()


def _converted(x: Any, kind: str) -> Any:
    """Return an array as the function takes it. PyTorch computes in float32 by default."""
    if kind == "numpy" or not isinstance(x, np.ndarray):
        return x
    torch = sys.modules["torch"]
    # astype keeps the order of the numbers in memory
    return torch.from_numpy(x.astype(np.float32) if x.dtype.kind == "f" else x)


def _snapshot(x: Any) -> Any:
    """Return a copy of an array or a tensor as a NumPy array; anything else as it is."""
    if hasattr(x, "detach"):
        x = x.detach().numpy()
    return np.array(x) if isinstance(x, np.ndarray) else x


def _equal(before: Any, after: Any) -> bool:
    """True if the function did not write into this input, nor give it another shape."""
    if not isinstance(before, np.ndarray):
        return True
    now = _snapshot(after)
    return bool(before.shape == now.shape and before.tobytes() == now.tobytes())


def _agree(first: Outcome, second: Outcome, tolerance: list[float]) -> bool:
    assert first.answer is not None
    return second.answer is not None and same(first.answer, second.answer, tolerance)
