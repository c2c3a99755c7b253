"""Write a verdict as text of 80 columns, with or without colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnext._width import columns, rjust, wrap
from attnext.lab.tables import Compared, compared, heading, inputs

if TYPE_CHECKING:
    from attnext.lab.verdict import Wrong

WIDTH, INDENT, RULE = 80, "  ", " │"
SHADES = "·░▒▓█"  # of a difference: none, then by its size
REDS = (224, 217, 210, 203)  # the same as backgrounds, of 256 colours


def report_text(lines: list[str], colour: bool) -> str:
    """Return the text of a report."""
    head, *rest = lines
    wrapped = [INDENT + line for text in rest for line in wrap(text, WIDTH - len(INDENT))]
    return "\n".join([_style("✓ " + head, "32;1", colour), *wrapped])


def wrong_text(wrong: Wrong, colour: bool) -> str:
    """Return the text of an error, with the case and the two matrices."""
    lines = [_style("✗ " + wrong.headline, "31;1", colour)]
    for i, sentence in enumerate(wrong.sentences):
        style = "1" if wrong.misconception and i == 0 else ""
        lines += [INDENT + _style(line, style, colour) for line in wrap(sentence, WIDTH - 2)]
    lines += ["", INDENT + heading(wrong, "input")]
    for line in inputs(wrong):
        lines += [INDENT * 2 + part for part in wrap(line, WIDTH - 4)]
    pair = compared(wrong)
    return "\n".join(lines + ([] if pair is None else ["", *_pair(wrong, pair, colour)]))


def _pair(wrong: Wrong, pair: Compared, colour: bool) -> list[str]:
    """Return expected, got and difference next to each other, or one below the other."""
    size = max(len(t) for table in (pair.expected, pair.got) for row in table for t in row) + 2
    texts = {
        "expected": ["".join(rjust(t, size) for t in row) for row in pair.expected],
        "got": [
            "".join(_cell(t, size, h, colour) for t, h in zip(row, heat, strict=True))
            for row, heat in zip(pair.got, pair.heat, strict=True)
        ],
        "difference": ["".join(" " + _shade(h) for h in row) for row in pair.heat],
    }
    blocks = []
    for key, lines in texts.items():
        title = heading(wrong, key)
        wide = max(columns(title) + 2, *map(columns, lines))
        blocks.append([rjust(line, wide) for line in (title, *lines)])
    titled = [INDENT + pair.title]
    if sum(columns(block[0]) for block in blocks) + len(INDENT) + len(RULE) <= WIDTH:
        rows = zip(*blocks, strict=True)
        return titled + [INDENT + first + RULE + second + third for first, second, third in rows]
    return titled + [INDENT + line for block in blocks for line in block]


def _cell(text: str, size: int, heat: float, colour: bool) -> str:
    """Return a number, on a red background if it is wrong."""
    if not colour or heat == 0:
        return rjust(text, size)
    red = REDS[min(int(heat * len(REDS)), len(REDS) - 1)]
    return " " * (size - len(text)) + f"\x1b[30;48;5;{red}m{text}\x1b[0m"


def _shade(heat: float) -> str:
    return SHADES[0] if heat == 0 else SHADES[1 + min(int(heat * 4), 3)]


def _style(text: str, style: str, colour: bool) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if colour and style else text
