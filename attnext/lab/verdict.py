"""What a check ends with: a report, or an error that says what is wrong."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields
from typing import Any

from attnext.lab import html, text
from attnext.lab.tasks import Answer
from attnext.lab.words import PHRASES, said


@dataclass(frozen=True, repr=False)
class Report:
    """A function that is right: what was tried, and how long it takes beside attnext's.

    Printed it is text; in a notebook it shows itself as HTML.

    Parameters
    ----------
    name : str
        What was checked.
    cases : tuple of str
        What it was tried on, in the words of the language.
    left_out : tuple of str
        What could not be asked of it.
    tolerance : tuple of two floats
        How far a number was allowed to be off: in the strictest case, and in the loosest.
    timing : tuple of (str, float, float), or None
        The shapes, and the seconds of the function and of attnext's; None where attnext has no
        such function, or the machine was too busy to tell.
    lang : {'en', 'zh'}
        The language of the words.

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

    def _lines(self) -> list[str]:
        """The sentences, first the headline."""
        comma = "、" if self.lang == "zh" else ", "
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
        return lines

    def __repr__(self) -> str:
        return text.report_text(self._lines(), _coloured(sys.stdout))

    def _repr_html_(self) -> str:
        return html.report_html(self._lines())


@dataclass(eq=False)
class Wrong(AssertionError):
    """A function that is not right: on which case, what came, and what the mistake is.

    Printed it is text; in a notebook it shows itself as HTML.

    Parameters
    ----------
    name : str
        What was checked.
    case : dict
        The arguments, by name: the smallest case that failed.
    expected : tuple of ndarray
        What should have come back: one array, or several.
    got : tuple of ndarray, or None
        What came back; None if that cannot be said in numbers.
    misconception : str or None
        The name in `MISCONCEPTIONS` of what gives the same; None if none does.
    headline, sentences : str and tuple of str
        What is said.
    part : int
        Which of the arrays is wrong first.
    off : ndarray of bool or None
        Where.
    returns : tuple of str
        What the arrays are called.
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
        """What IPython shows in the place of a traceback, most of which would be ours."""
        return (f"{type(self).__name__}: " + text.wrong_text(self, colour=True)).split("\n")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, f.name) for f in fields(self))


def _coloured(stream: Any) -> bool:
    return "NO_COLOR" not in os.environ and bool(getattr(stream, "isatty", lambda: False)())
