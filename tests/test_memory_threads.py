"""Threads over one memory, one layer, one list: every append counts, every call has the keys, the
parameters, the lengths of one moment. Without a GIL, too: .ci/run nogil.

What is read and written without the GIL is looked at by ThreadSanitizer, too (.ci/run threads).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

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


@pytest.mark.parametrize("make", [additive, multi_head, DotProductAttention])
def test_a_layer_a_memory_and_a_context_from_all_sides(
    make: Callable[[], Layer], threads: None
) -> None:
    """What comes back is that of some moment, and nothing is lost."""
    attnext.set_num_threads(2)
    turns, layer, rng = 12, make(), np.random.default_rng(0)
    block = rng.standard_normal((2, 300, 4)).astype(np.float16)  # others append while it is read
    queries = rng.standard_normal((2, 3, 4), dtype=np.float32)
    g = np.ones_like(layer(queries, block, block))
    memory, grown, moments = layer.memory(block, block), layer.memory(block, block), set()
    for _ in range(1 + 2 * turns):
        moments.add(layer(queries, grown).tobytes())
        grown.append(block, block)
    layer(queries, memory)
    context = layer.context
    layer.backward(g)
    first = memory.backward()
    once = {name: grad.copy() for name, grad in layer.grads.items()}
    layer.zero_grad()

    def call() -> None:
        for _ in range(turns):
            assert layer(queries, memory).tobytes() in moments

    def back() -> None:
        for _ in range(turns):
            layer.backward(g, context=context)

    def append() -> None:
        for _ in range(turns):
            memory.append(block, block)

    def write() -> None:  # the numbers that are there
        for _ in range(turns):
            layer.load_state_dict(layer.state_dict())
            for name, live in layer.parameters().items():
                setattr(layer, name, live.copy())
            layer.train().eval()

    def look() -> None:
        seen = 0
        for _ in range(turns):
            assert seen <= len(memory)
            seen = len(memory)
            assert seen % 300 == 0 and repr(memory) and layer.context is not None
            assert all(np.isfinite(grad).all() for grad in layer.grads.values())
            assert copy.copy(layer)(queries, block, block).tobytes() in moments

    in_threads(call, call, back, back, append, append, write, look)
    assert len(memory) == 300 * (1 + 2 * turns)
    for found, expected in zip(memory.backward(), first, strict=True):
        np.testing.assert_allclose(found[:, :300], 2 * turns * expected, rtol=1e-4, atol=1e-4)
        assert not found[:, 300:].any()
    for name, grad in layer.grads.items():
        np.testing.assert_allclose(grad, 2 * turns * once[name], rtol=1e-4, atol=1e-4)


def test_the_last_who_sets_parameters_has_set_all(threads: None) -> None:
    layer = AdditiveAttention(64, 64, 64, bias=True)
    states = [AdditiveAttention(64, 64, 64, bias=True, rng=i).state_dict() for i in range(2)]
    for _ in range(30):
        in_threads(*(partial(layer.load_state_dict, state) for state in states))
        found = layer.state_dict()
        assert any(all((found[name] == state[name]).all() for name in state) for state in states)


def test_entries_of_grads_that_come_and_go(threads: None) -> None:
    """While others add to them: an entry is there or not, None counts as zeros."""
    layer, x = additive(), np.ones((2, 3, 4), dtype=np.float32)
    g = np.ones_like(layer(x, x, x))
    grads: dict[str, Any] = layer.grads

    def back() -> None:
        for _ in range(300):
            layer.backward(g)

    def change() -> None:
        for _ in range(300):
            grads.pop("W_q", None)
            grads["W_k"] = None
            layer.zero_grad()
            assert all(np.isfinite(grad).all() for grad in [*grads.values()] if grad is not None)

    in_threads(back, back, change, change)
    layer.zero_grad()
    assert not any(grad.any() for grad in layer.grads.values())
    assert layer.grads.keys() == {"W_q", "W_k", "w_v"}


def test_lists_that_change_while_they_are_read(threads: None) -> None:
    """A call has the list of one moment: its items go when others come, and sizes change."""
    x = np.random.default_rng(0).standard_normal((3, 4, 8, 4), dtype=np.float32)

    def result(call: Callable[[list[Any]], Any], given: list[Any]) -> bytes | None:
        try:
            return np.concatenate(call(given), axis=None).tobytes()
        except ValueError:  # so many fit nothing
            return None

    calls: list[tuple[Callable[[list[Any]], Any], list[list[Any]]]] = [
        (
            lambda lens: [attnext.dot_product_attention(x[0, :3], x[0, :3], x[0, :3], lens)],
            [[2, 3, 10**30], [10**30, 1, 4], [2]],
        ),
        (lambda parts: attnext.merge_attention(parts, x[..., 0]), [[*x], [*x[::-1]], [x[0]]]),
    ]
    for call, states in calls:
        shared, moments = states[0][:], {result(call, state) for state in states}

        def change(states: list[list[Any]] = states, shared: list[Any] = shared) -> None:
            for state in states * 500:
                shared[:] = [1 * item for item in state]

        def read(call: Any = call, moments: Any = moments, shared: list[Any] = shared) -> None:
            for _ in range(500):
                assert result(call, shared) in moments

        in_threads(change, read, read)
