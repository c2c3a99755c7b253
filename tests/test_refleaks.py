"""refleaks.py finds what it is made to find, and nothing where all is well."""

from __future__ import annotations

from pathlib import Path

from helpers import TESTS, run_python

# By what a line says that is lost: a reference to what lives, an object that nobody has, a
# reference to a dtype.
LEAKS = {
    "builtins.object": "ctypes.py_object(ALIVE)",
    "builtins.list": "ctypes.py_object([])",
    "numpy.dtypes.Float32DType": "ctypes.py_object(np.dtype('f4'))",
}


def write(file: Path, *lines: str) -> Path:
    """A file with a test for each line, and one more."""
    text = "import ctypes\nimport numpy as np\nALIVE = object()\n"
    for i, line in enumerate(lines):
        text += f"def test_{i}():\n    {line}\n"
    file.write_text(text + "def test_last(tmp_path):\n    pass\n")
    return file


def test_every_leak_is_found_and_nothing_where_all_is_well(tmp_path: Path) -> None:
    well = write(tmp_path / "test_well.py", "pass")
    lost = (f"ctypes.pythonapi.Py_IncRef({leak})" for leak in LEAKS.values())
    ill = write(tmp_path / "test_ill.py", *lost)
    done = run_python(TESTS / "refleaks.py", well, ill, check=False)
    of_well, of_ill = (line for line in done.stdout.splitlines() if ".py: " in line)
    assert of_well == "test_well.py: 2 tests, nothing lost"
    assert of_ill.startswith("test_ill.py: 4 tests, ")
    for leak in LEAKS:
        assert f" {leak} [" in of_ill
    assert done.returncode == 1
