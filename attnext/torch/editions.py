"""What the constructors of the layers take, in d2l's two editions, and what they check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar

from attnext import _core

_F = TypeVar("_F", bound=Callable[..., Any])
_ONE_BY_ONE = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def _signature(*names: str) -> Signature:
    """Of these names, and dropout=0.0."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    dropout = Parameter("dropout", kind, default=0.0)
    return Signature([*(Parameter(name, kind) for name in names), dropout])


def showing_sizes(constructor: _F) -> _F:
    """The constructor itself; help() shows the arguments of the Chinese edition, by name."""
    own = [p for p in signature(constructor).parameters.values() if p.kind in _ONE_BY_ONE]
    shown = [own[0], *_CHINESE.parameters.values(), *own[1:]]
    vars(constructor)["__signature__"] = Signature(shown)
    return constructor


_CHINESE = _signature("key_size", "query_size", "num_hiddens")
_ENGLISH = _signature("num_hiddens")


def arguments_of(given: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
    """key_size, query_size, num_hiddens and dropout; no sizes in the English edition.

    No call fits both: one has three arguments at least, the other two at most.
    """
    for edition in (_CHINESE, _ENGLISH):
        try:
            bound = edition.bind(*given, **named)
        except TypeError:
            continue
        bound.apply_defaults()
        x = bound.arguments
        return x.get("key_size"), x.get("query_size"), x["num_hiddens"], x["dropout"]
    shown = ", ".join([*map(repr, given), *(f"{name}={x!r}" for name, x in named.items())])
    raise TypeError(
        f"AdditiveAttention({shown}): expected (key_size, query_size, num_hiddens, dropout=0.0), "
        "as in d2l's Chinese edition, or (num_hiddens, dropout=0.0), as in its English one; bias "
        "by name"
    )


def checked_dropout(dropout: float) -> float:
    """A probability, likewise."""
    return _core.DotProductAttention(dropout).dropout
