"""Finalisers that the garbage collector runs in the middle of a call, and that act on its objects.

CPython 3.11 may collect at any allocation of an object that the collector knows. Each call is
made with such an object as garbage, once for each of its first allocations: it gives what it
would have given, or refuses, and nothing is broken afterwards.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import Array, run_python, settle
from hostile import (
    FUNCTIONS,
    MAKERS,
    Arguments,
    K,
    Q,
    V,
    check_well,
    deeds,
    freed,
    make,
    methods,
    of_floats,
    same,
)

import attnext
from attnext import Memory, MultiHeadAttention

THRESHOLDS = range(1, 14)  # no call makes more objects before its result is there


@pytest.fixture(autouse=True)
def collecting_little() -> Iterator[None]:
    """What is there already is not gone through each time."""
    before = gc.get_threshold()
    settle()
    yield
    gc.set_threshold(*before)
    gc.enable()


class Late:
    """Garbage that acts when it is collected."""

    def __init__(self, deed: Callable[[], Any]) -> None:
        self.me, self.deed = self, deed

    def __del__(self) -> None:
        with contextlib.suppress(ValueError, RuntimeError, TypeError, KeyError):
            self.deed()


def collected_during(call: Callable[[], Any], deed: Callable[[], Any], threshold: int) -> Any:
    """What call() gives, when so many objects later the deed is done."""
    gc.disable()
    gc.collect()
    Late(deed)
    gc.set_threshold(threshold)
    gc.enable()
    try:
        return call()
    finally:
        gc.disable()


# ---- finalisers that free an argument ------------------------------------------------------------


def check_freeing(
    call: Callable[..., Any], given: Arguments, victim: str, expected: Any, how: str
) -> None:
    for threshold in THRESHOLDS:
        x = given[victim].copy(order="K")
        arguments = given | {victim: x}
        try:
            found = collected_during(partial(call, **arguments), partial(freed, x, how), threshold)
        except ValueError as error:
            assert victim in str(error) or " shape" in str(error), (victim, threshold)
        else:
            same(found, expected)


@pytest.mark.parametrize("how", ["moved", "resized"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_finaliser_that_frees_an_argument(name: str, how: str) -> None:
    function, arguments = FUNCTIONS[name]
    expected = function(**arguments)
    for victim in arguments:
        if isinstance(arguments[victim], np.ndarray):
            check_freeing(function, arguments, victim, expected, how)
    same(function(**arguments), expected)


CONVERTED: dict[str, Callable[[Array], Array]] = {
    "wider": lambda x: x.astype({"f": "f8", "i": "i4", "b": "?"}[x.dtype.kind]),
    "swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "in columns": lambda x: np.array(x, order="F"),
}


@pytest.mark.parametrize("convert", CONVERTED)
@pytest.mark.parametrize(
    "name", ["additive_attention", "additive_attention_backward", "sequence_mask"]
)
def test_while_arguments_are_converted(name: str, convert: str) -> None:
    function, plain = FUNCTIONS[name]
    arrays = {name: x for name, x in plain.items() if isinstance(x, np.ndarray)}
    arguments = plain | {name: CONVERTED[convert](x) for name, x in arrays.items()}
    expected = function(**arguments)
    for victim in arrays:
        check_freeing(function, arguments, victim, expected, "resized")


def test_with_a_mask_and_that_of_a_memory() -> None:
    layer = attnext.DotProductAttention()
    memory = layer.memory(K, V, mask=np.arange(10).reshape(2, 1, 5) % 3 > 0)
    given = {"queries": Q, "mask": np.arange(15).reshape(3, 5) % 4 > 0}
    call = partial(layer, keys=memory)
    expected = call(**given)
    for victim in given:
        check_freeing(call, given, victim, expected, "resized")


def test_while_large_results_are_made() -> None:
    """Of 16 MiB, which lie in blocks of their own; and what multi-head attention keeps."""
    small, wide = of_floats(1, 1, 8), of_floats(1, 2, 1 << 22)
    given = {"queries": small, "keys": of_floats(1, 2, 8), "values": wide}
    expected = attnext.dot_product_attention(**given)
    for victim in ("queries", "keys"):
        check_freeing(attnext.dot_product_attention, given, victim, expected, "resized")
    layer = MultiHeadAttention(8, 8, 8, 8, 2, rng=0)
    given = {
        "queries": of_floats(1, 9, 8),
        "keys": of_floats(1, 5, 8),
        "values": of_floats(1, 5, 8),
    }
    expected = layer(**given)
    for victim in given:
        check_freeing(layer, given, victim, expected, "resized")


def test_while_a_call_asks_whether_to_stop(questions: dict[str, str]) -> None:
    """CPython 3.12.1 then runs a collection that is due, though the collector is switched off."""
    code = """
