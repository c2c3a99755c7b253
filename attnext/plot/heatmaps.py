"""Heat maps of attention weights, scores or other matrices, with one colour scale."""

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

_OUTLINED = 16  # draw lines between cells up to this number of rows and columns


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
    """Plot matrices as heat maps with one colour scale.

    Parameters
    ----------
    matrices : array_like, shape (rows, columns, M, N), (columns, M, N) or (M, N)
        A grid of heat maps, one row of heat maps, or a single one. Each has M queries from top to
        bottom and N keys from left to right. Arrays, tensors and lists of these are accepted,
        including tensors that require grad.
    xlabel, ylabel : str, default "Keys" and "Queries"
        Labels of the columns and rows, at the bottom and on the left of the grid.
    titles : sequence of str, optional
        One title for each column of the grid, or one for each heat map, row by row.
    figsize : tuple of two floats, or None, default (2.5, 2.5)
        Width and height of the whole figure, in inches. None chooses a size in which all labels
        are readable.
    cmap : str or matplotlib.colors.Colormap, default "Reds"
        The colour map.
    valid_lens : None, int or array_like of integers, optional
        Number of valid keys, in any shape that `attnext.masked_softmax` accepts for an X of the
        shape of `matrices`. The other cells are masked: they are hatched, and their values are
        ignored.
    mask : array_like of bool, optional
        True where a query attends to a key; broadcasts to the shape of `matrices`. Cells with False
        are masked.
    xticklabels : sequence of N str, optional
        A label for each key, for example a token. Default: indices.
    yticklabels : sequence of M str, optional
        A label for each query. Default: indices.
    vmin, vmax : float, optional
        The limits of the colour scale. For the defaults see Notes.
    fig : matplotlib.figure.Figure or SubFigure, optional
        Figure to draw in. Default: a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        The figure; with `fig`, the figure that is or contains `fig`.

    Raises
    ------
    TypeError
        If `matrices` does not contain real numbers or bools, or another argument has the wrong
        type.
    ValueError
        If `matrices` has another shape or is empty, if the number of titles or labels is wrong, if
        the shape of `valid_lens` or `mask` does not fit, or if `vmin` is not below `vmax`.

    Notes
    -----
    The function has the name and signature of d2l's function, with four differences. The labels
    have defaults. All heat maps share one colour scale: it starts at 0 if all unmasked cells are
    between 0 and 1, otherwise at the smallest unmasked cell, and it ends at the largest one. Cells
    that are NaN or infinite have a separate colour, and a legend explains this colour and the
    hatching. The function returns the figure; `attnext.plot` describes when it is shown.

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
    """The cells of all heat maps, and a mask of the masked cells."""

    values: Numbers  # (rows, columns, M, N)
    masked: NDArray[np.bool_]  # (rows, columns, M, N)

    @property
    def not_finite(self) -> Numbers:
        """Return the unmasked cells that are NaN or infinite."""
        taking_part = self.values[~self.masked]
        return taking_part[~np.isfinite(taking_part)]

    def scale(self, vmin: float | None, vmax: float | None) -> Normalize:
        """Return the scale of the unmasked cells. It starts at 0 if all of them are in [0, 1]."""
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
    """Return the matrices as a grid of heat maps, with the mask of the arguments."""
    if matrices is None:
        raise TypeError(
            "matrices is None, expected real numbers: the attention_weights of a layer are None "
            "before its first call and after a call with need_weights=False"
        )
    values = as_numbers("matrices", matrices)
    if not 2 <= values.ndim <= 4:
        expected = "(M, N), (columns, M, N) or (rows, columns, M, N)"
        raise ValueError(f"matrices has shape {values.shape}, expected {expected}")
    if values.size == 0:
        raise ValueError(f"matrices has shape {values.shape}, expected at least one cell")
    # A cell is masked if a softmax of equal scores gives it the weight 0.
    equal = np.zeros(values.shape, np.float32)
    masked = masked_softmax(equal, valid_lens, mask=mask, empty_rows="zero") == 0
    grid = (1,) * (4 - values.ndim) + values.shape
    return _Cells(values.reshape(grid), masked.reshape(grid))


def _as_headings(titles: Sequence[str] | None, rows: int, columns: int) -> list[str]:
    """Return one title for each heat map. Titles of columns appear above the first row only."""
    headings = [""] * columns if titles is None else as_texts("titles", titles)
    if len(headings) == rows * columns:
        return headings
    if len(headings) != columns:
        every = f" or {rows * columns} (one for each heat map)" if rows > 1 else ""
        expected = f"{columns} (one for each column)" + every
        raise ValueError(f"titles has length {len(headings)}, expected {expected}")
    return headings + [""] * ((rows - 1) * columns)


# ---- how it is drawn -----------------------------------------------------------------------------


def _draw(
    axes: Axes, matrix: Numbers, masked: NDArray[np.bool_], scale: Normalize, colours: Colormap
) -> AxesImage:
    """Draw one heat map. The hatched background is visible where a cell is masked."""
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
    """Label the ticks with names, slanted if they are long, or with some of the indices."""
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
    """Add a legend for masked and non-finite cells, if there are any."""
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
    """Set constrained layout on a figure of the caller, unless it has a layout engine."""
    if not isinstance(fig, Figure | SubFigure):
        raise TypeError(f"fig is of type {type(fig).__name__}, expected a matplotlib Figure")
    whole = fig.figure
    if whole.get_layout_engine() is None:
        whole.set_layout_engine("constrained")


def _fitting(cells: _Cells, keys: list[str], queries: list[str]) -> tuple[float, float]:
    """Return a width and height, in inches, in which heat maps and labels are readable."""
    rows, columns, M, N = cells.values.shape
    least = 0.2 if keys or queries else 0.05
    cell = max(min(0.32, 2.4 / max(M, N), 7.5 / (columns * N)), least)
    letters = [max(map(text_columns, names), default=2) for names in (keys, queries)]
    width = columns * (max(N * cell, 0.8) + 0.2) + 1.1 + 0.07 * letters[1]
    height = rows * (max(M * cell, 0.4) + 0.35) + 0.6 + 0.05 * letters[0]
    return width, height
