"""The rows of the tables: a case is made, checked, timed beside its peers, and given its limit.

A row has, besides its names: times, milliseconds by callee (min, median, and the number of runs);
refused, why a callee that is not in times was not timed; limit, the least milliseconds this CPU
allows, or of a toy its floor; and rates, from which that follows: multiply-adds, divisions and
floats read in a second.
"""

from __future__ import annotations

import importlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import attnext

from . import limits, peers
from .cases import CASES, Case
from .check import WrongResult, as_arrays, check, truth
from .masks import allowed_share, mask_cases, share_of_tiles
from .problem import Array, Problem, make
from .timing import Timer

Row = dict[str, Any]
Calls = dict[str, Callable[[], Any]]


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """TimeoutError for what takes longer: compilers have no limit of their own."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not ready after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Bench:
    """What all measurements of one process share."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.folder = Path(spec["folder"])
        self.patience: float = spec["patience"]
        self.threads: int = spec["threads"]
        self.timer = Timer(spec["seconds"], self.threads, spec["cpu_time"], spec["rounds"])
        self.makers, self.missing = peers.load(spec["peers"])
        if "attnext" in self.missing:
            sys.exit(f"attnext: {self.missing['attnext']}")
        self.ready: tuple[tuple[str, str], Calls] = ("", ""), {}
        self.rates: dict[str, float] = {}

    @cached_property
    def machine(self) -> limits.Machine | None:
        """Compiled when a limit is first asked for: processes that take turns ask for none."""
        chosen = attnext.show_config("dicts")["instruction_set"]["chosen"]
        library = limits.compile_peak(self.folder, chosen)
        return limits.Machine(library, self.threads) if library else None

    def right_calls(
        self, problem: Problem, work: str, expected: list[Array]
    ) -> tuple[Calls, dict[str, str], list[Array]]:
        """Calls whose results are right; of the others, what is wrong; and attnext's results,
        which have to be right.
        """
        whole: list[Array] = []
        calls: Calls = {}
        refused: dict[str, str] = {}
        for name, maker in self.makers.items():
            if not peers.takes(name, problem):
                continue
            results = None
            try:
                with at_most(self.patience):
                    call = maker(problem, work, self.threads)
                    results = call() if call else None
                if call:
                    check(results, expected, whole or None)
                    calls[name] = call
            except Exception as error:  # whatever a peer raises that cannot do this case
                if name == "attnext":
                    raise
                refused[name] = brief(error)
            if name == "attnext":
                whole = as_arrays(results)
        return calls, refused, whole

    def case(self, case: Case) -> list[Row]:
        """The rows of a case."""
        problem = make(case)
        expected = truth(problem, self.folder)
        return [self.case_row(problem, work, expected[work]) for work in peers.WORKS]

    def case_row(self, problem: Problem, work: str, expected: list[Array]) -> Row:
        """A case in one direction: times, and the physical limit."""
        case = problem.case
        calls, refused, results = self.right_calls(problem, work, expected)
        machine: Calls = {}
        if case.toy:
            machine = {"limit": limits.making(results)}
        elif case.score == "softmax":
            machine = {"limit": limits.copying(problem, work, self.threads)}
        elif self.machine:
            machine = self.machine.calls(problem)
        counts = {name: call() for name, call in machine.items()}
        times = self.timer.measure(calls | machine)
        taken = {name: times.pop(name)["min"] / 1e3 for name in machine}
        limit, rates = None, None
        if "limit" in taken:
            limit = taken["limit"]
        elif taken:
            rates = {name: counts[name] / seconds for name, seconds in taken.items()}
            for name in ("fma", "division"):  # the CPU's, not the case's: the best so far
                rates[name] = self.rates[name] = max(rates[name], self.rates.get(name, 0.0))
            limit = limits.limit_seconds(limits.work_of(problem, work), limits.Rates(**rates))
        return {"case": case.name, "shape": case.shape, "work": work, "threads": self.threads,
                "times": times, "refused": refused, "rates": rates,
                "limit": None if limit is None else 1e3 * limit}  # fmt: skip

    def turn(self, name: str, work: str) -> float:
        """The minimum of some calls of attnext; the one case that comes again is kept ready."""
        if self.ready[0] != (name, work):
            with told_wrong(f"{name}, {work}"):
                problem = make(CASES[name])
                calls, _, _ = self.right_calls(problem, work, truth(problem, self.folder)[work])
            self.ready = (name, work), calls
        return self.timer.measure(self.ready[1])["attnext"]["min"]

    def mask(self, case: Case) -> list[Row]:
        """The rows of a mask."""
        problem = make(case)
        expected = truth(problem, self.folder)
        return [self.mask_row(problem, work, expected[work]) for work in ("forward", "backward")]

    def mask_row(self, problem: Problem, work: str, expected: list[Array]) -> Row:
        """A mask in one direction, beside the dense call."""
        case, dense = problem.case, make(replace(problem.case, mask="none"))
        calls, refused, _ = self.right_calls(problem, work, expected)
        call = self.makers["attnext"](dense, work, self.threads)
        assert call is not None
        calls["dense"] = call
        times = self.timer.measure(calls)
        pairs = float(problem.pairs.mean())
        return {"mask": case.name, "shape": dense.case.shape, "work": work,
                "threads": self.threads, "times": times, "refused": refused, "pairs": pairs,
                "tiles": share_of_tiles(problem.pairs),
                "allowed": allowed_share(pairs, case.N)}  # fmt: skip


def brief(error: Exception) -> str:
    """One line."""
    text = f"{error}".strip() or "no message"
    return f"{type(error).__name__}: {text.splitlines()[0]}"[:200]


def versions() -> dict[str, str]:
    """Of the modules that take part."""
    modules = {"attnext": "attnext", "NumPy": "numpy", "PyTorch": "torch", "JAX": "jax",
               "ONNX Runtime": "onnxruntime"}  # fmt: skip
    return {
        name: str(importlib.import_module(module).__version__)
        for name, module in modules.items()
        if module in sys.modules
    }


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """All rows of this process's number of threads."""
    rows: list[Row] = []
    masks: list[Row] = []
    bench = Bench(spec)
    for name in spec["cases"]:
        with told(f"{name}, {bench.threads} thread(s)"):
            rows += bench.case(CASES[name])
    everyone = bench.makers
    bench.makers = {name: everyone[name] for name in ("attnext", "torch SDPA") if name in everyone}
    for case in mask_cases(*spec["mask_shape"]) if spec["masks"] else []:
        with told(f"mask {case.name}, {bench.threads} thread(s)"):
            masks += bench.mask(case)
    return {"rows": rows, "masks": masks, "missing": bench.missing, "versions": versions(),
            "config": attnext.show_config("dicts")}  # fmt: skip


@contextmanager
def told(what: str) -> Iterator[None]:
    """Progress, on the error stream."""
    start = time.perf_counter()
    with told_wrong(what):
        yield
    print(f"  {what}: {time.perf_counter() - start:.1f} s", file=sys.stderr)


@contextmanager
def told_wrong(what: str) -> Iterator[None]:
    """A wrong result ends the run, and says of what."""
    try:
        yield
    except WrongResult as error:
        sys.exit(f"{what}: attnext is wrong: {error}")
