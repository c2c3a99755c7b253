"""Masks, biases, offsets, windows and parts: every shape, place and kind they may come in.

What is refused, and in which words: test_inputs.py, like everything about the other arguments.
"""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import SCORES, Array, Problem, assert_same_bits, make_problem
from test_inputs import LAYOUTS, backwards, fortran, strided

import attnext

# ---- masks and biases ----------------------------------------------------------------------------

PAIRS = (2, 3, 5, 7)
BROADCASTS = [
    *((7,), (1,), (1, 7), (5, 1), (5, 7), (3, 1, 1), (3, 1, 7), (3, 5, 1), (1, 5, 7), (3, 5, 7)),
    *((2, 1, 1, 1), (2, 1, 1, 7), (2, 1, 5, 7), (1, 3, 5, 7), (2, 3, 1, 7), (2, 3, 5, 1), PAIRS),
]


def thinned(x: Array) -> Array:
    """In every axis but the last, every second entry of a longer one: no two axes are as one."""
    wide = np.zeros([2 * n for n in x.shape[:-1]] + [x.shape[-1] + 3], dtype=x.dtype)
    view = wide[(*[slice(None, None, 2)] * (x.ndim - 1), slice(1, 1 + x.shape[-1]))]
    view[...] = x
    return view


PLACES: dict[str, Callable[[Array], Any]] = {  # where a mask may lie in memory
    **{name: convert for name, convert in LAYOUTS.items() if name != "tensor of float64"},
    "thinned": thinned,
    "backwards but for the last axis": lambda x: np.flip(
        np.flip(x, range(x.ndim - 1)).copy(), range(x.ndim - 1)
    ),
    "axes swapped": lambda x: x.swapaxes(0, -2).copy().swapaxes(0, -2) if x.ndim > 1 else x,
    "broadcast": lambda x: np.broadcast_to(x, PAIRS),
    "last axis backwards and broadcast": lambda x: np.broadcast_to(backwards(x), PAIRS),
    "transposed and broadcast": lambda x: np.broadcast_to(fortran(x), PAIRS),
    "bytes that are not 1": lambda x: (x.view(np.uint8) * 200).view(bool),
}


@pytest.fixture
def pairs_problem(rng: np.random.Generator) -> Problem:
    return make_problem("dot", rng, lead=PAIRS[:2], M=5, N=7)


@pytest.mark.parametrize("shape", BROADCASTS, ids=str)
def test_a_mask_in_every_shape_and_place(
    shape: tuple[int, ...], pairs_problem: Problem, rng: np.random.Generator
) -> None:
    mask = rng.random(shape) < 0.6
    X, grad = rng.standard_normal((2, *PAIRS), dtype=np.float32)

    def results(mask: Any) -> dict[str, Array]:
        found = pairs_problem.but(mask=mask).run()
        dropped = pairs_problem.but(dropout_mask=mask, dropout_p=0.4).run()
        found |= {f"{name} with dropout": x for name, x in dropped.items()}
        found["softmax"] = attnext.masked_softmax(X, 6, mask=mask)
        found["d_X"] = attnext.masked_softmax_backward(grad, found["softmax"], 6, mask=mask)
        return found

    expected = results(np.broadcast_to(mask, PAIRS).copy())
    for place, convert in PLACES.items():
        assert_same_bits(results(convert(mask)), expected, place)


@pytest.mark.parametrize("value", [True, False, np.True_, np.False_, np.array(True), [[True]]])
def test_a_mask_may_be_one_truth_for_all(value: Any, pairs_problem: Problem) -> None:
    full = np.full(PAIRS, bool(np.all(value)))
    assert_same_bits(pairs_problem.but(mask=value).run(), pairs_problem.but(mask=full).run())


