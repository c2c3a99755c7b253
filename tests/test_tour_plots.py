"""The figures of the tour: every file, what is drawn in it, and what stands in the way."""

from __future__ import annotations

import errno
import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.image
import matplotlib.text
import numpy as np
import pytest
from matplotlib.figure import Figure
from touring import check_layout, hurry, run, trained, without, without_training

from attnext import __main__ as script
from attnext import kernel_regression
from attnext.__main__ import main
from attnext._data import motorcycle as measurements
from attnext._tour import figures as figures_part
from attnext._tour import gradients, masks, motorcycle, scores
from attnext._tour.figures import Figures, chinese_font

FILES = [
    "1-masked-softmax.png",
    "3-additive-attention.png",
    "4-dot-product-attention.png",
    "4-four-steps.png",
    "5-why-sqrt-d.png",
    "7-motorcycle-bandwidth.png",
    "7-motorcycle-fit.png",
    "7-motorcycle-loss.png",
    "7-motorcycle-weights.png",
]


@dataclass
class Whole:
    """A tour that draws: where it ran, what it printed, its figures by the names of their files."""

    folder: Path
    text: str
    errors: str
    figures: dict[str, Figure]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The whole tour with --plots new/plots."""
    folder = tmp_path_factory.mktemp("tour")
    figures: dict[str, Figure] = {}
    write = Figures._write

    def keep(self: Figures, name: str, figure: Figure) -> None:
        figures[name] = figure
        write(self, name, figure)

    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as text,
        redirect_stderr(io.StringIO()) as errors,
    ):
        hurry(patch)
        without_training(patch)
        patch.chdir(folder)
        patch.setattr(Figures, "_write", keep)
        patch.setenv("COLUMNS", "80")
        assert main(["--plots", "new/plots"]) == 0
    return Whole(folder, text.getvalue(), errors.getvalue(), figures)


@pytest.fixture
def drawn(whole: Whole) -> dict[str, Figure]:
    """Every figure of the tour by the name of its file."""
    return whole.figures


# ---- the files ---------------------------------------------------------------------------------


def test_the_whole_tour(whole: Whole) -> None:
    text, plots = whole.text, whole.folder / "new" / "plots"
    assert whole.errors == ""
    check_layout(text)
    assert sorted(os.listdir(plots)) == FILES
    named = [line.split(": ")[1] for line in text.splitlines() if line.startswith("      figure: ")]
    assert sorted(named) == FILES and len(named) == len(FILES)
    assert f"      {len(FILES)} figures are in {Path('new/plots')}\n" in text
    for file in FILES:
        pixels = matplotlib.image.imread(plots / file)
        height, width = pixels.shape[:2]
        assert 250 < height < 1000 and 600 < width < 1500
        assert pixels[..., :3].std() > 0.02  # something is drawn
        assert pixels[0, 0, :3].tolist() == [1, 1, 1]  # on white


def test_the_folder_may_exist_and_files_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "1-masked-softmax.png").write_text("old")
    (tmp_path / "mine.txt").write_text("kept")
    code, text = run(masks.masked_softmax, plots=tmp_path)
    assert code == 0 and "figure: 1-masked-softmax.png" in text
    assert (tmp_path / "1-masked-softmax.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "mine.txt").read_text() == "kept"


def test_a_link_in_the_folder_is_replaced_and_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.png"
    elsewhere.write_text("mine")
    plots = tmp_path / "plots"
    plots.mkdir()
    picture = plots / "1-masked-softmax.png"
    picture.symlink_to(elsewhere)
    code, _ = run(masks.masked_softmax, plots=plots)
    assert code == 0 and elsewhere.read_text() == "mine"
    assert not picture.is_symlink() and picture.read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_drawn_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: the file is neither shortened nor removed, and no temporary one stays."""

    def half(self: Figure, file: Any, **kwargs: Any) -> None:
        (file.write if hasattr(file, "write") else Path(file).write_bytes)(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    picture = tmp_path / "1-masked-softmax.png"
    picture.write_text("earlier")
    monkeypatch.setattr(Figure, "savefig", half)
    code, _ = run(masks.masked_softmax, plots=tmp_path)
    assert code == 1 and os.listdir(tmp_path) == [picture.name]
    assert picture.read_text() == "earlier"


def test_named_in_chinese_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda *args, **kwargs: None)
    code, text = run(masks.masked_softmax, plots=tmp_path / ".", language="zh")
    assert code == 0
    assert "      图：1-masked-softmax.png\n" in text
    assert f"      1张图，保存在 {tmp_path}\n" in text


