"""The tour: it finds every known answer, notices a wrong one, and reads well in any terminal."""

from __future__ import annotations

import errno
import io
import itertools
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import HANG
from touring import (
    Terminal,
    check_layout,
    hurry,
    run,
    spoiled,
    trained,
    without,
    without_training,
)

import attnext
from attnext import _tour, kernel_regression
from attnext.__main__ import main
from attnext._data import motorcycle
from attnext._tour import gradients, masks, scores, timings
from attnext._tour import motorcycle as data_part
from attnext._tour.canvas import Canvas
from attnext._tour.page import Page, numbers_text, weights_text
from attnext._tour.peer import Peer, load_peer
from attnext._tour.tour import Check, Tour

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
TITLES = [
    "Masked softmax",
    "Sequence mask",
    "Additive attention",
    "Dot-product attention",
    "Why 1/sqrt(d)",
    "The backward pass",
    "Real data: kernel regression",
    "How long it takes",
]


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    without("torch", monkeypatch)


# ---- the whole tour ----------------------------------------------------------------------------


def test_the_whole_tour(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    code = main([])
    text, errors = capsys.readouterr()
    assert code == 0 and errors == ""
    assert [re.sub(r"^── \d+ ", "", line)[: len(title)] for line, title in headings(text)] == TITLES
    assert "FAILED" not in text and "✗ " not in text.split("otherwise ✗.")[1]
    found = re.search(r"✓ all (\d+) checks passed", text)
    assert found and int(found[1]) > 70
    assert f"attnext {attnext.__version__}" in text
    assert re.search(r"PyTorch \d+\.\d+\.\d+ is installed", text)
    assert "⣀" in text and "∘" in text
    check_layout(text)


def headings(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.startswith(("── ", "-- "))]
    return list(zip(lines, TITLES, strict=True))


def test_as_a_module_from_elsewhere_in_ascii_and_without_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('not here')\n")
    result = subprocess.run(
        [sys.executable, "-m", "attnext"],
        cwd=tmp_path,  # where `-m` looks first, so this torch is found
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONWARNINGS": "error", "COLUMNS": "80"},
        capture_output=True,
        timeout=HANG,
        check=False,
    )
    text = result.stdout.decode("ascii").replace("\r\n", "\n")
    assert result.stderr == b"" and result.returncode == 0
    assert len(headings(text)) == 8
    assert text.count("PyTorch is not installed") == 1 and "torch" not in text.lower().replace(
        "pytorch is not installed", ""
    )
    assert re.search(r"ok all \d+ checks passed", text)
    check_layout(text)


def test_a_reader_who_leaves_early_sees_no_traceback(tmp_path: Path) -> None:
    code = (
        "import runpy, sys; sys.modules['torch'] = None; "
        "from attnext import _tour; one, two, *_ = _tour.PARTS; "
        "_tour.PARTS = [one, lambda tour: sys.stdin.read(), two]; "  # which waits for the end below
        "runpy.run_module('attnext', run_name='__main__')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.readline()
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=HANG) == 1


# The tour with its first part alone, which does ACT.
SHORT_TOUR = """
import runpy, sys
sys.modules["torch"] = None
from attnext import _tour
first = _tour.PARTS[0]
def part(tour):
    first(tour)
    ACT
_tour.PARTS = [part]
runpy.run_module("attnext", run_name="__main__")
"""


UNWRITABLE = "attnext: cannot write to the standard output: "
needs_dev_full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="/dev/full, a disk that is full, is Linux's"
)


@needs_dev_full
@pytest.mark.parametrize(
    ("redirection", "act", "code", "message"),
    [
        (">&-", "pass", 1, UNWRITABLE + os.strerror(errno.EBADF)),
        (">/dev/full", "pass", 1, UNWRITABLE + os.strerror(errno.ENOSPC)),
        (">/dev/null", "raise KeyboardInterrupt", -signal.SIGINT, ""),
    ],
)
def test_what_cannot_go_on_says_why_in_a_line(
    redirection: str, act: str, code: int, message: str, tmp_path: Path
) -> None:
    """And has the exit status of other tools: no traceback, nor Python's 120."""
    command = [sys.executable, "-P", "-c", SHORT_TOUR.replace("ACT", act)]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *command],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        timeout=HANG,
    )
    assert (done.returncode, done.stderr.strip()) == (code, message)


# What each command does before its output fails: arguments, and the status of a full output.
COMMANDS = [
    (["--help"], 1),
    (["--version"], 1),
    (["lab", "--help"], 1),
    (["lab", "handout"], 1),
    (["lab", "handout", "--lang", "zh"], 1),
    (["lab"], 2),  # its only message goes to the standard error
]


