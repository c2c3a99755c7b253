"""The notebooks of examples/: how .ci/notebooks.py compares their outputs, and what is stored.

That the stored outputs are what the code gives is shown by the step notebooks of .ci/run.
"""

from __future__ import annotations

import importlib.util
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import numpy as np
import pytest
from helpers import REPOSITORY
from matplotlib.figure import Figure

if not (REPOSITORY / ".ci").exists():
    pytest.skip("an sdist has no CI", allow_module_level=True)


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks", REPOSITORY / ".ci/notebooks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load_script()
ENGLISH = sorted((REPOSITORY / "examples").glob("*.ipynb"))
SOLUTIONS = sorted((REPOSITORY / "examples/solutions").glob("*.ipynb"))
CHINESE = sorted((REPOSITORY / "examples/zh-CN").glob("**/*.ipynb"))


def name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY / "examples").with_suffix(""))


def markdown(path: Path) -> str:
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


# ---- made-up outputs -----------------------------------------------------------------------------


def printed(text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": text}


def shown(**data: str) -> dict[str, Any]:
    kinds = {"plain": "text/plain", "html": "text/html", "png": "image/png"}
    return {
        "output_type": "display_data",
        "data": {kinds[kind]: text for kind, text in data.items()},
        "metadata": {},
    }


@cache
def drawn(curve: str, width: float = 4.0) -> str:
    """A picture as a kernel gives it."""
    figure = Figure(figsize=(width, 3), layout="constrained")
    figure.add_subplot().plot(np.linspace(0, 1, 50), CURVES[curve])
    file = BytesIO()
    figure.savefig(file, format="png", dpi=144)
    return b64encode(file.getvalue()).decode()


RISING = np.linspace(0, 1, 50)
CURVES = {
    "rising": RISING,
    "falling": 1 - RISING,
    "wiggle": RISING + 0.005 * np.sin(40 * RISING),  # about the width of the line
}


# ---- light ---------------------------------------------------------------------------------------


def test_light_keeps_what_is_read_and_nothing_that_changes() -> None:
    raw = [
        printed("epoch 1\n"),
        {**printed("a new environment\n"), "name": "stderr"},
        printed("epoch 2\n"),
        {
            **shown(plain="<Figure>", png=drawn("rising")),
            "output_type": "execute_result",
            "execution_count": 7,
            "metadata": {"image/png": {"width": 288, "height": 216}, "isolated": True},
        },
        {**shown(plain="Trace", html="x" * (script.HTML + 1)), "transient": {"display_id": "9"}},
        {
            "output_type": "display_data",
            "data": {"text/plain": "bar", "application/vnd.jupyter.widget-view+json": "{}"},
            "metadata": {},
        },
    ]
    text, picture, trace, bar = script.light(raw)
    assert text == printed("epoch 1\nepoch 2\n")
    assert picture["output_type"] == "display_data" and "execution_count" not in picture
    assert picture["metadata"] == {"image/png": {"width": 288, "height": 216}}
    assert trace == shown(plain="Trace") and bar == shown(plain="bar")
    assert raw[2] == printed("epoch 2\n")  # what the kernel gave is left as it was


def test_a_light_picture_is_smaller_and_looks_the_same() -> None:
    png = drawn("rising")
    light = script.light_picture(png)
    assert len(light) < 0.6 * len(png)
    assert script.decoded(light).size == script.decoded(png).size
    assert script.distance(light, png) < script.PICTURES[""] / 2
    pixels = (np.asarray(script.decoded(picture)).astype(int) for picture in (png, light))
    assert np.abs(np.subtract(*pixels)).max() <= 8  # of 255


# ---- comparing -----------------------------------------------------------------------------------


Made = Callable[[], tuple[str, list[Any], list[Any]]]  # a tag, what is stored, what is fresh


@pytest.mark.parametrize(
    "made",  # when it is asked for: drawing takes its time
    [
        lambda: ("", [printed("loss 0.25")], [printed("loss 0.25")]),
        lambda: ("", [printed("off by 2e-07, 3.1415926")], [printed("off by 1e-07, 3.1415929")]),
        lambda: ("trained", [printed("99.9% right, 1,024")], [printed("99.2%  right, 1,020")]),
        lambda: ("varies", [printed("1.2 ms")], [printed("no time")]),
        lambda: ("", [shown(png=drawn("rising"))],
                 [shown(png=script.light_picture(drawn("rising")))]),
        lambda: ("trained", [shown(png=drawn("rising"))], [shown(png=drawn("wiggle"))]),
    ],
    ids=["equal", "rounding", "trained", "varies", "same picture", "trained picture"],
)  # fmt: skip
def test_what_is_the_same(made: Made) -> None:
    tag, stored, fresh = made()
    assert script.difference(stored, fresh, tag) == ""


@pytest.mark.parametrize(
    "made",  # when it is asked for: drawing takes its time
    [
        lambda: ("", [], [printed("0.25")]),
        lambda: ("varies", [], [printed("0.25")]),
        lambda: ("varies", [printed("0.25")], []),
        lambda: ("varies", [shown(plain="<Figure>")],
                 [shown(plain="<Figure>", png=drawn("rising"))]),
        lambda: ("", [printed("loss 0.2500")], [printed("loss 0.2501")]),
        lambda: ("", [printed("1 2 3")], [printed("1 2")]),
        lambda: ("", [printed("1 nan")], [printed("1 2")]),
        lambda: ("", [printed("x = -1")], [printed("x = 1")]),
        lambda: ("trained", [printed("accuracy 0.5")], [printed("loss 0.5")]),
        lambda: ("trained", [printed("accuracy 0.5")], [printed("accuracy 0.7")]),
        lambda: ("trained", [shown(png=drawn("rising"))], [shown(png=drawn("falling"))]),
        lambda: ("", [shown(png=drawn("rising"))], [shown(png=drawn("rising", width=4.5))]),
        lambda: ("", [shown(html="<td>0.1</td>")], [shown(html="<td>0.2</td>")]),
    ],
    ids=["missing", "missing, varies", "too many", "picture missing", "old number", "fewer numbers",
         "nan", "sign", "other words", "far away", "other picture", "other size", "HTML"],
)  # fmt: skip
def test_what_is_not(made: Made) -> None:
    tag, stored, fresh = made()
    assert script.difference(stored, fresh, tag) != ""


def test_differences_name_the_cell() -> None:
    cells = [nbformat.v4.new_code_cell(id=id, outputs=[printed(id)]) for id in "abc"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("text"), *cells])
    assert script.differences(notebook, [[printed(id)] for id in "abc"]) == []
    (line,) = script.differences(notebook, [[printed("a")], [], [printed("c")]])
    assert line.startswith("cell b: ")
    with pytest.raises(ValueError, match="shorter"):
        script.differences(notebook, [[printed("a")]])


