"""Say what is wrong with a case that failed: the sentences of a verdict."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnext.lab.cases import Case
from attnext.lab.compare import Answer, differs
from attnext.lab.misconceptions import words_for
from attnext.lab.recognise import MISCONCEPTIONS, recognise
from attnext.lab.returned import Fault
from attnext.lab.student import Outcome, Student
from attnext.lab.tasks import Judged, Task
from attnext.lab.words import FAULTS, PHRASES, printable, said

# Relative rounding errors of the dtypes that are less precise than float32.
_COARSE = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


class Sentences(NamedTuple):
    """What a verdict says, and where the numbers are wrong."""

    sentences: tuple[str, ...]
    misconception: str | None = None
    part: int = 0  # which of the arrays
    off: NDArray[np.bool_] | None = None  # where in it; None without numbers to compare


def sentences(student: Student, case: Case, outcome: Outcome, lang: str) -> Sentences:
    """Return the sentences about a case that failed."""
    task = student.task
    judged = task.judged[case.key]
    misnamed = student.misnamed()
    order = _fault("order", lang, parameters=task.parameters, own=misnamed) if misnamed else ()
    if outcome.fault is not None:
        fault = _of_fault(outcome.fault, lang)
        return Sentences(fault + order if outcome.fault.key == "raised" else fault)
    assert outcome.answer is not None
    part, off, sentence = _difference(task, judged, outcome.answer, lang)
    if order:
        return Sentences((*order, sentence), None, part, off)
    coarse = _coarse(outcome, judged)
    if coarse is not None:
        name, dtype = task.returns[coarse], outcome.dtypes[coarse]
        return Sentences(
            (*_fault("precision", lang, name=name, dtype=dtype), sentence), None, part, off
        )
    misconception = recognise(student, case)
    if misconception is not None:
        named = words_for(misconception, task.name, lang)
        return Sentences((named, sentence), misconception.name, part, off)
    if off is None:  # a wrong shape has no numbers to compare
        return Sentences((sentence,), None, part)
    unrecognised = said(PHRASES, "unrecognised", lang, count=len(MISCONCEPTIONS))
    return Sentences((sentence, unrecognised), None, part, off)


def _of_fault(fault: Fault, lang: str) -> tuple[str, ...]:
    """Return the sentences of a fault, and the line that it is in."""
    line = fault.numbers.get("line")
    return _fault(fault.key, lang, **fault.numbers) + (
        _fault("at", lang, line=line) if line else ()
    )


def _fault(key: str, lang: str, **numbers: Any) -> tuple[str, ...]:
    """Return a sentence about a fault. What it quotes of the student's is made printable."""
    quoted = {n: printable(x) if isinstance(x, str) else x for n, x in numbers.items()}
    return (said(FAULTS, key, lang, **quoted),)


def _coarse(outcome: Outcome, judged: Judged) -> int | None:
    """Return the first array that is wrong only because its dtype rounds too much."""
    assert outcome.answer is not None
    for part, (got, expected, tolerance) in enumerate(
        zip(outcome.answer, judged.answers[0], judged.tolerance, strict=True)
    ):
        if got.shape != expected.shape:
            return None
        if differs(got, expected, tolerance).any():
            rounding = 8 * _COARSE.get(outcome.dtypes[part], 0)
            largest = float(np.max(np.abs(expected), initial=0, where=np.isfinite(expected)))
            near = not differs(got, expected, tolerance + rounding * largest).any()
            return part if near else None
    return None


def _difference(
    task: Task, judged: Judged, got: Answer, lang: str
) -> tuple[int, NDArray[np.bool_] | None, str]:
    """Return the first array that is wrong, where it is wrong, and a sentence about it."""
    for part, (name, a, b, tolerance) in enumerate(
        zip(task.returns, got, judged.answers[0], judged.tolerance, strict=True)
    ):
        if a.shape != b.shape:
            return part, None, _shape(name, a.shape, b.shape, lang)
        off = differs(a, b, tolerance)
        if not off.any():
            continue
        bad = int((off & ~np.isfinite(a)).sum())
        numbers = {"name": name, "count": int(off.sum()), "size": off.size, "bad": bad}
        if bad:
            return part, off, said(FAULTS, "nan", lang, **numbers)
        furthest = float(np.max(np.abs(a - b)[off]))
        sentence = said(FAULTS, "values", lang, **numbers, off=furthest)
        if furthest < 100 * tolerance:  # near enough to wonder
            allowed = said(PHRASES, "tolerance", lang, tolerance=tolerance)
            sentence = _joined(sentence, allowed, lang)
        return part, off, sentence
    raise AssertionError("the numbers are right")


def _shape(name: str, got: tuple[int, ...], expected: tuple[int, ...], lang: str) -> str:
    """Return a sentence about a wrong shape, with the axis that is wrong if it is one."""
    sentence = said(FAULTS, "shape", lang, name=name, got=got, expected=expected)
    key, numbers = "", {}
    if len(got) + 1 == len(expected):
        key, axes = "axis-missing", _without_one(expected, got)
        numbers = {"axis": axes[0], "size": expected[axes[0]]} if len(axes) == 1 else {}
    elif len(got) == len(expected) + 1:
        key, axes = "axis-too-many", _without_one(got, expected)
        numbers = {"axis": axes[0], "size": got[axes[0]]} if len(axes) == 1 else {}
    elif len(got) == len(expected):
        axes = [i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b]
        if len(axes) > 1 and sorted(got) == sorted(expected):
            return _joined(sentence, said(FAULTS, "axes-swapped", lang), lang)
        if len(axes) == 1:
            key = "axis-size"
            numbers = {"axis": axes[0], "got": got[axes[0]], "expected": expected[axes[0]]}
    return _joined(sentence, said(FAULTS, key, lang, **numbers), lang) if numbers else sentence


def _without_one(longer: tuple[int, ...], shorter: tuple[int, ...]) -> list[int]:
    """Return the axes of the longer shape without which it is the shorter one."""
    return [i for i in range(len(longer)) if longer[:i] + longer[i + 1 :] == shorter]


def _joined(first: str, second: str, lang: str) -> str:
    return first + (" " if lang == "en" else "") + second
