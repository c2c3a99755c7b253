"""What the constructors of the layers take, in d2l's two editions, and what they check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar

from attnext import _core

_F = TypeVar("_F", bound=Callable[..., Any])
_ONE_BY_ONE = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_DEFAULTS = {"dropout": 0.0, "bias": False}


def _signature(*names: str) -> Signature:
    kind, no = Parameter.POSITIONAL_OR_KEYWORD, Parameter.empty
    return Signature([Parameter(name, kind, default=_DEFAULTS.get(name, no)) for name in names])


class Editions:
    """What a class takes in either edition.

    chinese, english: its arguments, the English ones being the others without the sizes of inputs;
    by_name: what it takes besides, by name. No call fits both: one needs more than the other takes.
    """

    def __init__(self, name: str, chinese: str, english: str, by_name: str) -> None:
        self._name, self._by_name = name, by_name
        self._chinese, self._english = (_signature(*x.split()) for x in (chinese, english))

    def showing_sizes(self, constructor: _F) -> _F:
        """Return the constructor; help() shows the arguments of d2l's Chinese edition by name."""
        own = [p for p in signature(constructor).parameters.values() if p.kind in _ONE_BY_ONE]
        shown = [own[0], *self._chinese.parameters.values(), *own[1:]]
        vars(constructor)["__signature__"] = Signature(shown)
        return constructor

    def arguments_of(self, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name; in the English edition sizes are None."""
        for edition in (self._chinese, self._english):
            try:
                bound = edition.bind(*given, **named)
            except TypeError:
                continue
            bound.apply_defaults()
            return {**dict.fromkeys(self._chinese.parameters), **bound.arguments}
        shown = ", ".join([*map(repr, given), *(f"{name}={x!r}" for name, x in named.items())])
        raise TypeError(
            f"{self._name}({shown}): expected {self._chinese}, as in d2l's Chinese edition, or "
            f"{self._english}, as in the English edition; pass {self._by_name} by name"
        )


def checked_dropout(dropout: float) -> float:
    """Return a probability, or raise the same error as the classes in C."""
    return _core.DotProductAttention(dropout).dropout