def test_in_chinese_where_a_font_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word of every figure, but for names in code."""
    monkeypatch.setattr(figures_part, "chinese_font", lambda: "DejaVu Sans")  # not drawn here
    figures: dict[str, Figure] = {}
    monkeypatch.setattr(Figures, "_write", lambda self, name, it: figures.update({name: it}))
    without_training(monkeypatch)
    code, _ = run(
        masks.masked_softmax,
        scores.additive_attention,
        scores.dot_product_attention,
        gradients.scaling,
        motorcycle.kernel_regression,
        language="zh",
        plots=tmp_path,
    )
    assert code == 0 and len(figures) == len(FILES)
    for name, figure in figures.items():
        words = [text.get_text() for text in figure.findobj(matplotlib.text.Text)]
        english = [word for word in words if re.search("[A-Za-z]{4}", word)]
        assert {word for word in english if not re.search("valid_lens|sqrt|masked", word)} <= {
            "摩托车碰撞（Silverman 1985）"
        }, name
        assert any(re.search("[\u4e00-\u9fff]", word) for word in words), name


def test_without_a_chinese_font_the_tour_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_part, "chinese_font", lambda: "")
    monkeypatch.setattr(Figure, "savefig", lambda *args, **kwargs: None)
    code, text = run(masks.masked_softmax, plots=tmp_path, language="zh")
    assert code == 0 and "没有找到含中文字符的字体：图中的文字为英文。" in text
    code, text = run(masks.masked_softmax, plots=tmp_path)
    assert code == 0 and "没有找到" not in text


@pytest.mark.parametrize(
    ("there", "chosen"),
    [(["DejaVu Sans", "SimHei", "Noto Sans CJK SC"], "Noto Sans CJK SC"), ([], "")],
)
def test_the_font_is_one_that_is_there(
    there: list[str], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_part.font_manager, "get_font_names", lambda: there)
    assert chinese_font() == chosen


def test_a_folder_that_the_terminal_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda *args, **kwargs: None)
    folder = tmp_path / "图"
    folder.mkdir()
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    code, text = run(masks.masked_softmax, plots=folder, stream=stream)
    assert code == 0 and "\\u56fe\n" in text
    assert os.listdir(folder) == ["1-masked-softmax.png"]


def test_a_disk_that_is_full_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Figure, *args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Figure, "savefig", full)
    code, text = run(masks.masked_softmax, masks.sequence_mask, plots=tmp_path)
    assert code == 1 and "FAILED stopped by OSError: [Errno 28] No space left" in text
    assert "2 Sequence mask" in text and "0 figures are in" in text


# ---- what stands in the way --------------------------------------------------------------------


def refused(folder: str | Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a tour that does not start."""
    with pytest.raises(SystemExit) as stopped:
        main(["--plots", str(folder)])
    assert stopped.value.code == 2
    text, errors = capsys.readouterr()
    assert text == ""
    usage, message = errors.split("attnext: error: argument --plots: ")
    assert usage.startswith("usage: attnext")
    return message.rstrip("\n")


def test_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without("matplotlib", monkeypatch)
    assert refused(tmp_path / "plots", capsys) == (
        "figures need matplotlib, which is not installed; run `pip install matplotlib`, or, in "
        "a clone of attnext, `pip install '.[lab]'`"
    )
    assert not (tmp_path / "plots").exists()


def test_a_file_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plots").write_text("mine")
    folder = tmp_path / "plots"
    assert refused(folder, capsys) == f"{folder} is a file, expected a folder"
    below = folder / "below"
    assert refused(below, capsys) == f"cannot write into the folder {below}: Not a directory"
    assert folder.read_text() == "mine"


