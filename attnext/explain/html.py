"""Format an explanation as HTML for a notebook, without scripts and external files.

Background colours are transparent and the text colour is the notebook's, so that light and dark
themes work. Hatching behind a number is faint. A step is a <details> element, which can be folded.
A CSS rule per column makes the heading of the column under the pointer bold.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from attnext._width import columns as width
from attnext.explain.tables import Limits, Table, is_cut, summary_text, tables
from attnext.explain.words import phrase

if TYPE_CHECKING:
    from attnext.explain.trace import Step, Trace

HEAT_MAPS = frozenset(
    {"weights", "softmax", "kept", "given", "again"}
)  # large ones are drawn without numbers
PIXELS = Limits(tables=4, side=32)  # limits of heat maps
SHADES = 20  # of each of the two colours
HEADING = 10  # maximum width of a column heading if the numbers are not wider


def _shade(hue: str, part: float) -> str:
    """Return a colour with an opacity that keeps text readable; 0 < part <= 1."""
    return f"{hue}{round(255 * (0.06 + 0.7 * part)):02x}"


_SHADES = "\n".join(
    f".attnext .{sign}{i} {{ background: {_shade(hue, i / SHADES)}; }}"
    for sign, hue in (("p", "#e24a33"), ("n", "#3b7dd8"))
    for i in range(1, SHADES + 1)
)
_POINTED_AT = ",\n".join(
    f".attnext table:has(td:nth-child({i}):hover) tr:first-child th:nth-child({i})"
    for i in range(2, Limits().columns + 2)
)

STYLE = f"""<style>
div:has(> .attnext) {{ background: transparent !important; color: inherit !important; }}
.attnext {{ max-width: 62em; font-size: 13px; line-height: 1.5; }}
.attnext .title {{ font-size: 1.25em; font-weight: 600; }}
.attnext .step {{ margin: 1em 0; padding-left: .9em;
  border-left: 3px solid rgba(128,128,128,.35); }}
.attnext summary {{ cursor: pointer; }}
.attnext .name {{ font-weight: 600; }}
.attnext .shape {{ font-family: monospace; opacity: .7; margin-left: .6em; }}
.attnext code {{ color: inherit; background: rgba(128,128,128,.15); padding: .1em .4em;
  overflow-wrap: anywhere;
  border-radius: 3px; }}
.attnext .tables {{ display: flex; flex-wrap: wrap; gap: .7em 1.6em; overflow-x: auto;
  margin-top: .4em; padding: 2px; }}
.attnext .tables > div {{ max-width: 100%; overflow-x: auto; }}
.attnext .label {{ opacity: .75; }}
.attnext table.numbers {{ border-collapse: collapse; margin: 0; font-size: 12px; color: inherit; }}
.attnext table.numbers tr {{ background: transparent; }}
.attnext table.numbers td, .attnext table.numbers th {{ border: 1px solid rgba(128,128,128,.3);
  box-sizing: content-box; padding: .15em .5em; min-width: var(--w, 1.6em); text-align: right;
  overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
  font-variant-numeric: tabular-nums; color: inherit; }}
.attnext table.numbers th {{ font-weight: normal; opacity: .7; border-color: transparent; }}
.attnext table.numbers th[title] {{ max-width: var(--w, none); }}
.attnext table.numbers td:hover {{ outline: 2px solid rgba(128,128,128,.6); }}
.attnext table.numbers tr:hover th:first-child,
{_POINTED_AT} {{ font-weight: 600; opacity: 1; }}
.attnext table.pixels th {{ padding: 0 .3em; min-width: 0; max-width: none;
  font-size: 10px; line-height: 1; }}
.attnext table.pixels tr:first-child th:not(:first-child) {{ writing-mode: vertical-rl;
  padding: .3em 0; }}
.attnext table.pixels td {{ width: 9px; min-width: 9px; max-width: 9px; height: 9px; padding: 0;
  border: 1px solid rgba(128,128,128,.12); }}
.attnext .masked {{ background: repeating-linear-gradient(45deg,
  transparent 0 5px, rgba(128,128,128,.3) 5px 6px); }}
.attnext table.pixels .masked {{ background: repeating-linear-gradient(45deg,
  transparent 0 3px, rgba(128,128,128,.6) 3px 4px); }}
.attnext .legend {{ margin-top: .2em; }}
.attnext .swatch {{ display: inline-block; width: 1.6em; height: 1em; margin: 0 .4em;
  vertical-align: -.15em; border: 1px solid rgba(128,128,128,.3); }}
