"""Arrays that np.broadcast_to repeats: the same bits as their copies, in memory for one of each.

What is repeated is neither copied out nor prepared more than once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import (
    SCORES,
    SCORES_FUNCTION,
    Array,
    Problem,
    assert_same_bits,
    make_problem,
    run_python,
)
from multi_headed import make_heads

import attnext

# ---- bits ----------------------------------------------------------------------------------------

# The leading axes of the distinct data, all of which are (2, 3, 2) once broadcast.
LEAD = (2, 3, 2)
DISTINCT = [(1, 1, 1), (2, 1, 1), (1, 1, 2), (1, 3, 1), (2, 1, 2), LEAD]


def backwards(x: Array) -> Array:
    return np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :]


def heads_in_rows(x: Array) -> Array:
    """(..., heads, N, D) stored as (..., N, heads, D)."""
    return np.ascontiguousarray(np.swapaxes(x, -2, -3)).swapaxes(-2, -3)


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "float32": lambda x: x,
    "float64": lambda x: x.astype(np.float64),
    "other byte order": lambda x: x.astype(">f4"),
    "backwards": backwards,
    "heads in rows": heads_in_rows,
    "columns": lambda x: np.asfortranarray(x),
}


def with_repeats(rng: np.random.Generator, x: Array, distinct: tuple[int, ...], how: str) -> Array:
    """An array of x's shape whose leading axes repeat."""
    own = rng.standard_normal((*distinct, *x.shape[-2:]), dtype=np.float32)
    return np.broadcast_to(LAYOUTS[how](own), x.shape)


def copied(problem: Problem) -> Problem:
    inputs = {name: np.array(x, np.float32) for name, x in problem.inputs.items()}
    return replace(problem, inputs=inputs)


OPTIONS: list[Callable[[np.random.Generator], dict[str, Any]]] = [
    lambda rng: {},
    lambda rng: {"valid_lens": rng.integers(0, 6, LEAD + (4,)), "empty_rows": "zero"},
    lambda rng: {"mask": rng.random(LEAD + (4, 5)) < 0.5},
    lambda rng: {"bias": np.broadcast_to(rng.random((3, 1, 1, 5)), LEAD + (4, 5)), "causal": True},
]


@pytest.mark.parametrize("score", SCORES)
def test_the_same_bits_as_copies(score: str, rng: np.random.Generator) -> None:
    ways = product(DISTINCT, DISTINCT, OPTIONS)
    for i, (of_keys, of_values, options) in enumerate(ways):
        how = list(LAYOUTS)[i % len(LAYOUTS)]
        problem = make_problem(score, rng, lead=LEAD, M=4, **options(rng))
        inputs = problem.inputs
        inputs["keys"] = with_repeats(rng, inputs["keys"], of_keys, how)
        inputs["values"] = with_repeats(rng, inputs["values"], of_values, how)
        inputs["queries"] = with_repeats(rng, inputs["queries"], DISTINCT[i % 6], how)
        assert_same_bits(problem.run(), copied(problem).run())
        scored = {name: x for name, x in inputs.items() if name != "values"}
        scores = getattr(attnext, SCORES_FUNCTION[score])
        dense = {name: np.array(x, np.float32) for name, x in scored.items()}
        np.testing.assert_array_equal(scores(**scored), scores(**dense))


@pytest.mark.parametrize("distinct", [(1, 2), (1, 1), (3, 1)])
@pytest.mark.parametrize("score", SCORES)
def test_with_grouped_heads(
    score: str, distinct: tuple[int, ...], rng: np.random.Generator
) -> None:
    lens = rng.integers(0, 70, (3, 4, 40))
    problem = make_problem(score, rng, lead=(3, 4), M=40, N=70, kv_heads=2, valid_lens=lens)
    for name in ("keys", "values"):
        problem.inputs[name] = with_repeats(rng, problem.inputs[name], distinct, "float32")
    assert_same_bits(problem.run(), copied(problem).run())


LAYERS: dict[str, Callable[[], Any]] = {
    "additive": lambda: attnext.AdditiveAttention(4, 4, 6, rng=1),
    "dot": lambda: attnext.DotProductAttention(),
    "multi-head": lambda: attnext.MultiHeadAttention(4, 4, 4, 6, 2, rng=1),
}


