"""The options that all attentions share, each of them once.

What they are, the compiled module says: `_core.OPTIONS` has their defaults, `_core.ATTENTIONS`
those of each score's own, and attnext/_docs their words. Here stand their types. A function of
attnext.torch, attnext.dask, attnext.explain or attnext.reference is written out with its operands,
takes the rest as ``**options: Unpack[...]``, one of the classes below, and hands it on. `Taken`
then completes what the function shows of itself at run time, and refuses what is misspelt.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from textwrap import dedent, indent
from typing import Any, Literal, NamedTuple, SupportsIndex, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from attnext import _core
from attnext._docs.options import OPTIONS as PARAGRAPHS
from attnext._docs.wrapped import Voice, complete
from attnext._hints import hint

# ---- for type checkers ---------------------------------------------------------------------------


class Pairs(TypedDict, total=False):
    """Which key each query attends to, and what becomes of a query that is left without any."""

    mask: ArrayLike | None
    causal: bool
    causal_offset: ArrayLike
    window: tuple[SupportsIndex, SupportsIndex] | list[int] | None
    empty_rows: Literal["uniform", "zero", "nan"]


class Masks(Pairs, total=False):
    """The same, where heads are leading axes."""

    enable_gqa: bool


class Scores(TypedDict, total=False):
    """What becomes of every score, in the functions of the scores alone too."""

    softcap: float | np.floating[Any] | np.integer[Any] | None


class Bias(TypedDict, total=False):
    """What is added to the scores."""

    bias: ArrayLike | None


class Sink(TypedDict, total=False):
    """One more logit in each row's softmax."""

    sink: ArrayLike | None


class Layer(Scores, Masks, Bias, Sink, total=False):
    """What the call of a layer takes: dropout is its own."""


class HeadsLayer(Scores, Pairs, Bias, Sink, total=False):
    """What the call of a layer takes that has heads of its own."""


class Dropout(TypedDict, total=False):
    """Which weights are left out of the pooling."""

    dropout_p: float | np.floating[Any] | np.integer[Any]
    seed: SupportsIndex | None
    dropout_mask: ArrayLike | None


class Shared(Layer, Dropout, total=False):
    """What a forward and its backward share."""


class HeadsShared(HeadsLayer, Dropout, total=False):
    """What multi-head attention and its backward share."""


class Extras(TypedDict, total=False):
    """What a forward returns beside the output."""

    return_weights: bool
    return_lse: bool


class Flow(TypedDict, total=False):
    """What flows into a backward through the lse."""

    grad_lse: ArrayLike | None


class Chain(Flow, total=False):
    """What a backward takes and returns beside the gradients of the output and of the inputs."""

    return_grad_bias: bool
    return_grad_sink: bool


class Saved(Flow, total=False):
    """What flows into a backward, and what its forward returned."""

    grad_weights: ArrayLike | None
    weights: ArrayLike | None
    output: ArrayLike | None
    lse: ArrayLike | None


class Backward(Shared, Saved, Chain, total=False):
    """What a backward takes."""


class Scaled(TypedDict, total=False):
    """What the backward of a score that has a scale takes besides."""

    return_grad_scale: bool


# ---- those of each score, and of the functions that have it --------------------------------------


class DotProduct(TypedDict, total=False):
    """What a dot product is multiplied by."""

    scale: ArrayLike | None


class Cosine(TypedDict, total=False):
    """What a cosine is multiplied by, and the length that a vector has at least."""

    scale: ArrayLike
    eps: float | np.floating[Any] | np.integer[Any]


class Gaussian(TypedDict, total=False):
    """The width of the kernel, in one of two spellings."""

    w: ArrayLike | None
    sigma: ArrayLike | None


class Additive(TypedDict, total=False):
    """What is added below the tanh."""

    b_h: ArrayLike | None


class MultiHead(DotProduct, total=False):
    """What is optional about the heads and their projections."""

    num_kv_heads: SupportsIndex | None
    b_q: ArrayLike | None
    b_k: ArrayLike | None
    b_v: ArrayLike | None
    b_o: ArrayLike | None


class DotProductForward(DotProduct, Shared, total=False): ...


class CosineForward(Cosine, Shared, total=False): ...


class GaussianForward(Gaussian, Shared, total=False): ...


class AdditiveForward(Additive, Shared, total=False): ...


class MultiHeadForward(MultiHead, HeadsShared, total=False): ...


class DotProductBackward(DotProduct, Backward, Scaled, total=False): ...


class CosineBackward(Cosine, Backward, Scaled, total=False): ...


class GaussianBackward(Gaussian, Backward, total=False): ...


class AdditiveBackward(Additive, Backward, total=False): ...


class MultiHeadBackward(MultiHead, HeadsShared, Saved, Chain, Scaled, total=False): ...


class DotProductScores(DotProduct, Scores, total=False): ...


class CosineScores(Cosine, Scores, total=False): ...


class GaussianScores(Gaussian, Scores, total=False): ...


class AdditiveScores(Additive, Scores, total=False): ...


class DotProductScoresBackward(DotProductScores, Scaled, total=False): ...


class CosineScoresBackward(CosineScores, Scaled, total=False): ...


OF_SCORE: dict[str, Any] = {
    "dot_product": DotProduct,
    "cosine": Cosine,
    "gaussian": Gaussian,
    "additive": Additive,
    "multi_head": MultiHead,
}

