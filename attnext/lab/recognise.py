"""Which misconception gives what a student's function gives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnext.lab.book import Array
from attnext.lab.cases import Case
from attnext.lab.misconceptions import Misconception
from attnext.lab.student import Student
from attnext.lab.tasks import Answer, Task, as_answer
from attnext.lab.wrong_gradients import GRADIENTS
from attnext.lab.wrong_layouts import EXAMPLES, HEADS, POSITIONS
from attnext.lab.wrong_scores import ADDITIVE, DOT, KERNEL, POOLING
from attnext.lab.wrong_softmax import LENGTHS, SOFTMAX

# What is special comes first: of two that give the same it is named.
_TABLES = (LENGTHS, DOT, ADDITIVE, KERNEL, POOLING, SOFTMAX, GRADIENTS, HEADS, POSITIONS, EXAMPLES)


class Misconceptions(dict[str, Misconception]):
    """All that are known, by name."""


MISCONCEPTIONS = Misconceptions({m.name: m for table in _TABLES for m in table})
ENOUGH = 0.25  # of the cases, that a misconception has to explain; one may be an accident


def same(got: Answer, wanted: Answer, tolerance: list[float]) -> bool:
    """The same shapes, NaN and infinities in the same places, and numbers within the tolerance."""
    return len(got) == len(wanted) and all(
        a.shape == b.shape and not np.any(differs(a, b, t))
        for a, b, t in zip(got, wanted, tolerance, strict=True)
    )


def differs(got: Array, wanted: Array, tolerance: float) -> NDArray[np.bool_]:
    """Where two arrays of one shape do."""
    with np.errstate(all="ignore"):
        near = np.abs(got - wanted) <= tolerance
    apart: NDArray[np.bool_] = ~(near | (got == wanted) | (np.isnan(got) & np.isnan(wanted)))
    return apart


def recognise(student: Student, failed: Case) -> Misconception | None:
    """The misconception that explains the case that failed, and enough of the others.

    Of several the one that explains most; of those the first in the table.
    """
    task = student.task
    outcomes = {case.key: student.run(case).answer for case in task.cases if student.takes(case)}
    found, most = None, 0.0
    for misconception in MISCONCEPTIONS.values():
        for book in misconception.books:
            explained = []
            for case in sorted(task.cases, key=lambda case: case.key != failed.key):
                if case.key not in outcomes:
                    continue
                theirs, wrong = outcomes[case.key], _answer(task, book, case)
                if theirs is None or wrong is None:  # it raises: this does too, or does not
                    explained.append(theirs is None and wrong is None)
                else:
                    explained.append(same(theirs, wrong, task.judged[case.key].tolerance))
                if not explained[0]:
                    break
            if explained[0] and np.mean(explained) > max(most, ENOUGH):
                found, most = misconception, float(np.mean(explained))
    return found


def _answer(task: Task, book: object, case: Case) -> Answer | None:
    """What the chapter with a mistake in it gives; None if it cannot."""
    arguments = [x.copy() if isinstance(x, np.ndarray) else x for x in case.arguments.values()]
    try:
        with np.errstate(all="ignore"):
            return as_answer(getattr(book, task.name)(*arguments))
    except Exception:
        return None
