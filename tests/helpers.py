"""What several test files share: attention problems, a float32 peer, the tolerance, subprocesses.

The tests compare three computations of the same problem:

    got     attnext's, in float32
    exact   the textbook formulas on whole arrays in float64, below: what attnext.reference gives
            row by row, as test_reference_masks.py shows, in a fraction of the time
    peer    the same formulas in float32

and hold the error of the first against that of the last: see `assert_accurate`.
"""

from __future__ import annotations

import gc
import json
import math
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

import attnext

Array = NDArray[Any]
Peer: TypeAlias = "Callable[[Problem, DTypeLike], Mapping[str, Any]]"
Once: TypeAlias = Callable[[str, Callable[[Path], object]], Path]  # see conftest.py

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent

SCORES = ("dot", "additive", "gaussian", "cosine")
FUNCTION = {
    "dot": "dot_product_attention",
    "additive": "additive_attention",
    "gaussian": "gaussian_attention",
    "cosine": "cosine_attention",
}
SCORES_FUNCTION = {
    "dot": "dot_product_scores",
    "additive": "additive_scores",
    "gaussian": "gaussian_scores",
    "cosine": "cosine_scores",
}
PARAMETERS = {"dot": (), "additive": ("W_q", "W_k", "w_v", "b_h"), "gaussian": ("w",), "cosine": ()}
SHARED = ("bias", "sink", "scale")  # what pairs share, and has a gradient that is asked for
EMPTY_ROWS = ("uniform", "zero", "nan")
PART_KEYS = 4096  # of plan_split.c

# Machines whose every CPU has fused multiply-add: there the generic kernels give scalar's bits.
FUSED_GENERIC = platform.machine() in ("aarch64", "arm64", "ppc64le", "s390x")


# ---- a problem and what a module makes of it ---------------------------------------------------


@dataclass
class Problem:
    """The arguments of an attention, forward and backward."""

    score: str
    inputs: dict[str, Array]  # queries, keys, values and, if additive, W_q, W_k, w_v
    options: dict[str, Any] = field(default_factory=dict)  # keywords of forward and backward
    grads: dict[str, Array] = field(default_factory=dict)  # grad_output[, grad_weights, grad_lse]

    def forward(self, module: ModuleType = attnext, **more: Any) -> Any:
        return getattr(module, FUNCTION[self.score])(**self.inputs, **self.options, **more)

    def backward(self, module: ModuleType = attnext, **more: Any) -> dict[str, Array]:
        """Gradients by "d_" and the name of what they belong to."""
        function = getattr(module, FUNCTION[self.score] + "_backward")
        d = function(**self.grads, **self.inputs, **self.options, **more)
        names = ["queries", "keys", "values", *PARAMETERS[self.score]]
        asked = [name for name in SHARED if more.get(f"return_grad_{name}")]
        if asked:
            names += asked
            d = (*d[0], *d[1:]) if self.score == "additive" else d
        assert len(d) == len(names)
        return {f"d_{name}": x for name, x in zip(names, d, strict=True) if x is not None}

    def run(self, module: ModuleType = attnext) -> dict[str, Array]:
        """Output, weights, lse and every gradient, those of arrays that pairs share included."""
        output, weights, lse = self.forward(module, return_weights=True, return_lse=True)
        more = {f"return_grad_{name}": True for name in SHARED if self.shares(name)}
        return {"output": output, "weights": weights, "lse": lse, **self.backward(module, **more)}

    def shares(self, name: str) -> bool:
        """Is this one of the options, and an array? A scale is a number mostly."""
        given = self.options.get(name)
        return given is not None and (name != "scale" or np.ndim(given) > 0)

    def takes_part(self) -> Array:
        """(..., M, N): which keys each query attends to."""
        rows, N = self.inputs["queries"].shape[:-1], self.inputs["keys"].shape[-2]
        return takes_part(rows, N, self.options)

    def __str__(self) -> str:
        """Which it is of several, if it fails: shapes, and options that are no large arrays."""
        shapes = (f"{name} {x.shape}" for name, x in self.inputs.items())
        options = (
            f"{name} {np.shape(x) if np.size(x) > 9 else x}" for name, x in self.options.items()
        )
        return ", ".join([self.score, *shapes, *options])

    def but(self, **options: Any) -> Problem:
        return replace(self, options={**self.options, **options})


