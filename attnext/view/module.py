"""The one ES module that notebooks ask for, joined from the files in static/."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:const|function|class) (\w+))", re.MULTILINE)
_COMMENT = re.compile(r"^ *(?:/\*.*?\*/|//[^\n]*)\n", re.MULTILINE | re.DOTALL)
_INDENT = re.compile(r"^ +", re.MULTILINE)


def source(name: str) -> str:
    """The text of a file of static/, without its ending."""
    return files("attnext.view").joinpath("static", f"{name}.js").read_text(encoding="utf-8")


def order(name: str = "widget") -> list[str]:
    """The files that this one imports, and it, each after what it imports itself."""
    found: list[str] = []
    for _, other in _IMPORT.findall(source(name)):
        found += [each for each in order(other) if each not in found]
    return [*found, name]


@cache
def module() -> str:
    """All files as one module without imports; comments and indentation stay behind."""
    *inner, last = order()
    text = "\n".join([*map(_enclosed, inner), _imported(source(last))])
    return _INDENT.sub("", _COMMENT.sub("", text))


def _enclosed(name: str) -> str:
    """A file as a function of its own, which returns what the file exports."""
    text = _imported(source(name))
    exports = ", ".join(made for _, made in _EXPORT.findall(text))
    body = _EXPORT.sub(r"\1", text)
    return f"const {name}_js = (() => {{\n{body}return {{ {exports} }};\n}})();"


def _imported(text: str) -> str:
    return _IMPORT.sub(r"const \1 = \2_js;", text)
