"""refleaks.py finds what it is made to find, and nothing where all is well."""

from __future__ import annotations

from pathlib import Path

from helpers import TESTS, run_python

LEAKS = {
    "a reference to what lives": "ctypes.py_object(ALIVE)",
    "an object that nobody has": "ctypes.py_object([])",
    "a reference to a dtype": "ctypes.py_object(np.dtype('f4'))",
}


def write(file: Path, line: str) -> Path:
    """A file of two tests, of which one has this line."""
    file.write_text(
        "import ctypes\nimport numpy as np\nALIVE = object()\n"
        f"def test_one():\n    {line}\ndef test_two(tmp_path):\n    pass\n"
    )
    return file


def test_every_leak_is_found(tmp_path: Path) -> None:
    lost = [f"ctypes.pythonapi.Py_IncRef({leak})" for leak in LEAKS.values()]
    files = [write(tmp_path / f"test_{i}.py", line) for i, line in enumerate(lost)]
    done = run_python(TESTS / "refleaks.py", *files, check=False)
    for i, leak in enumerate(LEAKS):
        assert f"test_{i}.py: 2 tests" in done.stdout, (leak, done.stdout + done.stderr)
    assert done.returncode == 1 and "nothing lost" not in done.stdout, done.stdout


def test_nothing_is_found_where_all_is_well(tmp_path: Path) -> None:
    file = write(tmp_path / "test_it.py", "pass")
    done = run_python(TESTS / "refleaks.py", file, check=False)
    assert "test_it.py: 2 tests, nothing lost" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
