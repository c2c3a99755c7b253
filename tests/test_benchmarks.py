"""The benchmark tool: its output, its refusal of wrong results, its limits, its documents.

Nothing here looks at how long anything took.
"""

from __future__ import annotations

import io
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import HANG, REPOSITORY

sys.path.append(str(REPOSITORY / "benchmarks"))

from suite import limits, masks, paste, picture, record
from suite.cases import CASES, Case
from suite.check import WrongResult, check, truth
from suite.peers import WORKS
from suite.problem import make
from suite.shown import SHOWN

BENCHMARKS = REPOSITORY / "benchmarks"

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_work = pytest.mark.parametrize("work", WORKS)


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(BENCHMARKS / "run.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=HANG)


def run_here(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same in this process, for what measures nothing."""
    code: Any = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as output,
        redirect_stderr(io.StringIO()) as errors,
    ):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["run.py", *map(str, arguments)])
        patch.setattr(sys, "path", [*sys.path])
        try:
            runpy.run_path(str(BENCHMARKS / "run.py"), run_name="__main__")
        except SystemExit as left:
            code = left.code
            if isinstance(code, str):
                print(code, file=sys.stderr)
    status = 1 if isinstance(code, str) else int(code)
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    """The record and the output of a short run, and the file of the record."""
    folder = tmp_path_factory.mktemp("benchmark")
    file = folder / "out.json"
    done = run("--quick", "--case", "dot-toy", "--threads", "1", "--threads", "2", "--peer",
               "NumPy", "--json", file, cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text()), done.stdout, file


# ---- a run ---------------------------------------------------------------------------------------


def test_the_record(measured: tuple[dict[str, Any], str, Path]) -> None:
    record = measured[0]
    assert record["cpu"] and record["cpus"] >= 1 and record["date"].count("-") == 2
    assert record["versions"]["NumPy"] == np.__version__
    assert record["config"]["instruction_set"]["chosen"]
    assert record["missing"] == {}
    assert [(row["case"], row["work"], row["threads"]) for row in record["rows"]] == [
        ("dot-toy", work, threads) for threads in (1, 2) for work in WORKS
    ]
    for row in record["rows"]:
        assert row["refused"] == {}
        peers = ["attnext", "NumPy"] if row["work"] == "forward" else ["attnext"]
        assert list(row["times"]) == peers
        for times in row["times"].values():
            assert 0 < times["min"] <= times["median"] and times["runs"] >= 2


def test_the_output(measured: tuple[dict[str, Any], str, Path]) -> None:
    record, output, _ = measured
    assert record["cpu"] in output and "One thread:" in output and "2 threads:" in output
    lines = [line for line in output.splitlines() if line.startswith("dot-toy")]
    assert len(lines) == 6
    assert all(CASES["dot-toy"].shape in line for line in lines)


def test_of_several_processes_each_call_where_it_was_quickest(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = run("--quick", "--case", "dot-toy", "--threads", "1", "--peer", "NumPy", "--json", file,
               "--processes", "2", cwd=tmp_path)  # fmt: skip
    assert done.stderr.count("dot-toy, 1 thread(s)") == 2
    assert len(json.loads(file.read_text())["rows"]) == len(WORKS)


def test_the_quickest_of_several() -> None:
    def result(ours: float, theirs: float | None, limit: float) -> dict[str, Any]:
        times = {"attnext": {"min": ours, "median": 9.0}}
        if theirs is not None:
            times["peer"] = {"min": theirs, "median": 9.0}
        refused = {} if theirs is not None else {"peer": "not ready"}
        row = {"times": times, "refused": refused, "limit": limit, "rates": {"copies": 1 / limit}}
        mask = {"times": {"attnext": {"min": ours + 1, "median": 9.0}}, "refused": {}}
        return {"rows": [row], "masks": [mask]}

    found = record.best([result(2.0, None, 0.5), result(3.0, 1.0, 0.4), result(2.5, 1.5, 0.6)])
    (row,), (mask,) = found["rows"], found["masks"]
    assert {name: x["min"] for name, x in row["times"].items()} == {"attnext": 2.0, "peer": 1.0}
    assert (row["refused"], row["limit"], row["rates"]) == ({}, 0.4, {"copies": 2.5})
    assert mask["times"]["attnext"]["min"] == 3.0


def test_a_peer_that_does_not_work_is_named(tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("raise ImportError('broken on purpose')\n")
    code = (
        f"import sys; sys.path.append({str(BENCHMARKS)!r}); sys.path.insert(0, {str(tmp_path)!r});"
        "from suite.peers import load; print(load(['NumPy', 'JAX jit']))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert "'NumPy': <function" in done.stdout, done.stderr
    assert "{'JAX jit': 'ImportError: broken on purpose'}" in done.stdout


# ---- right results first -------------------------------------------------------------------------

SMALL = Case("small", "dot", (2, 3), 5, 7, 4, mask="lengths")


def changed(i: int) -> Callable[[list[Any]], None]:
    def change(results: list[Any]) -> None:
        results[i][0, 0, 0] += 1e-3 * np.abs(results[i]).max()

    return change


def out_of_the_slice(results: list[Any]) -> None:
    results[1][1, 2, 3] += 1  # another batch entry and head than the reference computes


def poisoned(results: list[Any]) -> None:
    results[0][0, 0, 0, 0] = np.nan


def one_too_few(results: list[Any]) -> None:
    results.pop()


WRONG = [changed(0), changed(1), changed(2), changed(3), out_of_the_slice, poisoned, one_too_few]


def test_the_truth_is_kept_for_the_next_process(tmp_path: Path) -> None:
    computed = truth(make(SMALL), tmp_path)
    kept = truth(make(replace(SMALL, M=1)), tmp_path)  # by its name alone
    assert set(computed) == set(kept) == set(WORKS)
    assert [len(computed[work]) for work in WORKS] == [1, 4, 3]
    for work in WORKS:
        for x, y in zip(computed[work], kept[work], strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("spoil", WRONG)
def test_wrong_results_are_refused(spoil: Callable[[list[Any]], None]) -> None:
    from suite.peer_attnext import call

    problem = make(SMALL)
    expected = truth(problem)["forward+backward"]
    right = list(call(problem, "forward+backward", 1)())
    check(right, expected, right)
    wrong = [x.copy() for x in right]
    spoil(wrong)
    with pytest.raises(WrongResult):
        check(wrong, expected, right)


def test_a_peer_that_is_wrong_is_not_timed(tmp_path: Path) -> None:
    """In its place stands why; attnext, if wrong, ends the run."""
    from suite.bench import Bench
    from suite.peer_attnext import call

    spec = {"seconds": 0.01, "cpu_time": False, "patience": 60, "threads": 1, "rounds": 5}
    bench = Bench({**spec, "peers": ["attnext"], "folder": str(tmp_path)})
    bench.makers["wrong"] = lambda problem, work, threads: lambda: problem.inputs["queries"]
    bench.makers["unable"] = lambda problem, work, threads: lambda: 1 / 0
    row = bench.case(CASES["dot-toy"])[0]
    assert list(row["times"]) == ["attnext"]
    assert row["refused"]["wrong"].startswith("WrongResult: result 0 has shape")
    assert row["refused"]["unable"] == "ZeroDivisionError: division by zero"
    bench.makers = {"attnext": lambda *given: lambda: 2 * call(*given)()}
    with pytest.raises(WrongResult):
        bench.case(CASES["dot-toy"])


@every_work
@pytest.mark.parametrize(
    "score", ["dot", "additive", "multi-head", "softmax", "additive, stepwise"]
)
def test_every_peer_here_is_right(score: str, work: str) -> None:
    """Under a mask of each kind; a peer that is not installed is not here."""
    from suite.peers import PEERS, SLOW_TO_COMPILE, load, takes

    makers, _ = load([name for name in PEERS if name not in SLOW_TO_COMPILE])
    score, _, steps = score.partition(", ")
    for name in masks.MASKS:
        if score == "softmax" and name.startswith(("causal", "window")):
            continue  # masked_softmax has lengths and masks
        if steps and name != "lengths":
            continue  # as a decoder has them
        H = {"additive": {"H": 6}, "multi-head": {"heads": 2}}.get(score, {})
        problem = make(Case(name, score, (2,), 5, 7, 4, mask=name, steps=bool(steps), **H))
        if name == "random .4":
            problem.pairs.base[..., 0] = True  # no empty row, of which peers think differently
        expected = truth(problem)[work]
        asked = [maker for name, maker in makers.items() if takes(name, problem)]
        calls = [maker(problem, work, 1) for maker in asked]
        whole = calls[0]() if calls[0] else None
        whole = list(whole) if isinstance(whole, tuple) else [whole]
        for call in calls:
            if call is not None:
                check(call(), expected, [x for x in whole if x is not None])


# ---- the physical limit --------------------------------------------------------------------------

# 16 lanes, 10 G multiply-adds a second, and so many of the others.
RATES = limits.Rates(fma=10e9, division=2e9, read=1e9)


def test_limit_of_a_dot_product_by_hand() -> None:
    """Causal, 3 by 3: 6 of 9 pairs in each of 2 entries."""
    problem = make(Case("", "dot", (2,), 3, 3, 4, Dv=5, mask="causal"))
    forward, both = (limits.work_of(problem, kind) for kind in ("forward", "forward+backward"))
    assert forward.slots == 12 * (4 + 5)
    assert both.slots == 12 * (4 + 5) + 12 * (4 + 4 + 4 + 5 + 5)
    assert limits.work_of(problem, "backward").slots == 12 * (4 + 4 + 4 + 5 + 5)
    assert forward.floats == 2 * 3 * (4 + 4 + 5)
    assert limits.limit_seconds(forward, RATES) == pytest.approx(78e-9)  # reading
    fast = limits.Rates(fma=10e9, division=2e9, read=1e12)
    assert limits.limit_seconds(forward, fast) == pytest.approx(10.8e-9)  # 108 multiply-adds


def test_limit_of_an_additive_score_by_hand() -> None:
    """Two entries with 2 and 6 of 10 keys: 8 pairs of one query, 3 hidden units."""
    problem = make(Case("", "additive", (2,), 1, 10, 4, Dv=5, Dq=7, H=3, mask="book"))
    work = limits.work_of(problem, "forward")
    projections, pooling = (2 * 7 + 8 * 4) * 3, 8 * 5
    assert work.slots == projections + pooling + 8 * (8 + (2 + 8) * 3)
    assert (work.forward_triples, work.backward_triples) == (24, 0)
    both = limits.work_of(problem, "forward+backward")
    assert both.slots == 4 * projections + 3 * pooling + 2 * 8 * (8 + (2 + 8) * 3)
    assert (both.forward_triples, both.backward_triples) == (48, 24)
    backward = limits.work_of(problem, "backward")
    assert (backward.forward_triples, backward.backward_triples) == (24, 24)


def test_as_many_hidden_units_share_a_division_as_is_best() -> None:
    # Four: 64 triples are 17 slots, or 16 lanes of division. Divisions are slow, then fast.
    slow = limits.Rates(fma=16 * 2 * 2.7e9, division=16 / 3.4e-9, read=1.0)
    assert limits.triples_seconds(64, limits.FORWARD, slow) == pytest.approx(3.4e-9)
    even = limits.Rates(fma=16 * 2 * 2.5e9, division=16 / 2.5e-9, read=1.0)
    assert limits.triples_seconds(64, limits.FORWARD, even) == pytest.approx(64 * 4.25 / 80e9)


def test_the_peak_of_arithmetic_is_the_best_so_far(tmp_path: Path) -> None:
    """A thread that comes late in one row does not double its limit. Memory is each row's own."""
    from suite.bench import Bench

    spec = {"seconds": 0.01, "cpu_time": False, "patience": 60, "threads": 1, "rounds": 5}
    bench: Any = Bench({**spec, "peers": ["attnext"], "folder": str(tmp_path)})
    problem = make(replace(CASES["dot-toy"], toy=False))
    expected = truth(problem, tmp_path)["forward"]
    counts = dict.fromkeys(("fma", "division", "read"), lambda: 8)
    bench.machine = SimpleNamespace(calls=lambda problem: counts)
    found = []
    for taken in ({"min": 2.0}, {"min": 1.0}, {"min": 4.0}):  # milliseconds
        bench.timer = SimpleNamespace(
            measure=lambda calls, taken=taken: dict.fromkeys(calls, taken)
        )
        found.append(bench.case_row(problem, "forward", expected)["rates"])
    assert [row["fma"] for row in found] == [row["division"] for row in found] == [4e3, 8e3, 8e3]
    assert [row["read"] for row in found] == [4e3, 8e3, 2e3]


def test_peak_runs(tmp_path: Path) -> None:
    """On the narrowest vectors, so anywhere; each function says how much it has done."""
    library = limits.compile_peak(tmp_path, "generic")
    assert library is not None
    for threads in (1, 2):
        calls = limits.Machine(library, threads).calls(make(CASES["dot-toy"]))
        counts = {name: call() for name, call in calls.items()}
        assert counts["fma"] == threads * 200_000 * 12 * 4
        assert counts["division"] == threads * 15_000 * 12 * 4
        assert counts["read"] == threads * 4096


@every_work
@pytest.mark.parametrize("mask", ["none", "lengths"])
def test_the_limit_of_a_softmax_copies_what_is_valid(mask: str, work: str) -> None:
    problem = make(Case("", "softmax", (5,), 3, 8, mask=mask))
    (X,), g, pairs = problem.arrays, problem.grad_output, problem.pairs
    x, dx = np.where(pairs, X, 0), np.where(pairs, g, 0)
    moved = {"forward": [x], "backward": [dx], "forward+backward": [x, dx]}
    for threads in (1, 2):
        results = limits.copying(problem, work, threads)()
        for got, expected in zip(results, moved[work], strict=True):
            np.testing.assert_array_equal(got, expected)


# ---- the cases -----------------------------------------------------------------------------------


@every_case
def test_cases_have_no_empty_row(case: Case) -> None:
    """Of which peers think differently; and each has its own shape."""
    pairs = make(case).pairs if case.mask != "none" else np.True_
    assert np.all(np.any(pairs, axis=-1))
    assert case.shape not in [c.shape for c in CASES.values() if c.score == case.score and c != case
                              and c.weights == case.weights]  # fmt: skip


@pytest.mark.parametrize("name", masks.MASKS)
def test_masks_say_the_same_twice(name: str) -> None:
    """As options of attnext, and as bools."""
    from attnext import reference

    problem = make(Case("", "dot", (2, 3), 200, 200, 1, mask=name))
    q, k, v = (x[:, :1] for x in problem.arrays)
    options = dict(problem.options)
    if "mask" in options:
        np.testing.assert_array_equal(options["mask"], problem.allowed)
        return
    weights = reference.dot_product_attention(q, k, v, **options, return_weights=True)[1]
    np.testing.assert_array_equal(weights > 0, problem.pairs[:, :1])


def test_share_of_tiles() -> None:
    pairs = np.zeros((2, 64, 256), bool)  # 2 x 2 tiles in each entry
    pairs[0, 31, 127] = pairs[0, 0, 0] = pairs[1, 32, 128] = True
    assert masks.share_of_tiles(pairs) == 2 / 8


# ---- documents -----------------------------------------------------------------------------------


def documents(folder: Path, text: str) -> Path:
    (folder / "docs").mkdir()
    (folder / paste.TABLES).write_text(text)
    return folder


def test_pasting_twice_is_pasting_once(
    measured: tuple[dict[str, Any], str, Path], tmp_path: Path
) -> None:
    record, _, file = measured
    root = documents(tmp_path, f"before\n\n{paste.BEGIN}\nold\n{paste.END}\n\nafter\n")
    texts = []
    for _ in range(2):
        done = run_here("--from", file, "--paste", "--root", root, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        texts.append((root / paste.TABLES).read_text())
    assert texts[0] == texts[1]
    text = texts[0]
    assert text.startswith(f"before\n\n{paste.BEGIN}\n")
    assert text.endswith(f"\n{paste.END}\n\nafter\n")
    assert "old" not in text
    assert record["cpu"] in text and record["date"] in text
    assert "| dot-toy |" in text and "2 threads:" in text
    assert json.loads((root / paste.RECORD).read_text()) == record
    pictures = sorted(path.name for path in (root / paste.PICTURES).iterdir())
    assert pictures == sorted(picture.pictures(record)) and len(pictures) == 4


@pytest.mark.parametrize(
    "text", ["nothing", paste.BEGIN, f"{paste.END}\n{paste.BEGIN}", 2 * (paste.BEGIN + paste.END)]
)
def test_a_document_without_markers_is_left_alone(
    text: str, measured: tuple[dict[str, Any], str, Path], tmp_path: Path
) -> None:
    root = documents(tmp_path, text)
    with pytest.raises(paste.NoMarkers, match="performance_tables.md needs one line"):
        paste.publish(measured[0], root)
    assert (root / paste.TABLES).read_text() == text
    assert not (root / paste.RECORD).exists()


def test_pasting_without_markers_fails(
    measured: tuple[dict[str, Any], str, Path], tmp_path: Path
) -> None:
    root = documents(tmp_path, "nothing")
    done = run_here("--from", measured[2], "--paste", "--root", root, cwd=tmp_path)
    assert done.returncode == 1
    marker = "<!-- benchmark table: begin -->"
    assert f"performance_tables.md needs one line {marker}" in done.stderr


def test_what_the_project_shows_is_made_of_its_record(tmp_path: Path) -> None:
    """Tables and pictures: nothing was written by hand, and the record is whole."""
    record = json.loads((REPOSITORY / paste.RECORD).read_text(encoding="utf-8"))
    shown = {(row["case"], row["work"], row["threads"]) for row in record["rows"]}
    assert len(shown) == len(CASES) * len(WORKS) * 2 and {one.case for one in SHOWN} <= set(CASES)
    files = [paste.TABLES, paste.RECORD]
    files += [f"{paste.PICTURES}/{name}" for name in picture.pictures(record)]
    root = documents(tmp_path, "")
    (root / paste.TABLES).write_bytes((REPOSITORY / paste.TABLES).read_bytes())
    paste.publish(record, root)
    for name in files:
        assert (root / name).read_bytes() == (REPOSITORY / name).read_bytes(), name


# ---- two records --------------------------------------------------------------------------------


def changed(record: dict[str, Any], folder: Path, **factors: float) -> tuple[int, list[str]]:
    """How --compare ends, and its lines, where each callee took so many times as long."""
    files = folder / "old.json", folder / "new.json"
    new = json.loads(json.dumps(record))
    for row in new["rows"]:
        for name, factor in factors.items():
            if name in row["times"]:
                row["times"][name]["min"] *= factor
    files[0].write_text(json.dumps(record))
    files[1].write_text(json.dumps(new))
    done = run_here("--compare", *files, cwd=folder)
    return done.returncode, done.stdout.splitlines()


def test_what_became_slower(measured: tuple[dict[str, Any], str, Path], tmp_path: Path) -> None:
    status, lines = changed(measured[0], tmp_path)
    assert status == 0 and lines[-1] == "0 of 6 rows take 1.1 times as long or longer."
    status, lines = changed(measured[0], tmp_path, attnext=1.2)
    assert status == 1 and lines[-1] == "6 of 6 rows take 1.1 times as long or longer."
    assert sum(line.split()[-2:] == ["1.20x", "slower"] for line in lines) == 6
    status, lines = changed(measured[0], tmp_path, attnext=0.5)
    assert status == 0 and sum(line.endswith("faster") for line in lines) == 6


def test_the_machine_is_divided_out(
    measured: tuple[dict[str, Any], str, Path], tmp_path: Path
) -> None:
    """Where a peer tells what the machine did: NumPy is in the two rows of the forward."""
    status, lines = changed(measured[0], tmp_path, attnext=1.2, NumPy=1.2)
    assert status == 1 and lines[-1] == "4 of 6 rows take 1.1 times as long or longer."
    [head] = [line for line in lines if line.startswith("case")]
    column = head.index("machine")
    assert [line[column:].split()[0] for line in lines if " forward " in line] == ["1.20x"] * 2
    assert [line[column:].split()[0] for line in lines if " backward " in line] == ["?"] * 2


def test_rows_of_one_record_alone_are_named(
    measured: tuple[dict[str, Any], str, Path], tmp_path: Path
) -> None:
    record = measured[0]
    files = tmp_path / "old.json", tmp_path / "new.json"
    files[0].write_text(json.dumps({**record, "rows": record["rows"][1:]}))
    files[1].write_text(json.dumps({**record, "rows": record["rows"][:-1]}))
    output = run_here("--compare", *files, cwd=tmp_path).stdout
    assert "Only before: dot-toy backward (2 threads)." in output.splitlines()
    assert "Only now: dot-toy forward (one thread)." in output.splitlines()


def test_no_record(tmp_path: Path) -> None:
    file = tmp_path / "no.json"
    for text in ("{", "[]", "{}"):
        file.write_text(text)
        done = run_here("--compare", file, file, cwd=tmp_path)
        assert done.returncode == 1 and done.stdout == ""
        assert done.stderr.startswith(f"{file} is no record that --json wrote")


@pytest.mark.parametrize("results", [1, 3])
def test_the_floor_of_a_toy_makes_the_results(results: int) -> None:
    arrays = [np.zeros((2, i + 1), np.float32) for i in range(results)]
    made = limits.making(arrays)()
    assert [(x.shape, x.dtype) for x in made] == [(x.shape, x.dtype) for x in arrays]
