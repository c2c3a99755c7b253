"""Create figures for all plots, with their colours and fonts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from io import BytesIO
from typing import Any
from weakref import WeakKeyDictionary

from matplotlib import font_manager, get_backend
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

# Colours of lines in drawing order. The first matches the reds of the heat maps.
LINES = ("#c2313a", "#2f6db3", "#3d9454", "#8b5fa8", "#d5822a", "#4fa3a5")
POINTS = "#2f6db3"
TRUTH = "#555555"
GRID = "#e4e4e4"
MASKED, HATCH = "#f2f2f2", "#bdbdbd"
NOT_FINITE = "#30475e"
FRAME = "#777777"

CHINESE = "\u2e80"  # characters from here on need a Chinese font

# Names of fonts with Chinese characters in matplotlib. The first ones are free.
CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Microsoft YaHei",
    "SimHei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Heiti TC",
    "Arial Unicode MS",
)


class Picture(Figure):
    """A Figure that a notebook shows exactly once, with or without pyplot.

    IPython registers how to show a Figure when pyplot creates the first figure. Before that, it
    would print only the name of the Figure. Afterwards it shows all figures of pyplot at the end of
    the cell.
    """

    def _ipython_display_(self) -> None:
        """Close the figure in pyplot before it is shown, so that pyplot does not show it again."""
        if "matplotlib.pyplot" in sys.modules and "inline" in get_backend():
            let_go(self)
        raise NotImplementedError  # IPython then uses the other formats

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return a PNG with twice the screen resolution, and its size on the screen."""
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=2 * self.dpi, bbox_inches="tight")
        png = buffer.getvalue()
        # Width and height are the first two numbers of a PNG's header.
        width, height = (int.from_bytes(png[i : i + 4], "big") // 2 for i in (16, 20))
        return png, {"width": width, "height": height}


def new_figure(figsize: Sequence[float]) -> Figure:
    """Return an empty Figure with constrained layout.

    If pyplot has been imported, the Figure is a pyplot figure, so a notebook cell or
    ``plt.show()`` shows it. This function does not import pyplot.
    """
    try:
        width, height = map(float, figsize)
    except (TypeError, ValueError):
        expected = "a pair of numbers (width, height), in inches"
        raise TypeError(f"figsize is {figsize!r}, expected {expected}") from None
    pyplot = sys.modules.get("matplotlib.pyplot")
    make = Picture if pyplot is None else partial(pyplot.figure, FigureClass=Picture)
    return make(figsize=(width, height), layout="constrained")


def let_go(figure: Figure) -> None:
    """Close this Figure in pyplot, if pyplot has been imported."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)


def axes_to_draw_in(ax: Axes | None, figsize: Sequence[float]) -> Axes:
    """Return the given Axes, or new ones, with a light grid and without top and right spines."""
    if ax is not None and not isinstance(ax, Axes):
        raise TypeError(f"ax is of type {type(ax).__name__}, expected matplotlib Axes")
    axes = new_figure(figsize).add_subplot() if ax is None else ax
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def whole_numbers() -> MaxNLocator:
    """Return a locator that puts ticks at whole numbers only, at least one."""
    return MaxNLocator("auto", integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])


# ---- words ---------------------------------------------------------------------------------------

# The name in the legend of each curve that draw_curve has drawn. matplotlib leaves an artist out of
# a legend if its label begins with an underscore, so the label alone does not say.
_NAMES: WeakKeyDictionary[Artist, str] = WeakKeyDictionary()


def as_written(*texts: Text) -> None:
    """Draw these texts as they are written: neither $ nor \\ nor _ is markup."""
    for text in texts:
        text.set_parse_math(False)
        text.set_usetex(False)


def draw_curve(axes: Axes, *args: Any, name: str | None, **style: Any) -> None:
    """Draw what ``axes.plot`` draws, with this name in the legend; None: not in the legend."""
    (line,) = axes.plot(*args, label="_" if name is None else name, **style)
    if name:
        _NAMES[line] = name


def name_axes(axes: Axes, xlabel: str, ylabel: str, title: str | None = None) -> None:
    """Write the names of the axes and the heading, and the legend if a curve has a name."""
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    as_written(axes.xaxis.label, axes.yaxis.label)
    if title is not None:
        as_written(axes.set_title(title, fontsize="medium"))
    _draw_legend(axes)


def _draw_legend(axes: Axes) -> None:
    """Draw a legend: names of draw_curve as written, the caller's labels as matplotlib does."""
    handles, labels = axes.get_legend_handles_labels()
    others = {id(handle): label for handle, label in zip(handles, labels, strict=True)}
    lines = [line for line in axes.lines if line in _NAMES or id(line) in others]
    entries = [*lines, *(each for each in handles if each not in lines)]
    if not entries:
        return
    # An empty label for now: one with an underscore would be left out here too.
    legend = axes.legend(
        entries, [""] * len(entries), fontsize="small", framealpha=0.85, edgecolor="none"
    )
    for entry, text in zip(entries, legend.get_texts(), strict=True):
        if entry in _NAMES:
            as_written(text)
        text.set_text(_NAMES[entry] if entry in _NAMES else others[id(entry)])


def finish(figure: Figure) -> Figure:
    """Have Chinese characters drawn in a font that has them, if one is installed."""
    chinese = [
        text
        for text in figure.findobj(Text)
        if any(letter >= CHINESE for letter in text.get_text())
    ]
    if chinese:
        installed = set(font_manager.get_font_names())
        fonts = [name for name in CHINESE_FONTS if name in installed]
        for text in chinese:
            text.set_fontfamily([*text.get_fontfamily(), *fonts])
    return figure
