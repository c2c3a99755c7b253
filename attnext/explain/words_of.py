"""What is said of a step, in every language."""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    """What is said of a step: its formula, and (name, note) by language."""

    formula: str
    en: tuple[str, str]
    zh: tuple[str, str]
