"""Steps of fuzz_door.py that make layers and memories, and use them."""

from __future__ import annotations

import copy
import pickle
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from fuzz_arguments import Sizes
from fuzz_program import (
    LAYERS,
    Broken,
    Step,
    arrays_of,
    known_or_some,
    must,
    names_of,
    numbers_of,
    same_bits,
)

if TYPE_CHECKING:
    from fuzz_door import World

# ---- steps: layers -------------------------------------------------------------------------------


def construction(kind: str, sizes: Sizes) -> dict[str, Any]:
    needed = names_of(LAYERS[kind])[1]
    return {name: x for name, x in sizes.construction().items() if name in needed} | {"rng": 7}


def make_layer(world: World, name: str, step: Step) -> None:
    kind = known_or_some(step.rest[0], LAYERS) if step.rest else world.kind
    given, _ = world.arguments(LAYERS[kind], "new", Step(name, step.rest[1:]))
    given = construction(kind, world.sizes) | given
    world.kind, world.memory, world.context = kind, None, None
    world.layer = world.call(LAYERS[kind], given)
    world.remember(world.layer)


def call_layer(world: World, name: str, step: Step) -> None:
    layer = world.the_layer()
    given, _ = world.arguments(layer, world.kind, step, ("queries", "keys", "values"))
    world.call(layer, given)
    world.context = layer.context


def call_with_memory(world: World, name: str, step: Step) -> None:
    layer, memory = world.the_layer(), world.the_memory()
    here = world.sizes
    world.sizes = here._replace(N=len(memory))
    given, _ = world.arguments(layer, world.kind, step, ("queries",))
    world.sizes = here
    world.call(layer, {k: x for k, x in given.items() if k != "values"} | {"keys": memory})
    world.context = layer.context


def call_method(world: World, name: str, step: Step) -> None:
    """Of the layer, or of its memory."""
    owner = world.the_memory() if name in ("append", "settle") else world.the_layer()
    method = getattr(owner, {"settle": "backward"}.get(name, name))
    given, _ = world.arguments(method, world.kind, step)
    if name == "load_state_dict" and not step.rest:
        given = {"state_dict": owner.state_dict()}
    if name == "backward" and "context" not in given and world.context is not None and step.rest:
        given["context"] = world.context
    positional = {k: given.pop(k) for k in ("state_dict", "mode") if k in given}
    before = len(owner) - world.appended if name == "append" else 0
    for x in arrays_of(world.call(partial(method, *positional.values()), given)):
        must(x.dtype == np.float32, "a result", x)
    if name == "append":  # others may have come while this one was at it
        world.appended += rows_of(given["keys"])
        must(len(owner) - world.appended >= before, "rows that were appended are lost")


def rows_of(keys: Any) -> int:
    """How many keys these are, if that can be told."""
    return keys.shape[-2] if isinstance(keys, np.ndarray) and keys.ndim > 1 else 0


def make_memory(world: World, name: str, step: Step) -> None:
    layer = world.the_layer()
    given, _ = world.arguments(layer.memory, "layer", step, ("keys", "values"))
    world.memory = world.call(layer.memory, given)


def set_parameter(world: World, name: str, step: Step) -> None:
    layer = world.the_layer()
    for parameter, words in step.items()[:1]:
        known = known_or_some(parameter, [*layer.parameters(), "dropout", "training", "grads"])
        value = getattr(layer, known)
        for word in words:
            value, _ = world.made_of(known, {known: value}, word)
        setattr(layer, known, value)


def write_parameters(world: World, name: str, step: Step) -> None:
    for x in world.the_layer().parameters().values():
        x.fill(0.25)


def take_copy(world: World, name: str, step: Step) -> None:
    """By copy, deepcopy or any protocol of pickle; what is copied stays as it is."""
    layer = world.the_layer()
    way = (numbers_of(step.rest) or [2])[0] % 9
    of = {"context": world.context, "memory": world.memory}.get("".join(step.rest[1:2]), layer)
    of = layer if of is None else of
    before = {key: id(x) for key, x in layer.grads.items()}
    try:
        if way > 6:
            made = copy.copy(of) if way == 7 else copy.deepcopy(of)
        else:
            written = pickle.dumps(of, way % 6)
            made = None
    finally:
        must(before == {key: id(x) for key, x in layer.grads.items()}, "copying changes gradients")
    if made is None:
        try:
            made = pickle.loads(written)
        except TypeError as error:
            raise Broken("written, and not readable") from error
    if of is layer and way % 2:
        world.layer, world.memory, world.context = made, None, None
        world.remember(made)


def look(world: World, name: str, step: Step) -> None:
    """At everything that can be asked for without an argument."""
    for thing in (world.the_layer(), world.memory, world.context):
        for attribute in dir(thing):
            if not attribute.startswith("__"):
                getattr(thing, attribute, None)
        repr(thing)
    len(world.memory or ())


def ask_privately(world: World, name: str, step: Step) -> None:
    """Methods without an argument that have no page, which attnext's own Python code calls."""
    memory = world.the_memory()
    own = [x for x in dir(memory) if re.match(r"_[a-z]", x)]
    if own:
        world.call(getattr(memory, known_or_some("".join(step.rest), own)), {})


def live_again(world: World, name: str, step: Step) -> None:
    """The layer is as good as a new one."""
    layer, made = world.the_layer(), construction(world.kind, world.sizes)
    layer.__init__(**made)
    world.memory = world.context = None
    fresh = LAYERS[world.kind](**made)
    given, _ = world.arguments(fresh, world.kind, Step("", []), ("queries", "keys", "values"))
    results = []
    for one in (layer, fresh):
        output = one(**given)
        results.append((output, *one.backward(np.ones_like(output)), *one.grads.values()))
    must(same_bits(*results), "a layer is not what it was")
