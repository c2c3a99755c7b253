"""Puts what was measured into the documents: tables between two markers, which stay; pictures; and
the record itself, from which all of it can be made again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnext._files import write_files

from . import picture, record, report

BEGIN = "<!-- benchmark table: begin -->"
END = "<!-- benchmark table: end -->"

RECORD = "docs/performance.json"
PICTURES = "docs/pictures"
READMES = {"README.md": "en", "README.zh-CN.md": "zh"}
PERFORMANCE = "docs/performance.md"


class NoMarkers(Exception):
    """A document does not say where the table goes."""


def between_markers(text: str, table: str, name: str, begin: str = BEGIN, end: str = END) -> str:
    """The text with what stands between its markers replaced."""
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise NoMarkers(f"{name} needs one line {begin} and after it one line {end}")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{table.strip()}\n{end}{rest.split(end)[1]}"


def paste(root: Path, tables: dict[str, str]) -> None:
    """Put each table into its document below `root`; check all documents before one is written."""
    texts = {}
    for name, table in tables.items():
        path = root / name
        if not path.is_file():
            raise NoMarkers(f"{path} is not there")
        text = between_markers(path.read_text(encoding="utf-8"), table, str(path))
        texts[name] = text.encode()
    write_files(root, texts)


def publish(measured: dict[str, Any], root: Path) -> None:
    """Of one record: the tables, the pictures, and the record."""
    tables = {name: report.summary(measured, lang) for name, lang in READMES.items()}
    tables[PERFORMANCE] = report.document(measured)
    paste(root, tables)
    drawn = {f"{PICTURES}/{name}": text for name, text in picture.pictures(measured).items()}
    texts = {**drawn, RECORD: record.text(measured)}
    write_files(root, {name: text.encode() for name, text in texts.items()})
