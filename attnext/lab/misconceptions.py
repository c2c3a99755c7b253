"""What is often had wrong, each as the steps of `Book` that are then other ones, and the words.

A new one is one entry of a table: a name, and the step that is wrong; where it can be had in
several ways, all of them. What is said to whoever has it is in texts/misconceptions.txt.
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
    """One thing that is often had wrong.

    Parameters
    ----------
    name : str
        What it is called, in every language.
    en, zh : str
        What is done, and what is to be done instead.
    ways : tuple of dict
        The steps of the chapter that are replaced; several, if there are several ways to it.

    Examples
    --------
    >>> from attnext import lab
    >>> lab.MISCONCEPTIONS["no-scale"].en
    'The scores are not scaled. Divide them by the square root of d, the size of a query.'
    """

    name: str
    en: str
    zh: str
    ways: tuple[dict[str, Step], ...]

    @cached_property
    def books(self) -> list[Book]:
        """The chapter with this mistake in it, once for each way."""
        return [type("Mistaken", (Book,), way)() for way in self.ways]


def wrong(name: str, *ways: dict[str, Step], **steps: Step) -> Misconception:
    """An entry of a table: the steps, or the ways."""
    return Misconception(name, **MISCONCEPTIONS[name], ways=ways or (steps,))
