"""The tour as wide as the terminal: 60 to 120 columns, in both languages, also without torch."""

from __future__ import annotations

import io
import re
from functools import cache

import pytest
from touring import check_layout, columns, recorded, run, without, without_training

from attnext._tour import motorcycle
from attnext._tour.page import Language, Page

WIDE_PLOT = re.compile(r"^.{8}└┴", re.MULTILINE)


@cache
def tour(width: int, language: Language) -> tuple[int, str]:
    with pytest.MonkeyPatch.context() as patch:
        without_training(patch)
        return run(language=language, width=width)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("width", [60, 120])
def test_the_whole_tour_fits(width: int, language: Language) -> None:
    """Every line, and it is used: rules and pictures are as wide as there is room."""
    code, text = tour(width, language)
    assert code == 0
    check_layout(text, width)
    rules = [line for line in text.splitlines() if line.startswith("──") and line.endswith("──")]
    assert len(rules) > 7 and {columns(line) for line in rules} == {width}
    (axis,) = [line for line in text.splitlines() if WIDE_PLOT.match(line)]
    assert columns(axis) == width - 1
    assert max(columns(line) for line in text.splitlines() if "█" in line) > width - 4
    tail = "".join(text.splitlines()[-3:])
    assert "attnext lab DIR" in tail


def test_a_narrow_tour_tells_the_same() -> None:
    """As many checks as in 80 columns, torch's numbers too, if below ours."""
    narrow, ordinary = tour(60, "en")[1], recorded("en").text
    for text in (narrow, ordinary):
        assert len(re.findall("^  ✓", text, re.MULTILINE)) == len(
            re.findall("^  ✓", ordinary, re.MULTILINE)
        )
        assert len(re.findall(r"\.6457 \.3543 0     0", text)) == 2
    found = [re.findall(r"all (\d+) checks", text) for text in (narrow, ordinary)]
    assert found[0] == found[1] != []


def test_a_narrow_tour_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    without("torch", monkeypatch)
    without_training(monkeypatch)
    code, text = run(motorcycle.kernel_regression, width=60)
    assert code == 0 and "torch" not in text.replace("PyTorch", "")
    check_layout(text, 60)


@pytest.mark.parametrize(
    ("terminal", "width"), [("20", 60), ("60", 60), ("99", 99), ("120", 120), ("400", 120)]
)
def test_from_60_to_120_columns(terminal: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", terminal)
    assert Page(io.StringIO()).width == width
