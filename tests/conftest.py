"""How the suite is run, and fixtures for all test files; these act only where a test asks.

Economy. The suite takes minutes, and .ci/run has parts of it again: a test earns its seconds by a
fault that only it finds:

- results are held against `helpers.textbook`, formulas on whole arrays, not against the reference;
- sizes walk along all axes at once; a rule that does not depend on the score is tested with one
  score at a time, in turn; what differs in a number alone is a loop, not a test for each number;
- what is expensive to make, a compiled program or a recorded tour, is made `once` a run;
- a larger sample of the same is marked `slow`: `pytest -m slow` runs it, as .ci/run does.

`pytest` runs on every CPU that this process may use, `pytest tests/test_x.py` in one process.
"""

from __future__ import annotations

import gc
import os
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from compiling import (
    WITHOUT_PYTHON,
    compile_objects,
    compiler,
    preloading,
    run,
    shared_library,
    sources,
)
from helpers import Once, settle

import attnext

# The same examples in every run, however slow, and no files left behind.
hypothesis.settings.register_profile(
    "attnext",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("attnext")


def pytest_configure() -> None:
    """One thread for NumPy's BLAS and for PyTorch in the processes to come: pytest has them all."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected is there to stay: the collector would look through it for a
    quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        settle()
        gc.enable()


@pytest.hookimpl(optionalhook=True)  # wheels are tested without pytest-xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A worker for each CPU that a container or an affinity leaves; none for named files or -s."""
    named = all(Path(argument.partition("::")[0]).is_file() for argument in config.args)
    if named or config.option.capture == "no":
        return 0
    cpus = int(attnext.show_config("dicts")["threads"]["cpus"])
    return cpus if cpus > 1 else 0


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name alone."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.fixture
def threads() -> Iterator[None]:
    """Puts the number of threads back after a test that sets it."""
    before = attnext.get_num_threads()
    yield
    attnext.set_num_threads(before)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """once(name, make): a folder with the files that make(folder) left there.

    The first that asks makes them, for all processes of the run; the others wait.
    """
    fcntl = pytest.importorskip("fcntl")  # POSIX's alone
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # a worker has a folder of its own in the run's

    def folder_of(name: str, make: Callable[[Path], object]) -> Path:
        folder = shared / f"once-{name}"
        made = folder / "made"
        with open(f"{folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                folder.mkdir(exist_ok=True)
                make(folder)
                made.touch()
        return folder

    return folder_of


@pytest.fixture(scope="session")
def questions(once: Once) -> dict[str, str]:
    """The environment of a process that may use questions.py."""
    library = once("questions", lambda folder: shared_library(folder / "questions.so"))
    return preloading(library / "questions.so")


@pytest.fixture(scope="session")
def instruction_sets() -> list[str]:
    """The instruction sets that run on this machine, narrowest first."""
    return list(attnext.show_config("dicts")["instruction_set"]["available"])


@pytest.fixture(scope="session")
def fused(instruction_sets: list[str]) -> tuple[str, ...]:
    """What tells a compiler to use this CPU's fused multiply-add, if x86's has to be asked for."""
    return ("-mfma", "-D__FP_FAST_FMAF=1") if "avx2" in instruction_sets else ()


@pytest.fixture(scope="session")
def c_objects(once: Once, fused: tuple[str, ...], instruction_sets: list[str]) -> list[Path]:
    """All of csrc but what is for Python, compiled without Python and without a warning.

    Quickly, as attnext itself is what -O3 made of them: with -O1, the kernels with -Og, which takes
    a third of the time of -O1 and makes them a sixth slower. The scalar kernels with this CPU's
    fused multiply-add, if it has one: the C library's rounds as that does and takes fifty times as
    long. The generic ones, too, which must then be exact; how they are built for x86, with two
    roundings, test_bits.py runs, and the slow part of test_simd_c.py. Of a set that this CPU
    does not have there is an empty table: nobody asks for it.
    """

    def make(folder: Path) -> None:
        warnings = ["-Wall", "-Wextra", "-Werror"]
        files = sources(*WITHOUT_PYTHON)
        kernels = [file for file in files if file.stem.startswith("kernels_")]
        plain = [file for file in kernels if file.stem in ("kernels_scalar", "kernels_generic")]
        here = [file for file in kernels if file.stem.removeprefix("kernels_") in instruction_sets]
        vectors = [file for file in here if file not in plain]
        rest = [file for file in files if file not in kernels]
        compile_objects(vectors, folder, "-Og", *warnings)
        compile_objects(plain, folder, "-Og", *fused, *warnings)
        compile_objects(rest, folder, "-O1", *warnings)
        for file in (file for file in kernels if file not in here):
            table = f"const attn_kernels attn_{file.stem};"
            stub = folder / f"simd_{file.stem}.c"
            stub.write_text(f'#include "{file.parent}/kernels.h"\n{table}\n')
            run([*compiler(), "-c", str(stub), "-o", str(stub.with_suffix(".o"))])

    folder = once("objects", make)
    return [folder / f"{file.parent.name}_{file.stem}.o" for file in sources(*WITHOUT_PYTHON)]
