"""Random cases by number: how many of them each run tests, and how many .ci/run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import EMPTY_ROWS, Problem, make_problem, random_masks


def cases(few: int, of: int) -> list[Any]:
    """0, 1, ... as values of a parameter; all but the first few are slow."""
    return [pytest.param(i, marks=[pytest.mark.slow] * (i >= few)) for i in range(of)]


def random_problem(score: str, seed: int) -> Problem:
    """Masks, biases, heads, softcap, dropout and rules for empty rows, all at random."""
    rng = np.random.default_rng(seed)
    lead = [(), (2,), (2, 4), (2, 1, 4)][seed % 4]
    M, N = int(rng.integers(1, 5)), int(rng.integers(1, 9))
    options = random_masks(rng, lead, M, N)
    options["empty_rows"] = EMPTY_ROWS[seed % 3]
    if seed % 5 == 0:
        options |= {"dropout_p": 0.4, "seed": seed}
    elif seed % 5 == 1:
        options |= {"dropout_p": 0.5, "dropout_mask": rng.random((*lead, M, N)) < 0.5}
    elif seed % 5 == 2:
        options["softcap"] = 1.5
    if score == "additive" and seed % 2:
        options["b_h"] = rng.standard_normal(6, dtype=np.float32)
    heads = 2 if len(lead) > 1 and seed % 3 else None
    return make_problem(score, rng, lead=lead, M=M, N=N, kv_heads=heads, **options)
