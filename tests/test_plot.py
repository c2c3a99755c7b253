"""attnext.plot: what is in the pictures, and that nothing else is touched.

The pictures themselves were looked at; here the numbers behind them are: the cells of an image,
the points of a line, the texts, and in a few places the colour of a pixel.
"""

from __future__ import annotations

import doctest
import importlib
import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import attnext
from attnext._width import columns
from attnext.plot import figures as figures_module
from attnext.plot import (
    plot_kernel_regression,
    plot_loss,
    plot_positional_encoding,
    show_heatmaps,
)

Array = NDArray[Any]


def weights(*shape: int, seed: int = 0) -> Array:
    """Random attention weights: every row sums to 1."""
    scores = np.random.default_rng(seed).normal(size=shape)
    return attnext.masked_softmax(scores)


def grid_of(figure: Figure) -> list[Axes]:
    """The axes of the pictures, row after row, without that of the colour bar."""
    return figure.axes[:-1]


def cells_of(axes: Axes) -> np.ma.MaskedArray[Any, Any]:
    """The numbers that a picture shows; masked where it has a hole."""
    return np.ma.asarray(axes.images[-1].get_array())


def scale_of(figure: Figure) -> tuple[float, float]:
    """The ends of the scale, which must be the same in all pictures."""
    (scale,) = {axes.images[-1].get_clim() for axes in grid_of(figure)}
    return scale


def notes_of(figure: Figure) -> list[str]:
    """What the notes below the pictures say."""
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def ticks_of(axes: Axes, which: str) -> list[str]:
    """The labels of the ticks that are seen, in a figure that has been drawn."""
    axis = {"x": axes.xaxis, "y": axes.yaxis}[which]
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [tick.label1.get_text() for tick in ticks if tick.label1.get_visible()]


def pixels(figure: Figure) -> NDArray[np.uint8]:
    """The picture, (height, width, 3)."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    buffer.seek(0)
    return (255 * imread(buffer)[..., :3]).round().astype(np.uint8)


def has_colour(figure: Figure, colour: str) -> bool:
    return bool(np.any(np.all(pixels(figure) == np.round(np.array(to_rgb(colour)) * 255), axis=-1)))


# ---- show_heatmaps ------------------------------------------------------------------------------


def test_the_first_picture_of_d2l() -> None:
    """Ten queries, ten keys: d2l's own call."""
    attention_weights = torch.eye(10).reshape((1, 1, 10, 10))
    figure = show_heatmaps(attention_weights, xlabel="Keys", ylabel="Queries")
    assert isinstance(figure, Figure)
    picture, bar = figure.axes
    assert_array_equal(cells_of(picture), np.eye(10))
    assert not np.ma.is_masked(cells_of(picture))
    assert (picture.get_xlabel(), picture.get_ylabel()) == ("Keys", "Queries")
    assert picture.get_title() == ""
    assert_array_equal(figure.get_size_inches(), [2.5, 2.5])
    assert picture.images[0].get_cmap().name == "Reds"
    assert scale_of(figure) == (0, 1)
    assert picture.get_ylim() == (9.5, -0.5)  # the first query on top
    figure.draw_without_rendering()
    assert ticks_of(picture, "x") and set(ticks_of(picture, "x")) <= set(map(str, range(10)))
    assert bar.get_ylim() == (0, 1)
    assert figure.legends == []


def test_the_labels_have_defaults() -> None:
    picture, _ = show_heatmaps(np.eye(3)).axes
    assert (picture.get_xlabel(), picture.get_ylabel()) == ("Keys", "Queries")


def test_weights_of_a_layer_that_was_not_called() -> None:
    layer = attnext.DotProductAttention()
    with pytest.raises(TypeError) as refused:
        show_heatmaps(layer.attention_weights)
    assert str(refused.value) == (
        "matrices is None, expected real numbers: the attention_weights of a layer are None before "
        "its first call and after a call with need_weights=False"
    )
    X = np.ones((1, 2, 3))
    layer(X, X, X)
    assert cells_of(show_heatmaps(layer.attention_weights).axes[0]).tolist() == [[0.5, 0.5]] * 2


@pytest.mark.parametrize(
    ("shape", "grid"),
    [((4, 6), (1, 1)), ((3, 4, 6), (1, 3)), ((2, 3, 4, 6), (2, 3)), ((1, 1, 1, 10), (1, 1))],
)
def test_a_grid_of_pictures(shape: tuple[int, ...], grid: tuple[int, int]) -> None:
    """Labels on the outer axes only: below the last row, left of the first column."""
    matrices = weights(*shape)
    figure = show_heatmaps(matrices, "Keys", "Queries", figsize=(6, 4))
    figure.draw_without_rendering()
    rows, columns = grid
    pictures = grid_of(figure)
    assert len(pictures) == rows * columns
    for i, (picture, matrix) in enumerate(
        zip(pictures, matrices.reshape(-1, *shape[-2:]), strict=True)
    ):
        assert_array_equal(cells_of(picture), matrix)
        last, first = i // columns == rows - 1, i % columns == 0
        assert picture.get_xlabel() == ("Keys" if last else "")
        assert picture.get_ylabel() == ("Queries" if first else "")
        assert bool(ticks_of(picture, "x")) == last
        assert bool(ticks_of(picture, "y")) == first


