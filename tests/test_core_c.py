"""The core through its C interface, compiled without Python: random problems, and large ones.

tests/c/fuzz_attention.c says what holds for every problem; here it is tried on the same ones each
time. tests/c/test_core.c has what only large problems show, test_view.c arrays with any strides,
test_kv_cache.c rows and sums that stay between calls.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from compiling import compile_objects, compiler, link, run
from helpers import REPOSITORY, TESTS, Once

FLAGS = ("-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off")
TEXT = (TESTS / "c" / "test_core.c").read_text()
CHECKS = re.findall(r'^    \{"(\w+)", check_\w+\}', TEXT, re.MULTILINE)


@pytest.fixture(scope="session")
def programs(once: Once, c_objects: list[Path], fused: tuple[str, ...]) -> Path:
    """The folder of all programs."""

    def make(folder: Path) -> None:
        alone = ("test_core", "test_view", "test_kv_cache")
        files = [TESTS / "c" / f"{name}.c" for name in ("fuzz_attention", "fuzz_main", *alone)]
        fuzz, main, *others = compile_objects(files, folder, *FLAGS, *fused)
        link(folder / "fuzz", [fuzz, main, *c_objects], "-pthread")
        for name, program in zip(alone, others, strict=True):
            link(folder / name, [program, *c_objects], "-pthread")

    return once("core", make)


def test_random_problems(programs: Path) -> None:
    """Every score, option and instruction set: strides, prepared keys, masks, saved results.

    `.ci/run coverage` has 500, and the step fuzz as many as come in a minute.
    """
    assert "200 problems" in run([str(programs / "fuzz"), "200"])


@pytest.mark.parametrize("check", CHECKS)
def test_large_problems(check: str, programs: Path) -> None:
    run([str(programs / "test_core"), check])


def test_any_array_is_read_where_it_lies(programs: Path) -> None:
    run([str(programs / "test_view")])


def test_rows_that_stay_and_sums(programs: Path) -> None:
    assert "rows and sums" in run([str(programs / "test_kv_cache")])


def test_every_check_is_named() -> None:
    assert CHECKS == re.findall(r"^check_(\w+)\(void\)$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("option", ["-ffast-math", "-Ofast", "-ffinite-math-only"])
def test_options_that_change_results_do_not_compile(option: str) -> None:
    """Unless an option behind them takes them back, as setup.py adds it."""
    source = str(REPOSITORY / "csrc" / "core" / "softcap.c")
    command = [*compiler(), "-std=c11", "-fsyntax-only", option]
    done = subprocess.run([*command, source], capture_output=True, text=True)
    assert done.returncode != 0
    assert "attnext computes wrong results with -ffast-math, -Ofast or" in done.stderr
    run([*command, "-O2", "-fno-fast-math", "-fno-finite-math-only", source])


def core(name: str) -> str:
    """A file of the core without its comments."""
    text = (REPOSITORY / "csrc" / "core" / name).read_text()
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def test_one_reader_of_queries_keys_and_values() -> None:
    """Nothing but operand.h reads the strides of an operand (attn.h)."""
    files = [path.name for path in (REPOSITORY / "csrc" / "core").glob("*.[ch]")]
    readers = [name for name in files if re.search(r"(->|\.)(head|entry)\b", core(name))]
    assert readers == ["operand.h"]


def test_the_walk_and_the_plans_know_no_modifier_by_name() -> None:
    names = re.findall(r"\bX\((\w+)\)", core("modifier.h"))
    assert names == ["softcap", "bias"]
    for file in ("attention.c", "plan.c", "plan.h", "plan_backward.c", "plan_split.c", "walk.h"):
        assert not re.search("|".join(names), core(file)), file
