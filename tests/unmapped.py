"""Every function on arrays beside memory that must not be touched: ``python unmapped.py``.

test_rules.py runs this in a process of its own: a stray read or write ends it by a signal.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from helpers import SCORES, Array, Problem, assert_same_bits, bits, make_problem

import attnext

LIBC = ctypes.CDLL(None, use_errno=True)
PROT_NONE = 0


def between_guards(x: Array, behind: bool, mapped: int | None = None) -> Array:
    """A copy of x whose end (or, not behind, whose start) is the edge of its mapped pages.

    mapped: only so many of its first elements are in mapped memory; the rest has no page.
    """
    page = mmap.PAGESIZE
    mapped = x.size if mapped is None else mapped
    pages = -(-4 * mapped // page)
    rest = -(-4 * (x.size - mapped) // page)
    memory = mmap.mmap(-1, (pages + rest + 2) * page)
    offset = page + (4 * (-mapped % (page // 4)) if behind or rest else 0)
    copy: Array = np.frombuffer(memory, dtype=np.float32, count=x.size, offset=offset)
    copy[:mapped] = x.reshape(-1)[:mapped]
    start = np.frombuffer(memory, dtype=np.uint8).ctypes.data
    for first, count in ((0, 1), (1 + pages, rest + 1)):
        result = LIBC.mprotect(
            ctypes.c_void_p(start + first * page), ctypes.c_size_t(count * page), PROT_NONE
        )
        assert result == 0, ctypes.get_errno()
    return copy.reshape(x.shape)


def moved(problem: Problem, move: Callable[[Array], Array]) -> Problem:
    return Problem(
        problem.score,
        {name: move(x) for name, x in problem.inputs.items()},
        problem.options,
        {name: move(x) for name, x in problem.grads.items()},
    )


def check_edges(problem: Problem) -> None:
    """All arrays, out= included, at both edges."""
    expected = problem.run()
    for behind in (True, False):
        there = moved(problem, lambda x, behind=behind: between_guards(x, behind))
        assert_same_bits(there.run(), expected)
        out = between_guards(np.zeros_like(expected["output"]), behind)
        np.testing.assert_array_equal(bits(there.forward(out=out)), bits(expected["output"]))


def edges() -> None:
    for score in SCORES:
        for axis in ("M", "N", "D", "Dv", "H"):
            for size in [*range(1, 20), 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129]:
                rng = np.random.default_rng(size)
                sizes: dict[str, Any] = {"M": 3, "N": 5, axis: size}
                lens = rng.integers(0, sizes["N"] + 1, size=(2, sizes["M"]))
                check_edges(make_problem(score, rng, **sizes, valid_lens=lens))
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


def padding_without_memory() -> None:
    """Keys, values and gradients of weights beyond the length lie in pages that do not exist."""
    N = 3000
    for score in SCORES:
        for length in (1, 5, 64, 127, 128, 129, 300):
            for empty_rows in ("zero", "nan"):
                rng = np.random.default_rng(length)
                lens = rng.integers(0, length + 1, size=(1, 20))
                lens[0, 3] = length
                options = {"valid_lens": lens, "empty_rows": empty_rows}
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


if __name__ == "__main__":
    edges()
    padding_without_memory()