@pytest.mark.parametrize(
    "convert",
    [
        lambda a: a.tolist(),
        lambda a: list(a),
        lambda a: tuple(a),
        lambda a: a.astype(np.float64),
        lambda a: a.astype(">f4"),
        lambda a: np.asfortranarray(a),
        lambda a: torch.tensor(a),
        lambda a: torch.tensor(a, requires_grad=True),
        lambda a: [torch.tensor(m, requires_grad=True) for m in a],
    ],
    ids=["lists", "list", "tuple", "f8", ">f4", "F", "tensor", "grad", "tensors"],
)
def test_arrays_lists_and_tensors_give_the_same_picture(convert: Callable[[Array], Any]) -> None:
    matrices = weights(2, 4, 6)
    figure = show_heatmaps(convert(matrices), "Keys", "Queries")
    for picture, matrix in zip(grid_of(figure), matrices, strict=True):
        assert_array_equal(cells_of(picture), matrix)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_tensors_of_other_dtypes(dtype: torch.dtype) -> None:
    figure = show_heatmaps(torch.eye(3).to(dtype), "Keys", "Queries")
    assert_array_equal(cells_of(figure.axes[0]), np.eye(3))


def test_the_input_is_not_written() -> None:
    matrix = weights(3, 4)
    matrix[0, 0] = np.nan
    before = matrix.copy()
    matrix.flags.writeable = False
    pixels(show_heatmaps(matrix, "Keys", "Queries", valid_lens=2))
    assert_array_equal(matrix, before)


# ---- the scale ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ([[0.25, 0.75]], (0, 0.75)),  # weights start at 0
        ([[0.5, 0.5]], (0, 0.5)),
        ([[0.0, 0.0]], (0, 1)),
        ([[-2.0, 3.0]], (-2, 3)),  # scores do not
        ([[2.0, 3.0]], (2, 3)),
        ([[5.0, 5.0]], (5, 6)),
        ([[np.nan, 0.5]], (0, 0.5)),
        ([[-np.inf, 1.0, 4.0, np.inf]], (1, 4)),
        ([[np.nan, np.nan]], (0, 1)),
    ],
)
def test_the_scale(matrix: Any, expected: tuple[float, float]) -> None:
    assert scale_of(show_heatmaps(matrix, "x", "y")) == expected


def test_all_pictures_share_one_scale() -> None:
    """In d2l's, the colour bar is that of the last picture only."""
    figure = show_heatmaps([[[0.9, 0.1]], [[0.5, 0.5]]], "Keys", "Queries")
    assert scale_of(figure) == (0, 0.9)
    assert figure.axes[-1].get_ylim() == (0, 0.9)


def test_masked_cells_do_not_stretch_the_scale() -> None:
    figure = show_heatmaps([[1.0, 2.0, -1e6]], "Keys", "Queries", valid_lens=2)
    assert scale_of(figure) == (1, 2)


def test_a_scale_of_ones_own() -> None:
    assert scale_of(show_heatmaps([[0.2, 0.3]], "x", "y", vmin=-1, vmax=2)) == (-1, 2)
    assert scale_of(show_heatmaps([[0.2, 0.3]], "x", "y", vmax=1)) == (0, 1)


# ---- masked cells, NaN --------------------------------------------------------------------------


def test_masked_cells_are_hatched_and_explained() -> None:
    """valid_lens as the attention took them: one for each of the two matrices."""
    lens = [2, 6]
    scores = np.random.default_rng(0).normal(size=(2, 1, 10))
    figure = show_heatmaps(
        attnext.masked_softmax(scores, lens), "Keys", "Queries", figsize=None, valid_lens=lens
    )
    for picture, length in zip(grid_of(figure), lens, strict=True):
        assert_array_equal(np.ma.getmaskarray(cells_of(picture))[0], np.arange(10) >= length)
        assert picture.patch.get_hatch()
    assert notes_of(figure) == ["masked"]
    assert has_colour(figure, figures_module.MASKED)


