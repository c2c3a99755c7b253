"""What autograd has to know of a function of attnext: a call of it, and how to go back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import compress
from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray
from torch import Tensor

from attnext import _core

from .tensors import by_argument, to_array, to_arrays, to_tensor

Arrays: TypeAlias = dict[str, Any]  # by argument
Flow: TypeAlias = dict[str, NDArray[Any] | None]  # gradients by result; None: nothing flows
Shape: TypeAlias = Sequence[int]


class Rule(NamedTuple):
    """How to go back through a function."""

    # (function, what is kept, options, what flows in, whose gradients are wanted): these
    gradients: Callable[[str, Arrays, Mapping[str, Any], Flow, Sequence[str]], Arrays]
    shapes: Callable[[dict[str, Any]], dict[str, Shape]]  # of the results, from tensors and options
    drops: tuple[str, ...] = ()  # inputs and results that are not needed for it
    optional: tuple[str, ...] = ()  # results that return_... asks for
    helpful: tuple[str, ...] = ()  # those of them that are asked for if a backward may follow
    prefix: str = ""  # of the functions' names in C


RULES: dict[str, Rule] = {}  # by the name of the function


class Call(NamedTuple):
    """A call, apart from its tensors."""

    function: str
    names: tuple[str, ...]  # of the tensors, in order: inputs, then options that are tensors
    options: Mapping[str, Any]  # the others
    made: tuple[str, ...]  # the results
    returned: int  # how many of them, the first, the caller gets


@cache
def _in_c(function: str, made: tuple[str, ...]) -> tuple[str, dict[str, bool]]:
    """The function's name in C, and the options that ask for these results."""
    rule = RULES[function]
    asked = {f"return_{name}": True for name in made if name in rule.optional}
    return rule.prefix + function, asked


@cache
def _kept(function: str, *names: str) -> tuple[bool, ...]:
    """Which of these inputs and results the backward needs."""
    return tuple(name not in RULES[function].drops for name in names)


def forward(call: Call, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """What the function makes."""
    name, asked = _in_c(call.function, call.made)
    made = getattr(_core, name)(**to_arrays(call.names, tensors), **call.options, **asked)
    return tuple(map(to_tensor, made)) if isinstance(made, tuple) else (to_tensor(made),)


def keep(call: Call, tensors: Sequence[Tensor], made: Sequence[Tensor]) -> Iterable[Tensor]:
    """What the backward needs."""
    return compress((*tensors, *made), _kept(call.function, *call.names, *call.made))


def kept(call: Call) -> Iterable[str]:
    """The names of these."""
    names = (*call.names, *call.made)
    return compress(names, _kept(call.function, *names))


def backward(
    call: Call, saved: Iterable[Tensor], grads: Iterable[Tensor | None], needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradient of each tensor, None where it is not needed."""
    wanted = tuple(compress(call.names, needed))
    flow = {
        name: None if x is None else to_array(x, f"the gradient of {name}")
        for name, x in zip(call.made, grads, strict=False)
    }
    arrays = to_arrays(kept(call), saved)
    d = RULES[call.function].gradients(call.function, arrays, call.options, flow, wanted)
    return [to_tensor(d[name]) if name in wanted else None for name in call.names]


def shapes(call: Call, tensors: Iterable[Tensor]) -> list[Shape]:
    """Those of what the function makes, told without computing it."""
    arguments = {**call.options, **by_argument(call.names, tensors)}
    of_results = RULES[call.function].shapes(arguments)
    return [of_results[name] for name in call.made]
