"""Join the files in static/ into the one ES module that a notebook loads."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:const|function|class) (\w+))", re.MULTILINE)
_COMMENT = re.compile(r"^ *(?:/\*.*?\*/|//[^\n]*)\n", re.MULTILINE | re.DOTALL)
_INDENT = re.compile(r"^ +", re.MULTILINE)


def source(name: str) -> str:
    """Return the text of the file NAME.js of static/."""
    return files("attnext.view").joinpath("static", f"{name}.js").read_text(encoding="utf-8")


def order(name: str = "widget") -> list[str]:
    """Return the names of this file and all files it imports, imported files first."""
    found: list[str] = []
    for _, other in _IMPORT.findall(source(name)):
        found += [each for each in order(other) if each not in found]
    return [*found, name]


@cache
def module() -> str:
    """Return all files as one module, without imports, comments and indentation."""
    *inner, last = order()
    text = "\n".join([*map(_enclosed, inner), _imported(source(last))])
    return _INDENT.sub("", _COMMENT.sub("", text))


def _enclosed(name: str) -> str:
    """Return the file wrapped in a function that returns the exports of the file."""
    text = _imported(source(name))
    exports = ", ".join(made for _, made in _EXPORT.findall(text))
    body = _EXPORT.sub(r"\1", text)
    return f"const {name}_js = (() => {{\n{body}return {{ {exports} }};\n}})();"


def _imported(text: str) -> str:
    return _IMPORT.sub(r"const \1 = \2_js;", text)
