"""The options that all attentions share, as the caller gave them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from numpy.typing import ArrayLike

from .arguments import Array, as_flag

if TYPE_CHECKING:
    from .. import _options

    class ForwardOptions(_options.Shared, _options.Extras, total=False):
        """`Forward` as the ``**options`` of a function."""

        out: Array | None

    class BackwardOptions(_options.Backward, total=False):
        """`Backward`, likewise."""

    class ScaledBackwardOptions(BackwardOptions, _options.Scaled, total=False):
        """`ScaledBackward`, likewise."""

    class HeadsForwardOptions(_options.HeadsShared, _options.Extras, total=False):
        """`HeadsForward`, likewise."""

        out: Array | None

    class HeadsBackwardOptions(
        _options.HeadsShared, _options.Saved, _options.Chain, _options.Scaled, total=False
    ):
        """`HeadsBackward`, likewise."""


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Options:
    """What forward and backward share."""

    hidden: ClassVar[tuple[str, ...]] = ()  # what is not for the caller to say

    valid_lens: ArrayLike | None = None
    _: KW_ONLY
    softcap: ArrayLike | None = None
    mask: ArrayLike | None = None
    bias: ArrayLike | None = None
    causal: bool = False
    causal_offset: ArrayLike = 0
    window: tuple[int, int] | None = None
    sink: ArrayLike | None = None
    enable_gqa: bool = False
    dropout_p: ArrayLike = 0.0
    seed: int | None = None
    dropout_mask: ArrayLike | None = None
    empty_rows: str = "uniform"

    @classmethod
    def of(cls, function: str, valid_lens: ArrayLike | None, options: Mapping[str, Any]) -> Self:
        """What the function of this name was called with."""
        known = {x.name: type(x.default) for x in fields(cls) if x.name not in cls.hidden}
        for name in options:
            if name not in known:
                raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        flags = {name: as_flag(name, x) for name, x in options.items() if known[name] is bool}
        return cls(valid_lens, **{**options, **flags})

    @classmethod
    def spelled_out(cls, function: F) -> F:
        """The function itself; help() shows each option in the place of its ``**options``."""
        spelled: F = _SPELLING[cls](function)
        return spelled


@dataclass(frozen=True)
class Forward(Options):
    """What else a forward takes."""

    return_weights: bool = False
    return_lse: bool = False
    out: Array | None = None


@dataclass(frozen=True)
class Backward(Options):
    """What else a backward takes."""

    grad_weights: ArrayLike | None = None
    grad_lse: ArrayLike | None = None
    weights: ArrayLike | None = None
    output: ArrayLike | None = None
    lse: ArrayLike | None = None
    return_grad_bias: bool = False
    return_grad_sink: bool = False


@dataclass(frozen=True)
class ScaledBackward(Backward):
    """And one whose score has a scale."""

    return_grad_scale: bool = False


@dataclass(frozen=True)
class HeadsForward(Forward):
    """And multi-head attention, which knows itself how many heads there are."""

    hidden: ClassVar[tuple[str, ...]] = ("enable_gqa",)


@dataclass(frozen=True)
class HeadsBackward(ScaledBackward):
    """And its backward."""

    hidden: ClassVar[tuple[str, ...]] = ("enable_gqa",)


# What is otherwise here than in the fast functions.
_AGAIN = {"doc": "What the forward returned. Only its shape is looked at: it is computed again."}
_OWN_WORDS: dict[str, dict[str, Any]] = {
    "out": {
        "type": "ndarray of float64, shape (..., M, Dv), optional",
        "doc": "Where to put the output.",
    },
    **dict.fromkeys(("weights", "output", "lse"), _AGAIN),
}


def _spelling(kind: type[Any]) -> Callable[[F], F]:
    """What writes out these options in the words of attnext, if it is there."""
    try:
        from .._options import OPTIONS, Taken
    except ImportError:  # this folder on its own
        return lambda function: function
    names = OPTIONS.keys() - set(kind.hidden)
    shared = {field.name: field for field in fields(kind) if field.name in names}
    own = {
        name: OPTIONS[name]._replace(default=field.default, **_OWN_WORDS.get(name, {}))
        for name, field in shared.items()
    }
    return Taken({name: field.type for name, field in shared.items()}, own).spelled_out


_KINDS = (Forward, Backward, ScaledBackward, HeadsForward, HeadsBackward)
_SPELLING: dict[type, Any] = {kind: _spelling(kind) for kind in _KINDS}
