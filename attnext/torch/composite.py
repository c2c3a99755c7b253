"""Every function once more, out of torch's own operators: where C has no formula.

They take about as long as torch's own attention does of its operators, longer where something is
masked, which they guard, and form (..., M, N), additive and Gaussian scores (..., M, N, H) or
(..., M, N, D). In return autograd knows them to any order, forward mode and torch.func's transforms
too, in float32 and float64. Here is what `attnext.reference` has, with the same rules:
what takes no part reaches neither results nor gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnext import _core
from attnext.reference.dropout import dropout_keep
from attnext.reference.options import Options

from .calls import RULES, Call, Described, call_of
from .graphs import breaks_graphs
from .pairs import Pairs, arange, array_of, known_pairs, lengths, pairs_of
from .rules import is_wrapped, unwrapped
from .tensors import by_argument

Arguments = Mapping[str, Any]  # tensors and options, by name
Results = dict[str, Tensor]
Score = Callable[[Tensor, Tensor, Arguments, Tensor | None], Tensor]
_Function = Callable[[dict[str, Any], Collection[str]], Results]  # arguments, results asked for

_NUMBERS = ("scale", "w", "sigma", "sink")  # whose values are looked at
_NAN = float("nan")
# No query has a key, if nothing else was said: what is wrong is seen before.
_NOTHING_TO_DO = {"valid_lens": 0, "mask": np.zeros((), bool), "empty_rows": "zero"}


# ---- calls ---------------------------------------------------------------------------------------


@breaks_graphs
def run(described: Described, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the results of the function that the caller gets."""
    call = call_of(*described)
    return results(call, tensors, call.made[: call.returned])


def results(call: Call, tensors: Sequence[Tensor], asked: Sequence[str]) -> list[Tensor]:
    """Return the results of these names."""
    _check(call, tensors)
    with torch.autocast("cpu", enabled=False):
        x = {**call.options, **by_argument(call.names, tensors)}
        made = _FUNCTIONS[call.function](x, asked)
    return [made[name] for name in asked]


def gradients(
    call: Call,
    saved: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    needed: Sequence[bool],
    create_graph: bool,
) -> list[Tensor | None]:
    """What `calls.backward` gives, made of what was saved and of what flows in."""
    names = call.kind.kept
    x = dict(zip(names, saved, strict=True))
    flow = {name: g for name, g in zip(call.made, grads, strict=False) if g is not None}
    with torch.autocast("cpu", enabled=False):
        if call.function in _GRADIENTS:
            (dX,) = (_GRADIENTS[call.function]({**call.options, **x}, g) for g in flow.values())
            return [dX, *[None] * (len(needed) - 1)]
        with torch.enable_grad():
            # Each under another name, so that none is found on the way to another.
            x = {name: one.view_as(one) for name, one in x.items()}
            arguments = by_argument(call.names, [x[name] for name in call.names])
            made = _FUNCTIONS[call.function]({**call.options, **arguments}, flow)
        roots = [name for name in flow if made[name].requires_grad]
        wanted = [name for name, need in zip(call.names, needed, strict=False) if need]
        found = torch.autograd.grad(
            [made[name] for name in roots],
            [x[name] for name in wanted],
            [flow[name] for name in roots],
            create_graph=create_graph,
            allow_unused=True,
        )
    d = dict(zip(wanted, found, strict=True))
    return [d.get(name) for name in call.names]


