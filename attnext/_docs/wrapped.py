"""Docstrings of functions that have the same arguments as a function in C, for example on tensors.

The docstring in the source contains a summary, notes and an example. `complete` adds the missing
sections from the docstring of the C function of the same name. A `Voice` adapts the words to the
module, such as "Tensor" for "ndarray". Sections of the source are not changed, except Parameters:
the parameters listed there replace those of the C function, and the others are added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from inspect import cleandoc
from typing import Any, NamedTuple

SECTIONS = ("Parameters", "Returns", "Raises", "See Also", "Notes", "Examples")
_TITLE = re.compile(r"^(\w[\w ]*)\n-+\n", re.MULTILINE)
# The conversion to float32, which is done by C only.
_CONVERTED = re.compile(
    r"\s+float32 arrays in C order are used.*This holds\s+for every array here\.", re.DOTALL
)


class Voice(NamedTuple):
    """How the docstrings of a module differ from those of the functions in C."""

    see: str  # the text about the C function in See Also
    kinds: tuple[tuple[str, str], ...] = ()  # (old, new) words in the types of arguments
    inputs: tuple[tuple[str, str], ...] = ()  # (old, new) words in the types of `INPUTS`
    results: tuple[tuple[str, str], ...] = ()  # (old, new) words in all other texts
    returns: str = ""  # replaces the section Returns; {name} is the name of the function
    raises: str = ""  # replaces the section Raises
    notes: str = ""  # Notes of a function without any; {attention} is the name of the attention
    arguments: Mapping[str, str] = {}  # replace the paragraphs of these arguments


INPUTS = ("grad_output", "queries", "keys", "values")


def sections(doc: str) -> dict[str, str]:
    """Return the sections of a docstring by title; the text before the first title is ""."""
    first, *rest = _TITLE.split(cleandoc(doc))
    parts = {"": first} | dict(zip(rest[::2], rest[1::2], strict=True))
    return {title: text.strip("\n") for title, text in parts.items()}


def entries(section: str) -> dict[str, str]:
    """Return the paragraphs of a section by the names that they explain."""
    found: dict[str, str] = {}
    for text in re.split(r"\n(?=\S)", section):
        for name in text.partition(" :")[0].split(", "):
            found[name] = text
    return found


def twin_of(function: Any) -> Any:
    """Return the function of the same name in C, or in attnext itself; None if there is none."""
    from attnext import _core, _positions

    kind, _, name = function.__qualname__.rpartition(".")
    if kind:
        layer = vars(_core).get(kind, _core.DotProductAttention)  # any, of what all layers have
        return vars(layer)["__call__" if name == "forward" else name]
    return vars(_core).get(name, vars(_positions).get(name))


def complete(
    function: Any, names: Iterable[str], options: Mapping[str, str], voice: Voice
) -> str | None:
    """Return the complete docstring of a function whose arguments have these names.

    options: the paragraphs of the options.
    """
    twin, name = twin_of(function), function.__name__
    if not function.__doc__:  # python -OO leaves no docstrings
        return None
    own, of_twin = sections(function.__doc__), sections(getattr(twin, "__doc__", None) or "")
    arguments = entries(of_twin.get("Parameters", ""))
    said = {x: _in_voice(x, text, voice) for x, text in arguments.items()}
    said |= {**voice.arguments, **options, **entries(own.pop("Parameters", ""))}
    of_c = {title: _replace(text, voice.results) for title, text in of_twin.items()}
    parts = {
        "Parameters": "\n".join(dict.fromkeys(said[x] for x in names if x in said)),
        "Returns": voice.returns.format(name=name) or of_c.get("Returns", ""),
        "Raises": voice.raises or of_c.get("Raises", ""),
        "Notes": voice.notes.format(attention=name.replace("_scores", "_attention")),
        "See Also": f"attnext.{_home(twin)} : {voice.see}" if twin else "",
        **own,
    }
    told = [
        f"{title}\n{'-' * len(title)}\n{parts[title]}\n" for title in SECTIONS if parts.get(title)
    ]
    return "\n".join([parts[""] + "\n", *told])


def _home(twin: Any) -> str:
    """Return the name of a function, or of the class of a method."""
    name: str = twin.__qualname__
    return name.partition(".")[0]


def _in_voice(name: str, paragraph: str, voice: Voice) -> str:
    head, _, text = _CONVERTED.sub("", paragraph).partition("\n")
    head = _replace(head, voice.inputs if name in INPUTS else voice.kinds)
    return f"{head}\n{_replace(text, voice.results)}"


def _replace(text: str, words: Iterable[tuple[str, str]]) -> str:
    for ours, theirs in words:
        text = text.replace(ours, theirs)
    return text
