"""Every kind of mask over tiles of keys that have no memory: ``python unvisited.py``.

test_masks.py runs this in a process of its own: a visit of a tile that no pair takes part in ends
it by a signal. What was printed last says whose visit it was.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import replace
from typing import Any

import numpy as np
from helpers import SCORES, Array, Problem, assert_same_bits, make_problem, takes_part
from unmapped import LIBC, PROT_NONE

KEYS = 128  # of a tile
M, N = 20, 96 * KEYS  # one block of queries
D = mmap.PAGESIZE // (4 * KEYS)  # so that the keys of a tile fill a page


def with_holes(x: Array, needed: Array) -> Array:
    """A copy of what is needed of x; pages that hold nothing of it do not exist."""
    page = mmap.PAGESIZE
    pages = -(-x.nbytes // page)
    memory = mmap.mmap(-1, pages * page)
    copy: Array = np.frombuffer(memory, dtype=x.dtype, count=x.size).reshape(x.shape)
    needed = np.broadcast_to(needed, x.shape)
    copy[needed] = x[needed]
    used = np.zeros((pages, page), dtype=bool)
    used.reshape(-1)[: x.nbytes] = np.repeat(needed.reshape(-1), x.itemsize)
    start = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    for i in np.flatnonzero(~used.any(axis=1)):
        address, size = ctypes.c_void_p(start + int(i) * page), ctypes.c_size_t(page)
        assert LIBC.mprotect(address, size, PROT_NONE) == 0, ctypes.get_errno()
    return copy


def tiles_of(live: Array) -> Array:
    """(N,): the keys of those tiles in which any of these pairs takes part."""
    tiles = live.reshape(-1, N // KEYS, KEYS).any(axis=(0, 2))
    return np.repeat(tiles, KEYS)


def kinds_of_masks(rng: np.random.Generator) -> dict[str, dict[str, Any]]:
    here, there = np.zeros((2, N), dtype=bool)
    here[2 * KEYS : 3 * KEYS] = here[60 * KEYS + 5] = True
    there[: 20 * KEYS] = there[70 * KEYS :] = True
    some = rng.random((M, N)) < 0.5
    some[3] = False  # an empty row
    bias = rng.standard_normal((M, N), dtype=np.float32)
    return {
        "mask of keys": {"mask": here},
        "mask of pairs": {"mask": some & here},
        "bias of keys": {"bias": np.where(here, bias[0], -np.inf)},
        "bias of pairs": {"bias": np.where(some & here, bias, -np.inf)},
        "causal": {"causal": True, "causal_offset": 300},
        "window": {"window": (10, 300), "causal_offset": [9000]},
        "lengths": {"valid_lens": rng.integers(0, 500, size=(1, M))},
        "causal, mask and bias": {"causal": True, "mask": some, "bias": bias},
        "lengths, mask": {"valid_lens": 5000, "mask": some},
        "mask inside of a window": {"window": (9500, 0), "causal_offset": 11000, "mask": there},
        "everything": {
            "valid_lens": [10000],
            "mask": some & there,
            "bias": bias,
            "window": (9500, -1),
            "causal_offset": 10500,
            "dropout_mask": rng.random((M, N)) < 0.8,
        },
    }


def without_memory(problem: Problem) -> Problem:
    """The same, with memory for no more than the tiles in which pairs take part.

    mask and bias: for no more than those that lengths and band leave, where they are looked at.
    """
    visited = tiles_of(problem.takes_part())
    assert not visited.all()
    rules = {"valid_lens", "causal", "causal_offset", "window"} & problem.options.keys()
    band = {name: problem.options[name] for name in rules}
    looked_at = tiles_of(takes_part((1, M), N, band))
    options = {
        name: with_holes(problem.options[name], where)
        for name, where in [("mask", looked_at), ("bias", looked_at), ("dropout_mask", visited)]
        if name in problem.options
    }
    keys, values = (
        with_holes(problem.inputs[name], visited[:, None]) for name in ("keys", "values")
    )
    grad_weights = with_holes(problem.grads["grad_weights"], visited)
    return replace(
        problem,
        inputs={**problem.inputs, "keys": keys, "values": values},
        options={**problem.options, **options},
        grads={**problem.grads, "grad_weights": grad_weights},
    )


def main() -> None:
    for score in SCORES:
        rng = np.random.default_rng(0)
        sizes: dict[str, Any] = {"lead": (1,), "M": M, "N": N, "D": D, "Dk": D, "Dv": D, "H": 3}
        for kind, masks in kinds_of_masks(rng).items():
            print(score, kind, flush=True)
            problem = make_problem(score, rng, **sizes, **masks, empty_rows="zero")
            assert_same_bits(without_memory(problem).run(), problem.run())


if __name__ == "__main__":
    main()
