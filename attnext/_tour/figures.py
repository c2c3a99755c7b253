"""The figures of --plots, drawn by `attnext.plot`; imported only for --plots.

The texts in the figures are in the language of the tour. If no installed font has Chinese
characters they are in English, and the tour says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib import font_manager, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

import attnext
from attnext import kernel_regression as kr
from attnext._files import write_files
from attnext._tour.page import Page
from attnext.plot import plot_kernel_regression, plot_loss, show_heatmaps
from attnext.plot.figures import (
    LINES,
    TRUTH,
    axes_to_draw_in,
    let_go,
    name_axes,
    new_figure,
)

Floats = NDArray[np.floating]
Lengths = list[int] | list[list[int]]
Curves = list[float]

WIDE, ORDINARY = (7.5, 3.2), (5.6, 3.8)  # inches
DARKEST = 0.2  # the weight with the darkest colour where some are much larger than others

# Fonts with the characters of simplified Chinese, as their makers call them.
CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "Microsoft YaHei",
    "PingFang SC",
    "Hiragino Sans GB",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "SimHei",
    "Heiti SC",
    "STHeiti",
    "SimSun",
    "Arial Unicode MS",
)


class Figures:
    """Draws figures into a folder, and names every file on the page."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page, self.folder = page, folder
        self.written: list[str] = []  # names of files
        self.font = chinese_font() if page.language == "zh" else ""

    def text(self, *, en: str, zh: str) -> str:
        """Which of the two is written into a figure."""
        return zh if self.font else en

    def fonts(self) -> AbstractContextManager[None]:
        """In what is written into a figure here, the Chinese font comes first, if there is one."""
        return rc_context({"font.family": [self.font, "DejaVu Sans"]} if self.font else {})

    def masked_softmax(self, X: Floats, ways: Sequence[Lengths]) -> None:
        """The weights of X (2, 2, 4): a row of pictures for each way to give the lengths."""
        lens = np.array([np.broadcast_to(np.reshape(way, (2, -1)), (2, 2)) for way in ways])
        figure = show_heatmaps(
            [attnext.masked_softmax(X, way) for way in ways],
            self.text(en="Keys", zh="键"),
            self.text(en="Queries", zh="查询"),
            titles=[
                self.text(en=f"valid_lens = {way}, sample {i}", zh=f"valid_lens = {way}，样本{i}")
                for way in ways
                for i in range(2)
            ],
            figsize=(7.0, 4.4),
            mask=np.arange(4) < lens[..., None],
        )
        self._write("1-masked-softmax", figure)

    def book_example(self, name: str, weights: dict[str, Floats], valid_lens: list[int]) -> None:
        """Draw the weights (2, 10) of d2l's example, by title: a row for each sample's query."""
        figure = show_heatmaps(
            list(weights.values()),
            self.text(en="Keys", zh="键"),
            self.text(en="Sample", zh="样本"),
            titles=list(weights),
            figsize=(1.0 + 3.6 * len(weights), 1.9),
            mask=np.arange(10) < np.reshape(valid_lens, (2, 1)),
        )
        self._write(name, figure)

    def four_steps(self, weights: Floats) -> None:
        """The weights (2, 3, 5) of x1 over x2."""
        figure = show_heatmaps(
            weights,
            self.text(en="Keys: x2", zh="键：x2"),
            self.text(en="Queries: x1", zh="查询：x1"),
            titles=[self.text(en=f"sample {i}", zh=f"样本{i}") for i in range(2)],
            figsize=(6.4, 2.5),
        )
        self._write("4-four-steps", figure)

    def scaling(
        self, sizes: Sequence[int], raw: Sequence[Curves], scaled: Sequence[Curves]
    ) -> None:
        """Variance of the scores and size of the softmax gradient against d."""
        figure = new_figure(WIDE)
        titles = [
            self.text(en="variance of the scores", zh="评分的方差"),
            self.text(en="norm of the gradient (median)", zh="梯度的范数（中位数）"),
        ]
        for i, axes in enumerate(figure.subplots(1, 2)):
            axes_to_draw_in(axes, WIDE)
            axes.loglog(sizes, raw[i], "o-", color=LINES[0], label="q . k")
            axes.loglog(sizes, scaled[i], "s-", color=LINES[1], label="q . k / sqrt(d)")
            _plain_ticks(axes, sizes)
            name_axes(axes, "d", "", titles[i])
        self._write("5-why-sqrt-d", figure)

    def loss(self, losses: list[float]) -> None:
        """The loss after every step of the training; most happens in the first ones."""
        figure = plot_loss(
            losses[1:],
            xlabel=self.text(en="step of gradient descent", zh="梯度下降的步数"),
            ylabel=self.text(en="mean squared leave-one-out error", zh="留一法均方误差"),
            title=self.text(
                en=f"Learning the bandwidth, from a loss of {losses[0]:.3f}",
                zh=f"学习带宽，损失从{losses[0]:.3f}开始",
            ),
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
        pooling = self.text(en="average pooling", zh="平均汇聚")
        axes.axhline(average, color=TRUTH, linestyle="--", label=pooling)
        for form, (name, sigma) in zip("so", sigmas.items(), strict=True):
            error = kr.leave_one_out_error(times, accelerations, sigma)
            axes.plot(
                sigma, error, form, color=LINES[1], markersize=7, label=self._curve(name, sigma)
            )
        _plain_ticks(axes, [0.2, 0.5, 1, 2, 5, 10, 20, 50])
        name_axes(
            axes,
            self.text(en="bandwidth of the Gaussian kernel, ms", zh="高斯核的带宽，ms"),
            self.text(en="leave-one-out error, g", zh="留一法误差，g"),
            self.text(en="Which bandwidth predicts best", zh="哪个带宽预测得最好"),
        )
        self._write("7-motorcycle-bandwidth", axes.figure.figure)

    def fit(self, times: Floats, accelerations: Floats, sigmas: dict[str, float]) -> None:
        """The measurements; the curves of these bandwidths, by name; average pooling."""
        x = np.linspace(0, 60, 601)
        curves = {
            self._curve(name, sigma): kr.nadaraya_watson(x, times, accelerations, sigma)
            for name, sigma in sigmas.items()
        }
        pooling = self.text(en="average pooling", zh="平均汇聚")
        curves[pooling] = kr.average_pooling(x, accelerations)
        figure = plot_kernel_regression(
            times,
            accelerations,
            x,
            None,
            curves,
            labels=(
                self.text(en="truth", zh="真实值"),
                self.text(en="prediction", zh="预测"),
                self.text(en="measurements", zh="测量值"),
            ),
            xlabel=self.text(en="ms after the crash", zh="碰撞后的时间，ms"),
            ylabel=self.text(en="acceleration of the head, g", zh="头部加速度，g"),
            title=self.text(
                en="A motorcycle crash (Silverman 1985)", zh="摩托车碰撞（Silverman 1985）"
            ),
            figsize=(7.5, 4.6),
        )
        self._write("7-motorcycle-fit", figure)

    def kernel_weights(
        self, times: Floats, accelerations: Floats, sigmas: dict[str, float]
    ) -> None:
        """Draw the weights of the predictions from 0 to 60 ms, a picture for each bandwidth.

        Weights are near 1 only where measurements are few, so the colours stop at DARKEST.
        """
        x = np.linspace(0, 60, 121)
        weights = [
            kr.nadaraya_watson(x, times, accelerations, sigma, return_weights=True)[1]
            for sigma in sigmas.values()
        ]
        figure = show_heatmaps(
            weights,
            self.text(en="Measurements, by time (keys)", zh="测量值，按时间排列（键）"),
            self.text(en="Time of the prediction (query), ms", zh="预测的时间（查询），ms"),
            titles=[self._curve(name, sigma) for name, sigma in sigmas.items()],
            figsize=(8.0, 4.0),
            vmin=0.0,
            vmax=DARKEST,
        )
        *pictures, bar = figure.axes
        for axes in pictures:
            axes.set_yticks(range(0, 121, 20), [str(ms) for ms in range(0, 61, 10)])
        bar.set_ylabel(
            self.text(
                en=f"weight (darkest: {DARKEST} or more)", zh=f"权重（颜色最深：{DARKEST}及以上）"
            )
        )
        self._write("7-motorcycle-weights", figure)

    def _curve(self, name: str, sigma: float) -> str:
        return self.text(en=f"{name}, {sigma:.1f} ms", zh=f"{name}，{sigma:.1f} ms")

    def _write(self, name: str, figure: Figure) -> None:
        file = f"{name}.png"
        for note in (text for legend in figure.legends for text in legend.get_texts()):
            if note.get_text() == "masked":
                note.set_text(self.text(en="masked", zh="被掩蔽"))
        picture = BytesIO()
        figure.savefig(picture, format="png", dpi=150)
        let_go(figure)  # a file is all that was asked for
        write_files(self.folder, {file: picture.getvalue()})
        self.written.append(file)
        self.page.note(self.page.text(en=f"figure: {file}", zh=f"图：{file}"))


def chinese_font() -> str:
    """The name of a font with Chinese characters that this machine has; "" if it has none."""
    there = set(font_manager.get_font_names())
    return next((font for font in CHINESE_FONTS if font in there), "")


def _plain_ticks(axes: Axes, ticks: Sequence[float]) -> None:
    """On a logarithmic axis x: numbers where the values are, instead of powers of ten."""
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
