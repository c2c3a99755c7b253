"""The whole public interface under programs that a fuzzer writes: python tests/fuzz_door.py FOLDER

A program is text, one step a line, and every text is one: a word that means nothing stands for one
that does, by its checksum.

    sizes 2x2 3 5 4 3 6                  from here on: leading axes, M, N, D, Dv, H
    masked_softmax valid_lens X:f8,turned
    layer additive bias                  the layer of all steps to come
    late append 3                        a finaliser of the next step does it, so many objects later
    call mask:acts-free need_weights     names of arguments, each with what is made of it

What must hold: nothing crashes, and no sanitizer reports; what is raised is of a documented kind;
arguments that nobody acted upon stay as they were; results are arrays of their own. Where nothing
is strange, attnext.reference refuses or accepts the same and gives the same numbers; a second call
with other threads, and one whose arrays are read by Python, give the same bits. A layer stays good
for another life, and goes with its last reference.

The command's arguments are libFuzzer's, to which Atheris hands them: -max_total_time=60. --replay
runs the files without Atheris, one after the other; --words prints a dictionary for -dict.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import fuzz_layers
import numpy as np
from fuzz_arguments import (
    OTHER,
    SAME,
    Array,
    Given,
    Mine,
    Sizes,
    acting,
    changed,
    well_formed,
)
from fuzz_program import (
    DOCUMENTED,
    FUNCTIONS,
    HAVE_NO_TWIN,
    LAYERS,
    NAMES,
    Broken,
    Step,
    Thrown,
    bytes_of,
    check_numbers,
    check_results,
    is_modest,
    known_or_some,
    must,
    names_of,
    numbers_of,
    same_bits,
    steps_of,
)

import attnext
from attnext import reference

PAIRS = range(9)  # of those that were freed some are kept, and given again without the collector

# ---- the world of a program ----------------------------------------------------------------------


class World:
    def __init__(self) -> None:
        self.sizes, self.kind, self.seed = Sizes(), "dot", 0
        self.layer: Any = None
        self.memory: Any = None
        self.context: Any = None
        self.given: dict[str, Any] = {}
        self.late: tuple[str, int] | None = None
        self.depth = self.acted = self.appended = 0
        self.made: list[weakref.ref[Any]] = []
        self.used: list[Any] = []

    # ---- steps

    def do(self, step: Step) -> None:
        """A step; what it raises is of a documented kind."""
        self.seed += 1
        name = known_or_some(step.verb, STEPS)
        self.depth += 1
        try:
            STEPS[name](self, name, step)
        except Broken:
            raise
        except DOCUMENTED:
            pass
        except Exception as error:
            innermost = error.__traceback__
            while innermost is not None and innermost.tb_next is not None:
                innermost = innermost.tb_next
            own = innermost is not None and innermost.tb_frame.f_code.co_filename
            if isinstance(error, SystemError) or own != sys.modules[acting.__module__].__file__:
                raise Broken("a kind that no page has", step) from error
        finally:
            self.depth -= 1

    def deed(self, name: str) -> None:
        """What an argument does while it is read, or a finaliser."""
        self.acted += 1
        if self.depth < 3:
            verb, _, rest = name.partition(".")
            self.do(Step(known_or_some(verb, DEEDS), rest.split(".")))

    # ---- calls

    def arguments(
        self, function: Any, about: str, step: Step, extra: Iterable[str] = ()
    ) -> tuple[dict[str, Any], bool]:
        """By name; and do they mean what they say?"""
        names, needed = names_of(function)
        items = [
            (name if name in NAMES else known_or_some(name, names), words)
            for name, words in step.items()
        ]
        asked = frozenset(name for name, _ in items)
        given = {
            name: well_formed(name, about, self.sizes, asked, self.seed + i)
            for i, name in enumerate([*needed, *extra, *asked])
        }
        tame = True
        for name, words in items:
            for word in words:
                given[name], same = self.made_of(name, given, word)
                tame = tame and same
        for x in given.values():
            if isinstance(x, Mine):
                x.owner = self.layer
        return given, tame

    def made_of(self, name: str, given: dict[str, Any], word: str) -> tuple[Any, bool]:
        value = given[name]
        first, _, rest = word.partition("-")
        if first == "acts":
            return acting(value, partial(self.deed, rest), len(word)), False
        if first in ("is", "view"):  # another argument, or a part of its memory
            other = given.get(rest)
            if first == "view" and isinstance(other, np.ndarray) and isinstance(value, np.ndarray):
                other = changed(
                    other,
                    "view",
                    {"view": lambda x: x.reshape(-1)[-value.size :].reshape(value.shape)},
                )
            return (value if other is None else other), True
        if first == "context":
            return self.context, False
        word = known_or_some(word, [*SAME, *OTHER])
        return changed(value, word, SAME | OTHER), word in SAME

    def call(self, function: Any, given: dict[str, Any]) -> Any:
        """With a finaliser in it, if one is wanted. Nobody writes to the arguments."""
        before = {name: bytes_of(x) for name, x in given.items()}
        acted, self.given = self.acted, given
        late, self.late = self.late, None
        try:
            return self.with_late(partial(function, **given), late)
        finally:
            if acted == self.acted:
                for name, x in given.items():
                    must(name == "out" or bytes_of(x) == before[name], "written to", name)

    def with_late(self, call: Callable[[], Any], late: tuple[str, int] | None) -> Any:
        if late is None:
            return call()
        gc.disable()
        gc.collect()
        garbage = weakref.ref(Late(partial(self.deed, late[0])))
        gc.set_threshold(late[1] + len(PAIRS), 1 << 20)
        self.used = [(i, i) for i in PAIRS]
        gc.enable()
        try:
            return call()
        finally:
            gc.disable()
            if (left := garbage()) is not None:  # too late for this step, and for no other
                left.deed = bool

    def remember(self, layer: Any) -> None:
        self.made.append(weakref.ref(layer))

    def the_layer(self) -> Any:
        if self.layer is None:
            STEPS["layer"](self, "layer", Step("layer", [self.kind]))
        return self.layer

    def the_memory(self) -> Any:
        if self.memory is None:
            STEPS["memory"](self, "memory", Step("memory", []))
        return self.memory


class Late:
    """Garbage that acts when it is collected."""

    def __init__(self, deed: Callable[[], object]) -> None:
        self.me, self.deed = self, deed

    def __del__(self) -> None:
        with contextlib.suppress(*DOCUMENTED):
            self.deed()


# ---- steps: functions ----------------------------------------------------------------------------


def call_function(world: World, name: str, step: Step) -> None:
    function = FUNCTIONS[name]
    given, tame = world.arguments(function, name, step)
    tame = tame and world.late is None
    try:
        result = world.call(function, given)
    except DOCUMENTED as error:
        if tame and name not in HAVE_NO_TWIN and isinstance(error, TypeError | ValueError):
            check_refused(name, given, error)
        raise
    if name in HAVE_NO_TWIN or world.acted:
        return
    check_results(result, given)
    if "out" not in given:
        check_again(name, given, result)
    if tame and is_modest(given) and not (saved_by_another(name) & given.keys()):
        check_numbers(result, expected_of(name, given))


def expected_of(name: str, given: dict[str, Any]) -> Any:
    """What the reference makes of it, which must not refuse."""
    try:
        return getattr(reference, name)(**{key: x for key, x in given.items() if key != "out"})
    except (TypeError, ValueError) as error:
        raise Broken("accepted, but not by the reference", name) from error


def saved_by_another(name: str) -> set[str]:
    """What a backward believes to be of its own forward."""
    return {"weights", "output", "lse"} if "attention_backward" in name else set()


def check_refused(name: str, given: dict[str, Any], error: Exception) -> None:
    """What is refused, the reference refuses too; but nobody's out, which it does not write to."""
    if "out" in given or not is_modest(given):
        return
    try:
        getattr(reference, name)(**given)
    except (TypeError, ValueError):
        return
    raise Broken("refused, but not by the reference", name) from error


