"""Explanations that call queries and keys by names: in text and HTML, of functions and layers."""

from __future__ import annotations

import re

import numpy as np
import pytest

import attnext
from attnext import explain
from attnext.explain import Trace
from attnext.explain.text import WIDTH, width
from attnext.kernel_regression import NWKernelRegression

B, M, N, D = 2, 3, 4, 5
QUERIES, KEYS = ["le", "chat", "注意力机制研究"], ["the", "<cat>", "\n", "internationalisation"]
rng = np.random.default_rng(0)
Q, K, V = (rng.normal(size=(B, n, D)) for n in (M, N, N))
X = rng.normal(size=(B, M, N))


def traces(lang: str = "en") -> dict[str, Trace]:
    layer = attnext.AdditiveAttention(D, D, 8, rng=0)
    return {
        "dot": explain.dot_product_attention(Q, K, V, 2, lang=lang),
        "backward": explain.dot_product_attention_backward(
            V[:, :M], Q, K, V, bias=np.zeros((M, 1)), return_grad_bias=True, lang=lang
        ),
        "softmax": explain.masked_softmax(X, [2, 3], lang=lang),
        "softmax backward": explain.masked_softmax_backward(X, X, lang=lang),
        "layer": explain.layer(layer, Q, K, V, lang=lang),
    }


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_queries_and_keys_have_their_names(lang: str) -> None:
    """Every axis of the queries and of the keys, and no other; rows are queries, entry by entry."""
    for name, trace in traces(lang).items():
        labelled = trace.with_labels(queries=QUERIES, keys=KEYS)
        for step, before in zip(labelled.steps, trace.steps, strict=True):
            assert before.labels == () and step.values is before.values
            for axis, size, labels in zip(step.axes, step.shape, step.labels, strict=True):
                words = {"query": QUERIES, "查询": QUERIES, "key": KEYS, "键": KEYS}
                words |= {"row": B * QUERIES, "行": B * QUERIES}
                expected = words.get(axis, []) if size > 1 else []
                assert list(labels) == expected, (name, step.key, axis)
        assert all(width(line) <= WIDTH for line in str(labelled).splitlines()), name
        html = labelled._repr_html_()
        assert "<th>&lt;cat&gt;</th>" in html and '<th title="internationalisation">' in html


def test_the_text() -> None:
    trace = traces()["softmax"].with_labels(queries=QUERIES, keys=KEYS)
    lines = str(trace["takes_part"]).splitlines()[4:]
    assert [line.split() for line in lines[:4]] == [
        ["row\\key", "the", "<cat>", "\\n", "internati…"],
        ["le", "1", "1", "·", "·"],
        ["chat", "1", "1", "·", "·"],
        ["注意力机…", "1", "1", "·", "·"],
    ]
    assert len({width(line) for line in lines}) == 1


def test_names_may_be_had_for_one_of_them_and_replaced() -> None:
    trace = traces()["dot"].with_labels(keys=KEYS)
    assert trace["weights"].labels == ((), (), tuple(KEYS))
    assert "   query\\key " in str(trace["weights"]) and "\n           2 " in str(trace["weights"])
    again = trace.with_labels(queries=QUERIES)
    assert again["weights"].labels == ((), tuple(QUERIES), ())


def test_a_place_in_a_batch_of_queries_is_named() -> None:
    step = traces()["layer"].with_labels(queries=QUERIES)["features"]
    assert "   batch 0, query chat\n" in str(step)


def test_a_heat_map_without_numbers_has_names_if_there_are_any() -> None:
    trace = explain.masked_softmax(rng.normal(size=(20, 20)))
    tokens = [f"token{i}" for i in range(20)]
    bare, named = trace["softmax"], trace.with_labels(queries=tokens, keys=tokens)["softmax"]
    assert re.findall("<th>token[^<]*", bare._repr_html_()) == []
    found = re.findall("<th>(token[^<]*)", named._repr_html_())
    assert found == 2 * tokens
    table = named._repr_html_().split("</style>")[1].split("legend")[0].split("<table")[1]
    assert 'title="token0, token1: 0.' in table and "0." not in re.sub(' title="[^"]*"', "", table)


def test_one_row_is_one_query() -> None:
    trace = explain.masked_softmax([1.0, 2.0]).with_labels(queries=["le"], keys=["the", "cat"])
    assert "the" in str(trace) and trace["total"].labels == (("le",),)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ({"queries": ["a"]}, ValueError, "queries has length 1, expected 3, one for each query"),
        ({"keys": QUERIES}, ValueError, "keys has length 3, expected 4, one for each key"),
        ({"keys": []}, ValueError, "keys has length 0, expected 4, one for each key"),
        ({"keys": "word"}, TypeError, "keys is of type str, expected a sequence of strings"),
        ({"queries": 3}, TypeError, "queries is of type int, expected a sequence of strings"),
    ],
)
def test_labels_that_do_not_fit(labels: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        traces()["dot"].with_labels(**labels)


def test_a_regression_has_other_keys_for_each_query() -> None:
    """One query to an entry: names of keys stand for places among them."""
    net = NWKernelRegression()
    trace = explain.layer(net, np.zeros(3), np.ones((3, 4)), np.ones((3, 4)))
    assert trace.with_labels(keys=list("abcd"))["weights"].labels[-1] == tuple("abcd")
