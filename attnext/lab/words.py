"""The words of a check, in both languages, and the student's texts that it quotes."""

from __future__ import annotations

from attnext._words import Both, table

CASES = table("lab/texts/cases")  # the name of a case, by its key: "case 3 of 13, ..."
FAULTS = table("lab/texts/faults")  # what is wrong apart from the numbers
PHRASES = table("lab/texts/phrases")
# By name; an entry "name/task" replaces that of "name" for this task.
MISCONCEPTIONS = table("lab/texts/misconceptions")
HANDOUT = table("lab/texts/handout")  # what an assignment says

MOST = 300  # characters of a student's text that are shown


def said(table: dict[str, Both], key: str, lang: str, **numbers: object) -> str:
    """Return a sentence of a table, with its numbers filled in."""
    return table[key][lang].format(**numbers)


def printable(text: str, most: int = MOST) -> str:
    """Return a student's text in one line: at most so many characters, no control characters."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    shown = "".join(" " if c.isspace() else e for c, e in zip(cut, escaped, strict=True))
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def is_plain(text: str) -> bool:
    """True if a terminal shows the text as it is, and it is not too long."""
    lines = text.split("\n")
    return len(lines) < 100 and all(line == printable(line) for line in lines)
