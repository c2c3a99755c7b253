"""PyTorch three ways: the book's (d2l's) layers in eager mode, SDPA, and the first compiled."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .peers import Call
from .problem import Problem

torch: Any = importlib.import_module("torch")
Tensor = Any


# ---- the book's code: heads are merged into the batch, so that all tensors have three axes ------


def masked_softmax(X: Tensor, valid_lens: Tensor | None, mask: Tensor | None) -> Tensor:
    """Softmax of X (B, M, N) after scores of pairs that take no part are set to -1e6."""
    if mask is not None:
        X = X.masked_fill(~mask, -1e6)
    if valid_lens is not None:
        rows = X.reshape(-1, X.shape[-1])
        lens = valid_lens.reshape(-1)
        if valid_lens.dim() == 1:
            lens = torch.repeat_interleave(valid_lens, X.shape[1])
        padding = torch.arange(X.shape[-1])[None, :] >= lens[:, None]
        if X.is_leaf and X.requires_grad:  # a leaf cannot be filled in place, as the book does
            rows = rows.masked_fill(padding, -1e6)
        else:
            rows[padding] = -1e6
        X = rows.reshape(X.shape)
    return torch.softmax(X, dim=-1)


def dot_scores(q: Tensor, k: Tensor) -> Tensor:
    """Scaled dot products."""
    return torch.bmm(q, k.transpose(1, 2)) / q.shape[-1] ** 0.5


def additive_scores(q: Tensor, k: Tensor, W_q: Tensor, W_k: Tensor | None, w_v: Tensor) -> Tensor:
    """w_v . tanh(W_q q + W_k k), through the (B, M, N, H) tensor; W_k None: k is projected."""
    linear = torch.nn.functional.linear
    k = k if W_k is None else linear(k, W_k)
    features = torch.tanh(linear(q, W_q).unsqueeze(2) + k.unsqueeze(1))
    return linear(features, w_v[None]).squeeze(-1)


def formula(problem: Problem, once: bool = True) -> Callable[..., Any]:
    """The case as a function of its input tensors. once: keys are projected for all steps."""
    case, lead = problem.case, problem.case.lead
    heads = lead[1] if len(lead) == 2 else 1
    lens, mask = None, None
    if "valid_lens" in problem.options:
        lens = torch.from_numpy(problem.options["valid_lens"]).repeat_interleave(heads)
    elif problem.options.get("causal"):
        lens = torch.arange(1, case.M + 1).repeat(lead[0] * heads, 1)
    elif problem.allowed is not None:
        mask = torch.from_numpy(problem.pairs.reshape(-1, case.M, case.N).copy())
    if case.score == "softmax":
        return lambda X: masked_softmax(X, lens, mask)
    if case.score == "multi-head":
        return between_linears(case.heads, lambda q, k, v: book_heads(q, k, v, lens, mask))
    scores = dot_scores if case.score == "dot" else additive_scores

    def attention(q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor) -> Any:
        weights = masked_softmax(scores(q, k, *parameters), lens, mask)
        output = torch.bmm(weights, v)
        return (output, weights) if case.weights else output

    def stepwise(q: Tensor, k: Tensor, v: Tensor, W_q: Tensor, W_k: Any, w_v: Tensor) -> Any:
        if once:
            k, W_k = torch.nn.functional.linear(k, W_k), None
        outputs = [attention(query, k, v, W_q, W_k, w_v) for query in q.split(1, dim=1)]
        return torch.cat(outputs, dim=1)

    return stepwise if case.steps else attention


# ---- heads between linear layers ----------------------------------------------------------------


def between_linears(heads: int, attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Multi-head attention with this attention of (B, heads, M, d) in it."""
    linear = torch.nn.functional.linear

    def split(x: Tensor) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    def function(q: Tensor, k: Tensor, v: Tensor, *weights: Tensor) -> Tensor:
        W_q, W_k, W_v, W_o = weights
        pooled = attention(split(linear(q, W_q)), split(linear(k, W_k)), split(linear(v, W_v)))
        return linear(pooled.transpose(1, 2).flatten(2), W_o)

    return function


