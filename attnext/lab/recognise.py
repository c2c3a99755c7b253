"""Find the misconception that gives what a student's function gives."""

from __future__ import annotations

import numpy as np

from attnext.lab.cases import Case
from attnext.lab.compare import ROUNDING, ROUNDINGS, Answer, same
from attnext.lab.misconceptions import Misconception
from attnext.lab.student import Student
from attnext.lab.tasks import Task, as_answer
from attnext.lab.wrong_gradients import GRADIENTS
from attnext.lab.wrong_layouts import EXAMPLES, HEADS, POSITIONS
from attnext.lab.wrong_scores import ADDITIVE, DOT, KERNEL, POOLING
from attnext.lab.wrong_softmax import LENGTHS, SOFTMAX

# Of two misconceptions that give the same numbers, the first in this order is named.
_TABLES = (LENGTHS, GRADIENTS, DOT, ADDITIVE, KERNEL, POOLING, SOFTMAX, HEADS, POSITIONS, EXAMPLES)


class Misconceptions(dict[str, Misconception]):
    """All misconceptions that are known, by name."""


MISCONCEPTIONS = Misconceptions({m.name: m for table in _TABLES for m in table})
ENOUGH = 0.25  # a misconception explains more than this share of the cases; one may be an accident


def recognise(student: Student, failed: Case) -> Misconception | None:
    """Return the misconception that explains the case that failed, and enough of the others.

    Of several it is the one that explains most cases; of those, the first in the table.
    """
    task = student.task
    right, tolerance = task.judged[failed.key].answers[0], task.judged[failed.key].tolerance
    cases = [case for case in task.cases if student.takes(case)]
    cases.sort(key=lambda case: case.key != failed.key)
    answers = {case.key: student.run(case).answer for case in cases}
    found, most = None, ENOUGH
    for misconception in MISCONCEPTIONS.values():
        for book in misconception.books:
            explained, mistaken = 0, _answer(task, book, failed)
            if mistaken is not None and same(mistaken, right, tolerance):
                continue  # the mistake makes no difference here
            for case in cases:
                theirs, wrong = answers[case.key], _answer(task, book, case)
                explained += _same(theirs, wrong, task, case, misconception.blur)
                if not explained:  # not even the case that failed
                    break
            if explained / len(cases) > most:
                found, most = misconception, explained / len(cases)
    return found


def _same(a: Answer | None, b: Answer | None, task: Task, case: Case, blur: float) -> bool:
    """True if both raise, or both give the same numbers.

    The numbers of a wrong answer may be larger than those of the right one, so float32 rounds them
    by more: they may be off by a share of their size as well.
    """
    if a is None or b is None:
        return a is b
    tolerance = [blur * t for t in task.judged[case.key].tolerance]
    return same(a, b, tolerance, relative=ROUNDINGS * ROUNDING)


def _answer(task: Task, book: object, case: Case) -> Answer | None:
    """Return what the chapter with a mistake in it gives; None if it raises."""
    arguments = [x.copy() if isinstance(x, np.ndarray) else x for x in case.arguments.values()]
    try:
        with np.errstate(all="ignore"):
            return as_answer(getattr(book, task.name)(*arguments))
    except Exception:
        return None
