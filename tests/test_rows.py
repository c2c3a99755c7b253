"""Rows of a test that go through together, rows.py: none is lost, and each has its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers import TESTS, run_python

TEST = """
import numpy as np
import pytest

@pytest.mark.parametrize("a, b", [(i, i * i) for i in range(20)])
def test_squares(a, b, rng):
    print(a, rng.integers(2**40))
    assert a * a == b

@pytest.mark.parametrize("name", [*"abc", pytest.param("d", marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", range(4))
def test_one_is_wrong(name, number):
    assert (name, number) != ("c", 2)

@pytest.mark.parametrize("rng", range(3))
def test_names_of_its_own(rng):
    assert rng < 3

@pytest.mark.parametrize("a", range(3))
def test_folders(a, tmp_path):
    (tmp_path / "new").mkdir()

@pytest.mark.parametrize("a", range(3))
@pytest.mark.xfail(strict=True)
def test_that_fails(a):
    assert a < 0
"""
CONFTEST = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import pytest
from rows import pytest_generate_tests, pytest_pyfunc_call, random_numbers

@pytest.fixture
def rng(request):
    return random_numbers(request.node.name)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_it.py").write_text(TEST, "utf-8")
    (tmp_path / "conftest.py").write_text(CONFTEST, "utf-8")
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    options = ("-n0", "-p", "no:cacheprovider", "--rootdir", str(folder), "-m", "not slow")
    done = run_python("-m", "pytest", "-q", *options, *arguments, check=False)
    return str(done.stdout)


def test_together_and_alone(folder: Path) -> None:
    """As many numbers as rows, the same for a row in both, and the name of the one that fails."""
    together = run(folder, "-s", str(folder))
    assert "1 failed, 10 passed, 4 deselected, 3 xfailed" in together
    assert "in the row test_one_is_wrong[2-c]" in together
    numbers = re.findall(r"(\d+) (\d{6,})", together)
    assert [int(a) for a, _ in numbers] == list(range(20))
    alone = run(folder, "-s", f"{folder / 'test_it.py'}::test_squares[13-169]")
    assert "1 passed" in alone and re.findall(r"(\d+) (\d{6,})", alone) == [numbers[13]]
