"""The thread pool of csrc/os, compiled on its own and checked from C."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import compiling
import pytest
from compiling import compiler, sources
from helpers import TESTS

CHECKS = ["test_parallel", "test_parallel_process"]
FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-pthread"]
# Forked children start threads, and the first report is an error.
TSAN_OPTIONS = "die_after_fork=0:halt_on_error=1:atexit_sleep_ms=100"


def build(program: Path, checks: str, *options: str) -> None:
    """Compile tests/c/<checks>.c and csrc/os to `program`, without a warning."""
    files = [TESTS / "c" / f"{checks}.c", *sources("os")]
    command = [*compiler(), *FLAGS, *options, *map(str, files), "-lm", "-o", str(program)]
    compiling.run(command)


def run(*command: str | Path) -> str:
    """Return what the command prints; it must succeed."""
    env = os.environ | {"TSAN_OPTIONS": TSAN_OPTIONS}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def works(*command: str | Path) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize("checks", CHECKS)
def test_pool(tmp_path: Path, checks: str) -> None:
    program = tmp_path / checks
    build(program, checks)
    report = run(program)
    assert report.endswith("all checks passed\n")
    if sys.platform == "linux":
        assert "--  " not in report  # the mark of what cannot be checked elsewhere


@pytest.mark.slow
@pytest.mark.parametrize("checks", CHECKS)
def test_pool_under_thread_sanitizer(tmp_path: Path, checks: str) -> None:
    program = tmp_path / checks
    empty = tmp_path / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    # ThreadSanitizer cannot live with every layout of the address space.
    fixed = ["setarch", "-R"] if shutil.which("setarch") and works("setarch", "-R", "true") else []
    trial = [*compiler(), "-fsanitize=thread", str(empty), "-o", str(program)]
    if not works(*trial) or not works(*fixed, program):
        pytest.skip("this compiler has no working -fsanitize=thread")
    build(program, checks, "-g", "-fsanitize=thread")
    assert run(*fixed, program).endswith("all checks passed\n")


@pytest.fixture(scope="module")
def cgroups(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a directory to write cgroup files to, and a program that looks there."""
    root = tmp_path_factory.mktemp("cgroups")
    program = tmp_path_factory.mktemp("program") / "cpus"
    paths = [f'-DPROC_SELF="{root}"', f'-DCGROUP_ROOT="{root}/tree"']
    build(program, "test_parallel_process", *paths)
    return root, program


V2 = "0::/a/b\n"
V1 = "7:memory:/a/b\n3:cpu,cpuacct:/a/b\n1:name=systemd:/x\n0::/a/b\n"
MANY = 10**6


@pytest.mark.skipif(sys.platform != "linux", reason="cgroups are Linux's")
@pytest.mark.parametrize(
    ("cgroup", "files", "quota"),
    [
        ("", {}, MANY),
        (V2, {"a/b/cpu.max": "max 100000"}, MANY),
        (V2, {"a/b/cpu.max": "100000 100000"}, 1),
        (V2, {"a/b/cpu.max": "100001 100000"}, 2),
        (V2, {"a/b/cpu.max": "1000 100000"}, 1),
        (V2, {"a/b/cpu.max": "99999999999999999 1"}, MANY),
        (V2, {"a/cpu.max": "50000 100000", "a/b/cpu.max": "200000 100000"}, 1),
        (V2, {"cpu.max": "100000 100000"}, 1),
        (V2, {"c/cpu.max": "100000 100000"}, MANY),
        (V2, {"a/b/cpu.max": "-5 100000"}, MANY),
        (V2, {"a/b/cpu.max": "100000 0"}, MANY),
        ("nonsense\n::\n0::\n0::a\n" + V2, {"a/cpu.max": "100000 100000"}, 1),
        (V1, {"cpu/a/b/cpu.cfs_quota_us": "-1", "cpu/a/b/cpu.cfs_period_us": "100000"}, MANY),
        (V1, {"cpu/a/b/cpu.cfs_quota_us": "50000", "cpu/a/b/cpu.cfs_period_us": "50000"}, 1),
        (V1, {"cpu/a/b/cpu.cfs_quota_us": "50001", "cpu/a/b/cpu.cfs_period_us": "50000"}, 2),
        (V1, {"cpu/cpu.cfs_quota_us": "100", "cpu/cpu.cfs_period_us": "50000"}, 1),
        (V1, {"cpu/a/b/cpu.cfs_quota_us": "50000"}, MANY),
        (V1, {"memory/a/b/cpu.max": "100000 100000"}, MANY),
        ("1:" + "x" * 9000 + ":/a/b\n" + V2, {"a/b/cpu.max": "100000 100000"}, MANY),
    ],
)
def test_cpu_count_heeds_quota(
    cgroups: tuple[Path, Path], cgroup: str, files: dict[str, str], quota: int
) -> None:
    root, program = cgroups
    shutil.rmtree(root / "tree", ignore_errors=True)
    (root / "cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert int(run(program, "cpus")) == min(quota, len(os.sched_getaffinity(0)))
