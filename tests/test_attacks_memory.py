"""Memory that cannot be had: every allocation of every public function and method fails once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import SCORES, make_problem

import attnext
from attnext import AdditiveAttention, DotProductAttention

X = np.random.default_rng(0).standard_normal((2, 3, 4), dtype=np.float32)
LISTS, ROWS = X.tolist(), [[1, 2, 3], [0, 1, 2]]
MASK = np.ones((2, 1, 3), dtype=bool)
LSE = X[:, :, 0].copy()
OPTIONS: dict[str, Any] = {"valid_lens": ROWS, "mask": MASK, "bias": X[:, :, :3].tolist()}
OPTIONS |= {"causal": True, "causal_offset": [1, 2], "dropout_p": 0.5, "dropout_mask": MASK}

LAYERS: dict[str, Callable[[], AdditiveAttention | DotProductAttention]] = {
    "additive": lambda: AdditiveAttention(4, 4, 5, bias=True),
    "dot": lambda: DotProductAttention(),
}
METHODS: dict[str, Callable[[Any], Any]] = {
    "call": lambda layer: layer(LISTS, X, X, [1, 2], mask=MASK, softcap=2, sink=[1, 2, 3]),
    "backward": lambda layer: layer.backward(
        LISTS, grad_weights=LISTS_OF_WEIGHTS, return_grad_sink=True
    ),
    "state_dict": lambda layer: layer.load_state_dict(layer.state_dict()),
    "rebuild": lambda layer: rebuild(*layer.__reduce__()[:2]),
    "copy": copy.copy,
    "repr": lambda layer: (repr(layer), repr(layer.context)),
}


def rebuild(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """What pickle does; in itself it crashes without memory, in NumPy's dtype.__reduce__."""
    return function(*arguments)


LISTS_OF_WEIGHTS = X[:, :, :3].tolist()


def cases() -> dict[str, Callable[[], Any]]:
    """A call of each, with arguments that have to be converted."""
    found: dict[str, Callable[[], Any]] = {
        "masked_softmax": lambda: attnext.masked_softmax(LISTS, ROWS, mask=[[[True] * 4]]),
        "masked_softmax_backward": lambda: attnext.masked_softmax_backward(LISTS, LISTS, [1, 2]),
        "sequence_mask": lambda: attnext.sequence_mask(LISTS, [1, 2], value=-1),
        "merge_attention": lambda: attnext.merge_attention([LISTS, X], [LSE, LSE.tolist()]),
        "merge_attention_backward": lambda: attnext.merge_attention_backward(
            LISTS, [LISTS, X], [LSE, LSE], grad_lse=LSE.tolist()
        ),
        "show_config": lambda: attnext.show_config("dicts"),
        "a large call": lambda: attnext.dot_product_attention(LARGE, LARGE, LARGE),
    }
    for score in SCORES:
        problem = make_problem(score, np.random.default_rng(0), lead=(2,), M=3, N=3, D=4)
        problem.inputs = {name: x.tolist() for name, x in problem.inputs.items()}
        problem.options |= OPTIONS
        found[f"{score} forward"] = lambda p=problem: p.forward(return_weights=True)
        found[f"{score} backward"] = lambda p=problem: p.backward(return_grad_bias=True)
    for name, make in LAYERS.items():
        layer = make()
        layer(X, X, X, sink=X[:, :, 0])
        for method, call in METHODS.items():
            found[f"{name} {method}"] = lambda call=call, layer=layer: call(layer)
    dot = DotProductAttention()
    found["scale of a call"] = lambda: (
        dot(X, X, X, scale=[1, 2]),
        dot.backward(X, return_grad_scale=True),
    )
    return found


LARGE = np.ones((300, 64), dtype=np.float32)
CASES = cases()


def sweep(call: Callable[[], Any]) -> int:
    """The first allocation fails, the second, ...; how many of these made a MemoryError."""
    fail = pytest.importorskip("_testcapi")  # CPython's own tool for it
    nth = failed = last = 0
    while nth < last + 10:
        fail.set_nomemory(nth, nth + 1)
        try:
            call()
        except MemoryError:
            failed, last = failed + 1, nth
        finally:
            fail.remove_mem_hooks()
        nth += 1
    return failed


@pytest.mark.parametrize("case", CASES)
def test_every_allocation_may_fail(case: str) -> None:
    """A MemoryError each time, no crash, and then the call gives what it gave before."""
    call = CASES[case]
    expected = repr(call())
    assert sweep(call) > 0
    assert repr(call()) == expected
