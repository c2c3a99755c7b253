"""What a misconception is: the chapter with some steps of `Book` replaced, and its words.

A new one is an entry of a table: a name, and the step that is wrong; where there are several ways
to the mistake, all of them. Its words are in texts/misconceptions.txt.
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
        Its name, in every language.
    en, zh : str
        What you did, and what to do instead.
    ways : tuple of dict
        The steps of the chapter that are replaced; several, if there are several ways to it.
    blur : float
        How many times as far as a right answer the numbers may be off. More than 1 if the mistake
        itself magnifies float32's rounding.

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
        """The chapter with this mistake in it, once for each way."""
        return [type("Mistaken", (Book,), way)() for way in self.ways]


def words_for(misconception: Misconception, task: str, lang: str) -> str:
    """Return the words of a misconception for a task, which may have its own."""
    name = misconception.name
    return MISCONCEPTIONS.get(f"{name}/{task}", MISCONCEPTIONS[name])[lang]


def wrong(name: str, *ways: dict[str, Step], blur: float = 1.0, **steps: Step) -> Misconception:
    """Return an entry of a table, from its steps or its ways."""
    return Misconception(name, **MISCONCEPTIONS[name], ways=ways or (steps,), blur=blur)
