"""One node of autograd's graph for all attentions: one call into C forward, one backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from torch import Tensor
from torch.autograd import Function

from attnext import _core
from attnext._gradients import SHARED, by_name
from attnext._options import OPTIONS, Dropout, Extras, Masks, Scores, Taken

from .tensors import (
    apply,
    check_input,
    first_derivatives,
    is_recorded,
    snapshot,
    split_options,
    to_array,
    to_arrays,
    to_tensor,
    zeros_unless,
)

# What an attention returns: the output, or a tuple of the output and the extras asked for.
Attended: TypeAlias = Any


class Options(Scores, Masks, Dropout, Extras, total=False):
    """The options of all attentions. There is no `out`: autograd owns what it makes."""

    bias: Tensor | None  # inputs, to which gradients flow
    sink: Tensor | None


_TENSORS = {
    name: option._replace(type=option.type.replace("array_like", "Tensor or array_like"))
    for name, option in OPTIONS.items()
}
_INPUTS = {
    name: OPTIONS[name]._replace(type="Tensor, float32, optional") for name in ("bias", "sink")
}
TAKEN = Taken(Options.__annotations__, _TENSORS | _INPUTS)


class _Call(NamedTuple):
    """A call of an attention, apart from its tensors."""

    function: str  # its name in attnext
    names: tuple[str, ...]  # of the tensors, in the order in which they are passed along
    options: Mapping[str, Any]  # everything else
    returned: tuple[str, ...]  # "output", and "weights", "lse" if asked for
    recorded: bool  # a backward may follow


def attend(
    function: str, inputs: Mapping[str, Any], own: Mapping[str, Any], options: Options
) -> Attended:
    """Run attnext's function of this name on tensors.

    inputs: those that gradients flow to, by the names of the function's arguments; own: the
    other arguments that not all functions have.
    """
    TAKEN.check(function, options)
    rest = {**own, **options}
    wanted = [name for name in ("weights", "lse") if rest.pop(f"return_{name}", False)]
    for name in SHARED:
        x = rest.get(name)
        if x is not None and (name in _INPUTS or isinstance(x, Tensor)):  # a scale: a number mostly
            inputs = {**inputs, name: rest.pop(name)}
    tensors = {name: check_input(name, x) for name, x in inputs.items()}
    recorded = is_recorded(tensors.values())
    more, rest = split_options(rest)
    call = _Call(function, (*tensors, *more), rest, ("output", *wanted), recorded)
    return apply(_Attention, call, *tensors.values(), *more.values())


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> Attended:
        names = call.returned
        if call.recorded and "lse" not in names:  # it makes the backward cheaper
            names = (*names, "lse")
        result = getattr(_core, call.function)(
            **to_arrays(call.names, tensors),
            **call.options,
            return_weights="weights" in names,
            return_lse="lse" in names,
        )
        arrays = result if isinstance(result, tuple) else (result,)
        made = dict(zip(names, map(to_tensor, arrays), strict=True))
        if call.recorded:
            ctx.set_materialize_grads(False)
            ctx.call, ctx.made, ctx.options = call, tuple(made), snapshot(call.options)
            ctx.save_for_backward(*tensors, *made.values())
        outputs = tuple(made[name] for name in call.returned)
        return outputs if len(outputs) > 1 else outputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        # forward was: made = function(**tensors, **options); and the backward in C takes both
        saved = to_arrays((*call.names, *ctx.made), ctx.saved_tensors)
        grad = dict(zip(call.returned, grads, strict=True))
        extras = {
            f"grad_{name}": None if x is None else to_array(x)
            for name, x in grad.items()
            if name != "output"
        }
        needed = dict(zip(call.names, ctx.needs_input_grad[1:], strict=True))
        shared = [name for name in SHARED if needed.get(name)]
        d = getattr(_core, f"{call.function}_backward")(
            zeros_unless(grad["output"], saved["output"].shape),
            **saved,
            **ctx.options,
            **extras,
            **{f"return_grad_{name}": True for name in shared},
        )
        gradients = by_name(call.function, d, False, *shared)
        if "sigma" in saved:  # forward was: w = 1 / sigma
            gradients["sigma"] = -gradients["w"] / np.square(saved["sigma"], dtype=np.float64)
        for name in {"w", "sigma"} & saved.keys():  # from C comes a number
            with np.errstate(over="ignore"):  # to inf
                gradients[name] = np.full(saved[name].shape, gradients[name], np.float32)
        return None, *first_derivatives(
            to_tensor(gradients[name]) if needed[name] else None for name in call.names
        )
