"""attnext.torch: its layers in the place of d2l's, and autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnext
import attnext.torch

from .peer_torch import as_call, torch
from .peers import Call
from .problem import Problem


def call(problem: Problem, work: str, threads: int) -> Call:
    """Of a decoder's steps, with a memory. Without gradients in the forward alone."""
    torch.set_num_threads(threads)
    attnext.set_num_threads(threads)
    tensors = [torch.tensor(x) for x in problem.arrays]
    layer, parameters = layer_of(problem)
    function = stepwise if problem.case.steps else called
    inputs = tensors[: len(tensors) - len(parameters)] + parameters
    return as_call(function(problem, layer), inputs, torch.tensor(problem.grad_output), work)


def layer_of(problem: Problem) -> tuple[Any, list[Any]]:
    """The layer, or the function, and its parameters."""
    case = problem.case
    if case.score == "softmax":
        return attnext.torch.masked_softmax, []
    if case.score == "dot":
        return attnext.torch.DotProductAttention(), []
    layer: Any
    if case.score == "multi-head":
        layer = attnext.torch.MultiHeadAttention(case.D, case.D, case.D, case.D, case.heads)
        parameters = [layer.W_q.weight, layer.W_k.weight, layer.W_v.weight, layer.W_o.weight]
    else:
        layer = attnext.torch.AdditiveAttention(case.D, case.Dq or case.D, case.H)
        parameters = [layer.W_q.weight, layer.W_k.weight, layer.w_v.weight]
    layer.requires_grad_(False)
    for parameter, x in zip(parameters, problem.arrays[3:], strict=True):
        parameter.copy_(torch.tensor(x).reshape(parameter.shape))
    return layer, parameters


def called(problem: Problem, layer: Any) -> Callable[..., Any]:
    """One call; the parameters, which come behind the others, are the layer's own."""
    weights, options = problem.case.weights, dict(problem.options)
    if "mask" in options:
        options["mask"] = torch.tensor(options["mask"])
    if problem.case.score == "softmax":
        return lambda X: layer(X, **options)

    def attention(q: Any, k: Any, v: Any, *_: Any) -> Any:
        output = layer(q, k, v, need_weights=weights, **options)
        return (output, layer.attention_weights) if weights else output

    return attention


def stepwise(problem: Problem, layer: Any) -> Callable[..., Any]:
    """The queries one by one."""
    lens = problem.options["valid_lens"]

    def attention(q: Any, k: Any, v: Any, *_: Any) -> Any:
        memory = layer.memory(k, v, lens)
        steps = [layer(query, memory, need_weights=False) for query in q.split(1, dim=1)]
        return torch.cat(steps, dim=1)

    return attention
