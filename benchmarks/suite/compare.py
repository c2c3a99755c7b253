"""Two records side by side: what became slower, what faster.

Machines drift: the same call takes 20 % longer on a warm afternoon. The peers of a row do not
change with attnext, so the median of how they changed is the machine's part, and is divided out. A
row without a common peer is taken as it is, and marked. attnext in another way (attnext.torch, its
narrower vectors) has lines of its own.
"""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

from .peers import OTHERS, OURS
from .report import Row, Table, count, number, plain, same_work, times

SLOWER = 1.1  # below this it may be noise: the ratios of a quiet machine repeat to 5 %


class Change(NamedTuple):
    """A row of both records."""

    who: str  # attnext, or attnext in another way
    old: Row
    new: Row
    machine: float | None  # how many times as long the peers took; None: there are none

    @property
    def factor(self) -> float:
        """How many times as long it takes as it did."""
        taken = [float(row["times"][self.who]["min"]) for row in (self.new, self.old)]
        return taken[0] / taken[1] / (self.machine or 1.0)


def changes(old: Row, new: Row) -> list[Change]:
    """Of every row that both have, the worst first."""
    pairs = [
        (before, after)
        for kind in ("rows", "masks")
        for after in new[kind]
        for before in old[kind]
        if before["threads"] == after["threads"] and same_work(before, after)
    ]
    found = [
        Change(who, before, after, _machine(before, after))
        for before, after in pairs
        for who in OURS
        if who in before["times"] and who in after["times"]
    ]
    return sorted(found, key=lambda change: -change.factor)


def _machine(old: Row, new: Row) -> float | None:
    common = [name for name in OTHERS if name in old["times"] and name in new["times"]]
    ratios = [new["times"][name]["min"] / old["times"][name]["min"] for name in common]
    return median(ratios) if ratios else None


def document(old: Row, new: Row) -> tuple[str, bool]:
    """The table, and whether anything became slower."""
    found = changes(old, new)
    table: Table = [["case", "work", "threads", "who", "was", "is", "machine", "takes", ""]]
    table += [_line(change) for change in found]
    slower = [change for change in found if change.factor >= SLOWER]
    parts = [f"{name}: {_heading(record)}" for name, record in (("Was", old), ("Is", new))]
    parts += [plain(table)] if found else []
    for name, a, b in (("Only before", old, new), ("Only now", new, old)):
        alone = [_name(row) for row in _rows(a) if not any(_same(row, other) for other in _rows(b))]
        parts += [f"{name}: {', '.join(alone)}."] if alone else []
    parts.append(f"{len(slower)} of {len(found)} rows take {SLOWER} times as long or longer.")
    return "\n".join(parts) + "\n", bool(slower)


def _line(change: Change) -> list[str]:
    was, now = (number(row["times"][change.who]["min"]) for row in (change.old, change.new))
    machine = "?" if change.machine is None else times(change.machine)
    mark = "slower" if change.factor >= SLOWER else "faster" * (change.factor <= 1 / SLOWER)
    row = change.new
    cells = [row.get("case") or row["mask"], row["work"], str(row["threads"]), change.who]
    cells += [was, now, machine]
    return [*cells, times(change.factor), mark]


def _heading(record: dict[str, Any]) -> str:
    chosen = record["config"]["instruction_set"]["chosen"]
    return f"{record['cpu']}, {chosen}; {record['date']}; attnext {record['versions']['attnext']}"


def _rows(record: Row) -> list[Row]:
    return [*record["rows"], *record["masks"]]


def _same(a: Row, b: Row) -> bool:
    return bool(a["threads"] == b["threads"] and same_work(a, b))


def _name(row: Row) -> str:
    return f"{row.get('case') or row['mask']} {row['work']} ({count(row['threads']).lower()})"