import questions
from test_attacks_finalisers import *

def asking(call, **given):
    return questions.run(partial(call, **given))[0][0]

given = {name: of_floats(1, n, 64) for name, n in [("queries", 9), ("keys", 99), ("values", 99)]}
layer = MultiHeadAttention(64, 64, 64, 8, 2, rng=0)
for call in partial(asking, attnext.dot_product_attention), partial(asking, layer):
    expected = call(**given)
    for victim in given:
        check_freeing(call, given, victim, expected, "resized")
"""
    run_python("-c", code, **questions)


def test_out_that_goes_is_not_written_to() -> None:
    q, kv = of_floats(1, 8, 4), of_floats(1, 5, 4)
    expected = attnext.dot_product_attention(q, kv, kv, return_lse=True)
    for threshold in THRESHOLDS:
        out, taken = np.empty_like(q), []

        def take(out: Array = out, taken: list[Array] = taken) -> None:
            size = out.nbytes
            out.resize((0,), refcheck=False)
            taken.extend(np.full(size, 255, np.uint8) for _ in range(8))

        def call(out: Array = out) -> Any:
            return attnext.dot_product_attention(q, kv, kv, out=out, return_lse=True)

        try:
            found = collected_during(call, take, threshold)
        except ValueError as error:
            assert "out" in str(error)
        else:
            assert found[0] is out
            if out.size > 0 or not taken:  # else it went when all was done
                same(found, expected)
        assert all((x == 255).all() for x in taken)


# ---- finalisers that use the same object ---------------------------------------------------------


def outcome(kind: str, method: str, deed: str, run: Callable[..., Any]) -> Any:
    """What run(call, action) gives for a new layer, or what it says."""
    layer, memory = make(kind)
    call, given = methods(layer, memory)[method]
    try:
        return run(lambda: call(**given), deeds(layer, memory)[deed])
    except (ValueError, RuntimeError, TypeError, KeyError) as error:
        return str(error)
    finally:
        check_well(layer)


def alike(found: Any, expected: Any) -> bool:
    if isinstance(expected, tuple):
        return isinstance(found, tuple) and all(map(alike, found, expected))
    if isinstance(expected, np.ndarray):
        return isinstance(found, np.ndarray) and np.array_equal(found, expected)
    return type(found) is type(expected) and (found == expected or isinstance(found, Memory))


@pytest.mark.parametrize("kind", MAKERS)
def test_a_finaliser_that_uses_the_same_object(kind: str) -> None:
    """As if the deed had been done before the call, or after it."""
    for method, deed in product(methods(*make(kind)), deeds(*make(kind))):
        expected = [
            outcome(kind, method, deed, lambda call, action: (action(), call())[1]),
            outcome(kind, method, deed, lambda call, action: (call(), action())[0]),
        ]
        for threshold in THRESHOLDS:
            found = outcome(kind, method, deed, partial(collected_during, threshold=threshold))
            if deed != "set all":  # in place, some before and some after
                assert any(alike(found, e) for e in expected), (method, deed, threshold)
