"""Steps are collected here: numbers come in, words are looked up."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnext import _core
from attnext._options import OPTIONS
from attnext.explain.accuracy import largest_difference
from attnext.explain.trace import Step, Summary, Trace, summarise
from attnext.explain.words import AXES, STEPS, TITLES, VARIANTS, check_lang, phrase
from attnext.reference.arguments import shown

Arguments = dict[str, Any]  # of a call, by name, those that were not given too

# A result: its name, the fast function's, that of the steps, and how far they may be apart.
Compared = tuple[str, Any, NDArray[np.float64], NDArray[np.float64]]

PAIRS = 2**22  # of query and key, at most: every step is kept, and each takes 8 bytes a pair


class Steps:
    """The steps so far of one explanation, in one language."""

    def __init__(self, function: str, lang: str) -> None:
        check_lang(lang)
        self.function, self.lang = function, lang
        self.steps: list[Step] = []

    def add(
        self,
        key: str,
        values: NDArray[Any],
        axes: tuple[str, ...],
        masked: NDArray[np.bool_] | None = None,
        *,
        shape: tuple[int, ...] | None = None,
        summary: Summary | None = None,
        words: str | None = None,
        **numbers: object,
    ) -> None:
        """Add the step `key` of the table of words, and fill these numbers into its words.

        masked broadcasts to values. shape and summary, where values are but a part, are the
        whole's. words: which of the variants of its words, if it is not its own.
        """
        if masked is not None:
            masked = np.broadcast_to(masked, values.shape)
            masked = masked if masked.any() else None
        if summary is None:
            summary = summarise(values if masked is None else values[~masked])
        said = STEPS[key] if words is None else VARIANTS[words]
        name, note = said.en if self.lang == "en" else said.zh
        self.steps.append(
            Step(
                key=key,
                name=name.format(**numbers),
                formula=said.formula.format(**numbers),
                note=note.format(**numbers),
                shape=values.shape if shape is None else shape,
                values=values,
                axes=tuple(AXES[axis][self.lang] for axis in axes),
                masked=masked,
                summary=summary,
                lang=self.lang,
            )
        )

    def trace(
        self,
        arguments: Arguments,
        output: Any,
        weights: NDArray[Any],
        compared: list[Compared],
    ) -> Trace:
        """The explanation, once what the fast function returned was held against its steps."""
        difference = max(largest_difference(self.function, *each) for each in compared)
        return Trace(
            title=TITLES[self.function][self.lang],
            call=call_text(self.function, arguments),
            steps=tuple(self.steps),
            output=output,
            weights=weights,
            difference=difference,
            agreement=phrase("agreement", self.lang, function=self.function, difference=difference),
            lang=self.lang,
        )


def leading_axes(ndim: int) -> tuple[str, ...]:
    """What so many leading axes are called."""
    return ("batch", *("group",) * (ndim - 2), "head") if ndim > 1 else ("batch",) * ndim


def check_size(pairs: tuple[int, ...]) -> None:
    """Explanations are for examples that can be looked at."""
    if (size := math.prod(pairs)) > PAIRS:
        raise ValueError(
            f"queries and keys make {size} pairs, expected {PAIRS} at most because every step is "
            "kept: explain a part of them"
        )


def as_float64(x: Any) -> NDArray[np.float64]:
    """The numbers that the fast function saw: rounded to float32."""
    with np.errstate(all="ignore"):  # too large for float32 is inf, there as here
        return np.asarray(x).astype(np.float32).astype(np.float64)


def call_text(function: str, arguments: Arguments, shown: Collection[str] = ()) -> str:
    """The call: numbers as they are, arrays as shapes; what is as by default is left out.

    shown: what is said in any case, because it has another default in this call.
    """
    defaults = _defaults(function)
    given = {
        name: x
        for name, x in arguments.items()
        if name in shown or not is_default(x, defaults.get(name))
    }
    return f"{function}({', '.join(_argument(name, x) for name, x in given.items())})"


def _defaults(function: str) -> dict[str, Any]:
    """Of its arguments; those of a layer's call are those of all attentions."""
    twin = vars(_core).get(function)
    if twin is None or isinstance(twin, type):
        return {name: option.default for name, option in OPTIONS.items()}
    return {p.name: p.default for p in inspect.signature(twin).parameters.values()}


def is_default(x: Any, default: Any) -> bool:
    """Is an argument what it is when it is not given?"""
    return x is None or (isinstance(x, type(default)) and bool(x == default))


def _argument(name: str, x: Any) -> str:
    if isinstance(x, bool | int | float | str | tuple):
        return f"{name}={shown(x)}"
    array = np.asarray(x)
    if array.size <= 8 and array.dtype.kind in "iu":
        return f"{name}={array.tolist()}"
    if array.ndim == 0:
        return f"{name}={array[()]:.6g}"
    return f"{name} {array.shape}"
