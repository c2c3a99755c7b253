"""explain.multi_head_attention: steps by plain formulas, a result that is the fast function's."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import attnext
import attnext.torch
from attnext import explain

B, M, N, HEADS, D = 2, 3, 4, 4, 3
H = HEADS * D


def make(rng: np.random.Generator, kv_heads: int = HEADS, biases: bool = True) -> dict[str, Any]:
    of_keys = kv_heads * D
    x: dict[str, Any] = {
        "queries": rng.normal(size=(B, M, 5)),
        "keys": rng.normal(size=(B, N, 6)),
        "values": rng.normal(size=(B, N, 7)),
        "W_q": rng.normal(size=(H, 5)),
        "W_k": rng.normal(size=(of_keys, 6)),
        "W_v": rng.normal(size=(of_keys, 7)),
        "W_o": rng.normal(size=(H, H)),
        "num_heads": HEADS,
        "num_kv_heads": kv_heads,
    }
    if biases:
        x |= {f"b_{n}": rng.normal(size=len(x[f"W_{n}"])) for n in "qkvo"}
    return x


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lengths": {"valid_lens": [4, 2]},
    "lengths of queries, empty rows": {"valid_lens": [[0, 1, 9], [4, 0, 2]]},
    "zeros in empty rows": {"valid_lens": [0, 2], "empty_rows": "zero"},
    "NaN in empty rows": {"valid_lens": [0, 2], "empty_rows": "nan"},
    "a mask of each entry": {"mask": np.arange(B * M * N).reshape(B, 1, M, N) % 3 > 0},
    "causal, capped, scaled": {"causal": True, "softcap": 2.0, "scale": [0.1, 1, 2, 3]},
    "a bias and a sink": {"bias": np.ones((1, HEADS, 1, N)), "sink": np.ones((HEADS, 1))},
    "dropout": {"dropout_p": 0.5, "seed": 3},
}


@pytest.mark.parametrize("kv_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_result_is_that_of_the_fast_function(
    rng: np.random.Generator, options: dict[str, Any], kv_heads: int
) -> None:
    """And within the rounding of the steps, or the trace would not be made."""
    x = make(rng, kv_heads, biases=kv_heads != 2) | options
    trace = explain.multi_head_attention(**x)
    output, weights = attnext.multi_head_attention(**x, return_weights=True)
    assert_array_equal(trace.output, output)
    assert_array_equal(trace.weights, weights)
    assert trace.steps[-1].values is trace.output and trace.steps[-1].key == "mixed"
    assert ("shared_heads" in [step.key for step in trace.steps]) == (kv_heads < HEADS)
    for text in (str(trace), trace._repr_html_()):
        assert "{" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)


def test_the_steps_by_plain_formulas(rng: np.random.Generator) -> None:
    x = make(rng)
    trace = explain.multi_head_attention(**x, valid_lens=[4, 2])
    f = {name: np.float32(x[name]).astype(float) for name in x if not name.startswith("num")}
    for h in range(HEADS):
        of_head = slice(D * h, D * h + D)
        q = f["queries"] @ f["W_q"][of_head].T + f["b_q"][of_head]
        v = f["values"] @ f["W_v"][of_head].T + f["b_v"][of_head]
        assert_allclose(trace["head_queries"].values[:, h], q, rtol=1e-12)
        head_values = trace["head_values"]
        assert head_values.masked is not None and head_values.masked[1, h, 2:].all()
        assert_allclose(head_values.values[0, h], v[0], rtol=1e-12)
        pooled = trace["weights"].values[0, h] @ v[0]
        assert_allclose(trace["pooled"].values[0, h], pooled, rtol=1e-5)
        assert_array_equal(trace["joined"].values[..., of_head], trace["pooled"].values[:, h])


def test_each_head_is_called_so(rng: np.random.Generator) -> None:
    x = make(rng)
    for lead, english, chinese in (
        (2, "batch 1, head 3", "样本 1，头 3"),
        (0, "head 3", "头 3"),
    ):
        inputs = {name: x[name] if lead else x[name][0] for name in ("queries", "keys", "values")}
        trace = explain.multi_head_attention(**{**x, **inputs})
        assert english in str(trace["weights"])
        assert chinese in str(explain.multi_head_attention(**{**x, **inputs}, lang="zh")["weights"])
    named = trace.with_labels(queries=list("abc"), keys=["k1", "k2", "k3", "k4"])
    assert "k3" in str(named["weights"]) and "k3" in str(named["head_keys"])


def test_padding_is_not_read(rng: np.random.Generator) -> None:
    x = make(rng, 2)
    clean = explain.multi_head_attention(**x, valid_lens=[1, 3])
    x["keys"][0, 1:], x["values"][1, 3:] = np.nan, np.inf
    x["values"][0, 1:] = np.nan
    poisoned = explain.multi_head_attention(**x, valid_lens=[1, 3])
    assert_array_equal(poisoned.output, clean.output)
    for mine, theirs in zip(poisoned.steps, clean.steps, strict=True):
        assert str(mine) == str(theirs)


class MultiHeadAttention(torch.nn.Module):
    """The parts of d2l's class that are looked at: the dropout lies in its attention."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.attention = attnext.torch.DotProductAttention(dropout)
        for name, size in (("W_q", 5), ("W_k", 6), ("W_v", 7), ("W_o", H)):
            setattr(self, name, torch.nn.Linear(size, H, bias=False))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
