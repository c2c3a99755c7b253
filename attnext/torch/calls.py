"""What autograd has to know of a function of attnext: a call of it, and how to go back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from sys import intern
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from attnext import _core

from .graphs import uncompiled
from .tensors import by_argument, on_tensors

Saved: TypeAlias = dict[str, Any]  # tensors, or lists of them, by argument
Flow: TypeAlias = dict[str, Tensor | None]  # gradients by result; None: nothing flows
Shape: TypeAlias = Sequence[int]


class Back(NamedTuple):
    """A backward in C of which nothing is left to do in Python."""

    in_c: str  # its name there
    asked: dict[str, bool]  # its options that ask for gradients
    gives: tuple[str, ...]  # whose gradients it returns, in order


class Rule(NamedTuple):
    """How to go back through a function."""

    # (function, what is kept, options, what flows in, whose gradients are wanted): these
    gradients: Callable[[str, Saved, Mapping[str, Any], Flow, Sequence[str]], Saved]
    shapes: Callable[[dict[str, Any]], dict[str, Shape]]  # of the results, from tensors and options
    # Raises for shapes that do not fit; only for tensors without values, else C says it.
    check: Callable[[Mapping[str, Any]], None] = lambda arguments: None
    drops: tuple[str, ...] = ()  # inputs and results that are not needed for it
    optional: tuple[str, ...] = ()  # results that return_... asks for
    helpful: tuple[str, ...] = ()  # those of them that are asked for if a backward may follow
    few: int = 0  # ... on more keys than these: so many, it has from the inputs as quickly
    # Results that are of use to it only beside another one.
    beside: Mapping[str, str] = {}
    prefix: str = ""  # of the functions' names in C
    # (function, whose gradients are wanted): the same, where it is a single call
    back: Callable[[str, tuple[str, ...]], Back | None] = lambda function, wanted: None


# By the name of the function. Other modules fill it, so importlib.reload keeps it.
RULES: dict[str, Rule] = globals().get("RULES", {})


class Kind(NamedTuple):
    """What calls have in common, and what follows from it."""

    keeps: tuple[bool, ...]  # which of tensors and results the backward needs
    function: str
    names: tuple[str, ...]  # of the tensors, in order: inputs, then options that are tensors
    made: tuple[str, ...]  # the results
    returned: int  # how many of them, the first, the caller gets
    in_c: str  # the function's name there
    asked: dict[str, bool]  # the options that ask for the results
    kept: tuple[str, ...]  # the names of what it needs
    flow: tuple[str, ...]  # what C calls the gradients of the results
    # by what needs gradients: the name in C, what it is asked for, and for each tensor where
    # among its results the gradient is; None: more is to be done
    ways_back: dict[tuple[bool, ...], tuple[Any, ...] | None]


class Call(NamedTuple):
    """A call, apart from its tensors."""

    kind: Kind
    options: Mapping[str, Any]  # those that are no tensors

    @property
    def function(self) -> str:
        return self.kind.function

    @property
    def names(self) -> tuple[str, ...]:
        return self.kind.names

    @property
    def made(self) -> tuple[str, ...]:
        return self.kind.made

    @property
    def returned(self) -> int:
        return self.kind.returned


# function, names, options, made, returned: a call before it is one, as torch.compile looks at it
Described: TypeAlias = tuple[str, tuple[str, ...], Mapping[str, Any], tuple[str, ...], int]

# Options to which gradients flow; those of True have to be tensors.
LEARNED = {"bias": True, "sink": True, "scale": False, "w": False, "sigma": False}

_KINDS: dict[tuple[str, tuple[str, ...], tuple[str, ...], int], Kind] = {}


def kind_of(function: str, names: tuple[str, ...], made: tuple[str, ...], returned: int) -> Kind:
    """Kept in a dict: torch.compile, which looks in behind a graph's break, warns of caches."""
    kind = _KINDS.get((function, names, made, returned))
    if kind is None:
        kind = _KINDS[function, names, made, returned] = _kind_of(function, names, made, returned)
    return kind


def _kind_of(function: str, names: tuple[str, ...], made: tuple[str, ...], returned: int) -> Kind:
    rule = RULES[function]
    useful = {name for name in made if rule.beside.get(name, name) in made}
    keeps = tuple(
        name not in rule.drops and (name in names or name in useful) for name in (*names, *made)
    )
    kept = tuple(compress((*names, *made), keeps))
    flow = ("grad_output", *(f"grad_{name}" for name in made[1:]))
    asked = that_ask_for(function, made)
    in_c = rule.prefix + function
    return Kind(keeps, function, names, made, returned, in_c, asked, kept, flow, {})


def that_ask_for(function: str, results: tuple[str, ...]) -> dict[str, bool]:
    optional = RULES[function].optional
    return {intern(f"return_{name}"): True for name in results if name in optional}