def takes_part(rows: tuple[int, ...], N: int, options: Mapping[str, Any]) -> Array:
    """(*rows, N), rows = (..., M): the pairs that every mask among the options allows."""
    j = np.arange(N)
    live = j < expand_lens(options.get("valid_lens"), rows, N)[..., None]
    if options.get("mask") is not None:
        live = live & np.asarray(options["mask"])
    if options.get("bias") is not None:
        live = live & ~np.isneginf(options["bias"])
    i = np.arange(rows[-1]) + expand_lens(options.get("causal_offset", 0), rows, N)
    left, right = options.get("window") or (-1, -1)
    if options.get("causal"):
        live = live & (j <= i[..., None])
    if left != -1:
        live = live & (j >= i[..., None] - left)
    if right != -1:
        live = live & (j <= i[..., None] + right)
    return live


def expand_lens(lens: Any, rows: tuple[int, ...], N: int) -> Array:
    """Valid lengths (or offsets) of any accepted shape as one number for each row."""
    if lens is None:
        lens = N
    lens = np.asarray(lens)
    if lens.ndim == 1 and len(rows) > 1:
        lens = lens.reshape(-1, *[1] * (len(rows) - 1))
    elif lens.ndim == 2 and len(rows) > 2:
        lens = lens.reshape(rows[0], *[1] * (len(rows) - 2), rows[-1])
    return np.broadcast_to(lens, rows)


def make_problem(
    score: str,
    rng: np.random.Generator,
    *,
    lead: tuple[int, ...] = (2,),
    M: int = 3,
    N: int = 5,
    D: int = 4,
    Dk: int | None = None,
    Dv: int = 3,
    H: int = 6,
    kv_heads: int | None = None,
    extra_grads: bool = True,
    **options: Any,
) -> Problem:
    """A random problem. Additive: keys of Dk features (default D + 1), H hidden units.

    kv_heads: keys and values have this many heads, lead[-1] a multiple of it (enable_gqa).
    """

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape, dtype=np.float32)

    if score == "additive":
        Dk = D + 1 if Dk is None else Dk
        parameters = {
            "W_q": normal(H, D) / np.float32(max(D, 1)) ** np.float32(0.5),
            "W_k": normal(H, Dk) / np.float32(max(Dk, 1)) ** np.float32(0.5),
            "w_v": normal(H),
        }
    else:
        Dk, parameters = D, {}
    kv_lead = lead
    if kv_heads is not None:
        kv_lead, options["enable_gqa"] = (*lead[:-1], kv_heads), True
    inputs = {
        "queries": normal(*lead, M, D),
        "keys": normal(*kv_lead, N, Dk),
        "values": normal(*kv_lead, N, Dv),
        **parameters,
    }
    if score == "gaussian" and not {"w", "sigma"} & set(options):
        options["w"] = np.float32(1 / max(D, 1) ** 0.5)  # scores of ordinary size at any D
    grads = {"grad_output": normal(*lead, M, Dv)}
    if extra_grads:
        grads |= {"grad_weights": normal(*lead, M, N), "grad_lse": normal(*lead, M)}
    return Problem(score, inputs, options, grads)


