"""An explanation as HTML for a notebook: no script, nothing to load, legible on light and dark.

Colours are transparent ones over whatever the notebook's background is, and letters keep the
colour that the notebook gives them. Where a number stands, the hatching behind it is faint.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from attnext.explain.tables import Limits, Table, is_cut, summary_text, tables
from attnext.explain.words import phrase

if TYPE_CHECKING:
    from attnext.explain.trace import Step, Trace

HEAT_MAPS = frozenset({"weights", "softmax", "kept", "given", "again"})  # steps drawn as heat maps
PIXELS = Limits(tables=4, side=32)  # of a heat map too large for numbers

STYLE = """<style>
.attnext { max-width: 62em; font-size: 13px; line-height: 1.5; }
.attnext .title { font-size: 1.25em; font-weight: 600; }
.attnext .step { margin: 1em 0; padding-left: .9em; border-left: 3px solid rgba(128,128,128,.35); }
.attnext .name { font-weight: 600; }
.attnext .shape { font-family: monospace; opacity: .7; margin-left: .6em; }
.attnext code { color: inherit; background: rgba(128,128,128,.15); padding: .1em .4em;
  border-radius: 3px; }
.attnext .tables { display: flex; flex-wrap: wrap; gap: .7em 1.6em; overflow-x: auto;
  margin-top: .4em; }
.attnext .label { opacity: .75; }
.attnext table.numbers { border-collapse: collapse; margin: 0; font-size: 12px; color: inherit; }
.attnext table.numbers tr { background: transparent; }
.attnext table.numbers td, .attnext table.numbers th { border: 1px solid rgba(128,128,128,.3);
  padding: .15em .5em; min-width: 1.6em; text-align: right;
  font-variant-numeric: tabular-nums; color: inherit; }
.attnext table.numbers th { font-weight: normal; opacity: .7; border-color: transparent; }
.attnext table.pixels th { padding: 0 .3em; min-width: 0; font-size: 10px; line-height: 1; }
.attnext table.pixels tr:first-child th:not(:first-child) { writing-mode: vertical-rl;
  padding: .3em 0; }
.attnext table.pixels td { width: 9px; min-width: 9px; height: 9px; padding: 0;
  border: 1px solid rgba(128,128,128,.12); }
.attnext .masked { background: repeating-linear-gradient(45deg,
  transparent 0 5px, rgba(128,128,128,.3) 5px 6px); }
.attnext table.pixels .masked { background: repeating-linear-gradient(45deg,
  transparent 0 3px, rgba(128,128,128,.6) 3px 4px); }
.attnext .legend { margin-top: .2em; }
.attnext .swatch { display: inline-block; width: 1.6em; height: 1em; margin: 0 .4em;
  vertical-align: -.15em; border: 1px solid rgba(128,128,128,.3); }
.attnext .foot { opacity: .8; }
</style>"""


def trace_html(trace: Trace) -> str:
    """All steps, one below the other."""
    steps = [_step(step, f"{number}. ") for number, step in enumerate(trace.steps, 1)]
    return _page(
        [
            f'<div class="title">{escape(trace.title)}</div>',
            f"<div><code>{escape(trace.call)}</code></div>",
            *steps,
            f'<div class="foot">{escape(trace.agreement)}</div>',
        ]
    )


def step_html(step: Step) -> str:
    """One step on its own."""
    return _page([_step(step, "")])


def _page(parts: list[str]) -> str:
    return "\n".join(['<div class="attnext">', STYLE, *parts, "</div>"])


def _step(step: Step, number: str) -> str:
    lines = [
        f'<span class="name">{escape(number + step.name)}</span>'
        f'<span class="shape">{escape(str(step.shape))}</span>',
        f"<br><code>{escape(step.formula)}</code>",
        f"<br>{escape(step.note)}",
    ]
    if summary := summary_text(step, Limits()):
        lines.append(f"<br>{escape(summary)}")
    top = _top(step)
    pixels = top is not None and is_cut(step, Limits())  # a heat map without numbers
    drawn = list(tables(step, PIXELS if pixels else Limits()))
    headed = not pixels or any(step.labels[-2:])  # names, but not the numbers of small cells
    html = "".join(_table(table, top, pixels, headed, step.lang) for table in drawn)
    lines.append(f'<div class="tables">{html}</div>')
    lines.append(_legend(top, any(table.masked.any() for table in drawn), step.lang))
    return '<div class="step">' + "\n".join(lines) + "</div>"


def _top(step: Step) -> float | None:
    """The largest weight, which has the strongest colour; None if colours are not wanted."""
    if step.key not in HEAT_MAPS:
        return None
    finite = step.values[np.isfinite(step.values)]
    return float(np.max(finite, initial=0.0)) or 1.0


def _table(table: Table, top: float | None, pixels: bool, headed: bool, lang: str) -> str:
    rows = []
    if headed:
        headings = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
        rows.append(f"<tr><th>{escape(table.corner)}</th>{headings}</tr>")
    for i, heading in enumerate(table.rows):
        cells = f"<th>{escape(heading)}</th>" if headed else ""
        for j, text in enumerate(table.cells[i]):
            style = ' class="masked"' if table.masked[i, j] else _colour(table.numbers[i, j], top)
            cells += f"<td{style}>{'' if pixels else escape(text)}</td>"
        rows.append(f"<tr>{cells}</tr>")
    kind = "numbers pixels" if pixels else "numbers"
    label = phrase("comma", lang).join(filter(None, [table.label, "" if headed else table.corner]))
    label = f'<div class="label">{escape(label)}</div>' if label else ""
    return f'<div>{label}<table class="{kind}">{"".join(rows)}</table></div>'


def _colour(number: float, top: float | None) -> str:
    """A weight's background: none for 0, the strongest for the largest weight of the step."""
    if top is None or not number > 0 or not np.isfinite(number):
        return ""
    alpha = round(255 * (0.06 + 0.7 * float(number) / top))
    return f' style="background:#e24a33{alpha:02x}"'


def _legend(top: float | None, masked: bool, lang: str) -> str:
    """What the colours and the hatching mean, where there are any."""
    items = []
    if top is not None:
        for number in (0.0, top / 2, top):
            items.append(f'<span class="swatch"{_colour(number, top)}></span>{number:.3g}')
    if masked:
        items.append(f'<span class="swatch masked"></span>{escape(phrase("masked", lang))}')
    return f'<div class="legend">{" ".join(items)}</div>' if items else ""
