"""The benchmark tool: the picture of README, and attnext of another commit in turn.

Nothing here looks at how long anything took.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers import REPOSITORY

import attnext

sys.path.append(str(REPOSITORY / "benchmarks"))

from suite import before, picture
from suite.peers import WORKS
from suite.shown import SHOWN

# ---- the picture ---------------------------------------------------------------------------------


def test_a_picture_has_every_bar() -> None:
    """A peer twice as slow has a bar half as long; of PyTorch's ways the fastest is drawn."""
    times = {"attnext": 2.0, "torch eager": 8.0, "torch SDPA": 4.0, "NumPy": 1.0}
    row = {"case": SHOWN[0].case, "work": SHOWN[0].work, "threads": 1,
           "times": {name: {"min": ms} for name, ms in times.items()}}  # fmt: skip
    record = {"cpu": "A & B", "date": "2026-01-01", "rows": [row], "masks": [],
              "config": {"instruction_set": {"chosen": "avx2"}}}  # fmt: skip
    assert picture.bars(row) == [
        ("attnext", 1.0, "2 ms"), ("PyTorch", 0.5, "2.00×"), ("NumPy", 2.0, "0.50×")
    ]  # fmt: skip
    for name, text in picture.pictures(record).items():
        svg = ElementTree.fromstring(text)
        rects = svg.findall("{http://www.w3.org/2000/svg}rect")[1:]  # without the page
        widths = [float(rect.attrib["width"]) for rect in rects]
        assert widths == pytest.approx([widths[2] / 2, widths[2] / 4, widths[2]], abs=0.2)
        words = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
        assert (SHOWN[0].zh if "zh" in name else SHOWN[0].en) in words
        assert any("A & B" in str(word) for word in words)
        assert {rect.attrib["fill"] for rect in rects} == {
            picture.PAGES["dark" if "dark" in name else "light"].ours,
            picture.PAGES["dark" if "dark" in name else "light"].theirs,
        }


# ---- another commit -----------------------------------------------------------------------------


def test_what_is_slower_and_what_may_be() -> None:
    def verdict(now: float, trust: float) -> str:
        return before.Row("dot-toy", "forward", 1, 1.0, now, trust).verdict

    assert [verdict(now, 0.01) for now in (1.0, 1.019, 1.03, 0.97)] == ["", "", "slower", "faster"]
    assert [verdict(now, 0.1) for now in (1.05, 0.95, 1.2)] == ["slower?", "faster?", "slower"]
    rows = [before.Row("dot-toy", work, 1, 1.0, 1.05, trust)
            for work, trust in zip(WORKS, (0.0, 0.02, 0.5), strict=True)]  # fmt: skip
    text, slower = before.document(rows, "0123456789abcdef")
    assert slower and "2 of 3 rows are slower by more than 2%, 1 seem to be." in text
    assert "commit 0123456789ab." in text
    assert not before.document(rows[2:], "0123")[1]


def test_a_row_that_seems_slower_is_looked_at_again() -> None:
    """As often as LOOKS says, and not once it is as fast; the trust is that of the processes."""

    class Side:
        def __init__(self, *answers: float) -> None:
            self.answers, self.minima, self.turns = list(answers), list[float](), 0

        def turn(self, case: str, work: str) -> None:
            self.turns += 1
            self.minima.append(self.answers[min(self.turns, len(self.answers)) - 1])

    old, slow = [Side(1.0), Side(1.0)], [Side(1.1), Side(1.2)]
    found = before.row([old[0], *slow, old[1]], "dot-toy", "forward", 1)
    assert [side.turns for side in (*old, *slow)] == [before.LOOKS * before.TURNS] * 4
    assert (found.was, found.now, found.verdict) == (1.0, 1.1, "slower")
    assert found.trust == pytest.approx(1.2 / 1.1 - 1)
    late = [Side(*[1.1] * before.TURNS, 1.0), Side(1.1)]
    found = before.row([old[0], *late, old[1]], "dot-toy", "forward", 1)
    assert late[0].turns == 2 * before.TURNS and found.verdict == ""


def test_a_run_beside_a_folder(tmp_path: Path) -> None:
    """Processes that take turns; the folder of the other commit comes first in their path."""
    there = Path(attnext.__file__).parent
    (tmp_path / "attnext").symlink_to(there, target_is_directory=True)
    spec = {"seconds": 0.001, "cpu_time": False, "patience": 60, "threads": 1, "rounds": 1,
            "peers": ["attnext"], "folder": str(tmp_path)}  # fmt: skip
    found = list(before.rows(spec, ["dot-toy"], tmp_path))
    assert [(row.case, row.work, row.threads) for row in found] == [
        ("dot-toy", work, 1) for work in WORKS
    ]
    assert all(row.was > 0 and row.now > 0 and row.trust >= 0 for row in found)


def test_a_process_that_ends_ends_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "attnext.py").write_text("raise ImportError('broken on purpose')\n")
    spec = {"seconds": 0.001, "cpu_time": False, "patience": 60, "threads": 1, "rounds": 1,
            "peers": ["attnext"], "folder": str(tmp_path)}  # fmt: skip
    with pytest.raises(SystemExit, match="1"):
        list(before.rows(spec, ["dot-toy"], tmp_path))
    assert "broken on purpose" in capfd.readouterr().err


def test_what_is_neither_a_record_nor_a_commit(tmp_path: Path) -> None:
    def run(*given: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", str(REPOSITORY / "benchmarks" / "run.py"), "--compare"]
        return subprocess.run([*command, *given], capture_output=True, text=True, cwd=tmp_path)

    done = run("no-such-commit")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == ("--compare takes a record that --json wrote or a commit of the clone, "
                           "got no-such-commit\n")  # fmt: skip
    done = run("a", "b", "c")
    assert done.returncode == 2
    assert done.stderr.endswith("argument --compare: expected OLD or OLD NEW, got 3\n")
