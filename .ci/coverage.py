"""Which lines of csrc the programs ran that were built with --coverage.

    coverage.py kernels FOLDER SET...     of the files that are compiled for each instruction set
    coverage.py rest FOLDER               of all others

Below FOLDER are the objects, and beside them what gcov's counters were written to; SET... the
instruction sets that this CPU has; a line of the kernels counts once for each of them. The others
are named and not counted. What was not run is printed. In core and simd it is a failure unless
uncovered.txt, beside this file, says why; so is a name there that no line has. Of python and
tensors the share DOOR has to have run. os is only counted: much of it runs in processes that fork
or are ended, and write no counters.

The kernels are asked for when only the tests have run that go through every set. Python's tests
take the widest, and would hide on each CPU what those leave out of another.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOOR = 0.95
NAMED = Path(__file__).with_name("uncovered.txt")


class Line(NamedTuple):
    file: str  # csrc/core/plan.c
    number: int
    function: str
    kernels: str  # the set that a line of csrc/simd was compiled for, or ""

    @property
    def drawer(self) -> str:
        return self.file.split("/")[1]

    @property
    def text(self) -> str:
        return Path(self.file).read_text().splitlines()[self.number - 1].strip()

    @property
    def name(self) -> str:
        """As uncovered.txt has it: without the number, which any change moves."""
        return " ".join(filter(None, [self.file, self.kernels, f"{self.function}: {self.text}"]))


def counted(counters: Path) -> Iterator[tuple[Line, int]]:
    """Each line of csrc in one object, and how often it ran."""
    command = ["gcov", "--json-format", "--stdout", str(counters)]
    of_set = re.fullmatch(r"kernels_(\w+)", counters.stem)
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for file in report["files"]:
        if re.match(r"csrc/\w+/", file["file"]):
            for line in file["lines"]:
                function = line.get("function_name", "")
                kernels = of_set[1] if of_set else ""
                yield Line(file["file"], line["line_number"], function, kernels), line["count"]


def counters(part: str, folder: str, sets: tuple[str, ...]) -> Iterator[Path]:
    """What gcov reads of each object of that part, but of the kernels that this CPU cannot run."""
    for notes in sorted(Path(folder).rglob("*.gcno")):
        of_set = notes.stem.startswith("kernels_")
        if of_set != (part == "kernels"):
            continue
        if of_set and notes.stem.removeprefix("kernels_") not in sets:
            print(f"not for this CPU, hence not counted: csrc/simd/{notes.stem}.c")
        else:
            yield notes


def main(part: str, folder: str, *sets: str) -> int:
    ran: Counter[Line] = Counter()
    for notes in counters(part, folder, sets):
        for line, count in counted(notes):
            ran[line] += count
    rows = [row for row in NAMED.read_text().splitlines() if row.startswith("csrc/")]
    named = dict(row.split(" # ") for row in rows if ("/kernels_" in row) == (part == "kernels"))
    missed = sorted(line for line, count in ran.items() if count == 0)
    wrong = sorted(named.keys() - {line.name for line in ran})
    for line in missed:
        print(f"{line.number}: {line.name}")
        if line.drawer in ("core", "simd"):
            print(f"    {named.get(line.name, 'is not run, nor is there a reason why')}")
            wrong += [] if line.name in named else [line.name]
    for drawer in sorted({line.drawer for line in ran}):
        of_drawer = [line for line in ran if line.drawer == drawer]
        share = sum(ran[line] > 0 for line in of_drawer) / len(of_drawer)
        print(f"csrc/{drawer}: {share:.2%} of {len(of_drawer)} lines")
    door = [count > 0 for line, count in ran.items() if line.drawer in ("python", "tensors")]
    wrong += ["csrc/python, csrc/tensors: too little"] if sum(door) < DOOR * len(door) else []
    for name in wrong:
        print(f"FAILED: {name}")
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