def test_no_stored_picture_passes_for_another() -> None:
    """Not even where the comparison is loosest: the bounds tell what they are to tell."""
    pictures = [
        (f"{name(path)} {cell.id}", script.ink(script.decoded(png)))
        for path in [*ENGLISH, *SOLUTIONS]
        for cell in script.code_cells(nbformat.read(path, as_version=4))
        for output in cell.outputs
        if (png := script.contents(output).get("image/png"))
    ]
    assert len(pictures) > 50
    alike = [
        (one, other)
        for i, (one, a) in enumerate(pictures)
        for other, b in pictures[:i]
        if a.shape == b.shape and script.apart(a, b) <= script.PICTURES["trained"]
    ]
    assert alike == []


# ---- what is stored ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*ENGLISH, *SOLUTIONS, *CHINESE], ids=name)
def test_stored_outputs_are_light(path: Path) -> None:
    assert script.faults(path) == []
    cells = script.code_cells(nbformat.read(path, as_version=4))
    assert sum(bool(cell.outputs) for cell in cells) > len(cells) / 3


def test_heavy_outputs_are_found(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (300, 300, 3), np.uint8)
    file = BytesIO()
    script.Image.fromarray(noise).save(file, "PNG")
    big = b64encode(file.getvalue()).decode()
    assert len(b64decode(big)) > script.PICTURE
    new = nbformat.v4.new_code_cell
    cells = [
        new(id="a", outputs=[shown(png=big)]),
        new(id="b", outputs=[{**printed("Warning!"), "name": "stderr"}]),
        new(id="c", outputs=[printed("." * (script.TEXT + 1))]),
        new(id="d", execution_count=3),
        new(id="e", metadata={"execution": {"iopub.status.busy": "2026-01-01"}}),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=script.METADATA)
    nbformat.write(nbformat.from_dict(notebook), tmp_path / "n.ipynb")
    found = script.faults(tmp_path / "n.ipynb")
    assert [re.match("cell (.)", line)[1] for line in found] == list("deabc")  # type: ignore[index]


def test_their_code_as_a_module() -> None:
    new = nbformat.v4.new_code_cell
    cells = [
        nbformat.v4.new_markdown_cell("text"),
        new("import math\n\n%config x = 1", id="a"),
        new("math.pi", id="b"),
    ]
    module = script.as_module(nbformat.v4.new_notebook(cells=cells))
    assert module.startswith("# pyright: report")
    lines = [line for line in module.splitlines()[1:] if line]
    assert lines == ["# cell a", "import math", "# %config x = 1", "# cell b", "math.pi"]


# ---- the order in which they are read ------------------------------------------------------------


def test_each_says_which_is_next() -> None:
    assert [path.name[:2] for path in ENGLISH] == [f"{n:02}" for n in range(1, 9)]
    for path, following in zip(ENGLISH, [*ENGLISH[1:], None], strict=True):
        (text,) = re.findall(r"^Next: .*(?:\n.+)*", markdown(path), re.MULTILINE)
        if following:
            first = re.findall(r"\]\(([^)]*\.ipynb)\)", text)[0]
            assert first == following.name, f"{path.name} sends its reader to {first}"


@pytest.mark.parametrize("path", ENGLISH, ids=name)
def test_every_exercise_has_a_solution(path: Path) -> None:
    text = markdown(path)
    exercises = re.findall(r"^(\d+)\. ", text.partition("## Exercises\n")[2], re.MULTILINE)
    assert exercises == [str(n) for n in range(1, len(exercises) + 1)] and len(exercises) >= 3
    assert f"](solutions/{path.name})" in text

    solved = markdown(path.parent / "solutions" / path.name)
    assert re.findall(r"^## (\d+)\. ", solved, re.MULTILINE) == exercises
    assert f"](../{path.name})" in solved
