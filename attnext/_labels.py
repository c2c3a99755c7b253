"""Check the names that a user gives to queries, keys, pictures or curves."""

from __future__ import annotations

from collections.abc import Sequence


def as_texts(name: str, value: Sequence[str]) -> list[str]:
    """Return the value as a list of strings. Refuse a string, which is a sequence of letters."""
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} is of type {type(value).__name__}, expected a sequence of strings")
    return [str(text) for text in value]


def as_labels(name: str, labels: Sequence[str] | None, size: int, which: str) -> list[str]:
    """Return one name per key or query, or an empty list if labels is None."""
    if labels is None:
        return []
    texts = as_texts(name, labels)
    if len(texts) != size:
        expected = f"{size}, one for each {which}"
        raise ValueError(f"{name} has length {len(texts)}, expected {expected}")
    return texts
