"""Texts in English and Chinese, read from text files next to the code that uses them.

An entry has n lines of English and then n lines of Chinese. The code that uses a text fills in the
names in braces.
"""

from __future__ import annotations

from pathlib import Path

from attnext._docs import read

Both = dict[str, str]  # by language
Entries = dict[str, list[str]]

_HOME = str(Path(__file__).parent)


def entries(name: str) -> Entries:
    """Return the lines of each entry of the file attnext/<name>.txt."""
    return {key: text.split("\n") for key, text in read(name, _HOME).items()}


def both(lines: list[str]) -> Both:
    """Split the lines of an entry into English and Chinese."""
    middle = len(lines) // 2
    return {"en": "\n".join(lines[:middle]), "zh": "\n".join(lines[middle:])}


def table(name: str) -> dict[str, Both]:
    """Return the texts of a file, by the names of its entries."""
    return {key: both(lines) for key, lines in entries(name).items()}
