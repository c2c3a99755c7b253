"""Random cases by number: how many of them each run tests, and how many .ci/run."""

from __future__ import annotations

from typing import Any

import pytest


def cases(few: int, of: int) -> list[Any]:
    """0, 1, ... as values of a parameter; all but the first few are slow."""
    return [pytest.param(i, marks=[pytest.mark.slow] * (i >= few)) for i in range(of)]