def random_masks(rng: np.random.Generator, lead: tuple[int, ...], M: int, N: int) -> dict[str, Any]:
    """Options that compose one mask or more, in random shapes: for `make_problem` or `but`.

    Rows that are empty, and keys that nobody attends to, are among them often.
    """
    shape = (*lead, M, N)
    first, rows = shape[:1], shape[:-1]
    lens_shapes = [(), first, rows] + [(*first, M)] * (len(lead) > 0)
    mask = _with_unused(rng, rng.random(_broadcastable(rng, shape)) < 0.8, False)
    bias = rng.standard_normal(_broadcastable(rng, shape), dtype=np.float32)
    bias = _with_unused(rng, np.where(rng.random(np.shape(bias)) < 0.1, -np.inf, bias), -np.inf)
    left, right = (int(x) for x in rng.integers(-1, N + 1, size=2))
    options: dict[str, Any] = {
        "valid_lens": rng.integers(0, N + 3, size=lens_shapes[rng.integers(len(lens_shapes))]),
        "mask": mask,
        "bias": bias.astype(np.float32),
        "causal": True,
        "window": (left, right),
    }
    chosen = rng.permutation(list(options))[: rng.integers(1, len(options) + 1)]
    options = {name: options[name] for name in options if name in chosen}
    if {"causal", "window"} & options.keys() and rng.integers(2):
        size = first if lead and rng.integers(2) else ()
        options["causal_offset"] = rng.integers(-2, N, size=size)
    return options


def random_modifiers(
    score: str, rng: np.random.Generator, lead: tuple[int, ...], M: int, share: float = 0.6
) -> dict[str, Any]:
    """Softcap, sink and, where the score has one, scale, in random shapes: a share of them."""
    sink = rng.standard_normal([(), (M,), (*lead, 1), (*lead, M)][rng.integers(4)])
    scale = rng.standard_normal([(), lead[-1:], lead][rng.integers(3)])
    modifiers: dict[str, Any] = {
        "softcap": np.float32(rng.uniform(0.5, 3)),
        "sink": np.where(rng.random(sink.shape) < 0.2, -np.inf, sink),
    }
    if score in ("dot", "cosine"):
        modifiers["scale"] = scale if scale.ndim else float(scale)
    return {name: given for name, given in modifiers.items() if rng.random() < share}