@pytest.mark.parametrize(
    ("shape", "masks"),
    [
        ((4, 6), {"valid_lens": 3}),
        ((4, 6), {"valid_lens": [0, 1, 6, 99]}),
        ((4, 6), {"mask": np.tri(4, 6, dtype=bool)}),
        ((2, 4, 6), {"valid_lens": [[1, 2, 3, 4], [6, 5, 4, 3]]}),
        ((2, 4, 6), {"valid_lens": torch.tensor([2, 6]), "mask": torch.ones(6).bool()}),
        ((2, 3, 4, 6), {"valid_lens": [3, 5], "mask": np.tri(4, 6, dtype=bool)}),
        ((1, 1, 4, 6), {"valid_lens": np.full((1, 1, 4), 2)}),
        ((2, 1, 4, 6), {"mask": np.eye(6, dtype=bool)[:4]}),
    ],
)
def test_masked_is_what_the_attention_functions_mask(
    shape: tuple[int, ...], masks: dict[str, Any]
) -> None:
    figure = show_heatmaps(np.ones(shape), "Keys", "Queries", figsize=(6, 4), **masks)
    takes_part = attnext.masked_softmax(np.zeros(shape), **masks, empty_rows="zero") > 0
    shown = [~np.ma.getmaskarray(cells_of(picture)) for picture in grid_of(figure)]
    assert_array_equal(np.reshape(shown, shape), takes_part)
    assert notes_of(figure) == ["masked"]


def test_a_mask_that_masks_nothing_needs_no_note() -> None:
    figure = show_heatmaps(np.ones((2, 3)), "Keys", "Queries", valid_lens=3, mask=[True])
    assert notes_of(figure) == []
    assert figure.axes[0].patch.get_hatch() is None


def test_all_masked() -> None:
    figure = show_heatmaps(weights(2, 3), "Keys", "Queries", valid_lens=0)
    assert np.ma.getmaskarray(cells_of(figure.axes[0])).all()
    assert scale_of(figure) == (0, 1)
    pixels(figure)


def test_masked_and_unmasked_zeros_are_told_apart() -> None:
    """A weight of 0 in a key that takes part is white, that of a masked one is not."""
    figure = show_heatmaps([[1.0, 0.0, 0.0]], "Keys", "Queries", figsize=(5, 3), valid_lens=2)
    picture = figure.axes[0]
    image = pixels(figure)
    centres = picture.transData.transform([(0, 0), (1, 0), (2, 0)]).round().astype(int)
    half = round(0.3 * (centres[1, 0] - centres[0, 0]))
    boxes = [
        image[len(image) - y - half : len(image) - y + half, x - half : x + half].reshape(-1, 3)
        for x, y in centres
    ]
    assert len(np.unique(boxes[0], axis=0)) == len(np.unique(boxes[1], axis=0)) == 1
    reds = matplotlib.colormaps["Reds"]
    assert_allclose(boxes[1][0], np.array(reds(0.0)[:3]) * 255, atol=1)
    assert_allclose(boxes[0][0], np.array(reds(1.0)[:3]) * 255, atol=1)
    assert len(np.unique(boxes[2], axis=0)) > 2  # hatched


@pytest.mark.parametrize(
    ("strange", "note"),
    [([np.nan], "NaN"), ([np.inf], "inf"), ([-np.inf], "-inf"), ([np.nan, np.inf], "NaN or inf")],
)
def test_cells_that_are_not_finite_have_their_own_colour(strange: list[float], note: str) -> None:
    matrix = np.array([[0.5, 0.5, *strange]])
    figure = show_heatmaps(matrix, "Keys", "Queries")
    assert_array_equal(np.ma.getmaskarray(cells_of(figure.axes[0])), ~np.isfinite(matrix))
    assert notes_of(figure) == [note]
    assert has_colour(figure, figures_module.NOT_FINITE)


def test_nan_in_a_masked_cell_is_masked() -> None:
    figure = show_heatmaps([[0.5, np.nan, 0.5]], "Keys", "Queries", mask=[True, False, True])
    assert notes_of(figure) == ["masked"]
    assert not has_colour(figure, figures_module.NOT_FINITE)


def test_nan_beside_masked_cells() -> None:
    figure = show_heatmaps([[0.5, np.nan, 0.5]], "Keys", "Queries", valid_lens=2)
    assert notes_of(figure) == ["masked", "NaN"]
    assert has_colour(figure, figures_module.NOT_FINITE)
    assert has_colour(figure, figures_module.MASKED)


# ---- titles and labels --------------------------------------------------------------------------


def test_titles_of_the_columns() -> None:
    titles = ["a", "b", "c"]
    figure = show_heatmaps(weights(2, 3, 4, 4), "x", "y", titles, (6, 4))
    assert [axes.get_title() for axes in grid_of(figure)] == ["a", "b", "c", "", "", ""]
    figure = show_heatmaps(weights(3, 4, 4), "x", "y", titles=titles, figsize=(6, 3))
    assert [axes.get_title() for axes in grid_of(figure)] == titles


def test_titles_of_every_picture() -> None:
    titles = [f"layer {i}, head {j}" for i in range(2) for j in range(3)]
    figure = show_heatmaps(weights(2, 3, 4, 4), "x", "y", titles, (9, 6))
    assert [axes.get_title() for axes in grid_of(figure)] == titles


