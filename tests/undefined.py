"""No number comes of memory that nobody wrote to: ``valgrind python undefined.py``.

.ci/run has memcheck watch this, which knows of every bit whether it was ever set. What padding, the
room behind a memory's keys and scratch hold is not; every result goes through write(), before which
memcheck looks at it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import cycle
from typing import Any

import numpy as np
from helpers import SCORES, SCORES_FUNCTION, Array, Problem, make_problem, random_masks

import attnext

SINK = os.open(os.devnull, os.O_WRONLY)


def check(results: Iterable[Any]) -> None:
    for x in results:
        os.write(SINK, np.ascontiguousarray(x))


def without_padding(problem: Problem) -> None:
    """Keys and values behind the valid lengths are there, but were never written to."""
    rows = np.arange(problem.inputs["keys"].shape[-2])
    used = rows < np.reshape(problem.options["valid_lens"], (-1, 1))  # (B, N)
    for name in ("keys", "values"):
        undefined: Array = np.empty_like(problem.inputs[name])
        undefined[used] = problem.inputs[name][used]
        problem.inputs[name] = undefined


def attentions() -> None:
    """Sizes around the vectors and the tiles, each with masks of its own."""
    rng = np.random.default_rng(0)
    sizes = [(1, 1, 1), (1, 9, 8), (2, 7, 3), (1, 200, 5), (5, 17, 9), (9, 130, 16), (70, 66, 33)]
    scores = cycle(SCORES)
    for i in range(4 * len(sizes)):
        (M, N, D), score, masked = sizes[i % len(sizes)], next(scores), i // len(SCORES) % 2
        shape: dict[str, Any] = {"lead": (2,), "M": M, "N": N, "D": D, "Dv": D + 1, "H": D + 2}
        more = {"empty_rows": "zero", "dropout_p": 0.3, "seed": i, "sink": rng.random((2, 1))}
        masks = random_masks(rng, (2,), M, N) if masked else {"valid_lens": [N // 2, N - 1]}
        problem = make_problem(score, rng, **shape, **masks, **more, softcap=5.0 * (i % 3) or None)
        if not masked:
            without_padding(problem)
        check(problem.run().values())
        scored = {name: x for name, x in problem.inputs.items() if name != "values"}
        check([getattr(attnext, SCORES_FUNCTION[score])(**scored)] if masked else [])


def others() -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((3, 5, 19), dtype=np.float32)
    for lens, rule in ([1, 0, 19], "uniform"), ([9, 8, 7], "nan"):
        weights = attnext.masked_softmax(X, lens, empty_rows=rule)
        check([weights, attnext.masked_softmax_backward(X, weights, lens, empty_rows=rule)])
    check([attnext.sequence_mask(X, [2, 0, 5])])
    check(attnext.merge_attention(X, X[..., 0]))
    check(attnext.merge_attention_backward(X[0], X, X[..., 0], grad_lse=X[0, :, 0]))


def layers() -> None:
    """A memory grows to more room than it has keys, and its gradients are added up."""
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((2, n, 5), dtype=np.float32) for n in (3, 7, 7))
    makers = [
        lambda: attnext.AdditiveAttention(5, 5, 9, 0.5, bias=True, rng=0),
        lambda: attnext.DotProductAttention(rng=0),
    ]
    for make in makers:
        layer: Any = make()
        check([layer(q, k, v, [7, 2]), *layer.backward(q)])
        memory = layer.memory(k, v, [9, 5], mask=np.arange(7) != 1)
        for _ in range(3):
            check([layer(q, memory), layer.backward(q)])
            memory.append(k[:, :2], v[:, :2])
        check([layer(q, memory), layer.backward(q), *memory.backward()])
        check([*layer.state_dict().values(), *layer.grads.values()])


if __name__ == "__main__":
    for threads in (1, 2):
        attnext.set_num_threads(threads)
        attentions()
        others()
        layers()
    print("every number is of numbers")
