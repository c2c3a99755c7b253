"""The benchmark tool: attnext beside itself in another way, and what becomes of these columns.

attnext.torch, unaligned inputs and narrower vectors. That each of them is right,
test_benchmarks.py sees. Nothing here looks at how long anything took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import HANG, REPOSITORY

import attnext

sys.path.append(str(REPOSITORY / "benchmarks"))

from suite import compare, report
from suite.cases import CASES, Case
from suite.peers import CPUS, OTHERS, OURS, PEERS, WORKS, load, takes
from suite.problem import make

BENCHMARKS = REPOSITORY / "benchmarks"
SETS = attnext.show_config("dicts")["instruction_set"]
NARROWER = [
    cpu for cpu in CPUS if cpu in SETS["available"][: SETS["available"].index(SETS["chosen"])]
]


def record(**factors: float) -> dict[str, Any]:
    """One with a row for every case and direction, each callee that takes part 1 ms times so."""
    rows = [
        {
            "case": case.name,
            "shape": case.shape,
            "work": work,
            "threads": 1,
            "times": {
                name: {"min": factors.get(name, 1.0), "median": 1.0, "runs": 5}
                for name in PEERS
                if takes(name, make(Case("", case.score, (1,), 2, 2, 2, H=1, steps=case.steps)))
            },
            "refused": {},
            "rates": None,
            "limit": None,
        }
        for case in CASES.values()
        for work in WORKS
    ]
    head = {"cpu": "a CPU", "cpus": 1, "date": "2026-01-01", "cpu_time": False, "missing": {}}
    config = {"instruction_set": {"chosen": "avx512"}}
    return {**head, "rows": rows, "masks": [], "versions": {"attnext": "1"}, "config": config}


# ---- the ways ------------------------------------------------------------------------------------


def test_unaligned_inputs_are_unaligned() -> None:
    """To the vectors, but not to the numbers; the arrays as such are the same."""
    from suite.peer_attnext import displaced

    for shape in ((3, 5), (1,), (64, 64)):
        x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        y = displaced(x)
        assert y.ctypes.data % 64 == 4 and y.flags.c_contiguous and y.flags.aligned
        np.testing.assert_array_equal(y, x)
        assert not np.shares_memory(x, y)


@pytest.mark.parametrize("cpu", CPUS)
def test_narrower_vectors(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another copy of the module, where the machine's own vectors are wider, and left out else."""
    monkeypatch.setenv("ATTNEXT_CPU", "scalar")  # stays as it is
    name = f"attnext {cpu}"
    makers, missing = load([name])
    if cpu in NARROWER:
        core = makers[name].args[0]
        assert core.show_config("dicts")["instruction_set"]["chosen"] == cpu
        assert core is not sys.modules["attnext._core"]
    else:
        assert makers == {}
        assert missing[name].startswith(f"AttributeError: attnext uses {SETS['chosen']} here")
    assert os.environ["ATTNEXT_CPU"] == "scalar"
    assert attnext.show_config("dicts")["instruction_set"] == SETS


def test_other_names_are_no_vectors() -> None:
    """What looks through all modules for a name of its own, as torch does, finds none."""
    from suite import narrower

    for name in ("__wrapped__", "call", "no identifier", SETS["chosen"]):
        assert not hasattr(narrower, name)


def with_narrower(*cpus: str, file: Path) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-P", str(BENCHMARKS / "run.py"), "--quick", "--threads", "1"]
    run += ["--case", "dot-toy", "--peer", "NumPy", "--json", str(file)]
    asked = [text for cpu in cpus for text in ("--cpu", cpu)]
    return subprocess.run([*run, *asked], capture_output=True, text=True, timeout=HANG)


def test_a_run_with_narrower_vectors(tmp_path: Path) -> None:
    """--cpu: columns, which are asked for by themselves."""
    file = tmp_path / "out.json"
    done = with_narrower(*NARROWER, file=file)
    assert done.returncode == 0, done.stderr
    made = json.loads(file.read_text())
    columns = [f"attnext {cpu}" for cpu in NARROWER]
    for row in made["rows"]:
        assert [name for name in row["times"] if name in OURS] == ["attnext", *columns]


def test_vectors_that_are_not_narrower_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At once and in a sentence; generic is what attnext is then told to use."""
    monkeypatch.setenv("ATTNEXT_CPU", "generic")
    done = with_narrower("generic", file=tmp_path / "out.json")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    expected = "argument --cpu: attnext uses generic here, expected one of scalar, got generic"
    assert done.stderr.splitlines()[-1].endswith(expected)


# ---- the tables ----------------------------------------------------------------------------------


def test_every_case_has_its_line_in_the_documents() -> None:
    """The decoder's loop among them, with the columns that it alone has."""
    long = report.document(record())
    for case in CASES.values():
        assert long.count(f"| {case.name} | {case.shape} |") == len(WORKS)
    head = next(line for line in long.splitlines() if line.startswith("| case |"))
    assert [name for name in OURS[1:] if f" {name} " not in head] == []
    assert report.VARIANTS in long


def test_attnext_in_another_way_is_no_peer() -> None:
    """However fast it is."""
    made = record(**{name: 0.1 for name in OURS if name != "attnext"}, NumPy=2.0)
    for row in made["rows"]:
        assert report.best_peer(row) in OTHERS
    assert set(OURS).isdisjoint(OTHERS) and {*OURS, *OTHERS} == set(PEERS)


# ---- two records ---------------------------------------------------------------------------------


def test_each_way_is_compared_by_itself() -> None:
    """attnext.torch became slower and nothing else did; its time is not the machine's."""
    text, slower = compare.document(record(), record(**{"attnext.torch": 1.5}))
    marked = [line for line in text.splitlines() if line.endswith(" slower")]
    assert slower and len(marked) == len(CASES) * len(WORKS)
    assert all(" attnext.torch " in line and line.split()[-2] == "1.50x" for line in marked)
    assert all(change.machine == 1.0 for change in compare.changes(record(), record()))
    text, slower = compare.document(record(), record(**dict.fromkeys(PEERS, 1.5)))
    assert not slower and "\n0 of " in text


def test_a_way_of_one_record_alone_is_not_compared() -> None:
    old = record()
    for row in old["rows"]:
        del row["times"]["attnext.torch"]
    whos = {change.who for change in compare.changes(old, record(**{"attnext.torch": 9.0}))}
    assert whos == set(OURS) - {"attnext.torch"}
    assert not compare.document(old, record())[1]
