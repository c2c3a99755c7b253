"""Words in English and in Chinese, from text files beside the code that says them.

An entry, as attnext/_docs reads it, has as many lines of English as then of Chinese. What stands in
braces is filled in where it is said.
"""

from __future__ import annotations

from pathlib import Path

from attnext._docs import read

Both = dict[str, str]  # by language
Entries = dict[str, list[str]]

_HOME = str(Path(__file__).parent)


def entries(name: str) -> Entries:
    """The lines of each entry of the file attnext/<name>.txt."""
    return {key: text.split("\n") for key, text in read(name, _HOME).items()}


def both(lines: list[str]) -> Both:
    """The two halves of an entry."""
    middle = len(lines) // 2
    return {"en": "\n".join(lines[:middle]), "zh": "\n".join(lines[middle:])}


def table(name: str) -> dict[str, Both]:
    """The words of a file, by the names of its entries."""
    return {key: both(lines) for key, lines in entries(name).items()}
