"""Convert the array of a step to tables, which the text and HTML renderers draw."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnext.explain.words import phrase

if TYPE_CHECKING:
    from attnext.explain.trace import Step

DOT = "·"  # stands for a masked number


class Limits(NamedTuple):
    """The limits of what is shown: a small array in full, otherwise its first rows and columns."""

    size: int = 200  # a small array has no more numbers,
    columns: int = 12  # and no more columns
    tables: int = 1  # of a corner: tables, rows and columns
    side: int = 6

    def corner(self, step: Step) -> tuple[int, ...]:
        """Return the shape of the part that is shown."""
        shape = step.values.shape
        if step.shape == shape and step.values.size <= self.size and shape[-1] <= self.columns:
            return shape
        sides = [min(n, self.side) for n in shape[-2:]]
        tables = self.tables
        leading = []
        for n in reversed(shape[:-2]):  # the last leading axis first, as far as tables reach
            leading.append(min(n, tables))
            tables //= max(leading[-1], 1)
            tables = max(tables, 1)
        return (*reversed(leading), *sides)


@dataclass(frozen=True)
class Table:
    """Two axes of an array, or one as a single row."""

    label: str  # position along the leading axes; empty for a single table
    corner: str  # names of the row and column axes
    rows: list[str]
    columns: list[str]
    cells: list[list[str]]
    numbers: NDArray[Any]  # (rows, columns)
    masked: NDArray[np.bool_]  # (rows, columns)


def is_cut(step: Step, limits: Limits) -> bool:
    """True if a part of the array is not shown."""
    return limits.corner(step) != step.shape


def summary_text(step: Step, limits: Limits) -> str:
    """Return the summary of an array that is not shown in full, otherwise an empty text."""
    if step.summary.count == 0:
        return phrase("nothing", step.lang)
    if not is_cut(step, limits) or step.values.dtype.kind == "b":  # bools are counted in the note
        return ""
    s = step.summary
    return phrase(
        "summary", step.lang, count=s.count, least=s.least, mean=s.mean, largest=s.largest
    )


def tables(step: Step, limits: Limits, decimals: int = 4) -> Iterator[Table]:
    """Yield the tables of a step, all with the same number format."""
    corner = limits.corner(step)
    window = tuple(slice(n) for n in corner)
    numbers = step.values[window]
    masked = np.zeros(corner, bool) if step.masked is None else step.masked[window]
    if numbers.size == 0:
        return
    # a masked score is -inf, and the step that makes it so shows it
    dotted = masked & (numbers != -np.inf)
    cells = np.where(dotted, DOT, _texts(numbers, masked, decimals))
    *names, columns = headings(step, corner)
    if numbers.ndim == 1:
        numbers, masked, cells = numbers[None], masked[None], cells[None]
        rows, corner_text = [""], step.axes[-1]
    else:
        *names, rows = names
        corner_text = f"{step.axes[-2]}\\{step.axes[-1]}"
    cut = corner != step.shape
    for lead in np.ndindex(*corner[:-2]):
        label = phrase("comma", step.lang).join(
            f"{axis} {of_axis[i]}" for axis, of_axis, i in zip(step.axes, names, lead, strict=False)
        )
        if cut:
            label = "[" + ", ".join([*map(str, lead), *(f":{n}" for n in corner[-2:])]) + "]"
        yield Table(
            label, corner_text, rows, columns, cells[lead].tolist(), numbers[lead], masked[lead]
        )


def headings(step: Step, corner: tuple[int, ...]) -> list[list[str]]:
    """Return the labels or indices of the shown part, for each axis."""
    labels = step.labels or ((),) * len(corner)
    return [
        [_printable(text) for text in names[:size]] if names else [str(i) for i in range(size)]
        for names, size in zip(labels, corner, strict=True)
    ]


def _printable(label: str) -> str:
    """Return the label with control characters escaped, because a token can be a line break."""
    return label if label.isprintable() else repr(label)[1:-1]


def _texts(numbers: NDArray[Any], masked: NDArray[np.bool_], decimals: int) -> NDArray[Any]:
    """Return the numbers as text in one format. An exact zero is written as 0."""
    if numbers.dtype.kind in "biu":
        return numbers.astype(int).astype(str).astype(object)
    shown = numbers[~masked & np.isfinite(numbers)].astype(np.float64)
    largest = float(np.max(np.abs(shown), initial=0.0))
    if largest < 1e6 and np.array_equal(shown, np.round(shown)):
        pattern = "z.0f"
    elif 1e-3 <= largest < 1e5:
        whole = max(int(math.log10(largest)), 0)  # digits before the point, less one
        pattern = f"z.{max(decimals - whole, 1)}f"
    else:
        pattern = f"z.{min(decimals, 3) - 1}e"
    texts = ["0" if x == 0 else format(float(x), pattern) for x in numbers.flat]
    return np.array(texts, dtype=object).reshape(numbers.shape)
