"""What the tour writes: prose, lines of results with a mark, and the score of the checks."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TextIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnext._tour.peer import Array, Peer

Rows = NDArray[np.floating]

WIDTH = 80

# Every character beyond ASCII that a part may use, over its stand-in of the same width.
_FANCY = "─│┤└┴╌·∘▁▂▃▄▅▆▇█"
_PLAIN = "-||++-.o_..-=+*#"
_MARKS = ("✓", "✗")
_BRAILLE = "".join(map(chr, range(0x2800, 0x2900)))

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Page:
    """A stream, and what its reader can see: colours or not, Unicode or ASCII."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.unicode = _can_encode(stream, _FANCY + "".join(_MARKS) + _BRAILLE)
        self.colour = _wants_colour(stream)
        self.tick, self.cross = _MARKS if self.unicode else ("ok", "XX")

    def style(self, text: str, *styles: str) -> str:
        """`text` in colour, or as it is where colours are not wanted."""
        if not self.colour or not styles:
            return text
        return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"

    def line(self, text: str = "") -> None:
        """One line, as it is."""
        if not self.unicode:
            text = text.translate(str.maketrans(_FANCY, _PLAIN))
        self.stream.write(text.rstrip() + "\n")

    def say(self, text: str) -> None:
        """Prose, wrapped."""
        for line in textwrap.wrap(text, WIDTH - 4):
            self.line("  " + line)

    def missed(self, text: str) -> None:
        """What was missed, wrapped, in red."""
        for line in textwrap.wrap(f"MISSED {text}", WIDTH - 8):
            self.line("      " + self.style(line, "red", "bold"))

    def rule(self) -> None:
        """A line across the page."""
        self.line(self.style("─" * WIDTH, "dim"))

    def heading(self, number: int, title: str) -> None:
        """The title of a part."""
        left = f"── {number} "
        right = " " + "─" * (WIDTH - len(left) - len(title) - 1)
        self.line()
        self.line(self.style(left, "dim") + self.style(title, "bold") + self.style(right, "dim"))
        self.line()
        self.stream.flush()

    def code(self, text: str) -> None:
        """A call, or shapes."""
        self.line("      " + self.style(text, "cyan"))

    def sparkline(self, values: Sequence[float]) -> str:
        """One bar a value, the largest value at full height."""
        bars = _FANCY[-8:]
        top = max(values) or 1.0
        return "".join(bars[round(max(value, 0.0) / top * (len(bars) - 1))] for value in values)


@dataclass(frozen=True)
class Check:
    """A number, or an array, beside what it has to be."""

    what: str
    got: ArrayLike
    known: ArrayLike
    tolerance: float = 0.0

    @property
    def found(self) -> bool:
        """Whether they have the same shape and are nowhere more than the tolerance apart."""
        got, known = np.asarray(self.got, np.float64), np.asarray(self.known, np.float64)
        return got.shape == known.shape and bool(np.all(np.abs(got - known) <= self.tolerance))

    def __str__(self) -> str:
        """What a reader needs to know when it was missed."""
        return f"{self.what}: got {_brief(self.got)}, expected {_brief(self.known)}"


@dataclass
class Tour:
    """The page, the peer to compare with, and the score."""

    page: Page
    peer: Peer | None
    part: int = 0
    checked: int = 0
    missed: list[str] = field(default_factory=list)

    def begin(self, part: int) -> None:
        """Count what follows to this part."""
        self.part = part

    def title(self, text: str) -> None:
        """The heading of the part."""
        self.page.heading(self.part, text)

    def stopped(self, error: Exception) -> None:
        """Count a part that could not be finished as missed."""
        self.checked += 1
        self._miss(f"stopped by {type(error).__name__}: {error}")

    def result(self, text: str, *checks: Check) -> None:
        """A line of results behind its mark; under it, whatever was missed."""
        page = self.page
        wrong = [check for check in checks if not check.found]
        self.checked += len(checks)
        mark, style = (page.cross, "red") if wrong else (page.tick, "green")
        page.line(f"  {page.style(f'{mark:<2}', style)}  {text}")
        for check in wrong:
            self._miss(str(check))

    def table(
        self,
        header: str,
        lefts: Sequence[str],
        what: str,
        ours: Rows,
        theirs: Rows | None,
        known: Sequence[ArrayLike],
        *,
        tolerance: float = 0.0,
        show: Callable[[ArrayLike], str],
        width: int = 17,
    ) -> None:
        """Our rows, the peer's beside them, each checked; in a column `width` wide."""
        indent = max(map(len, [header, *lefts])) + 3
        titles = f"{header:<{indent}}{'attnext':<{width}}{'' if theirs is None else 'torch'}"
        self.page.line(self.page.style(f"      {titles}", "dim"))
        for i, (left, row, answer) in enumerate(zip(lefts, ours, known, strict=True)):
            beside = None if theirs is None else theirs[i]
            self.result(
                f"{left:<{indent}}{show(row):<{width}}" + ("" if beside is None else show(beside)),
                Check(f"{what} {i}", row, answer, tolerance),
                *self.beside(f"{what} {i}", row, beside),
            )

    def theirs(self, function: str, *arrays: ArrayLike, **options: object) -> Array | None:
        """What the peer's function of that name gives; None without a peer."""
        if self.peer is None:
            return None
        return self.peer.run(getattr(self.peer, function), *arrays, **options)

    def beside(self, what: str, ours: ArrayLike, theirs: ArrayLike | None) -> list[Check]:
        """The check that the peer, if there is one, computes what we compute."""
        if theirs is None:
            return []
        size = float(np.max(np.abs(np.asarray(theirs, np.float64)), initial=0.0))
        return [Check(f"{what}, beside PyTorch", ours, theirs, 1e-5 * size)]

    def _miss(self, text: str) -> None:
        self.missed.append(f"part {self.part}, {text}")
        self.page.missed(text)


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


def _brief(values: ArrayLike) -> str:
    array = np.asarray(values, np.float64)
    if array.size <= 8:
        return np.array2string(array, precision=6, suppress_small=True).replace("\n", "")
    return f"an array of shape {array.shape}"


def _can_encode(stream: TextIO, text: str) -> bool:
    encoding = getattr(stream, "encoding", None) or "utf-8"  # a StringIO has no encoding: takes all
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _wants_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
