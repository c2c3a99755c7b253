"""Write a verdict as HTML for a notebook, in the style of attnext.explain, without scripts.

Colours are transparent ones over whatever the notebook's background is.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from attnext.explain.html import STYLE
from attnext.lab.tables import Compared, compared, heading, inputs

if TYPE_CHECKING:
    from attnext.lab.verdict import Wrong

_STYLE = """<style>
.attnext .lab { padding-left: .9em; border-left: 3px solid rgba(128,128,128,.35); }
.attnext .lab.wrong { border-color: #e24a33; }
.attnext .lab.right { border-color: #2ca05a; }
.attnext .lab .named { font-weight: 600; margin: .3em 0; }
.attnext .lab details { margin-top: .4em; }
.attnext .lab pre { margin: .3em 0 0; background: transparent; color: inherit; font-size: 12px;
  white-space: pre-wrap; }
</style>"""


def report_html(lines: list[str]) -> str:
    """Return the HTML of a report."""
    head, *rest = lines
    return _page("right", "✓ " + head, [f"<div>{escape(line)}</div>" for line in rest])


def wrong_html(wrong: Wrong) -> str:
    """Return the HTML of an error, with the two matrices, and the case to unfold."""
    parts = []
    for i, sentence in enumerate(wrong.sentences):
        named = ' class="named"' if wrong.misconception and i == 0 else ""
        parts.append(f"<div{named}>{escape(sentence)}</div>")
    pair = compared(wrong)
    if pair is not None:
        parts.append(f'<div class="label">{escape(pair.title)}</div>')
        parts.append(f'<div class="tables">{_pair(wrong, pair)}</div>')
    case = escape("\n".join(inputs(wrong)))
    title = escape(heading(wrong, "input"))
    parts.append(f"<details open><summary>{title}</summary><pre>{case}</pre></details>")
    return _page("wrong", "✗ " + wrong.headline, parts)


def _page(kind: str, title: str, parts: list[str]) -> str:
    head = f'<div class="title">{escape(title)}</div>'
    body = [f'<div class="lab {kind}">', head, *parts, "</div>"]
    return "\n".join(['<div class="attnext">', STYLE, _STYLE, *body, "</div>"])


def _pair(wrong: Wrong, pair: Compared) -> str:
    """Return expected, got, and a heat map of the difference."""
    plain = [["\N{NO-BREAK SPACE}"] * len(row) for row in pair.expected]
    hot = [[_colour(float(heat)) for heat in row] for row in pair.heat]
    cold = [[""] * len(row) for row in pair.heat]
    tables = [("expected", pair.expected, cold), ("got", pair.got, hot), ("difference", plain, hot)]
    return "".join(_table(heading(wrong, key), rows, styles) for key, rows, styles in tables)


def _table(title: str, rows: list[list[str]], styles: list[list[str]]) -> str:
    body = "".join(
        "<tr>"
        + "".join(f"<td{s}>{escape(t)}</td>" for t, s in zip(row, of_row, strict=True))
        + "</tr>"
        for row, of_row in zip(rows, styles, strict=True)
    )
    label = f'<div class="label">{escape(title)}</div>'
    return f'<div>{label}<table class="numbers">{body}</table></div>'


def _colour(heat: float) -> str:
    return f' style="background:#e24a33{round(255 * (0.1 + 0.65 * heat)):02x}"' if heat else ""
