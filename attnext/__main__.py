"""The console script `attnext`, and ``python -m attnext``: the tour."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import attnext
from attnext._tour import run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tour; return 0 if every known answer was found, 1 if one was missed."""
    parser = argparse.ArgumentParser(
        prog="attnext",
        description="A tour of attnext in the terminal: attention computed, checked against known "
        "answers and, where it is installed, PyTorch; then a regression on real measurements, and "
        "timings. Takes a few seconds. Exits with 1 if a known answer is missed.",
        epilog="Colours appear on a terminal only; set NO_COLOR to have none.",
    )
    parser.add_argument("--version", action="version", version=f"attnext {attnext.__version__}")
    parser.parse_args(argv)
    try:
        return run(sys.stdout)
    except BrokenPipeError:  # `attnext | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
