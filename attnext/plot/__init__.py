"""Plots of attention: heat maps, kernel regression, losses and positional encodings.

Needs matplotlib. Called as in *Dive into Deep Learning* (d2l), the functions draw the plots of d2l.
Every function returns a Figure; ``figure.savefig("plot.png")`` writes it to a file.

If ``matplotlib.pyplot`` has been imported, as in d2l, each function creates a pyplot figure. A
notebook shows it at the end of the cell, and ``plt.show()`` shows it in a script. If pyplot has not
been imported, the functions do not import it. A notebook then shows a Figure that is the last line
of a cell. No function changes the settings of matplotlib. To draw into an existing figure, use
``show_heatmaps(..., fig=figure)`` or ``plot_loss(..., ax=axes)``.

Titles, labels and legends are plain text: ``$`` does not start a formula, and a name with a leading
underscore appears in the legend. To let matplotlib read a title as a formula, call
``figure.axes[0].title.set_parse_math(True)``.

    heatmaps.py     show_heatmaps
    curves.py       plot_kernel_regression, plot_loss, plot_positional_encoding
    figures.py      create a Figure; colours and fonts
    drawable.py     check the arguments
"""

from attnext._hints import suggest_names as _suggest_names
from attnext._needed import needed

with needed(
    "attnext.plot needs matplotlib, which is not installed: pip install matplotlib",
    "matplotlib",
):
    from .curves import plot_kernel_regression, plot_loss, plot_positional_encoding
    from .heatmaps import show_heatmaps

__all__ = ["plot_kernel_regression", "plot_loss", "plot_positional_encoding", "show_heatmaps"]

_suggest_names(__name__, __all__)


def __dir__() -> list[str]:
    """Return the public names, so that completion does not offer the modules of the package."""
    return __all__