@pytest.mark.parametrize("X_shape", [(7,), (5, 7), (3, 5, 7)], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (1, 7), (5, 1), (5, 7), (3, 1, 7)], ids=str)
def test_masks_of_softmax_have_at_most_its_axes(
    shape: tuple[int, ...], X_shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    X = rng.standard_normal(X_shape, dtype=np.float32)
    mask = rng.random(shape) < 0.6
    try:
        full = np.broadcast_to(mask, X_shape)
    except ValueError:
        message = f"mask has shape {shape}, expected a shape that broadcasts to {X_shape}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            attnext.masked_softmax(X, mask=mask)
        return
    weights = attnext.masked_softmax(X, mask=mask, empty_rows="zero")
    assert not weights[~full].any()
    np.testing.assert_array_equal(
        weights, attnext.masked_softmax(X, mask=full.copy(), empty_rows="zero")
    )


@pytest.mark.parametrize("shape", BROADCASTS, ids=str)
def test_a_bias_in_every_shape_place_and_dtype(
    shape: tuple[int, ...], pairs_problem: Problem, rng: np.random.Generator
) -> None:
    bias = rng.integers(-4, 4, size=shape).astype(np.float32)
    bias[rng.random(shape) < 0.2] = -np.inf
    expected = pairs_problem.but(bias=bias).run()
    full = pairs_problem.but(bias=np.broadcast_to(bias, PAIRS).copy()).run()
    np.testing.assert_array_equal(expected["output"], full["output"])
    for place in [*LAYOUTS, "thinned", "broadcast", "float16", ">f4", ">f8"]:
        given = (LAYOUTS | PLACES).get(place, lambda x, dtype=place: x.astype(dtype))(bias)
        found = pairs_problem.but(bias=given).run()
        assert found["d_bias"].shape == np.shape(given), place
        assert_same_bits(found, full if place == "broadcast" else expected, place)


@pytest.mark.parametrize("score", SCORES)
def test_a_bias_of_doubles_is_rounded_once_and_may_become_inf(
    score: str, rng: np.random.Generator
) -> None:
    """The lowest double, which some programs mask with, masks."""
    problem = make_problem(score, rng)
    bias = np.where(rng.random((3, 5)) < 0.5, np.finfo(np.float64).min, 0.25)
    mask = bias == 0.25
    with np.errstate(all="raise"):
        found = problem.but(bias=bias).forward()
    np.testing.assert_array_equal(
        found, problem.but(bias=np.float32([[0.25]]), mask=mask).forward()
    )


def test_a_mask_is_not_copied_if_its_last_axis_is_contiguous() -> None:
    """If it is not, one copy is made, without what np.broadcast_to repeats."""
    lead, n = 4, 512
    x = np.ones((lead, n, 1), dtype=np.float32)
    lower = np.tri(n, dtype=bool)
    masks = {
        "contiguous": np.broadcast_to(lower, (lead, n, n)).copy(),
        "slice": np.ones((lead, 2 * n, 2 * n), dtype=bool)[:, ::2, n:],
        "upside down": np.broadcast_to(lower[::-1], (lead, n, n)),
    }
    copied_once = {"transposed": np.broadcast_to(lower.T, (lead, n, n))}
    for name, mask in {**masks, **copied_once}.items():
        attnext.dot_product_attention(x, x, x, mask=mask)
        tracemalloc.start()
        attnext.dot_product_attention(x, x, x, mask=mask)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < n * n * (2 if name in copied_once else 0.75), name


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("lens", [None, 5, [3, 6], "per query", "all"])
@pytest.mark.parametrize("score", SCORES)
def test_offsets_of_every_kind(
    score: str, lens: Any, causal: bool, rng: np.random.Generator
) -> None:
    """Beside lengths of every shape: both are looked up by the first axis."""
    if isinstance(lens, str):
        lens = rng.integers(0, 8, size=(2, 5) if lens == "per query" else PAIRS[:3])
    options = {"causal": causal, "window": (2, 3), "valid_lens": lens}
    problem = make_problem(score, rng, lead=PAIRS[:2], M=5, N=7, **options)
    i, j = np.arange(5)[:, None], np.arange(7)
    for offset in (0, -2, [2, -1], [3, 3]):
        at = i + np.broadcast_to(offset, 2)[:, None, None, None]
        band = (at - 2 <= j) & (j <= (at if causal else at + 3))
        expected = problem.but(causal=False, window=None, mask=band).run()
        assert_same_bits(problem.but(causal_offset=offset).run(), expected)
        array = np.array(offset)
        given = [array.astype(dtype) for dtype in ("int8", ">i2", "int64")]
        given += [array.astype(dtype) for dtype in ("uint8", "uint64") if array.min() >= 0]
        for x in (*given, array[..., None].repeat(2, axis=-1)[..., 0], torch.from_numpy(array)):
            found = problem.but(causal_offset=x).forward()
            np.testing.assert_array_equal(found, expected["output"])


@pytest.mark.parametrize("far", [8, 2**31, 2**62, 2**63 - 1, 2**63, 2**64, 10**30])
@pytest.mark.parametrize("score", SCORES)
def test_a_length_above_all_keys_is_all_keys(
    score: str, far: int, rng: np.random.Generator
) -> None:
    """In whatever it comes; and the keys of the next entry are not among them."""
    problem = make_problem(score, rng, lead=(3,), M=5, N=7)
    expected = problem.but(valid_lens=np.array([7, 2, 7])).run()
    lens: Any = [far, 2, far]
    given: list[Any] = []
    if far < 2**63:
        given += [lens, tuple(lens), np.array(lens), torch.tensor(lens)]
    if far < 2**64:
        given.append(np.array(lens, dtype=np.uint64))
    X = rng.standard_normal((3, 5, 7), dtype=np.float32)
    weights = attnext.masked_softmax(X, np.array([7, 2, 7]))
    for lens in given:
        assert_same_bits(problem.but(valid_lens=lens).run(), expected)
        np.testing.assert_array_equal(attnext.masked_softmax(X, lens), weights)
    assert_same_bits(problem.but(valid_lens=far).run(), problem.run())


@pytest.mark.parametrize("far", [8, 2**31, 2**61, 2**62, 2**63 - 1, 2**63, 2**64, 10**30])
def test_bands_of_any_size(far: int, rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, lead=(2,), M=5, N=7)
    everything = problem.run()
    for options in (
        {"window": (far, far)},
        {"window": (-1, far)},
        {"causal": True, "causal_offset": far},
        {"causal": True, "window": (-1, far), "causal_offset": far},
        {"window": (-1, far), "causal_offset": far},
    ):
        assert_same_bits(problem.but(**options).run(), everything)
    nothing = problem.but(valid_lens=0).run()
    for options in (
        {"causal": True, "causal_offset": -far},
        {"window": (0, 0), "causal_offset": -far},
        {"window": (0, 0), "causal_offset": far},
    ):
        assert_same_bits(problem.but(**options).run(), nothing)
    if far < 2**64:
        offsets = np.array([far, 0], dtype=np.uint64)
        found = problem.but(causal=True, causal_offset=offsets).forward()
        np.testing.assert_array_equal(found[0], everything["output"][0])


@pytest.mark.parametrize("window", [(1, 2), [1, 2], (np.int8(1), np.uint64(2)), (1, np.array(2))])
def test_windows_of_every_kind(window: Any, rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng)
    expected = problem.but(window=(1, 2)).run()
    assert_same_bits(problem.but(window=window).run(), expected)


# ---- parts of a merged attention -----------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_parts(layout: str, rng: np.random.Generator) -> None:
    outputs = rng.standard_normal((3, 2, 4, 5), dtype=np.float32)
    lses, grad_lse = rng.standard_normal((3, 2, 4), dtype=np.float32), np.ones((2, 4))
    grad = rng.standard_normal((2, 4, 5), dtype=np.float32)
    merged = attnext.merge_attention(outputs, lses)
    gradients = attnext.merge_attention_backward(grad, outputs, lses, grad_lse=grad_lse)
    convert = LAYOUTS[layout]
    apart = [convert(x) for x in outputs], tuple(convert(x) for x in lses)
    for parts in (apart, (convert(outputs), convert(lses)), (apart[0], lses), (outputs, apart[1])):
        for found, expected in zip(attnext.merge_attention(*parts), merged, strict=True):
            np.testing.assert_array_equal(found, expected)
        d = attnext.merge_attention_backward(convert(grad), *parts, grad_lse=convert(grad_lse))
        for found, expected in zip(d, gradients, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_one_array_may_be_several_parts(rng: np.random.Generator) -> None:
    x, lse = rng.standard_normal((4, 5), dtype=np.float32), np.zeros(4, dtype=np.float32)
    output, merged = attnext.merge_attention([x] * 3, [lse] * 3)
    np.testing.assert_allclose(output, x, rtol=1e-6)
    np.testing.assert_allclose(merged, np.log(3), rtol=1e-6)
    assert not np.shares_memory(output, x)


# ---- inputs stay as they are ---------------------------------------------------------------------


@pytest.mark.parametrize("convert", [np.copy, fortran, strided, thinned])
def test_masks_and_parts_are_never_changed(
    convert: Callable[[Array], Array], rng: np.random.Generator
) -> None:
    mask, keep = convert(rng.random((3, 5)) < 0.5), convert(rng.random((2, 3, 5)) < 0.5)
    problem = make_problem("dot", rng, mask=mask, dropout_mask=keep, dropout_p=0.5)
    outputs = convert(rng.standard_normal((4, 3, 5), dtype=np.float32))
    lses = convert(rng.standard_normal((4, 3), dtype=np.float32))
    given = [mask, keep, outputs, lses]
    before = [x.copy() for x in given]
    problem.run()
    attnext.masked_softmax(outputs, mask=mask)
    attnext.merge_attention(outputs, lses)
    attnext.merge_attention_backward(outputs[0], outputs, lses, grad_lse=lses[0])
    for x, copy in zip(given, before, strict=True):
        np.testing.assert_array_equal(x, copy)


# ---- out= ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mask", "bias", "dropout_mask", "causal_offset"])
def test_out_may_overlap_no_mask(name: str, rng: np.random.Generator) -> None:
    given = {
        "mask": rng.random((3, 5)) < 0.5,
        "bias": rng.standard_normal((3, 5), dtype=np.float32),
        "dropout_mask": rng.random((2, 3, 5)) < 0.5,
        "causal_offset": np.array([1, 2]),
    }[name]
    problem = make_problem("dot", rng)
    expected = problem.but(**{name: given}).forward()
    memory = np.zeros(200, dtype=np.float32)
    out = memory[20:38].reshape(2, 3, 3)
    size = -(-given.nbytes // 8) * 8
    for place, shared in [(80, True), (80 + 68, True), (80 + 72, False), (400, False)]:
        x = memory.view(np.uint8)[place : place + size][: given.nbytes]
        x = x.view(given.dtype).reshape(given.shape)
        x[...] = given
        assert np.shares_memory(x, out) is shared
        if shared:
            with pytest.raises(ValueError, match=f"^out shares memory with {name}, "):
                problem.but(**{name: x}).forward(out=out)
            with pytest.raises(ValueError, match=f"^out shares memory with {name}, "):
                problem.but(**{name: np.broadcast_to(x, x.shape)}).forward(out=out)
        else:
            np.testing.assert_array_equal(problem.but(**{name: x}).forward(out=out), expected)


def test_out_of_softmax_may_not_overlap_its_mask() -> None:
    X, out = np.zeros((2, 3), dtype=np.float32), np.zeros((2, 3), dtype=np.float32)
    mask = out.view(bool)[:, :3]
    with pytest.raises(ValueError, match="^out shares memory with mask, "):
        attnext.masked_softmax(X, mask=mask, out=out)
