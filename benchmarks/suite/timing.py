"""All calls in turn, round after round, so that a busy machine slows all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

ROUNDS = 5  # at least
LOOP = 0.002  # seconds: calls that take less are repeated until this long
REST = 0.03  # seconds: with several threads, until the last callee's have stopped spinning
WARM = 0.01  # seconds of untimed calls after the rest, until all threads are awake again


@dataclass(frozen=True)
class Timer:
    """How calls are timed: for how long, with how many threads, and by which clock."""

    seconds: float
    threads: int = 1
    cpu_time: bool = False  # that of the process: on one thread, what other processes do not slow

    def of(self, call: Callable[[], Any], loops: int = 1) -> float:
        """Seconds of one call, of so many."""
        clock = time.process_time if self.cpu_time else time.perf_counter
        start = clock()
        for _ in range(loops):
            call()
        return (clock() - start) / loops

    def warm_up(self, call: Callable[[], Any]) -> float:
        """Calls for a while, at least one; the least seconds of one."""
        least, end = self.of(call), time.perf_counter() + WARM
        while time.perf_counter() < end:
            least = min(least, self.of(call))
        return least

    def measure(self, calls: Mapping[str, Callable[[], Any]]) -> dict[str, dict[str, float]]:
        """Minimum and median milliseconds of each call, and how often it was timed."""
        once = {name: self.warm_up(call) for name, call in calls.items()}
        loops = {name: max(1, int(LOOP / (s + 1e-9))) for name, s in once.items()}
        times: dict[str, list[float]] = {name: [] for name in calls}
        end = time.perf_counter() + self.seconds
        rounds = 0
        while rounds < ROUNDS or time.perf_counter() < end:
            rounds += 1
            for name, call in calls.items():
                if self.threads > 1:
                    time.sleep(REST)
                    if once[name] < WARM:
                        self.warm_up(call)
                times[name].append(1e3 * self.of(call, loops[name]))
        return {
            name: {"min": min(ms), "median": float(np.median(ms)), "runs": len(ms)}
            for name, ms in times.items()
        }
