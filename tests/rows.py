"""Several rows of a parametrised test in one go: hooks of pytest, which conftest.py takes.

What pytest and xdist do around a test takes 2 to 5 ms, more than most tests do; for eight rows it
is done once. Only where a row has nothing of its own but random numbers, no fixture; and only if
nobody chose tests, by `::` or -k: a row that fails has a note with its name, under which it runs
alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

ROWS = 8  # in one go
_rest: dict[str, list[Any]] = {}  # the rows that go with another one, by the name of that test


def random_numbers(name: str) -> np.random.Generator:
    """Those of the test of this name."""
    return np.random.default_rng(zlib.crc32(name.encode()))


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    yield
    rows: list[Any] = getattr(metafunc, "_calls", [])  # private: without it each row is a test
    if not _may_go_together(metafunc):
        return
    firsts: list[Any] = []
    rest: list[Any] = []
    for row in rows:
        if firsts and row.marks == firsts[-1].marks and len(rest) < ROWS - 1:
            rest.append(row)
        else:
            firsts.append(row)
            rest = _rest[f"{metafunc.definition.nodeid}[{row.id}]"] = []
    metafunc._calls = firsts


def _may_go_together(metafunc: pytest.Metafunc) -> bool:
    test, config = metafunc.definition, metafunc.config
    marks = list(test.iter_markers("parametrize"))
    chosen = config.option.keyword or any("::" in argument for argument in config.args)
    special = test.get_closest_marker("xfail") or hasattr(metafunc.function, "hypothesis")
    if (
        not marks
        or chosen
        or special
        or any(len(m.args) > 2 or m.kwargs.keys() - {"ids"} for m in marks)
    ):
        return False
    given = {name.strip() for m in marks for name in _names(m.args[0])}
    shared = {*metafunc.fixturenames} - given - {"rng", "request"}
    known = test._fixtureinfo.name2fixturedefs
    return "request" not in test._fixtureinfo.argnames and all(
        name in known and known[name][-1].scope != "function" and not known[name][-1].params
        for name in shared
    )


def _names(names: str | list[str]) -> list[str]:
    return names.split(",") if isinstance(names, str) else names


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    result = yield
    for row in _rest.get(pyfuncitem.nodeid, []):
        name = f"{pyfuncitem.originalname}[{row.id}]"
        arguments = {**pyfuncitem.funcargs, "rng": random_numbers(name), **row.params}
        try:
            pyfuncitem.obj(**{x: arguments[x] for x in pyfuncitem._fixtureinfo.argnames})
        except BaseException as error:
            error.add_note(f"in the row {name}")
            raise
    return result
