"""How wide text is in letters of even width, of which a Chinese character takes two columns.

The twins of `len`, `str.ljust`, `str.rjust` and `textwrap.wrap`, counted in columns.
"""

from __future__ import annotations

import re
from unicodedata import combining, east_asian_width

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_WIDE = "\u2e80-\u9fff\uf900-\ufaff\uff00-\uff60"  # Chinese characters and their punctuation
_OPENING, _CLOSING = "（《“", "。，、；：！？）》”"
# What stays on one line: a Chinese character or a word of others, with the brackets before it and
# the punctuation behind it, so that no line begins with a comma or ends with an open bracket.
_PIECE = re.compile(rf"[{_OPENING}]*(?:[{_WIDE}]|[^\s{_WIDE}]+)[{_CLOSING}]*")


def columns(text: str) -> int:
    """The columns that `text` takes; colours take none."""
    text = _COLOUR.sub("", text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def ljust(text: str, width: int) -> str:
    """`text` and as many spaces as fill the width."""
    return text + " " * (width - columns(text))


def rjust(text: str, width: int) -> str:
    """As many spaces as fill the width, and `text`."""
    return " " * (width - columns(text)) + text


def shorten(text: str, width: int) -> str:
    """`text`, or as much of it as leaves room for an ellipsis."""
    if columns(text) <= width:
        return text
    while columns(text) >= width:
        text = text[:-1]
    return text + "…"


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most so many columns; a longer word, a path say, has a line of its own.

    A line ends at a space or beside a Chinese character.
    """
    lines, line, end = [], "", 0
    for piece in _PIECE.finditer(text):
        space = " " if piece.start() > end else ""
        end = piece.end()
        if line and columns(line + space + piece[0]) > width:
            lines.append(line)
            line = piece[0]
        else:
            line += space * bool(line) + piece[0]
    return [*lines, line] if line else lines
