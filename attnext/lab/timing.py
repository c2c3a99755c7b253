"""Time a student's function and attnext's in turn, on a large input."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import attnext
from attnext.lab.cases import large
from attnext.lab.student import Student
from attnext.lab.time_limit import run_limited

BUDGET = 0.3  # seconds for both together
LIMIT = 2 * BUDGET  # seconds after which the student's function is stopped: no time is said then
LEAST, MOST = 6, 1000  # rounds
STEADY = 1.25  # the largest ratio of the best times of the two halves of the rounds


def beside_attnext(student: Student) -> tuple[str, float, float] | None:
    """Return the shapes and the seconds of both; None if there is nothing to compare.

    That is so if attnext has no such function, if the student's takes too long or raises, and if
    the machine is too busy.
    """
    task = student.task
    if task.fast is None:
        return None
    arguments = large(task.name)
    yours = student.bound(arguments)
    single = {n: x.astype(np.float32) if _is_float(x) else x for n, x in arguments.items()}

    def ours() -> Any:
        assert task.fast is not None
        return task.fast(*single.values())

    try:
        with np.errstate(all="ignore"), _one_thread(attnext, sys.modules.get("torch")):
            pair = run_limited(lambda: steady_times(yours, ours), min(LIMIT, student.seconds))
    except KeyboardInterrupt:
        raise
    except BaseException:  # the time is up, or the function is not made for a large input
        return None
    shapes = ", ".join(str(x.shape) for x in arguments.values() if isinstance(x, np.ndarray))
    return None if pair is None else (shapes, *pair)


@contextmanager
def _one_thread(*libraries: Any) -> Iterator[None]:
    """Let the libraries compute on one thread: several would wait for each other on a busy CPU."""
    threads = [(library, library.get_num_threads()) for library in libraries if library]
    try:
        for library, _ in threads:
            library.set_num_threads(1)
        yield
    finally:
        for library, count in threads:
            library.set_num_threads(count)


def _is_float(x: object) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "f"


def steady_times(
    first: Callable[[], Any],
    second: Callable[[], Any],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float] | None:
    """Return the shortest time of each, run in turn; None if the times are not steady."""
    pair = (first, second)
    rounds: list[tuple[float, float]] = []
    started = clock()
    for f in pair:
        f()
    if clock() - started > BUDGET:
        return None
    while len(rounds) < LEAST or (len(rounds) < MOST and clock() - started < BUDGET):
        times = []
        for f in pair:
            begun = clock()
            f()
            times.append(clock() - begun)
        rounds.append((times[0], times[1]))
    half = len(rounds) // 2
    best = []
    for i in range(2):
        early, late = (min(r[i] for r in part) for part in (rounds[:half], rounds[half:]))
        if max(early, late) > STEADY * min(early, late):
            return None
        best.append(min(early, late))
    return best[0], best[1]
