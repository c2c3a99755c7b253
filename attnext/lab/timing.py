"""How long a student's function takes beside attnext's: measured in turn, or not said."""

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

BUDGET = 0.3  # seconds, for both together, after a first call of each
LEAST, MOST = 6, 1000  # rounds
STEADY = 1.25  # how far the best of the first half of the rounds may be from that of the second


def beside_attnext(student: Student) -> tuple[str, float, float] | None:
    """The shapes, and the seconds of both; None where nothing can be said."""
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
        with _one_thread(attnext, sys.modules.get("torch")):
            pair = steady_times(yours, ours)
    except Exception:  # a large input is not what it was checked on
        return None
    shapes = ", ".join(str(x.shape) for x in arguments.values() if isinstance(x, np.ndarray))
    return None if pair is None else (shapes, *pair)


@contextmanager
def _one_thread(*libraries: Any) -> Iterator[None]:
    """Both compute on one: threads that wait for a busy CPU tell nothing."""
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
    """The shortest time of each, run in turn; None if the machine was too busy to tell."""
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
