"""What the tests of the tour share: a run of it, what it checked, how it must look."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
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
        hurry(patch)
        patch.setenv("COLUMNS", str(width))
        if parts:
            patch.setattr(_tour, "PARTS", parts)
        code = _tour.run(stream, language, plots)  # type: ignore[arg-type]
    stream.seek(0)
    return code, stream.read()


def hurry(patch: pytest.MonkeyPatch) -> None:
    """Part 8 has every contender run once, and NumPy's formulas once for all tours."""
    patch.setattr(timings, "_fastest", once_each)
    for name in [name for name in vars(timings) if name.startswith("_plain_")]:
        patch.setattr(timings, name, partial(kept, getattr(timings, name)))


def once_each(contenders: list[Callable[[], object]]) -> list[float]:
    """In the place of their times, 1 ms, 2 ms, ..."""
    for contender in contenders:
        contender()
    return [1e-3 * (i + 1) for i in range(len(contenders))]


_kept: dict[Any, Any] = {}


def kept(function: Callable[..., Any], *arrays: Any) -> Any:
    """The result for arrays of these shapes, whose numbers are the same in every tour."""
    key = (function.__name__, *(x.shape for x in arrays))
    if key not in _kept:
        _kept[key] = function(*arrays)
    return _kept[key]


@dataclass
class Recorded:
    """A whole tour: its text, the checks in their order, what it had to say in both languages."""

    code: int = -1
    text: str = ""
    checks: list[Check] = field(default_factory=list)
    words: list[tuple[str, str]] = field(default_factory=list)  # (English, Chinese)


@cache
def recorded(language: Language) -> Recorded:
    """A run of the whole tour in this language, for all who look at it."""
    found = Recorded()
    result, text = Tour.result, Page.text

    def recorded_result(self: Tour, line: str, *checks: Check) -> None:
        found.checks += checks
        result(self, line, *checks)

    def recorded_text(self: Page, *, en: str, zh: str) -> str:
        found.words.append((en, zh))
        return text(self, en=en, zh=zh)

    with pytest.MonkeyPatch.context() as patch:
        without_training(patch)
        patch.setattr(Tour, "result", recorded_result)
        patch.setattr(Page, "text", recorded_text)
        found.code, found.text = run(language=language)
    return found


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