def test_tokens_for_labels() -> None:
    keys, queries = ["the", "$5", "$6", "internationalisation"], ["le", "chat", "_"]
    figure = show_heatmaps(
        weights(2, 2, 3, 4), "", "", figsize=None, xticklabels=keys, yticklabels=queries
    )
    figure.draw_without_rendering()
    pictures = grid_of(figure)
    assert ticks_of(pictures[2], "x") == ticks_of(pictures[3], "x") == keys
    assert ticks_of(pictures[0], "y") == ticks_of(pictures[2], "y") == queries
    assert ticks_of(pictures[0], "x") == ticks_of(pictures[1], "y") == []
    assert {label.get_rotation() for label in pictures[2].get_xticklabels()} == {45}
    assert not any(label.get_parse_math() for label in pictures[2].get_xticklabels())
    inside = figure.bbox
    for picture in pictures:  # nothing is cut off
        for label in [*picture.get_xticklabels(), *picture.get_yticklabels()]:
            if label.get_visible():
                box = label.get_window_extent()
                assert inside.x0 <= box.x0 and box.x1 <= inside.x1
                assert inside.y0 <= box.y0 and box.y1 <= inside.y1


def test_short_labels_stay_level() -> None:
    figure = show_heatmaps(weights(1, 3), "", "", xticklabels=["a", "bc", "d"])
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {0}


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 1), (2, 10), (64, 64), (3, 200)])
def test_ticks_are_whole_numbers(shape: tuple[int, int]) -> None:
    figure = show_heatmaps(weights(*shape), "Keys", "Queries")
    figure.draw_without_rendering()
    picture = figure.axes[0]
    for which, size in zip("yx", shape, strict=True):
        ticks = ticks_of(picture, which)
        assert ticks and set(ticks) <= {str(i) for i in range(size)}


@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1, 1), (1, 1, 1, 10), (1, 1, 10, 10), (1, 1, 64, 64), (2, 3, 6, 6), (1, 1, 40, 3)],
)
def test_a_fitting_size(shape: tuple[int, ...]) -> None:
    """No warning that there was no room, and every cell of a named axis as high as its letters."""
    names = {
        "xticklabels": [f"key {i}" for i in range(shape[3])],
        "yticklabels": [f"query {i}" for i in range(shape[2])],
    }
    for named in (names, {}):
        figure = show_heatmaps(weights(*shape), "Keys", "Queries", figsize=None, **named)
        figure.draw_without_rendering()
        assert max(figure.bbox.size) < 2000
        for picture in grid_of(figure):
            box = picture.get_window_extent()
            assert box.width > 30 or shape[3] < 5
            if named:
                letters = grid_of(figure)[0].get_yticklabels()[0].get_fontsize() * figure.dpi / 72
                assert box.height / shape[2] > letters


@pytest.mark.parametrize("cmap", ["viridis", matplotlib.colormaps["Blues"]])
def test_another_colour_map(cmap: Any) -> None:
    figure = show_heatmaps(np.eye(2), "x", "y", cmap=cmap)
    assert figure.axes[0].images[0].get_cmap().name == getattr(cmap, "name", cmap)


@pytest.mark.parametrize("sub", [False, True])
def test_a_figure_of_ones_own(sub: bool) -> None:
    figure = Figure(figsize=(6, 3))
    where = figure.subfigures(1, 2)[1] if sub else figure
    returned = show_heatmaps(np.eye(3), "Keys", "Queries", valid_lens=2, fig=where)
    assert returned is figure
    assert len(where.axes) == 2 and len(where.legends) == 1
    pixels(figure)


# ---- plot_kernel_regression ---------------------------------------------------------------------


X_TRAIN, Y_TRAIN = np.array([0.0, 1.0, 3.0]), np.array([1.0, 2.0, 0.5])
X_TEST, Y_TRUTH = np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 2.5, 1.5, 0.0])
Y_HAT = np.array([1.25, 2.0, 1.0, 0.5])


def lines_of(figure: Figure) -> dict[str, Array]:
    """The points of every line, (n, 2), by its label."""
    return {str(line.get_label()): line.get_xydata() for line in figure.axes[0].lines}


def legend_of(figure: Figure) -> list[str]:
    legend = figure.axes[0].get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def test_the_picture_of_a_kernel_regression() -> None:
    figure = plot_kernel_regression(X_TRAIN, Y_TRAIN, X_TEST, Y_TRUTH, Y_HAT)
    assert isinstance(figure, Figure)
    lines = lines_of(figure)
    assert list(lines) == legend_of(figure) == ["training data", "truth", "prediction"]
    assert_array_equal(lines["training data"], np.stack([X_TRAIN, Y_TRAIN], 1))
    assert_array_equal(lines["truth"], np.stack([X_TEST, Y_TRUTH], 1))
    assert_array_equal(lines["prediction"], np.stack([X_TEST, Y_HAT], 1))
    points, truth, prediction = figure.axes[0].lines
    assert (points.get_linestyle(), points.get_marker()) == ("None", "o")
    assert (truth.get_linestyle(), prediction.get_linestyle()) == ("--", "-")
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("x", "y")
    assert_array_equal(figure.get_size_inches(), [4.5, 3.0])
    pixels(figure)


