"""The tables, as text and as Markdown. All others are given as multiples of attnext's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .peers import OTHERS, PEERS

Row = dict[str, Any]
Table = list[list[str]]  # the head first

COLUMNS = [name for name in PEERS if name != "attnext"]


def number(milliseconds: float) -> str:
    """Three digits, in microseconds below one millisecond."""
    if milliseconds < 1:
        return f"{milliseconds * 1e3:.3g} us"
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds:.0f} ms"


def least(row: Row, who: str) -> float | None:
    """The minimum of this callee, or None."""
    found = row["times"].get(who)
    return float(found["min"]) if found else None


def ratio(row: Row, who: str) -> str:
    """How many times as long as attnext."""
    theirs, ours = least(row, who), row["times"]["attnext"]["min"]
    return "" if theirs is None else times(theirs / ours)


def times(factor: float) -> str:
    """As printed."""
    return f"{factor:.1f}x" if factor >= 9.95 else f"{factor:.2f}x"


def best_peer(row: Row) -> str | None:
    """The fastest of them."""
    there = [name for name in OTHERS if name in row["times"]]
    return min(there, key=lambda name: float(row["times"][name]["min"])) if there else None


def beside_best(row: Row) -> str:
    """Its name, and how many times as long as attnext."""
    best = best_peer(row)
    return "" if best is None else f"{ratio(row, best)} {best}"


def share(row: Row) -> str:
    """The limit's part of the time."""
    limit = row["limit"]
    return "" if limit is None else f"{limit / row['times']['attnext']['min']:.0%}"


def speedup(row: Row, rows: Sequence[Row]) -> str:
    """How many times as fast as with one thread, if that was measured."""
    for one in rows:
        if one["threads"] == 1 < row["threads"] and same_work(one, row):
            return times(one["times"]["attnext"]["min"] / row["times"]["attnext"]["min"])
    return ""


def same_work(a: Row, b: Row) -> bool:
    """The same case, or mask, and direction."""
    return all(a.get(key) == b.get(key) for key in ("case", "mask", "shape", "work"))


def full_table(record: Row, threads: int) -> Table:
    """Every row of so many threads, with every peer."""
    rows = [row for row in record["rows"] if row["threads"] == threads]
    peers = [name for name in COLUMNS if any(name in row["times"] for row in rows)]
    head = ["case", "shape", "work", "attnext", "median", "limit", "of limit", "best peer", *peers]
    table = [head + ["speedup over 1 thread"] * (threads > 1)]
    for row in rows:
        ours = row["times"]["attnext"]
        cells = [row["case"], row["shape"], row["work"], number(ours["min"])]
        cells += [number(ours["median"]), "" if row["limit"] is None else number(row["limit"])]
        cells += [share(row), beside_best(row)]
        cells += [ratio(row, name) for name in peers]
        table.append(cells + [speedup(row, record["rows"])] * (threads > 1))
    return table


def mask_table(record: Row, threads: int) -> Table:
    """Whether the cost follows the pairs."""
    table = [["mask", "work", "pairs", "tiles", "time", "allowed", "attnext", "dense",
              "torch SDPA"]]  # fmt: skip
    for row in record["masks"]:
        if row["threads"] == threads:
            ours, dense = row["times"]["attnext"]["min"], row["times"]["dense"]["min"]
            shares = (row["pairs"], row["tiles"], ours / dense, row["allowed"])
            sdpa = least(row, "torch SDPA")
            cells = [row["mask"], row["work"], *[f"{x:.3f}" for x in shares]]
            cells += [number(ours), number(dense), "" if sdpa is None else number(sdpa)]
            table.append(cells)
    return table


# ---- as text ------------------------------------------------------------------------------------


def plain(table: Table) -> str:
    """Columns of equal width."""
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in table
    )


def markdown(table: Table) -> str:
    """A Markdown table."""
    head, *lines = table
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines))


def heading(record: Row) -> str:
    """The CPU, the date, who took part, and who did not."""
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    chosen = record["config"]["instruction_set"]["chosen"]
    clock = "; CPU time" if record["cpu_time"] else ""
    lines = [
        f"{record['cpu']}, {record['cpus']} CPUs, {chosen}; {record['date']}{clock}; {versions}."
    ]
    lines += [f"Left out: {name} ({why})." for name, why in record["missing"].items()]
    return "\n".join(lines)


LEGEND = """
The column "attnext" is the shortest of many calls. The columns of the other libraries say how many
times as long their shortest call took in the same run. "Limit" is the shortest time that the
arithmetic or the memory of this CPU allows. It follows from the rates of multiply-adds, divisions
and memory reads that were measured in the same run. "Of limit" is the limit divided by the time of
attnext.

The limit of a masked softmax is a copy of the scores by NumPy into new memory. It is a comparison
and no bound: above 100% attnext was faster than the best copy. The limit of d2l's small examples is
the time in which NumPy allocates the arrays of the results.
""".strip()

VARIANTS = """
Columns whose names begin with "attnext" are attnext under other conditions. "No memory": a decoder
projects the keys again at every step. "Unaligned": the inputs begin 4 bytes after a multiple of 64.
"avx2", "generic": narrower vectors than this CPU has. "attnext.torch": the layers of attnext.torch,
with autograd where the work includes gradients. "Torch no memory" is the same as "attnext no
memory", in PyTorch.
""".strip()


def refusals(record: Row) -> list[str]:
    """Who gave wrong results, or none, and was not timed."""
    return [
        f"{row.get('case') or row['mask']}, {row['work']}, {row['threads']} thread(s): "
        f"{name} not timed: {why}"
        for row in record["rows"] + record["masks"]
        for name, why in row["refused"].items()
    ]


def document(record: Row, as_markdown: bool = True) -> str:
    """All tables with their headings."""
    shown = markdown if as_markdown else plain
    parts = [heading(record), LEGEND, VARIANTS]
    for threads in sorted({row["threads"] for row in record["rows"]}):
        parts += [f"{count(threads)}:", shown(full_table(record, threads))]
    for threads in sorted({row["threads"] for row in record["masks"]}):
        row = next(row for row in record["masks"] if row["threads"] == threads)
        parts += [f"Masks, {row['shape']}, {count(threads)}. Unmasked pairs, computed tiles and\n"
                  "time, each divided by that of the call without a mask:",
                  shown(mask_table(record, threads))]  # fmt: skip
    return "\n\n".join(parts + refusals(record)) + "\n"


def count(threads: int) -> str:
    """One thread, 2 threads."""
    return "One thread" if threads == 1 else f"{threads} threads"
