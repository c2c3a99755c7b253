"""What the tests of multi-head attention share: problems, and the textbook in plain NumPy.

The heads are dot-product attentions, whose textbook is in helpers.py; around them stand the linear
layers, in whichever dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
from helpers import SHARED, Array, Problem, expand_lens, textbook
from numpy.typing import DTypeLike

import attnext

WEIGHTS = ("W_q", "W_k", "W_v", "W_o")
BIASES = ("b_q", "b_k", "b_v", "b_o")


class HeadsProblem(Problem):
    """The arguments of multi_head_attention and its backward; biases are inputs, too."""

    def forward(self, module: ModuleType = attnext, **more: Any) -> Any:
        return module.multi_head_attention(**self.inputs, **self.options, **more)

    def backward(self, module: ModuleType = attnext, **more: Any) -> dict[str, Array]:
        function = module.multi_head_attention_backward
        d = function(**self.grads, **self.inputs, **self.options, **more)
        asked = [name for name in SHARED if more.get(f"return_grad_{name}")]
        named, *rest = d if asked else (d,)
        found = {**named._asdict(), **dict(zip(asked, rest, strict=True))}
        return {f"d_{name}": x for name, x in found.items() if x is not None}

    @property
    def heads(self) -> int:
        return int(self.options["num_heads"])

    def of_heads(self, dtype: DTypeLike) -> Problem:
        """The dot-product attention of the heads, as leading axes."""
        x = {name: a.astype(dtype) for name, a in self.inputs.items()}
        inputs, h = {}, self.heads
        for name, W, b in zip(("queries", "keys", "values"), WEIGHTS, BIASES, strict=False):
            projected = x[name] @ x[W].T + x.get(b, 0)
            n = h if name == "queries" else self.options.get("num_kv_heads") or h
            inputs[name] = split(projected, n)
        lead, M = x["queries"].shape[:-2], x["queries"].shape[-2]
        own = ("num_heads", "num_kv_heads", "valid_lens")
        options = {name: o for name, o in self.options.items() if name not in own}
        lens = expand_lens(self.options.get("valid_lens"), (*lead, M), inputs["keys"].shape[-2])
        options["valid_lens"] = np.repeat(lens[..., None, :], h, axis=-2)
        options["enable_gqa"] = True
        grads = dict(self.grads)
        if grads:
            grads["grad_output"] = split(grads["grad_output"].astype(dtype) @ x["W_o"], h)
        return Problem("dot", inputs, options, grads)


def split(x: Array, heads: int) -> Array:
    """(..., rows, heads * d) as (..., heads, rows, d)."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // max(heads, 1)).swapaxes(-2, -3)


def join(x: Array) -> Array:
    """And back."""
    x = x.swapaxes(-2, -3)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def rows_of(x: Array) -> Array:
    return x.reshape(int(np.prod(x.shape[:-1])), x.shape[-1])


def textbook_heads(problem: Problem, dtype: DTypeLike) -> dict[str, Array]:
    """Output, weights, lse and every gradient, in this dtype."""
    assert isinstance(problem, HeadsProblem)
    heads = problem.of_heads(dtype)
    t = textbook(heads, dtype)
    x = {name: a.astype(dtype) for name, a in problem.inputs.items()}
    pooled = join(t["output"])
    result = {
        "output": pooled @ x["W_o"].T + x.get("b_o", 0),
        "weights": t["weights"],
        "lse": t["lse"],
    }
    if not problem.grads:
        return result
    g = problem.grads["grad_output"].astype(dtype)
    result |= {name: a for name, a in t.items() if name.removeprefix("d_") in SHARED}
    result["d_W_o"] = rows_of(g).T @ rows_of(pooled)
    if "b_o" in x:
        result["d_b_o"] = rows_of(g).sum(axis=0)
    for name, W, b in zip(("queries", "keys", "values"), WEIGHTS, BIASES, strict=False):
        d = join(t[f"d_{name}"])
        result[f"d_{name}"] = d @ x[W]
        d = np.where(np.isnan(d), 0, d)  # of rows without any key, under "nan"
        result[f"d_{W}"] = rows_of(d).T @ rows_of(x[name])
        if b in x:
            result[f"d_{b}"] = rows_of(d).sum(axis=0)
    return result


def of_pairs(x: Array, lead: tuple[int, ...]) -> Array:
    """A mask or bias of each head with all axes of (*lead, heads, M, N), as it has to be given."""
    return x.reshape((1,) * (len(lead) + 3 - x.ndim) + x.shape) if x.ndim > 2 else x


def make_heads(
    rng: np.random.Generator,
    *,
    lead: tuple[int, ...] = (2,),
    M: int = 3,
    N: int = 5,
    Dq: int = 4,
    Dk: int = 5,
    Dv: int = 3,
    d: int = 2,
    heads: int = 3,
    kv_heads: int | None = None,
    bias_terms: bool = True,
    extra_grads: bool = True,
    **options: Any,
) -> HeadsProblem:
    """A random problem: heads of d features."""

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape, dtype=np.float32)

    def layer(rows: int, columns: int) -> Array:
        return normal(rows, columns) / np.float32(max(columns, 1) ** 0.5)

    H, G = heads * d, (kv_heads or heads) * d
    inputs = {"queries": normal(*lead, M, Dq), "keys": normal(*lead, N, Dk)}
    inputs |= {"values": normal(*lead, N, Dv), "W_q": layer(H, Dq), "W_k": layer(G, Dk)}
    inputs |= {"W_v": layer(G, Dv), "W_o": layer(H, H)}
    if bias_terms:
        inputs |= {"b_q": normal(H), "b_k": normal(G), "b_v": normal(G), "b_o": normal(H)}
    options["num_heads"] = heads
    if kv_heads is not None:
        options["num_kv_heads"] = kv_heads
    grads = {"grad_output": normal(*lead, M, H)}
    if extra_grads:
        grads |= {"grad_weights": normal(*lead, heads, M, N), "grad_lse": normal(*lead, heads, M)}
    return HeadsProblem("multi_head", inputs, options, grads)


def with_nan(problem: HeadsProblem, rng: np.random.Generator) -> HeadsProblem:
    """The same with NaN in every query, key and value that no pair needs."""
    live = problem.of_heads(np.float64).takes_part()
    empty = ~live.any(axis=-1)
    sink = problem.options.get("sink")
    if sink is not None:
        empty = empty & np.isneginf(np.broadcast_to(sink, empty.shape))
    used: Mapping[str, Array] = {
        "queries": live.any(axis=(-1, -3)),
        "keys": live.any(axis=(-2, -3)),
        "values": live.any(axis=(-2, -3)),
    }
    if problem.options.get("empty_rows", "uniform") == "uniform":
        used = {**used, "values": used["values"] | empty.any(axis=(-1, -2))[..., None]}
    poisoned = {
        name: np.where(rows[..., None], problem.inputs[name], np.float32(np.nan))
        for name, rows in used.items()
    }
    return HeadsProblem("multi_head", problem.inputs | poisoned, problem.options, problem.grads)
