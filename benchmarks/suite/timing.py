"""All calls in turn, round after round, so that a busy machine slows all alike.

A turn is long enough for a short call to find its own arrays in the cache again, which takes some
three calls: one query against 33 MB of keys and values needs 1.2 ms then, 2.6 ms after somebody
else's call, and a peer that is handed the arrays of the one before it would not pay that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

ROUNDS = 3  # at least
FAR = 2.0  # who takes so many times as long as the fastest is timed in every third round alone
LOOP = 0.002  # seconds: calls that take less are repeated until this long
REST = 0.03  # seconds: with several threads, until the last callee's have stopped spinning
WARM = 0.01  # seconds of untimed calls after the rest, until all threads are awake again
TURN = 0.01  # seconds: calls that take less are timed again until this long


@dataclass(frozen=True)
class Timer:
    """How calls are timed: for how long, with how many threads, and by which clock."""

    seconds: float
    threads: int = 1
    cpu_time: bool = False  # that of the process: on one thread, what other processes do not slow
    rounds: int = ROUNDS  # at least

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

    def turn(self, call: Callable[[], Any], loops: int) -> list[float]:
        """Milliseconds of a call, at least once."""
        times, end = [1e3 * self.of(call, loops)], time.perf_counter() + TURN
        while time.perf_counter() + 1e-3 * loops * times[-1] < end:
            times.append(1e3 * self.of(call, loops))
        return times

    def measure(self, calls: Mapping[str, Callable[[], Any]]) -> dict[str, dict[str, float]]:
        """Minimum and median milliseconds of each call, and how often it was timed."""
        once = {name: self.warm_up(call) for name, call in calls.items()}
        loops = {name: max(1, int(LOOP / (s + 1e-9))) for name, s in once.items()}
        near = FAR * min(once.values(), default=0.0)
        times = {name: [1e3 * once[name]] if once[name] > near else [] for name in calls}
        end = time.perf_counter() + self.seconds
        rounds = 0
        while rounds < self.rounds or time.perf_counter() < end:
            rounds += 1
            for name, call in calls.items():
                if once[name] > near and rounds % 3 != 1:
                    continue
                if self.threads > 1:
                    time.sleep(REST)
                    if once[name] < WARM:
                        self.warm_up(call)
                times[name] += self.turn(call, loops[name])
        return {
            name: {"min": min(ms), "median": float(np.median(ms)), "runs": len(ms)}
            for name, ms in times.items()
        }
