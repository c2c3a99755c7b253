"""What a memory does while Python code runs in the middle of it: finalisers, allocators.

Python code runs wherever NumPy or CPython allocate: an allocator that the user chose (NEP 49) in
every array that is made, a finaliser wherever the garbage collector starts.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from allocations import ACTIONS, in_allocations
from layered import KINDS, make_layer, problem_of
from numpy.typing import NDArray

every_kind = pytest.mark.parametrize("kind", KINDS)


def nothing() -> None:
    pass


# ---- append --------------------------------------------------------------------------------------


@every_kind
def test_appends_within_an_append_count(kind: str, rng: np.random.Generator) -> None:
    """In whichever of its arrays, with fewer rows or more, with a mask or without."""
    layer = make_layer(kind)
    x = problem_of(layer, rng, lead=(2,), M=2, N=40).inputs
    keys, values = x["keys"], x["values"]
    mask = rng.random((1, 40)) < 0.6

    def rows(first: int, end: int, masked: bool = False) -> tuple[NDArray[Any], ...]:
        part = slice(first, end)
        given = keys[:, part].copy(), values[:, part].copy()
        return (*given, mask[:, part].copy()) if masked else given

    for n in (1, 3, 30):
        for masked, masked_inside in ((False, False), (True, False), (False, True), (True, True)):
            for when in range(8):
                memory = layer.memory(*rows(0, 2))
                inside, outside = rows(2, 2 + n, masked_inside), rows(2 + n, 3 + n, masked)

                def append() -> None:
                    memory.append(*inside)  # noqa: B023

                with in_allocations(*[nothing] * when, append):
                    memory.append(*outside)
                    met = not ACTIONS
                seen = np.ones((1, 40), bool)
                seen[:, 2 : 2 + n] = mask[:, 2 : 2 + n] if masked_inside else True
                seen[:, 2 + n : 3 + n] = mask[:, 2 + n : 3 + n] if masked else True
                end = 3 + n if met else 3
                expected = rows(0, end), seen[:, :end]
                if not met:
                    expected = (
                        tuple(np.concatenate(p, 1) for p in zip(rows(0, 2), outside, strict=False)),
                        np.concatenate([seen[:, :2], seen[:, 2 + n : 3 + n]], 1),
                    )
                assert len(memory) == end
                np.testing.assert_array_equal(
                    layer(x["queries"], memory),
                    layer(x["queries"], *expected[0], mask=expected[1]),
                )
                if when == 0:
                    assert met == masked  # a copy of the mask is the one array that is made


@every_kind
def test_rows_that_go_while_a_mask_is_copied(kind: str, rng: np.random.Generator) -> None:
    """They were looked at before, and are looked at again."""
    layer = make_layer(kind)
    x = problem_of(layer, rng, lead=(2,), M=2, N=5).inputs
    for name in ("keys", "values"):
        memory = layer.memory(x["keys"], x["values"])
        given = {n: x[n].copy() for n in ("keys", "values")}
        lost, mask = given[name], np.ones((1, 5), bool)
        with (
            in_allocations(lambda: lost.resize((2, 0, 0), refcheck=False)),  # noqa: B023
            pytest.raises(ValueError, match="the shape of keys or values changed during the call"),
        ):
            memory.append(**given, mask=mask)
        assert len(memory) == 5


# ---- sums ----------------------------------------------------------------------------------------


class AtTheCollector:
    """Garbage in a cycle that does something when it is collected."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.itself, self.action = self, action

    def __del__(self) -> None:
        self.action()


def test_sums_are_handed_out_once(rng: np.random.Generator) -> None:
    """Where the collector takes them in the middle of taking them, one of the two has them."""
    layer = make_layer("dot")
    problem = problem_of(layer, rng, extra_grads=False)
    x, g = problem.inputs, problem.grads["grad_output"]
    memory = layer.memory(x["keys"], x["values"])
    layer(x["queries"], memory)
    layer.backward(g)
    expected = memory.backward()
    try:
        for later in range(12):
            layer.backward(g)
            found: list[Any] = []
            gc.collect()
            gc.disable()
            AtTheCollector(lambda: found.append(memory.backward()))  # noqa: B023
            pairs = [(i, i) for i in range(3000)]  # no tuple of two is left on the free list
            gc.set_threshold(gc.get_count()[0] + later)
            gc.enable()
            taken = memory.backward()
            gc.disable()
            gc.collect()
            assert len(found) == 1 and len(pairs) == 3000
            for outside, within, d in zip(taken, found[0], expected, strict=True):
                np.testing.assert_array_equal(outside + within, d)
    finally:
        gc.set_threshold(700, 10, 10)
        gc.enable()
