"""Arrays in whose making Python code runs: in_allocations(action, ...), by a NumPy allocator.

An allocator that the user chose (NEP 49) may do anything; this one does what a finaliser does that
the garbage collector happens to run there, every time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

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
ERRORS: list[BaseException] = []  # what they raised


@MALLOC
def take(context: Any, size: int) -> Any:
    if ACTIONS:
        action = ACTIONS.pop()
        try:
            action()
        except BaseException as error:  # which ctypes has no way to pass on
            ERRORS.append(error)
    return USUAL.malloc(context, size)


def capsule_of(handler: Handler) -> Any:
    return new_capsule(ctypes.addressof(handler), ctypes.addressof(NAME), None)


# For ever: arrays that are made with it may live until the end.
HANDLER = Handler(b"runs Python", 1, None, take)
OWN = set_handler(capsule_of(HANDLER))  # NumPy's: attnext knows it by its identity
USUAL = Handler.from_address(pointer_of(OWN, b"mem_handler"))
set_handler(OWN)
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
        raised = ERRORS[:]
        ERRORS.clear()
    if raised:
        raise raised[0]