def check_again(name: str, given: dict[str, Any], result: Any) -> None:
    """With other threads, and the collector at every second object; and read by Python."""
    before = attnext.get_num_threads()
    attnext.set_num_threads(before % 3 + 1)
    gc.set_threshold(1, 1 << 20)
    gc.enable()
    again = once_more(name, given)
    gc.disable()
    must(same_bits(again, result), "other bits in a second call", name)
    read = {name: Given(x) if is_array(x) else x for name, x in given.items()}
    must(same_bits(once_more(name, read), result), "other bits when read by Python", name)


def is_array(x: Any) -> bool:
    """One that is read as such: without axes it may be a number, where only that will do."""
    return type(x) is np.ndarray and x.ndim > 0


def once_more(name: str, given: dict[str, Any]) -> Any:
    try:
        return FUNCTIONS[name](**given)
    except DOCUMENTED as error:
        raise Broken("refused the second time", name) from error


def resize(world: World, name: str, step: Step) -> None:
    lead = tuple(n % 4 for n in numbers_of(step.rest[:1]))[:3]
    rest = [n % 20 for n in numbers_of(step.rest[1:])[:5]]
    usual = Sizes()[1:]
    M, N, D, Dv, H = [*rest, *usual[len(rest) :]]
    world.sizes = Sizes(lead, M, N, D, Dv, H // 2 * 2)


def act_later(world: World, name: str, step: Step) -> None:
    numbers = numbers_of(step.rest[1:]) or [1]
    world.late = "".join(step.rest[:1]), 1 + numbers[0] % 60


STEPS: dict[str, Callable[[World, str, Step], object]] = dict.fromkeys(FUNCTIONS, call_function)
STEPS |= dict.fromkeys(
    ["append", "settle", "backward", "state_dict", "load_state_dict", "train", "eval", "zero_grad"],
    fuzz_layers.call_method,
)
STEPS |= {
    "layer": fuzz_layers.make_layer,
    "call": fuzz_layers.call_layer,
    "step": fuzz_layers.call_with_memory,
}
STEPS |= {
    "memory": fuzz_layers.make_memory,
    "set": fuzz_layers.set_parameter,
    "write": fuzz_layers.write_parameters,
}
STEPS |= {
    "copy": fuzz_layers.take_copy,
    "look": fuzz_layers.look,
    "private": fuzz_layers.ask_privately,
    "again": fuzz_layers.live_again,
}
STEPS |= {"sizes": resize, "late": act_later}


# ---- deeds ---------------------------------------------------------------------------------------


def own_arrays(world: World) -> list[Array]:
    """Arguments of the call that have memory of their own, which is in nobody else's hands."""
    arrays = [x for x in world.given.values() if isinstance(x, np.ndarray)]
    shared = {id(x.base) for x in arrays if x.base is not None}
    return [x for x in arrays if x.flags.owndata and id(x) not in shared and x.size > 0]


def free(world: World, back: bool) -> None:
    """Gives the memory of one back, which others then write to; and takes other memory."""
    arrays = own_arrays(world)
    for x in arrays[world.seed % max(len(arrays), 1) :][:1]:
        state: Any = 1, x.shape, x.dtype, False, x.tobytes()
        x.resize((0,), refcheck=False)
        others = [np.full(len(state[-1]), 255, np.uint8) for _ in range(4)]
        if back:
            x.__setstate__(state)
        others.clear()


def overwrite(world: World) -> None:
    for x in own_arrays(world):
        if x.flags.writeable:
            x.fill(1)


def throw(world: World) -> None:
    raise Thrown


def lose_gradients(world: World) -> None:
    world.the_layer().grads.clear()


def drop(world: World) -> None:
    world.layer = world.memory = world.context = None


ACTS: dict[str, Callable[[World], object]] = {
    "free": partial(free, back=False),
    "move": partial(free, back=True),
    "overwrite": overwrite,
    "throw": throw,
    "lose": lose_gradients,
    "drop": drop,
    "collect": lambda world: gc.collect(1),
}
STEPS |= dict.fromkeys(ACTS, lambda world, name, step: ACTS[name](world))
DEEDS = [name for name in STEPS if name not in ("sizes", "late")]


# what a fuzzer may put together; and what joins them
WORDS = [
    *STEPS,
    *SAME,
    *OTHER,
    *NAMES,
    *LAYERS,
    "acts-",
    "is-",
    "view-",
    "\\x0a",
    " ",
    ":",
    ",",
]


# ---- one program ---------------------------------------------------------------------------------


def run(data: bytes) -> None:
    """What a program does holds, or `Broken` says what does not."""
    world = World()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in steps_of(data):
            world.do(step)
    made = world.made
    del world
    gc.collect()
    must(all(ref() is None for ref in made), "a layer that does not go")
    attnext.set_num_threads(1)


def main(arguments: list[str]) -> None:
    gc.disable()
    if arguments[1:2] == ["--replay"]:
        for name in arguments[2:]:
            for path in sorted(Path(name).iterdir()) if Path(name).is_dir() else [Path(name)]:
                print(path, flush=True)
                run(path.read_bytes())
        return
    if arguments[1:2] == ["--words"]:  # for -dict
        print(*(f'"{word}"' for word in WORDS), sep="\n")
        return
    atheris: Any = importlib.import_module("atheris")  # what is fuzzed needs it, and nothing else

    for name, module in sorted(sys.modules.items()):
        if name.startswith("attnext._"):
            for function in vars(module).values():
                if inspect.isfunction(function):
                    atheris.instrument_func(function)
    gc.collect()
    gc.freeze()  # what is there already is not gone through each time
    atheris.Setup(arguments, run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