def second_gradients(
    call: Call,
    saved: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    needed: Sequence[bool],
    flow: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradients of what a backward was made of, saved and flowing in, in this order.

    flow: gradients of those that it returned because they were needed.
    """
    once_more = torch.is_grad_enabled()
    with torch.enable_grad():
        x = [None if t is None else t.view_as(t) for t in (*saved, *grads)]
        kept_here: Any = x[: len(saved)]
        made = gradients(call, kept_here, x[len(saved) :], needed, True)
        pairs = zip(compress(made, needed), flow, strict=True)
        flows = [(d, g) for d, g in pairs if g is not None and d is not None and d.requires_grad]
    if not flows:
        return [None] * len(x)
    roots, flowing = zip(*flows, strict=True)
    sources = [t for t in x if t is not None and t.requires_grad]
    found = iter(
        torch.autograd.grad(roots, sources, flowing, create_graph=once_more, allow_unused=True)
    )
    return [next(found) if t is not None and t.requires_grad else None for t in x]


def _check(call: Call, tensors: Sequence[Tensor]) -> None:
    """C's own errors: it is called with arrays of these shapes, and with what options are known."""

    def stand_in(name: str, x: Tensor) -> Any:
        if x.is_floating_point() and name not in _NUMBERS:
            return np.zeros(x.shape, np.float32)
        numbers = array_of(unwrapped(x), name)
        return np.ones(x.shape, numbers.dtype) if is_wrapped(x) else numbers

    arguments = {**call.options, **by_argument(call.names, map(stand_in, call.names, tensors))}
    if call.function.endswith("_attention") and "queries" in arguments:
        for name, value in _NOTHING_TO_DO.items():
            arguments.setdefault(name, value)
    getattr(_core, RULES[call.function].prefix + call.function)(**arguments)


# ---- products in which a pair that takes no part has none ----------------------------------------


def _where(used: Tensor | None, x: Tensor) -> Tensor:
    return x if used is None else torch.where(used, x, 0.0)


def _any(used: Tensor | None, axis: int) -> Tensor | None:
    """Which queries (axis -1) or keys (-2) are in any pair, as (..., rows, 1)."""
    return None if used is None else used.any(axis)[..., None]


def _are_finite(*tensors: Tensor) -> bool:
    """Is 0 times any of these numbers 0? Else pairs have to be kept apart, one by one.

    (Sums are quicker than a look at each number; one that overflows costs time, and no more.)
    """
    return all(bool(unwrapped(x).sum().isfinite()) for x in tensors)


def _product(q: Tensor, k: Tensor, live: Tensor | None) -> Tensor:
    """Dot products of all pairs."""
    if live is None:
        return q @ k.mT
    each = live[..., None]
    return (_where(each, q[..., :, None, :]) * _where(each, k[..., None, :, :])).sum(-1)


def _pool(w: Tensor, v: Tensor, pooled: Tensor | None) -> Tensor:
    """Sums of values, weighted."""
    if pooled is None:
        return w @ v
    each = pooled[..., None]
    return (w[..., None] * _where(each, v[..., None, :, :])).sum(-2)


# ---- scores --------------------------------------------------------------------------------------


def _number(x: Any, like: Tensor) -> Tensor:
    if isinstance(x, Tensor):
        return x
    return torch.as_tensor(np.asarray(x), dtype=like.dtype, device=like.device)


def _dot(q: Tensor, k: Tensor, x: Arguments, live: Tensor | None) -> Tensor:
    scale = x.get("scale")
    if scale is None:  # of no more than 1
        return _product(q * max(q.shape[-1], 1) ** -0.5, k, live)
    return _number(scale, q)[..., None, None] * _product(q, k, live)


def _cosine(q: Tensor, k: Tensor, x: Arguments, live: Tensor | None) -> Tensor:
    eps = _number(x.get("eps", 1e-8), q)
    return _dot(_to_length_1(q, eps), _to_length_1(k, eps), {"scale": 1.0, **x}, live)


def _to_length_1(x: Tensor, eps: Tensor) -> Tensor:
    """x over its norm, or over eps. A norm is as differentiable as a square root of 1 or more."""
    if x.shape[-1] == 0:
        return x
    largest = x.detach().abs().amax(-1, keepdim=True)
    zero = largest == 0
    largest = torch.where(zero, 1.0, largest)
    norm = largest * torch.where(zero, 1.0, (x / largest).square().sum(-1, keepdim=True)).sqrt()
    return x / torch.where(zero | (norm < eps), eps, norm)


def _additive(q: Tensor, k: Tensor, x: Arguments, live: Tensor | None) -> Tensor:
    a = q @ x["W_q"].mT
    if x.get("b_h") is not None:
        a = a + x["b_h"]
    hidden: Tensor = a[..., :, None, :] + (k @ x["W_k"].mT)[..., None, :, :]
    if live is not None:
        hidden = _where(live[..., None], hidden)
    w_v: Tensor = x["w_v"]
    return hidden.tanh() @ w_v.reshape(-1)


def _gaussian(q: Tensor, k: Tensor, x: Arguments, live: Tensor | None) -> Tensor:
    difference = q[..., :, None, :] - k[..., None, :, :]
    if live is not None:
        difference = _where(live[..., None], difference)
    if x.get("sigma") is not None:
        w = 1 / _number(x["sigma"], q)
    else:
        w = _number(1.0 if x.get("w") is None else x["w"], q)
    return -(w.reshape(()) * difference).square().sum(-1) / 2


_SCORES: dict[str, Score] = {
    "dot_product": _dot,
    "cosine": _cosine,
    "additive": _additive,
    "gaussian": _gaussian,
}


def _scores(score: Score, x: Arguments, live: Tensor | None = None) -> Tensor:
    s = score(x["queries"], x["keys"], x, live)
    c = x.get("softcap")
    return s if c is None else c * torch.tanh(s / c)


# ---- softmax, and attention ----------------------------------------------------------------------


def _softmax(
    s: Tensor, pairs: Pairs, sink: Tensor | None = None, finite: bool = False
) -> tuple[Tensor, Tensor]:
    """Weights, and the logits; rows that are not alive have weights 1/N where values are read.

    finite: s is, and so is what flows back: a weight of 0 then is all that a mask has to give.
    """
    if pairs.live is not None and finite:
        s = s + torch.where(pairs.live, 0.0, -torch.inf).to(s.dtype)
    elif pairs.live is not None:
        s = torch.where(pairs.live, s, -torch.inf)
    if pairs.alive is not None:
        s = torch.where(pairs.alive, s, 0.0)
    N = s.shape[-1]
    if sink is not None:
        s = torch.cat([s, sink.expand(s.shape[:-1])[..., None]], -1)
    weights = torch.softmax(s, -1)
    weights = weights if sink is None else weights[..., :N]
    return weights if finite and pairs.alive is None else _where(pairs.pooled, weights), s


def _keep(shape: Sequence[int], x: Arguments, like: Tensor) -> Tensor | None:
    """What dropout multiplies the weights by."""
    p, mask, seed = x.get("dropout_p", 0.0), x.get("dropout_mask"), x.get("seed")
    if isinstance(mask, Tensor):
        return mask.to(like.dtype) / (1 - float(np.float32(p)))
    if p == 0 and mask is None:
        return None
    seed = int(seed) if isinstance(seed, Tensor) else seed
    options = Options(dropout_p=p, seed=seed, dropout_mask=mask)
    return torch.from_numpy(dropout_keep(tuple(shape), options).copy()).to(like.dtype)


def _lse(logits: Tensor, pairs: Pairs) -> Tensor:
    if logits.shape[-1] == 0:
        return logits.new_full(logits.shape[:-1], -torch.inf)
    lse = torch.logsumexp(logits, -1)
    return lse if pairs.alive is None else torch.where(pairs.alive.squeeze(-1), lse, -torch.inf)


def _attend(score: Score, x: dict[str, Any], pairs: Pairs, asked: Collection[str]) -> Results:
    q, k, v = x["queries"], x["keys"], x["values"]
    if q.shape[:-2] != k.shape[:-2]:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], dim=-3) for t in (k, v))
    x["queries"], x["keys"] = q, k
    s = _scores(score, x)
    finite = pairs.live is None or _are_finite(q, k, v, s)
    apart = None if finite else pairs.pooled
    if not finite:
        x["queries"], x["keys"] = _where(_any(pairs.live, -1), q), _where(_any(pairs.live, -2), k)
        v = _where(_any(pairs.pooled, -2), v)
        s = _scores(score, x, pairs.live)
    if x.get("bias") is not None:
        s = s + _where(pairs.live, x["bias"])
    weights, logits = _softmax(s, pairs, x.get("sink"), finite and "weights" not in asked)
    keep = _keep(weights.shape, x, weights)
    output = _pool(weights if keep is None else weights * keep, v, apart)
    if pairs.alive is not None and x.get("empty_rows") == "nan" and weights.shape[-1]:
        nan = torch.where(pairs.alive, 0.0, q).sum(-1, keepdim=True) * _NAN  # and its gradient
        weights, output = (torch.where(pairs.alive, t, nan) for t in (weights, output))
    made = {"output": output, "weights": weights}
    return {**made, "lse": _lse(logits, pairs)} if "lse" in asked else made


