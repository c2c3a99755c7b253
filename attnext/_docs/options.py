"""The text of help() for options: the paragraphs of options.txt."""

from __future__ import annotations

from attnext._docs import read


def paragraphs(entry: str) -> dict[str, str]:
    """Return the paragraphs of options by name, in the format of a docstring."""
    texts = entry.replace("\n    ", "\0").splitlines()
    return {x[: x.index(" : ")]: x.replace("\0", "\n    ") + "\n" for x in texts}


def in_a_backward(paragraph: str) -> str:
    """Return the paragraph of a backward's option that the forward function has too."""
    return paragraph[: paragraph.index("\n")] + "\n    Same as in the forward pass.\n"


SHARED = read("options")
OPTIONS = paragraphs(SHARED["options of all"])
OF_SCORES = paragraphs(SHARED["options of some scores"])
OF_LAYERS = OPTIONS | paragraphs(SHARED["options of layers"])
