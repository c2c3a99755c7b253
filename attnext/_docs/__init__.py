"""The docstrings of the compiled module, which are set when `attnext._core` is imported.

The texts are in .txt files in this folder. There is one file per score (dot_product.txt, ...);
attention.py combines it with attention.txt into the docstrings of the functions of that score. The
other files contain the docstrings of the other functions (functions.txt), of the layers and their
members (layers.txt, methods.txt), of Memory and Context (memory.txt), and one paragraph per option
(options.txt). In a file, each section begins with a line ``= name``. A line ``**name`` in a section
is replaced by the section of that name in options.txt, and ``**options`` by the paragraphs of the
options that the function takes.

setup.py writes the complete docstrings of an installation to the file `joined`. An editable
installation has no such file; it combines the texts at every import, so that changes of the texts
take effect at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Set the docstring, beginning with the signature, of a compiled object. False for other objects.
Add = Callable[[object, str], bool]


def read(name: str, folder: str = __path__[0]) -> dict[str, str]:
    """Return the sections of a file by name; an empty dict if a score has no file."""
    try:
        with open(f"{folder}/{name}.txt", encoding="utf-8") as file:
            entries = ("\n" + file.read()).split("\n= ")[1:]
    except FileNotFoundError:
        return {}
    return {head: text.rstrip("\n") for head, _, text in (x.partition("\n") for x in entries)}


_BETWEEN = "\0"  # separates names and docstrings


def _joined(core: Any) -> list[str]:
    """Return name, docstring, name, docstring, ... of all compiled objects."""
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
    """Write the file `joined` for the package in this folder."""
    from attnext import _core

    text = _BETWEEN.join(_joined(_core))
    with open(f"{folder}/_docs/joined", "w", encoding="utf-8", newline="") as file:
        file.write(text)