def _attention(score: Score) -> _Function:
    def attention(x: dict[str, Any], asked: Collection[str]) -> Results:
        return _attend(score, x, pairs_of(x["queries"].shape[:-1], x["keys"].shape[-2], x), asked)

    return attention


def _multi_head_attention(x: dict[str, Any], asked: Collection[str]) -> Results:
    q, k, v = x["queries"], x["keys"], x["values"]
    heads = x["num_heads"]
    kv_heads = heads if x.get("num_kv_heads") is None else x["num_kv_heads"]
    pairs = pairs_of((*q.shape[:-2], heads, q.shape[-2]), k.shape[-2], x, heads=True)

    def project(t: Tensor, letter: str, heads: int, used: Tensor | None) -> Tensor:
        """(..., heads, rows, d) of (..., rows, features); rows that nobody uses are not read."""
        if used is not None:
            t = _where(used.any(-3) if used.ndim > 2 else used, t)
        y: Tensor = t @ x[f"W_{letter}"].mT
        y = y if x.get(f"b_{letter}") is None else y + x[f"b_{letter}"]
        of_heads: Tensor = y.unflatten(-1, (heads, -1))
        return of_heads.transpose(-3, -2)

    # Where an empty row is NaN, so is the gradient of its query.
    asking = None if x.get("empty_rows") == "nan" else _any(pairs.live, -1)
    of_heads = {
        **{name: t for name, t in x.items() if name[:2] not in ("W_", "b_")},
        "queries": project(q, "q", heads, asking),
        "keys": project(k, "k", kv_heads, _any(pairs.live, -2)),
        "values": project(v, "v", kv_heads, _any(pairs.pooled, -2)),
    }
    made = _attend(_dot, of_heads, pairs, asked)
    output = made["output"].transpose(-3, -2).flatten(-2) @ x["W_o"].mT
    made["output"] = output if x.get("b_o") is None else output + x["b_o"]
    return made