@pytest.mark.parametrize("distinct", [(1, 1), (3, 1), (1, 2)])
@pytest.mark.parametrize("kind", LAYERS)
def test_layers(kind: str, distinct: tuple[int, ...], rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((3, 2, n, 4), dtype=np.float32) for n in (3, 5, 5))
    lens = np.array([2, 0, 5])
    found, expected = LAYERS[kind](), LAYERS[kind]()
    k, v = (with_repeats(rng, x, distinct, "float64") for x in (k, v))
    ours = found(q, k, v, lens)
    theirs = expected(q, k.astype("f4", order="C"), v.astype("f4", order="C"), lens)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(found.attention_weights, expected.attention_weights)
    for a, b in zip(found.backward(ours), expected.backward(ours), strict=True):
        np.testing.assert_array_equal(a, b)
    assert_same_bits(found.grads, expected.grads)


@pytest.mark.parametrize("name", ["keys", "values", "queries"])
def test_multi_head(name: str, rng: np.random.Generator) -> None:
    """Keys and values share their projections where both repeat, and have their own where not."""
    for others in ([], ["keys"], ["keys", "values"]):
        problem = make_heads(rng, lead=(4,), valid_lens=np.array([1, 0, 3, 2]))
        for repeated in {name, *others}:
            x = problem.inputs[repeated]
            problem.inputs[repeated] = with_repeats(rng, x, (1,), "float32")
        assert_same_bits(problem.run(), copied(problem).run())


def test_a_padded_key_that_all_share_is_not_read(rng: np.random.Generator) -> None:
    """The longest length of all who share the keys decides."""
    problem = make_problem("additive", rng, lead=(3,), N=9, valid_lens=np.array([2, 7, 0]))
    for name in ("keys", "values"):
        problem.inputs[name] = with_repeats(rng, problem.inputs[name], (1,), "float32")
    expected = problem.but(empty_rows="zero").run()
    for name in ("keys", "values"):
        x = problem.inputs[name][:1].copy()
        x[:, 7:] = np.nan
        problem.inputs[name] = np.broadcast_to(x, (3, *x.shape[1:]))
    assert_same_bits(problem.but(empty_rows="zero").run(), expected)


def test_no_queries_of_many_batch_elements(rng: np.random.Generator) -> None:
    """No table of 2**40 batch elements is made to return nothing."""
    many = 2**40
    k = np.broadcast_to(np.ones((1, 2, 3), np.float32), (many, 2, 3))
    none = np.broadcast_to(np.ones((1, 2, 0), np.float32), (many, 2, 0))
    assert attnext.dot_product_attention(k[:, :0], k, k).shape == (many, 0, 3)
    assert attnext.dot_product_attention(k, k, none).shape == (many, 2, 0)


# ---- memory --------------------------------------------------------------------------------------

# Each array of keys and values, copied out, would have 512 MiB.
GROWTH = """
import sys
import numpy as np, attnext

attnext.set_num_threads(1)
B, H, N, D = 16, 16, 4096, 128
def ones(*shape): return np.ones(shape, np.float32)
kv = {
    "both": np.broadcast_to(ones(1, 1, N, D), (B, H, N, D)),
    "batch": np.broadcast_to(ones(1, H, N, D).astype(np.float64), (B, H, N, D)),
    "heads": np.broadcast_to(ones(B, N, 1, D).swapaxes(1, 2), (B, H, N, D)),
}[sys.argv[1]]
W = ones(8, D), ones(8, D), ones(8)
q, lens = ones(B, H, 1, D), np.full(B, N // 2)
few = np.broadcast_to(ones(1, N, D), (B * H, N, D))
many, projections = ones(B * H, 1, D), [ones(D, D)] * 4
bias = np.broadcast_to(np.ones((1, 1, 256, 2048)), (B, H, 256, 2048))

def peak():
    # ru_maxrss of a new process may start at that of its parent.
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) // 1024

before = peak()
attnext.dot_product_attention(q, kv, kv, lens)
attnext.cosine_attention(q, kv, kv)
attnext.gaussian_attention(q, kv, kv)
attnext.additive_attention(q, kv, kv, *W, lens)
attnext.additive_scores(q, kv, *W)
attnext.DotProductAttention()(q, kv, kv)
attnext.AdditiveAttention(D, D, 8)(q, kv, kv)
if sys.argv[1] == "both":
    attnext.multi_head_attention(many, few, few, *projections, num_heads=2)
    attnext.MultiHeadAttention(D, D, D, D, 2)(many, few, few)
    rows = [ones(B, H, n, 2) for n in (256, 2048, 2048)]
    attnext.dot_product_attention(*rows, bias=bias, causal=True, window=(9, 0))
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the pages that Linux has given")
@pytest.mark.parametrize("axes", ["both", "batch", "heads"])
def test_memory_is_that_of_the_distinct_data(axes: str) -> None:
    """The distinct data, 32 MiB at most, is converted and prepared; results are small."""
    assert int(run_python("-c", GROWTH, axes).stdout) < 160