def test_a_kernel_regression_of_real_data_has_no_truth() -> None:
    figure = plot_kernel_regression(
        X_TRAIN, Y_TRAIN, X_TEST, None, Y_HAT, xlabel="ms", ylabel="g", title="A crash"
    )
    assert legend_of(figure) == ["training data", "prediction"]
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("ms", "g", "A crash")


def test_tensors_and_columns_as_a_d2l_notebook_has_them() -> None:
    """``y_hat = net(x_test, keys, values).unsqueeze(1)`` is a column, and requires grad."""
    x_train, y_train, x_test, y_truth, y_hat = (
        torch.tensor(a) for a in (X_TRAIN, Y_TRAIN, X_TEST, Y_TRUTH, Y_HAT)
    )
    y_hat = y_hat.requires_grad_().unsqueeze(1)
    theirs = lines_of(plot_kernel_regression(x_train, y_train, x_test, y_truth, y_hat))
    ours = lines_of(plot_kernel_regression(X_TRAIN, Y_TRAIN, X_TEST, Y_TRUTH, Y_HAT))
    for name, line in ours.items():
        assert_array_equal(theirs[name], line)


def test_several_predictions_by_name() -> None:
    mean = np.full(4, 1.5)
    curves = {"learned": Y_HAT, "average pooling": mean}
    figure = plot_kernel_regression(X_TRAIN, Y_TRAIN, X_TEST, None, curves)
    assert legend_of(figure) == ["training data", "learned", "average pooling"]
    assert_array_equal(lines_of(figure)["average pooling"][:, 1], mean)
    colours = [line.get_color() for line in figure.axes[0].lines]
    assert len(set(colours)) == 3


def test_the_curves_go_from_left_to_right() -> None:
    shuffled = [2, 0, 3, 1]
    figure = plot_kernel_regression(
        X_TRAIN, Y_TRAIN, X_TEST[shuffled], Y_TRUTH[shuffled], Y_HAT[shuffled]
    )
    assert_array_equal(lines_of(figure)["prediction"], np.stack([X_TEST, Y_HAT], 1))
    assert_array_equal(lines_of(figure)["truth"], np.stack([X_TEST, Y_TRUTH], 1))


def test_a_prediction_that_is_nan_leaves_a_gap() -> None:
    figure = plot_kernel_regression(X_TRAIN, Y_TRAIN, X_TEST, None, [1.0, np.nan, 1.0, 1.0])
    assert np.isnan(lines_of(figure)["prediction"][1, 1])
    pixels(figure)


def test_other_words_in_the_legend() -> None:
    labels = ["true", "fitted", "seen"]
    figure = plot_kernel_regression(X_TRAIN, Y_TRAIN, X_TEST, Y_TRUTH, Y_HAT, labels=labels)
    assert legend_of(figure) == ["seen", "true", "fitted"]


# ---- plot_loss ----------------------------------------------------------------------------------


def test_the_picture_of_a_loss() -> None:
    figure = plot_loss([3.0, 2.0, 1.5])
    (line,) = figure.axes[0].lines
    assert_array_equal(line.get_xydata(), [[1, 3], [2, 2], [3, 1.5]])
    assert legend_of(figure) == []
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale()) == ("epoch", "loss", "linear")
    assert all(float(tick).is_integer() for tick in axes.get_xticks())
    pixels(figure)


def test_losses_on_a_logarithmic_axis() -> None:
    figure = plot_loss([100.0, 1.0, np.nan, 0.01], log=True, xlabel="step", title="Descent")
    assert figure.axes[0].get_yscale() == "log"
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_title()) == ("step", "Descent")
    pixels(figure)


def test_several_losses_by_name() -> None:
    figure = plot_loss({"attnext": [3.0, 2.0, 1.0], "torch": np.array([3.0, 2.5])})
    assert legend_of(figure) == ["attnext", "torch"]
    assert_array_equal(lines_of(figure)["torch"], [[1, 3], [2, 2.5]])
    first, second = figure.axes[0].lines
    assert first.get_color() != second.get_color()


def test_losses_as_a_training_loop_in_torch_collects_them() -> None:
    losses = [torch.tensor(2.0, requires_grad=True) * i for i in (3, 2, 1)]
    assert_array_equal(plot_loss(losses).axes[0].lines[0].get_ydata(), [6, 4, 2])