def test_a_layer(rng: np.random.Generator, bias: bool, kv_heads: int) -> None:
    x = make(rng)
    q, k, v = (torch.tensor(x[n], dtype=torch.float32) for n in ("queries", "keys", "values"))
    layer = attnext.torch.MultiHeadAttention(6, 5, 7, H, HEADS, 0.5, bias, num_kv_heads=kv_heads)
    with pytest.raises(ValueError, match="training mode with dropout 0.5"):
        explain.layer(layer, q, k, v)
    layer.eval()
    options: dict[str, Any] = {"causal": True, "softcap": 3.0}
    trace = explain.layer(layer, q, k, v, [4, 2], **options)
    assert_array_equal(trace.output, layer(q, k, v, torch.tensor([4, 2]), **options).detach())
    assert_array_equal(trace.weights, layer.attention_weights.detach())
    assert trace.call.startswith("MultiHeadAttention(queries (2, 3, 5)")
    with pytest.raises(TypeError, match="enable_gqa is not an option of MultiHeadAttention"):
        explain.layer(layer, q, k, v, enable_gqa=True)


def test_a_layer_of_d2l(rng: np.random.Generator) -> None:
    x = make(rng)
    q, k, v = (torch.tensor(x[n], dtype=torch.float32) for n in ("queries", "keys", "values"))
    theirs = MultiHeadAttention()
    ours = attnext.torch.MultiHeadAttention(6, 5, 7, H, HEADS)
    ours.load_state_dict(theirs.state_dict())
    assert_array_equal(explain.layer(theirs, q, k, v).output, ours(q, k, v).detach())
    with pytest.raises(ValueError, match="training mode with dropout 0.25"):
        explain.layer(MultiHeadAttention(0.25), q, k, v)


def test_errors(rng: np.random.Generator) -> None:
    x = make(rng)
    with pytest.raises(ValueError, match="^lang is 'fr'"):
        explain.multi_head_attention(**x, lang="fr")
    with pytest.raises(TypeError, match="unexpected keyword argument 'enable_gqa'"):
        explain.multi_head_attention(**x, enable_gqa=True)
    many = {name: np.zeros((1, 2000, 1)) for name in ("queries", "keys", "values")}
    weights = {name: np.zeros((2, 1)) for name in ("W_q", "W_k", "W_v")}
    with pytest.raises(ValueError, match="form 8000000 pairs, expected at most 4194304"):
        explain.multi_head_attention(**many, **weights, W_o=np.eye(2), num_heads=2)
