"""The two ends of a check: a report, or an error that says what is wrong."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields
from typing import Any

from attnext.lab import html, text
from attnext.lab.compare import Answer
from attnext.lab.words import PHRASES, said


@dataclass(frozen=True, repr=False)
class Report:
    """A function that is right: the cases, and how long it takes compared with attnext's.

    It prints as text, and shows as HTML in a notebook.

    Parameters
    ----------
    name : str
        The function that was checked.
    cases : tuple of str
        The names of the cases that were run, in the language of the report.
    left_out : tuple of str
        The names of the cases that were not run, because PyTorch's operators reject their inputs.
    tolerance : tuple of two floats
        The largest accepted difference: in the strictest case, and in the loosest.
    timing : tuple of (str, float, float), or None
        The shapes, and the seconds of the function and of attnext's; None if attnext has no such
        function, if the function takes too long for a large input, or if the machine is too busy.
    lang : {'en', 'zh'}
        The language of the words.
    remarks : tuple of str
        Further remarks, for instance that the function writes into its inputs.

    Examples
    --------
    >>> from attnext import lab, reference
    >>> report = lab.check(reference.masked_softmax)
    >>> report.name, report.cases[:2]
    ('masked_softmax', ('one row', 'one row and its length'))
    """

    name: str
    cases: tuple[str, ...]
    left_out: tuple[str, ...]
    tolerance: tuple[float, float]
    timing: tuple[str, float, float] | None
    lang: str
    remarks: tuple[str, ...] = ()

    def _lines(self) -> list[str]:
        """Return the headline and the sentences."""
        comma = "；" if self.lang == "zh" else "; "
        lines = [
            said(PHRASES, "right", self.lang, name=self.name, count=len(self.cases)),
            said(PHRASES, "tried", self.lang, cases=comma.join(self.cases)),
        ]
        if self.left_out:
            lines.append(said(PHRASES, "left-out", self.lang, cases=comma.join(self.left_out)))
        least, most = self.tolerance
        lines.append(said(PHRASES, "tolerances", self.lang, least=least, most=most))
        if self.timing:
            shape, yours, ours = self.timing
            numbers = {"shape": shape, "yours": f"{1e3 * yours:.3g}", "ours": f"{1e3 * ours:.3g}"}
            ratio = f"{yours / ours:.1f}" if yours < 10 * ours else f"{yours / ours:.0f}"
            lines.append(said(PHRASES, "timing", self.lang, **numbers, ratio=ratio))
        return [*lines, *self.remarks]

    def __repr__(self) -> str:
        return text.report_text(self._lines(), _coloured(sys.stdout))

    def _repr_html_(self) -> str:
        return html.report_html(self._lines())


@dataclass(eq=False)
class Wrong(AssertionError):
    """A function that is wrong: the case, the numbers, and the misconception.

    It prints as text, and shows as HTML in a notebook.

    Parameters
    ----------
    name : str
        The function that was checked.
    case : dict
        The arguments, by name: the smallest case that failed.
    expected : tuple of ndarray
        The right arrays, one or several.
    got : tuple of ndarray, or None
        The arrays that the function returned; None if it returned no arrays.
    misconception : str or None
        The name in `MISCONCEPTIONS` of the mistake that gives the same numbers, or None.
    headline, sentences : str and tuple of str
        The words of the verdict.
    part : int
        The index of the first array that is wrong.
    off : ndarray of bool or None
        Where that array is wrong; None if there are no numbers to compare.
    returns : tuple of str
        The names of the arrays.
    lang : {'en', 'zh'}
        The language of the words.

    Examples
    --------
    >>> import numpy as np
    >>> from attnext import lab
    >>> def dot_product_scores(queries, keys):
    ...     return queries @ keys.swapaxes(-1, -2)
    >>> try:
    ...     lab.check(dot_product_scores)
    ... except lab.Wrong as wrong:
    ...     print(wrong.misconception)
    no-scale
    """

    name: str
    case: dict[str, Any]
    expected: Answer
    got: Answer | None
    misconception: str | None
    headline: str
    sentences: tuple[str, ...]
    part: int
    off: Any
    returns: tuple[str, ...]
    lang: str

    def __post_init__(self) -> None:
        self.args = (text.wrong_text(self, colour=False),)

    def __str__(self) -> str:
        return text.wrong_text(self, _coloured(sys.stderr))

    def _repr_html_(self) -> str:
        return html.wrong_html(self)

    def show(self) -> None:
        """Show it as HTML, if this is a notebook."""
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        if hasattr(shell, "kernel"):
            sys.modules["IPython.display"].display(self)

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows instead of a traceback, most of which would be attnext's."""
        return (f"{type(self).__name__}: " + text.wrong_text(self, colour=True)).split("\n")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, f.name) for f in fields(self))


def _coloured(stream: Any) -> bool:
    return "NO_COLOR" not in os.environ and bool(getattr(stream, "isatty", lambda: False)())