.attnext .foot {{ opacity: .8; }}
{_SHADES}
</style>"""


def trace_html(trace: Trace) -> str:
    """Return all steps as HTML."""
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
    """Return one step as HTML."""
    return _page([_step(step, "")])


def _page(parts: list[str]) -> str:
    return "\n".join(['<div class="attnext">', STYLE, *parts, "</div>"])


def _step(step: Step, number: str) -> str:
    lines = [
        f'<summary><span class="name">{escape(number + step.name)}</span>'
        f'<span class="shape">{escape(str(step.shape))}</span></summary>',
        f"<code>{escape(step.formula)}</code>",
        f"<br>{escape(step.note)}",
    ]
    if summary := summary_text(step, Limits()):
        lines.append(f"<br>{escape(summary)}")
    pixels = step.key in HEAT_MAPS and is_cut(step, Limits())
    drawn = list(tables(step, PIXELS if pixels else Limits()))
    top = _top(step)
    headed = not pixels or any(step.labels[-2:])  # names, but not the numbers of small cells
    html = "".join(_table(table, top, pixels, headed, step.lang) for table in drawn)
    columns = "" if pixels else f' style="--w:{_columns(drawn)}ch"'
    lines.append(f'<div class="tables"{columns}>{html}</div>')
    lines.append(_legend(step, top, drawn))
    return '<details class="step" open>' + "\n".join(lines) + "</details>"


def _top(step: Step) -> float:
    """Return the absolute value that has the strongest colour. Booleans have no colour."""
    if step.values.dtype.kind == "b":
        return 2.0
    finite = step.values[np.isfinite(step.values)]
    return float(np.max(np.abs(finite), initial=0.0)) or 1.0


def _columns(drawn: list[Table]) -> int:
    """Return the width of the columns: the widest number or short heading of a step."""
    numbers = [width(text) for table in drawn for row in table.cells for text in row]
    headings = [min(width(text), HEADING) for table in drawn for text in table.columns]
    return max([2, *numbers, *headings])


def _table(table: Table, top: float, pixels: bool, headed: bool, lang: str) -> str:
    rows = []
    if headed:
        headings = "".join(map(_heading, table.columns))
        rows.append(f"<tr><th>{escape(table.corner)}</th>{headings}</tr>")
    for i, heading in enumerate(table.rows):
        cells = f"<th>{escape(heading)}</th>" if headed else ""
        for j, text in enumerate(table.cells[i]):
            shade = "masked" if table.masked[i, j] else _class(table.numbers[i, j], top)
            kind = f' class="{shade}"' if shade else ""
            if pixels:
                pair = phrase("comma", lang).join((heading, table.columns[j]))
                cells += f'<td{kind} title="{escape(pair)}: {escape(text)}"></td>'
            else:
                cells += f"<td{kind}>{escape(text)}</td>"
        rows.append(f"<tr>{cells}</tr>")
    kind = "numbers pixels" if pixels else "numbers"
    label = phrase("comma", lang).join(filter(None, [table.label, "" if headed else table.corner]))
    label = f'<div class="label">{escape(label)}</div>' if label else ""
    return f'<div>{label}<table class="{kind}">{"".join(rows)}</table></div>'


def _heading(column: str) -> str:
    """Return the heading of a column, with the full name as title if it may be cut."""
    cut = f' title="{escape(column)}"' if width(column) > HEADING else ""
    return f"<th{cut}>{escape(column)}</th>"


def _class(number: float, top: float) -> str:
    """Return the CSS class for the shade of a number; empty for 0."""
    if number == 0 or not np.isfinite(number):
        return ""
    shade = min(max(math.ceil(SHADES * abs(float(number)) / top), 1), SHADES)
    return f"{'p' if number > 0 else 'n'}{shade}"


def _legend(step: Step, top: float, drawn: list[Table]) -> str:
    """Return a legend of the colours and the hatching."""
    items = []
    numbers = [table.numbers[~table.masked] for table in drawn]
    if step.values.dtype.kind != "b":
        least = -top if any((x < 0).any() for x in numbers) else 0.0
        for number in (least, (least + top) / 2, top):
            items.append(f'<span class="swatch {_class(number, top)}"></span>{number:.3g}')
    if any(table.masked.any() for table in drawn):
        words = escape(phrase("masked", step.lang))
        items.append(f'<span class="swatch masked"></span>{words}')
    return f'<div class="legend">{" ".join(items)}</div>' if items else ""
