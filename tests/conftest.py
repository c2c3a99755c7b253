"""Fixtures for all test files; nothing here acts unless a test asks for it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from compiling import WITHOUT_PYTHON, compile_objects, sources

import attnext

# The same examples in every run, and no files left behind.
hypothesis.settings.register_profile("attnext", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("attnext")


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
def instruction_sets() -> list[str]:
    """The instruction sets that run on this machine, narrowest first."""
    return list(attnext.show_config("dicts")["instruction_set"]["available"])


@pytest.fixture(scope="session")
def c_objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All of csrc but csrc/python, compiled without Python and without a warning."""
    folder = tmp_path_factory.mktemp("objects")
    flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
    return compile_objects(sources(*WITHOUT_PYTHON), folder, *flags)
