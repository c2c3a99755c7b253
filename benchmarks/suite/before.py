"""attnext of another commit, in turn with the installed one.

Each has two processes of its own, and all four take turns row after row: what a row took is the
minimum of both. How far the two processes of one commit are apart is the row's trust: they run the
same code, so a difference is the machine's, or that of where memory lies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from .peers import WORKS
from .report import Table, count, number, plain

SLOWER = 1.02
TURNS = 4  # of each process for a row
LOOKS = 3  # at most, at a row that seems to be slower

BENCHMARKS = Path(__file__).resolve().parent.parent
KEPT = BENCHMARKS.parent / "build" / "before"


class Row(NamedTuple):
    """What was found of a case in one direction; milliseconds."""

    case: str
    work: str
    threads: int
    was: float
    now: float
    trust: float  # as a part: .01 is 1 %

    @property
    def factor(self) -> float:
        """How many times as long it takes as it did."""
        return self.now / self.was

    @property
    def verdict(self) -> str:
        """What to think of it."""
        far = max(self.factor, 1 / self.factor) >= SLOWER
        word = "slower" if self.factor > 1 else "faster"
        return "" if not far else word if self.sure else f"{word}?"

    @property
    def sure(self) -> bool:
        """Whether the commits are further apart than two processes of one."""
        return max(self.factor, 1 / self.factor) - 1 > self.trust


# ---- the other commit ----------------------------------------------------------------------------


def commit_of(revision: str) -> str | None:
    """Its whole name, if this clone has it."""
    command = [
        "git",
        "-C",
        str(BENCHMARKS),
        "rev-parse",
        "--verify",
        "-q",
        f"{revision}^{{commit}}",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:  # no git
        return None
    return done.stdout.strip() or None


def built(commit: str) -> Path:
    """The folder that holds attnext of this commit; it is kept for the next time."""
    folder = KEPT / commit
    if (folder / "attnext").is_dir():
        return folder
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as clone, tempfile.TemporaryDirectory(dir=KEPT) as target:
        archive = subprocess.run(
            ["git", "archive", commit], cwd=BENCHMARKS.parent, capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", clone], input=archive.stdout, check=True)
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
        done = subprocess.run([*pip, "--target", target, clone], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{commit} could not be built:\n{done.stderr.strip()}")
        Path(target).rename(folder)
        Path(target).mkdir()  # which is now taken away
    return folder


# ---- processes that take turns -------------------------------------------------------------------


class Side:
    """A process that waits for its turn (worker.turns)."""

    def __init__(self, spec: dict[str, Any], folder: Path | None) -> None:
        environment = dict(os.environ)
        if folder:
            known = filter(None, [environment.get("PYTHONPATH")])
            environment["PYTHONPATH"] = os.pathsep.join([str(folder), *known])
        command = [sys.executable, "-P", str(BENCHMARKS / "run.py"), "--turns", json.dumps(spec)]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.minima: list[float] = []

    def turn(self, case: str, work: str) -> None:
        """One more minimum."""
        assert self.process.stdin and self.process.stdout
        question = f"{json.dumps([case, work])}\n".encode()
        try:
            os.write(self.process.stdin.fileno(), question)  # nothing stays behind if it has ended
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            sys.exit(1)  # the process has said why
        self.minima.append(float(answer))


@contextmanager
def processes(spec: dict[str, Any], old: Path) -> Iterator[list[Side]]:
    """Of the old commit, twice of the installed one, of the old commit."""
    with ExitStack() as stack:
        sides = [Side(spec, folder) for folder in (old, None, None, old)]
        for side in sides:
            stack.enter_context(side.process)  # which closes its pipes, and waits for it
        yield sides


def row(sides: list[Side], case: str, work: str, threads: int) -> Row:
    """A row, looked at again where it seems to be slower."""
    for side in sides:
        side.minima.clear()
    looks = 0
    while True:
        for turn in range(TURNS):
            for side in sides[:: 1 if turn % 2 else -1]:
                side.turn(case, work)
        a, b, c, d = (min(side.minima) for side in sides)
        trust = max(a / d, d / a, b / c, c / b) - 1
        found = Row(case, work, threads, min(a, d), min(b, c), trust)
        looks += 1
        if found.factor < SLOWER or looks == LOOKS:
            return found


def rows(spec: dict[str, Any], cases: list[str], old: Path) -> Iterator[Row]:
    """All rows of a number of threads."""
    with processes(spec, old) as sides:
        for case in cases:
            for work in WORKS:
                yield row(sides, case, work, spec["threads"])


# ---- what is printed -----------------------------------------------------------------------------


def document(found: list[Row], commit: str) -> tuple[str, bool]:
    """The table, the worst first, and whether anything became slower."""
    table: Table = [["case", "work", "threads", "was", "is", "takes", "trust", ""]]
    for one in sorted(found, key=lambda one: -one.factor):
        cells = [one.case, one.work, str(one.threads), number(one.was), number(one.now)]
        table.append([*cells, f"{one.factor:.3f}x", f"{one.trust:.1%}", one.verdict])
    slower = sum(one.verdict == "slower" for one in found)
    unsure = sum(one.verdict == "slower?" for one in found)
    lines = [
        f"Was: commit {commit[:12]}. Is: the installed attnext. Takes: how many times as long.",
        "Trust: how far two processes of one commit are apart; ?: the commits are not further.",
        plain(table),
        *[
            f"{count(threads)}: the median row takes "
            f"{median(one.factor for one in found if one.threads == threads):.3f}x, trust "
            f"{median(one.trust for one in found if one.threads == threads):.1%}."
            for threads in sorted({one.threads for one in found})
        ],
        f"{slower} of {len(found)} rows are slower by more than {SLOWER - 1:.0%}, "
        f"{unsure} seem to be.",
    ]
    return "\n".join(lines) + "\n", bool(slower)
