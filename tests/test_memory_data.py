"""Memories of no layer, which attnext.torch makes: data that functions take in place of keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import attnext
from attnext import Memory

Array = NDArray[Any]
RNG = np.random.default_rng(0)
K, V, Q = (
    RNG.standard_normal(shape, dtype=np.float32) for shape in ((2, 5, 4), (2, 5, 3), (2, 2, 4))
)
W: dict[str, Array] = {
    name: RNG.standard_normal(shape, dtype=np.float32)
    for name, shape in (("W_q", (6, 4)), ("W_k", (6, 4)), ("w_v", (6,)))
}
OF_KEYS = {"W_k": W["W_k"]}
SIZES = (6, 4, 0, 0, 0)


def additive(keys: Any = K, values: Any = V, lens: Any = None, mask: Any = None) -> Memory:
    return Memory._of("additive", SIZES, OF_KEYS, keys, values, lens, mask)


def test_functions_take_it() -> None:
    """The bits of the call with keys and values; gradients of what is projected."""
    memory = additive(K[:, :2], V[:, :2], [5, 3], np.ones((2, 1, 2), bool))
    before = memory._now()
    memory.append(K[:, 2:], V[:, 2:])
    for now, end in ((memory._now(), 5), (before, 2)):
        given = Q, K[:, :end], V[:, :end], *W.values(), [min(5, end), min(3, end)]
        assert len(now) == end
        output = attnext.additive_attention(Q, now, None, *W.values())
        np.testing.assert_array_equal(output, attnext.additive_attention(*given))
        got = attnext.additive_attention_backward(output, Q, now, None, *W.values())
        expected = attnext.additive_attention_backward(output, *given)
        for name in ("queries", "values", "W_q", "w_v"):
            np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
        d = got.keys[..., :6]
        np.testing.assert_allclose(d @ W["W_k"], expected.keys, rtol=1e-4, atol=1e-5)
        rows = d.reshape(-1, 6).T @ given[1].reshape(-1, 4)
        np.testing.assert_allclose(rows, expected.W_k, rtol=1e-4, atol=1e-5)
        assert got.W_k is None


def test_keys_that_no_query_meets() -> None:
    """Their gradient is 0, whatever the arrays held before."""
    for _ in range(3):
        now = additive(K, V, [2, 0])._now()
        d = attnext.additive_attention_backward(V[:, :2] * np.nan, Q, now, None, *W.values())
        assert not d.keys[0, 2:].any() and not d.keys[1].any()


def test_no_queries() -> None:
    """Neither mask has a row for any."""
    now = additive(mask=np.ones((2, 1, 5), bool))._now()
    none = np.ones((2, 0, 5), bool)
    output = attnext.additive_attention(Q[:, :0], now, None, *W.values(), mask=none)
    assert output.shape == (2, 0, 3)


def other_weights(**changed: Array) -> list[Array]:
    return [*(W | changed).values()]


NOW = additive()._now()
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: NOW.append(K, V),
        TypeError,
        "this memory is a snapshot: append to the original memory",
    ),
    (lambda: additive().backward(), RuntimeError, "the layer that created this memory was deleted"),
    (lambda: attnext.DotProductAttention()(Q, NOW), ValueError, "belongs to another layer"),
    (
        lambda: attnext.dot_product_attention(Q, NOW, None),  # type: ignore[arg-type]
        ValueError,
        "belongs to another layer",
    ),
    (
        lambda: attnext.additive_attention(Q, NOW, V, *W.values()),
        TypeError,
        "values and a memory are both given",
    ),
    (
        lambda: attnext.additive_attention(Q, NOW, None, *other_weights(W_k=W["W_k"] + 1)),
        RuntimeError,
        "W_k has changed since the memory projected its keys: create a new memory",
    ),
    (
        lambda: attnext.additive_attention(Q, NOW, None, W["W_q"][:5], W["W_k"][:5], W["w_v"][:5]),
        RuntimeError,
        "W_k has a different shape than when the memory was created: create a new memory",
    ),
    (
        lambda: Memory._of("euclidean", SIZES, OF_KEYS, K, V, None, None),
        ValueError,
        "score is 'euclidean', expected one of ",
    ),
    (
        lambda: Memory._of("additive", SIZES, {"W_k": K}, K, V, None, None),
        ValueError,
        "W_k has shape (2, 5, 4), expected (6, 4)",
    ),
    (
        lambda: Memory._of("multi_head", SIZES, {}, K, V, None, None),
        ValueError,
        "the saved sizes do not fit this class",
    ),
    (lambda: additive(mask="x"), TypeError, "mask has dtype <U1, expected bools"),
    (lambda: additive(lens="x"), TypeError, "valid_lens has dtype <U1, expected integers"),
    (lambda: additive(K, V[:, :2]), ValueError, "values has shape (2, 2, 3), expected (2, 5, Dv)"),
]


@pytest.mark.parametrize(("action", "error", "message"), REFUSED)
def test_refused(action: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        action()
    assert message in str(raised.value)
