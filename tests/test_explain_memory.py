"""attnext.explain.layer of a call with a Memory, of attnext's layers and of attnext.torch's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import bits
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

import attnext
import attnext.torch
from attnext import explain

Array = NDArray[Any]
LENS = [3, 9]  # of 7 keys: the second reaches what is appended


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


QUERIES, KEYS, VALUES = random(2, 3, 5), random(2, 7, 5, seed=1), random(2, 7, 6, seed=2)
MASK = random(2, 1, 7, seed=3) < 0.5

LAYERS: dict[str, Callable[[], Any]] = {
    "additive": lambda: attnext.AdditiveAttention(5, 5, 8, bias=True, rng=0),
    "dot": lambda: attnext.DotProductAttention(scale=0.4),
    "torch additive": lambda: attnext.torch.AdditiveAttention(5, 5, 8, 0.5).eval(),
    "torch dot": lambda: attnext.torch.DotProductAttention(0.5, scale=0.4).eval(),
}
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def given(attn: Any, *arrays: Array) -> Any:
    """As the layer takes them; tensors in a graph."""
    if not isinstance(attn, torch.nn.Module):
        return arrays
    return [torch.from_numpy(x).requires_grad_() for x in arrays]


def called(attn: Any, queries: Any, memory: Any, **options: Any) -> tuple[Array, Array]:
    output, weights = attn(queries, memory, **options), attn.attention_weights
    return tuple(x.detach().numpy() if hasattr(x, "detach") else x for x in (output, weights))


@every_layer
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"causal": True, "causal_offset": 0, "softcap": 1.5},
        {"window": (2, 0), "mask": random(3, 7, seed=4) < 1},
    ],
)
def test_the_steps_of_a_call_with_a_memory(
    make: Callable[[], Any], options: dict[str, Any]
) -> None:
    """Appended keys, lengths, the memory's mask and the call's: the bits of the call."""
    attn = make()
    queries, keys, values = given(attn, QUERIES, KEYS, VALUES)
    memory = attn.memory(keys[:, :5], values[:, :5], LENS, mask=MASK[..., :5])
    memory.append(keys[:, 5:], values[:, 5:], mask=MASK[..., 5:])
    trace = explain.layer(attn, queries, memory, **options)
    assert attn.attention_weights is None  # as before
    output, weights = called(attn, queries, memory, **options)
    assert_array_equal(bits(trace.output), bits(output))
    assert_array_equal(bits(trace.weights), bits(weights))
    assert trace.call.startswith(f"{type(attn).__name__}(queries (2, 3, 5), memory (2, 7, 5)")
    # what the memory has: all keys, but for those that it leaves out
    first = trace.steps[0]
    left_out = ~(MASK[:, 0] & (np.arange(7) < np.reshape(LENS, (2, 1))))
    assert first.key == "memory" and first.masked is not None
    assert_array_equal(first.masked, np.broadcast_to(left_out[..., None], KEYS.shape))
    assert_array_equal(first.values[~first.masked], KEYS.astype(np.float64)[~first.masked])


def test_the_last_query_stands_at_the_last_key() -> None:
    attn = attnext.DotProductAttention()
    memory = attn.memory(KEYS, VALUES)
    trace = explain.layer(attn, QUERIES, memory, causal=True)
    assert trace["takes_part"].formula == "takes_part[i, j] = j <= i + causal_offset"
    assert_array_equal(trace["takes_part"].values[0].sum(-1), [5, 6, 7])
    assert "causal_offset" not in trace.call
    trace = explain.layer(attn, QUERIES, memory, causal=True, causal_offset=-1)
    assert_array_equal(trace["takes_part"].values[0].sum(-1), [0, 1, 2])
    assert "causal_offset=-1" in trace.call
    for offset in (0, 4):  # the default of a call without a memory, and of this one
        trace = explain.layer(attn, QUERIES, memory, causal=True, causal_offset=offset)
        assert trace.call.endswith(f", causal=True, causal_offset={offset})")


@pytest.mark.parametrize(
    ("lang", "once", "memory"),
    [
        (
            "en",
            "Computed once, when the keys were stored in the memory.",
            "The memory stores 7 keys",
        ),
        ("zh", "只算一次：键存入记忆时就已算好。", "记忆中存有7个键及其值"),
    ],
)
def test_what_was_made_once_says_so(lang: str, once: str, memory: str) -> None:
    attn = LAYERS["additive"]()
    trace = explain.layer(attn, QUERIES, attn.memory(KEYS, VALUES), lang=lang)
    assert [step.key for step in trace.steps if step.note.endswith(once)] == ["hidden_k"]
    assert trace.steps[0].note.startswith(memory)
    assert once not in str(explain.layer(attn, QUERIES, KEYS, VALUES, lang=lang))


def test_heads_that_share_keys() -> None:
    attn = attnext.AdditiveAttention(5, 5, 8, rng=0)
    queries, keys = random(2, 4, 3, 5), random(2, 2, 7, 5, seed=1)
    memory = attn.memory(keys, keys, LENS, mask=random(2, 2, 1, 7, seed=5) < 0.5)
    for mask in (None, random(4, 1, 7, seed=6) < 1):
        trace = explain.layer(attn, queries, memory, mask=mask, enable_gqa=True)
        output, weights = called(attn, queries, memory, mask=mask, enable_gqa=True)
        assert_array_equal(bits(trace.output), bits(output))
        assert_array_equal(bits(trace.weights), bits(weights))


def test_in_training_it_is_the_next_call() -> None:
    attn = attnext.AdditiveAttention(5, 5, 8, dropout=0.5, rng=0)
    memory = attn.memory(KEYS, VALUES, LENS)
    for _ in range(2):
        trace = explain.layer(attn, QUERIES, memory)
        assert_array_equal(trace.output, attn(QUERIES, memory))
        assert "keep" in [step.key for step in trace.steps]


@every_layer
def test_errors_are_those_of_the_call(make: Callable[[], Any]) -> None:
    attn = make()
    queries, keys, values = given(attn, QUERIES, KEYS, VALUES)
    memory = attn.memory(keys, values, mask=MASK)
    wrong: list[tuple[Any, dict[str, Any]]] = [
        (memory, {"values": values}),
        (memory, {"valid_lens": LENS}),
        (memory, {"mask": np.ones(7)}),
        (memory, {"mask": np.ones((3, 6), bool)}),
        (make().memory(keys, values), {}),
    ]
    for other, more in wrong:
        with pytest.raises((TypeError, ValueError)) as raised:
            attn(queries, other, **more)
        with pytest.raises(type(raised.value), match=re.escape(str(raised.value))):
            explain.layer(attn, queries, other, **more)


def test_errors_name_the_queries() -> None:
    """Where the memory's mask has other heads."""
    attn = LAYERS["dot"]()
    memory = attn.memory(KEYS, VALUES, mask=MASK)
    for queries in (QUERIES[:1], QUERIES[0], QUERIES[None], QUERIES[0, 0]):
        with pytest.raises(ValueError, match="queries has shape|keys has shape"):
            explain.layer(attn, queries, memory)


@pytest.mark.parametrize("kind", ["additive", "torch additive"])
def test_a_memory_of_other_parameters(kind: str) -> None:
    attn = LAYERS[kind]()
    queries, keys, values = given(attn, QUERIES, KEYS, VALUES)
    memory = attn.memory(keys, values)
    if isinstance(attn, torch.nn.Module):
        with torch.no_grad():
            attn.W_k.weight[0, 0] += 1
    else:
        attn.W_k[0, 0] += 1
    with pytest.raises(RuntimeError, match="W_k has changed since the memory projected its keys"):
        explain.layer(attn, queries, memory)


def test_what_the_memory_gives_is_a_copy() -> None:
    attn = LAYERS["dot"]()
    memory = attn.memory(KEYS, VALUES, LENS, mask=MASK)
    for x in memory._given_to(attn):
        assert x is not None and x.flags.owndata and x.flags.writeable
        x[...] = 0
    assert_array_equal(attn(QUERIES, memory), attn(QUERIES, KEYS, VALUES, LENS, mask=MASK))


def test_without_values() -> None:
    with pytest.raises(TypeError, match="values is None, expected real numbers"):
        explain.layer(attnext.DotProductAttention(), QUERIES, KEYS)
