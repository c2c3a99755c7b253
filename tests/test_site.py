"""The documentation site (docs/site): nothing public is missing in it. That it builds without a
warning is shown by the step notebooks of .ci/run.
"""

import ast
import doctest
import importlib
import json
import re
import shutil
import subprocess
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers import TESTS
from numpy.testing import assert_allclose
from public import public_modules

import attnext
from attnext.explain.html import STYLE

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


def test_the_first_page_shows_cases_of_the_record_in_words() -> None:
    """The numbers in the words are sizes of the case; no id of a benchmark is shown."""
    (table,) = re.findall(
        r"^SHOWN = (\{.*?^\})", (SITE / "conf.py").read_text("utf-8"), re.M | re.S
    )
    words: dict[str, dict[str, str]] = ast.literal_eval(table)
    record = json.loads((ROOT / "docs" / "performance.json").read_text("utf-8"))
    measured = {row["case"]: row for row in record["rows"]
                if row["threads"] == 1 and row["work"] == "forward"}  # fmt: skip
    assert len(words) == 4
    for case, said in words.items():
        row = measured[case]
        assert row["times"]["attnext"] and any(name.startswith("torch") for name in row["times"])
        sizes = {*re.findall(r"\d+", row["shape"])}
        for text in said.values():
            numbers = re.findall(r"\d+", text)
            assert len(numbers) >= 3 and {*numbers} <= sizes, (text, row["shape"])
            assert case not in text
        assert sorted(re.findall(r"\d+", said["en"])) == sorted(re.findall(r"\d+", said["zh"]))


def lines_of(page: str) -> dict[str, Any]:
    """Run the lines of a first page, whose output must be that of the page; return their names."""
    text = (SITE / page).read_text("utf-8")
    names: dict[str, Any] = {}
    test = doctest.DocTestParser().get_doctest(text, names, page, page, 0)
    results = doctest.DocTestRunner().run(test, clear_globs=False)
    assert results.attempted == 6 and results.failed == 0
    return test.globs


@pytest.mark.parametrize(("page", "lang"), [("home.md", "en"), ("home.zh-CN.md", "zh")])
def test_the_lines_of_the_first_page_compute_its_picture(page: str, lang: str) -> None:
    """The words' vectors of the picture have the same products; the pair shown first is alike."""
    lines = lines_of(page)
    script = (SITE / "static" / "playground" / "playground.js").read_text("utf-8")
    examples = re.findall(r'example: "(.*)"', script)
    sentence = examples[("en", "zh").index(lang)]
    assert "dot_product_attention: { scale: 4 }," in script and "value: 0 });" in script
    spaced = sentence.lower() if lang == "en" else " ".join(lines["words"])
    assert spaced.replace(" ", "") == sentence.lower().replace(" ", "")
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    module = (SITE / "static" / "playground" / "sentence.js").read_text("utf-8")
    ask = """
        const words = wordsOf(process.argv[1]);
        const { shape, data } = embed(words, 0);
        console.log(JSON.stringify([words, shape, Array.from(data), mostAlike(words)]));"""
    command = [node, "--input-type=module", "--eval", module + ask, sentence]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True)
    words, shape, data, first = json.loads(done.stdout)
    assert [word.lower() for word in words] == lines["words"]
    X = np.float32(data).reshape(shape)
    assert_allclose(X @ X.T, lines["X"] @ lines["X"].T, atol=1e-6)
    pair = words[first["row"]], words[first["column"]]
    assert pair == {"en": ("cats", "cat"), "zh": ("会", "不会")}[lang]


def test_other_claims_of_the_first_page() -> None:
    for page, count in (("home.md", "Eight notebooks"), ("home.zh-CN.md", "八个笔记本")):
        text = (SITE / page).read_text("utf-8")
        assert count in text and len(NOTEBOOKS) == 8
        assert "three lines" not in text and "三行" not in text
        assert "2.5 GHz" in text and "Intel Xeon" in text
    record = json.loads((ROOT / "docs" / "performance.json").read_text("utf-8"))
    assert "Intel(R) Xeon(R)" in record["cpu"] and "2.50GHz" in record["cpu"]


def test_stored_explanations_have_the_style_of_today() -> None:
    """The pages of notebooks show what is stored, so a new style has to be stored."""
    count = 0
    for path in sorted(ROOT.glob("examples/**/*.ipynb")):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            for output in cell.get("outputs", ()):
                html = "".join(output.get("data", {}).get("text/html", ()))
                if 'class="attnext"' in html:
                    count += 1
                    assert STYLE in html, path.name
    assert count >= 16


def test_explanations_depend_on_no_theme() -> None:
    """A theme with border-box made every cell too narrow; .ci/browser/pages.py measures it."""
    (rule,) = re.findall(r"numbers td, \.attnext table\.numbers th \{(.*?)\}", STYLE, re.S)
    assert "box-sizing: content-box" in rule and "max-width" not in rule
