"""Pictures of attention: heat maps of weights, curves of a kernel regression and of a loss.

Needs matplotlib. The first call of each, and its picture, are those of *Dive into Deep Learning*
(d2l). Every function returns the Figure it has drawn: the last line of a notebook cell shows it,
and ``savefig`` writes it to a file. Nothing is drawn into pyplot's current figure, no setting of
matplotlib is changed, and pyplot is not even imported; to see a picture in a window of pyplot's,
have it drawn there: ``show_heatmaps(..., fig=plt.figure())``, ``plot_loss(..., ax=plt.gca())``.

    heatmaps.py     show_heatmaps
    curves.py       plot_kernel_regression, plot_loss
    figures.py      the Figure, its colours and fonts
    drawable.py     the checking of arguments, used by all the others
"""

try:
    from .curves import plot_kernel_regression, plot_loss
    from .heatmaps import show_heatmaps
except ModuleNotFoundError as error:
    if error.name != "matplotlib":
        raise
    raise ImportError(
        "attnext.plot draws with matplotlib, which is not installed: pip install matplotlib"
    ) from None

__all__ = ["plot_kernel_regression", "plot_loss", "show_heatmaps"]
