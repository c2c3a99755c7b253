"""How far results are from the truth, beside PyTorch's.

Each formula is written once, in PyTorch, and computed twice: in float64, which is the truth, and
in float32, which is what a user without attnext has. The errors of many problems of a kind go
together, so that a gradient that is one number has errors enough to compare.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import attnext

torch: Any = importlib.import_module("torch")
Array = np.ndarray[Any, Any]
Tensor = Any
Results = dict[str, Any]

# How large scores are: their standard deviation. Of additive ones: of the pre-activations a + b,
# and how many times as large w_v is as a layer's first one.
REGIMES = {"tame": 1.0, "sharp": 8.0, "saturated": 64.0, "flat": 0.01}
ADDITIVE = {"tame": (1.0, 1.0), "sharp": (3.0, 8.0), "saturated": (9.0, 32.0), "flat": (0.05, 1.0)}

SCORES = ("dot", "cosine", "additive", "gaussian")
ARGUMENTS = ("queries", "keys", "values", "W_q", "W_k", "w_v")  # in their order; others by name
ASKED = ("bias", "sink", "scale")  # whose gradients have to be asked for
PARAMETERS = {"additive": ("W_q", "W_k", "w_v", "b_h"), "gaussian": ("w",)}


@dataclass(frozen=True)
class Kind:
    """Problems that differ in their numbers alone."""

    name: str
    score: str  # or softmax, merge
    options: tuple[str, ...] = ()  # softcap, sink, bias, scale
    H: int = 0  # hidden units
    pooled: bool = True  # attention; else the scores alone
    repeats: int = 24

    @property
    def function(self) -> str:
        """Of attnext."""
        if self.score in ("softmax", "merge"):
            return {"softmax": "masked_softmax", "merge": "merge_attention"}[self.score]
        name = "dot_product" if self.score == "dot" else self.score
        return name + ("_attention" if self.pooled else "_scores")


def kinds() -> Iterator[Kind]:
    """All of the table. What takes long is repeated less often."""
    for score in SCORES:
        often = {"gaussian": 8, "additive": 8}.get(score, 24)
        units = {16: often, 64: 4, 256: 1} if score == "additive" else {0: often}
        for H, repeats in units.items():
            name = f"{score}, H {H}" if H else score
            yield Kind(f"{name}: scores", score, H=H, pooled=False, repeats=repeats)
            yield Kind(name, score, H=H, repeats=repeats)
        for option in ("softcap", "sink", "bias", "scale"):
            if option != "scale" or score in ("dot", "cosine"):
                yield Kind(f"{score}, {option}", score, (option,), min(units), repeats=often)
    yield Kind("masked_softmax", "softmax")
    yield Kind("merge_attention", "merge")


# ---- inputs --------------------------------------------------------------------------------------

B, HEADS, M, N, D = 2, 2, 48, 200, 64


def problem(kind: Kind, regime: str, seed: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs by the names of attnext's arguments, and the gradients that flow into results."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int, size: float = 1.0) -> Array:
        return (size * rng.standard_normal(shape)).astype(np.float32)

    gain = REGIMES[regime]
    if kind.score == "softmax":
        return {"X": normal(B, M, N, size=gain)}, {"weights": normal(B, M, N)}
    if kind.score == "merge":
        inputs = {f"output {i}": normal(B, M, D) for i in range(3)}
        inputs |= {f"lse {i}": normal(B, M, size=gain) for i in range(3)}
        return inputs, {"output": normal(B, M, D), "lse": normal(B, M)}
    lead = (B, HEADS)
    level, spread = 0.0, gain  # of the scores
    x = {"queries": normal(*lead, M, D), "keys": normal(*lead, N, D), "values": normal(*lead, N, D)}
    if kind.score == "dot":
        x["queries"] *= np.float32(gain)
    elif kind.score == "gaussian":  # squared distances are 2 D, give or take sqrt(8 D)
        x["w"] = np.array((2 * gain / (8 * D) ** 0.5) ** 0.5, np.float32)
        level = float(-D * x["w"] ** 2)
    elif kind.score == "additive":
        size, spread = ADDITIVE[regime]
        for name in ("W_q", "W_k"):
            x[name] = normal(kind.H, D, size=size / (2 * D) ** 0.5)
        x["w_v"] = normal(kind.H, size=spread / kind.H**0.5)
        x["b_h"] = normal(kind.H, size=0.1 * size)
    if kind.score == "cosine" or "scale" in kind.options:  # cosines are 1 / sqrt(D)
        scale = gain * D**0.5 if kind.score == "cosine" else D**-0.5
        shape = lead if "scale" in kind.options else ()
        x["scale"] = (scale * rng.uniform(0.7, 1.3, shape)).astype(np.float32)
    if "softcap" in kind.options:
        cap = 2 * (abs(level) + spread) / (8 if regime == "saturated" else 1)
        x["softcap"] = np.array(cap, np.float32)
    if "sink" in kind.options:
        x["sink"] = normal(HEADS, M, size=spread) + np.float32(level + 2 * spread)
    if "bias" in kind.options:
        x["bias"] = normal(HEADS, M, N, size=spread)
    if not kind.pooled:
        del x["values"]
        return x, {"scores": normal(*lead, M, N)}
    return x, {"output": normal(*lead, M, D)}


# ---- the formulas --------------------------------------------------------------------------------


def scores(kind: Kind, x: dict[str, Tensor]) -> Tensor:
    """As the book and PyTorch's users write them."""
    q, k = x["queries"], x["keys"]
    if kind.score == "additive":
        features = q @ x["W_q"].T
        features = features[..., :, None, :] + (k @ x["W_k"].T)[..., None, :, :] + x["b_h"]
        s = torch.tanh(features) @ x["w_v"]
    elif kind.score == "gaussian":
        distances = (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)
        s = -(x["w"] ** 2) * distances / 2
    else:
        if kind.score == "cosine":
            q, k = (torch.nn.functional.normalize(a, dim=-1, eps=1e-8) for a in (q, k))
        s = q @ k.transpose(-1, -2)
        if "scale" in x:
            s = s * x["scale"][..., None, None]
        elif kind.score == "dot":
            s = s / q.shape[-1] ** 0.5
    return x["softcap"] * torch.tanh(s / x["softcap"]) if "softcap" in x else s


