"""Every function on arrays beside memory that must not be touched: ``python unmapped.py``.

test_rules.py runs this in a process of its own: a stray read or write ends it by a signal.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from helpers import (
    SCORES,
    Array,
    Problem,
    assert_same_bits,
    bits,
    make_problem,
    over_groups,
    random_masks,
)

import attnext

LIBC = ctypes.CDLL(None, use_errno=True)
PROT_NONE = 0


def protect(address: int, pages: int) -> None:
    """Whoever touches these pages is ended by a signal."""
    result = LIBC.mprotect(
        ctypes.c_void_p(address), ctypes.c_size_t(pages * mmap.PAGESIZE), PROT_NONE
    )
    assert result == 0, ctypes.get_errno()


def between_guards(x: Array, behind: bool, mapped: int | None = None) -> Array:
    """A copy of x whose end (or, not behind, whose start) is the edge of its mapped pages.

    mapped: only so many of its first elements are in mapped memory; the rest has no page.
    """
    page, size = mmap.PAGESIZE, x.itemsize
    mapped = x.size if mapped is None else mapped
    pages = -(-size * mapped // page)
    rest = -(-size * (x.size - mapped) // page)
    memory = mmap.mmap(-1, (pages + rest + 2) * page)
    offset = page + (size * (-mapped % (page // size)) if behind or rest else 0)
    copy: Array = np.frombuffer(memory, dtype=x.dtype, count=x.size, offset=offset)
    copy[:mapped] = x.reshape(-1)[:mapped]
    start = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    protect(start, 1)
    protect(start + (1 + pages) * page, rest + 1)
    return copy.reshape(x.shape)


def without_pages(x: Array, untouched: Array) -> Array:
    """A copy of x, all of whose pages are gone that hold nothing but untouched elements."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, max(-(-x.nbytes // page), 1) * page)
    copy: Array = np.frombuffer(memory, dtype=x.dtype, count=x.size)
    copy[...] = x.reshape(-1)
    gone = np.broadcast_to(untouched, x.shape).reshape(-1)
    for i, start in enumerate(range(0, x.size, page // x.itemsize)):
        if gone[start : start + page // x.itemsize].all():
            protect(copy.ctypes.data + i * page, 1)
    return copy.reshape(x.shape)


def moved(problem: Problem, move: Callable[[Array], Array]) -> Problem:
    options = {
        name: move(x) if isinstance(x, np.ndarray) and x.dtype != np.int64 else x
        for name, x in problem.options.items()
    }
    return Problem(
        problem.score,
        {name: move(x) for name, x in problem.inputs.items()},
        options,
        {name: move(x) for name, x in problem.grads.items()},
    )


def check_edges(problem: Problem) -> None:
    """All arrays, out= included, at both edges."""
    expected = problem.run()
    for behind in (True, False):
        there = moved(problem, partial(between_guards, behind=behind))
        assert_same_bits(there.run(), expected)
        out = between_guards(np.zeros_like(expected["output"]), behind)
        np.testing.assert_array_equal(bits(there.forward(out=out)), bits(expected["output"]))


# 31, a prime: each axis goes through them at a pace of its own.
EDGES = [*range(1, 20), 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129]


def edges() -> None:
    for score in SCORES:
        for paces in (
            {"M": 1, "N": 3, "D": 5, "Dv": 9, "H": 11},
            {"M": 13, "D": 1, "Dv": 3, "H": 5},
        ):
            for i in range(len(EDGES)):
                rng = np.random.default_rng(i)
                sizes = {"N": 5} | {axis: EDGES[i * pace % 31] for axis, pace in paces.items()}
                lens = rng.integers(0, sizes["N"] + 1, size=(2, sizes["M"]))
                check_edges(make_problem(score, rng, **sizes, valid_lens=lens))
        for case in range(30):
            rng = np.random.default_rng(case)
            M, N = (int(n) for n in rng.choice([1, 2, 7, 8, 15, 17, 33, 64, 127, 129, 140], size=2))
            masks = random_masks(rng, (2, 2), M, N)
            masks["dropout_mask"] = rng.random((2, 1, M, N)) < 0.5
            masks = {
                name: np.asarray(x) if name in ("mask", "bias") else x for name, x in masks.items()
            }
            check_edges(make_problem(score, rng, lead=(2, 2), M=M, N=N, kv_heads=1, **masks))
    for n in [*range(1, 68), 127, 128, 129]:
        X = np.random.default_rng(n).standard_normal((3, n), dtype=np.float32)
        weights = attnext.masked_softmax(X, [n, n // 2, 0])
        d_X = attnext.masked_softmax_backward(X, weights, [n, n // 2, 0])
        copy = attnext.sequence_mask(X, [n, n // 2, 0], 7)
        for behind in (True, False):
            there, w = between_guards(X, behind), between_guards(weights, behind)
            out = between_guards(np.zeros_like(X), behind)
            attnext.masked_softmax(there, [n, n // 2, 0], out=out)
            found = attnext.masked_softmax_backward(there, w, [n, n // 2, 0])
            np.testing.assert_array_equal(out, weights)
            np.testing.assert_array_equal(found, d_X)
            np.testing.assert_array_equal(attnext.sequence_mask(there, [n, n // 2, 0], 7), copy)
        mask = np.random.default_rng(n).random((3, n)) < 0.5
        weights = attnext.masked_softmax(X, mask=mask)
        for behind in (True, False):
            there, allowed = between_guards(X, behind), between_guards(mask, behind)
            np.testing.assert_array_equal(attnext.masked_softmax(there, mask=allowed), weights)
            attnext.masked_softmax_backward(there, weights, mask=allowed)
    for Dv in [*range(1, 20), 31, 32, 33, 63, 64, 65]:
        rng = np.random.default_rng(Dv)
        outputs = rng.standard_normal((3, 5, Dv), dtype=np.float32)
        lses = rng.standard_normal((3, 5), dtype=np.float32)
        d_parts = attnext.merge_attention_backward(outputs[0], outputs, lses, grad_lse=lses[0])
        for behind in (True, False):
            o, s = (between_guards(x, behind) for x in (outputs, lses))
            g, g_lse = (between_guards(x[0], behind) for x in (outputs, lses))
            attnext.merge_attention(o, s)
            d_there = attnext.merge_attention_backward(g, o, s, grad_lse=g_lse)
            np.testing.assert_array_equal(d_there[0], d_parts[0])
            np.testing.assert_array_equal(d_there[1], d_parts[1])


def padding_without_memory() -> None:
    """Keys, values and gradients of weights beyond the length lie in pages that do not exist."""
    N = 3000
    for score in SCORES:
        for length in (1, 5, 64, 127, 128, 129, 300):
            for empty_rows in ("zero", "nan"):
                rng = np.random.default_rng(length)
                lens = rng.integers(0, length + 1, size=(1, 20))
                lens[0, 3] = length
                options: dict[str, Any] = {"valid_lens": lens, "empty_rows": empty_rows}
                problem = make_problem(score, rng, lead=(1,), M=20, N=N, **options)
                del problem.grads["grad_weights"]
                expected = problem.run()
                for name in ("keys", "values"):
                    x = problem.inputs[name]
                    problem.inputs[name] = between_guards(x, True, length * x.shape[-1])
                assert_same_bits(problem.run(), expected)
            one_row = make_problem(score, rng, lead=(1,), M=1, N=N, valid_lens=length)
            expected = one_row.run()
            grad = one_row.grads["grad_weights"]
            one_row.grads["grad_weights"] = between_guards(grad, True, length)
            assert_same_bits(one_row.run(), expected)
    X = np.random.default_rng(0).standard_normal(N, dtype=np.float32)
    for length in (1, 5, 64, 129):
        weights = attnext.masked_softmax(X, length)
        there = between_guards(X, True, length)
        np.testing.assert_array_equal(attnext.masked_softmax(there, length), weights)
        d_X = attnext.masked_softmax_backward(X, weights, length)
        w = between_guards(weights, True, length)
        np.testing.assert_array_equal(attnext.masked_softmax_backward(there, w, length), d_X)
        sequence = between_guards(X[None], True, length)
        attnext.sequence_mask(sequence, [length])


def tiles_without_memory() -> None:
    """Keys, values and gradients of weights of tiles that no pair takes part in have no pages.

    A tile is 128 keys; keys and values have so many features that it fills a page.
    """
    M, N, D = 70, 1300, max(mmap.PAGESIZE // (4 * 128), 1)
    live = np.zeros((2, 1, M, N), dtype=bool)
    live[0, :, :, 300:500] = live[0, :, 3:60, 800:801] = live[1, :, ::7, 1200:] = True
    live[..., 1::3] = False
    entry = np.arange(2)[:, None, None, None]
    kinds: dict[str, dict[str, Any]] = {
        "mask": {"mask": live},
        "keys mask": {"mask": live.any(axis=-2, keepdims=True)},
        "bias": {"bias": np.where(live, np.float32(0.5), np.float32(-np.inf))},
        "causal": {"causal": True, "causal_offset": [200, 700]},
        "late": {"causal": True, "causal_offset": -M},
        "window": {"window": (100, 30), "causal_offset": [600, 150]},
        "window and mask": {"window": (400, 500), "mask": live},
        "causal and mask": {"causal": True, "causal_offset": 500, "mask": live},
        "lens and window": {"window": (3, -1), "causal_offset": 400, "valid_lens": 900},
        "bias and mask": {
            "bias": np.where(live | (entry == 0), np.float32(0.5), np.float32(-np.inf)),
            "mask": live | (entry == 1),
        },
    }
    for i, (score, kind) in enumerate(product(SCORES, kinds)):
        options = {**kinds[kind], "empty_rows": ("zero", "nan")[(i + i // len(kinds)) % 2]}
        sizes: dict[str, Any] = {"lead": (2, 2), "M": M, "N": N, "D": D, "Dk": D, "Dv": D}
        rng = np.random.default_rng(0)
        hide_tiles(make_problem(score, rng, **sizes, kv_heads=1, **options), kind)
    for kind, masks in kinds.items():
        hide_weights(masks, kind)


def unused_tiles(problem: Problem) -> Array:
    """(..., N), as the keys are: of a tile in which nobody has a pair that takes part."""
    shape, N = problem.inputs["keys"].shape, problem.inputs["keys"].shape[-2]
    live = problem.takes_part()
    used = over_groups(np.any, np.asarray(live.any(axis=-2))[..., None], shape)[..., 0]
    tiles = np.pad(used, ((0, 0), (0, 0), (0, -N % 128))).reshape(*shape[:-2], -1, 128)
    used_tiles = np.asarray(tiles.any(axis=-1))
    return ~used_tiles.repeat(128, axis=-1)[..., :N]


def hide_tiles(problem: Problem, kind: str) -> None:
    expected = problem.run()
    unused = unused_tiles(problem)[..., None]
    assert unused.any(), kind
    for name in ("keys", "values"):
        problem.inputs[name] = without_pages(problem.inputs[name], unused)
    assert_same_bits(problem.run(), expected)
    weights = problem.forward(return_weights=True)[1]
    problem.backward(weights=weights)


def hide_weights(masks: dict[str, Any], kind: str) -> None:
    """One query, so that a page holds many tiles of one row."""
    rng = np.random.default_rng(0)
    N = 1300 * mmap.PAGESIZE // 128
    masks = dict(masks)
    for name in {"mask", "bias"} & masks.keys():
        masks[name] = masks[name][..., -1:, :].repeat(N // 1300 + 1, axis=-1)[..., :N]
    problem = make_problem("dot", rng, lead=(2, 1), M=1, N=N, D=2, Dv=2, empty_rows="zero", **masks)
    expected = problem.run()
    grads, unused = problem.grads, unused_tiles(problem)[..., None, :]
    grads["grad_weights"] = without_pages(grads["grad_weights"], unused)
    assert_same_bits(problem.run(), expected)


if __name__ == "__main__":
    edges()
    padding_without_memory()
    tiles_without_memory()
