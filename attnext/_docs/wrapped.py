"""What help() says of a function that does the work of one in C on other arrays, or step by step.

Such a function writes out what is its own: a summary, what is to know of it, an example. Its other
sections are those of its twin in C, in the words of its module: a `Voice`. A section that it has
itself stays as it is, but for Parameters: there it says what is otherwise of some of them.
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
    """How a module speaks of what its functions have in common with those in C."""

    see: str  # of the function in C, in See Also; {name} is that of the function
    kinds: tuple[tuple[str, str], ...] = ()  # words of an argument's type, and those in their place
    inputs: tuple[tuple[str, str], ...] = ()  # likewise, of `INPUTS` alone
    results: tuple[tuple[str, str], ...] = ()  # likewise, of what is returned and said of it
    returns: str = ""  # in the place of what C returns
    raises: str = ""  # in the place of what C raises
    notes: str = ""  # of a function without any; {attention} is that of which it is a part
    arguments: Mapping[str, str] = {}  # paragraphs in the place of those of C


INPUTS = ("grad_output", "queries", "keys", "values")


def sections(doc: str) -> dict[str, str]:
    """The parts of a docstring by their titles; "" is what stands before the first."""
    first, *rest = _TITLE.split(cleandoc(doc))
    parts = {"": first} | dict(zip(rest[::2], rest[1::2], strict=True))
    return {title: text.strip("\n") for title, text in parts.items()}


def entries(section: str) -> dict[str, str]:
    """The paragraphs of a section by the names that they explain."""
    found: dict[str, str] = {}
    for text in re.split(r"\n(?=\S)", section):
        for name in text.partition(" :")[0].split(", "):
            found[name] = text
    return found


def twin_of(function: Any) -> Any:
    """What C, or else attnext itself, has under the name of this function or method, if it has."""
    from attnext import _core, _positions

    kind, _, name = function.__qualname__.rpartition(".")
    if kind:
        layer = vars(_core).get(kind, _core.DotProductAttention)  # any, of what all layers have
        return vars(layer)["__call__" if name == "forward" else name]
    return vars(_core).get(name, vars(_positions).get(name))


def complete(
    function: Any, names: Iterable[str], options: Mapping[str, str], voice: Voice
) -> str | None:
    """The docstring of a function whose arguments have these names.

    options: what is said of those that the table of options has.
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
    """Where a function is told of; of a method, its class."""
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