def call_of(
    function: str,
    names: tuple[str, ...],
    options: Mapping[str, Any],
    made: tuple[str, ...],
    returned: int,
) -> Call:
    """A call of this description."""
    return Call(kind_of(function, names, made, returned), options)


def recorded(function: str, returned: tuple[str, ...]) -> tuple[str, ...]:
    """The results of a call after which a backward may follow."""
    return returned + tuple(name for name in RULES[function].helpful if name not in returned)


class Way(NamedTuple):
    """What C is told of calls of a function that return the same."""

    asked: dict[str, bool]  # the options that ask for what is returned,
    helpful: dict[str, bool]  # and for what a backward has use for,
    few: int  # on more keys than these
    learned: Mapping[str, bool]
    kinds: Mapping[tuple[str, ...], Kind]  # by the names of tensors, of calls that are recorded,
    kinds_of_few: Mapping[tuple[str, ...], Kind]  # and of those on few keys
    in_c: str  # the function's name there


class _Kinds(dict[tuple[str, ...], Kind]):
    def __init__(self, function: str, made: tuple[str, ...], returned: int) -> None:
        super().__init__()
        self._described = function, made, returned

    def __missing__(self, names: tuple[str, ...]) -> Kind:
        function, made, returned = self._described
        self[names] = kind = kind_of(function, names, made, returned)
        return kind


_WAYS: dict[tuple[str, tuple[str, ...]], Way] = {}


def way_of(function: str, returned: tuple[str, ...]) -> Way:
    made, count = recorded(function, returned), len(returned)
    asked, helpful = (that_ask_for(function, x) for x in (returned, made[count:]))
    kinds, kinds_of_few = (_Kinds(function, x, count) for x in (made, returned))
    few = RULES[function].few
    in_c = RULES[function].prefix + function
    return Way(asked, helpful, few, LEARNED, kinds, kinds_of_few, intern(in_c))


@uncompiled
def at_once(
    function: str,
    inputs: Mapping[str, Any],
    options: Mapping[str, Any],
    returned: tuple[str, ...],
) -> Any:
    """Call the C function with a caller's arguments, before any check of them.

    Returns the results; or, as a list, the arguments of the node by which autograd records the
    call; or NotImplemented if an argument is not plain, and then nothing was computed.
    """
    way = _WAYS.get((function, returned))
    if way is None:
        way = _WAYS[function, returned] = way_of(function, returned)
    return _core._at_once(getattr(_core, way.in_c), inputs, options, way)


def take_learned(inputs: dict[str, Any], options: dict[str, Any]) -> None:
    """Options to which gradients flow become inputs."""
    for name, always in LEARNED.items():
        x = options.get(name)
        if x is not None and (always or isinstance(x, Tensor)):
            inputs[name] = options.pop(name)


def forward(call: Call, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """What the function makes."""
    kind = call.kind
    arguments = {**by_argument(kind.names, tensors), **call.options, **kind.asked}
    made = on_tensors(getattr(_core, kind.in_c), arguments)
    return made if isinstance(made, tuple) else (made,)


def keep(call: Call, tensors: Sequence[Tensor], made: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What the backward needs."""
    return tuple(compress((*tensors, *made), call.kind.keeps))


def backward(
    call: Call, saved: Iterable[Tensor], grads: Iterable[Tensor | None], needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradient of each tensor, None where it is not needed."""
    function, names, kept = call.function, call.names, call.kind.kept
    wanted = tuple(compress(names, needed))
    flow = dict(zip(call.made, grads, strict=False))
    d = RULES[function].gradients(function, by_argument(kept, saved), call.options, flow, wanted)
    return [d[name] if name in wanted else None for name in names]


def go_back(
    kind: Kind,
    options: Mapping[str, Any],
    saved: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    needed: tuple[bool, ...],
) -> Any:
    """Return the gradients by one call of C, for a node, whose first four inputs are no tensors.

    NotImplemented if C does not serve the call, and then nothing was computed.
    """
    if needed not in kind.ways_back:
        kind.ways_back[needed] = _way_back(kind, needed[4:])
    way = kind.ways_back[needed]
    if way is None:
        return NotImplemented
    name, asked, places = way
    in_c = getattr(_core, name)
    return _core._go_back(in_c, kind.flow, grads, kind.kept, saved, options, asked, places)


def _way_back(kind: Kind, needed: Sequence[bool]) -> tuple[Any, ...] | None:
    wanted = tuple(compress(kind.names, needed))
    back = RULES[kind.function].back(kind.function, wanted)
    if back is None:
        return None
    places = [back.gives.index(name) if name in wanted else None for name in kind.names]
    return intern(back.in_c), back.asked, (*[None] * 4, *places)


def shapes(call: Call, tensors: Iterable[Tensor]) -> list[Shape]:
    """Those of what the function makes, told without computing it."""
    arguments = {**call.options, **by_argument(call.names, tensors)}
    of_results = RULES[call.function].shapes(arguments)
    return [of_results[name] for name in call.made]
