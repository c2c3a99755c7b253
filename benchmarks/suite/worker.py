"""One process for each number of threads, which gets as many CPUs before it imports anything.

So everybody is limited alike, also those whose number of threads cannot be changed later (JAX).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def confine(threads: int) -> None:
    """This process, and the pools of whatever it imports, to so many CPUs and threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    for library in ("ATTNEXT", "OMP", "MKL", "OPENBLAS"):
        os.environ[f"{library}_NUM_THREADS"] = str(threads)
    os.environ["VECLIB_MAXIMUM_THREADS"] = str(threads)
    os.environ["JAX_PLATFORMS"] = "cpu"


def main(spec_file: str, result_file: str) -> None:
    """From the file that says what to do to the file of results."""
    spec = json.loads(Path(spec_file).read_text(encoding="utf-8"))
    confine(spec["threads"])
    from .bench import run  # NumPy and the peers: not before

    Path(result_file).write_text(json.dumps(run(spec)), encoding="utf-8")


def turns(given: str) -> None:
    """A case and a direction a line; for each, the minimum of some calls, in milliseconds.

    Results are checked when a case is asked for first.
    """
    spec = json.loads(given)
    confine(spec["threads"])
    from .bench import Bench

    bench = Bench(spec)
    for line in sys.stdin:
        case, work = json.loads(line)
        print(bench.turn(case, work), flush=True)
