"""What the tests of the tour share: a run of it, what it checked, how it must look."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from attnext import _tour
from attnext._data import motorcycle as measurements
from attnext._tour import motorcycle, timings
from attnext._tour.page import Language, Page
from attnext._tour.tour import Check, Tour


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def run(
    *parts: Callable[[Tour], None],
    stream: io.TextIOBase | None = None,
    language: Language = "en",
    plots: Path | None = None,
    width: int = 80,
) -> tuple[int, str]:
    """The exit code and text of a tour of these parts, of all without any; timings are short."""
    stream = stream or io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timings, "BUDGET", 0.0)
        patch.setenv("COLUMNS", str(width))
        if parts:
            patch.setattr(_tour, "PARTS", parts)
        code = _tour.run(stream, language, plots)  # type: ignore[arg-type]
    stream.seek(0)
    return code, stream.read()


@dataclass
class Recorded:
    """A whole tour: its text, the checks in their order, what it had to say in both languages."""

    code: int = -1
    text: str = ""
    checks: list[Check] = field(default_factory=list)
    words: list[tuple[str, str]] = field(default_factory=list)  # (English, Chinese)


def record(language: Language) -> Recorded:
    """A run of the whole tour in this language."""
    recorded = Recorded()
    result, text = Tour.result, Page.text

    def recorded_result(self: Tour, line: str, *checks: Check) -> None:
        recorded.checks += checks
        result(self, line, *checks)

    def recorded_text(self: Page, *, en: str, zh: str) -> str:
        recorded.words.append((en, zh))
        return text(self, en=en, zh=zh)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tour, "result", recorded_result)
        patch.setattr(Page, "text", recorded_text)
        recorded.code, recorded.text = run(language=language)
    return recorded


@cache
def trained() -> motorcycle.Training:
    """What the training of part 7 comes to."""
    return motorcycle.train(*map(motorcycle.standardise, measurements()))


def without_training(patch: pytest.MonkeyPatch) -> None:
    """Part 7 shows a training that is over, from now on: hundreds of steps, the same each time."""
    training = trained()
    patch.setattr(motorcycle, "train", lambda x, y: training)


def columns(text: str) -> int:
    """Columns of a terminal, by a rule of thumb of the tests' own: Chinese takes two."""
    return sum(2 if letter >= "\u2e80" else 1 for letter in text)


def check_layout(text: str, width: int = 80) -> None:
    """Within so many columns, no blank at the end of a line, no colour."""
    for line in text.splitlines():
        assert columns(line) <= width, line
        assert line == line.rstrip(), line
    assert "\x1b" not in text


def without(module: str, patch: pytest.MonkeyPatch) -> None:
    """Importing the module raises ModuleNotFoundError from now on."""
    patch.setitem(sys.modules, module, None)  # type: ignore[arg-type]


def spoiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with every result a thousandth too large."""

    def scale(result: Any) -> Any:
        if isinstance(result, tuple):
            return tuple(map(scale, result))
        return result * 1.001

    return lambda *args, **kwargs: scale(function(*args, **kwargs))
