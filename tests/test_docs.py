"""The documentation: every example runs, every public docstring is complete numpydoc."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import io
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers import REPOSITORY, run_python
from pairs import IN_CHINESE, destinations, without_blocks
from public import public_modules, public_objects, resolve

import attnext
from attnext import _core, _docs, reference
from attnext._docs import options, pages

# Not asked for: an extended summary, a See Also, a bare type as the first line of Returns (results
# have names here), and an infinitive at the start, which numpydoc takes "Gradients of" not to be.
NOT_ASKED_FOR = {"ES01", "SA01", "RT02", "SS05"}

FUNCTIONS = [name for name in attnext.__all__ if inspect.isroutine(getattr(attnext, name))]
ABOUT_THE_PROCESS = ("set_num_threads", "get_num_threads", "empty_cache", "show_config")

# By their names: one of them imports transformers, for which no other test should have to wait.
every_module = pytest.mark.parametrize("module", public_modules())


def docstrings(module: str) -> dict[str, str]:
    """Those that hold examples, by name: the module's, and of what it makes public."""
    found = {module: importlib.import_module(module).__doc__}
    found |= {name: resolve(name).__doc__ for name in public_objects(module)}
    return {name: doc for name, doc in found.items() if doc and ">>>" in doc}


def run_examples(text: str, name: str, namespace: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(text, namespace, name, None, 0)
    assert test.examples, f"{name} has no example"
    report = io.StringIO()
    result = doctest.DocTestRunner(verbose=False).run(test, out=report.write, clear_globs=False)
    namespace.update(test.globs)
    assert result.failed == 0, report.getvalue()


@every_module
def test_examples_run(module: str, threads: None) -> None:
    """In the namespace of their module, as doctest has it; that of the C functions is empty."""
    for name, doc in docstrings(module).items():
        value = resolve(name)
        home = module if inspect.ismodule(value) else getattr(value, "__module__", "attnext")
        run_examples(doc, name, {} if home == "attnext" else dict(vars(sys.modules[home])))


def compiled() -> dict[str, str | None]:
    """The docstrings of the compiled module: of functions, classes, methods and attributes."""
    found: dict[str, Any] = {n: x for n, x in vars(_core).items() if callable(x)}
    for name, kind in [(n, x) for n, x in found.items() if inspect.isclass(x)]:
        members = {n: x for n, x in vars(kind).items() if n[0] != "_" or n == "__call__"}
        found |= {f"{name}.{n}": x for n, x in members.items()}
    return {name: x.__doc__ for name, x in found.items()}


def test_everything_compiled_has_words_and_no_words_are_left_over() -> None:
    docs = compiled()
    assert [name for name, doc in docs.items() if not doc] == []
    assert options.OPTIONS.keys() == _core.OPTIONS.keys()
    shown = "\n".join(filter(None, docs.values()))
    for page in Path(_docs.__file__).parent.glob("*.txt"):
        for entry, text in _docs.read(page.stem).items():
            private = entry.rpartition(".")[2].startswith("_")
            of_options = "options" in entry and options.paragraphs(text).values()
            for part in of_options or [text.split("\n**")[0]]:
                assert private or "{" in part or part in shown, (page.stem, entry)


def test_an_installation_has_the_docstrings_that_an_import_would_join() -> None:
    """setup.py keeps them; what is kept is what is shown."""
    package = Path(_docs.__file__).parent
    assert (package / "joined").is_file() == (package != REPOSITORY / "attnext" / "_docs")
    kept = _docs._joined(_core)
    assert kept == [text for page in pages.pages(_core) for text in page]
    assert all("\0" not in text for text in kept)
    for name, text in pages.pages(_core):
        kind, _, member = name.partition(".")
        shown = vars(getattr(_core, kind)).get(member) if member else getattr(_core, kind)
        assert shown.__doc__ == text, name


def test_docstrings_are_joined_once() -> None:
    """Functions and methods of another import of the module are those of the first."""
    code = """
import importlib, sys
from attnext import _core
del sys.modules["attnext._core"]
again = importlib.import_module("attnext._core")
for name in ("masked_softmax", "DotProductAttention"):
    assert getattr(again, name) is not getattr(_core, name)
    assert getattr(again, name).__doc__ == getattr(_core, name).__doc__
for name in ("train", "scale", "dropout", "__call__"):
    of = [vars(module.DotProductAttention)[name].__doc__ for module in (_core, again)]
    assert of[0] == of[1], name
"""
    run_python("-c", code)


def test_every_function_has_an_example() -> None:
    assert {f"attnext.{name}" for name in FUNCTIONS} <= docstrings("attnext").keys()


@pytest.mark.filterwarnings("ignore:Widget._?[a-z_]+ is deprecated")  # numpydoc looks at all it has
@every_module
def test_docstrings_are_numpydoc(module: str) -> None:
    from numpydoc.validate import validate  # which imports Sphinx

    wrong = {}
    for name in public_objects(module):
        value = resolve(name)
        if not callable(value):  # an attribute: a sentence or two
            assert value.__doc__ and value.__doc__.endswith("."), name
            continue
        not_asked_for = set(NOT_ASKED_FOR)
        if name.split(".")[-2][0].isupper() or (
            inspect.isclass(value) and issubclass(value, tuple)
        ):
            not_asked_for.add("EX01")  # of a method, a result: their class or function has one
        errors = [error for error in validate(name)["errors"] if error[0] not in not_asked_for]
        wrong |= {name: errors} if errors else {}
    assert wrong == {}


def test_sections() -> None:
    for name in FUNCTIONS:
        doc = inspect.getdoc(getattr(attnext, name)) or ""
        wanted = {"Examples"}
        if name not in ABOUT_THE_PROCESS:
            wanted |= {"Parameters", "Returns", "Raises", "Notes"}
        sections = set(re.findall(r"^(\w[\w ]*)\n-+$", doc, re.MULTILINE))
        assert wanted <= sections, name


def test_signatures_are_those_of_the_reference() -> None:
    """The same names, order, kinds and defaults; help() shows them."""

    def parameters(module: ModuleType, name: str) -> list[tuple[str, Any, Any]]:
        signature = inspect.signature(getattr(module, name))
        return [(p.name, p.kind, p.default) for p in signature.parameters.values()]

    for name in (name for name in FUNCTIONS if hasattr(reference, name)):
        assert parameters(attnext, name) == parameters(reference, name), name


def test_the_reference_has_a_twin_of_every_function() -> None:
    assert set(FUNCTIONS) - set(ABOUT_THE_PROCESS) <= set(reference.__all__)


# ---- README --------------------------------------------------------------------------------------


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```(?:python|pycon)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def outline(page: Path) -> dict[str, Any]:
    """What a translation leaves as it is."""
    text = page.read_text(encoding="utf-8")
    prose = without_blocks(text)
    return {
        "levels of headings": re.findall(r"^(#+) ", prose, re.MULTILINE),
        "rows and columns of tables": [
            line.count(" | ") for line in prose.splitlines() if line.startswith("|")
        ],
        "links": destinations(prose, page),
        "examples": [re.sub(r"  +#.*", "", block) for block in python_blocks(text)],
        "code": sorted(set(re.findall(r"`[^`\n]+`", prose))),
        "formulas": sorted(re.findall(r"\$[^$\n]+\$", prose)),
    }


@pytest.mark.parametrize("page", [p for p in IN_CHINESE if p.suffix == ".md"], ids=lambda p: p.stem)
def test_the_page_in_chinese_is_the_page(page: Path) -> None:
    """tests/test_notebooks_chinese.py says it of the notebooks."""
    ours, theirs = outline(page), outline(IN_CHINESE[page])
    for part in ours:
        assert theirs[part] == ours[part], part


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_examples_of_the_readme_run(
    name: str, threads: None, tmp_path: Path, monkeypatch: Any
) -> None:
    """In one namespace, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks((REPOSITORY / name).read_text(encoding="utf-8"))
    assert blocks
    namespace: dict[str, Any] = {}
    for i, block in enumerate(blocks, 1):
        if ">>>" in block:
            run_examples(block, f"block {i} of {name}", namespace)
        else:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block, f"block {i} of {name}", "exec"), namespace)
