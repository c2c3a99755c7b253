"""A picture for pages without a kernel: its last state, with hover; without scripts, a trace."""

from __future__ import annotations

from html import escape
from typing import Any

from attnext.explain.trace import Trace
from attnext.view.module import module
from attnext.view.packing import SAVED, as_json, pack_trace


def page_part(identifier: str, trace: Trace, state: dict[str, Any]) -> str:
    """An element of that id, and the script that draws into it. Nothing is loaded."""
    saved = as_json({**state, "result": pack_trace(trace, SAVED)})
    name = escape(identifier, quote=True)
    return (
        f'<div id="{name}">{trace._repr_html_()}</div>\n'
        f'<script type="module">\n{module()}\nrestore("{name}", {saved});\n</script>'
    )
