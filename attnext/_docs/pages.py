"""Combine the text files of this folder into the docstrings of the compiled module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from attnext._docs import read
from attnext._docs.attention import Score
from attnext._docs.options import OF_LAYERS, OPTIONS, SHARED, in_a_backward


def taken(function: Any) -> dict[str, bool]:
    """Return the names of a function's arguments, and True for each that is required."""
    names = function.__text_signature__[1:-1].split(", ")
    return {name.partition("=")[0]: "=" not in name for name in names if name not in "$self*/"}


def _complete(page: str, function: Any, options: Mapping[str, str], told: Set[str]) -> str:
    """Replace the lines ``**name`` of a section.

    told: the options of the forward function, which a backward function describes in a few words.
    """
    start, *parts = page.split("\n**")
    for part in parts:
        name, _, rest = part.partition("\n")
        text = SHARED.get(name, "")
        if name == "options":
            names = (n for n, required in taken(function).items() if n in options and not required)
            text = "".join(in_a_backward(options[n]) if n in told else options[n] for n in names)
        start += "\n" + text.rstrip("\n") + ("\n" + rest if rest else "")
    return start


def _of_score(core: Any, name: str, of_forward: Set[str]) -> Iterator[tuple[str, str]]:
    *_, parameters = core.ATTENTIONS[name]
    score = Score(name, read(name), parameters, of_forward)
    title = name.title().replace("_", "")
    for verb in ("attention", "attention_backward", "scores", "scores_backward"):
        function = vars(core).get(f"{name}_{verb}")
        if function is not None:
            yield function.__name__, score.page(verb, taken(function))
    if parameters:
        yield f"{title}Gradients", score.gradients() + "\n"
    for parameter in score.parameters if f"{title}Attention" in vars(core) else ():
        yield f"{title}Attention.{parameter}", score.parameter(parameter)


def pages(core: Any) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of all functions and classes of the compiled module."""
    of_forward = {name for name, (_, takers) in core.OPTIONS.items() if "forward" in takers}
    for name in core.ATTENTIONS:
        yield from _of_score(core, name, of_forward)
    for name, page in read("functions").items():
        told = of_forward if name.endswith("_backward") else set[str]()
        yield name, _complete(page, getattr(core, name), OPTIONS, told) + "\n"
    for texts in (read("layers") | read("methods"), read("memory")):
        for kind in [x for x in texts if isinstance(vars(core).get(x), type)]:
            yield kind, texts[kind] + "\n"
            for name, member in vars(getattr(core, kind)).items():
                page = texts.get(f"{kind}.{name}") or texts.get(name, "")
                if callable(member) and page:
                    page = _complete(page, member, OF_LAYERS, set()) + "\n"
                if page:
                    yield f"{kind}.{name}", page
