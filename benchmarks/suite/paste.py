"""Write measurements into the documentation: the tables, the pictures, and the record, from which
tables and pictures can be made again.
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
TABLES = "docs/performance_tables.md"


class NoMarkers(Exception):
    """A document lacks the markers between which the table belongs."""


def between_markers(text: str, table: str, name: str, begin: str = BEGIN, end: str = END) -> str:
    """Return the text with the table between its two markers."""
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise NoMarkers(f"{name} needs one line {begin} and after it one line {end}")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{table.strip()}\n{end}{rest.split(end)[1]}"


def pasted(root: Path, tables: dict[str, str]) -> dict[str, bytes]:
    """Return the documents below `root` with their tables."""
    texts = {}
    for name, table in tables.items():
        path = root / name
        if not path.is_file():
            raise NoMarkers(f"{path} does not exist")
        page = path.read_text(encoding="utf-8")
        texts[name] = between_markers(page, table, str(path)).encode()
    return texts


def paste(root: Path, tables: dict[str, str]) -> None:
    """Write each table into its document below `root`, all or none."""
    write_files(root, pasted(root, tables))


def publish(measured: dict[str, Any], root: Path) -> None:
    """Write the tables, the pictures and the record below the folder `root`, all or none."""
    texts = pasted(root, {TABLES: report.document(measured)})
    drawn = {f"{PICTURES}/{name}": text for name, text in picture.pictures(measured).items()}
    drawn[RECORD] = record.text(measured)
    write_files(root, texts | {name: text.encode() for name, text in drawn.items()})