def _broadcastable(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A random shape that broadcasts to this one."""
    kept = shape[rng.integers(len(shape)) :] if rng.integers(2) else shape
    return tuple(1 if rng.random() < 0.25 else size for size in kept)


def _with_unused(rng: np.random.Generator, pairs: Array, forbidden: Any) -> Array:
    """A row and a column are often forbidden altogether."""
    for axis in range(max(pairs.ndim - 2, 0), pairs.ndim):
        if pairs.shape[axis] > 1 and rng.integers(2):
            np.moveaxis(pairs, axis, 0)[rng.integers(pairs.shape[axis])] = forbidden
    return pairs


# ---- the peer: the textbook in plain NumPy -----------------------------------------------------


def textbook_scores(problem: Problem, dtype: DTypeLike) -> tuple[Array, Array | None]:
    """Scores (..., M, N); additive: also tanh of every hidden unit, (..., M, N, H)."""
    x = _inputs(problem, dtype)
    q, k = x["queries"], x["keys"]
    if problem.score == "dot":
        return (q @ k.swapaxes(-1, -2)) * _scale(problem, dtype), None
    if problem.score == "cosine":
        q, k = q / _norm(problem, q), k / _norm(problem, k)
        return (q @ k.swapaxes(-1, -2)) * _scale(problem, dtype), None
    if problem.score == "gaussian":
        difference = q[..., :, None, :] - k[..., None, :, :]
        return -((_w(problem, dtype) * difference) ** 2).sum(axis=-1) / 2, None
    a = q @ x["W_q"].T
    if problem.options.get("b_h") is not None:
        a = a + problem.options["b_h"].astype(dtype)
    t = np.tanh(a[..., :, None, :] + (k @ x["W_k"].T)[..., None, :, :])
    return (t @ x["w_v"].reshape(-1, 1))[..., 0], t


def under_cap(problem: Problem, s: Array) -> tuple[Array, Array]:
    """What softcap makes of these scores, and its slope, 1 - tanh^2 without cancellation."""
    if problem.options.get("softcap") is None:
        return s, np.ones_like(s)
    c = s.dtype.type(np.float32(problem.options["softcap"]))
    with np.errstate(over="ignore"):  # of cosh: a slope of 0
        return c * np.tanh(s / c), 1 / np.cosh(s / c) ** 2


def textbook(problem: Problem, dtype: DTypeLike, handed: bool = False) -> dict[str, Array]:
    """Output, weights, lse and every gradient, every array formed in full, in this dtype.

    handed: the backward takes the forward's output and lse instead of computing them again.
    """
    live = problem.takes_part()
    sink = _sink(problem, live.shape[:-1], dtype)
    empty = ~live.any(axis=-1, keepdims=True) & np.isneginf(sink)
    mode = problem.options.get("empty_rows", "uniform")
    N = live.shape[-1]
    x = _inputs(problem, dtype)
    g = {name: a.astype(dtype) for name, a in problem.grads.items()}
    keep = _keep(problem, live.shape, dtype)

    s, t = textbook_scores(problem, dtype)
    s, slope = under_cap(problem, s)
    bias = problem.options.get("bias")
    if bias is not None:
        bias = np.asarray(bias, dtype=dtype)
        s = s + bias
    s = np.where(live, s, -np.inf)
    top = np.maximum(s.max(axis=-1, keepdims=True, initial=-np.inf), sink)
    top = np.where(empty, 0, top).astype(dtype)
    e, e_sink = np.exp(s - top), np.exp(sink - top)
    total = e.sum(axis=-1, keepdims=True) + e_sink
    fill = {"uniform": 1 / max(N, 1), "zero": 0, "nan": np.nan}[mode]
    w = np.where(empty, dtype(fill), e / np.where(empty, 1, total))  # type: ignore[operator]
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    output = (w * keep) @ x["values"]
    result = {"output": output, "weights": w, "lse": lse}
    if not g:
        return result

    w0 = np.where(empty & (mode != "uniform"), 0, w).astype(dtype)  # what values receive
    d_w = (g["grad_output"] @ x["values"].swapaxes(-1, -2)) * keep
    if "grad_weights" in g:
        d_w = d_w + g["grad_weights"]
    if handed:
        w0 = np.where(empty, w0, np.exp(s - np.where(np.isinf(lse), 0, lse)[..., None]))
        mean = (g["grad_output"] * output).sum(axis=-1, keepdims=True)
    else:
        mean = (w0 * d_w).sum(axis=-1, keepdims=True)
    d_s = w0 * (d_w - mean)
    if "grad_lse" in g:
        d_s = d_s + w0 * g["grad_lse"][..., None]
    d_s = np.where(live, d_s, 0).astype(dtype)
    result |= _textbook_score_backward(problem, dtype, x, d_s * np.where(live, slope, 0), t)
    result["d_values"] = (w0 * keep).swapaxes(-1, -2) @ g["grad_output"]
    if mode == "nan" and N > 0:
        result["d_queries"] = np.where(empty, np.nan, result["d_queries"])
    for name in ("keys", "values"):
        result[f"d_{name}"] = over_groups(np.sum, result[f"d_{name}"], problem.inputs[name].shape)
    if bias is not None:
        result["d_bias"] = over_broadcast(np.sum, d_s, bias.shape)
    if problem.options.get("sink") is not None:
        d_lse = g.get("grad_lse", np.zeros(lse.shape, dtype))[..., None]
        d_sink = e_sink / np.where(empty, 1, total) * (d_lse - mean)
        d_sink = np.where(np.isneginf(sink), 0, d_sink)[..., 0]
        result["d_sink"] = over_broadcast(np.sum, d_sink, np.shape(problem.options["sink"]))
    return result


def textbook_scores_backward(problem: Problem, dtype: DTypeLike) -> dict[str, Array]:
    """Every gradient of the scores alone; grad_output is theirs."""
    s, t = textbook_scores(problem, dtype)
    d_scores = problem.grads["grad_output"].astype(dtype) * under_cap(problem, s)[1]
    return _textbook_score_backward(problem, dtype, _inputs(problem, dtype), d_scores, t)


def exact_gradients(problem: Problem) -> dict[str, Array]:
    return {n: x for n, x in textbook(problem, np.float64).items() if n.startswith("d_")}


def _textbook_score_backward(
    problem: Problem, dtype: DTypeLike, x: dict[str, Array], d_s: Array, t: Array | None
) -> dict[str, Array]:
    q, k = x["queries"], x["keys"]
    d_scale = {}
    if problem.shares("scale"):
        one = textbook_scores(problem.but(scale=1.0), dtype)[0]
        d_of = np.where(d_s == 0, 0, d_s * one).sum(axis=(-1, -2))
        d_scale["d_scale"] = over_broadcast(np.sum, d_of, np.shape(problem.options["scale"]))
    if problem.score == "dot":
        scale = _scale(problem, dtype)
        d_q, d_k = scale * (d_s @ k), scale * (d_s.swapaxes(-1, -2) @ q)
        return {"d_queries": d_q, "d_keys": d_k, **d_scale}
    if problem.score == "cosine":
        scale, nq, nk = _scale(problem, dtype), _norm(problem, q), _norm(problem, k)
        d_q, d_k = scale * (d_s @ (k / nk)), scale * (d_s.swapaxes(-1, -2) @ (q / nq))
        return {
            "d_queries": _across(problem, d_q, q) / nq,
            "d_keys": _across(problem, d_k, k) / nk,
            **d_scale,
        }
    if problem.score == "gaussian":
        w, difference = _w(problem, dtype), q[..., :, None, :] - k[..., None, :, :]
        pull = -(w**2) * d_s[..., None] * difference
        d_w = -w * (d_s * (difference**2).sum(axis=-1)).sum()
        return {"d_queries": pull.sum(axis=-2), "d_keys": -pull.sum(axis=-3), "d_w": d_w}
    assert t is not None
    d_a = d_s[..., None] * x["w_v"].reshape(-1) * (1 - t**2)  # (..., M, N, H)
    over_keys, over_queries = d_a.sum(axis=-2), d_a.sum(axis=-3)
    result = {
        "d_queries": over_keys @ x["W_q"],
        "d_keys": over_queries @ x["W_k"],
        "d_W_q": _rows(over_keys).T @ _rows(q),
        "d_W_k": _rows(over_queries).T @ _rows(k),
        "d_w_v": (d_s.reshape(1, -1) @ _rows(t)).reshape(x["w_v"].shape),
    }
    if problem.options.get("b_h") is not None:
        result["d_b_h"] = _rows(over_keys).sum(axis=0)
    return result


def _inputs(problem: Problem, dtype: DTypeLike) -> dict[str, Array]:
    """In this dtype, with the key and the value of every query head."""
    x = {name: a.astype(dtype) for name, a in problem.inputs.items()}
    if problem.options.get("enable_gqa"):
        heads, kv_heads = x["queries"].shape[-3], x["keys"].shape[-3]
        for name in ("keys", "values"):
            x[name] = np.repeat(x[name], heads // max(kv_heads, 1), axis=-3)
    return x


def over_groups(reduce: Callable[..., Any], x: Array, shape: tuple[int, ...]) -> Array:
    """np.sum or np.any over the query heads that share a head of keys of this shape."""
    if x.shape[:-2] == shape[:-2]:
        return x
    group = x.shape[-3] // shape[-3]
    return np.asarray(reduce(x.reshape(*shape[:-2], group, *x.shape[-2:]), axis=-3))


def over_broadcast(reduce: Callable[..., Any], x: Array, shape: tuple[int, ...]) -> Array:
    """np.sum or np.any over the axes along which an array of this shape was broadcast to x's."""
    shape_of_x = (1,) * (x.ndim - len(shape)) + shape
    axes = tuple(axis for axis, size in enumerate(shape_of_x) if size == 1)
    return np.asarray(reduce(x, axis=axes, keepdims=True)).reshape(shape)


def _norm(problem: Problem, x: Array) -> Array:
    """max(|x|, eps), (..., 1)."""
    return np.maximum(_length(x), x.dtype.type(problem.options.get("eps", 1e-8)))


def _length(x: Array) -> Array:
    return np.asarray(np.sqrt((x * x).sum(axis=-1, keepdims=True)))


def _across(problem: Problem, d: Array, x: Array) -> Array:
    """The part of d at a right angle to x; all of it where eps took the place of the norm."""
    norm = _norm(problem, x)
    along = (d * x / norm).sum(axis=-1, keepdims=True) * x / norm
    return d - np.where(_length(x) < norm, 0, along)


def _rows(x: Array) -> Array:
    """(..., n) as (all the others, n)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _scale(problem: Problem, dtype: DTypeLike) -> Array:
    scale = problem.options.get("scale")
    if scale is None:
        D = problem.inputs["queries"].shape[-1]
        scale = 1 if problem.score == "cosine" else 1 / max(D, 1) ** 0.5
    lead = problem.inputs["queries"].shape[:-2]
    return np.broadcast_to(np.asarray(scale, dtype=dtype), lead)[..., None, None]


def _w(problem: Problem, dtype: DTypeLike) -> Array:
    sigma, w = problem.options.get("sigma"), problem.options.get("w")
    if sigma is not None:
        w = 1 / np.float64(sigma).item()
    return np.asarray(1 if w is None else w, dtype=dtype).reshape(())


def _sink(problem: Problem, rows: tuple[int, ...], dtype: DTypeLike) -> Array:
    """(..., M, 1); -inf: none."""
    sink = problem.options.get("sink")
    sink = np.asarray(-np.inf if sink is None else sink, dtype=dtype)
    return np.broadcast_to(sink, rows)[..., None]


def _keep(problem: Problem, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """What dropout multiplies each weight by: 0 or 1 / (1 - p)."""
    p = np.float32(problem.options.get("dropout_p", 0.0)).item()
    mask = problem.options.get("dropout_mask")
    if mask is not None:
        return np.broadcast_to(mask, shape) / dtype(1 - p)  # type: ignore[operator]
    if p == 0:
        return np.ones(shape, dtype=dtype)
    return keep_pattern(shape, p, problem.options["seed"]) / dtype(1 - p)  # type: ignore[operator]


PHILOX_KNOWN = [  # counter, key, words: Random123's vectors, in its file kat_vectors
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def philox(index: Array, seed: int) -> Array:
    """Word index & 3 of Philox4x32-10 at counter index >> 2 (Salmon et al. 2011)."""
    mask = 0xFFFFFFFF
    block = np.asarray(index) >> 2
    low, high = ((word & mask).astype(np.uint64) for word in (block, block >> 32))
    c = [low, high, 0 * low, 0 * low]  # of which no product exceeds 64 bits
    k0, k1 = seed & mask, seed >> 32
    for _ in range(10):
        even, odd = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(odd >> 32) ^ c[1] ^ k0, odd & mask, (even >> 32) ^ c[3] ^ k1, even & mask]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return np.choose((np.asarray(index) & 3).astype(int), c)


def keep_pattern(shape: tuple[int, ...], p: float, seed: int) -> Array:
    """Which weights dropout keeps: 1 or 0 for each pair."""
    index = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return philox(index, seed) >= int(np.ceil(float(np.float32(p)) * 2**32))


# ---- the tolerance -------------------------------------------------------------------------------
#
# The error against float64 is at most twice the error of the same computation in plain float32,
# plus 2e-6 of the tensor's largest entry. A tensor of a few numbers may be right in float32 by
# luck, so the peer's error is the largest over the problem and neighbours of it, whose inputs
# differ in the last digits: as many as give every tensor hundreds of numbers to be wrong in.
# Gradients that vanish, like those of a saturated tanh, may be wrong by FLOOR, far below the
# rounding of the numbers of ordinary size that they belong to.

FLOOR = 1e-10


def error_of(x: Any, exact: Any) -> float:
    """Largest distance from exact; where exact is not finite, x must be the same."""
    x, exact = np.asarray(x, dtype=np.float64), np.asarray(exact, dtype=np.float64)
    assert x.shape == exact.shape, f"shape {x.shape}, expected {exact.shape}"
    finite = np.isfinite(exact)
    if not finite.all():
        np.testing.assert_array_equal(x[~finite], exact[~finite])
        x, exact = x[finite], exact[finite]
    return float(np.max(np.abs(x - exact), initial=0.0))


def allowed(exact: Any, peer_error: float) -> float:
    exact = np.asarray(exact)
    largest = np.max(np.abs(exact[np.isfinite(exact)]), initial=0.0)
    return 2 * peer_error + 2e-6 * float(largest) + FLOOR


def assert_accurate(got: Any, exact: Any, peer_error: float, name: str = "") -> None:
    """Infinities and NaN must stand where they stand in exact."""
    bound = allowed(exact, peer_error)
    error = error_of(got, exact)
    assert error <= bound, f"{name}: error {error:.3g}, allowed {bound:.3g}"


def neighbours(problem: Problem) -> Iterator[Problem]:
    """The problem itself, then others that differ from it by about 1e-6."""
    yield problem
    rng = np.random.default_rng(1)
    while True:
        near = {
            name: x * rng.uniform(1 - 1e-6, 1 + 1e-6, x.shape).astype(np.float32)
            for name, x in problem.inputs.items()
        }
        yield replace(problem, inputs=near)


def assert_all_accurate(
    got: Mapping[str, Any], exact: Mapping[str, Any], problem: Problem, peer: Peer = textbook
) -> None:
    """Every tensor of the result is as accurate as the peer, in float32, makes it."""
    assert got.keys() == exact.keys()
    error = {name: error_of(got[name], exact[name]) for name in exact}
    peer_error = dict.fromkeys(exact, 0.0)

    def beyond(peer_error: Mapping[str, float]) -> list[str]:
        bound.update({name: allowed(exact[name], peer_error[name]) for name in exact})
        return [name for name in exact if not error[name] <= bound[name]]

    bound: dict[str, float] = {}
    wrong = beyond(peer_error)  # most often there is none, whatever the peer makes of it
    for runs, near in enumerate(neighbours(problem) if wrong else (), 1):
        single = peer(near, np.float32)
        double = exact if near is problem else peer(near, np.float64)
        for name in wrong:
            peer_error[name] = max(peer_error[name], error_of(single[name], double[name]))
        wrong = beyond(peer_error)
        if runs == 16 or not any(runs * np.size(exact[name]) < 500 for name in wrong):
            break
    assert not wrong, f"{problem}: " + "; ".join(
        f"{name}: error {error[name]:.3g}, allowed {bound[name]:.3g}" for name in wrong
    )


def check(problem: Problem) -> dict[str, Array]:
    """attnext's result, after it was held against the textbook and the rules for padding."""
    got = problem.run(attnext)
    assert_all_accurate(got, textbook(problem, np.float64), problem)
    check_padding(problem, got)
    return got


def check_padding(problem: Problem, got: Mapping[str, Array]) -> None:
    """Exactly 0 wherever no pair takes part."""
    live = problem.takes_part()
    mode = problem.options.get("empty_rows", "uniform")
    empty = ~live.any(axis=-1)
    for row in (live, ~empty[..., None]):
        assert not np.any(got["weights"][np.broadcast_to(~row, live.shape) & ~empty[..., None]])
    if mode == "zero":
        assert not np.any(got["weights"][empty])
        assert not np.any(got["output"][empty])
    if mode != "nan":
        assert not np.any(got["d_queries"][empty])
    used = over_groups(np.any, live.any(axis=-2)[..., None], got["d_keys"].shape)[..., 0]
    assert not np.any(got["d_keys"][~used])
    if mode != "uniform" or not empty.any():
        assert not np.any(got["d_values"][~used])
    if "d_bias" in got:
        assert not np.any(got["d_bias"][~over_broadcast(np.any, live, got["d_bias"].shape)])


# ---- exact comparison ----------------------------------------------------------------------------


def bits(x: Any) -> Array:
    """The bit patterns of float32 numbers, one pattern for every NaN."""
    x = np.array(x, dtype=np.float32, copy=True)
    x[np.isnan(x)] = np.nan
    return np.atleast_1d(x).view(np.uint32)


def assert_same_bits(a: Mapping[str, Any], b: Mapping[str, Any], of: object = "") -> None:
    """of: which case of several this is, if it fails."""
    assert a.keys() == b.keys()
    for name in a:
        x, y = bits(a[name]), bits(b[name])
        if not np.array_equal(x, y):  # which takes a fraction of the time of what says where
            np.testing.assert_array_equal(x, y, err_msg=f"{name} {of}")


# ---- leaks ---------------------------------------------------------------------------------------

# Blocks a call. A leak loses one block or more each time; the caches of Python and NumPy take some
# and then no more (np.ma of NumPy 1.26: 70, 50, 30, 10, 4 in rounds of a thousand calls).
SLACK = 0.5


def settle() -> None:
    """What is there now stays: the collector no longer looks through it, which takes 0.3 s."""
    gc.collect()
    gc.freeze()


def lost_blocks(call: Callable[[], Any], calls: int = 200) -> float:
    """Blocks a call that are there after so many calls and were not before; the least of three."""
    for _ in range(20):
        call()
    settle()
    lost = math.inf
    for _ in range(3):
        before = kept_blocks()
        for _ in range(calls):
            call()
        lost = min(lost, (kept_blocks() - before) / calls)
        if lost < SLACK:
            break
    return lost


def kept_blocks() -> int:
    """Those that neither the collector frees nor CPython's cache of methods holds.

    That keeps each name that was looked up in a type, in one of 4096 places by the string's
    address: a name made anew each time takes hundreds of them before it takes no more.
    """
    gc.collect()
    getattr(sys, "_clear_internal_caches", sys._clear_type_cache)()
    return sys.getallocatedblocks()


# ---- names of cases ------------------------------------------------------------------------------


def repr_id(x: Any) -> str:
    """repr without addresses: the same in every process, as the names of tests must be."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(x))


# ---- other processes -----------------------------------------------------------------------------

HANG = 900  # seconds: what has not come by then never will; a slow machine is no error


def run_python(
    *arguments: str | Path, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A Python process outside the source tree, with these environment variables."""
    return subprocess.run(
        [sys.executable, "-P", *map(str, arguments)],
        env=python_environment(**environment),
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=check,
    )


def import_errors(variable: str, values: list[str]) -> dict[str, str]:
    """What `import attnext` says to each value of this environment variable: all are wrong."""
    code = f"""
import json, os
messages = {{}}
for value in {values}:
    os.environ[{variable!r}] = value
    try:
        import attnext
    except ImportError as error:
        messages[value] = str(error)
print(json.dumps(messages))
"""
    messages: dict[str, str] = json.loads(run_python("-c", code).stdout)
    assert list(messages) == values
    return messages


def python_environment(**more: str) -> dict[str, str]:
    """This process's environment without ATTNEXT_*, with what is given."""
    kept = {name: x for name, x in os.environ.items() if not name.startswith("ATTNEXT_")}
    path = os.pathsep.join(filter(None, [str(TESTS), kept.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, **more}


# ---- threads -------------------------------------------------------------------------------------


def in_threads(*actions: Callable[[], Any]) -> None:
    """Runs the actions at the same time; the first exception of any of them is raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(actions))

    def run(action: Callable[[], Any]) -> None:
        try:
            start.wait()
            action()
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=run, args=(action,)) for action in actions]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