# ---- at run time ---------------------------------------------------------------------------------


class Option(NamedTuple):
    """What there is to say of an option."""

    default: Any
    type: str  # as numpydoc has it
    doc: str
    taken_by: tuple[str, ...]  # of "forward", "backward", "layer", "scores", "scaled"


def _option(name: str, default: Any, taken_by: tuple[str, ...]) -> Option:
    head, _, lines = PARAGRAPHS[name].partition("\n")
    return Option(default, head.partition(" : ")[2], dedent(lines.rstrip("\n")), taken_by)


OPTIONS = {name: _option(name, *row) for name, row in _core.OPTIONS.items()}

_F = TypeVar("_F", bound=Callable[..., Any])


def own_options(function: str) -> dict[str, tuple[Any, Any]]:
    """Those of the score that the function of this name has: their defaults and types."""
    for score, types in OF_SCORE.items():
        if function.startswith(f"{score}_"):
            defaults, annotations = _core.ATTENTIONS[score][2], types.__annotations__
            return {
                name: (x, annotations[name]) for name, x in defaults.items() if name in annotations
            }
    return {}


def as_flag(name: str, value: object) -> bool:
    """The value if it is a bool: Python's, NumPy's, or a 0-d array of one."""
    if isinstance(value, (bool, np.bool_)):  # faster than a union
        return bool(value)
    if isinstance(value, np.ndarray) and value.dtype == bool and value.ndim == 0:
        return bool(value)
    raise TypeError(f"{name} must be a bool, got {type_name(value)}")


def type_name(value: object) -> str:
    """As C's messages have it: ``list``, ``numpy.ndarray``."""
    kind = type(value)
    home = kind.__module__
    return kind.__name__ if home == "builtins" else f"{home}.{kind.__name__}"


class Taken:
    """The options that some functions take, told by their types.

    types: names and annotations, as of one of the classes above; voice: how their module speaks;
    changed: the options of which these functions have something else to say than the table;
    behind: their own keywords that come after the options; notes: what a hint adds to an option's
    name, where it is not what it adds elsewhere.
    """

    def __init__(
        self,
        types: Mapping[str, Any],
        voice: Voice,
        changed: Mapping[str, Option] | None = None,
        behind: tuple[str, ...] = (),
        notes: Mapping[str, str] | None = None,
    ) -> None:
        table = {**OPTIONS, **(changed or {})}
        self.options = {name: option for name, option in table.items() if name in types}
        self.defaults = {name: option.default for name, option in self.options.items()}
        self._behind, self._notes = behind, notes
        self._own: dict[str, set[str]] = {}  # written out, by function; of methods what all do
        self._types = types
        # As a docstring has them; in a backward, those of its forward are told there.
        backward = any("forward" not in option.taken_by for option in self.options.values())
        self._words = {}
        for name, option in self.options.items():
            of_forward = backward and "forward" in option.taken_by
            doc = "Same as in the forward pass." if of_forward else option.doc
            self._words[name] = f"{name} : {option.type}\n{indent(doc, ' ' * 4)}"
        self._voice = voice

    def by(self, function: str) -> dict[str, Any]:
        """What the function of this name takes, its score's own first, and their defaults."""
        own = {name: default for name, (default, _) in own_options(function).items()}
        shared = dict(self.defaults)
        if "scale" not in own:
            shared.pop("return_grad_scale", None)
        return own | shared

    def completed(self, function: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """All that the function takes: what is given, and the defaults of the rest."""
        self.check(function, given)
        return {**self.by(function), **given}

    def check(self, function: str, given: Mapping[str, Any]) -> None:
        """Refuse what the function does not take, and flags that are no bools."""
        taken = self.by(function)
        for name, value in given.items():
            if name not in taken:
                hint = self._hint(function, name)
                raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
            if isinstance(taken[name], bool):
                as_flag(name, value)

    def _hint(self, function: str, name: str) -> str:
        """What a function of this name has in the place of another library's argument."""
        named = getattr(_core, function, None)  # None: a function of Python's own
        own = set(inspect.signature(named).parameters) - OPTIONS.keys() if named else set()
        taken = own | self._own.get(function, set()) | self.by(function).keys()
        return hint(name, taken, self._notes)

    def _parameters(self, function: str) -> list[Parameter]:
        """Those of ``**options``."""
        types = {**self._types, **{name: type for name, (_, type) in own_options(function).items()}}
        texts = {name: getattr(type, "__forward_arg__", type) for name, type in types.items()}
        return [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=texts[name])
            for name, default in self.by(function).items()
        ]

    def spelled_out(self, function: _F) -> _F:
        """The function itself; what it shows has each option, and what its twin in C says."""
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        names, function_name = {p.name for p in own}, function.__name__
        self._own[function_name] = names & self._own.get(function_name, names)
        own, last = ([p for p in own if (p.name in self._behind) is b] for b in (False, True))
        rest = [] if len(names) == len(signature.parameters) else self._parameters(function_name)
        rest = [p for p in rest if p.name not in names]
        shown = signature.replace(parameters=[*own, *rest, *last])
        vars(function)["__signature__"] = shown
        told = (name for name in shown.parameters if name != "self")
        function.__doc__ = complete(function, told, self._words, self._voice)
        return function
