"""A memory and the parameters that projected its keys: no change of them goes unnoticed.

They are compared only where somebody else could have written into them since the last look; without
a GIL, always.
"""

from __future__ import annotations

import copy
import ctypes
import pickle
import sysconfig
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import attnext
from attnext import AdditiveAttention, MultiHeadAttention

Array = NDArray[Any]
Layer = AdditiveAttention | MultiHeadAttention
X = np.random.default_rng(0).standard_normal((2, 5, 4), dtype=np.float32)
Q = X[:, :1].copy()


def additive() -> Layer:
    return AdditiveAttention(4, 4, 6, rng=0)


def multi_head() -> Layer:
    return MultiHeadAttention(4, 4, 4, 6, 2, bias=True, rng=0)


PROJECTING = [(additive, "W_k")] + [(multi_head, name) for name in ("W_k", "W_v", "b_k", "b_v")]
every_parameter = pytest.mark.parametrize(("make", "name"), PROJECTING)


def address_of(array: Array) -> int:
    return array.ctypes.data


def change(view: Any) -> None:
    """Another number in any object with a buffer."""
    array = np.asarray(view).reshape(-1)
    array[-1] = np.nextafter(array[-1], np.float32(9))


# Each takes what it needs of the parameter, and returns what changes it later.
WAYS: dict[str, Callable[[Layer, str], Callable[[], None]]] = {
    "set": lambda layer, name: lambda: setattr(layer, name, getattr(layer, name) * 2),
    "in place": lambda layer, name: lambda: change(getattr(layer, name)),
    "an array that is kept": lambda layer, name: (lambda a: lambda: change(a))(
        getattr(layer, name)
    ),
    "a dict that is kept": lambda layer, name: (lambda d: lambda: change(d[name]))(
        layer.parameters()
    ),
    "a view": lambda layer, name: (lambda a: lambda: change(a))(getattr(layer, name)[-1:]),
    "its own memory": lambda layer, name: (lambda a: lambda: change(a))(getattr(layer, name).base),
    "a buffer": lambda layer, name: (lambda a: lambda: change(a))(memoryview(getattr(layer, name))),
    "a weak reference": lambda layer, name: (lambda r: lambda: change(r()))(
        weakref.ref(getattr(layer, name))
    ),
    "one to its memory": lambda layer, name: (lambda r: lambda: change(r()))(
        weakref.ref(getattr(layer, name).base)
    ),
    "a state dict": lambda layer, name: (
        lambda: layer.load_state_dict({n: 2 * p + 1 for n, p in layer.state_dict().items()})
    ),
    "what pickle gets": lambda layer, name: (lambda r: lambda: change_all(r))(layer.__reduce__()),
}


def change_all(reduced: Any) -> None:
    """In a copy a change may be the copy's own: then there is nothing to be noticed."""
    for array in reduced[1][0]["parameters"].values():
        change(array)


def assert_refused(layer: Layer, memory: attnext.Memory) -> None:
    for action in (lambda: layer(Q, memory), lambda: memory.append(X, X), memory.backward):
        with pytest.raises(RuntimeError, match=r"_[kv] has changed since the memory"):
            action()
    assert len(memory) == 5


@pytest.mark.parametrize("way", WAYS)
@every_parameter
def test_a_change_is_noticed(make: Callable[[], Layer], name: str, way: str) -> None:
    """Whenever it was possible: before the memory, between calls, after calls without one."""
    for calls_before in (0, 1, 2):
        for calls_between in (0, 1, 2):
            layer = make()
            memory = layer.memory(X, X)
            for _ in range(calls_before):
                layer(Q, memory)
            before = getattr(layer, name).copy()
            changes = WAYS[way](layer, name)
            for _ in range(calls_between):
                layer(Q, memory)
            changes()
            del changes
            try:  # before anything here gets the array
                layer(Q, memory)
                seen = False
            except RuntimeError:
                seen = True
            assert seen == (not np.array_equal(getattr(layer, name), before))
            if way == "what pickle gets" and not seen:
                continue
            for _ in range(2):  # the second look as well
                assert_refused(layer, memory)


@every_parameter
def test_the_old_numbers_again(make: Callable[[], Layer], name: str) -> None:
    layer = make()
    memory = layer.memory(X, X)
    expected, before = layer(Q, memory), getattr(layer, name).copy()
    for changed in (before + 1, before):
        setattr(layer, name, changed)
        if changed is before:
            np.testing.assert_array_equal(layer(Q, memory), expected)
        else:
            pytest.raises(RuntimeError, layer, Q, memory)


@every_parameter
def test_what_nobody_has_is_not_compared(make: Callable[[], Layer], name: str) -> None:
    """The half of a decoding step otherwise. Through a bare address a change is made that no array
    can make: it is seen only once somebody gets an array, or if somebody has one all the time."""
    for has_one in (False, True):
        layer = make()
        address, size = address_of(getattr(layer, name)), getattr(layer, name).nbytes
        kept = getattr(layer, name) if has_one else None
        memory = layer.memory(X, X)
        expected = layer(Q, memory)
        ctypes.memset(address, 0, size)
        if kept is None and not sysconfig.get_config_var("Py_GIL_DISABLED"):
            np.testing.assert_array_equal(layer(Q, memory), expected)
            assert not getattr(layer, name).any()  # now it has been handed out
        with pytest.raises(RuntimeError, match=f"{name} has changed"):
            layer(Q, memory)


def test_every_memory_looks_for_itself() -> None:
    """A look by one is none by another."""
    layer = additive()
    old = layer.memory(X, X)
    layer(Q, old)
    layer.W_k *= 2
    new = layer.memory(X, X)
    for _ in range(3):
        layer(Q, new)
        with pytest.raises(RuntimeError, match="W_k has changed"):
            layer(Q, old)


def test_a_change_in_the_middle_of_a_call(rng: np.random.Generator) -> None:
    """While a call reads its arguments it has the parameters too: they are compared after it."""

    class Meddler:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
            layer(Q, memory)
            layer.W_k *= 2
            return np.zeros((), np.float32)

    layer = additive()
    memory = layer.memory(X, X)
    expected = layer(Q, memory)
    np.testing.assert_array_equal(layer(Q, memory, bias=Meddler()), expected)  # that of its start
    with pytest.raises(RuntimeError, match="W_k has changed"):
        layer(Q, memory)


def test_copies_and_pickles_change_nothing_of_the_original() -> None:
    layer = multi_head()
    memory = layer.memory(X, X)
    expected = layer(Q, memory)
    for copied in (copy.copy(layer), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        change(copied.W_k)
        np.testing.assert_array_equal(layer(Q, memory), expected)
    assert isinstance(memory, attnext.Memory)
