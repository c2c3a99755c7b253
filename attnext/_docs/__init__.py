"""What help() says of what is compiled, joined to it when `attnext._core` is imported.

The words are in text files here: a page for each score (dot_product.txt, ...), from which
attention.py makes those of its functions; pages of the other functions (functions.txt), of the
layers, their attributes and methods, of Memory and Context; and a paragraph for each option
(options.txt). In a file each entry begins with a line ``= name``. In an entry a line ``**name``
stands for the entry of that name in options.txt, ``**options`` for the options that the function
takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

Add = Callable[[object, str], None]  # puts a text behind the signature, if there is none yet


def read(name: str, folder: str = __path__[0]) -> dict[str, str]:
    """The entries of a file; none if there is no such file: a score may do without a page."""
    try:
        with open(f"{folder}/{name}.txt", encoding="utf-8") as file:
            entries = ("\n" + file.read()).split("\n= ")[1:]
    except FileNotFoundError:
        return {}
    return {head: text.rstrip("\n") for head, _, text in (x.partition("\n") for x in entries)}


def paragraphs(entry: str) -> dict[str, str]:
    """Of options, by name, as a docstring has them."""
    texts = entry.replace("\n    ", "\0").splitlines()
    return {x[: x.index(" : ")]: x.replace("\0", "\n    ") + "\n" for x in texts}


def in_a_backward(paragraph: str) -> str:
    """The paragraph of an option that the forward has too."""
    return paragraph[: paragraph.index("\n")] + "\n    As in the forward.\n"


def taken(function: Any) -> dict[str, bool]:
    """The names of a function's arguments, and whether they are required."""
    names = function.__text_signature__[1:-1].split(", ")
    return {name.partition("=")[0]: "=" not in name for name in names if name not in "$self*/"}


SHARED = read("options")
OPTIONS = paragraphs(SHARED["options of all"])
OF_SCORES = paragraphs(SHARED["options of some scores"])
OF_LAYERS = OPTIONS | paragraphs(SHARED["options of layers"])


def _complete(page: str, function: Any, options: Mapping[str, str], told: Set[str]) -> str:
    """The page with what its lines ``**name`` stand for; told: the options of its forward."""
    start, *parts = page.split("\n**")
    for part in parts:
        name, _, rest = part.partition("\n")
        text = SHARED.get(name, "")
        if name == "options":
            names = (n for n, required in taken(function).items() if n in options and not required)
            text = "".join(in_a_backward(options[n]) if n in told else options[n] for n in names)
        start += "\n" + text.rstrip("\n") + ("\n" + rest if rest else "")
    return start


def _join_score(core: Any, add: Add, name: str, of_forward: Set[str]) -> None:
    from attnext._docs.attention import Score

    *_, parameters = core.ATTENTIONS[name]
    score = Score(name, read(name), parameters, of_forward)
    title = name.title().replace("_", "")
    for verb in ("attention", "attention_backward", "scores", "scores_backward"):
        function = vars(core).get(f"{name}_{verb}")
        if function is not None:
            add(function, score.page(verb, taken(function)))
    if parameters:
        getattr(core, f"{title}Gradients").__doc__ = score.gradients() + "\n"
    layer = vars(core).get(f"{title}Attention")
    for parameter in score.parameters if layer else ():
        add(vars(layer)[parameter], score.parameter(parameter))


def join(core: Any, add: Add) -> None:
    """Give the functions and classes of the compiled module their docstrings."""
    of_forward = {name for name, (_, takers) in core.OPTIONS.items() if "forward" in takers}
    for name in core.ATTENTIONS:
        _join_score(core, add, name, of_forward)
    for name, page in read("functions").items():
        function = getattr(core, name)
        told = of_forward if name.endswith("_backward") else set[str]()
        add(function, _complete(page, function, OPTIONS, told) + "\n")
    for pages in (read("layers") | read("methods"), read("memory")):
        for kind in [x for x in pages if isinstance(vars(core).get(x), type)]:
            add(getattr(core, kind), pages[kind] + "\n")
            for name, member in vars(getattr(core, kind)).items():
                page = pages.get(f"{kind}.{name}") or pages.get(name, "")
                if callable(member) and page:
                    add(member, _complete(page, member, OF_LAYERS, set()) + "\n")
                elif page:
                    add(member, page)
