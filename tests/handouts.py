"""Assignments as `attnext lab DIR` writes them: their cells, and what their checks say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers import REPOSITORY, run_python

NAMES = sorted(path.stem for path in (REPOSITORY / "examples").glob("*.ipynb"))
LANGUAGES = ("en", "zh")


def cells(folder: Path, name: str) -> list[Any]:
    path = folder / "assignments" / name / f"{name}.ipynb"
    found: list[Any] = json.loads(path.read_text("utf-8"))["cells"]
    return found


def source(cell: Any) -> str:
    return "".join(cell["source"])


def code(cell: Any) -> str:
    return "\n".join("" if x.startswith("%") else x for x in source(cell).split("\n"))


# In a process of its own, since notebooks import pyplot.
RUN = """
import json, sys
import matplotlib

matplotlib.use("agg")

def run(notebook):
    namespace, failed = {}, {}
    for name, text in notebook:
        try:
            exec(compile(text, name, "exec"), namespace)
        except Exception as error:
            if name.startswith("check-"):
                failed[name] = f"{type(error).__name__}: {error}"
    return failed

print("\\n" + json.dumps(list(map(run, json.load(open(sys.argv[1], encoding="utf-8"))))))
"""


def checks_that_fail(*notebooks: list[Any], path: Path) -> list[dict[str, str]]:
    """Each run from top to bottom, past errors; what each check that fails says."""
    programs = [
        [(c["id"], code(c)) for c in notebook if c["cell_type"] == "code"] for notebook in notebooks
    ]
    path.write_text(json.dumps(programs), encoding="utf-8")
    found: list[dict[str, str]] = json.loads(run_python("-c", RUN, path).stdout.splitlines()[-1])
    return found
