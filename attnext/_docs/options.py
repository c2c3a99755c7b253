"""What help() says of the options: options.txt, in paragraphs."""

from __future__ import annotations

from attnext._docs import read


def paragraphs(entry: str) -> dict[str, str]:
    """Of options, by name, as a docstring has them."""
    texts = entry.replace("\n    ", "\0").splitlines()
    return {x[: x.index(" : ")]: x.replace("\0", "\n    ") + "\n" for x in texts}


def in_a_backward(paragraph: str) -> str:
    """The paragraph of an option that the forward has too."""
    return paragraph[: paragraph.index("\n")] + "\n    As in the forward.\n"


SHARED = read("options")
OPTIONS = paragraphs(SHARED["options of all"])
OF_SCORES = paragraphs(SHARED["options of some scores"])
OF_LAYERS = OPTIONS | paragraphs(SHARED["options of layers"])