@needs_dev_full
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("words", "status"), COMMANDS)
def test_no_command_ends_in_a_traceback_if_the_output_is_full(
    words: list[str], status: int, unbuffered: str, tmp_path: Path
) -> None:
    """Python itself would print one and exit with 120; argparse would exit with 0."""
    done = redirected(">/dev/full", words, tmp_path, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == status and "Traceback" not in done.stderr
    if status == 1:
        assert done.stderr == f"{UNWRITABLE}{os.strerror(errno.ENOSPC)}\n"
    else:
        assert "the following arguments are required: DIR" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="a shell's redirections")
@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&-"])
def test_lab_with_a_closed_output_writes_nothing(redirection: str, tmp_path: Path) -> None:
    done = redirected(redirection, ["lab", "handout"], tmp_path)
    said = "" if "2>" in redirection else f"{UNWRITABLE}{os.strerror(errno.EBADF)}\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert not (tmp_path / "handout").exists()


@pytest.mark.skipif(os.name == "nt", reason="a shell's pipe")
@pytest.mark.parametrize("words", [["--help"], ["lab", "handout"]], ids=" ".join)
def test_a_command_whose_reader_has_left_is_silent(words: list[str], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "attnext", *words],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=HANG,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.skipif(os.name == "nt", reason="a shell's redirections")
def test_lab_says_it_in_ascii_if_the_output_is_ascii(tmp_path: Path) -> None:
    """In English, and with escapes for the folder's name; the files are Chinese all the same."""
    words = ["lab", "作业", "--lang", "zh"]
    done = redirected(">said", words, tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "said").read_text() == "18 files are in \\u4f5c\\u4e1a\n"
    assert "练习" in (tmp_path / "作业" / "README.md").read_text("utf-8")


