"""refleaks.py finds what it is made to find, and nothing where all is well."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import TESTS, run_python

LEAKS = {
    "nothing": "pass",
    "a reference to what lives": "ctypes.pythonapi.Py_IncRef(ctypes.py_object(ALIVE))",
    "an object that nobody has": "ctypes.pythonapi.Py_IncRef(ctypes.py_object([]))",
    "a reference to a dtype": "ctypes.pythonapi.Py_IncRef(ctypes.py_object(np.dtype('f4')))",
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_found(leak: str, tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(
        "import ctypes\nimport numpy as np\nALIVE = object()\n"
        f"def test_one():\n    {LEAKS[leak]}\ndef test_two(tmp_path):\n    pass\n"
    )
    done = run_python(TESTS / "refleaks.py", file, check=False)
    assert "test_it.py: 2 tests" in done.stdout, done.stdout + done.stderr
    assert (done.returncode, "nothing lost" in done.stdout) == (
        leak != "nothing",
        leak == "nothing",
    )
