"""What the user calls queries, keys, pictures, curves: strings, as many as there are things."""

from __future__ import annotations

from collections.abc import Sequence


def as_texts(name: str, value: Sequence[str]) -> list[str]:
    """The value as a list of strings; a string is not taken for a sequence of letters."""
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} is of type {type(value).__name__}, expected a sequence of strings")
    return [str(text) for text in value]


def as_labels(name: str, labels: Sequence[str] | None, size: int, which: str) -> list[str]:
    """What each key or query is called; an empty list if they have no names."""
    if labels is None:
        return []
    texts = as_texts(name, labels)
    if len(texts) != size:
        expected = f"{size}, one for each {which}"
        raise ValueError(f"{name} has {len(texts)} entries, expected {expected}")
    return texts
