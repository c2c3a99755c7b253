"""Does a file of tests leave references behind? python -P tests/refleaks.py FILE...

As CPython's own regrtest -R: all tests of a file run a few times until every cache is warm, then
three times more; what grows each of these times is lost: a reference to anything that lives, or a
block of memory. Not the sum that a debug build of CPython keeps (sys.gettotalrefcount): NumPy is
compiled without it, so each reference that passes from one to the other is counted once. What is
counted here are the references that objects have, of all that the collector knows and what they
refer to, and of NumPy's dtypes; in any build. Made for a debug build all the same: it also aborts
where a count falls below zero, memory is written beside or after its block, or an exception is set
where none may be.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from _pytest.runner import runtestprotocol

WARM, MEASURED = 3, 3
DTYPES = [np.dtype(kind) for kind in np.typecodes["All"]]


def references() -> Counter[str]:
    """How often objects are referred to, by their types, and how many blocks there are."""
    getattr(sys, "_clear_internal_caches", sys._clear_type_cache)()
    gc.collect()
    counted = Counter({"blocks": sys.getallocatedblocks()})
    known = gc.get_objects()
    mine = {id(known), id(sys._getframe())}
    everything = {id(x): x for x in [*DTYPES, *known]}
    for x in known:
        everything.update((id(y), y) for y in gc.get_referents(x))
    del known
    for address, x in everything.items():
        if address not in mine:
            counted[f"{type(x).__module__}.{type(x).__qualname__}"] += sys.getrefcount(x)
    return counted


def lost_by_numpy() -> set[str]:
    """NumPy 2.4's ones() loses a reference to the dtype float64 with each call."""
    double = np.dtype(np.float64)
    before = sys.getrefcount(double)
    for _ in range(100):
        np.ones(1)
    return {f"numpy.dtypes.{type(double).__name__}"} if sys.getrefcount(double) > before else set()


def run(items: list[pytest.Item]) -> None:
    """Once; a test that fails ends it all."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        item._initrequest()  # type: ignore[attr-defined]
        for report in runtestprotocol(item, log=False, nextitem=following):
            if report.failed:
                pytest.exit(f"{item.nodeid}\n{report.longreprtext}", 1)


def growth(items: list[pytest.Item]) -> str:
    """What grew in each of the measured runs; nothing, if all is well."""
    found: list[dict[str, int]] = [{} for _ in range(MEASURED)]  # empty, it grows by nothing itself
    for _ in range(WARM):
        run(items)
        before = references()
    for one in found:
        run(items)
        now = references()
        one.update({kind: now[kind] - before[kind] for kind in now if now[kind] > before[kind]})
        before = now
    always = sorted(set.intersection(*map(set, found)) - lost_by_numpy())
    return ", ".join(f"{kind} {[one[kind] for one in found]}" for kind in always)


class Hunt:
    """The plugin: instead of each test once, the tests of each file several times."""

    def __init__(self) -> None:
        self.lost: dict[str, str] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for file, items in groupby(session.items, key=lambda item: item.path):
            tests = list(items)
            lost = growth(tests)
            print(f"{file.name}: {len(tests)} tests, {lost or 'nothing lost'}", flush=True)
            if lost:
                self.lost[file.name] = lost
        return True


def main(*arguments: str) -> Any:
    hunt = Hunt()
    code = pytest.main(["-n0", "-q", "-p", "no:cacheprovider", *arguments], plugins=[hunt])
    return code or bool(hunt.lost)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
