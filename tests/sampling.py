"""Random cases by number: how many of them each run tests, and how many .ci/run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers import EMPTY_ROWS, SCORES, Problem, make_problem, random_masks


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


def any_attention(rng: np.random.Generator, score: str, most: int) -> Problem:
    """Less than `most` queries and keys, masked or not, with any number of heads of keys, b_h or
    none, and dropout of a seed, of a mask, or none."""
    lead = [(), (2,), (3, 2), (2, 4)][rng.integers(4)]
    M, N = (int(n) for n in rng.integers(1, most, size=2))
    D, Dv, H = (int(n) for n in rng.integers(2, 24, size=3))
    options = random_masks(rng, lead, M, N) if rng.integers(4) else {}
    if score == "additive" and rng.integers(2):
        options["b_h"] = rng.standard_normal(H, dtype=np.float32)
    if rng.integers(2):
        options |= {"dropout_p": 0.25, "seed": int(rng.integers(2**63))}
    elif rng.integers(2):
        options |= {"dropout_p": 0.25, "dropout_mask": rng.random((M, N)) < 0.7}
    heads = [1, 2, None][rng.integers(3)] if lead == (2, 4) else None
    sizes = {"lead": lead, "M": M, "N": N, "D": D, "Dv": Dv, "H": H}
    return make_problem(score, rng, **sizes, kv_heads=heads, **options)


# Where softmax saturates, float32 overflows or underflows.
SIZES = [1e-30, 1e-12, 1e-3, 1, 30, 1e4, 1e12, 1e19, 1e30]
EDGES = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, 0.0, -0.0], np.float32)


# Every size with two of the scores; with the others in .ci/run.
SCORES_AND_SIZES = [
    pytest.param(score, size, marks=[pytest.mark.slow] * ((i + j) % 2))
    for i, score in enumerate(SCORES)
    for j, size in enumerate(SIZES)
]


def problems_of_size(score: str, size: float) -> Iterator[Problem]:
    """Queries, keys and values of numbers of this size, or some of them."""
    for seed in range(6):
        N, D = (2, 9, 40)[seed % 3], (1, 7, 64)[seed // 2]
        problem = make_problem(score, np.random.default_rng(seed), M=3, N=N, D=D, H=9)
        factors = [size if seed % 2 else 1, size, size if seed > 2 else 1]
        for name, factor in zip(("queries", "keys", "values"), factors, strict=True):
            problem.inputs[name] *= np.float32(factor)
        yield problem


def problem_at_the_edges(score: str, seed: int, rng: np.random.Generator) -> Problem:
    """One of these numbers in some of its inputs, under masks and dropout of all kinds."""
    problem = random_problem(score, seed)
    for x in problem.inputs.values():
        if rng.random() < 0.5:
            x.flat[rng.integers(x.size)] = rng.choice(EDGES)
    return problem
