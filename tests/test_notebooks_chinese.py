"""examples/zh-CN: the notebooks of examples/ with their prose in Chinese, cell by cell the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from helpers import REPOSITORY
from pairs import IN_CHINESE, destinations
from test_notebooks import ENGLISH, markdown, name, script

EXAMPLES = REPOSITORY / "examples"
CELL = nbformat.v4.new_markdown_cell
CODE = nbformat.v4.new_code_cell


def headings(text: str, _page: Path) -> list[int]:
    """The levels of the headings, in their order."""
    return [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]


def formulas(text: str, _page: Path) -> list[str]:
    """Without spaces, and without the words in them, which are translated."""
    found = re.findall(r"\$\$.+?\$\$|\$[^$\n]+(?:\n[^$\n]+)?\$", text, re.DOTALL)
    return sorted(re.sub(r"\\text\{[^}]*\}|\s", "", formula) for formula in found)


WHAT: dict[str, Callable[[str, Path], Any]] = {
    "headings": headings,
    "formulas": formulas,
    "links": destinations,
}


def unlike(english: Any, chinese: Any, path: str = "made_up.ipynb") -> list[str]:
    """What is not the same in two notebooks of this path, besides the language of the prose."""
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
        for what, of in WHAT.items():
            a, b = of(one.source, EXAMPLES / path), of(other.source, EXAMPLES / "zh-CN" / path)
            if a != b:
                found.append(f"cell {one.id}: {what} {a} and {b}")
    return found


@pytest.mark.parametrize("english", [p for p in IN_CHINESE if p.suffix == ".ipynb"], ids=name)
def test_the_same_notebook(english: Path) -> None:
    ours, theirs = (nbformat.read(p, as_version=4) for p in (english, IN_CHINESE[english]))
    assert unlike(ours, theirs, str(english.relative_to(EXAMPLES))) == []


@pytest.mark.parametrize("english", ENGLISH, ids=name)
def test_a_line_leads_to_the_other_language(english: Path) -> None:
    assert f"\nEnglish | [简体中文](zh-CN/{english.name})\n" in markdown(english)
    assert f"\n[English](../{english.name}) | 简体中文\n" in markdown(IN_CHINESE[english])


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
