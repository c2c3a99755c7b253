"""Threads over one memory: every append counts, every call has the keys of one moment.

What is read and written without the GIL is looked at by ThreadSanitizer, too (.ci/run threads).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import in_threads
from layered import KINDS, make_layer, problem_of
from test_memory_parameters import additive, multi_head

import attnext
from attnext import AdditiveAttention, DotProductAttention, MultiHeadAttention

Layer = AdditiveAttention | DotProductAttention | MultiHeadAttention


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("make", [additive, multi_head, DotProductAttention])
def test_every_append_counts(make: Callable[[], Layer], masked: bool, threads: None) -> None:
    """Blocks so large that keys are projected without the GIL when a memory moves."""
    attnext.set_num_threads(2)
    layer = make()
    rng = np.random.default_rng(0)
    keys = rng.standard_normal((4, 12, 2, 700, 4), dtype=np.float32)  # of 4 threads, 12 blocks
    queries = rng.standard_normal((2, 1, 4), dtype=np.float32)
    memory = layer.memory(keys[0, 0, :, :1], keys[0, 0, :, :1])
    mask = (np.ones((1, 700), bool),) if masked else ()

    def append(blocks: np.ndarray) -> Callable[[], None]:
        def work() -> None:
            for block in blocks:
                memory.append(block, block, *mask)
                layer(queries, memory, need_weights=False)

        return work

    in_threads(*map(append, keys))
    assert len(memory) == 1 + 4 * 12 * 700
    given: np.ndarray = memory._given_to(layer)[0]
    blocks = given[:, 1:].reshape(2, 48, 700, 4).swapaxes(0, 1)  # each in one piece, somewhere
    found = sorted(blocks.tobytes() for blocks in blocks)
    assert found == sorted(block.tobytes() for block in keys.reshape(48, 2, 700, 4))
    for thread in keys:  # and those of one thread in their order
        places = [next(i for i, b in enumerate(blocks) if (b == block).all()) for block in thread]
        assert places == sorted(places)
    direct = layer(queries, given, given)
    np.testing.assert_array_equal(layer(queries, memory), direct)


@pytest.mark.parametrize("kind", KINDS[::3])
def test_steps_backwards_and_appends(kind: str, threads: None, rng: np.random.Generator) -> None:
    """What two threads add up while a third appends, and what is handed out meanwhile."""
    attnext.set_num_threads(2)
    layer = make_layer(kind)
    problem = problem_of(layer, rng, lead=(4,), M=30, N=200, extra_grads=False)
    x, g = problem.inputs, problem.grads["grad_output"]
    memory = layer.memory(x["keys"], x["values"], 200)  # what is appended takes no part
    expected = layer(x["queries"], memory)
    context = layer.context
    layer.backward(g)
    dk, dv = memory.backward()
    handed = []

    def step() -> None:
        for _ in range(15):
            np.testing.assert_array_equal(layer(x["queries"], memory), expected)
            layer.backward(g, context=context)

    def append() -> None:
        for _ in range(15):
            memory.append(x["keys"], x["values"])
            handed.append(memory.backward())

    in_threads(step, step, append)
    handed.append(memory.backward())
    for i, d in enumerate((dk, dv)):
        total = sum(h[i][:, :200] for h in handed)
        np.testing.assert_allclose(total, 30 * d, rtol=1e-4, atol=1e-4)
        assert not any(h[i][:, 200:].any() for h in handed)
