"""The figures of --plots, drawn by `attnext.plot`; loaded only where figures are wanted.

Their labels are English in either language: they are the names that the code uses, and many a
machine has no font with Chinese characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

import attnext
from attnext import kernel_regression as kr
from attnext._tour.page import Page
from attnext.plot import plot_kernel_regression, plot_loss, show_heatmaps
from attnext.plot.figures import LINES, TRUTH, axes_to_draw_in, let_go, new_figure

if TYPE_CHECKING:
    from attnext._tour.gradients import Spread

Floats = NDArray[np.floating]
Lengths = list[int] | list[list[int]]

WIDE, ORDINARY = (7.5, 3.2), (5.6, 3.8)  # inches
DARKEST = 0.2  # the weight with the darkest colour where some are much larger than others


class Figures:
    """Draws figures into a folder, and names every file on the page."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page, self.folder = page, folder
        self.written: list[str] = []  # names of files

    def masked_softmax(self, X: Floats, ways: Sequence[Lengths]) -> None:
        """The weights of X (2, 2, 4): a row of pictures for each way to give the lengths."""
        lens = np.array([np.broadcast_to(np.reshape(way, (2, -1)), (2, 2)) for way in ways])
        figure = show_heatmaps(
            [attnext.masked_softmax(X, way) for way in ways],
            "Keys",
            "Queries",
            titles=[f"entry {i} of valid_lens = {way}" for way in ways for i in range(2)],
            figsize=(7.0, 4.4),
            mask=np.arange(4) < lens[..., None],
        )
        self._write("1-masked-softmax", figure)

    def book_example(self, name: str, weights: dict[str, Floats], valid_lens: list[int]) -> None:
        """The weights (2, 10) of the book's example, by title: a row for each entry's query."""
        figure = show_heatmaps(
            list(weights.values()),
            "Keys",
            "Entry",
            titles=list(weights),
            figsize=(1.0 + 3.6 * len(weights), 1.9),
            mask=np.arange(10) < np.reshape(valid_lens, (2, 1)),
        )
        self._write(name, figure)

    def four_steps(self, weights: Floats) -> None:
        """The weights (2, 3, 5) of x1 over x2."""
        titles = ["entry 0", "entry 1"]
        figure = show_heatmaps(weights, "Keys: x2", "Queries: x1", titles, figsize=(6.4, 2.5))
        self._write("4-four-steps", figure)

    def scaling(self, sizes: Sequence[int], raw: list[Spread], scaled: list[Spread]) -> None:
        """Variance of the scores and size of the softmax gradient against d."""
        figure = new_figure(WIDE)
        for axes, what, title in zip(
            figure.subplots(1, 2),
            ["variance", "gradient"],
            ["variance of the scores", "size of the median query's gradient"],
            strict=True,
        ):
            axes_to_draw_in(axes, WIDE)
            for spreads, form, colour, name in [
                (raw, "o-", LINES[0], "q . k"),
                (scaled, "s-", LINES[1], "q . k / sqrt(d)"),
            ]:
                measured = [getattr(spread, what) for spread in spreads]
                axes.loglog(sizes, measured, form, color=colour, label=name)
            _plain_ticks(axes, sizes)
            axes.set_xlabel("d")
            axes.set_title(title, fontsize="medium")
            axes.legend(fontsize="small", framealpha=0.85, edgecolor="none")
        self._write("5-why-sqrt-d", figure)

    def loss(self, losses: list[float]) -> None:
        """The loss after every step of the training; most happens in the first ones."""
        figure = plot_loss(
            losses[1:],
            xlabel="step of gradient descent",
            ylabel="mean squared leave-one-out error",
            title=f"Learning the bandwidth, from a loss of {losses[0]:.3f}",
            figsize=ORDINARY,
        )
        figure.axes[0].set_xscale("log", base=2)
        _plain_ticks(figure.axes[0], [2**i for i in range(10)])
        self._write("7-motorcycle-loss", figure)

    def bandwidth(self, times: Floats, accelerations: Floats, sigmas: dict[str, float]) -> None:
        """Leave-one-out error over bandwidth, with these bandwidths marked, by name."""
        choice = kr.choose_bandwidth(times, accelerations)
        average = kr.leave_one_out_error(times, accelerations, kernel="constant")
        axes = axes_to_draw_in(None, ORDINARY)
        axes.semilogx(choice.sigmas, choice.errors, color=LINES[0], linewidth=2)
        axes.axhline(average, color=TRUTH, linestyle="--", label="average pooling")
        for form, (name, sigma) in zip("so", sigmas.items(), strict=True):
            error = kr.leave_one_out_error(times, accelerations, sigma)
            label = f"{name}, {sigma:.1f} ms"
            axes.plot(sigma, error, form, color=LINES[1], markersize=7, label=label)
        _plain_ticks(axes, [0.2, 0.5, 1, 2, 5, 10, 20, 50])
        axes.set_xlabel("bandwidth of the Gaussian kernel, ms")
        axes.set_ylabel("leave-one-out error, g")
        axes.set_title("Which bandwidth predicts best", fontsize="medium")
        axes.legend(fontsize="small", framealpha=0.85, edgecolor="none")
        self._write("7-motorcycle-bandwidth", axes.figure.figure)

    def fit(self, times: Floats, accelerations: Floats, sigmas: dict[str, float]) -> None:
        """The measurements; the curves of these bandwidths, by name; average pooling."""
        x = np.linspace(0, 60, 601)
        curves = {
            f"{name}, {sigma:.1f} ms": kr.nadaraya_watson(x, times, accelerations, sigma)
            for name, sigma in sigmas.items()
        }
        curves["average pooling"] = kr.average_pooling(x, accelerations)
        figure = plot_kernel_regression(
            times,
            accelerations,
            x,
            None,
            curves,
            labels=("truth", "prediction", "measurements"),
            xlabel="ms after the crash",
            ylabel="acceleration of the head, g",
            title="A motorcycle crash (Silverman 1985)",
            figsize=(7.5, 4.6),
        )
        self._write("7-motorcycle-fit", figure)

    def kernel_weights(
        self, times: Floats, accelerations: Floats, sigmas: dict[str, float]
    ) -> None:
        """What each prediction, from 0 to 60 ms, looks at; a picture for each bandwidth.

        A weight is near 1 only where measurements are few; the rest would be pale beside it.
        """
        x = np.linspace(0, 60, 121)
        weights = [
            kr.nadaraya_watson(x, times, accelerations, sigma, return_weights=True)[1]
            for sigma in sigmas.values()
        ]
        figure = show_heatmaps(
            weights,
            "Measurements, by time (keys)",
            "Time of the prediction (query), ms",
            titles=[f"{name}, {sigma:.1f} ms" for name, sigma in sigmas.items()],
            figsize=(8.0, 4.0),
            vmin=0.0,
            vmax=DARKEST,
        )
        *pictures, bar = figure.axes
        for axes in pictures:
            axes.set_yticks(range(0, 121, 20), [str(ms) for ms in range(0, 61, 10)])
        bar.set_ylabel(f"weight; the darkest: {DARKEST} or more")
        self._write("7-motorcycle-weights", figure)

    def _write(self, name: str, figure: Figure) -> None:
        file = f"{name}.png"
        figure.savefig(self.folder / file, dpi=150)
        let_go(figure)  # a file is all that was asked for
        self.written.append(file)
        self.page.note(self.page.text(en=f"figure: {file}", zh=f"图：{file}"))


def _plain_ticks(axes: Axes, ticks: Sequence[float]) -> None:
    """On a logarithmic axis x: numbers where the values are, instead of powers of ten."""
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
