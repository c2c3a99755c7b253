"""Make the assignment of a notebook from the notebook and its solutions.

In a notebook of solutions, a cell whose id begins with "check-" checks the exercise before it.
All other code of the exercise is its solution, which is left out of the assignment, or put between
the marks that nbgrader removes. texts/exercises.txt has, for each check, the names that it reads
and a message for each of its assertions, in both languages.
Notebooks are handled as JSON, so nothing besides the standard library is needed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from attnext._width import wrap
from attnext._words import table
from attnext.lab.words import HANDOUT, said

Notebook: TypeAlias = dict[str, Any]
Cell: TypeAlias = dict[str, Any]

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


EXERCISES = table("lab/texts/exercises")
WIDTH = 96  # columns of a definition in an answer cell


@dataclass
class Exercise:
    """One exercise: the task, and the parts of its solution."""

    number: int
    task: str
    prose: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    check: str = ""


@dataclass(frozen=True)
class Definition:
    """A name that a check reads."""

    name: str
    shape: str  # "(5,)" of an array, "()" of a number, "" of anything else
    function: bool
    line: str  # of the answer cell


def assignment(
    name: str, chapter: Notebook, solved: Notebook, lang: str, solutions: bool
) -> Notebook:
    """Return the assignment of a notebook, with the solutions between nbgrader's marks if asked."""
    setup, exercises = _exercises(chapter, solved)
    title = re.sub(r"^# ", "", _source(chapter["cells"][0]).split("\n")[0])
    head = said(HANDOUT, "head", lang, title=title)
    cells = [_cell("markdown", "head", head), _cell("code", "setup", setup)]
    for exercise in exercises:
        entry = EXERCISES[f"{name} {exercise.number}"][lang] if exercise.check else ""
        cells += _asked(exercise, entry.split("\n"), lang, solutions)
    return {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def plain(notebook: Notebook) -> Notebook:
    """A notebook to read and run: without outputs, and without the way to the solutions."""
    cells = []
    for cell in notebook["cells"]:
        if cell["id"] != "solutions":
            code = cell["cell_type"] == "code"
            cells.append({**cell, "outputs": [], "execution_count": None} if code else cell)
    return {**notebook, "cells": cells}


def as_json(notebook: Notebook) -> str:
    """The file."""
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"


# ---- what a notebook and its solutions hold ------------------------------------------------------


def _source(cell: Cell) -> str:
    return "".join(cell["source"])


def _exercises(chapter: Notebook, solved: Notebook) -> tuple[str, list[Exercise]]:
    """The code before all exercises, and these with their solutions."""
    last = next(text for cell in reversed(chapter["cells"]) if "\n1. " in (text := _source(cell)))
    tasks = "\n" + re.split(r"^## ", last, flags=re.M)[-1]
    asked = re.split(r"\n\d+\. ", tasks)
    exercises = [Exercise(i, text.strip()) for i, text in enumerate(asked) if i > 0]
    setup: list[str] = []
    current: Exercise | None = None
    for cell in solved["cells"][1:]:
        text = _source(cell)
        if cell["cell_type"] == "code":
            if current is None:
                setup.append(text)
            elif cell["id"].startswith("check-"):
                current.check = text
            else:
                current.code.append(text)
            continue
        before, *sections = re.split(r"^## (?=\d+\. )", text, flags=re.M)
        if current is not None and before.strip():
            current.prose.append(before.strip())
        for section in sections:
            number, _, rest = section.partition(". ")
            current = exercises[int(number) - 1]
            if prose := rest.partition("\n")[2].strip():
                current.prose.append(prose)
    return "\n\n\n".join(setup), exercises


# ---- checks --------------------------------------------------------------------------------------


def definition(line: str) -> Definition:
    """Read a line of an entry: "name (5,): meaning", "function(arguments): ..." or "name: ..."."""
    found = re.fullmatch(r"(\w+)( ?)(\([^)]*\))?[:：] *(.+)", line)
    if found is None:
        raise ValueError(f"line is {line!r}, expected a name, its shape or arguments, and a text")
    name, space, brackets, _ = found.groups()
    function = bool(brackets) and not space
    return Definition(name, "" if function else brackets or "", function, line)


def check_of(code: str, entry: list[str], number: int, lang: str) -> str:
    """Return the code of a check: first that every name is there, then the assertions.

    `entry` has a line for each name and then, behind "! ", the message of each assertion.
    """

    def message(text: str) -> str:
        literal = json.dumps(
            said(HANDOUT, "failed", lang, number=number, message=text), ensure_ascii=False
        )
        return f"f{literal}" if "{" in text else literal

    first = []
    for each in definitions(entry):
        name = each.name
        missing = message(said(HANDOUT, "missing", lang, name=name))
        first.append(f'assert "{name}" in globals(), {missing}')
        if each.function:
            wrong = message(said(HANDOUT, "function", lang, name=name))
            first.append(f"assert callable({name}), {wrong}")
        elif each.shape:
            wrong = message(said(HANDOUT, "shape", lang, name=name, shape=each.shape))
            first.append(f"assert np.shape({name}) == {each.shape}, {wrong}")
    lines = code.split("\n")
    assertions = [node for node in ast.parse(code).body if isinstance(node, ast.Assert)]
    texts = [line.removeprefix("! ") for line in entry if line.startswith("! ")]
    for node, text in reversed(list(zip(assertions, texts, strict=True))):
        condition = ast.get_source_segment(code, node.test)
        stated = f"assert {condition}, (\n    {message(text)}\n)"
        lines[node.lineno - 1 : node.end_lineno] = stated.split("\n")
    return "\n".join([*first, "", *lines])


def definitions(entry: list[str]) -> list[Definition]:
    """Return the names that an entry defines, in its order."""
    return [definition(line) for line in entry if line and not line.startswith("! ")]


# ---- cells ---------------------------------------------------------------------------------------


def _asked(exercise: Exercise, entry: list[str], lang: str, solutions: bool) -> Iterator[Cell]:
    """Generate the task, the answer cell, its check, and a cell for words; all may be missing
    but the task.
    """
    number = exercise.number
    task = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"\n {1,3}", "\n", exercise.task))
    title = said(HANDOUT, "exercise", lang, number=number)
    yield _cell("markdown", f"task-{number}", f"## {title}\n\n{task}")
    if exercise.code:
        solution = "\n\n\n".join(exercise.code)
        text = f"### BEGIN SOLUTION\n{solution}\n### END SOLUTION"
        if not solutions:
            text = f"{said(HANDOUT, 'code', lang)}\nraise NotImplementedError"
        yield _cell("code", f"answer-{number}", _lead(entry, lang) + text, solution=True)
    if exercise.check:
        check = check_of(exercise.check, entry, number, lang)
        yield _cell("code", f"check-{number}", check, points=1)
    prose = "\n\n".join(exercise.prose)
    text = f"### BEGIN SOLUTION\n{prose}\n### END SOLUTION" if solutions and prose else ""
    if prose:
        text = text or said(HANDOUT, "words", lang)
        yield _cell("markdown", f"words-{number}", text, solution=True, points=0)


def _lead(entry: list[str], lang: str) -> str:
    """Return the comment that lists the names to define; "" without a check."""
    lines = []
    for each in definitions(entry):
        first, *rest = wrap(each.line, WIDTH)
        lines += [f"#   {first}", *(f"#       {line}" for line in rest)]
    return "\n".join([said(HANDOUT, "define", lang), *lines]) + "\n" if lines else ""


def _cell(
    kind: str, name: str, source: str, *, points: int | None = None, solution: bool = False
) -> Cell:
    """A cell with nbgrader's metadata, version 3, which is graded if it has points, be they 0."""
    of_grader: dict[str, Any] = {
        "grade": points is not None,
        "grade_id": name,
        "locked": not solution,
        "schema_version": 3,
        "solution": solution,
        "task": False,
        "cell_type": kind,
    }
    if points is not None:
        of_grader["points"] = points
    cell: Cell = {"cell_type": kind, "id": name, "metadata": {"nbgrader": of_grader}}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return {**cell, "source": source.splitlines(keepends=True)}
