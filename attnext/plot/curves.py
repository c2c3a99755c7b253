"""Plots of curves: kernel regression, losses, positional encodings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from attnext._docs.wrapped import Voice, complete, entries
from attnext._labels import as_texts
from attnext.reference.arguments import as_index, shown

from .drawable import Numbers, as_numbers, as_vector
from .figures import (
    LINES,
    POINTS,
    TRUTH,
    axes_to_draw_in,
    draw_curve,
    finish,
    name_axes,
    whole_numbers,
)

_FEW = 20  # a curve of at most this many losses also has a marker at each loss

_F = TypeVar("_F", bound=Callable[..., Figure])
_RESULT = Voice(
    see="",
    returns="matplotlib.figure.Figure\n    The figure; with `ax`, the figure that contains `ax`.",
)
_ARGUMENTS = """\
xlabel, ylabel : str, optional
    Labels of the axes.
title : str, optional
    Title of the plot.
figsize : tuple of two floats, default {figsize}
    Width and height of a new figure, in inches.
ax : matplotlib.axes.Axes, optional
    Axes to draw in. Default: the axes of a new figure."""


def _told(function: _F) -> _F:
    """Add the shared parameters and the result to the docstring of a function, and return it."""
    parameters = inspect.signature(function).parameters
    shared = entries(_ARGUMENTS.format(figsize=parameters["figsize"].default))
    function.__doc__ = complete(function, parameters, shared, _RESULT)
    return function


@_told
def plot_kernel_regression(
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike,
    y_truth: ArrayLike | None,
    y_hat: ArrayLike | Mapping[str, ArrayLike],
    *,
    labels: Sequence[str] = ("truth", "prediction", "training data"),
    xlabel: str = "x",
    ylabel: str = "y",
    title: str | None = None,
    figsize: tuple[float, float] = (4.5, 3.0),
    ax: Axes | None = None,
) -> Figure:
    """Plot a kernel regression: true curve, predictions, and training examples as points.

    Parameters
    ----------
    x_train, y_train : array_like, shape (N,) or (N, 1)
        The training examples.
    x_test : array_like, shape (n,) or (n, 1)
        The x coordinates of the curves, in any order.
    y_truth : array_like, shape (n,) or (n, 1), or None
        The true curve at `x_test`, or None if it is unknown, as for real data.
    y_hat : array_like, shape (n,) or (n, 1), or a dict of such
        The predictions at `x_test`. A dict plots several curves; its keys are their names in the
        legend. The line has a gap where a prediction is NaN.
    labels : sequence of three str, optional
        Names of the true curve, the predictions and the training examples in the legend.

    Raises
    ------
    TypeError
        If an argument does not contain real numbers, `labels` is not a sequence of strings, or
        `ax` is not an Axes object.
    ValueError
        If lengths differ, an argument is empty, or there are not exactly three `labels`.

    Notes
    -----
    This is the plot of ``plot_kernel_reg(y_hat)`` in d2l. Arrays, lists and tensors are accepted,
    including tensors that require grad.

    Examples
    --------
    >>> from attnext.kernel_regression import nadaraya_watson
    >>> x_train = np.linspace(0, 5, 50)
    >>> y_train = 2 * np.sin(x_train) + x_train**0.8
    >>> x_test = np.arange(0, 5, 0.1)
    >>> y_truth = 2 * np.sin(x_test) + x_test**0.8
    >>> y_hat = nadaraya_watson(x_test, x_train, y_train)
    >>> figure = plot_kernel_regression(x_train, y_train, x_test, y_truth, y_hat)
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['training data', 'truth', 'prediction']
    """
    x_points = as_vector("x_train", x_train, "n")
    y_points = as_vector("y_train", y_train, x_points.size)
    x = as_vector("x_test", x_test, "n")
    names = as_texts("labels", labels)
    if len(names) != 3:
        raise ValueError(f"labels has length {len(names)}, expected 3: truth, prediction, data")
    truth = None if y_truth is None else as_vector("y_truth", y_truth, x.size)
    curves = _named("y_hat", y_hat, names[1], x.size)

    axes = axes_to_draw_in(ax, figsize)
    dots = {"color": POINTS, "alpha": 0.5, "markersize": 4.5}
    draw_curve(axes, x_points, y_points, "o", name=names[2], **dots)
    order = np.argsort(x, kind="stable")
    if truth is not None:
        draw_curve(axes, x[order], truth[order], "--", name=names[0], color=TRUTH, linewidth=1.6)
    # Skip the second colour, which the points use.
    colours = [LINES[0], *LINES[2:]]
    for i, (name, curve) in enumerate(curves.items()):
        colour = colours[i % len(colours)]
        draw_curve(axes, x[order], curve[order], name=name, color=colour, linewidth=2)
    name_axes(axes, xlabel, ylabel, title)
    return finish(axes.figure.figure)


@_told
def plot_loss(
    losses: ArrayLike | Mapping[str, ArrayLike],
    *,
    log: bool = False,
    xlabel: str = "epoch",
    ylabel: str = "loss",
    title: str | None = None,
    figsize: tuple[float, float] = (4.5, 3.0),
    ax: Axes | None = None,
) -> Figure:
    """Plot the loss of each epoch as a curve.

    Parameters
    ----------
    losses : array_like, shape (epochs,) or (epochs, 1), or a dict of such
        The loss after each epoch, starting with epoch 1. A list of numbers or tensors is accepted.
        A dict plots several curves; its keys are their names in the legend. The curves may have
        different lengths.
    log : bool, default False
        If True, the axis of the loss is logarithmic.

    Raises
    ------
    TypeError
        If the losses are not real numbers, or `ax` is not an Axes object.
    ValueError
        If there is no loss, if a curve is not one-dimensional, or if `log` is True and a loss is
        not above 0.

    Examples
    --------
    >>> figure = plot_loss([1.0, 0.5, 0.25], log=True)
    >>> figure.axes[0].get_yscale()
    'log'
    >>> figure = plot_loss({"additive": [1.0, 0.4, 0.2], "dot product": [1.0, 0.5]})
    >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    ['additive', 'dot product']
    """
    curves = _named("losses", losses, None, "n")
    for name, curve in curves.items():
        if log and (curve <= 0).any():
            called = f"losses[{name!r}]" if isinstance(losses, Mapping) else "losses"
            wrong = f"{curve[curve <= 0][0]:g}"
            expected = "losses > 0 on a logarithmic axis"
            raise ValueError(f"{called} contains {wrong}, expected {expected}")

    axes = axes_to_draw_in(ax, figsize)
    for i, (name, curve) in enumerate(curves.items()):
        draw_curve(
            axes,
            np.arange(1, curve.size + 1),
            curve,
            name=name,
            color=LINES[i % len(LINES)],
            linewidth=2,
            marker="o" if curve.size <= _FEW else None,
            markersize=4,
        )
    if log:
        axes.set_yscale("log")
    axes.xaxis.set_major_locator(whole_numbers())
    name_axes(axes, xlabel, ylabel, title)
    return finish(axes.figure.figure)


@_told
def plot_positional_encoding(
    encoding: ArrayLike,
    columns: Sequence[int] = (6, 7, 8, 9),
    *,
    xlabel: str = "position",
    ylabel: str = "encoding",
    title: str | None = None,
    figsize: tuple[float, float] = (6.0, 2.5),
    ax: Axes | None = None,
) -> Figure:
    """Plot columns of a positional encoding as curves over the positions.

    Parameters
    ----------
    encoding : array_like, shape (num_steps, num_hiddens)
        A result of `attnext.positional_encoding`, or any other encoding, for example a learned one.
    columns : sequence of int, optional
        The columns to plot. The default columns are those of the plot in d2l.

    Raises
    ------
    TypeError
        If `encoding` does not contain real numbers, a column is not an int, or `ax` is not an Axes
        object.
    ValueError
        If `encoding` is not two-dimensional, or does not have one of the `columns`.

    Notes
    -----
    To plot the whole encoding as a heat map: ``show_heatmaps(encoding[None, None], "column",
    "position", cmap="RdBu")``.

    Examples
    --------
    >>> import attnext
    >>> figure = plot_positional_encoding(attnext.positional_encoding(60, 32))
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['column 6', 'column 7', 'column 8', 'column 9']
    """
    numbers = as_numbers("encoding", encoding)
    if numbers.ndim != 2:
        expected = "(num_steps, num_hiddens)"
        raise ValueError(f"encoding has shape {numbers.shape}, expected {expected}")
    chosen = [as_index(f"columns[{i}]", column) for i, column in enumerate(columns)]
    for i, column in enumerate(chosen):
        if not 0 <= column < numbers.shape[1]:
            expected = f"0 <= column < {numbers.shape[1]}"
            raise ValueError(f"columns[{i}] is {shown(column)}, expected {expected}")

    axes = axes_to_draw_in(ax, figsize)
    for i, column in enumerate(chosen):
        colour, name = LINES[i % len(LINES)], f"column {column}"
        draw_curve(axes, numbers[:, column], name=name, color=colour, linewidth=2)
    axes.xaxis.set_major_locator(whole_numbers())
    name_axes(axes, xlabel, ylabel, title)
    return finish(axes.figure.figure)


def _named(name: str, curves: Any, label: str | None, size: int | str) -> dict[Any, Numbers]:
    """Return the curves by their names in the legend. `label` is the name of a single curve."""
    if not isinstance(curves, Mapping):
        return {label: as_vector(name, curves, size)}
    if not curves:
        raise ValueError(f"{name} is an empty dict, expected at least one curve")
    return {str(key): as_vector(f"{name}[{key!r}]", curves[key], size) for key in curves}
