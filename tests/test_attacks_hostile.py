"""Arguments that do something while they are read: free others, or use the same object again.

Each call gives what it would have given, or refuses, and nothing is broken afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from fuzz_arguments import Acts
from hostile import (
    FUNCTIONS,
    MAKERS,
    REFUSED,
    Arguments,
    K,
    Mine,
    Q,
    V,
    check_well,
    deeds,
    freed,
    make,
    methods,
    same,
)

import attnext

# ---- arguments that free others ------------------------------------------------------------------


@pytest.mark.parametrize("how", ["moved", "resized", "resized, of a subclass"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_argument_that_frees_another(name: str, how: str) -> None:
    function, arguments = FUNCTIONS[name]
    expected = function(**arguments)
    refused = 0
    for reader, victim in permutations(arguments, 2):
        if not isinstance(arguments[victim], np.ndarray) or isinstance(arguments[reader], bool):
            continue
        x = arguments[victim].copy()
        x = Mine(x.shape, x.dtype, x.tobytes()).copy() if "subclass" in how else x
        acts = Acts(arguments[reader], lambda x=x: freed(x, how.partition(",")[0]))
        given = [Acts(9, acts.deed), 9] if reader == "window" else acts
        try:
            found = function(**(arguments | {reader: given, victim: x}))
        except ValueError as error:
            refused += 1
            assert victim in str(error) or " shape" in str(error), (reader, victim)
        else:
            same(found, expected)
    assert refused > 0 or how == "moved"  # all are read before one is looked at
    same(function(**arguments), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_view_of_memory_that_is_gone(name: str) -> None:
    function, arguments = FUNCTIONS[name]
    for victim, x in arguments.items():
        if isinstance(x, np.ndarray):
            base = np.concatenate([x.ravel(), x.ravel()])
            view = base[: x.size].reshape(x.shape)
            base.resize((0,), refcheck=False)
            freed = f"^{victim} is a view of an array whose memory was freed: "
            with pytest.raises(ValueError, match=freed):
                function(**(arguments | {victim: view}))


@pytest.mark.parametrize("name", ["dot_product_attention", "masked_softmax"])
def test_out_of_memory_that_is_gone(name: str) -> None:
    """Into which nothing may be written."""
    given = (Q, K, V)[: 3 if name == "dot_product_attention" else 1]
    shape = getattr(attnext, name)(*given).shape
    base = np.zeros(2 * np.prod(shape), np.float32)
    out = base[: base.size // 2].reshape(shape)
    base.resize((0,), refcheck=False)
    with pytest.raises(ValueError, match="^out is a view of an array whose memory was freed: "):
        getattr(attnext, name)(*given, out=out)


# ---- arguments that use the same object ----------------------------------------------------------


@pytest.mark.parametrize("kind", MAKERS)
def test_an_argument_that_uses_the_same_object(kind: str) -> None:
    """The call goes on as the object was when it began, or refuses; then all is as always."""
    for method in methods(*make(kind)):
        call, arguments = methods(*make(kind))[method]
        expected = call(**arguments) if "call" in method or method == "backward" else None
        for name, deed in product(arguments, deeds(*make(kind))):
            case = f"{method}, {name}, {deed}"
            layer, memory = make(kind)
            call, given = methods(layer, memory)[method]
            action = deeds(layer, memory)[deed]
            try:
                found = call(**(given | {name: Acts(given[name], action)}))
            except (ValueError, RuntimeError, TypeError) as error:
                assert re.search(REFUSED, str(error)), f"{case}: {error}"
            else:
                if expected is not None and not deed.startswith("set"):
                    same(found, expected)
            check_well(layer)


class ActingKey(str):
    """A name that acts whenever it is looked up; it is then still found."""

    action: Callable[[], Any]
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        self.action()
        return str.__eq__(self, other)


class ActingMapping:
    def __init__(self, state: Arguments, action: Callable[[], Any]) -> None:
        self.state, self.action = state, action

    def keys(self) -> Iterator[str]:
        for name in list(self.state):
            self.action()
            yield name

    def __getitem__(self, name: str) -> Any:
        self.action()
        return self.state[name]


def test_a_state_dict_that_acts() -> None:
    """What it sets is all of it; the deeds come before."""
    for deed in deeds(*make("additive")):
        for of_mapping in (True, False):
            layer, memory = make("additive")
            action, state = deeds(layer, memory)[deed], layer.state_dict()
            if of_mapping:
                layer.load_state_dict(ActingMapping(state, action))
            else:
                acting = {ActingKey(name): x for name, x in state.items()}
                for key in acting:
                    key.action = action
                layer.load_state_dict(acting)
            if deed != "another life":
                for name, x in layer.state_dict().items():
                    np.testing.assert_array_equal(x, state[name], err_msg=deed)
            check_well(layer)


class ActingGenerator(np.random.Generator):
    """It acts once, in the middle of drawing; the last reference to it may go then."""

    action: Callable[[], Any] | None = None

    def act(self) -> None:
        action, self.action = self.action, None
        if action is not None:
            action()

    def integers(self, *args: Any, **kwargs: Any) -> Any:
        self.act()
        return super().integers(*args, **kwargs)

    def uniform(self, *args: Any, **kwargs: Any) -> Any:
        self.act()
        return super().uniform(*args, **kwargs)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_generator_that_acts(kind: str) -> None:
    """While a call draws a seed, and while a constructor draws parameters."""
    for deed in deeds(*make(kind)):
        layer, memory = make(kind)
        sizes = [4, 4, 6][: 3 * bool(layer.parameters())]
        rng = ActingGenerator(np.random.PCG64(0))
        layer.__init__(*sizes, 0.5, rng=rng)
        memory = layer.memory(K, V)
        layer(Q, K, V)
        rng.action = deeds(layer, memory)[deed]
        del rng
        assert np.isfinite(layer(Q, K, V)).all()
        rng = ActingGenerator(np.random.PCG64(0))
        rng.action = deeds(layer, layer.memory(K, V))[deed]
        layer.__init__(*sizes, rng=rng)
        check_well(layer)