def redirected(
    redirection: str, words: list[str], folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`attnext WORDS`, run by a shell with this redirection in the folder."""
    return subprocess.run(
        [
            "sh",
            "-c",
            f'exec "$@" {redirection}',
            "sh",
            sys.executable,
            "-P",
            "-m",
            "attnext",
            *words,
        ],
        cwd=folder,
        env=os.environ | environment,
        stderr=subprocess.PIPE,
        text=True,
        timeout=HANG,
    )


def test_the_console_script_is_the_tour() -> None:
    (script,) = entry_points(group="console_scripts", name="attnext")
    assert script.load() is main


@pytest.mark.parametrize(
    ("argument", "code", "text"),
    [
        ("--version", 0, f"attnext {attnext.__version__}\n"),
        ("--help", 0, "usage: attnext [-h] [--version]"),
        ("--fast", 2, "unrecognized arguments: --fast"),
    ],
)
def test_arguments(argument: str, code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([argument])
    assert stopped.value.code == code
    assert text in "".join(capsys.readouterr())


# ---- a wrong answer is seen --------------------------------------------------------------------


class SpoiledAdditive(attnext.AdditiveAttention):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * np.float32(1.001)


class SpoiledAdditiveBackward(attnext.AdditiveAttention):
    def backward(self, *args: Any, **kwargs: Any) -> Any:
        dq, dk, dv = super().backward(*args, **kwargs)
        return dq, dk * np.float32(1.001), dv


class SpoiledDotProduct(attnext.DotProductAttention):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * np.float32(1.001)


class SpoiledRegression(kernel_regression.NWKernelRegression):
    def backward(self, grad_output: Any) -> Any:
        return super().backward(np.multiply(grad_output, 0.9))


@pytest.mark.parametrize(
    ("part", "owner", "name", "wrong", "missed"),
    [
        (masks.masked_softmax, attnext, "masked_softmax", None, "weights of row 0"),
        (masks.sequence_mask, attnext, "sequence_mask", None, "row 0"),
        (
            scores.additive_attention,
            attnext,
            "AdditiveAttention",
            SpoiledAdditive,
            "output of sample 1",
        ),
        (
            scores.dot_product_attention,
            attnext,
            "DotProductAttention",
            SpoiledDotProduct,
            "output of sample 1",
        ),
        (scores.dot_product_attention, attnext, "dot_product_scores", None, "one call, relative"),
        (scores.dot_product_attention, attnext, "dot_product_attention", None, "one call, rel"),
        (
            gradients.scaling,
            attnext,
            "masked_softmax_backward",
            None,
            "softmax gradients, comp",
        ),
        (
            gradients.backward,
            attnext,
            "AdditiveAttention",
            SpoiledAdditiveBackward,
            "gradient of keys, relative error",
        ),
        (data_part.kernel_regression, kernel_regression, "average_pooling", None, "average pool"),
        (
            data_part.kernel_regression,
            kernel_regression,
            "leave_one_out_error",
            None,
            "Gaussian, 4.4",
        ),
        (
            data_part.kernel_regression,
            kernel_regression,
            "nadaraya_watson",
            None,
            "the learned curve, rel",
        ),
        (
            data_part.kernel_regression,
            kernel_regression,
            "NWKernelRegression",
            SpoiledRegression,
            "gradients of w, compared with PyTorch",
        ),
        (timings.timings, attnext, "additive_attention", None, "additive"),
    ],
)
def test_a_wrong_answer_is_missed_by_name(
    monkeypatch: pytest.MonkeyPatch,
    part: Callable[[Tour], None],
    owner: Any,
    name: str,
    wrong: Any,
    missed: str,
) -> None:
    if wrong is not SpoiledRegression:
        without_training(monkeypatch)
    monkeypatch.setattr(owner, name, wrong or spoiled(getattr(owner, name)))
    code, text = run(part)
    assert code == 1
    assert f"FAILED {missed}" in text  # where it happened
    assert re.search(r"✗ FAILED \d+ of \d+ checks", text)
    assert f"part 1, {missed}" in text.split("✗ FAILED")[-1]  # and at the end


def test_times_that_say_nothing_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One second for each look at the clock, and whatever a contender takes."""
    clock = itertools.count()
    monkeypatch.setattr(timings, "BUDGET", 0.0)
    monkeypatch.setattr(timings.time, "perf_counter", lambda: next(clock))

    def taking(*seconds: int) -> Callable[[], object]:
        rest = iter(seconds)
        return lambda: [next(clock) for _ in range(next(rest))]

    steady, busy = timings._fastest([taking(9, 1, 2), taking(1, 9, 9)])
    assert steady == 2 and math.isnan(busy)
    assert timings._number(busy) == "-" and timings._ratio(busy, steady) == ""
    assert timings._number(steady) == "2000" and timings._ratio(5.0, steady) == "x2.5"


def test_timings_take_one_thread_and_give_the_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(*arguments: Any) -> list[float]:
        seen.append((attnext.get_num_threads(), torch.get_num_threads()))
        return [1.0, 2.0, 3.0]

    seen: list[tuple[int, int]] = []
    before = attnext.get_num_threads(), torch.get_num_threads()
    monkeypatch.setattr("touring.once_each", counted)
    attnext.set_num_threads(3)
    torch.set_num_threads(2)
    try:
        run(timings.timings)
        assert set(seen) == {(1, 1)} and len(seen) == 4
        assert (attnext.get_num_threads(), torch.get_num_threads()) == (3, 2)
    finally:
        attnext.set_num_threads(before[0])
        torch.set_num_threads(before[1])


def test_a_part_that_cannot_finish_is_missed_and_the_tour_goes_on() -> None:
    def stuck(tour: Tour) -> None:
        raise ZeroDivisionError("division by zero")

    code, text = run(stuck, masks.sequence_mask)
    assert code == 1
    assert "FAILED stopped by ZeroDivisionError: division by zero" in text
    assert "2 Sequence mask" in text and "part 1, stopped by ZeroDivisionError" in text


def test_main_returns_what_the_tour_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tour, "PARTS", (masks.sequence_mask,))
    assert main([]) == 0
    monkeypatch.setattr(attnext, "sequence_mask", lambda X, valid_len: X)
    assert main([]) == 1


def test_a_peer_that_disagrees_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peer, "masked_softmax", lambda self, X, valid_lens=None: X.softmax(-1))
    code, text = run(masks.masked_softmax)
    assert code == 1 and "weights of row 0, compared with PyTorch" in text


@pytest.mark.parametrize(
    ("got", "known", "tolerance", "found"),
    [
        (1.0, 1.0, 0.0, True),
        (1.0, 1.1, 0.05, False),
        (1.0, 1.1, 0.2, True),
        (np.nan, 1.0, 1e9, False),
        (1.0, np.nan, 1e9, False),
        ([1.0, 2.0], [1.0, 2.0], 0.0, True),
        ([1.0, np.nan], [1.0, 2.0], 1e9, False),
        ([1.0], [1.0, 1.0], 1e9, False),
        (True, True, 0.0, True),
        (False, True, 0.0, False),
    ],
)
def test_a_check(got: Any, known: Any, tolerance: float, found: bool) -> None:
    assert Check("it", got, known, tolerance).found is found


def test_a_missed_check_says_what_it_got() -> None:
    page = Page(io.StringIO())
    assert Check("it", [1.5, 2], [1, 2]).story(page) == "it: got [1.5 2], expected [1 2]"
    assert "an array of shape (3, 4)" in Check("it", np.ones((3, 4)), 0).story(page)


# ---- with and without PyTorch ------------------------------------------------------------------


@pytest.mark.usefixtures("no_torch")
def test_without_torch_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    without_training(monkeypatch)
    assert load_peer() is None
    code, text = run(masks.masked_softmax, gradients.backward, data_part.kernel_regression)
    assert code == 0
    assert text.count("PyTorch") == 1 and "PyTorch is not installed" in text
    assert "torch" not in text.replace("PyTorch", "")


