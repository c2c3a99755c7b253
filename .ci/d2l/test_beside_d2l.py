"""d2l, what it pins, and attnext in one environment: the installed d2l, either edition of the book.

d2l 1.0.3 has the code of the English edition, d2l 0.17.6 that of the Chinese one.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
import scipy.special
import torch
from d2l import torch as d2l
from torch import Tensor, nn

import attnext
import attnext.torch

PINS = dict(
    line.split("==")
    for line in Path(__file__).with_name("requirements.txt").read_text().splitlines()
    if "==" in line
)
B, M, N, DK, DQ, H, DV = 3, 4, 6, 2, 5, 8, 7
LENGTHS = {"none": None, "1-D": torch.tensor([2, 6, 1]), "2-D": torch.randint(1, N + 1, (B, M))}

with_lengths = pytest.mark.parametrize("lens", LENGTHS.values(), ids=LENGTHS)


@pytest.fixture(autouse=True)
def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """d2l's pictures as in a notebook, which sets the backend itself, but without one."""
    matplotlib.use("agg")
    monkeypatch.setattr(d2l, "use_svg_display", lambda: None)
    torch.manual_seed(0)


def test_what_d2l_pins_is_what_is_used() -> None:
    assert np.__version__ == PINS["numpy"]
    assert matplotlib.__version__ == PINS["matplotlib"]
    assert pd.__version__ == PINS["pandas"]
    assert scipy.__version__ == PINS["scipy"]


def test_a_data_frame_is_an_array() -> None:
    scores = pd.DataFrame({"to": [0.9, 0.2], "be": [0.8, 0.1], "or": [0.3, 0.4]})
    weights = attnext.masked_softmax(scores)
    np.testing.assert_allclose(weights, scipy.special.softmax(scores, axis=-1), rtol=1e-6)
    sums = pd.DataFrame(weights, columns=scores.columns).sum(axis="columns")
    np.testing.assert_allclose(sums, 1, rtol=1e-6)


@with_lengths
def test_masked_softmax(lens: Tensor | None) -> None:
    X = torch.randn(B, M, N)
    book = d2l.masked_softmax(X.clone(), lens)
    torch.testing.assert_close(attnext.torch.masked_softmax(X, lens), book)
    torch.testing.assert_close(torch.from_numpy(attnext.masked_softmax(X, lens)), book)


def of_this_edition(**options: Any) -> dict[str, Any]:
    """The arguments that its AdditiveAttention has."""
    known = inspect.signature(d2l.AdditiveAttention).parameters
    return {name: x for name, x in options.items() if name in known}


def gradients(layer: nn.Module, *inputs: Any) -> list[Tensor]:
    """Output, weights, and the gradient of each input and parameter."""
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    output = layer(*leaves, *inputs[3:])
    sources = [*leaves, *(p for _, p in sorted(layer.named_parameters()))]
    return [output, layer.attention_weights, *torch.autograd.grad(output.square().sum(), sources)]


@with_lengths
@pytest.mark.parametrize("kind", ["additive", "dot"])
def test_the_layers(kind: str, lens: Tensor | None) -> None:
    """The same numbers and gradients, and state dicts that load either way."""
    sizes = {"key_size": DK, "query_size": DQ, "num_hiddens": H}
    if kind == "additive":
        book = d2l.AdditiveAttention(**of_this_edition(**sizes, dropout=0))
        ours = attnext.torch.AdditiveAttention(**sizes)
        inputs = (torch.randn(B, M, DQ), torch.randn(B, N, DK), torch.randn(B, N, DV), lens)
    else:
        book, ours = d2l.DotProductAttention(dropout=0), attnext.torch.DotProductAttention()
        inputs = (torch.randn(B, M, DK), torch.randn(B, N, DK), torch.randn(B, N, DV), lens)
    book(*inputs)  # the English edition's parameters have no shape before
    ours.load_state_dict(book.state_dict())
    pairs = zip(gradients(ours, *inputs), gradients(book, *inputs), strict=True)
    for got, expected in pairs:
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert book.load_state_dict(ours.state_dict()) == nn.Module().load_state_dict({})


@with_lengths
def test_the_call_of_this_edition(lens: Tensor | None) -> None:
    """AdditiveAttention(num_hiddens=8, dropout=0.1) in the English one: the same parameters too."""
    options = of_this_edition(key_size=DK, query_size=DQ, num_hiddens=H, dropout=0.1)
    inputs = (torch.randn(B, M, DQ), torch.randn(B, N, DK), torch.randn(B, N, DV), lens)
    layers, results = [], []
    for kind in (d2l.AdditiveAttention, attnext.torch.AdditiveAttention):
        torch.manual_seed(1)
        layers.append(kind(**options).eval())
        layers[-1](*inputs)  # the English edition draws here
        results.append(gradients(layers[-1], *inputs))
    book, ours = (dict(sorted(layer.state_dict().items())) for layer in layers)
    assert book.keys() == ours.keys()
    assert all(torch.equal(ours[name], x) for name, x in book.items())
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_the_example_of_the_book() -> None:
    """Its cells, each layer from attnext and each picture by both."""
    queries, keys = torch.normal(0, 1, (2, 1, 20)), torch.ones((2, 10, 2))
    values = torch.arange(40, dtype=torch.float32).reshape(1, 10, 4).repeat(2, 1, 1)
    attention = attnext.torch.AdditiveAttention(
        key_size=2, query_size=20, num_hiddens=8, dropout=0.1
    )
    attention.eval()
    output = attention(queries, keys, values, torch.tensor([2, 6]))
    torch.testing.assert_close(output[:, 0], torch.tensor([[2.0, 3, 4, 5], [10, 11, 12, 13]]))

    weights = attention.attention_weights.reshape((1, 1, 2, 10))
    d2l.show_heatmaps(weights, xlabel="Keys", ylabel="Queries")
    theirs, ours = d2l.plt.gcf(), attnext.plot.show_heatmaps(weights, "Keys", "Queries")
    for figure in (theirs, ours):
        (image,) = figure.axes[0].images
        np.testing.assert_array_equal(image.get_array(), weights[0, 0].detach().numpy())
        labels = figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
        assert labels == ("Keys", "Queries")
    d2l.plt.close(theirs)
