"""Heat maps of attention weights, scores or any other matrices, side by side on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from numpy.typing import ArrayLike, NDArray

from attnext._core import masked_softmax
from attnext._labels import as_labels, as_texts
from attnext._width import columns as text_columns

from .drawable import Numbers, as_numbers
from .figures import (
    FRAME,
    GRID,
    HATCH,
    MASKED,
    NOT_FINITE,
    finish,
    name_axes,
    new_figure,
    whole_numbers,
)

_OUTLINED = 16  # up to so many rows and columns, lines between the cells


def show_heatmaps(
    matrices: ArrayLike,
    xlabel: str = "Keys",
    ylabel: str = "Queries",
    titles: Sequence[str] | None = None,
    figsize: tuple[float, float] | None = (2.5, 2.5),
    cmap: str | Colormap = "Reds",
    *,
    valid_lens: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    xticklabels: Sequence[str] | None = None,
    yticklabels: Sequence[str] | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    fig: Figure | SubFigure | None = None,
) -> Figure:
    """Draw matrices as heat maps on one colour scale.

    Parameters
    ----------
    matrices : array_like, shape (rows, columns, M, N), (columns, M, N) or (M, N)
        A grid of pictures, a row of them, or a single one, each of M queries from top to bottom
        and N keys from left to right. An array, a tensor (also one that requires grad) or a
        list of such.
    xlabel, ylabel : str, default "Keys" and "Queries"
        What the columns and the rows are; written at the bottom and on the left of the grid.
    titles : sequence of str, optional
        One for each column of pictures, or one for each picture, row after row.
    figsize : tuple of two floats, or None, default (2.5, 2.5)
        Width and height of the whole Figure, in inches. None: so large that all can be read.
    cmap : str or matplotlib.colors.Colormap, default "Reds"
        The colours.
    valid_lens : None, int or array_like of integers, optional
        How many keys take part, in any shape that `attnext.masked_softmax` takes for an X of the
        shape of `matrices`. The other cells are drawn as masked: hatched, whatever is in them.
    mask : array_like of bool, optional
        True = attend; broadcasts to the shape of `matrices`. False cells are drawn as masked.
    xticklabels : sequence of N str, optional
        What each key is, a token for instance, in place of its index.
    yticklabels : sequence of M str, optional
        What each query is.
    vmin, vmax : float, optional
        The ends of the colour scale: see Notes.
    fig : matplotlib.figure.Figure or SubFigure, optional
        Where to draw instead of in a new Figure.

    Returns
    -------
    matplotlib.figure.Figure
        The picture; with `fig`, the Figure that it is or is part of.

    Raises
    ------
    TypeError
        If `matrices` does not hold real numbers (bools do too), or an argument is not of the kind
        it has to be.
    ValueError
        If `matrices` has another shape or no cells, a number of titles or labels does not fit,
        `valid_lens` or `mask` do not, or `vmin` is not below `vmax`.

    Notes
    -----
    d2l's function of this name and signature, with four differences. The labels have defaults.
    All the pictures are on the one scale that the colour bar shows, from the smallest to the
    largest cell that takes part; from 0 if all lie between 0 and 1, as weights do. Cells that are
    NaN or infinite have a colour of their own, and a note below says what it means, as it does for
    masked cells. The Figure is returned; it is shown as the module says.

    Examples
    --------
    >>> figure = show_heatmaps(np.eye(10), "Keys", "Queries")
    >>> weights = np.random.default_rng(0).dirichlet(np.ones(4), size=(2, 3))  # (2, 3, 4)
    >>> figure = show_heatmaps(
    ...     weights, "Keys", "Queries", ["first", "second"], figsize=(5, 2.5), valid_lens=[2, 4],
    ...     xticklabels=["the", "cat", "sat", "down"],
    ... )
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['first', 'second']
    >>> figure.savefig("weights.png")  # doctest: +SKIP
    """
    cells = _as_cells(matrices, valid_lens, mask)
    rows, columns, M, N = cells.values.shape
    headings = _as_headings(titles, rows, columns)
    keys = as_labels("xticklabels", xticklabels, N, "key")
    queries = as_labels("yticklabels", yticklabels, M, "query")
    scale, colours = cells.scale(vmin, vmax), colormaps.get_cmap(cmap)
    if fig is None:
        fig = new_figure(_fitting(cells, keys, queries) if figsize is None else figsize)
    else:
        _make_room(fig)
    grid = fig.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for (i, j), axes in np.ndenumerate(grid):
        image = _draw(axes, cells.values[i, j], cells.masked[i, j], scale, colours)
        name_axes(
            axes,
            xlabel if i == rows - 1 else "",
            ylabel if j == 0 else "",
            headings[i * columns + j],
        )
        _name_cells(axes, keys, queries)
    bar = fig.colorbar(image, ax=grid, shrink=0.6)
    bar.outline.set(linewidth=0.6, edgecolor=FRAME)
    bar.ax.tick_params(color=FRAME, labelsize="small")
    _explain(fig, cells)
    return finish(fig.figure)


# ---- what is drawn -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cells:
    """The numbers of all pictures, and which of them take no part."""

    values: Numbers  # (rows, columns, M, N)
    masked: NDArray[np.bool_]  # (rows, columns, M, N)

    @property
    def not_finite(self) -> Numbers:
        """Those that take part and have no place on the scale: NaN, inf."""
        taking_part = self.values[~self.masked]
        return taking_part[~np.isfinite(taking_part)]

    def scale(self, vmin: float | None, vmax: float | None) -> Normalize:
        """From the smallest to the largest that takes part; from 0, if they may be weights."""
        shown = self.values[~self.masked & np.isfinite(self.values)]
        low, high = (float(shown.min()), float(shown.max())) if shown.size else (0.0, 1.0)
        if low >= 0 and high <= 1:
            low = 0.0
        if low == high:
            high = low + 1.0
        low, high = low if vmin is None else float(vmin), high if vmax is None else float(vmax)
        if not low < high:
            raise ValueError(f"the colour scale is {low:g} to {high:g}, expected vmin < vmax")
        return Normalize(low, high)


def _as_cells(matrices: Any, valid_lens: Any, mask: Any) -> _Cells:
    """The matrices as a grid of pictures; masked as an attention of their shape would be."""
    if matrices is None:
        raise TypeError(
            "matrices has the value None, expected real numbers: the attention_weights of a layer "
            "are None until it is called, and after a call with need_weights=False"
        )
    values = as_numbers("matrices", matrices)
    if not 2 <= values.ndim <= 4:
        expected = "(M, N), (columns, M, N) or (rows, columns, M, N)"
        raise ValueError(f"matrices has shape {values.shape}, expected {expected}")
    if values.size == 0:
        raise ValueError(f"matrices has shape {values.shape}, expected at least one cell")
    # What takes part is what the softmax of equal scores gives a weight.
    equal = np.zeros(values.shape, np.float32)
    masked = masked_softmax(equal, valid_lens, mask=mask, empty_rows="zero") == 0
    grid = (1,) * (4 - values.ndim) + values.shape
    return _Cells(values.reshape(grid), masked.reshape(grid))


def _as_headings(titles: Sequence[str] | None, rows: int, columns: int) -> list[str]:
    """One for each picture: those of the columns stand over the first row only."""
    headings = [""] * columns if titles is None else as_texts("titles", titles)
    if len(headings) == rows * columns:
        return headings
    if len(headings) != columns:
        every = f" or {rows * columns}, one for each picture" if rows > 1 else ""
        expected = f"{columns}, one for each column of pictures" + every
        raise ValueError(f"titles has {len(headings)} entries, expected {expected}")
    return headings + [""] * ((rows - 1) * columns)


# ---- how it is drawn -----------------------------------------------------------------------------


def _draw(
    axes: Axes, matrix: Numbers, masked: NDArray[np.bool_], scale: Normalize, colours: Colormap
) -> AxesImage:
    """One picture. Where the image has a hole, the hatched background shows through."""
    finite = np.isfinite(matrix)
    if masked.any():
        axes.patch.set(facecolor=MASKED, edgecolor=HATCH, hatch="/////", linewidth=0)
    if not (finite | masked).all():
        holes = np.ma.masked_array(np.ones(matrix.shape), finite | masked)
        axes.imshow(holes, cmap=ListedColormap([NOT_FINITE]), interpolation="nearest")
    shown = np.ma.masked_array(matrix, masked | ~finite)
    image = axes.imshow(shown, cmap=colours, norm=scale, interpolation="nearest")
    for spine in axes.spines.values():
        spine.set(color=FRAME, linewidth=0.6)
    axes.tick_params(color=FRAME, labelsize="small")
    return image


def _name_cells(axes: Axes, keys: list[str], queries: list[str]) -> None:
    """Ticks: the names, slanted if they are long, or some of the indices."""
    M, N = axes.images[0].get_size()
    for axis, names in ((axes.xaxis, keys), (axes.yaxis, queries)):
        if names:
            axis.set_ticks(range(len(names)), labels=names, parse_math=False, usetex=False)
        else:
            axis.set_major_locator(whole_numbers())
    if max(map(text_columns, keys), default=0) > 2:
        for label in axes.get_xticklabels():
            label.set(rotation=45, horizontalalignment="right", rotation_mode="anchor")
    if max(M, N) <= _OUTLINED:
        axes.set_xticks(np.arange(0.5, N - 1), minor=True)
        axes.set_yticks(np.arange(0.5, M - 1), minor=True)
        axes.grid(which="minor", color=GRID, linewidth=0.6)
        axes.tick_params(which="minor", length=0)


def _explain(fig: Figure | SubFigure, cells: _Cells) -> None:
    """A note on the cells that are not on the colour scale, if there are any."""
    notes = []
    if cells.masked.any():
        notes.append(Patch(facecolor=MASKED, edgecolor=HATCH, hatch="/////", label="masked"))
    if cells.not_finite.size:
        x = cells.not_finite
        kinds = {"NaN": np.isnan(x), "inf": x == np.inf, "-inf": x == -np.inf}
        found = [name for name, cells_of_it in kinds.items() if cells_of_it.any()]
        notes.append(Patch(facecolor=NOT_FINITE, label=" or ".join(found)))
    if notes:
        note = fig.legend(handles=notes, loc="outside lower center", ncols=2, fontsize="small")
        note.set_frame_on(False)


def _make_room(fig: Figure | SubFigure) -> None:
    """A Figure of the caller's: what is drawn into it gets the room it needs there too."""
    if not isinstance(fig, Figure | SubFigure):
        raise TypeError(f"fig is of type {type(fig).__name__}, expected a matplotlib Figure")
    whole = fig.figure
    if whole.get_layout_engine() is None:
        whole.set_layout_engine("constrained")


def _fitting(cells: _Cells, keys: list[str], queries: list[str]) -> tuple[float, float]:
    """Width and height, in inches, in which these pictures and their labels can be read."""
    rows, columns, M, N = cells.values.shape
    least = 0.2 if keys or queries else 0.05
    cell = max(min(0.32, 2.4 / max(M, N), 7.5 / (columns * N)), least)
    letters = [max(map(text_columns, names), default=2) for names in (keys, queries)]
    width = columns * (max(N * cell, 0.8) + 0.2) + 1.1 + 0.07 * letters[1]
    height = rows * (max(M * cell, 0.4) + 0.35) + 0.6 + 0.05 * letters[0]
    return width, height
