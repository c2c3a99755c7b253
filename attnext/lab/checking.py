"""The check: case after case, until one fails."""

from __future__ import annotations

import numbers
import re

from attnext._hints import nearest
from attnext.explain.words import check_lang
from attnext.lab.cases import Case
from attnext.lab.compare import same
from attnext.lab.explained import sentences
from attnext.lab.student import Function, Outcome, Student
from attnext.lab.surroundings import kept
from attnext.lab.tasks import TASKS, Judged, Task
from attnext.lab.timing import beside_attnext
from attnext.lab.verdict import Report, Wrong
from attnext.lab.words import CASES, PHRASES, printable, said
from attnext.reference.arguments import shown

NAMES = tuple(TASKS)


def check(
    function: Function | str,
    name: str | Function | None = None,
    *,
    lang: str = "en",
    seconds: float = 10.0,
) -> Report:
    """Compare your function with attnext's reference on growing cases, until one fails.

    Parameters
    ----------
    function : callable
        A function of NumPy arrays or of PyTorch tensors; `check` finds out which. It returns
        arrays, tensors or lists. ``check("masked_softmax", f)`` works, too. A torch.nn.Module is
        checked in eval mode.
    name : str, optional
        A name from `NAMES`; by default the name of the function, without ``my_`` in front.
    lang : {'en', 'zh'}, optional
        Language of the verdict: English or Chinese.
    seconds : float, optional
        Time limit for one call of your function; ``math.inf`` means no limit.

    Returns
    -------
    report : Report
        Returned if your function is right: the cases, the tolerance, and the time it takes
        compared with attnext's function.

    Raises
    ------
    Wrong
        If your function is wrong. Wrong is an AssertionError. Its text shows the case, the
        expected and the returned numbers, and the known mistake that gives these numbers, if any.
    TypeError
        If `function` cannot be called, or `seconds` is not a number.
    ValueError
        If `name` is not in `NAMES`, `lang` is unknown, or `seconds` is not above 0.

    See Also
    --------
    attnext.explain : The same functions, step by step.
    attnext.testing.assert_gradients_close : Compares gradients of any function.

    Notes
    -----
    The expected numbers come from `attnext.reference`, in float64. The tolerance is 64 float32
    rounding errors of the largest number in the answer, plus 64 times the change of the answer when
    each input is rounded once (the largest change of eight random roundings). Masked positions of
    the inputs may contain any number, even NaN. For a row of length 0, the mean of all values (as
    in d2l) and 0 (as in PyTorch) are both right. Your function gets float32 tensors or float64
    arrays; arrays of integers are tried as well.

    An exception, a call of `exit`, and a call that takes longer than `seconds` end in a verdict,
    too. Only KeyboardInterrupt is passed on. `check` stops a call between two steps of Python code.
    It cannot stop a single call of C code, such as ``time.sleep`` or one very large product, nor a
    loop that catches every exception with a bare ``except:``. `check` calls your function twice
    for each case, and both calls must return the same numbers.

    Your function may write into its inputs, as d2l's masked_softmax does; the report mentions it.
    After the check, `check` restores the random generators, error states and printing options of
    NumPy and PyTorch, and the modes of the modules that your function uses.

    Examples
    --------
    >>> import numpy as np
    >>> from attnext import lab
    >>> def masked_softmax(X, valid_lens):
    ...     if valid_lens is not None:
    ...         lens = np.tile(valid_lens, X.shape[1] if valid_lens.ndim == 1 else 1)
    ...         mask = np.arange(X.shape[-1]) < lens.reshape(*X.shape[:2], 1)
    ...         X = np.where(mask, X, -1e6)
    ...     E = np.exp(X - X.max(-1, keepdims=True))
    ...     return E / E.sum(-1, keepdims=True)
    >>> try:
    ...     lab.check(masked_softmax)
    ... except lab.Wrong as wrong:
    ...     print(wrong.misconception, wrong.case["valid_lens"])
    ...     print(wrong.sentences[0][:44])
    lengths-tiled [2 3]
    You repeat the lengths in the wrong order: [
    """
    check_lang(lang)
    if callable(name):
        function, name = name, function
    if not callable(function):
        raise TypeError(f"function is of type {type(function).__name__}, expected a callable")
    task = _task(function, name, lang)
    seconds = _seconds(seconds)
    with kept(function):
        return _check(Student(function, task, seconds), lang)


def _check(student: Student, lang: str) -> Report:
    """Return the report of a function that is right; raise Wrong at the first case that is not."""
    task = student.task
    cases = [case for case in task.cases if student.takes(case)]
    changed: dict[str, None] = {}
    for number, case in enumerate(cases, 1):
        outcome = student.run(case)
        if not _is_right(outcome, task.judged[case.key]):
            counts = {"name": task.name, "number": number, "count": len(cases)}
            headline = said(PHRASES, "wrong", lang, **counts, case=CASES[case.key][lang])
            wrong = _verdict(student, case, outcome, headline, lang)
            wrong.show()
            raise wrong from (outcome.fault.error if outcome.fault else None)
        changed |= dict.fromkeys(outcome.changed)
    names = (", " if lang == "en" else "、").join(changed)
    tolerances = [t for case in cases for t in task.judged[case.key].tolerance]
    return Report(
        task.name,
        tuple(CASES[case.key][lang] for case in cases),
        tuple(CASES[c.key][lang] for c in task.cases if not student.takes(c)),
        (min(tolerances), max(tolerances)),
        beside_attnext(student),
        lang,
        (said(PHRASES, "changed", lang, names=names),) if changed else (),
    )


def _task(function: Function, name: object, lang: str) -> Task:
    """Return the task of this name, or of the function's own name."""
    if name is None:
        name = str(getattr(function, "__name__", type(function).__name__)).removeprefix("my_")
    if isinstance(name, str) and name in TASKS:
        return TASKS[name]
    given = printable(shown(name), 80)
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name[:80]).lower() if isinstance(name, str) else ""
    near = nearest(snake, NAMES)
    if near:
        raise ValueError(said(PHRASES, "name-near", lang, given=given, near=near))
    raise ValueError(said(PHRASES, "name-unknown", lang, given=given, names=", ".join(NAMES)))


def _seconds(seconds: object) -> float:
    """Return the time limit of a call, which must be above 0."""
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real):
        raise TypeError(f"seconds is of type {type(seconds).__name__}, expected a float")
    if not float(seconds) > 0:
        raise ValueError(f"seconds is {shown(seconds)}, expected a number above 0")
    return float(seconds)


def _is_right(outcome: Outcome, judged: Judged) -> bool:
    return (
        outcome.fault is None
        and outcome.answer is not None
        and any(same(outcome.answer, answer, judged.tolerance) for answer in judged.answers)
    )


def _verdict(student: Student, case: Case, outcome: Outcome, headline: str, lang: str) -> Wrong:
    """Return the error of a case that failed."""
    task = student.task
    return Wrong(
        name=task.name,
        case=case.arguments,
        expected=task.judged[case.key].answers[0],
        got=outcome.answer,
        headline=headline,
        returns=task.returns,
        lang=lang,
        **sentences(student, case, outcome, lang)._asdict(),
    )
