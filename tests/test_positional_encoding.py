"""positional_encoding: d2l's formula to the last bit of float32, and what is wrong by its name."""

from __future__ import annotations

import math
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import attnext
import attnext.torch
from attnext import explain, plot, reference

SIZES = [(0, 0), (0, 3), (3, 0), (1, 1), (5, 1), (4, 2), (7, 3), (60, 32), (100, 33), (10001, 6)]


def of_d2l(num_steps: int, num_hiddens: int) -> torch.Tensor:
    """As its class PositionalEncoding computes P[0], in float64, and for odd sizes too."""
    P = torch.zeros((num_steps, num_hiddens), dtype=torch.float64)
    X = torch.arange(num_steps, dtype=torch.float64).reshape(-1, 1) / torch.pow(
        10000, torch.arange(0, num_hiddens, 2, dtype=torch.float64) / max(num_hiddens, 1)
    )
    P[:, 0::2] = torch.sin(X)
    P[:, 1::2] = torch.cos(X)[:, : num_hiddens // 2]
    return P


@pytest.mark.parametrize("sizes", SIZES)
def test_the_formula_of_d2l(sizes: tuple[int, int]) -> None:
    expected = of_d2l(*sizes).numpy()
    encoding = attnext.positional_encoding(*sizes)
    assert encoding.dtype == np.float32 and encoding.shape == sizes
    assert encoding.flags.c_contiguous and encoding.flags.writeable and encoding.flags.owndata
    # Rounded once: half a step between float32 numbers, and what an ulp of float64 may add.
    assert_allclose(encoding, expected, rtol=2.0**-24 * (1 + 1e-6), atol=1e-11)
    assert_allclose(reference.positional_encoding(*sizes), expected, rtol=0, atol=1e-11)


def test_a_position_in_plain_words() -> None:
    t, d = 12345, 10
    row = attnext.positional_encoding(t + 1, d)[t]
    for j in range(d):
        angle = t / 10000 ** (2 * (j // 2) / d)
        assert row[j] == pytest.approx((math.cos if j % 2 else math.sin)(angle), abs=1e-7)


def test_a_shift_turns_each_pair_of_columns() -> None:
    P = reference.positional_encoding(50, 8)
    for j in range(4):
        turn = 7 / 10000 ** (2 * j / 8)
        rotation = [[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]]
        pair = P[:, 2 * j : 2 * j + 2]
        assert_allclose(pair[7:], pair[:-7] @ np.transpose(rotation), atol=1e-12)


def test_sizes_may_be_of_any_kind_of_int() -> None:
    expected = attnext.positional_encoding(3, 4)
    assert_array_equal(attnext.positional_encoding(np.int8(3), num_hiddens=np.array(4)), expected)


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ((-1, 4), ValueError, "num_steps is -1, expected num_steps >= 0"),
        ((4, -2), ValueError, "num_hiddens is -2, expected num_hiddens >= 0"),
        ((4.0, 4), TypeError, "num_steps must be an int, got float"),
        ((4, True), TypeError, "num_hiddens must be an int, got bool"),
        ((4, None), TypeError, "num_hiddens must be an int, got NoneType"),
        (
            (2**40, 2**40),
            ValueError,
            f"num_steps is {2**40} and num_hiddens {2**40}, expected fewer than 2**60 numbers",
        ),
        ((2**63, 0), ValueError, f"num_steps is {2**63}, expected num_steps < 2**63"),
    ],
)
def test_errors(sizes: Any, error: type[Exception], message: str) -> None:
    for module in (attnext, reference, attnext.torch, explain):
        with pytest.raises(error) as caught:
            module.positional_encoding(*sizes)
        assert str(caught.value) == message


def test_more_than_there_is_memory() -> None:
    with pytest.raises(MemoryError):
        attnext.positional_encoding(2**58, 2)


def test_a_tensor() -> None:
    encoding = attnext.torch.positional_encoding(5, 7)
    assert encoding.dtype is torch.float32 and not encoding.requires_grad
    assert_array_equal(encoding.numpy(), attnext.positional_encoding(5, 7))


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_in_a_compiled_graph() -> None:
    def add(x: torch.Tensor) -> torch.Tensor:
        return x + attnext.torch.positional_encoding(x.shape[-2], x.shape[-1])

    torch._dynamo.reset()
    compiled = torch.compile(add, fullgraph=True, backend="aot_eager")
    for n in (5, 6, 7, 5):
        x = torch.randn(2, n, 9)
        assert torch.equal(compiled(x), add(x))


@pytest.mark.parametrize("sizes", [(0, 0), (4, 6), (50, 7)])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_explained(sizes: tuple[int, int], lang: str) -> None:
    trace = explain.positional_encoding(*sizes, lang=lang)
    assert_array_equal(trace.output, attnext.positional_encoding(*sizes))
    assert [step.key for step in trace.steps] == ["positions", "frequencies", "angles", "encoding"]
    angles = trace["angles"].values
    assert_allclose(np.sin(angles), reference.positional_encoding(*sizes)[:, ::2], atol=1e-12)
    assert "{" not in str(trace) and "</table>" in (trace._repr_html_() if sizes[0] else "</table>")


def test_explained_with_names() -> None:
    trace = explain.positional_encoding(3, 2).with_labels(queries=["the", "cat", "sat"])
    assert "cat" in str(trace["encoding"]) and "cat" in str(trace["positions"])


def test_the_picture() -> None:
    matplotlib.use("agg")
    encoding = attnext.positional_encoding(60, 32)
    lines = plot.plot_positional_encoding(torch.tensor(encoding)).axes[0].lines
    for line, column in zip(lines, (6, 7, 8, 9), strict=True):
        assert_array_equal(line.get_ydata(), encoding[:, column])
    ax = matplotlib.figure.Figure().add_subplot()
    assert plot.plot_positional_encoding(encoding, [0], ax=ax) is ax.figure
    for wrong, error, message in (
        ((encoding[0],), ValueError, "encoding has shape (32,), expected (num_steps, num_hiddens)"),
        ((encoding, [32]), ValueError, "columns[0] is 32, expected 0 <= column < 32"),
        ((encoding, [0, 1.5]), TypeError, "columns[1] must be an int, got float"),
    ):
        with pytest.raises(error) as caught:
            plot.plot_positional_encoding(*wrong)
        assert str(caught.value) == message
