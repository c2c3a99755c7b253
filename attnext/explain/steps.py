"""Collect the arrays and texts of steps, and build a trace from them."""

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

Arguments = dict[str, Any]  # all arguments of a call by name, defaults included

# A result: its name, the float32 array, the float64 array, and the error bound.
Compared = tuple[str, Any, NDArray[np.float64], NDArray[np.float64]]

PAIRS = 2**22  # most query-key pairs: every step is kept and takes 8 bytes per pair


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
        """Add the step `key`, and fill these numbers into its texts.

        masked broadcasts to values. If values are only a part of the array, shape and summary
        describe the whole array. words: the key of alternative texts in variants.txt.
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
        """Compare the results of the fast function with the steps, and return the trace."""
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
    """Return the names of ndim leading axes."""
    return ("batch", *("group",) * (ndim - 2), "head") if ndim > 1 else ("batch",) * ndim


def check_size(pairs: tuple[int, ...]) -> None:
    """Raise ValueError if there are more than PAIRS query-key pairs."""
    if (size := math.prod(pairs)) > PAIRS:
        raise ValueError(
            f"queries and keys form {size} pairs, expected at most {PAIRS} because every step is "
            "kept in memory: pass fewer queries or keys"
        )


def as_float64(x: Any) -> NDArray[np.float64]:
    """Return x rounded to float32, as the fast function reads it, in float64."""
    with np.errstate(all="ignore"):  # numbers beyond float32 become inf, as in the fast function
        return np.asarray(x).astype(np.float32).astype(np.float64)


def call_text(function: str, arguments: Arguments, shown: Collection[str] = ()) -> str:
    """Return the call as text, with the shapes of its arrays and without default arguments.

    shown: names that are always included, because this call has other defaults for them.
    """
    defaults = _defaults(function)
    given = {
        name: x
        for name, x in arguments.items()
        if name in shown or not is_default(x, defaults.get(name))
    }
    return f"{function}({', '.join(_argument(name, x) for name, x in given.items())})"


def _defaults(function: str) -> dict[str, Any]:
    """Return the default of each argument. A layer has the options of the attention functions."""
    twin = vars(_core).get(function)
    if twin is None or isinstance(twin, type):
        return {name: option.default for name, option in OPTIONS.items()}
    return {p.name: p.default for p in inspect.signature(twin).parameters.values()}


def is_default(x: Any, default: Any) -> bool:
    """True if an argument equals its default or is None."""
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
