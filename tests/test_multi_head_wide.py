"""Rows a multiple of 2 KiB apart, which projections copy first where vectors are narrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, assert_same_bits, run_python
from multi_headed import HeadsProblem, make_heads

from attnext import MultiHeadAttention


def padded(x: Array, columns: int) -> Array:
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, columns - x.shape[-1])])


@pytest.mark.parametrize("D", [512, 600, 1024])
def test_wide_rows_have_the_bits_of_rows_that_are_not_copied(
    D: int, rng: np.random.Generator
) -> None:
    """Features that are 0 lie behind the others, and their sums behind those of the others."""
    options: dict[str, Any] = {"valid_lens": [65, 3], "M": 67, "N": 70, "extra_grads": False}
    problem = make_heads(rng, heads=2, d=4, Dq=D, Dk=D, Dv=D, **options)
    more = {name: padded(problem.inputs[name], 1032) for name in ("queries", "keys", "values")}
    more |= {name: padded(problem.inputs[name], 1032) for name in ("W_q", "W_k", "W_v")}
    wider = HeadsProblem("multi_head", problem.inputs | more, problem.options, problem.grads)
    assert_same_bits({"output": problem.forward()}, {"output": wider.forward()})
    expected = wider.backward()
    for name in more:
        expected[f"d_{name}"] = expected[f"d_{name}"][..., :D]
    assert_same_bits(problem.backward(), expected)


def test_wide_gradients_have_the_bits_of_rows_that_are_not_copied(
    rng: np.random.Generator,
) -> None:
    """The same of hidden units: a head more that no output hears of."""
    options: dict[str, Any] = {"valid_lens": [65, 3], "M": 67, "N": 70, "extra_grads": False}
    problem = make_heads(rng, heads=8, d=64, bias_terms=False, **options)
    x, H = problem.inputs, 9 * 64
    more = {name: padded(x[name].T, H).T for name in ("W_q", "W_k", "W_v")}
    more["W_o"] = padded(padded(x["W_o"], H).T, H).T
    grads = {"grad_output": padded(problem.grads["grad_output"], H)}
    wider = HeadsProblem("multi_head", x | more, problem.options | {"num_heads": 9}, grads)
    assert_same_bits({"": problem.forward()}, {"": wider.forward()[..., :512]})
    expected, found = wider.backward(), problem.backward()
    for name in ("queries", "keys", "values", "W_q", "W_k", "W_v", "W_o"):
        d = expected[f"d_{name}"]
        same = tuple(slice(n) for n in found[f"d_{name}"].shape)
        assert_same_bits({name: found[f"d_{name}"]}, {name: d[same]})


@pytest.mark.parametrize("kv_heads", [None, 2])
def test_a_memory_of_wide_rows(kv_heads: int | None, rng: np.random.Generator) -> None:
    layer = MultiHeadAttention(5, 5, 5, 512, 4, bias=True, num_kv_heads=kv_heads, rng=0)
    x = rng.standard_normal((2, 9, 5), dtype=np.float32)
    memory = layer.memory(x[:, :4], x[:, :4])
    memory.append(x[:, 4:], x[:, 4:])
    assert_same_bits({"": layer(x, memory)}, {"": layer(x, x, x)})


def test_the_same_with_narrow_vectors() -> None:
    """AVX-512's panels are so wide that nothing is copied."""
    tests = ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", __file__, "-k", "wide_")
    done = run_python(*tests, ATTNEXT_CPU="generic")
    assert "6 passed" in done.stdout
