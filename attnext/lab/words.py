"""Every word that a check says, in both languages: the files of texts/."""

from __future__ import annotations

from attnext._words import Both, table

CASES = table("lab/texts/cases")  # what a case is called, by its key: "case 3 of 13, ..."
FAULTS = table("lab/texts/faults")  # what is wrong before any number is looked at
PHRASES = table("lab/texts/phrases")
MISCONCEPTIONS = table("lab/texts/misconceptions")
HANDOUT = table("lab/texts/handout")  # what stands in an assignment, and around it


def said(table: dict[str, Both], key: str, lang: str, **numbers: object) -> str:
    """A sentence of a table, with its numbers filled in."""
    return table[key][lang].format(**numbers)
