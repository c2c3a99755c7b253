"""Two nodes of autograd's graph for every function: a call into C forward, and one backward.

C has the first derivatives of float32. What else is asked for is computed by torch's operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.compiler import is_compiling

from . import composite, operators
from .calls import (
    Call,
    Kind,
    at_once,
    backward,
    call_of,
    forward,
    go_back,
    keep,
    recorded,
    take_learned,
)
from .rules import (
    NO_SECOND_DERIVATIVES,
    check_inputs,
    is_batch,
    may_stand_for_more,
    outside_transforms,
)
from .tensors import snapshot, split_options


def run(
    function: str,
    inputs: dict[str, Any],
    options: dict[str, Any],
    returned: tuple[str, ...],
    otherwise: Callable[..., Any] | None = None,
) -> Any:
    """Run attnext's function of this name on tensors.

    inputs: those that gradients flow to, by argument ("x[0]", "x[1]": a list x); options: its
    other arguments; returned: its results, the optional ones among them that are asked for.
    otherwise: called in the place of `run_slowly`.
    """
    if not (is_compiling() or may_stand_for_more()):
        results: Any = at_once(function, inputs, options, returned, _record)
        if results is not NotImplemented:
            return results[0] if len(returned) == 1 and type(results) is tuple else results
    return (otherwise or run_slowly)(function, inputs, options, returned)


def run_slowly(
    function: str, inputs: dict[str, Any], options: dict[str, Any], returned: tuple[str, ...]
) -> Any:
    """The same, whatever the tensors are, and with the words for what is wrong."""
    in_graph = operators.are_wanted()
    take_learned(inputs, options)
    inputs, doubles = check_inputs(inputs)
    if in_graph:
        options = operators.as_tensors(options)
    more, rest = split_options(options)
    watched = torch.is_grad_enabled() and any([x.requires_grad for x in inputs.values()])
    made = returned
    if watched or in_graph:
        made = recorded(function, returned)
        rest = snapshot(rest)
    described = function, (*inputs, *more), rest, made, len(returned)
    tensors = (*inputs.values(), *more.values())
    results: Sequence[Tensor]
    if doubles or operators.stand_for(tensors):
        results = composite.run(described, tensors)
    elif in_graph:
        results = operators.run(described, tensors)
    else:
        call = call_of(*described)
        with outside_transforms():
            results = forward(call, tensors)
            if watched:
                results = _record(*call, keep(call, tensors, results), results, *tensors)
    return results[0] if len(returned) == 1 else tuple(results[: len(returned)])


_NO_TENSORS = None, None, None, None  # kind, options, kept, made


class _Node(Function):
    @staticmethod
    def forward(
        ctx: Any,
        kind: Kind,
        options: Mapping[str, Any],
        kept: tuple[Tensor, ...],
        made: tuple[Tensor, ...],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.materialize_grads = False
        ctx.call = kind, options
        ctx.to_save = kept
        return made[: kind.returned]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        kind, options = ctx.call
        saved, needed = ctx.saved_tensors, ctx.needs_input_grad
        if not torch.is_grad_enabled():
            made: Any = go_back(kind, options, saved, grads, needed)
            if made is not NotImplemented:
                return made  # type: ignore[no-any-return]
        call, needed = Call(kind, options), needed[4:]
        for x in grads:
            if x is not None and is_batch(x):
                made = composite.gradients(call, saved, grads, needed, False)
                return *_NO_TENSORS, *made
        if not torch.is_grad_enabled():
            return *_NO_TENSORS, *backward(call, saved, grads, needed)
        apply: Any = _Gradients.apply
        made = iter(apply(call, needed, *saved, *grads))
        return *_NO_TENSORS, *[next(made) if need else None for need in needed]


# What Function.apply comes to, which first looks for transforms; those are refused before.
_record: Callable[..., tuple[Tensor, ...]] = super(Function, _Node).apply
# What the engine calls comes to, which first looks for another name of it.
_on_its_way_back: Any = _Node._backward_cls
_on_its_way_back.apply = _Node.backward


class _Gradients(Function):
    """The backward of a node, as a node of its own, from which second derivatives flow."""

    @staticmethod
    def forward(ctx: Any, call: Call, needed: Sequence[bool], *tensors: Tensor | None) -> Any:
        ctx.set_materialize_grads(False)
        ctx.call, ctx.needed = call, needed
        ctx.save_for_backward(*tensors)
        saved: Any = tensors[: -call.returned]
        return tuple(compress(backward(call, saved, tensors[-call.returned :], needed), needed))

    @staticmethod
    def backward(ctx: Any, *flow: Tensor | None) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
        tensors = ctx.saved_tensors
        parts = tensors[: -call.returned], tensors[-call.returned :]
        return None, None, *composite.second_gradients(call, *parts, ctx.needed, flow)


class _FirstDerivatives(Function):
    """Gradients, unchanged; to differentiate them again is an error."""

    @staticmethod
    def forward(ctx: Any, count: int, *gradients_and_sources: Tensor | None) -> Any:
        return gradients_and_sources[:count]

    @staticmethod
    def backward(ctx: Any, *grad_gradients: Tensor) -> Any:
        raise RuntimeError(NO_SECOND_DERIVATIVES)


def first_derivatives(
    gradients: list[Tensor | None], *sources: Tensor | None
) -> Iterable[Tensor | None]:
    """What a backward returns: gradients which, under create_graph=True, say that they have none.

    sources: what they were made of. Autograd must know, or it never asks on its way to those, and
    a loss made of gradients is quietly wrong. (once_differentiable of torch knows the gradients
    that flow in alone.)
    """
    if not torch.is_grad_enabled():
        return gradients
    present = [x for x in gradients if x is not None]
    apply: Any = _FirstDerivatives.apply
    guarded = iter(apply(len(present), *present, *sources))
    return [None if x is None else next(guarded) for x in gradients]
