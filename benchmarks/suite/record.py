"""A record: all measurements of a run, as a file from which tables and pictures are made again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def rounded(x: Any) -> Any:
    """Five digits of every number: more than repeat."""
    if isinstance(x, float):
        return float(f"{x:.5g}")
    if isinstance(x, dict):
        return {key: rounded(value) for key, value in x.items()}
    return [rounded(value) for value in x] if isinstance(x, list) else x


def best(results: list[Record]) -> Record:
    """Of what several processes measured, each call and each limit where it was quickest."""
    first, *others = results
    for other in others:
        for row, again in zip(
            first["rows"] + first["masks"], other["rows"] + other["masks"], strict=True
        ):
            for name, found in again["times"].items():
                known = row["times"].get(name, found)
                row["times"][name] = min(known, found, key=lambda x: x["min"])
                row["refused"].pop(name, None)
            if row.get("limit") is not None and again["limit"] < row["limit"]:
                row |= {"limit": again["limit"], "rates": again["rates"]}
    return first


def text(record: Record) -> str:
    """A line for each row, so that two records can be compared line by line."""
    lines = []
    for key, value in record.items():
        rows = isinstance(value, list) and value
        shown = "[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if rows else json.dumps(value)
        lines.append(f"{json.dumps(key)}: {shown}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read(file: Path) -> Record:
    """What --json or --paste wrote."""
    try:
        record: Record = json.loads(file.read_text(encoding="utf-8"))
        record["rows"], record["masks"]  # noqa: B018
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{file} is no record that --json wrote: {error!r}")
    return record
