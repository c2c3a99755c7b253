"""What nbgrader says of assignments that were run already: that of solutions passes, a blank fails.

    python -P .ci/assignments.py BLANK SOLVED

BLANK and SOLVED are folders of ``attnext lab`` and ``attnext lab --solutions``. Their checks have
run beside the solutions, in `.ci/notebooks.py check`, which has left the outputs in
build/assignments. nbgrader gets the files with these outputs, and executes nothing itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbgrader.preprocessors import CheckCellMetadata
from nbgrader.validator import Validator

RUN = Path(__file__).resolve().parent.parent / "build" / "assignments"
SENTENCE = "is not there yet"


def graded(path: Path, run: Path) -> tuple[list[str], list[str]]:
    """The checks of an assignment, and what nbgrader says of those that failed."""
    notebook, executed = (nbformat.read(each, as_version=4) for each in (path, run))
    if [cell.source for cell in notebook.cells] != [cell.source for cell in executed.cells]:
        raise ValueError(f"{path} is not what was run")
    for cell, with_outputs in zip(notebook.cells, executed.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs = with_outputs.outputs
    nbformat.write(notebook, path)
    validator = Validator()
    validator.preprocessors = [CheckCellMetadata]
    results: dict[str, list[Any]] = validator.validate(str(path))
    if set(results) - {"failed"}:
        raise ValueError(f"nbgrader does not take {path}: {results}")
    checks = [cell.source for cell in notebook.cells if cell.id.startswith("check-")]
    return checks, [failed["raw_error"] for failed in results.get("failed", [])]


def main(blank: str, solved: str) -> int:
    """Print a line for each assignment; 1 if one passes or fails that should not."""
    wrong = 0
    for path in sorted(Path(blank).glob("assignments/*/*.ipynb")):
        checks, errors = graded(path, RUN / "blank" / path.name)
        _, faults = graded(Path(solved) / path.relative_to(blank), RUN / "solved" / path.name)
        said = sum(SENTENCE in error for error in errors)
        good = said == len(errors) == len(checks) > 0 and not faults
        wrong |= not good
        print("ok    " if good else "FAILED", path.stem, f"{len(checks)} checks;", end=" ")
        print(f"blank: {len(errors)} fail, {said} with the sentence; solved: {len(faults)} fail")
        print(*faults, sep="\n", end="\n" * bool(faults), flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
