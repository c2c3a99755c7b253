"""The documentation: every example runs, every public docstring is complete numpydoc."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import inspect
import io
import pkgutil
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers import REPOSITORY
from numpydoc.validate import validate
from pairs import IN_CHINESE, destinations, without_blocks

import attnext
from attnext import _options, reference

# Not asked for: an extended summary, a See Also, a bare type as the first line of Returns (results
# have names here), and an infinitive at the start, which numpydoc takes "Gradients of" not to be.
NOT_ASKED_FOR = {"ES01", "SA01", "RT02", "SS05"}

FUNCTIONS = [name for name in attnext.__all__ if inspect.isroutine(getattr(attnext, name))]
ABOUT_THE_PROCESS = ("set_num_threads", "get_num_threads", "empty_cache", "show_config")


def public_modules() -> list[str]:
    names = ["attnext"]
    for module in pkgutil.walk_packages(attnext.__path__, "attnext."):
        if not any(part.startswith("_") for part in module.name.split(".")):
            names.append(module.name)
    return names


def public_objects() -> Iterator[str]:
    """Full names of everything public, methods and properties of classes included."""
    for module_name in public_modules():
        module = importlib.import_module(module_name)
        for name in getattr(module, "__all__", ()):
            yield f"{module_name}.{name}"
            value = getattr(module, name)
            if inspect.isclass(value) and not issubclass(value, tuple):
                for member in vars(value):
                    if not member.startswith("_"):
                        yield f"{module_name}.{name}.{member}"


OBJECTS = list(public_objects())


def resolve(name: str) -> Any:
    value: Any = attnext
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


def docstrings() -> dict[str, str]:
    """Docstrings that hold examples, by name: those of modules, and of what they make public."""
    found = {name: importlib.import_module(name).__doc__ for name in public_modules()}
    found |= {name: resolve(name).__doc__ for name in OBJECTS}
    return {name: doc for name, doc in found.items() if doc and ">>>" in doc}


DOCSTRINGS = docstrings()


def run_examples(text: str, name: str, namespace: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(text, namespace, name, None, 0)
    assert test.examples, f"{name} has no example"
    report = io.StringIO()
    result = doctest.DocTestRunner(verbose=False).run(test, out=report.write, clear_globs=False)
    namespace.update(test.globs)
    assert result.failed == 0, report.getvalue()


@pytest.mark.parametrize("name", DOCSTRINGS)
def test_examples_run(name: str, threads: None) -> None:
    """In the namespace of their module, as doctest has it; that of the C functions is empty."""
    value = resolve(name)
    home = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "attnext")
    run_examples(DOCSTRINGS[name], name, {} if home == "attnext" else dict(vars(sys.modules[home])))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_an_example(name: str) -> None:
    assert f"attnext.{name}" in DOCSTRINGS


@pytest.mark.parametrize("name", OBJECTS)
def test_docstrings_are_numpydoc(name: str) -> None:
    value = resolve(name)
    if not callable(value):  # an attribute: a sentence or two
        assert value.__doc__ and value.__doc__.endswith(".")
        return
    not_asked_for = set(NOT_ASKED_FOR)
    if name.split(".")[-2][0].isupper() or (inspect.isclass(value) and issubclass(value, tuple)):
        not_asked_for.add("EX01")  # of a method, a result: their class or function has the example
    assert [error for error in validate(name)["errors"] if error[0] not in not_asked_for] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sections(name: str) -> None:
    doc = inspect.getdoc(getattr(attnext, name)) or ""
    wanted = {"Examples"}
    if name not in ABOUT_THE_PROCESS:
        wanted |= {"Parameters", "Returns", "Raises", "Notes"}
    sections = set(re.findall(r"^(\w[\w ]*)\n-+$", doc, re.MULTILINE))
    assert wanted <= sections


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if hasattr(reference, name)])
def test_signatures_are_those_of_the_reference(name: str) -> None:
    """The same names, order, kinds and defaults; help() shows them."""

    def parameters(module: ModuleType) -> list[tuple[str, Any, Any]]:
        signature = inspect.signature(getattr(module, name))
        return [(p.name, p.kind, p.default) for p in signature.parameters.values()]

    assert parameters(attnext) == parameters(reference)


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


# ---- the stub ------------------------------------------------------------------------------------

STUB = ast.parse(Path(attnext.__file__).with_name("_core.pyi").read_text(encoding="utf-8"))
OVERLOADED = [node.name for node in STUB.body if isinstance(node, ast.FunctionDef)]
ATTENTIONS = sorted(
    {name for name in OVERLOADED if re.search(r"_(attention|(attention|scores)_backward)$", name)}
)


def options_of(name: str) -> set[str]:
    """The keys of a TypedDict of the stub, or of attnext/_options.py where the stub has it from."""
    for node in STUB.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            own = {
                ast.unparse(line.target) for line in node.body if isinstance(line, ast.AnnAssign)
            }
            return own.union(*(options_of(ast.unparse(base)) for base in node.bases))
    return set(typing.get_type_hints(getattr(_options, name))) if name != "TypedDict" else set()


@pytest.mark.parametrize("name", ATTENTIONS)
def test_the_stub_has_every_argument(name: str) -> None:
    """In each overload: what stubtest does not see of an overload that takes Unpack[...]."""
    shown = inspect.signature(getattr(attnext._core, name)).parameters.values()
    positional = [p.name for p in shown if p.kind is p.POSITIONAL_OR_KEYWORD]
    required = [p.name for p in shown if p.default is p.empty and p.name in positional]
    overloads = [n for n in STUB.body if isinstance(n, ast.FunctionDef) and n.name == name]
    for node in overloads:
        args = node.args
        assert [a.arg for a in args.args] == positional
        assert positional[: len(args.args) - len(args.defaults)] == required
        keywords = {a.arg for a in args.kwonlyargs}
        if args.kwarg is not None:
            assert isinstance(args.kwarg.annotation, ast.Subscript)
            options = options_of(ast.unparse(args.kwarg.annotation.slice))
            assert not keywords & options
            keywords |= options
        assert keywords == {p.name for p in shown if p.kind is p.KEYWORD_ONLY}
    assert len(ATTENTIONS) == 3 * len(attnext._core.SCORES) + 2 + 2  # multi-head; merge
