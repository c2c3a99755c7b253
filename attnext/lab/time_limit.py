"""Run a function for a limited time, in any thread and on every system.

A second thread waits. When the time is up, it notes the line that runs, and raises `TimeUp` in the
thread that calls. What else was considered: a signal (setitimer) works in the main thread alone,
not on Windows, and takes the handler from pytest-timeout; sys.settrace and sys.monitoring slow
every line down, and a debugger or a coverage tool may be using them; a function left behind in a
separate thread would go on computing.

Python delivers the exception between two bytecodes. A call that stays in C, for instance
time.sleep(1e9) or one huge matrix product, ends first. A loop that catches every exception with a
bare except, and goes on, cannot be ended, not by Ctrl-C either.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import traceback
from collections.abc import Callable
from traceback import FrameSummary
from typing import TypeVar

T = TypeVar("T")
AGAIN = 0.1  # seconds until the exception is raised again, if the code caught it


class TimeUp(BaseException):
    """The time is up. `frames` are those of the call at that moment, the innermost last."""

    def __init__(self, frames: list[FrameSummary] | None = None) -> None:
        super().__init__()
        self.frames = frames or []


def run_limited(call: Callable[[], T], seconds: float) -> T:
    """Return call(), or raise TimeUp if the call takes longer than `seconds`."""
    watch = _Watch(seconds)
    # TimeUp comes at a call or at a jump back, after begin(). Setting an attribute is neither: once
    # `over` is set, at most one more exception comes, which the watch has just decided to raise.
    results: list[T] = []
    error: BaseException | None = None
    try:
        try:
            watch.begin()
            results.append(call())
            watch.over = True
        except TimeUp:
            watch.over = True
        except BaseException as raised:
            watch.over = True
            error = raised
        watch.stop()
    except BaseException as raised:
        watch.over = True
        watch.stop()
        if not isinstance(raised, TimeUp):
            raise
    if isinstance(error, KeyboardInterrupt) or (error and not watch.frames):
        raise error
    if watch.frames:
        raise TimeUp(watch.frames)
    return results[0]


class _Watch:
    """A thread that waits while the thread which made it calls a function."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.caller = threading.get_ident()
        self.over = False  # the call has ended
        self.begun, self.ended = threading.Event(), threading.Event()
        self.frames: list[FrameSummary] = []  # of the call, when the time was up
        self.thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread, unless there is no limit, or the system has no threads."""
        if self.seconds <= threading.TIMEOUT_MAX:
            thread = threading.Thread(target=self._wait, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return
            self.thread = thread
            self.begun.set()  # not before: the exception must not come inside of start()

    def stop(self) -> None:
        """End the thread, and take back an exception that was not delivered yet."""
        self.ended.set()
        self.begun.set()
        if self.thread:
            self.thread.join()
        if self.frames:
            self._raise(None)

    def _wait(self) -> None:
        self.begun.wait()
        if self.ended.wait(self.seconds) or self.over:
            return
        self.frames = self._stack()
        while not self.over:
            self._raise(TimeUp)
            self.ended.wait(AGAIN)

    def _stack(self) -> list[FrameSummary]:
        """Return the frames of the call, from `run_limited` inwards."""
        stack = list(traceback.walk_stack(sys._current_frames()[self.caller]))
        codes = [frame.f_code for frame, _ in stack]
        inside = stack[: codes.index(run_limited.__code__) + 1]
        return traceback.StackSummary.extract(reversed(inside))

    def _raise(self, kind: type[BaseException] | None) -> None:
        """Raise an exception in the caller's thread, or take the last one back (None)."""
        what = None if kind is None else ctypes.py_object(kind)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.caller), what)