def formula(kind: Kind, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every result but the gradients."""
    if kind.score == "softmax":
        return {"weights": torch.softmax(x["X"], -1)}
    if kind.score == "merge":
        outputs, lses = (torch.stack([x[f"{n} {i}"] for i in range(3)]) for n in ("output", "lse"))
        weights = torch.softmax(lses, 0)[..., None]
        return {"output": (weights * outputs).sum(0), "lse": torch.logsumexp(lses, 0)}
    s = scores(kind, x)
    if not kind.pooled:
        return {"scores": s}
    if "bias" in x:
        s = s + x["bias"]
    if "sink" in x:
        sink = x["sink"].expand(s.shape[:-1])[..., None]
        s = torch.cat([s, sink], -1)
    weights = torch.softmax(s, -1)[..., : x["values"].shape[-2]]
    return {"output": weights @ x["values"], "weights": weights, "lse": torch.logsumexp(s, -1)}


def by_torch(
    kind: Kind, inputs: dict[str, Array], grads: dict[str, Array], precision: str
) -> Results:
    """Results and gradients in this precision."""
    dtype = getattr(torch, precision)
    x = {name: torch.tensor(a, dtype=dtype, requires_grad=name != "softcap")
         for name, a in inputs.items()}  # fmt: skip
    found = formula(kind, x)
    wanted = {name: a for name, a in x.items() if a.requires_grad}
    d = torch.autograd.grad([found[name] for name in grads], list(wanted.values()),
                            [torch.tensor(g, dtype=dtype) for g in grads.values()])  # fmt: skip
    found |= {f"d_{name}": g for name, g in zip(wanted, d, strict=True)}
    return {name: a.detach().numpy() for name, a in found.items()}


def by_attnext(kind: Kind, inputs: dict[str, Array], grads: dict[str, Array]) -> Results:
    """The same of attnext."""
    forward = getattr(attnext, kind.function)
    backward = getattr(attnext, kind.function + "_backward")
    if kind.score == "softmax":
        weights = forward(inputs["X"])
        return {"weights": weights, "d_X": backward(grads["weights"], weights)}
    if kind.score == "merge":
        parts = [[inputs[f"{n} {i}"] for i in range(3)] for n in ("output", "lse")]
        output, lse = forward(*parts)
        d = backward(grads["output"], *parts, grad_lse=grads["lse"])
        names = [f"d_{n} {i}" for n in ("output", "lse") for i in range(3)]
        return {"output": output, "lse": lse, **dict(zip(names, (*d[0], *d[1]), strict=True))}
    arguments = [inputs[name] for name in ARGUMENTS if name in inputs]
    options = {name: a for name, a in inputs.items() if name not in ARGUMENTS}
    if not kind.pooled:
        results = {"scores": forward(*arguments, **options)}
    else:
        found = forward(*arguments, **options, return_weights=True, return_lse=True)
        results = dict(zip(("output", "weights", "lse"), found, strict=True))
    asked = [name for name in ASKED if np.ndim(options.get(name, 0.0)) > 0]
    more = {f"return_grad_{name}": True for name in asked}
    d = backward(*grads.values(), *arguments, **options, **more)
    if kind.score == "additive":
        d = (*(d[0] if asked else d), *(d[1:] if asked else ()))
    names = ["queries", "keys", "values", *PARAMETERS.get(kind.score, ()), *asked]
    if not kind.pooled and kind.score != "additive":
        names.remove("values")
    return results | {f"d_{n}": g for n, g in zip(names, d, strict=True) if g is not None}


# ---- errors --------------------------------------------------------------------------------------


@dataclass
class Errors:
    """Of one result, over all problems of a kind."""

    squares: float = 0.0
    largest: float = 0.0

    def add(self, got: Array, exact: Array) -> None:
        """Those of one more problem."""
        error = np.abs(np.asarray(got, np.float64) - exact)
        self.squares += float((error * error).sum())
        self.largest = max(self.largest, float(error.max()))
        assert np.isfinite(self.largest)


def ratio(ours: float, theirs: float) -> float:
    """1 where neither is off."""
    return ours / theirs if theirs else (1.0 if not ours else float("inf"))


def measured(kind: Kind, regime: str, repeats: int) -> dict[str, dict[str, float]]:
    """For each result: our root mean square and largest error as multiples of PyTorch's."""
    ours: dict[str, Errors] = {}
    theirs: dict[str, Errors] = {}
    for seed in range(repeats):
        inputs, grads = problem(kind, regime, seed)
        exact = by_torch(kind, inputs, grads, "float64")
        for errors, found in (
            (ours, by_attnext(kind, inputs, grads)),
            (theirs, by_torch(kind, inputs, grads, "float32")),
        ):
            for name in found:
                together = name.partition(" ")[0]  # the parts of a merge
                errors.setdefault(together, Errors()).add(found[name], exact[name])
    return {
        name: {
            "rms": ratio(e.squares, theirs[name].squares) ** 0.5,
            "largest": ratio(e.largest, theirs[name].largest),
        }
        for name, e in ours.items()
    }


def ulps(n: int, rows: int = 4096) -> dict[str, float]:
    """The largest errors of a softmax of n numbers, in units in the last place of the results."""
    x = 4 * np.random.default_rng(n).standard_normal((rows, n), dtype=np.float32)
    exact = torch.softmax(torch.from_numpy(x).double(), -1).numpy()
    unit = np.spacing(exact.astype(np.float32)).astype(np.float64)
    found = {
        "attnext": attnext.masked_softmax(x),
        "PyTorch": torch.softmax(torch.from_numpy(x), -1).numpy(),
    }
    return {name: float((np.abs(y - exact) / unit).max()) for name, y in found.items()}


def digest() -> str:
    """Of the bits of attnext's results: one problem of each kind, of few hidden units."""
    sha = hashlib.sha256()
    for kind in kinds():
        if kind.H <= 16:
            for x in by_attnext(kind, *problem(kind, "sharp", 0)).values():
                sha.update(np.ascontiguousarray(x).tobytes())
    return sha.hexdigest()[:16]