def book_heads(q: Tensor, k: Tensor, v: Tensor, lens: Tensor | None, mask: Tensor | None) -> Tensor:
    """The book's attention, for which heads become part of the batch."""
    heads = q.shape[1]
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    lens, mask = (None if x is None else x.repeat_interleave(heads, 0) for x in (lens, mask))
    weights = masked_softmax(dot_scores(q, k), lens, mask)
    return torch.bmm(weights, v).unflatten(0, (-1, heads))


def module(problem: Problem, work: str, threads: int) -> Call | None:
    """torch.nn.MultiheadAttention."""
    case = problem.case
    if case.score != "multi-head" or problem.allowed is not None:
        return None
    torch.set_num_threads(threads)
    layer = torch.nn.MultiheadAttention(case.D, case.heads, bias=False, batch_first=True)
    tensors = [torch.tensor(x) for x in problem.arrays]
    inputs, (W_q, W_k, W_v, W_o) = tensors[:3], tensors[3:]
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat([W_q, W_k, W_v]))
        layer.out_proj.weight.copy_(W_o)
    parameters = [layer.in_proj_weight, layer.out_proj.weight]

    def function(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
        return layer(q, k, v, need_weights=False)[0]

    found = as_call(function, [*inputs, *parameters], torch.tensor(problem.grad_output), work)
    if work == "forward":
        return found

    def split() -> Any:
        *others, in_proj, out_proj = found()
        return *others, *in_proj.chunk(3), out_proj

    return split


# ---- calls --------------------------------------------------------------------------------------


def as_call(function: Callable[..., Any], tensors: list[Tensor], grad: Tensor, work: str) -> Call:
    """Forward, the gradients of all tensors by autograd, or both."""
    if work == "forward":
        return lambda: function(*tensors)
    inputs = [x.requires_grad_() for x in tensors]

    def forward() -> tuple[Tensor, ...]:
        outputs = function(*inputs)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def both() -> Any:
        outputs = forward()
        return *outputs, *torch.autograd.grad(outputs[0], inputs, grad)

    if work == "forward+backward":
        return both
    output = forward()[0]
    return lambda: torch.autograd.grad(output, inputs, grad, retain_graph=True)


def merged(problem: Problem) -> tuple[list[Tensor], Tensor]:
    """Copies of the inputs and the gradient with one batch axis."""
    tensors = [torch.tensor(x) for x in (*problem.arrays, problem.grad_output)]
    tensors = [x.flatten(0, -3) if x.dim() > 2 else x for x in tensors]
    return tensors[:-1], tensors[-1]


def eager(problem: Problem, work: str, threads: int) -> Call:
    """The book's code."""
    torch.set_num_threads(threads)
    return as_call(formula(problem), *merged(problem), work)


def anew(problem: Problem, work: str, threads: int) -> Call:
    """The same, with keys that every step projects anew."""
    torch.set_num_threads(threads)
    return as_call(formula(problem, once=False), *merged(problem), work)


def compiled(problem: Problem, work: str, threads: int) -> Call | None:
    """The book's code through torch.compile, which happens in the first call."""
    if work == "backward":
        return None  # compiled code gives its buffers away: one backward for each forward
    torch.set_num_threads(threads)
    torch.compiler.reset()
    return as_call(torch.compile(formula(problem), dynamic=False), *merged(problem), work)


def sdpa(problem: Problem, work: str, threads: int) -> Call | None:
    """torch.nn.functional.scaled_dot_product_attention, which returns no weights."""
    if problem.case.score not in ("dot", "multi-head") or problem.case.weights:
        return None
    torch.set_num_threads(threads)
    how: dict[str, Any] = {}
    if problem.options.get("causal"):
        how["is_causal"] = True
    elif problem.allowed is not None:
        how["attn_mask"] = torch.tensor(problem.allowed)
        if problem.case.heads and how["attn_mask"].dim() == 3:
            how["attn_mask"] = how["attn_mask"][:, None]
    function = torch.nn.functional.scaled_dot_product_attention
    tensors = [torch.tensor(x) for x in problem.arrays]
    attention: Any = lambda q, k, v: function(q, k, v, **how)  # noqa: E731
    if problem.case.heads:
        attention = between_linears(problem.case.heads, attention)
    return as_call(attention, tensors, torch.tensor(problem.grad_output), work)
