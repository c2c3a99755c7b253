"""The functions as operators of torch, for whatever goes through torch's dispatcher.

torch.compile and torch.jit.trace put an operator into their graphs as it is. A tensor subclass with
a __torch_dispatch__, such as FakeTensor, is given the operator to run, and tensors on device meta
get the shapes of the results. Two operators, forward and backward, are enough for all functions: a
call goes along as its tensors, a text and its numbers.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import composite
from .calls import Call, Described, backward, call_of, forward, keep, shapes
from .graphs import constant
from .rules import may_stand_for_more, stand_for_more

# Answered while the graph is made.
_may_stand_for_more = constant(may_stand_for_more)


def is_compiling() -> bool:
    """Is this call being traced, to become part of a compiled graph?"""
    return torch.compiler.is_compiling()


def are_wanted() -> bool:
    """The same, or is it recorded by torch.jit.trace?"""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def stand_for(tensors: Sequence[Tensor]) -> bool:
    """What `stand_for_more` says; a graph does not show which tensors are more."""
    return _may_stand_for_more() if is_compiling() else stand_for_more(tensors)


def as_tensors(options: Mapping[str, Any]) -> dict[str, Any]:
    """Make tensors of the arrays and lists among the options, for a graph knows no others."""
    return {
        name: torch.as_tensor(x, device="cpu") if _is_array(x) and name != "window" else x
        for name, x in options.items()
    }


def _is_array(x: Any) -> bool:
    return isinstance(x, (np.ndarray, list))


def run(described: Described, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The results, by an operator that stays whole in a graph."""
    results: Sequence[Tensor] = _forward(list(tensors), *_encoded(described))
    return results


# ---- a call as text and numbers ------------------------------------------------------------------
#
# function|names|results|options: `name=literal`, or `name:` and i, f or a count of i's for what is
# in the lists of integers and floats, where a number may be one that a graph leaves open. The lists
# have something before it, for torch takes an empty one for a list of tensors.


def _encoded(described: Described) -> tuple[str, list[int], list[Any]]:
    function, names, given, made, returned = described
    options: list[str] = []
    integers: list[int] = [returned]
    floats: list[Any] = [0.0]
    for name, x in given.items():
        if x is None or isinstance(x, (bool, str)):
            options.append(f"{name}={x!r}")
        elif isinstance(x, (tuple, list)):
            options.append(f"{name}:{len(x)}")
            integers.extend(x)
        elif isinstance(x, (float, np.floating, torch.SymFloat)):
            options.append(f"{name}:f")
            floats.append(x)
        elif x >= 2**63:  # a seed
            options.append(f"{name}={x!r}")
        else:
            options.append(f"{name}:i")
            integers.append(x)
    fields = [function, " ".join(names), " ".join(made)]
    return "|".join(fields + options), integers, floats


def _decoded(text: str, integers: Sequence[int], floats: Sequence[float]) -> Call:
    function, names, made, options = _parsed(text)
    i, f, values = iter(integers[1:]), iter(floats[1:]), {}
    for name, kind, literal in options:
        if kind == "=":
            values[name] = literal
        elif literal == "f":
            values[name] = next(f)
        else:
            values[name] = (
                next(i) if literal == "i" else tuple(next(i) for _ in range(int(literal)))
            )
    return call_of(function, names, values, made, integers[0])


@cache
def _parsed(text: str) -> tuple[str, tuple[str, ...], tuple[str, ...], list[tuple[Any, ...]]]:
    function, names, made, *options = text.split("|")
    parsed: list[tuple[Any, ...]] = []
    for option in options:
        name, kind, literal = option.partition("=" if "=" in option else ":")
        parsed.append((name, kind, literal_eval(literal) if kind == "=" else literal))
    return function, tuple(names.split()), tuple(made.split()), parsed


# ---- the operators -------------------------------------------------------------------------------

_SCHEMAS = (
    "(Tensor[] tensors, str call, SymInt[] integers, float[] floats) -> Tensor[]",
    "(Tensor[] saved, Tensor[] grads, bool[] flows, bool[] needed, str call, SymInt[] integers, "
    "float[] floats) -> Tensor[]",
)


@torch.library.custom_op("attnext::forward", mutates_args=(), schema=_SCHEMAS[0])
def _forward(tensors: Sequence[Tensor], *call: Any) -> list[Tensor]:
    decoded = _decoded(*call)
    if tensors[0].dtype is torch.float64:
        return composite.results(decoded, tensors, decoded.made)
    return list(forward(decoded, tensors))


@_forward.register_fake
def _(tensors: Sequence[Tensor], *call: Any) -> list[Tensor]:
    like = tensors[0]
    return [like.new_empty(shape) for shape in shapes(_decoded(*call), tensors)]


@torch.library.custom_op("attnext::backward", mutates_args=(), schema=_SCHEMAS[1])
def _backward(
    saved: Sequence[Tensor],
    grads: Sequence[Tensor],
    flows: Sequence[bool],
    needed: Sequence[bool],
    *call: Any,
) -> list[Tensor]:
    given = iter(grads)
    flow = [next(given) if flows_in else None for flows_in in flows]
    # Where nothing flows into an extra, a graph may have zeros; C takes a shorter way without.
    flow[1:] = [x if x is not None and x.any() else None for x in flow[1:]]
    if any(x.dtype is torch.float64 for x in grads):  # C has float32; here autograd is off
        raise TypeError(
            "the inputs are float64 tensors of a class with a __torch_dispatch__, expected float32 "
            "or plain tensors for a backward pass"
        )
    d = backward(_decoded(*call), saved, flow, needed)
    return [x for x in d if x is not None]


@_backward.register_fake
def _(
    saved: Sequence[Tensor], grads: Sequence[Tensor], _: Any, needed: Sequence[bool], *call: Any
) -> list[Tensor]:
    kind = _decoded(*call).kind
    known = dict(zip(kind.kept, saved, strict=True))
    wanted = [name for name, need in zip(kind.names, needed, strict=True) if need]
    # An input that is not kept has the shape of the one result.
    like = [known.get(name, grads[0]) for name in wanted]
    return [x.new_empty(x.shape) for x in like]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, *ctx.call = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*keep(_decoded(*ctx.call), tensors, output))


def _go_back(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    needed = ctx.needs_input_grad[0]
    flows = [x is not None for x in grads]
    present = [x for x in grads if x is not None]
    made = iter(_backward(list(ctx.saved_tensors), present, flows, needed, *ctx.call))
    return [next(made) if need else None for need in needed], None, None, None


def _setup_again(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    saved, grads, ctx.flows, ctx.needed, *ctx.call = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*saved, *grads)


def _go_back_again(ctx: Any, flow: Sequence[Tensor | None]) -> tuple[Any, ...]:
    saved = ctx.saved_tensors[: len(ctx.saved_tensors) - sum(ctx.flows)]
    given = iter(ctx.saved_tensors[len(saved) :])
    grads = [next(given) if flows_in else None for flows_in in ctx.flows]
    call = _decoded(*ctx.call)
    d = composite.second_gradients(call, saved, grads, ctx.needed, flow)
    of_grads = compress(d[len(saved) :], ctx.flows)
    return list(d[: len(saved)]), list(of_grads), None, None, None, None, None


_forward.register_autograd(_go_back, setup_context=_setup_context)
_backward.register_autograd(_go_back_again, setup_context=_setup_again)
