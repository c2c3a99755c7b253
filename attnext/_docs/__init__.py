"""What help() says of what is compiled, joined to it when `attnext._core` is imported.

The words are in text files here: a page for each score (dot_product.txt, ...), from which
attention.py makes those of its functions; pages of the other functions (functions.txt), of the
layers, their attributes and methods, of Memory and Context; and a paragraph for each option
(options.txt). In a file each entry begins with a line ``= name``. In an entry a line ``**name``
stands for the entry of that name in options.txt, ``**options`` for the options that the function
takes.

What an installation has was joined once, by setup.py, when all was compiled: the file `joined`. An
editable one has no such file, and joins at every import: a change of a text is there at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Gives what is compiled a docstring, which begins with its signature; of what is not: False.
Add = Callable[[object, str], bool]


def read(name: str, folder: str = __path__[0]) -> dict[str, str]:
    """The entries of a file; none if there is no such file: a score may do without a page."""
    try:
        with open(f"{folder}/{name}.txt", encoding="utf-8") as file:
            entries = ("\n" + file.read()).split("\n= ")[1:]
    except FileNotFoundError:
        return {}
    return {head: text.rstrip("\n") for head, _, text in (x.partition("\n") for x in entries)}


_BETWEEN = "\0"  # names and docstrings


def _joined(core: Any) -> list[str]:
    """Name, docstring, name, docstring, ..."""
    try:
        with open(f"{__path__[0]}/joined", encoding="utf-8", newline="") as file:
            return file.read().split(_BETWEEN)
    except FileNotFoundError:
        from attnext._docs.pages import pages

        return [text for page in pages(core) for text in page]


def join(core: Any, add: Add) -> None:
    """Give the functions and classes of the compiled module their docstrings."""
    texts = iter(_joined(core))
    for name, text in zip(texts, texts, strict=True):
        kind, _, member = name.partition(".")
        found = vars(core)[kind]
        named = vars(found)[member] if member else found
        if named.__doc__ and not isinstance(named, type):
            continue  # imported before in this process
        signature = getattr(named, "__text_signature__", None)
        shown = f"{named.__name__}{signature}\n--\n\n" if signature else ""
        if not add(named, shown + text):
            named.__doc__ = text


def write(folder: str) -> None:
    """Keep them joined, for the package in this folder."""
    from attnext import _core

    text = _BETWEEN.join(_joined(_core))
    with open(f"{folder}/_docs/joined", "w", encoding="utf-8", newline="") as file:
        file.write(text)
