"""A signal in the middle of a call, on a machine of any speed.

For a process that began with tests/c/questions.c preloaded: `run_python(..., **questions)`, by the
fixture of that name. There a call asks at every chance whether to stop, and the signal comes with
the look at the clock that is asked for here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from itertools import starmap
from typing import Any

library = ctypes.PyDLL(None)
begin = library.questions_begin  # of this thread, as all of it
end = library.questions_end
begin.argtypes = [ctypes.c_int64]
end.restype = ctypes.c_int64


def run(call: Callable[[], Any], at: int = 0) -> tuple[list[Any], int]:
    """[its result], or [] if KeyboardInterrupt came out of it; and its number of looks.

    SIGALRM comes with look `at`. Where it is noticed only when the call is done, there is a result:
    between the two runs no bytecode.
    """
    done: list[Any] = []
    begin(at)
    try:
        done.extend(starmap(call, [()]))
    except KeyboardInterrupt:
        pass
    return done, end()


def some_looks(call: Callable[[], Any], most: int = 10) -> Iterator[int]:
    """Looks to send a signal at, from the first to the last, on one thread.

    Every second one: a look that finds 20 ms gone by is followed by the question, and that by a
    look at when to ask again. So the signal is noticed at once.
    """
    looks = run(call)[1]
    assert looks >= 2, "a call that never asks"
    step = max(1, looks // 2 // most)
    return iter(range(2, looks + 1, 2 * step))
