"""Two nodes of autograd's graph for every function: a call into C forward, and one backward.

C has the first derivatives of float32. What else is asked for is computed by torch's operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress, takewhile
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.compiler import is_compiling
from torch.overrides import handle_torch_function, has_torch_function

from attnext._options import type_name

from . import composite, operators
from .calls import (
    RULES,
    Call,
    Described,
    Kind,
    at_once,
    backward,
    call_of,
    forward,
    go_back,
    keep,
    recorded,
    take_learned,
    that_ask_for,
)
from .rules import (
    NO_SECOND_DERIVATIVES,
    check_inputs,
    is_batch,
    is_dispatched,
    may_stand_for_more,
    outside_transforms,
)
from .tensors import by_argument, snapshot, split_options

_NOTHING = (None,)  # has_torch_function says of it whether a TorchFunctionMode is active


def run(
    function: str, inputs: dict[str, Any], options: dict[str, Any], returned: tuple[str, ...]
) -> Any:
    """Run attnext's function of this name on tensors.

    inputs: those that gradients flow to, by argument ("x[0]", "x[1]": a list x); options: its
    other arguments; returned: its results, the optional ones among them that are asked for.
    """
    return recorded_results(compute(function, inputs, options, returned), returned)


def compute(
    function: str,
    inputs: dict[str, Any],
    options: dict[str, Any],
    returned: tuple[str, ...],
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Any:
    """Return what `run` computes, before autograd records it: see `recorded_results`.

    prepare: makes inputs what the function takes, where C has not served them as they are.
    """
    if not (is_compiling() or may_stand_for_more() or has_torch_function(_NOTHING)):
        made = at_once(function, inputs, options, returned)
        if made is not NotImplemented:
            return made
    given = (*inputs.values(), *options.values())
    if has_torch_function(given):
        return _overridden(function, inputs, options, returned, given)
    return _run_slowly(function, inputs if prepare is None else prepare(inputs), options, returned)


def recorded_results(made: Any, returned: tuple[str, ...]) -> Any:
    """Return the results of a call. A list has the arguments of the node that records it.

    This is a separate step because it may run hooks of the caller or of torch.utils.checkpoint,
    whose exceptions are not about the arguments of the call.
    """
    results = made
    if type(made) is list:
        with outside_transforms():
            results = _record(*made)
    return results[0] if len(returned) == 1 and type(results) is tuple else results


def _overridden(
    function: str,
    inputs: dict[str, Any],
    options: dict[str, Any],
    returned: tuple[str, ...],
    given: tuple[Any, ...],
) -> Any:
    """Let the __torch_function__ of an argument or of a mode take over the public function."""
    from attnext import torch as attnext_torch

    public = getattr(attnext_torch, function)
    arguments = {**by_argument(tuple(inputs), inputs.values()), **options}
    arguments |= that_ask_for(function, returned)
    code = public.__code__
    names = takewhile(arguments.__contains__, code.co_varnames[: code.co_argcount])
    first = [arguments.pop(name) for name in names]
    return handle_torch_function(public, given, *first, **arguments)


def _run_slowly(
    function: str, inputs: dict[str, Any], options: dict[str, Any], returned: tuple[str, ...]
) -> Any:
    """Do what `compute` does, whatever the tensors are, and say what is wrong with them."""
    in_graph = operators.are_wanted()
    take_learned(inputs, options)
    inputs, doubles = check_inputs(inputs)
    dispatched = any([is_dispatched(x) for x in (*inputs.values(), *options.values())])
    by_operator = in_graph or dispatched
    if by_operator:
        options = operators.as_tensors(options)
    more, rest = split_options(options, any([x.is_meta for x in inputs.values()]))
    watched = torch.is_grad_enabled() and any([x.requires_grad for x in inputs.values()])
    made = returned
    if watched or by_operator:
        made = returned if doubles else recorded(function, returned)
        rest = snapshot(rest)
    described = function, (*inputs, *more), rest, made, len(returned)
    tensors = (*inputs.values(), *more.values())
    results: Sequence[Tensor]
    if (doubles and not dispatched) or operators.stand_for(tensors):
        results = composite.run(described, tensors)
    elif dispatched and not in_graph:
        results = _run_dispatched(described, tensors)
    elif in_graph:
        results = operators.run(described, tensors)
    else:
        call = call_of(*described)
        with outside_transforms():
            results = forward(call, tensors)
        if watched:
            return [*call, keep(call, tensors, results), results, *tensors]
    return tuple(results[: len(returned)])


def _run_dispatched(described: Described, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Run the operator; an error gets a note that names the tensors of other classes."""
    function, names, options, *_ = described
    RULES[function].check({**options, **by_argument(names, tensors)})
    try:
        return operators.run(described, tensors)
    except Exception as error:
        for name, x in zip(names, tensors, strict=True):
            if is_dispatched(x) and not x.is_meta:
                error.add_note(
                    f"raised when attnext's {function} was called with {name}, a {type_name(x)}: "
                    "its class decides whether it runs this operator"
                )
        raise


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
