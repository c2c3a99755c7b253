"""Rounds of a fuzzer that is a program of its own: each is what its number makes of it."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path


def run(one: Callable[[int], object], seconds: float, first: int = 0) -> None:
    """Rounds from this number on, for so long, and one at the least; that of a fault is told."""
    gc.freeze()  # what is there already is not gone through each time
    end = time.monotonic() + seconds
    for number in count(first):
        try:
            one(number)
        except BaseException:
            print(f"this was: {Path(sys.argv[0]).name} 0 {number}", file=sys.stderr)
            raise
        if time.monotonic() >= end:
            print(f"{number - first + 1} rounds, nothing broken")
            return
