"""What autograd has to know of a function of attnext: a call of it, and how to go back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from sys import intern
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from attnext import _core

from .tensors import by_argument, on_tensors

Saved: TypeAlias = dict[str, Any]  # tensors, or lists of them, by argument
Flow: TypeAlias = dict[str, Tensor | None]  # gradients by result; None: nothing flows
Shape: TypeAlias = Sequence[int]


class Rule(NamedTuple):
    """How to go back through a function."""

    # (function, what is kept, options, what flows in, whose gradients are wanted): these
    gradients: Callable[[str, Saved, Mapping[str, Any], Flow, Sequence[str]], Saved]
    shapes: Callable[[dict[str, Any]], dict[str, Shape]]  # of the results, from tensors and options
    drops: tuple[str, ...] = ()  # inputs and results that are not needed for it
    optional: tuple[str, ...] = ()  # results that return_... asks for
    helpful: tuple[str, ...] = ()  # those of them that are asked for if a backward may follow
    prefix: str = ""  # of the functions' names in C


RULES: dict[str, Rule] = {}  # by the name of the function


class Kind(NamedTuple):
    """What calls have in common, and what follows from it."""

    function: str
    names: tuple[str, ...]  # of the tensors, in order: inputs, then options that are tensors
    made: tuple[str, ...]  # the results
    in_c: str  # the function's name there
    asked: dict[str, bool]  # the options that ask for the results,
    helpful: dict[str, bool]  # and for those that a backward has use for
    keeps: tuple[bool, ...]  # which of tensors and results the backward needs,
    kept: tuple[str, ...]  # and their names


class Call(NamedTuple):
    """A call, apart from its tensors."""

    kind: Kind
    options: Mapping[str, Any]  # those that are no tensors
    returned: int  # how many of the results, the first, the caller gets

    @property
    def function(self) -> str:
        return self.kind.function

    @property
    def names(self) -> tuple[str, ...]:
        return self.kind.names

    @property
    def made(self) -> tuple[str, ...]:
        return self.kind.made


# function, names, options, made, returned: a call before it is one, as torch.compile looks at it
Described: TypeAlias = tuple[str, tuple[str, ...], Mapping[str, Any], tuple[str, ...], int]

_KINDS: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Kind] = {}


def kind_of(function: str, names: tuple[str, ...], made: tuple[str, ...]) -> Kind:
    """Kept in a dict: torch.compile, which looks in behind a graph's break, warns of caches."""
    kind = _KINDS.get((function, names, made))
    if kind is not None:
        return kind
    rule = RULES[function]
    asked, helpful = (
        {intern(f"return_{name}"): True for name in results if name in rule.optional}
        for results in (made, recorded(function, made)[len(made) :])
    )
    keeps = tuple(name not in rule.drops for name in (*names, *made))
    kept = tuple(compress((*names, *made), keeps))
    in_c = rule.prefix + function
    kind = Kind(function, names, made, in_c, asked, helpful, keeps, kept)
    _KINDS[function, names, made] = kind
    return kind


def call_of(
    function: str,
    names: tuple[str, ...],
    options: Mapping[str, Any],
    made: tuple[str, ...],
    returned: int,
) -> Call:
    """A call of this description."""
    return Call(kind_of(function, names, made), options, returned)


def recorded(function: str, returned: tuple[str, ...]) -> tuple[str, ...]:
    """The results of a call after which a backward may follow."""
    return returned + tuple(name for name in RULES[function].helpful if name not in returned)


def at_once(
    function: str, inputs: Mapping[str, Any], options: Mapping[str, Any], made: tuple[str, ...]
) -> Any:
    """What the function makes of a caller's arguments, of which nobody has seen any yet.

    (Ellipsis, results, options that are tensors) if autograd is to record the call: the results
    are those of `recorded`, and the other options are constants. NotImplemented: something is not
    plain.
    """
    kind = kind_of(function, (), made)
    options = {**options, **kind.asked} if kind.asked else options
    watched = kind.helpful if torch.is_grad_enabled() else None
    return _core._on_tensors(getattr(_core, kind.in_c), inputs, options, watched)


with suppress(ImportError):  # behind a graph's break torch.compile looks into what is called
    from torch._dynamo.eval_frame import skip_code as _skip_code

    _skip_code(at_once.__code__)


def forward(call: Call, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """What the function makes."""
    kind = call.kind
    arguments = {**by_argument(kind.names, tensors), **call.options, **kind.asked}
    made = on_tensors(getattr(_core, kind.in_c), arguments)
    return made if isinstance(made, tuple) else (made,)


def keep(call: Call, tensors: Sequence[Tensor], made: Sequence[Tensor]) -> Iterable[Tensor]:
    """What the backward needs."""
    return compress((*tensors, *made), call.kind.keeps)


def backward(
    call: Call, saved: Iterable[Tensor], grads: Iterable[Tensor | None], needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradient of each tensor, None where it is not needed."""
    function, names, made, *_, kept = call.kind
    wanted = tuple(compress(names, needed))
    flow = dict(zip(made, grads, strict=False))
    d = RULES[function].gradients(function, by_argument(kept, saved), call.options, flow, wanted)
    return [d[name] if name in wanted else None for name in names]


def shapes(call: Call, tensors: Iterable[Tensor]) -> list[Shape]:
    """Those of what the function makes, told without computing it."""
    arguments = {**call.options, **by_argument(call.names, tensors)}
    of_results = RULES[call.function].shapes(arguments)
    return [of_results[name] for name in call.made]
