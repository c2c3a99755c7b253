"""Small calls whose workspace is just small enough for the stack, or just too large for it.

A small call lays its workspace out over 16 KiB of the stack, and does it once more on the heap if
they are too few. Each entry of the core with a workspace is made to do both, with little work.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers import SCORES, assert_same_bits, check, make_problem
from multi_headed import make_heads
from test_merge import check as check_merge
from test_merge import grads_of, parts_of
from test_multi_head import check as check_heads

import attnext


@pytest.mark.parametrize("score", SCORES)
def test_a_column_does_not_depend_on_where_the_workspace_is(
    score: str, rng: np.random.Generator
) -> None:
    problem = make_problem(score, rng, lead=(), N=1, D=2, Dv=704)
    whole = problem.run(attnext)["output"]
    for columns in (3, *range(64, 704, 64)):
        part = make_problem(score, rng, lead=(), N=1, D=2, Dv=columns)
        part.inputs |= problem.inputs
        part.inputs["values"] = problem.inputs["values"][..., :columns]
        part.grads["grad_output"] = problem.grads["grad_output"][..., :columns]
        assert_same_bits({"": part.run(attnext)["output"]}, {"": whole[..., :columns]})


@pytest.mark.parametrize("Dv", [8, 300, 500, 700])
@pytest.mark.parametrize("score", SCORES)
def test_attention(score: str, Dv: int, rng: np.random.Generator) -> None:
    check(make_problem(score, rng, lead=(), N=1, D=2, Dv=Dv))


@pytest.mark.parametrize("parts", [10, 3000, 5000])
def test_merge(parts: int, rng: np.random.Generator) -> None:
    outputs, lses = parts_of(rng, parts, (1,), 1)
    check_merge(outputs, lses, *grads_of(rng, outputs, lses))


@pytest.mark.parametrize("Dq", [4, 300, 700])
def test_multi_head(Dq: int, rng: np.random.Generator) -> None:
    check_heads(make_heads(rng, lead=(), M=1, N=1, Dq=Dq, heads=2))


@pytest.mark.parametrize("Dk", [4, 300, 700])
def test_sums_of_a_memory(Dk: int, rng: np.random.Generator) -> None:
    queries, keys, values = (rng.standard_normal((1, n), np.float32) for n in (Dk, Dk, Dk))
    for layer in (
        attnext.AdditiveAttention(Dk, Dk, 4, rng=0),
        attnext.MultiHeadAttention(Dk, Dk, Dk, 4, 2, rng=0),
    ):
        layer(queries, keys, values)
        _, *direct = layer.backward(np.ones_like(layer(queries, keys, values)))
        memory = layer.memory(keys, values)
        layer.backward(np.ones_like(layer(queries, memory)))
        summed = memory.backward()
        assert_same_bits(dict(enumerate(direct)), dict(enumerate(summed)))