def test_a_torch_that_cannot_load_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise OSError("libtorch.so: cannot open shared object file")

    monkeypatch.setattr("attnext._tour.peer.import_module", broken)
    assert load_peer() is None


# ---- what the terminal can show ----------------------------------------------------------------


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(
    ("variables", "colour"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, True),  # no-color.org: only when not empty
        ({"TERM": "dumb"}, False),
    ],
)
def test_colour_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], colour: bool
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, text = run(masks.sequence_mask, stream=Terminal())
    assert code == 0
    assert bool(COLOUR.search(text)) is colour


@pytest.mark.usefixtures("no_torch")
def test_without_its_colours_the_text_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    without_training(monkeypatch)
    _, text = run(gradients.scaling, data_part.kernel_regression, stream=Terminal())
    _, plain = run(gradients.scaling, data_part.kernel_regression)
    assert len(COLOUR.findall(text)) > 100
    bare = [line.rstrip() for line in COLOUR.sub("", text).splitlines()]
    assert [line for line in bare if "seconds" not in line] == [
        line for line in plain.splitlines() if "seconds" not in line
    ]


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "gbk", "utf-8", "utf-16"])
def test_any_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_training(monkeypatch)
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    code, text = run(scores.additive_attention, data_part.kernel_regression, stream=stream)
    assert code == 0
    assert text.isascii() is not encoding.startswith("utf")
    check_layout(text)
    rows = [line for line in text.splitlines() if re.match(r"^.{8}[|│┤]", line)]
    assert len(rows) == 22  # the picture keeps its size


def test_a_curve_in_ascii() -> None:
    page = Page(io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    canvas = Canvas(page, (0, 8), (0, 4), height=4, width=8)
    canvas.level(0.5, "dim")
    canvas.curve(lambda x: x / 2, "cyan")
    canvas.points(np.array([0.5, 7.5]), np.array([3.5, 0.5]), "yellow")
    assert [line.rstrip() for line in canvas.lines([0, 4], [3.5, 0.5])] == [
        "    3.5 ┤∘     ##",
        "        │    ##",
        "        │  ##",
        "    0.5 ┤##╌╌╌╌╌∘",
        "        └┴───┴───",
        "         0   4",
    ]


def test_a_curve_in_braille() -> None:
    canvas = Canvas(Page(io.StringIO()), (0, 4), (0, 8), height=2, width=2)
    canvas.curve(lambda x: 2 * x, "cyan")
    # Columns of dots from left to right: rows 7 and 6, 5 and 4, 3 and 2, 1, counted from the top.
    assert ["".join(glyph for glyph, _ in row) for row in canvas.cells] == [" \u2854", "\u285c "]


def test_a_curve_is_unbroken_where_it_is_steep() -> None:
    canvas = Canvas(Page(io.TextIOWrapper(io.BytesIO(), encoding="ascii")), (0, 4), (0, 6), 6, 4)
    canvas.curve(lambda x: np.where(x < 2, 0.5, 5.5), "")
    assert ["".join(glyph for glyph, _ in row) for row in canvas.cells] == [
        "  ##",
        "  # ",
        "  # ",
        " #  ",
        " #  ",
        "##  ",
    ]


def test_numbers_and_bars() -> None:
    assert weights_text([0, 1, 0.25, 0.66974]) == "0     1     .2500 .6697"
    assert weights_text([0.99999, 1e-9]) == "1.0000 .0000"
    assert numbers_text([1, 2.5, -0.123456789]) == "1 2.5 -0.123457"
    assert Page(io.StringIO()).sparkline([0, 0.5, 1]) == "▁▅█"


# ---- the training of part 7 --------------------------------------------------------------------


def test_training_finds_the_bandwidth_of_least_error() -> None:
    times, accelerations = motorcycle()
    x, y = data_part.standardise(times), data_part.standardise(accelerations)
    training = trained()
    assert len(training.losses) == len(training.w) == data_part.STEPS + 1
    assert all(np.diff(training.losses) < 1e-6)
    keys, values = kernel_regression.leave_one_out(x, y)
    net = kernel_regression.NWKernelRegression()
    searched = []
    for w in np.linspace(1, 30, 300):
        net.w = [w]
        searched.append(float(np.mean((net(x, keys, values) - y) ** 2)))
    assert training.losses[-1] < 1.01 * min(searched)
    assert min(searched) < 0.3 < training.losses[0]


def test_rule_of_thumb() -> None:
    x = np.arange(100, dtype=np.float32)
    assert data_part.rule_of_thumb(x) == pytest.approx(0.9 * 29.011 * 100**-0.2, rel=1e-4)
