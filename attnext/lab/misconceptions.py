"""A misconception: the functions of the chapter with some steps of `Book` replaced, and its text.

To add one, add its name and its wrong step to a table. If several steps lead to the same mistake,
add all of them. The text is in texts/misconceptions.txt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from attnext.lab.book import Book
from attnext.lab.words import MISCONCEPTIONS

Step: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Misconception:
    """One common mistake.

    Parameters
    ----------
    name : str
        Its name, the same in both languages.
    en, zh : str
        A text that says what you did and what to do instead.
    ways : tuple of dict
        The replaced steps by name, one dict for each way to make the mistake.
    blur : float
        A factor for the tolerance when numbers are compared with the mistake. It is above 1 if the
        mistake itself magnifies float32's rounding errors.

    Examples
    --------
    >>> from attnext import lab
    >>> lab.MISCONCEPTIONS["no-scale"].en
    'You did not scale the scores. Divide them by sqrt(d), where d is queries.shape[-1].'
    """

    name: str
    en: str
    zh: str
    ways: tuple[dict[str, Step], ...]
    blur: float = 1.0

    @cached_property
    def books(self) -> list[Book]:
        """The functions of the chapter with this mistake, once for each way."""
        return [type("Mistaken", (Book,), way)() for way in self.ways]


def words_for(misconception: Misconception, task: str, lang: str) -> str:
    """Return the text of a misconception for a task; a task may have its own text."""
    name = misconception.name
    return MISCONCEPTIONS.get(f"{name}/{task}", MISCONCEPTIONS[name])[lang]


def wrong(name: str, *ways: dict[str, Step], blur: float = 1.0, **steps: Step) -> Misconception:
    """Return a misconception from its wrong steps, or from several ways."""
    return Misconception(name, **MISCONCEPTIONS[name], ways=ways or (steps,), blur=blur)