@pytest.mark.parametrize(("epochs", "marker"), [(1, "o"), (20, "o"), (21, "None"), (1000, "None")])
def test_a_few_losses_are_points_too(epochs: int, marker: str) -> None:
    """One epoch would be a line without length."""
    assert plot_loss(np.ones(epochs)).axes[0].lines[0].get_marker() == marker


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: plot_loss([2.0, 1.0], ax=ax),
        lambda ax: plot_kernel_regression(X_TRAIN, Y_TRAIN, X_TEST, Y_TRUTH, Y_HAT, ax=ax),
    ],
)
@pytest.mark.parametrize("sub", [False, True])
def test_axes_of_ones_own(draw: Callable[[Axes], Figure], sub: bool) -> None:
    figure = Figure()
    where = figure.subfigures(1, 2)[0] if sub else figure
    left, right = where.subplots(1, 2)
    assert draw(right) is figure
    assert right.lines and not left.lines
    pixels(figure)


# ---- nothing else is touched --------------------------------------------------------------------


def run(code: str) -> str:
    """What a new Python prints; with an empty stderr, or the test fails."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_what_is_imported_and_that_no_setting_changes() -> None:
    """By attnext no matplotlib, and by attnext.plot neither pyplot nor torch."""
    code = """
import sys, attnext
print("matplotlib" in sys.modules)
import matplotlib, numpy as np
before = dict(dict.items(matplotlib.rcParams))
from attnext.plot import (
    plot_kernel_regression,
    plot_loss,
    plot_positional_encoding,
    show_heatmaps,
)
x = np.arange(4.0)
for figure in (
    show_heatmaps(np.eye(4), "Keys", "Queries", valid_lens=3, xticklabels=["long"] * 4),
    plot_kernel_regression(x, x, x, x, x),
    plot_loss({"a": x + 1}, log=True),
):
    figure._repr_png_()
print("matplotlib.pyplot" in sys.modules, "torch" in sys.modules)
print(before == dict(dict.items(matplotlib.rcParams)), len(before) > 100)
"""
    assert run(code) == "False\nFalse False\nTrue True\n"


def test_without_matplotlib_the_error_says_what_to_install() -> None:
    code = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
try:
    import attnext.plot
except ImportError as error:
    print(type(error).__name__, error)
"""
    expected = "attnext.plot needs matplotlib, which is not installed: pip install matplotlib"
    assert run(code) == f"ImportError {expected}\n"


def test_a_broken_matplotlib_is_not_called_missing() -> None:
    code = """
import sys
import matplotlib
sys.modules["matplotlib.image"] = None
try:
    import attnext.plot
except ImportError as error:
    print(type(error).__name__, error.name)
"""
    assert run(code) == "ModuleNotFoundError matplotlib.image\n"


