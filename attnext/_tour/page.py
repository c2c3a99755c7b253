"""What the tour writes: prose in one of two languages, lines of results, and their score."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Literal, TextIO, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnext._tour.peer import Array, Peer
from attnext._width import columns, ljust, rjust, wrap

if TYPE_CHECKING:
    from attnext._tour.figures import Figures

Rows = NDArray[np.floating]
Language: TypeAlias = Literal["en", "zh"]

NARROWEST, ORDINARY, WIDEST = 60, 80, 120  # columns; tables shrink below the ordinary width

# Tolerances of checks.
ROUNDED = 6e-5  # an answer known to four decimals
EXACT = 1e-5  # an answer known exactly, computed in float32; relative

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
        self.encoding = _encoding(stream)
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
        text = text.encode(self.encoding, "backslashreplace").decode(self.encoding)
        self.stream.write(text.rstrip() + "\n")

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
        """What was missed, wrapped, in red."""
        for line in wrap(self.text(en="MISSED ", zh="未通过 ") + text, self.width - 8):
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


@dataclass(frozen=True)
class Check:
    """A number, or an array, beside what it has to be; `what` names it in either language."""

    what: str
    got: ArrayLike
    known: ArrayLike
    tolerance: float = 0.0

    @property
    def found(self) -> bool:
        """Whether they have the same shape and are nowhere more than the tolerance apart."""
        got, known = np.asarray(self.got, np.float64), np.asarray(self.known, np.float64)
        return got.shape == known.shape and bool(np.all(np.abs(got - known) <= self.tolerance))

    def story(self, page: Page) -> str:
        """What a reader needs to know when it was missed."""
        got, known = _brief(page, self.got), _brief(page, self.known)
        return page.text(
            en=f"{self.what}: got {got}, expected {known}",
            zh=f"{self.what}：得到{got}，应为{known}",
        )


@dataclass
class Tour:
    """The page, the peer to compare with, the figures where they are wanted, and the score."""

    page: Page
    peer: Peer | None
    figures: Figures | None = None
    part: int = 0
    checked: int = 0
    missed: list[str] = field(default_factory=list)

    def begin(self, part: int) -> None:
        """Count what follows to this part."""
        self.part = part

    def title(self, *, en: str, zh: str) -> None:
        """The heading of the part."""
        self.page.heading(self.part, self.page.text(en=en, zh=zh))

    def stopped(self, error: Exception) -> None:
        """Count a part that could not be finished as missed."""
        self.checked += 1
        kind = type(error).__name__
        self._miss(self.page.text(en=f"stopped by {kind}: {error}", zh=f"因{kind}中断：{error}"))

    def result(self, text: str, *checks: Check) -> None:
        """A line of results behind its mark; under it, whatever was missed."""
        page = self.page
        wrong = [check for check in checks if not check.found]
        self.checked += len(checks)
        mark, style = (page.cross, "red") if wrong else (page.tick, "green")
        first, *rest = page.fit(text, 6)
        page.line(f"  {page.style(f'{mark:<2}', style)}  {first}")
        for line in rest:
            page.line("      " + line)
        for check in wrong:
            self._miss(check.story(page))

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
        """Our rows, the peer's beside them, each checked; in a column `width` wide.

        Where there is no room beside ours, the peer's stand below.
        """
        indent = max(map(columns, [header, *lefts])) + 3
        longest = max(columns(show(row)) for row in ours)
        below = theirs is not None and 6 + indent + width + longest > self.page.width
        beside = "" if theirs is None or below else "torch"
        self.page.note(ljust(header, indent) + ljust("attnext", width) + beside)
        for i, (left, row, answer) in enumerate(zip(lefts, ours, known, strict=True)):
            other = None if theirs is None else theirs[i]
            shown = ljust(show(row), width) + ("" if other is None or below else show(other))
            self.result(
                ljust(left, indent) + shown,
                Check(f"{what} {i}", row, answer, tolerance),
                *self.beside(f"{what} {i}", row, other),
            )
            if other is not None and below:
                self.page.note(rjust("torch", indent - 3) + "   " + show(other))

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
        return [Check(f"{what}, beside PyTorch", ours, theirs, EXACT * size)]

    def differences(
        self, what: str, ours: ArrayLike, known: ArrayLike, theirs: ArrayLike | None
    ) -> tuple[str, str, list[Check]]:
        """How far our result is from a known one, and from the peer's, in words; the checks."""
        off = largest_difference(ours, known)
        apart = "" if theirs is None else f"{largest_difference(ours, theirs):.0e}"
        beside = apart and self.page.text(en=f", {apart} from torch", zh=f"，与torch相差{apart}")
        check = Check(f"{what}, relative difference", off, 0, EXACT)
        return f"{off:.0e}", beside, [check, *self.beside(what, ours, theirs)]

    def _miss(self, text: str) -> None:
        part = self.page.text(en=f"part {self.part}, ", zh=f"第{self.part}部分，")
        self.missed.append(part + text)
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


def _brief(page: Page, values: ArrayLike) -> str:
    array = np.asarray(values, np.float64)
    if array.ndim == 0:
        return numbers_text(array, 8)
    if array.ndim == 1 and array.size <= 8:
        return f"[{numbers_text(array, 8)}]"
    return page.text(en=f"an array of shape {array.shape}", zh=f"形状为{array.shape}的数组")


def _encoding(stream: TextIO) -> str:
    """The stream's own; that of a StringIO, which has none and takes everything, is utf-8."""
    name = getattr(stream, "encoding", None) or "utf-8"
    try:
        return codecs.lookup(name).name
    except LookupError:  # nothing to go by
        return "ascii"


def _wants_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
