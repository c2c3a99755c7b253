"""A notebook's exercises as an assignment, made from the notebook and its solutions.

What a solution asserts at its end becomes the check beside the cell to fill in; everything else of
it is the solution, which stands between the marks that nbgrader takes out, or is left out here.
Notebooks are handled as the JSON that they are, so that nothing need be installed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from attnext.lab.words import HANDOUT, said

Notebook: TypeAlias = dict[str, Any]
Cell: TypeAlias = dict[str, Any]

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


@dataclass
class Exercise:
    """One exercise: what is asked, and the parts of its solution."""

    number: int
    task: str
    prose: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)

    @property
    def whole(self) -> str:
        """All code of the solution."""
        return "\n\n\n".join(self.code)


@dataclass(frozen=True)
class Split:
    """A solution's code, and what of it is a check."""

    solution: str
    check: str
    binds: frozenset[str]  # names that it leaves behind
    reads: frozenset[str]  # those that the check needs


def assignment(chapter: Notebook, solved: Notebook, lang: str, solutions: bool) -> Notebook:
    """The assignment of a notebook; with the solutions between nbgrader's marks if asked for."""
    setup, exercises = _exercises(chapter, solved)
    title = re.sub(r"^# ", "", _source(chapter["cells"][0]).split("\n")[0])
    head = said(HANDOUT, "head", lang, title=title)
    cells = [_cell("markdown", "head", head), _cell("code", "setup", setup)]
    splits = [split(exercise.whole) for exercise in exercises]
    for i, (exercise, parts) in enumerate(zip(exercises, splits, strict=True)):
        wanted = _wanted(splits, i)
        cells += _asked(exercise, parts, sorted(wanted), lang, solutions)
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
            (setup if current is None else current.code).append(text)
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


# ---- from a solution to a check ------------------------------------------------------------------


def split(code: str) -> Split:
    """What a solution asserts of names that are not changed any more is its check."""
    lines = code.split("\n")
    body = ast.parse("\n".join("pass" if x.startswith("%") else x for x in lines)).body
    checks: list[ast.stmt] = []
    for i, statement in enumerate(body):
        changed = {name for later in body[i + 1 :] for name in _bound(later)}
        if _is_assertion(statement) and not changed & _read(statement):
            checks.append(statement)
    taken = {n for check in checks for n in range(check.lineno - 1, check.end_lineno or 0)}
    kept = "\n".join(line for n, line in enumerate(lines) if n not in taken).strip("\n")
    shown = "\n".join(line for n, line in enumerate(lines) if n in taken)
    binds = frozenset(name for statement in body for name in _bound(statement))
    return Split(kept, shown, binds, frozenset(n for check in checks for n in _read(check)))


def _is_assertion(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func).split(".")[-1].startswith("assert")
    return isinstance(statement, ast.Assert)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement gives a value, or a part of one; not those inside of functions."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in _outside_of_scopes(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            owner: ast.expr = node
            while isinstance(owner, ast.Subscript | ast.Attribute):
                owner = owner.value
            if isinstance(owner, ast.Name):
                yield owner.id


def _outside_of_scopes(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is in it, without what has names of its own."""
    yield node
    own = (ast.FunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, own):
            yield from _outside_of_scopes(child)


def _read(statement: ast.stmt) -> set[str]:
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return {n.id for n in names if isinstance(n.ctx, ast.Load)}


def _wanted(splits: list[Split], i: int) -> set[str]:
    """What an exercise has to leave behind: for its own check, and for those of later ones."""
    wanted = splits[i].reads & splits[i].binds
    for j, later in enumerate(splits[i + 1 :], i + 1):
        rebound = {name for between in splits[i + 1 : j + 1] for name in between.binds}
        wanted |= (later.reads & splits[i].binds) - rebound
    return set(wanted)


# ---- cells ---------------------------------------------------------------------------------------


def _asked(
    exercise: Exercise, parts: Split, wanted: list[str], lang: str, solutions: bool
) -> Iterator[Cell]:
    """The task, a cell to fill in, its check, and one for words, of which each may be missing."""
    number = exercise.number
    task = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"\n {1,3}", "\n", exercise.task))
    title = said(HANDOUT, "exercise", lang, number=number)
    yield _cell("markdown", f"task-{number}", f"## {title}\n\n{task}")
    if parts.solution:
        text = f"### BEGIN SOLUTION\n{parts.solution}\n### END SOLUTION"
        if not solutions:
            text = f"{said(HANDOUT, 'code', lang)}\nraise NotImplementedError"
        names = ", ".join(wanted)
        lead = said(HANDOUT, "leaves", lang, names=names) + "\n" if names else ""
        yield _cell("code", f"answer-{number}", lead + text, solution=True)
    own = sorted(parts.reads & parts.binds)
    if parts.check and own:
        missing = said(HANDOUT, "missing", lang, number=number)
        listed = ", ".join(f'"{name}"' for name in own)
        guard = f'for name in [{listed}]:\n    assert name in globals(), f"{missing}"\n'
        yield _cell("code", f"check-{number}", guard + parts.check, points=1)
    prose = "\n\n".join(exercise.prose)
    text = f"### BEGIN SOLUTION\n{prose}\n### END SOLUTION" if solutions and prose else ""
    if prose:
        text = text or said(HANDOUT, "words", lang)
        yield _cell("markdown", f"words-{number}", text, solution=True, points=0)


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
