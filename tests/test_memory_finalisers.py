"""What a memory does while Python code runs in the middle of it: finalisers, allocators.

Python code runs wherever NumPy or CPython allocate: an allocator that the user chose (NEP 49) in
every array that is made, a finaliser wherever the garbage collector starts.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from layered import KINDS, make_layer, problem_of
from numpy.typing import NDArray

every_kind = pytest.mark.parametrize("kind", KINDS)

# ---- an allocator that runs Python code ----------------------------------------------------------

POINTER, MALLOC = (
    ctypes.c_void_p,
    ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
)
NAME = ctypes.create_string_buffer(b"mem_handler")  # a capsule has no copy of its name


class Handler(ctypes.Structure):
    """PyDataMem_Handler of NumPy's C API."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", POINTER),
        ("malloc", MALLOC),
        ("calloc_realloc_free", POINTER * 3),
    )


def from_python(function: str, result: Any, *arguments: Any) -> Any:
    """A function of CPython's C API."""
    return ctypes.PYFUNCTYPE(result, *arguments)((function, ctypes.pythonapi))


new_capsule = from_python("PyCapsule_New", ctypes.py_object, POINTER, POINTER, POINTER)
pointer_of = from_python("PyCapsule_GetPointer", POINTER, ctypes.py_object, ctypes.c_char_p)
API = pointer_of(np._core._multiarray_umath._ARRAY_API, None)  # type: ignore[attr-defined]
# PyDataMem_SetHandler has no name in Python.
set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(
    ctypes.cast(API, ctypes.POINTER(POINTER))[304]
)

ACTIONS: list[Callable[[], Any]] = []  # to run in the next allocations, the last one first


@MALLOC
def take(context: Any, size: int) -> Any:
    if ACTIONS:
        ACTIONS.pop()()
    return USUAL.malloc(context, size)


def capsule_of(handler: Handler) -> Any:
    return new_capsule(ctypes.addressof(handler), ctypes.addressof(NAME), None)


# For ever: arrays that are made with it may live until the end.
HANDLER = Handler(b"runs Python", 1, None, take)
USUAL = Handler.from_address(pointer_of(set_handler(capsule_of(HANDLER)), b"mem_handler"))
set_handler(capsule_of(USUAL))
HANDLER.calloc_realloc_free = USUAL.calloc_realloc_free


@contextmanager
def in_allocations(*actions: Callable[[], Any]) -> Iterator[None]:
    """One of the actions in each of the next arrays that are made, the first one first."""
    before = set_handler(capsule_of(HANDLER))
    ACTIONS[:] = reversed(actions)
    try:
        yield
    finally:
        ACTIONS.clear()
        set_handler(before)


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
                    assert met


@every_kind
def test_rows_that_go_while_room_is_made(kind: str, rng: np.random.Generator) -> None:
    """They were looked at before, and are looked at again."""
    layer = make_layer(kind)
    x = problem_of(layer, rng, lead=(2,), M=2, N=5).inputs
    for name in ("keys", "values"):
        memory = layer.memory(x["keys"], x["values"])
        given = {n: x[n].copy() for n in ("keys", "values")}
        lost = given[name]
        with (
            in_allocations(lambda: lost.resize((2, 0, 0), refcheck=False)),  # noqa: B023
            pytest.raises(ValueError, match="keys or values changed shape in the call"),
        ):
            memory.append(**given)
        assert len(memory) == 5


# ---- sums ----------------------------------------------------------------------------------------


class AtTheCollector:
    """Garbage in a cycle that does something when it is collected."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.itself, self.action = self, action

    def __del__(self) -> None:
        self.action()


@pytest.mark.parametrize("inside", ["_take_sums", "backward"])
def test_sums_are_handed_out_once(inside: str, rng: np.random.Generator) -> None:
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
            AtTheCollector(lambda: found.append(getattr(memory, inside)()))  # noqa: B023
            pairs = [(i, i) for i in range(3000)]  # no tuple of two is left on the free list
            gc.set_threshold(gc.get_count()[0] + later)
            gc.enable()
            taken = memory._take_sums()  # type: ignore[attr-defined]
            gc.disable()
            gc.collect()
            assert len(found) == 1 and len(pairs) == 3000
            zero = [np.zeros_like(d) for d in expected]
            both = zip(taken or zero, found[0] or zero, expected, strict=True)
            for outside, within, d in both:
                np.testing.assert_array_equal(outside + within, d)
            memory.backward()
    finally:
        gc.set_threshold(700, 10, 10)
        gc.enable()
