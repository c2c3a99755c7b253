"""What the attentions share: their options, and how autograd goes back through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from attnext import _core
from attnext._gradients import by_name
from attnext._options import OPTIONS, Dropout, Extras, Masks, Taken

from .autograd import run
from .calls import RULES, Arrays, Flow, Rule, Shape
from .tensors import zeros_unless

# What an attention returns: the output, or a tuple of the output and the extras asked for.
Attended: TypeAlias = Any


class Options(Masks, Dropout, Extras, total=False):
    """The options of all attentions. There is no `out`: autograd owns what it makes."""

    bias: Tensor | None  # an input, to which a gradient flows


_TENSORS = {
    name: option._replace(type=option.type.replace("array_like", "Tensor or array_like"))
    for name, option in OPTIONS.items()
}
_BIAS = OPTIONS["bias"]._replace(type="Tensor, float32, optional")
TAKEN = Taken(Options.__annotations__, _TENSORS | {"bias": _BIAS})


def attend(
    function: str, inputs: dict[str, Any], own: dict[str, Any], options: Options
) -> Attended:
    """Run attnext's function of this name on tensors.

    inputs: those that gradients flow to, by the names of the function's arguments; own: the
    other arguments that not all functions have.
    """
    TAKEN.check(function, options)
    rest = {**own, **options}
    returned = ["output"]
    for name in ("weights", "lse"):
        if rest.pop(f"return_{name}", False):
            returned.append(name)
    if (bias := rest.pop("bias", None)) is not None:
        inputs["bias"] = bias
    return run(function, inputs, rest, tuple(returned))


# ---- backward ------------------------------------------------------------------------------------


def _gradients(
    function: str, saved: Arrays, options: Mapping[str, Any], flow: Flow, wanted: Sequence[str]
) -> Arrays:
    # forward was: made = function(**inputs, **options); and the backward in C takes both
    bias = "bias" in wanted
    d = getattr(_core, f"{function}_backward")(
        zeros_unless(flow["output"], saved["output"].shape),
        **saved,
        **options,
        grad_weights=flow.get("weights"),
        grad_lse=flow.get("lse"),
        return_grad_bias=bias,
    )
    return of_bandwidth(by_name(function, d, bias), saved)


def of_bandwidth(gradients: Arrays, saved: Arrays) -> Arrays:
    """From C comes that of w, a number: those of w or sigma in their shapes, where given."""
    if "sigma" in saved:  # forward was: w = 1 / sigma
        gradients["sigma"] = -gradients["w"] / np.square(saved["sigma"], dtype=np.float64)
    for name in {"w", "sigma"} & saved.keys():
        with np.errstate(over="ignore"):  # to inf
            gradients[name] = np.full(saved[name].shape, gradients[name], np.float32)
    return gradients


def _shapes(x: dict[str, Any]) -> dict[str, Shape]:
    rows = x["queries"].shape[:-1]
    return {
        "output": (*rows, x["values"].shape[-1]),
        "weights": (*rows, x["keys"].shape[-2]),
        "lse": rows,
    }


for _score in _core.SCORES:
    RULES[f"{_score}_attention"] = Rule(
        gradients=_gradients,
        shapes=_shapes,
        optional=("weights", "lse"),
        helpful=("lse",),
    )