def test_a_figure_shows_itself_at_twice_the_resolution() -> None:
    figure = show_heatmaps(np.eye(4), "Keys", "Queries")
    png, size = figure._repr_png_()  # type: ignore[operator]
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    image = importlib.import_module("matplotlib.image").imread(io.BytesIO(png))
    assert (size["height"], size["width"]) == (image.shape[0] // 2, image.shape[1] // 2)
    assert abs(size["width"] - 250) < 30  # the figure, trimmed, with a margin


# ---- fonts --------------------------------------------------------------------------------------


def test_chinese_labels_get_a_font_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """DejaVu Serif, which comes with matplotlib, plays the Chinese font."""
    monkeypatch.setattr(figures_module, "CHINESE_FONTS", ("No Such Font", "DejaVu Serif"))
    figure = show_heatmaps(np.eye(2), "键", "Queries", ["注意力权重"], xticklabels=["猫", "a"])
    picture = figure.axes[0]
    for text in (picture.xaxis.label, picture.title, picture.get_xticklabels()[0]):
        assert text.get_fontfamily()[-1] == "DejaVu Serif"
        assert "No Such Font" not in text.get_fontfamily()
    for text in (picture.yaxis.label, picture.get_xticklabels()[1]):
        assert "DejaVu Serif" not in text.get_fontfamily()


def test_a_chinese_character_is_as_wide_as_two_letters() -> None:
    assert [columns(text) for text in ("", "ab", "注意", "a键")] == [0, 2, 4, 3]
    figure = show_heatmaps(weights(1, 2), "", "", xticklabels=["ab", "cd"])
    assert figure.axes[0].get_xticklabels()[0].get_rotation() == 0


# ---- inputs -------------------------------------------------------------------------------------


def heat(matrices: Any, **options: Any) -> None:
    show_heatmaps(matrices, "x", "y", **options)


def regression(**options: Any) -> None:
    given = {"x_train": X_TRAIN, "y_train": Y_TRAIN, "x_test": X_TEST, "y_truth": Y_TRUTH}
    plot_kernel_regression(**(given | {"y_hat": Y_HAT} | options))


ACCEPTED = "expected (M, N), (columns, M, N) or (rows, columns, M, N)"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: heat(np.ones(3)), f"matrices has shape (3,), {ACCEPTED}"),
        (lambda: heat(1.0), f"matrices has shape (), {ACCEPTED}"),
        (lambda: heat(np.ones((1, 1, 1, 2, 2))), f"matrices has shape (1, 1, 1, 2, 2), {ACCEPTED}"),
        (lambda: heat([]), f"matrices has shape (0,), {ACCEPTED}"),
        (lambda: heat(np.ones((0, 5))), "matrices has shape (0, 5), expected at least one cell"),
        (
            lambda: heat(np.ones((1, 0, 5, 5))),
            "matrices has shape (1, 0, 5, 5), expected at least one cell",
        ),
        (lambda: heat([[1.0, 2.0], [3.0]]), "matrices cannot be read as an array: "),
        (
            lambda: heat(np.ones((3, 2, 2)), titles=["a", "b"]),
            "titles has length 2, expected 3 (one for each column)",
        ),
        (
            lambda: heat(np.ones((2, 3, 2, 2)), titles=["a", "b"]),
            "titles has length 2, expected 3 (one for each column) or 6 (one for each heat map)",
        ),
        (lambda: heat(np.eye(2), titles=[]), "titles has length 0, expected 1"),
        (
            lambda: heat(np.ones((2, 3)), xticklabels=["a", "b"]),
            "xticklabels has length 2, expected 3, one for each key",
        ),
        (
            lambda: heat(np.ones((2, 3)), yticklabels=["a", "b", "c"]),
            "yticklabels has length 3, expected 2, one for each query",
        ),
        (
            lambda: heat(np.ones((2, 3)), valid_lens=[1, 2, 3]),
            "valid_lens has shape (3,), expected (2,)",
        ),
        (
            lambda: heat(np.ones((2, 4, 5)), valid_lens=[1, 2, 3]),
            "valid_lens has shape (3,), expected (2,) or (2, 4)",
        ),
        (
            lambda: heat(np.ones((2, 3)), valid_lens=-1),
            "valid_lens is -1, expected a length of 0 or more",
        ),
        (
            lambda: heat(np.ones((2, 3)), mask=np.ones(2, bool)),
            "mask has shape (2,), expected a shape that broadcasts to (2, 3)",
        ),
        (lambda: heat(np.eye(2), vmin=2), "the colour scale is 2 to 1, expected vmin < vmax"),
        (lambda: heat(np.eye(2), vmax=np.nan), "the colour scale is 0 to nan, expected vmin"),
        (lambda: heat(np.eye(2), cmap="no such map"), "'no such map' is not a"),
        (lambda: regression(x_train=[]), "x_train has shape (0,), expected at least one number"),
        (
            lambda: regression(x_train=np.eye(2)),
            "x_train has shape (2, 2), expected (n,) or (n, 1)",
        ),
        (lambda: regression(y_train=[1, 2]), "y_train has shape (2,), expected (3,) or (3, 1)"),
        (lambda: regression(x_test=1.0), "x_test has shape (), expected (n,) or (n, 1)"),
        (lambda: regression(y_truth=[1, 2]), "y_truth has shape (2,), expected (4,) or (4, 1)"),
        (lambda: regression(y_hat=np.ones((2, 2))), "y_hat has shape (2, 2), expected (4,)"),
        (lambda: regression(y_hat={"a": [1]}), "y_hat['a'] has shape (1,), expected (4,)"),
        (lambda: regression(y_hat={}), "y_hat is an empty dict, expected at least one curve"),
        (lambda: regression(labels=["a", "b"]), "labels has length 2, expected 3"),
        (lambda: plot_loss([]), "losses has shape (0,), expected at least one number"),
        (lambda: plot_loss(np.ones((2, 2))), "losses has shape (2, 2), expected (n,) or (n, 1)"),
        (lambda: plot_loss(1.0), "losses has shape (), expected (n,) or (n, 1)"),
        (lambda: plot_loss({}), "losses is an empty dict, expected at least one curve"),
        (lambda: plot_loss({"a": [1.0], "b": []}), "losses['b'] has shape (0,), expected at"),
        (
            lambda: plot_loss([1.0, 0.0], log=True),
            "losses contains 0, expected losses > 0 on a logarithmic axis",
        ),
        (
            lambda: plot_loss({"a": [1.0, -0.5]}, log=True),
            "losses['a'] contains -0.5, expected losses > 0 on a logarithmic axis",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Creating an ndarray from ragged")  # before NumPy 1.24
def test_wrong_values_are_named(wrong: Callable[[], None], message: str) -> None:
    with pytest.raises(ValueError) as error:
        wrong()
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: heat(np.eye(2) * 1j), "matrices has dtype complex128, expected real numbers"),
        (lambda: heat(torch.eye(2) * 1j), "matrices has dtype complex64, expected real numbers"),
        (lambda: heat([["a", "b"]]), "matrices has dtype <U1, expected real numbers"),
        (lambda: heat("Reds"), "matrices has the type str, expected real numbers"),
        (lambda: heat(None), "matrices is None, expected real numbers"),
        (lambda: heat([[None, 1.0]]), "matrices has dtype object, expected real numbers"),
        (lambda: heat(object()), "matrices has the type object, expected real numbers"),
        (
            lambda: heat(np.ma.masked_array(np.eye(2))),
            "matrices is a MaskedArray, expected a plain array",
        ),
        (lambda: heat(np.eye(2), titles="a"), "titles is of type str, expected a sequence"),
        (lambda: heat(np.eye(2), xticklabels="ab"), "xticklabels is of type str, expected a seq"),
        (lambda: heat(np.eye(2), yticklabels=2), "yticklabels is of type int, expected a seq"),
        (lambda: heat(np.eye(2), valid_lens=[1.0, 2.0]), "valid_lens has dtype float64"),
        (lambda: heat(np.eye(2), mask=[[1, 0]]), "mask has dtype int64"),
        (lambda: heat(np.eye(2), figsize=2.5), "figsize is 2.5, expected a pair of numbers"),
        (lambda: heat(np.eye(2), figsize=(2, "b")), "figsize is (2, 'b'), expected a pair"),
        (
            lambda: heat(np.eye(2), fig=Figure().add_subplot()),
            "fig is of type Axes, expected a matplotlib Figure",
        ),
        (lambda: plot_loss(["1"]), "losses has dtype <U1, expected real numbers"),
        (lambda: plot_loss({"a": None}), "losses['a'] has the value None, expected real numbers"),
        (lambda: plot_loss([1.0], ax=Figure()), "ax is of type Figure, expected matplotlib Axes"),
        (lambda: regression(y_hat=np.ones(4) * 1j), "y_hat has dtype complex128, expected real"),
        (lambda: regression(x_train=None), "x_train has the value None, expected real numbers"),
        (lambda: regression(labels="abc"), "labels is of type str, expected a sequence"),
    ],
)
def test_wrong_kinds_are_named(wrong: Callable[[], None], message: str) -> None:
    with pytest.raises(TypeError) as error:
        wrong()
    assert str(error.value).startswith(message)


