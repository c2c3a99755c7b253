"""The call that a view shows, its arrays, and the options that have sliders."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnext import explain
from attnext._labels import as_labels
from attnext.explain.steps import call_text
from attnext.explain.trace import Trace
from attnext.explain.words import check_lang
from attnext.kernel_regression.kernels import kernel_as_attention, nadaraya_watson

Arguments = dict[str, Any]

# The arrays that are sent to the page. All other arrays stay in the kernel.
ARRAYS = ("queries", "keys", "values", "w_v", "x", "x_train", "y_train")
CONTROLS = (
    *("scale", "sigma", "kernel", "valid_lens", "causal", "window", "softcap", "dropout_p"),
)
NUMBERS = ("scale", "sigma", "w", "softcap", "dropout_p", "seed")  # options of one number each
_REGRESSION = {"en": "Nadaraya-Watson kernel regression", "zh": "Nadaraya-Watson核回归"}
FIXED = (
    "weights",
    "output",
    "lse",
    "dropout_mask",
)  # arguments that are valid for one call only: no sliders


@dataclass(frozen=True)
class Picture:
    """A call that can be computed again with other options."""

    function: str  # of attnext.explain, or nadaraya_watson
    arguments: Arguments  # the given arguments by name
    lang: str
    queries: tuple[str, ...] = ()  # labels
    keys: tuple[str, ...] = ()

    def trace(self, options: Mapping[str, Any] | None = None, lang: str | None = None) -> Trace:
        """Return the steps, with these options instead of the given ones."""
        given = {**self.arguments, **(options or {})}
        made = _explain(self.function, given, lang or self.lang)
        return made.with_labels(queries=self.queries or None, keys=self.keys or None)

    def with_labels(self, queries: Sequence[str] | None, keys: Sequence[str] | None) -> Picture:
        """Return the picture with labels for queries and keys."""
        M, N = (1, *self.trace().weights.shape)[-2:]
        return replace(
            self,
            queries=tuple(as_labels("queries", queries, M, "query")),
            keys=tuple(as_labels("keys", keys, N, "key")),
        )

    @property
    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the arrays that are sent to the page, as float32."""
        given = dict(self.arguments)
        if (attn := given.get("attn")) is not None and hasattr(attn, "w_v"):
            given["w_v"] = attn.w_v
        found = {name: given[name] for name in ARRAYS if given.get(name) is not None}
        arrays = {name: _plain(x) for name, x in found.items()}
        return {name: x for name, x in arrays.items() if x is not None}

    @property
    def options(self) -> Arguments:
        """Return the initial values of the sliders as numbers, lists and strings."""
        given = self.arguments
        found: Arguments = {
            name: float(np.asarray(given[name]).reshape(())) if name != "seed" else int(given[name])
            for name in NUMBERS
            if given.get(name) is not None and np.size(given[name]) == 1
        }
        if "scale" not in found and getattr(given.get("attn"), "scale", None) is not None:
            found["scale"] = float(given["attn"].scale)
        if given.get("valid_lens") is not None:
            found["valid_lens"] = np.asarray(given["valid_lens"]).tolist()
        if given.get("window") is not None:
            found["window"] = [int(side) for side in given["window"]]
        if given.get("causal"):
            found["causal"] = True
        return found | ({"kernel": given["kernel"]} if "kernel" in given else {})

    @property
    def controls(self) -> list[str]:
        """Return the names of the options that have a slider."""
        if any(self.arguments.get(name) is not None for name in FIXED):
            return []
        taken = {*inspect.signature(_callable(self.function)).parameters}
        if self.function == "layer":
            taken &= _of_layer(self.arguments)
        if np.size(self.arguments.get("scale") or 0) != 1:
            taken.discard("scale")  # one for each head
        return [name for name in CONTROLS if name in taken]


def picture(function: Any, args: Sequence[Any], given: Mapping[str, Any], lang: str) -> Picture:
    """Return the picture of a call, given by name, function or layer."""
    check_lang(lang)
    name = function if isinstance(function, str) else getattr(function, "__name__", "")
    if name in (*explain.__all__, "nadaraya_watson") and name not in ("Step", "Trace"):
        args = tuple(args)
    elif isinstance(function, str) or inspect.isroutine(function) or inspect.isclass(function):
        names = ", ".join([n for n in explain.__all__ if n[0].islower()] + ["nadaraya_watson"])
        raise ValueError(f"function is {name!r}, expected a layer or one of: {names}")
    else:
        name, args = "layer", (function, *args)
    bound = inspect.signature(_callable(name)).bind(*args, **given)
    return Picture(name, dict(bound.arguments), lang)


def _callable(function: str) -> Callable[..., Any]:
    """Return the function that has the signature of the call."""
    if function == "nadaraya_watson":
        return nadaraya_watson
    found: Callable[..., Any] = getattr(explain, function)
    return found


def _explain(function: str, given: Arguments, lang: str) -> Trace:
    if function != "nadaraya_watson":
        trace: Trace = getattr(explain, function)(**given, lang=lang)
        return trace
    given = {name: x for name, x in given.items() if name != "return_weights" and x is not None}
    nadaraya_watson(**given)  # its checks are the ones for these arguments
    x, x_train, y_train = (np.asarray(given[n], np.float32) for n in ARRAYS[-3:])
    sigma, kernel = given.get("sigma", 1.0), given.get("kernel", "gaussian")
    call = kernel_as_attention(x, x_train, y_train, sigma, kernel)
    empty_rows = given.get("empty_rows", "uniform")
    trace = explain.gaussian_attention(**call, empty_rows=empty_rows, lang=lang)
    return replace(trace, title=_REGRESSION[lang], call=call_text("nadaraya_watson", given))


def _of_layer(arguments: Arguments) -> set[str]:
    """Return the options with a slider that the call of this layer takes."""
    names = {kind.__name__ for kind in type(arguments["attn"]).__mro__}
    if "NWKernelRegression" in names:
        return set()
    taken = {"causal", "window", "softcap"}
    if "DotProductAttention" in names:
        taken.add("scale")
    return taken | ({"valid_lens"} if arguments.get("values") is not None else set())


def _plain(x: Any) -> np.ndarray[Any, Any] | None:
    """Return x as a float32 array, or None if it is not an array, for example a Memory."""
    x = x.detach() if hasattr(x, "detach") else x
    try:
        return np.ascontiguousarray(x, np.float32)
    except (TypeError, ValueError):
        return None
