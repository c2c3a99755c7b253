"""What the tour writes on: a stream, prose in one of two languages, numbers as text."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from shutil import get_terminal_size
from typing import Literal, TextIO, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from attnext._commands import encodable, encoding_of
from attnext._width import columns, wrap

Language: TypeAlias = Literal["en", "zh"]

NARROWEST, ORDINARY, WIDEST = 60, 80, 120  # columns; tables shrink below the ordinary width

# Every character beyond ASCII that a part may draw with, over its stand-in of the same width.
_FANCY = "─│┤└┴╌·∘▁▂▃▄▅▆▇█"
_PLAIN = "-||++-.o_..-=+*#"
_MARKS = ("✓", "✗")
_BRAILLE = "".join(map(chr, range(0x2800, 0x2900)))
# An encoding that has these has simplified Chinese: Japanese and Taiwanese ones lack the first.
_CHINESE = "评权误，。：；（）"

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Page:
    """A stream, and what its reader can see: colours, Unicode, which language, how many columns."""

    def __init__(self, stream: TextIO, language: Language = "en") -> None:
        self.stream = stream
        self.encoding = encoding_of(stream)
        self.unicode = self._can_encode(_FANCY + "".join(_MARKS) + _BRAILLE)
        self.language: Language = language if self._can_encode(_CHINESE) else "en"
        self.colour = _wants_colour(stream)
        self.width = min(max(get_terminal_size((ORDINARY, 24)).columns, NARROWEST), WIDEST)
        self.narrow = self.width < ORDINARY
        self.tick, self.cross = _MARKS if self.unicode else ("ok", "XX")

    def text(self, *, en: str, zh: str) -> str:
        """Which of the two the reader reads; the one place where a language is chosen."""
        return zh if self.language == "zh" else en

    def style(self, text: str, *styles: str) -> str:
        """`text` in colour, or as it is where colours are not wanted."""
        if not self.colour or not styles:
            return text
        return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"

    def line(self, text: str = "") -> None:
        """One line, as it is; a character the stream does not know, in a path say, is escaped."""
        if not self.unicode:
            text = text.translate(str.maketrans(_FANCY, _PLAIN))
        self.stream.write(encodable(text, self.encoding).rstrip() + "\n")

    def fit(self, text: str, indent: int) -> list[str]:
        """`text` as it is if there is room for it behind the indent; or cut at gaps and wrapped."""
        room = self.width - indent
        if columns(text) <= room:
            return [text]
        return [line for part in re.split(" {3,}", text) for line in wrap(part, room)]

    def indented(self, text: str, *styles: str) -> None:
        """What stands under the results, wrapped only if it must be."""
        for line in self.fit(text, 6):
            self.line("      " + self.style(line, *styles))

    def say(self, *, en: str, zh: str) -> None:
        """Prose, wrapped."""
        for line in wrap(self.text(en=en, zh=zh), self.width - 4):
            self.line("  " + line)

    def missed(self, text: str) -> None:
        """Write the story of a failed check, wrapped, in red."""
        for line in wrap(self.text(en="FAILED ", zh="未通过 ") + text, self.width - 8):
            self.line("      " + self.style(line, "red", "bold"))

    def rule(self) -> None:
        """A line across the page."""
        self.line(self.style("─" * self.width, "dim"))

    def heading(self, number: int, title: str) -> None:
        """The title of a part."""
        left = f"── {number} "
        right = " " + "─" * (self.width - columns(left + title) - 1)
        self.line()
        self.line(self.style(left, "dim") + self.style(title, "bold") + self.style(right, "dim"))
        self.line()
        self.stream.flush()

    def code(self, text: str) -> None:
        """A call, or shapes."""
        self.indented(text, "cyan")

    def note(self, text: str) -> None:
        """The head of a table, or what stands aside."""
        self.indented(text, "dim")

    def sparkline(self, values: Sequence[float]) -> str:
        """One bar a value, the largest value at full height."""
        bars = _FANCY[-8:]
        top = max(values) or 1.0
        return "".join(bars[round(max(value, 0.0) / top * (len(bars) - 1))] for value in values)

    def _can_encode(self, text: str) -> bool:
        try:
            text.encode(self.encoding)
        except UnicodeEncodeError:
            return False
        return True


def weights_text(weights: ArrayLike) -> str:
    """Weights in columns: .1234, or 0 and 1 where they are exactly that."""
    texts = [f"{w:.4f}".removeprefix("0") if 0 < w < 1 else f"{w:g}" for w in np.ravel(weights)]
    return " ".join(f"{text:<5}" for text in texts).rstrip()


def numbers_text(numbers: ArrayLike, digits: int = 6) -> str:
    """Numbers with so many significant digits at most."""
    return " ".join(f"{number:.{digits}g}" for number in np.ravel(numbers))


def largest_difference(a: ArrayLike, b: ArrayLike) -> float:
    """The largest entry of |a - b| over the largest entry of |b|."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.max(np.abs(a - b)) / np.max(np.abs(b)))


def _wants_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
