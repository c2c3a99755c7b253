"""A reload of every module, as %autoreload does: old objects work, and new ones are equal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_reload_of_every_module_in_several_orders() -> None:
    program = Path(__file__).with_name("reloading.py")
    run = subprocess.run([sys.executable, "-P", program], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "equal\n"), run.stdout + run.stderr