def _masked_softmax(x: dict[str, Any], asked: Collection[str]) -> Results:
    X = x["X"]
    pairs = pairs_of(X.shape[:-1], X.shape[-1], x)
    weights, _ = _softmax(X, pairs)
    if pairs.alive is not None and x.get("empty_rows") == "nan":
        weights = torch.where(pairs.alive, weights, torch.where(pairs.alive, 0.0, X) * _NAN)
    return {"weights": weights}


def _masked_softmax_gradient(x: dict[str, Any], d_weights: Tensor) -> Tensor:
    w = x["weights"]
    pairs = pairs_of(w.shape[:-1], w.shape[-1], x)
    w, d_w = _where(pairs.live, w), _where(pairs.live, d_weights)
    dX = w * (d_w - (w * d_w).sum(-1, keepdim=True))
    if pairs.alive is not None and x.get("empty_rows") == "nan":
        return torch.where(pairs.alive, dX, _NAN)
    return dX


def _steps(X: Tensor, x: Arguments) -> Tensor:
    """Which numbers of X (B, T, ...) are kept."""
    B, T, *rest = X.shape
    keep: Tensor = arange(T) < lengths("valid_len", x["valid_len"], T)[..., None]
    return keep.expand(B, T).reshape(B, T, *[1] * len(rest))


def _sequence_mask(x: dict[str, Any], asked: Collection[str]) -> Results:
    return {"copy": torch.where(_steps(x["X"], x), x["X"], _number(x["value"], x["X"]))}


def _sequence_mask_gradient(x: dict[str, Any], d_copy: Tensor) -> Tensor:
    return _where(_steps(d_copy, x), d_copy)


def _merge_attention(x: dict[str, Any], asked: Collection[str]) -> Results:
    parts = x["outputs"], x["lses"]
    outputs, lses = (t if isinstance(t, Tensor) else torch.stack(t) for t in parts)
    live = (lses != -torch.inf).movedim(0, -1)  # (..., M, P): an attention over the parts
    pairs = known_pairs(live, live.any(-1, keepdim=True), False)
    w, logits = _softmax(lses.movedim(0, -1), pairs)
    o = _where(live[..., None], outputs.movedim(0, -2))  # (..., M, P, Dv)
    return {"output": (w[..., None] * o).sum(-2), "lse": _lse(logits, pairs)}


def _scores_alone(score: Score) -> _Function:
    return lambda x, asked: {"scores": _scores(score, x)}


_FUNCTIONS: dict[str, _Function] = {
    **{f"{name}_attention": _attention(score) for name, score in _SCORES.items()},
    **{f"{name}_scores": _scores_alone(score) for name, score in _SCORES.items()},
    "multi_head_attention": _multi_head_attention,
    "masked_softmax": _masked_softmax,
    "sequence_mask": _sequence_mask,
    "merge_attention": _merge_attention,
}
_GRADIENTS: dict[str, Callable[[dict[str, Any], Tensor], Tensor]] = {
    "masked_softmax": _masked_softmax_gradient,  # of the weights: X is not kept
    "sequence_mask": _sequence_mask_gradient,
}
