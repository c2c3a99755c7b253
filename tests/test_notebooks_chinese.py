"""examples/zh-CN: the notebooks of examples/ with their prose in Chinese, cell by cell the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from test_notebooks import CHINESE, ENGLISH, script

CELL = nbformat.v4.new_markdown_cell
CODE = nbformat.v4.new_code_cell


def headings(text: str) -> list[int]:
    """The levels of the headings, in their order."""
    return [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]


def formulas(text: str) -> list[str]:
    """Without spaces, and without the words in them, which are translated."""
    found = re.findall(r"\$\$.+?\$\$|\$[^$\n]+(?:\n[^$\n]+)?\$", text, re.DOTALL)
    return sorted(re.sub(r"\\text\{[^}]*\}|\s", "", formula) for formula in found)


def links(text: str) -> list[str]:
    """Targets, as they are in the folder examples/; d2l has a site for each language."""
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return sorted(target.replace("https://zh.d2l.ai", "https://d2l.ai") for target in targets)


def links_from_below(text: str) -> list[str]:
    """The same, of a notebook that lies in a folder of examples/."""
    return sorted(target.removeprefix("../") for target in links(text))


def without_summary(text: str) -> str:
    """Without the line that leads to the other language, and the summary for readers of both."""
    return re.sub(r"^(?:>|English \||\[English\]).*\n?", "", text, flags=re.MULTILINE)


def unlike(english: Any, chinese: Any) -> list[str]:
    """What is not the same in two notebooks, besides the language of the prose."""
    if [cell.id for cell in english.cells] != [cell.id for cell in chinese.cells]:
        return ["their cells have other ids, or another order"]
    found = []
    for one, other in zip(english.cells, chinese.cells, strict=True):
        if one.cell_type == "code":
            if one != other:
                found.append(f"cell {one.id}: other code, outputs or tags")
            continue
        if not re.search("[一-鿿]", other.source):
            found.append(f"cell {one.id}: no Chinese")
        texts = [without_summary(cell.source) for cell in (one, other)]
        here = {"headings": headings, "formulas": formulas, "links": links}
        there: dict[str, Callable[[str], Any]] = {**here, "links": links_from_below}
        for what in here:
            a, b = here[what](texts[0]), there[what](texts[1])
            if a != b:
                found.append(f"cell {one.id}: {what} {a} and {b}")
    return found


@pytest.mark.parametrize("path", CHINESE, ids=lambda path: path.stem)
def test_the_same_notebook(path: Path) -> None:
    english = path.parent.parent / path.name
    assert english in ENGLISH
    notebooks = [nbformat.read(p, as_version=4) for p in (english, path)]
    assert unlike(*notebooks) == []
    assert f"\nEnglish | [简体中文](zh-CN/{path.name})\n" in notebooks[0].cells[0].source
    assert f"\n[English](../{path.name}) | 简体中文\n" in notebooks[1].cells[0].source


# ---- what the comparison finds, and what `write` does --------------------------------------------

ENGLISH_CELLS = [
    CELL("## A score $s$\n\nSee [next](02_x.ipynb) and [docs](../docs/a.md).", id="a"),
    CODE("print(1)", id="b", outputs=[], metadata={"tags": ["varies"]}),
]
CHINESE_PROSE = "## 评分 $s$\n\n见[下一篇](02_x.ipynb)和[文档](../../docs/a.md)。"


def notebook(*cells: Any) -> Any:
    return nbformat.v4.new_notebook(cells=list(cells))


@pytest.mark.parametrize(
    ("prose", "finds"),
    [
        (CHINESE_PROSE, None),
        (CHINESE_PROSE.replace("## ", "### "), "headings"),
        (CHINESE_PROSE.replace("$s$", "$t$"), "formulas"),
        (CHINESE_PROSE.replace("02", "03"), "links"),
        ("## A score $s$\n\n[next](02_x.ipynb), [docs](../../docs/a.md).", "no Chinese"),
    ],
)  # fmt: skip
def test_what_unlike_finds(prose: str, finds: str | None) -> None:
    found = unlike(notebook(*ENGLISH_CELLS), notebook(CELL(prose, id="a"), ENGLISH_CELLS[1]))
    assert [finds in line for line in found] == ([True] if finds else [])


def test_code_and_outputs_are_copied() -> None:
    english = notebook(*ENGLISH_CELLS)
    chinese = notebook(CELL(CHINESE_PROSE, id="a"), CODE("old", id="b"))
    assert unlike(english, chinese) == ["cell b: other code, outputs or tags"]
    copied = script.in_chinese(english, chinese)
    assert unlike(english, copied) == []
    assert copied.cells[0].source == CHINESE_PROSE


@pytest.mark.parametrize("cell", [CELL("多余", id="extra"), CODE("1", id="extra")])
def test_a_cell_of_one_language_only_is_named(cell: Any) -> None:
    chinese = notebook(CELL(CHINESE_PROSE, id="a"), cell)
    with pytest.raises(ValueError, match=r"only in the Chinese notebook: \['extra'\]"):
        script.in_chinese(notebook(*ENGLISH_CELLS), chinese)
    with pytest.raises(ValueError, match=r"only in English: \['a'\]"):
        script.in_chinese(notebook(*ENGLISH_CELLS), notebook(ENGLISH_CELLS[1]))
