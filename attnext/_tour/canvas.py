"""Points and a curve on a grid of characters: Braille dots, or ASCII where there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from attnext._tour.page import Page

Floats = NDArray[np.floating]

# Dot (row, column) of a Braille cell is this bit of its code point over U+2800.
_DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])


class Canvas:
    """A plot of `height` x `width` characters with axes; later drawings lie over earlier ones."""

    def __init__(
        self,
        page: Page,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        height: int,
        width: int,
    ) -> None:
        self.page = page
        self.x_range, self.y_range = x_range, y_range
        self.height, self.width = height, width
        self.cells = [[(" ", "")] * width for _ in range(height)]  # glyph and style
        self.ink = "\u2812" if page.unicode else "#"  # what a level stretch of curve looks like

    def level(self, y: float, style: str) -> None:
        """A dashed line across at height y."""
        row = int(self._rows(np.array([y]), self.height)[0])
        self.cells[row] = [("╌", style)] * self.width

    def points(self, x: Floats, y: Floats, style: str) -> None:
        """A ring for each point."""
        columns = self._columns(x, self.width)
        for row, column in zip(self._rows(y, self.height), columns, strict=True):
            self.cells[row][column] = ("∘", style)

    def curve(self, function: Callable[[Floats], Floats], style: str) -> None:
        """The graph of `function`, unbroken: in every column of dots as tall as its step."""
        down, across = (4, 2) if self.page.unicode else (1, 1)
        rows, columns = self.height * down, self.width * across
        low, high = self.x_range
        x = low + (np.arange(columns) + 0.5) / columns * (high - low)
        at = self._rows(function(x), rows)
        dots = np.zeros((rows, columns), bool)
        for column, (before, row) in enumerate(pairwise(at.tolist()), start=1):
            half = before + int((row - before) / 2)  # each neighbour draws its half of the step
            rest = half + (row > before) - (row < before)
            dots[min(before, half) : max(before, half) + 1, column - 1] = True
            dots[min(rest, row) : max(rest, row) + 1, column] = True
        for row in range(self.height):
            for column in range(self.width):
                cell = dots[row * down : (row + 1) * down, column * across : (column + 1) * across]
                if cell.any():
                    glyph = chr(0x2800 + int(_DOTS[cell].sum())) if self.page.unicode else self.ink
                    self.cells[row][column] = (glyph, style)

    def lines(self, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> list[str]:
        """The picture, line by line, with its axes."""
        labels = dict(zip(self._rows(np.array(y_ticks), self.height), y_ticks, strict=True))
        picture = []
        for row, cells in enumerate(self.cells):
            label = f"{labels[row]:>7g} ┤" if row in labels else " " * 8 + "│"
            picture.append(label + self._text(cells))
        axis, numbers = ["─"] * self.width, [" "] * (self.width + 8)
        for column, tick in zip(self._columns(np.array(x_ticks), self.width), x_ticks, strict=True):
            axis[column] = "┴"
            text = f"{tick:g}"
            start = column - len(text) // 2
            numbers[start + 1 : start + 1 + len(text)] = text
        return [*picture, " " * 8 + "└" + "".join(axis), " " * 8 + "".join(numbers)]

    def _text(self, cells: list[tuple[str, str]]) -> str:
        """A row of cells, neighbours of one style together."""
        runs = groupby(cells, key=lambda cell: cell[1])
        return "".join(
            self.page.style("".join(glyph for glyph, _ in run), *style.split())
            for style, run in runs
        )

    def _rows(self, y: Floats, rows: int) -> NDArray[np.intp]:
        low, high = self.y_range
        at: NDArray[np.intp] = ((high - y) / (high - low) * rows).astype(np.intp)
        return at.clip(0, rows - 1)

    def _columns(self, x: Floats, columns: int) -> NDArray[np.intp]:
        low, high = self.x_range
        at: NDArray[np.intp] = ((x - low) / (high - low) * columns).astype(np.intp)
        return at.clip(0, columns - 1)
