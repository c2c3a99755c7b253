"""Format an explanation as text of 80 columns. Chinese characters are two columns wide."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnext import _width
from attnext._width import columns as width
from attnext._width import rjust
from attnext.explain.tables import Limits, Table, summary_text, tables
from attnext.explain.words import phrase

if TYPE_CHECKING:
    from attnext.explain.trace import Step, Trace

WIDTH = 80
INDENT = "   "
LABEL = 10  # maximum width of a label, so that six columns fit next to each other

# Formats to try in this order until a table fits: maximum number of columns, digits after the
# decimal point, spaces between columns.
_FITS = [
    (columns, *style) for columns in (12, 10, 8, 6) for style in ((4, 2), (4, 1), (3, 1), (2, 1))
]


def trace_text(trace: Trace) -> str:
    """Return all steps as text."""
    lines = [trace.title, "=" * width(trace.title), *wrap(trace.call, "")]
    for number, step in enumerate(trace.steps, 1):
        lines += ["", *_step_lines(step, f"{number}. ")]
    if any(step.masked is not None for step in trace.steps):
        lines += ["", INDENT + phrase("legend", trace.lang)]
    lines += ["", *wrap(trace.agreement, "")]
    return "\n".join(lines)


def step_text(step: Step) -> str:
    """Return one step as text."""
    return "\n".join(_step_lines(step, ""))


def wrap(text: str, indent: str) -> list[str]:
    """Return indented lines of at most 80 columns."""
    return [indent + line for line in _width.wrap(text, WIDTH - len(indent))]


def _step_lines(step: Step, number: str) -> list[str]:
    lines = [f"{number}{step.name}  {step.shape}"]
    lines += wrap(step.formula, INDENT)
    lines += wrap(step.note, INDENT)
    return lines + _table_lines(step)


def _table_lines(step: Step) -> list[str]:
    """Return the tables in the first format in which all lines fit. The last one always fits."""
    for columns, decimals, blanks in _FITS:
        limits = Limits(columns=columns)
        drawn = [_with_short_names(table) for table in tables(step, limits, decimals)]
        texts = [text for table in drawn for row in (table.columns, *table.cells) for text in row]
        size = max(map(width, texts), default=0) + blanks
        lines = [line for table in drawn for line in ("", *_one_table(table, size))]
        if all(width(line) <= WIDTH for line in lines):
            break
    if summary := summary_text(step, limits):
        lines = wrap(summary, INDENT) + lines
    return lines


def _with_short_names(table: Table) -> Table:
    rows, columns = ([_width.shorten(x, LABEL) for x in xs] for xs in (table.rows, table.columns))
    return replace(table, rows=rows, columns=columns)


def _one_table(table: Table, size: int) -> list[str]:
    """Return a table with row headings on the left and right-aligned columns of this size."""
    left = max(width(table.corner), max(map(width, table.rows)))
    lines = [INDENT + table.label] if table.label else []
    for heading, row in zip(
        [table.corner, *table.rows], [table.columns, *table.cells], strict=True
    ):
        lines.append(INDENT + rjust(heading, left) + "".join(rjust(text, size) for text in row))
    return lines
