"""Puts the tables into documents, between two markers, which stay."""

from __future__ import annotations

from pathlib import Path

BEGIN = "<!-- benchmark table: begin -->"
END = "<!-- benchmark table: end -->"

# Documents, and whether they get the short table.
DOCUMENTS = {"README.md": True, "README.zh-CN.md": True, "docs/performance.md": False}


class NoMarkers(Exception):
    """A document does not say where the table goes."""


def between_markers(text: str, table: str, name: str) -> str:
    """The text with what stands between its markers replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise NoMarkers(f"{name} needs one line {BEGIN} and after it one line {END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table.strip()}\n{END}{rest.split(END)[1]}"


def paste(tables: dict[Path, str]) -> None:
    """Each table into its document; all documents are checked before one is written."""
    texts = {}
    for path, table in tables.items():
        if not path.is_file():
            raise NoMarkers(f"{path} is not there")
        texts[path] = between_markers(path.read_text(encoding="utf-8"), table, str(path))
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