@pytest.mark.parametrize(
    ("owner", "name"), [(Path, "mkdir"), (script, "TemporaryFile")], ids=["made", "written to"]
)
def test_a_folder_that_cannot_be(
    owner: Any,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def denied(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(owner, name, denied)
    folder = tmp_path / "plots"
    assert refused(folder, capsys) == f"cannot write into the folder {folder}: Permission denied"


def test_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--plots"])
    assert stopped.value.code == 2
    assert "argument --plots: expected one argument" in capsys.readouterr().err


def test_without_plots_matplotlib_is_not_imported(tmp_path: Path) -> None:
    code = """
import sys
from attnext import _tour
from attnext.__main__ import main
_tour.PARTS = _tour.PARTS[:1]
sys.modules["torch"] = None  # not ours to answer for
assert main([]) == 0 and "matplotlib" not in sys.modules
assert main(["--plots", "."]) == 0 and "matplotlib" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)


# ---- what is drawn -----------------------------------------------------------------------------


def panels(figure: Figure) -> list[Any]:
    """The Axes of the heat maps, without those of the colour bar."""
    return [axes for axes in figure.axes if axes.get_title()]


def cells(axes: Any) -> np.ndarray:
    """The numbers of a heat map; NaN where a cell is masked."""
    return np.ma.filled(axes.images[0].get_array().astype(float), np.nan)


def test_all_are_drawn(drawn: dict[str, Figure]) -> None:
    assert sorted(f"{name}.png" for name in drawn) == FILES


def test_masked_softmax(drawn: dict[str, Figure]) -> None:
    pictures = panels(drawn["1-masked-softmax"])
    assert [axes.get_title() for axes in pictures] == [
        "valid_lens = [2, 3], sample 0",
        "valid_lens = [2, 3], sample 1",
        "valid_lens = [[1, 3], [2, 4]], sample 0",
        "valid_lens = [[1, 3], [2, 4]], sample 1",
    ]
    assert [np.isfinite(cells(axes)).sum(1).tolist() for axes in pictures] == [
        [2, 2],
        [3, 3],
        [1, 3],
        [2, 4],
    ]
    np.testing.assert_allclose(cells(pictures[1])[1, :3], [0.4076, 0.3688, 0.2237], atol=6e-5)


@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("3-additive-attention", ["ten equal keys", "ten different keys"]),
        ("4-dot-product-attention", ["ten equal keys"]),
    ],
)
def test_the_example_of_the_book(drawn: dict[str, Figure], name: str, titles: list[str]) -> None:
    pictures = panels(drawn[name])
    assert [axes.get_title() for axes in pictures] == titles
    for axes in pictures:
        assert np.isfinite(cells(axes)).sum(1).tolist() == [2, 6]
        np.testing.assert_allclose(np.nansum(cells(axes), axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(cells(pictures[0])[0, :2], 1 / 2, rtol=1e-6)


def test_four_steps(drawn: dict[str, Figure]) -> None:
    pictures = panels(drawn["4-four-steps"])
    assert [cells(axes).shape for axes in pictures] == [(3, 5), (3, 5)]
    for axes in pictures:
        np.testing.assert_allclose(cells(axes).sum(1), 1, rtol=1e-6)


def test_why_sqrt_d(drawn: dict[str, Figure]) -> None:
    variance, gradient = drawn["5-why-sqrt-d"].axes
    raw, scaled = (line.get_ydata() for line in variance.lines)
    np.testing.assert_allclose(raw, gradients.SIZES, rtol=0.1)  # as the tour checks
    np.testing.assert_allclose(scaled, 1, rtol=0.1)
    raw, scaled = (line.get_ydata() for line in gradient.lines)
    assert raw[0] > 1000 * raw[-1] and max(scaled) < 1.25 * min(scaled)
    for axes in (variance, gradient):
        assert [line.get_label() for line in axes.lines] == ["q . k", "q . k / sqrt(d)"]
        assert [text.get_text() for text in axes.get_xticklabels()] == [
            str(d) for d in gradients.SIZES
        ]


def test_loss(drawn: dict[str, Figure]) -> None:
    (axes,) = drawn["7-motorcycle-loss"].axes
    (line,) = axes.lines
    assert line.get_xdata()[[0, -1]].tolist() == [1, motorcycle.STEPS]
    assert line.get_ydata().tolist() == trained().losses[1:]


def test_bandwidth(drawn: dict[str, Figure]) -> None:
    (axes,) = drawn["7-motorcycle-bandwidth"].axes
    curve, average, learned, rule = axes.lines
    times, accelerations = measurements()
    choice = kernel_regression.choose_bandwidth(times, accelerations)
    np.testing.assert_array_equal(curve.get_xdata(), choice.sigmas)
    np.testing.assert_array_equal(curve.get_ydata(), choice.errors)
    assert rule.get_label() == "rule of thumb, 4.4 ms"
    assert learned.get_label() == "learned, 1.0 ms"
    assert learned.get_ydata()[0] == pytest.approx(choice.error, abs=0.1)
    assert choice.error < rule.get_ydata()[0] < average.get_ydata()[0]


def test_fit(drawn: dict[str, Figure]) -> None:
    (axes,) = drawn["7-motorcycle-fit"].axes
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines) == [
        "measurements",
        "learned, 1.0 ms",
        "rule of thumb, 4.4 ms",
        "average pooling",
    ]
    times, accelerations = measurements()
    np.testing.assert_array_equal(lines["measurements"].get_xdata(), times)
    np.testing.assert_array_equal(lines["measurements"].get_ydata(), accelerations)
    np.testing.assert_allclose(
        lines["average pooling"].get_ydata(), accelerations.mean(dtype=float), rtol=1e-5
    )
    # Only the narrow kernel follows the deepest and the highest measurements.
    lows = [line.get_ydata().min() for line in list(lines.values())[1:]]
    assert lows[0] < lows[1] < lows[2]


def test_kernel_weights(drawn: dict[str, Figure]) -> None:
    pictures = panels(drawn["7-motorcycle-weights"])
    assert [axes.get_title() for axes in pictures] == ["learned, 1.0 ms", "rule of thumb, 4.4 ms"]
    times, _ = measurements()
    for axes in pictures:
        weights = cells(axes)
        assert weights.shape == (121, 133)
        np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
        # Each prediction looks most at a measurement nearest to its time.
        distance = np.abs(np.linspace(0, 60, 121)[:, None] - times)
        chosen = np.take_along_axis(distance, weights.argmax(1)[:, None], axis=1)[:, 0]
        np.testing.assert_allclose(chosen, distance.min(1), atol=1e-4)


def test_labels_are_named(drawn: dict[str, Figure]) -> None:
    """Every picture says what its axes are."""
    for name, figure in drawn.items():
        texts = {figure.get_supxlabel(), *(axes.get_xlabel() for axes in figure.axes)}
        assert any(texts), name
