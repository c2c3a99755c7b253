"""A fixed workload whose results test_bits.py compares: ``python workload.py out.npz``.

It runs in a process of its own, because the instruction set is chosen at import. The operands
come from a counter and integer arithmetic, so they are the same on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from helpers import SCORES, SCORES_FUNCTION, Array, Problem

import attnext

SCORE_OPTIONS = ("b_h", "scale", "w", "eps", "softcap")


class Numbers:
    """Multiples of 2^-20 in [-2, 2), from splitmix64."""

    def __init__(self, seed: int) -> None:
        self.state = seed << 32

    def words(self, count: int) -> Array:
        with np.errstate(over="ignore"):
            z = np.arange(self.state, self.state + count, dtype=np.uint64)
            z *= np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        self.state += count
        return z ^ (z >> np.uint64(31))

    def floats(self, *shape: int, size: float = 1.0) -> Array:
        """size should be a power of two, so that the product is exact."""
        words = self.words(int(np.prod(shape))) >> np.uint64(42)
        numbers = words.astype(np.float64) / 2**20 - 2
        return (size * numbers).astype(np.float32).reshape(shape)

    def integers(self, low: int, high: int, *shape: int) -> Array:
        words = self.words(int(np.prod(shape))) >> np.uint64(33)
        return (low + words % np.uint64(high - low)).astype(np.int64).reshape(shape)

    def bools(self, *shape: int) -> Array:
        """Three of four are True."""
        return self.integers(0, 4, *shape) > 0

    def bias(self, *shape: int) -> Array:
        """One of eight is -inf."""
        x = self.floats(*shape)
        return np.where(self.integers(0, 8, *shape) == 0, np.float32(-np.inf), x)


def problem_of(
    score: str,
    number: Numbers,
    lead: tuple[int, ...],
    M: int,
    N: int,
    D: int,
    Dv: int,
    H: int,
    size: float = 1.0,
    kv_heads: int | None = None,
    **options: Any,
) -> Problem:
    """size multiplies the queries: the additive score then goes through its regimes."""
    Dk = D + 3 if score == "additive" else D
    kv_lead = lead
    if kv_heads is not None:
        kv_lead, options["enable_gqa"] = (*lead[:-1], kv_heads), True
    inputs = {
        "queries": number.floats(*lead, M, D, size=size),
        "keys": number.floats(*kv_lead, N, Dk, size=size),
        "values": number.floats(*kv_lead, N, Dv),
    }
    if score == "additive":
        inputs |= {
            "W_q": number.floats(H, D, size=0.25),
            "W_k": number.floats(H, Dk, size=0.25),
            "w_v": number.floats(H, size=0.5),
        }
        options["b_h"] = number.floats(H, size=0.25)
    grads = {
        "grad_output": number.floats(*lead, M, Dv),
        "grad_weights": number.floats(*lead, M, N),
        "grad_lse": number.floats(*lead, M),
    }
    return Problem(score, inputs, options, grads)


def problems() -> Iterator[tuple[str, Problem]]:
    for i, score in enumerate(SCORES):
        number = Numbers(i + 1)

        def make(
            *sizes: Any, score: str = score, number: Numbers = number, **options: Any
        ) -> Problem:
            return problem_of(score, number, *sizes, **options)

        yield f"{score} small", make((2,), 3, 5, 4, 3, 5)
        yield f"{score} blocks", make((2,), 67, 131, 19, 21, 9)
        lens = number.integers(0, 150, 2, 3, 33)
        for mode in ("uniform", "zero", "nan"):
            options: dict[str, Any] = {"valid_lens": lens, "empty_rows": mode}
            yield f"{score} lens {mode}", make((2, 3), 33, 140, 8, 17, 6, **options)
        dropout: dict[str, Any] = {"valid_lens": lens[:, 0], "dropout_p": 0.3, "seed": 2**63 + 5}
        yield f"{score} dropout", make((2,), 33, 140, 8, 17, 6, **dropout)
        yield (
            f"{score} groups",
            make((1,), 600, 20, 5, 4, 4, valid_lens=number.integers(0, 21, 1, 600)),
        )
        yield f"{score} chunks", make((1,), 18, 20, 300, 270, 260, size=0.125)
        for size in (2**-6, 0.5, 8.0, 64.0):
            yield f"{score} size {size}", make((2,), 20, 150, 12, 5, 10, size=size)
        nasty = make((2,), 20, 150, 7, 5, 8)
        nasty.inputs["keys"][0, 3, 1] = np.nan
        nasty.inputs["keys"][0, 140, 2] = np.inf
        nasty.inputs["queries"][1, 2, 0] = -np.inf
        nasty.inputs["queries"][1, 5] = 1e-42
        nasty.inputs["values"][1, 7, 1] = np.inf
        yield f"{score} nasty", nasty
        for name, masks in masks_of(number):
            yield f"{score} {name}", make((2, 6), 33, 140, 8, 17, 6, **masks)
        few = Numbers(i + 31)
        for M in (1, 2):
            yield f"{score} few {M}", problem_of(score, few, (2, 4), M, 140, 19, 70, 9)
            all_masks = {"mask": few.bools(M, 140), "bias": few.bias(4, M, 140), "window": (99, 99)}
            all_masks |= {"valid_lens": few.integers(0, 150, 2, M), "dropout_p": 0.3, "seed": 7}
            yield (
                f"{score} few masked {M}",
                problem_of(score, few, (2, 4), M, 140, 8, 17, 6, kv_heads=2, **all_masks),
            )
        yield f"{score} few split", problem_of(score, few, (1,), 1, 9000, 3, 2, 4)
    yield "dot scale", problem_of("dot", Numbers(9), (2,), 20, 150, 12, 5, 0, scale=-3.5)
    yield "gaussian w", problem_of("gaussian", Numbers(10), (2,), 20, 150, 12, 5, 0, w=0.3)
    cosine = problem_of("cosine", Numbers(11), (2,), 20, 150, 12, 5, 0, scale=9.0, eps=0.5)
    cosine.inputs["queries"][0, :5] /= 16
    cosine.inputs["keys"][0, 7] = 2.0**100
    yield "cosine scale", cosine
    for i, score in enumerate(SCORES):
        number = Numbers(i + 41)
        every = {"valid_lens": number.integers(0, 150, 2), "bias": number.bias(33, 140)}
        for cap in (0.25, 3.0):
            capped = problem_of(score, number, (2,), 33, 140, 19, 5, 9, softcap=cap, **every)
            yield f"softcap: {score} {cap}", capped
            few = problem_of(score, number, (2,), 1, 140, 19, 5, 9, softcap=cap)
            yield f"softcap: {score} few {cap}", few
        nasty = problem_of(score, number, (2,), 20, 150, 7, 5, 8, softcap=3.0)
        nasty.inputs["keys"][0, 3, 1] = np.nan
        nasty.inputs["queries"][1, 2, 0] = -np.inf
        yield f"softcap: {score} nasty", nasty
    yield from shared_problems()


def shared_problems() -> Iterator[tuple[str, Problem]]:
    """Sinks, and scales of heads; what is before the colon has a checksum of its own."""
    for i, score in enumerate(SCORES):
        number = Numbers(i + 41)
        masks: dict[str, Any] = {
            "valid_lens": number.integers(0, 150, 2, 33),
            "bias": number.bias(4, 1, 140),
            "kv_heads": 2,
            "dropout_p": 0.3,
            "seed": 7,
        }
        for mode, sink in [("uniform", (4, 1)), ("zero", (2, 1, 33)), ("nan", (33,))]:
            options = {**masks, "empty_rows": mode, "sink": number.bias(*sink)}
            if score in ("dot", "cosine"):
                options["scale"] = number.floats(4)
            made = problem_of(score, number, (2, 4), 33, 140, 8, 17, 6, **options)
            yield f"sink: {score} {mode}", made
        for M, N in [(1, 140), (2, 9000)]:
            made = problem_of(
                score, number, (2,), M, N, 3, 2, 4, sink=number.floats(2, 1, size=4.0)
            )
            yield f"sink: {score} {M} {N}", made


def masks_of(number: Numbers) -> Iterator[tuple[str, dict[str, Any]]]:
    """For 2 entries of 6 heads, 33 queries and 140 keys."""
    yield "mask", {"mask": number.bools(2, 1, 33, 140), "empty_rows": "zero"}
    yield "key mask", {"mask": number.bools(6, 1, 140)}
    yield "row mask", {"mask": number.bools(2, 6, 33, 1), "empty_rows": "nan"}
    yield "bias", {"bias": number.bias(6, 33, 140), "empty_rows": "zero"}
    yield "own bias", {"bias": number.bias(2, 6, 33, 140)}
    yield "key bias", {"bias": number.bias(140)}
    yield "row bias", {"bias": number.bias(2, 1, 33, 1)}
    yield "causal", {"causal": True, "causal_offset": number.integers(0, 129, 2) - 9}
    yield "window", {"window": (30, 7), "causal_offset": 50, "empty_rows": "nan"}
    yield "heads", {"kv_heads": 2}
    yield "dropout mask", {"dropout_mask": number.bools(6, 1, 140), "dropout_p": 0.25}
    every: dict[str, Any] = {
        "valid_lens": number.integers(0, 150, 2, 33),
        "mask": number.bools(33, 140),
        "bias": number.bias(2, 6, 1, 140),
        "causal": True,
        "causal_offset": 90,
        "window": (60, -1),
        "kv_heads": 3,
        "dropout_p": 0.3,
        "seed": 12345,
    }
    for mode in ("uniform", "zero", "nan"):
        yield f"all {mode}", {**every, "empty_rows": mode}


def results() -> dict[str, Array]:
    every: dict[str, Any] = {}
    for name, problem in problems():
        every |= {f"{name} {part}": x for part, x in problem.run().items()}
        if problem.options.get("empty_rows", "uniform") == "uniform":
            output, weights, lse = problem.forward(return_weights=True, return_lse=True)
            d = problem.backward(weights=weights)
            every |= {f"{name} handed weights {part}": x for part, x in d.items()}
            del problem.grads["grad_weights"]
            d = problem.backward(output=output, lse=lse)
            every |= {f"{name} handed {part}": x for part, x in d.items()}
        parts = {"queries", "keys", "W_q", "W_k", "w_v"}
        arrays = {part: x for part, x in problem.inputs.items() if part in parts}
        options = {part: x for part, x in problem.options.items() if part in SCORE_OPTIONS}
        if not problem.options.get("enable_gqa"):  # scores have no groups
            scores = getattr(attnext, SCORES_FUNCTION[problem.score])(**arrays, **options)
            every[f"{name} scores"] = scores
    number = Numbers(20)
    for n in [*range(1, 36), 127, 128, 129, 1000]:
        X, lens = number.floats(3, 4, n, size=4.0), number.integers(0, n + 2, 3, 4)
        weights = attnext.masked_softmax(X, lens)
        d_X = attnext.masked_softmax_backward(number.floats(3, 4, n), weights, lens)
        every |= {f"softmax {n}": weights, f"softmax {n} d_X": d_X}
        mask = number.bools(4, n)
        weights = attnext.masked_softmax(X, lens, mask=mask)
        d_X = attnext.masked_softmax_backward(number.floats(3, 4, n), weights, lens, mask=mask)
        every |= {f"softmax mask {n}": weights, f"softmax mask {n} d_X": d_X}
    every["sequence_mask"] = attnext.sequence_mask(number.floats(3, 9, 5), [0, 4, 9], -1)
    for count in (1, 2, 9):
        outputs, lses = number.floats(count, 70, 19), number.bias(count, 70)
        output, lse = attnext.merge_attention(outputs, lses)
        g = {"grad_output": number.floats(70, 19), "grad_lse": number.floats(70)}
        d_outputs, d_lses = attnext.merge_attention_backward(**g, outputs=outputs, lses=lses)
        merged = {"output": output, "lse": lse, "d_outputs": d_outputs, "d_lses": d_lses}
        every |= {f"merge {count} {part}": x for part, x in merged.items()}
    return every


if __name__ == "__main__":
    arrays: dict[str, Any] = results()
    np.savez(sys.argv[1], **arrays)
