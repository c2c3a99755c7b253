"""HTML for pages without a kernel: the last state of a view, or a trace if scripts are off."""

from __future__ import annotations

from html import escape
from typing import Any

from attnext.explain.trace import Trace
from attnext.view.module import module
from attnext.view.packing import SAVED, as_json, pack_trace


def page_part(identifier: str, trace: Trace, state: dict[str, Any]) -> str:
    """Return an element with this id and the script that draws into it, without external files."""
    saved = as_json({**state, "result": pack_trace(trace, SAVED)})
    name = escape(identifier, quote=True)
    return (
        f'<div id="{name}">{trace._repr_html_()}</div>\n'
        f'<script type="module">\n{module()}\nrestore("{name}", {saved});\n</script>'
    )