def test_the_examples_in_the_docstrings() -> None:
    for module, examples in [("heatmaps", 4), ("curves", 11)]:
        result = doctest.testmod(importlib.import_module(f"attnext.plot.{module}"))
        assert result.failed == 0 and result.attempted >= examples


# ---- words are drawn as they are written ---------------------------------------------------------

MARKUP = ["$$", "cost $5 and $6", r"\alpha_{1}^2", "_train", "50% & $x^$"]


def texts_drawn(figure: Figure) -> list[str]:
    """The texts of the picture, as its SVG has them: a formula would be there in pieces."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg")
    root = ElementTree.fromstring(buffer.getvalue())
    return ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("text", MARKUP)
def test_words_are_drawn_as_they_are_written(text: str) -> None:
    names = {f"{text}{i}": [3.0, 2.0, 1.0] for i in range(2)}
    words = {"xlabel": f"{text}x", "ylabel": f"{text}y"}
    labels = [f"{text}{i}" for i in range(3)]
    regression = plot_kernel_regression(
        X_TRAIN, Y_TRAIN, X_TEST, Y_TRUTH, Y_HAT, labels=labels, title=text, **words
    )
    several = plot_loss(names, title=text, **words)
    encoding = plot_positional_encoding(weights(4, 10), title=text, **words)
    maps = show_heatmaps(
        weights(2, 2, 3),
        titles=[text] * 2,
        figsize=None,
        xticklabels=labels,
        yticklabels=labels[:2],
        **words,
    )
    for figure, others in (
        (regression, labels),
        (several, list(names)),
        (encoding, ["column 6"]),
        (maps, labels),
    ):
        drawn = texts_drawn(figure)
        assert {text, *words.values(), *others} <= {*drawn}, drawn
        for axes in figure.axes[:1]:  # also where the caller has chosen TeX for everything else
            assert not any(t.get_usetex() for t in (axes.title, axes.xaxis.label, axes.yaxis.label))
    assert legend_of(several) == list(names)
    assert legend_of(regression) == [labels[2], *labels[:2]]


def test_a_legend_has_the_curves_of_every_call_and_the_callers_own() -> None:
    """The caller's own labels are matplotlib's: $ begins a formula, _ keeps out of the legend."""
    axes = Figure().add_subplot()
    axes.plot([1, 2], [3, 4], label=r"$\alpha$")
    axes.plot([1, 2], [3, 4], label="_hidden")
    axes.bar([1, 2], [1, 2], label="bars")
    plot_loss({"_train": [3.0, 2.0]}, ax=axes)
    figure = plot_loss({"test$": [3.0, 2.0], "": [1.0, 1.0]}, ax=axes)
    assert legend_of(figure) == [r"$\alpha$", "_train", "test$", "bars"]
    drawn = texts_drawn(figure)
    assert {"_train", "test$", "bars"} <= {*drawn} and r"$\alpha$" not in drawn
    legend = axes.get_legend()
    assert legend is not None
    colours = [getattr(each, "get_color", lambda: "")() for each in legend.legend_handles]
    assert colours[1] == axes.lines[2].get_color() and len(colours) == 4
