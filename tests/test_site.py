"""The documentation site (docs/site): nothing public is missing in it. That it builds without a
warning is shown by the step notebooks of .ci/run.
"""

import doctest
import importlib
import json
import re
from types import ModuleType

import pytest
from helpers import TESTS
from public import public_modules

import attnext

ROOT = TESTS.parent
SITE = ROOT / "docs" / "site"
API = "\n".join(page.read_text("utf-8") for page in sorted((SITE / "api").glob("*.md")))
NOTEBOOKS = [path.stem for path in sorted(ROOT.glob("examples/*.ipynb"))]


def summarised(module: str) -> list[str]:
    """The names that have a page of their own: those in the summaries of a module."""
    blocks = re.findall(
        r"\.\. currentmodule:: (\S+)\n\.\. autosummary::\n(?:   :.*\n)*\n((?:   \w+\n)+)", API
    )
    return [name for of, names in blocks if of == module for name in names.split()]


def modules() -> list[str]:
    return re.findall(r"^\.\. automodule:: (\S+)$", API, re.MULTILINE)


def test_every_public_name_has_its_page_once() -> None:
    assert sorted(summarised("attnext")) == sorted(attnext.__all__)


def test_every_module() -> None:
    expected = {f"attnext.{name}" for name in attnext._SUBMODULES}
    within = [name for name in public_modules() if name.count(".") == 2]  # with names of their own
    expected |= {name for name in within if hasattr(importlib.import_module(name), "__all__")}
    assert sorted(modules()) == sorted(expected)


@pytest.mark.parametrize("name", modules())
def test_every_name_of_a_module_has_its_page_once(name: str) -> None:
    module = importlib.import_module(name)
    public = {each: getattr(module, each) for each in module.__all__}
    expected = [n for n, x in public.items() if callable(x) and not isinstance(x, ModuleType)]
    assert sorted(summarised(name)) == sorted(expected)


@pytest.mark.parametrize(
    ("contents", "of"),
    [(["api/index.md"], "docs/site/api/*.md"), (["guides.md", "conf.py"], "docs/*.md")],
)
def test_every_page_is_in_the_contents(contents: list[str], of: str) -> None:
    lines = "\n".join((SITE / page).read_text("utf-8") for page in contents).splitlines()
    found = {path.stem for path in ROOT.glob(of)} - {"index"}
    assert found
    assert found <= {line.rpartition("/")[2].rstrip(">") for line in lines}


@pytest.mark.parametrize(
    ("page", "folder"), [("notebooks.md", "examples"), ("solutions.md", "examples/solutions")]
)
def test_every_notebook_is_in_the_contents(page: str, folder: str) -> None:
    listed = re.findall(r"^\.\./\.\./(.*)$", (SITE / page).read_text("utf-8"), re.MULTILINE)
    assert listed == [f"{folder}/{path.stem}" for path in sorted(ROOT.glob(f"{folder}/*.ipynb"))]


@pytest.mark.parametrize("page", ["teachers.md", "teachers.zh-CN.md"])
def test_the_index_of_notebooks_has_a_row_for_each(page: str) -> None:
    """It is the teachers' table: name, what is learned, in class, to run, needs."""
    rows = re.findall(r"^\| (\d\d \w+) \|(.*)\|$", (ROOT / "docs" / page).read_text("utf-8"), re.M)
    assert [name.replace(" ", "_") for name, _ in rows] == NOTEBOOKS
    assert all(cells.count("|") == 3 for _, cells in rows)


def test_the_first_screen_shows_cases_of_the_record() -> None:
    (names,) = re.findall(r"^SHOWN = \((.*)\)$", (SITE / "conf.py").read_text("utf-8"), re.M)
    record = json.loads((ROOT / "docs" / "performance.json").read_text("utf-8"))
    measured = {row["case"]: row["times"] for row in record["rows"]
                if row["threads"] == 1 and row["work"] == "forward"}  # fmt: skip
    cases = re.findall(r'"([\w-]+)"', names)
    assert len(cases) == 4
    for case in cases:
        assert measured[case]["attnext"] and any(
            name.startswith("torch") for name in measured[case]
        )


@pytest.mark.parametrize("page", ["home.md", "home.zh-CN.md"])
def test_the_lines_of_the_first_screen(page: str) -> None:
    failed, tried = doctest.testfile(str(SITE / page), module_relative=False, encoding="utf-8")
    assert tried == 3 and failed == 0
