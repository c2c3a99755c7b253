"""The check itself: case after case, until one fails."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnext.explain.words import check_lang
from attnext.lab.cases import Case
from attnext.lab.recognise import MISCONCEPTIONS, differs, recognise, same
from attnext.lab.student import Fault, Function, Outcome, Student
from attnext.lab.tasks import TASKS, Answer, Judged, Task
from attnext.lab.timing import beside_attnext
from attnext.lab.verdict import Report, Wrong
from attnext.lab.words import CASES, FAULTS, PHRASES, said
from attnext.reference.arguments import shown

NAMES = tuple(TASKS)


def check(
    function: Function | str, name: str | Function | None = None, *, lang: str = "en"
) -> Report:
    """Hold a function of your own against the book's, on growing cases, until one fails.

    Parameters
    ----------
    function : callable
        It takes NumPy arrays or PyTorch tensors, which is found out, and returns arrays, tensors
        or lists. ``check("masked_softmax", f)`` is understood too.
    name : str, optional
        Which of `NAMES` it is; by default what the function itself is called, with or without
        ``my_`` in front.
    lang : {'en', 'zh'}, optional
        Language of what is said: English or Chinese.

    Returns
    -------
    report : Report
        The function is right: what was tried, and how long it takes beside attnext's.

    Raises
    ------
    Wrong
        The function is not right. An AssertionError, whose text says on which case, what should
        have come and what came, and by name the misconception that gives the same, if one does.
    TypeError
        `function` cannot be called.
    ValueError
        There is no function of that name to check, or `lang` is unknown.

    See Also
    --------
    attnext.explain : The same functions, step by step.
    attnext.testing.assert_gradients_close : Compares gradients of any function.

    Notes
    -----
    What is expected comes from `attnext.reference`, in float64. A number may be off by 64 times
    what moving each input by one float32 rounding changes in the right answer (the most of eight
    random moves), plus 64 roundings of the largest number in it. Padding may hold anything, and
    a row without a key may be the mean of all, as in the book, or 0, as in PyTorch. Tensors are
    float32, arrays float64; integers for data are asked of arrays alone.

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
    The lengths are repeated in the wrong order:
    """
    check_lang(lang)
    if callable(name):
        function, name = name, function
    if not callable(function):
        raise TypeError(f"function is of type {type(function).__name__}, expected a callable")
    task = _task(function, name)
    student = Student(function, task)
    asked = [case for case in task.cases if student.takes(case)]
    for number, case in enumerate(asked, 1):
        outcome = student.run(case)
        if not _is_right(outcome, task.judged[case.key]):
            numbers = {"name": task.name, "number": number, "count": len(asked)}
            called = CASES[case.key][lang]
            headline = said(PHRASES, "wrong", lang, **numbers, case=called)
            wrong = _verdict(student, case, outcome, headline, lang)
            wrong.show()
            raise wrong from (outcome.fault.error if outcome.fault else None)
    tolerances = [t for case in asked for t in task.judged[case.key].tolerance]
    return Report(
        task.name,
        tuple(CASES[case.key][lang] for case in asked),
        tuple(CASES[c.key][lang] for c in task.cases if not student.takes(c)),
        (min(tolerances), max(tolerances)),
        beside_attnext(student),
        lang,
    )


def _task(function: Function, name: object) -> Task:
    """What is to be checked, by its name or the function's own."""
    if name is None:
        name = str(getattr(function, "__name__", type(function).__name__)).removeprefix("my_")
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"name is {shown(name)}, expected one of: {', '.join(NAMES)}")
    return TASKS[name]


def _is_right(outcome: Outcome, judged: Judged) -> bool:
    return outcome.fault is None and _has_an_answer(outcome, judged)


def _has_an_answer(outcome: Outcome, judged: Judged) -> bool:
    """Whether the numbers are right, whatever was done to the inputs."""
    return outcome.answer is not None and any(
        same(outcome.answer, answer, judged.tolerance) for answer in judged.answers
    )


def _verdict(student: Student, case: Case, outcome: Outcome, headline: str, lang: str) -> Wrong:
    """What is to be said of a case that failed."""
    task = student.task
    judged = task.judged[case.key]
    expected, got = judged.answers[0], outcome.answer
    about: dict[str, Any] = {
        "name": task.name,
        "case": case.arguments,
        "expected": expected,
        "got": got,
    }
    about |= {"headline": headline, "returns": task.returns, "lang": lang}
    if got is None or _has_an_answer(outcome, judged):
        assert outcome.fault is not None
        sentences = _fault(outcome.fault, lang)
        return Wrong(**about, misconception=None, sentences=sentences, part=0, off=None)
    misconception = recognise(student, case)
    if misconception is None:
        named = said(PHRASES, "unrecognised", lang, count=len(MISCONCEPTIONS))
    else:
        named = misconception.zh if lang == "zh" else misconception.en
    part, off, sentence = _difference(task, judged, got, lang)
    sentences = (sentence, named) if misconception is None else (named, sentence)
    return Wrong(
        **about,
        misconception=misconception.name if misconception else None,
        sentences=sentences,
        part=part,
        off=off,
    )


def _fault(fault: Fault, lang: str) -> tuple[str, ...]:
    sentences = [said(FAULTS, fault.key, lang, **fault.numbers)]
    if fault.numbers.get("line"):
        sentences.append(said(FAULTS, "at", lang, **fault.numbers))
    return tuple(sentences)


def _difference(
    task: Task, judged: Judged, got: Answer, lang: str
) -> tuple[int, NDArray[np.bool_] | None, str]:
    """The first array that is wrong, where, and a sentence about it."""
    for part, (name, a, b, tolerance) in enumerate(
        zip(task.returns, got, judged.answers[0], judged.tolerance, strict=True)
    ):
        if a.shape != b.shape:
            return part, None, said(FAULTS, "shape", lang, name=name, got=a.shape, wanted=b.shape)
        off = differs(a, b, tolerance)
        if off.any():
            with np.errstate(all="ignore"):
                furthest = float(np.max(np.abs(a - b)[off]))
            key = "values" if np.isfinite(furthest) else "nan"
            numbers = {"count": int(off.sum()), "size": off.size, "off": furthest}
            sentence = said(FAULTS, key, lang, name=name, **numbers)
            if key == "values" and furthest < 100 * tolerance:  # near enough to wonder
                sentence += " " + said(PHRASES, "tolerance", lang, tolerance=tolerance)
            return part, off, sentence
    raise AssertionError("the numbers are right")
