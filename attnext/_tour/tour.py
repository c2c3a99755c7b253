"""The tour itself: lines of results, each checked, and their score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnext._tour.page import Page, largest_difference, numbers_text
from attnext._tour.peer import Array, Peer
from attnext._width import columns, ljust, rjust

if TYPE_CHECKING:
    from attnext._tour.figures import Figures  # which needs matplotlib

Rows = NDArray[np.floating]

# Tolerances of checks.
ROUNDED = 6e-5  # an answer known to four decimals
EXACT = 1e-5  # an answer known exactly, computed in float32; relative


@dataclass(frozen=True)
class Check:
    """A number or an array, and its known value; `what` names it, in both languages."""

    what: str
    got: ArrayLike
    known: ArrayLike
    tolerance: float = 0.0

    @property
    def found(self) -> bool:
        """True if the shapes are equal and no difference exceeds the tolerance."""
        got, known = np.asarray(self.got, np.float64), np.asarray(self.known, np.float64)
        return got.shape == known.shape and bool(np.all(np.abs(got - known) <= self.tolerance))

    def story(self, page: Page) -> str:
        """Return what a reader needs to know about the failed check."""
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
        """Assign the results that follow to this part."""
        self.part = part

    def title(self, *, en: str, zh: str) -> None:
        """The heading of the part."""
        self.page.heading(self.part, self.page.text(en=en, zh=zh))

    def stopped(self, error: Exception) -> None:
        """Count a part that raised an exception as a failed check."""
        self.checked += 1
        kind = type(error).__name__
        self._miss(self.page.text(en=f"stopped by {kind}: {error}", zh=f"因{kind}中断：{error}"))

    def result(self, text: str, *checks: Check) -> None:
        """Write a line of results after its mark, then the checks of it that failed."""
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
        """Write our rows and check them; show the peer's rows in a column next to ours.

        `width` is the width of our column. If both do not fit, the peer's rows go below ours.
        """
        indent = max(map(columns, [header, *lefts])) + 3
        longest = max(columns(show(row)) for row in ours)
        below = theirs is not None and 6 + indent + width + longest > self.page.width
        column = "" if theirs is None or below else "torch"
        self.page.note(ljust(header, indent) + ljust("attnext", width) + column)
        for i, (left, row, answer) in enumerate(zip(lefts, ours, known, strict=True)):
            other = None if theirs is None else theirs[i]
            shown = ljust(show(row), width) + ("" if other is None or below else show(other))
            self.result(
                ljust(left, indent) + shown,
                Check(f"{what} {i}", row, answer, tolerance),
                *self.compare_with_torch(f"{what} {i}", row, other),
            )
            if other is not None and below:
                self.page.note(rjust("torch", indent - 3) + "   " + show(other))

    def theirs(self, function: str, *arrays: ArrayLike, **options: object) -> Array | None:
        """Return the result of the peer's function of that name; None without a peer."""
        if self.peer is None:
            return None
        return self.peer.run(getattr(self.peer, function), *arrays, **options)

    def compare_with_torch(
        self, what: str, ours: ArrayLike, theirs: ArrayLike | None
    ) -> list[Check]:
        """Return a check that our result equals the peer's; no check without a peer."""
        if theirs is None:
            return []
        size = float(np.max(np.abs(np.asarray(theirs, np.float64)), initial=0.0))
        return [Check(f"{what}, compared with PyTorch", ours, theirs, EXACT * size)]

    def differences(
        self, what: str, ours: ArrayLike, known: ArrayLike, theirs: ArrayLike | None
    ) -> tuple[str, str, list[Check]]:
        """Return the distance from a known result and from the peer's, as text, and the checks."""
        off = largest_difference(ours, known)
        apart = "" if theirs is None else f"{largest_difference(ours, theirs):.0e}"
        from_torch = apart and self.page.text(en=f", {apart} of torch", zh=f"，与torch相差{apart}")
        check = Check(f"{what}, relative difference", off, 0, EXACT)
        return f"{off:.0e}", from_torch, [check, *self.compare_with_torch(what, ours, theirs)]

    def _miss(self, text: str) -> None:
        part = self.page.text(en=f"part {self.part}, ", zh=f"第{self.part}部分，")
        self.missed.append(part + text)
        self.page.missed(text)


def _brief(page: Page, values: ArrayLike) -> str:
    array = np.asarray(values, np.float64)
    if array.ndim == 0:
        return numbers_text(array, 8)
    if array.ndim == 1 and array.size <= 8:
        return f"[{numbers_text(array, 8)}]"
    return page.text(en=f"an array of shape {array.shape}", zh=f"形状为{array.shape}的数组")
