"""What Python sees of the tables of the compiled module: `_core.OPTIONS`, SCORES and ATTENTIONS.

OPTIONS has default and takers of each option that attentions share. SCORES has, of each score, the
names of its parameters and of what else has a gradient; these behind those of the inputs; the
keywords that are its own, and their defaults; and of each parameter its name, its shape in letters,
whether it is optional, and the letter of its fan-in. ATTENTIONS has the same of each attention, of
which multi-head is one more.
"""

from collections import namedtuple
from collections.abc import Collection
from typing import Any

# Bits, from the lowest: a layer's call, and its backward.
_TAKERS = ("forward", "backward", "layer", "layer", "scores", "scaled")
_WORDS = {None: ..., "None": None, "True": True, "False": False}  # None: it is required


def _default(text: str | None) -> Any:
    """What the text of a default stands for."""
    if text is None or text in _WORDS:
        return _WORDS[text]
    if text[0] == "'":
        return text[1:-1]
    return int(text) if text.isdigit() else float(text)


def _takers(bits: int) -> tuple[str, ...]:
    found = []
    for i, name in enumerate(_TAKERS):
        if bits >> i & 1:
            found.append(name)
    return tuple(found)


def _own(function: Any, options: Collection[str]) -> dict[str, Any]:
    """The keywords of a function that are not those of all, and their defaults."""
    found = {}
    for entry in function.__text_signature__[1:-1].partition("*, ")[2].split(", "):
        name, _, default = entry.partition("=")
        if name not in options:
            found[name] = _default(default or None)
    return found


def add_option(core: Any, name: str, default: str | None, takers: int) -> None:
    """One of those that attentions share."""
    vars(core).setdefault("OPTIONS", {})[name] = (_default(default), _takers(takers))


def add_parameter(
    core: Any, attention: str, name: str, shape: str, optional: int, fan_in: str
) -> None:
    """The next one of an attention, which is added when all are there."""
    rows = vars(core).setdefault("ATTENTIONS", {}).setdefault(attention, [])
    rows.append((name, shape, bool(optional), fan_in))


def add_attention(core: Any, name: str) -> Any:
    """One whose parameters were told; the named tuple of its gradients, or None without one."""
    parameters = vars(core).setdefault("ATTENTIONS", {}).get(name, ())
    names = tuple([row[0] for row in parameters])
    of_inputs = ("queries", "keys", "values", *names)
    keywords = _own(getattr(core, f"{name}_attention"), core.OPTIONS)
    w = ("w",) if "w" in keywords else ()
    core.ATTENTIONS[name] = (names + w, of_inputs + w, keywords, tuple(parameters))
    if name != "multi_head":  # which has no functions of its scores
        vars(core).setdefault("SCORES", {})[name] = core.ATTENTIONS[name]
    if not names:
        return None
    title = f"{name.title().replace('_', '')}Gradients"
    # of another module than this one, where pickle finds it
    kind = namedtuple(title, of_inputs, module="attnext")  # type: ignore[misc]
    setattr(core, title, kind)
    return kind
