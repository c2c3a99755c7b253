"""The picture of README: the speed of the peers relative to attnext, as SVG for light and dark."""

from __future__ import annotations

from html import escape
from typing import Any, NamedTuple

from .report import number, times
from .shown import FAMILIES, Shown, fastest, rows_shown


class Colours(NamedTuple):
    """Of a page."""

    page: str
    text: str
    faint: str  # text that explains
    line: str
    ours: str
    theirs: str


PAGES = {
    "light": Colours("#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#0969da", "#a9b4c0"),
    "dark": Colours("#0d1117", "#f0f6fc", "#9198a1", "#3d444d", "#4493f8", "#59636e"),
}
FONT = (
    "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'Noto Sans CJK SC', Helvetica, sans-serif"
)

WORDS = {
    "en": {
        "title": "Speed relative to attnext (longer is faster)",
        "measured": "One thread, {cpu}, {set}, {date}.",
        "note": "The number next to a bar: its time divided by the time of attnext. PyTorch: its "
        "fastest function.",
        "desc": "Bars for attnext, PyTorch, JAX, ONNX Runtime and NumPy in each of {n} cases",
    },
    "zh": {
        "title": "与 attnext 相比的速度：越长越快",
        "measured": "单线程，{cpu}，{set}，{date}。",
        "note": "条形右侧：耗时是 attnext 的多少倍。PyTorch 取其最快的方式。",
        "desc": "{n} 种情形中 attnext、PyTorch、JAX、ONNX Runtime 和 NumPy 的条形",
    },
}

WIDTH, MARGIN, GAP = 880, 24, 32
PANEL = (WIDTH - 2 * MARGIN - GAP) // 2
TOP, BAR, PITCH, TITLE, BETWEEN = 58, 13, 19, 24, 20
NAMES, NUMBERS = 98, 60  # left and right of the bars


def pictures(record: dict[str, Any]) -> dict[str, str]:
    """By the name of its file: a picture for each page and language, of one thread."""
    suffix = {"en": "", "zh": ".zh-CN"}
    return {
        f"speed-{page}{suffix[lang]}.svg": picture(record, page, lang)
        for page in PAGES
        for lang in WORDS
    }


def picture(record: dict[str, Any], page: str, lang: str) -> str:
    """Panels in two columns, one below the other; each as high as its column's neighbour."""
    colours, words = PAGES[page], WORDS[lang]
    panels = [(shown, bars(row)) for shown, row in rows_shown(record, 1)]
    parts, y = [], float(TOP)
    for i in range(0, len(panels), 2):
        pair = panels[i : i + 2]
        parts += [
            panel(MARGIN + k * (PANEL + GAP), y, *pair[k], colours, lang) for k in range(len(pair))
        ]
        y += TITLE + PITCH * max(len(found) for _, found in pair) + BETWEEN
    measured = words["measured"].format(
        cpu=record["cpu"],
        set=record["config"]["instruction_set"]["chosen"],
        date=record["date"],
    )
    height = y + 41
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" height="{height:.0f}" role="img" font-family="{FONT}">\n'
        f"<title>{escape(words['title'])}</title>\n"
        f"<desc>{escape(words['desc'].format(n=len(panels)))}</desc>\n"
        f'<rect width="{WIDTH}" height="{height:.0f}" rx="8" fill="{colours.page}"/>'
    )
    title = text(MARGIN, 34, words["title"], colours.text, size=18, weight=600)
    feet = [
        text(MARGIN, height - 33, measured, colours.faint, size=12),
        text(MARGIN, height - 16, words["note"], colours.faint, size=12),
    ]
    return "\n".join([head, title, *parts, *feet, "</svg>"]) + "\n"


def bars(row: dict[str, Any]) -> list[tuple[str, float, str]]:
    """Who, how fast beside attnext, and what stands at the bar's end."""
    ours = float(row["times"]["attnext"]["min"])
    found = [("attnext", 1.0, number(ours).replace("us", "µs"))]
    for family in FAMILIES:
        if name := fastest(row, family):
            factor = float(row["times"][name]["min"]) / ours
            found.append((family, 1 / factor, times(factor).replace("x", "×")))
    return found


def panel(
    x: float,
    y: float,
    shown: Shown,
    found: list[tuple[str, float, str]],
    colours: Colours,
    lang: str,
) -> str:
    """The bars of a case below its title; the longest fills the room there is."""
    room = PANEL - NAMES - NUMBERS
    longest = max(length for _, length, _ in found)
    parts = [text(x, y + 12, shown.en if lang == "en" else shown.zh, colours.text, 13, 600)]
    bottom = y + TITLE + PITCH * len(found)
    parts.append(f'<path d="M{x + NAMES - 0.5} {y + TITLE}V{bottom - 4}" stroke="{colours.line}"/>')
    for i, (name, length, label) in enumerate(found):
        top, width = y + TITLE + i * PITCH, max(1.5, room * length / longest)
        base, ours = top + BAR - 2.5, i == 0
        parts += [
            text(x + NAMES - 8, base, name, colours.text if ours else colours.faint, 12,
                 600 if ours else 400, "end"),
            f'<rect x="{x + NAMES}" y="{top}" width="{width:.1f}" height="{BAR}" rx="2" '
            f'fill="{colours.ours if ours else colours.theirs}"/>',
            text(x + NAMES + width + 6, base, label, colours.text, 12, 600 if ours else 400),
        ]  # fmt: skip
    return "\n".join(parts)


def text(
    x: float, y: float, said: str, colour: str, size: int, weight: int = 400, anchor: str = "start"
) -> str:
    """A line."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" fill="{colour}">{escape(said)}</text>'
    )
