"""The documentation site (docs/site): nothing public is missing in it. That it builds without a
warning is shown by the step notebooks of .ci/run.
"""

import importlib
import re

import pytest
from helpers import TESTS
from public import public_modules

import attnext

ROOT = TESTS.parent
SITE = ROOT / "docs" / "site"


def directives(kind: str) -> list[str]:
    pages = "\n".join(page.read_text("utf-8") for page in sorted((SITE / "api").glob("*.md")))
    return re.findall(rf"^\.\. {kind}:: (\S+)$", pages, re.MULTILINE)


def test_every_public_name_has_its_place_once() -> None:
    names = directives("autofunction") + directives("autoclass")
    assert sorted(names) == sorted(attnext.__all__)


def test_every_module() -> None:
    expected = {f"attnext.{name}" for name in attnext._SUBMODULES}
    within = [name for name in public_modules() if name.count(".") == 2]  # with names of their own
    expected |= {name for name in within if hasattr(importlib.import_module(name), "__all__")}
    assert sorted(directives("automodule")) == sorted(expected)


@pytest.mark.parametrize(
    ("contents", "of"),
    [(["api/index.md"], "docs/site/api/*.md"), (["guides.md", "conf.py"], "docs/*.md")],
)
def test_every_page_is_in_the_contents(contents: list[str], of: str) -> None:
    lines = "\n".join((SITE / page).read_text("utf-8") for page in contents).splitlines()
    found = {path.stem for path in ROOT.glob(of)} - {"index"}
    assert found
    assert found <= {line.rpartition("/")[2] for line in lines}


def test_every_notebook_is_in_the_contents() -> None:
    listed = re.findall(
        r"^\.\./\.\./(.*)$", (SITE / "notebooks.md").read_text("utf-8"), re.MULTILINE
    )
    found = [
        str(path.relative_to(ROOT).with_suffix(""))
        for folder in ("examples", "examples/solutions")
        for path in sorted(ROOT.glob(f"{folder}/*.ipynb"))
    ]
    assert listed == found
