"""Pictures of attention: heat maps of weights, curves of a regression, a loss, of positions.

Needs matplotlib. The first call of each, and its picture, are those of *Dive into Deep Learning*
(d2l). Every function returns the Figure it has drawn, and ``savefig`` writes it to a file.

Where ``matplotlib.pyplot`` has been imported, as d2l does, the Figure is a new one of pyplot's: it
is shown at the end of a notebook's cell, wherever in the cell it was drawn, and by ``plt.show()``
in a script. Where it has not, nothing is kept anywhere and pyplot is not imported: a Figure that
is the last line of a cell shows itself. No setting of matplotlib is changed in either case. To
have a picture drawn elsewhere: ``show_heatmaps(..., fig=figure)``, ``plot_loss(..., ax=axes)``.

Titles, labels and names in legends are drawn as they are written: ``$`` begins no formula, and a
name with a leading underscore is in the legend. To have matplotlib read a title as a formula:
``figure.axes[0].title.set_parse_math(True)``.

    heatmaps.py     show_heatmaps
    curves.py       plot_kernel_regression, plot_loss, plot_positional_encoding
    figures.py      the Figure, its colours and fonts
    drawable.py     the checking of arguments, used by all the others
"""

from attnext._hints import suggest_names as _suggest_names
from attnext._needed import needed

with needed(
    "attnext.plot draws with matplotlib, which is not installed: pip install matplotlib",
    "matplotlib",
):
    from .curves import plot_kernel_regression, plot_loss, plot_positional_encoding
    from .heatmaps import show_heatmaps

__all__ = ["plot_kernel_regression", "plot_loss", "plot_positional_encoding", "show_heatmaps"]

_suggest_names(__name__, __all__)


def __dir__() -> list[str]:
    """What completion offers: not the files that this is made of."""
    return __all__
