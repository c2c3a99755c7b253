"""Ctrl-C during a long call: ``python interrupted.py dot forward 2`` prints the delay in seconds.

test_threads.py runs this in a process of its own, whose main thread gets the signal.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np
from helpers import Problem, make_problem

import attnext

SECONDS = 3.0  # the call would take about this long


def problem_of(score: str, M: int) -> Problem:
    rng = np.random.default_rng(0)
    return make_problem(score, rng, lead=(1,), M=M, N=4096, D=32, Dv=32, H=32, extra_grads=False)


def long_problem(score: str, call: str) -> Problem:
    """One that takes SECONDS on this machine, now."""
    M, elapsed = 128, 0.0
    while elapsed < 0.05:
        M *= 2
        problem = problem_of(score, M)
        start = time.perf_counter()
        getattr(problem, call)()
        elapsed = time.perf_counter() - start
    return problem_of(score, int(M * SECONDS / elapsed))


def main(score: str, call: str, threads: str) -> None:
    attnext.set_num_threads(int(threads))
    problem = long_problem(score, call)
    sent = 0.0

    def press() -> None:
        nonlocal sent
        time.sleep(0.3)
        sent = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)

    # a shell starts background jobs with SIGINT ignored, and Python then leaves it so
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press).start()
    try:
        getattr(problem, call)()
    except KeyboardInterrupt:
        print(time.perf_counter() - sent)
    else:
        print("the call was not interrupted")
    small = problem_of(score, 64)
    attnext.set_num_threads(1)
    expected = small.forward()
    attnext.set_num_threads(int(threads))
    np.testing.assert_array_equal(small.forward(), expected)  # all is well afterwards


if __name__ == "__main__":
    main(*sys.argv[1:])
