"""What may be passed in, what is refused and in which words, and that inputs stay as they are."""

from __future__ import annotations

import array
import re
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    EMPTY_ROWS,
    FUNCTION,
    SCORES,
    SCORES_FUNCTION,
    Array,
    Problem,
    assert_same_bits,
    make_problem,
    repr_id,
)

import attnext

# ---- dtypes, byte orders, layouts ----------------------------------------------------------------

DTYPES = [
    *("float16", "float32", "float64", "longdouble", ">f2", ">f4", ">f8"),
    *(
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        ">i2",
        ">i4",
        ">u8",
    ),
]


def fortran(x: Array) -> Array:
    return np.asfortranarray(x)


def strided(x: Array) -> Array:
    wide = np.full((*x.shape[:-1], 2 * x.shape[-1] + 1), 99, dtype=x.dtype)
    wide[..., 1::2] = x
    return wide[..., 1::2]


def backwards(x: Array) -> Array:
    turned = np.flip(x).copy()
    return np.flip(turned)


def unaligned(x: Array) -> Array:
    memory = np.zeros(x.nbytes + 1, dtype=np.uint8)
    copy = memory[1:].view(x.dtype).reshape(x.shape)
    copy[...] = x
    assert not copy.flags.aligned or x.itemsize == 1
    return copy


def read_only(x: Array) -> Array:
    x = x.copy()
    x.flags.writeable = False
    return x


class Plain(np.ndarray):  # type: ignore[type-arg]
    """A subclass without a meaning of its own."""


class Convertible:
    def __init__(self, x: Array) -> None:
        self.x = x

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.x if dtype is None else self.x.astype(dtype)


LAYOUTS: dict[str, Callable[[Array], Any]] = {
    "Fortran": fortran,
    "strided": strided,
    "backwards": backwards,
    "unaligned": unaligned,
    "read-only": read_only,
    "list": np.ndarray.tolist,
    "tuple": lambda x: tuple(map(np.ndarray.tolist, x)) if x.ndim > 1 else tuple(x.tolist()),
    "list of arrays": list,
    "memoryview": memoryview,
    "subclass": lambda x: x.view(Plain),
    "__array__": Convertible,
    "tensor": torch.from_numpy,
    "strided tensor": lambda x: torch.from_numpy(strided(x).copy()),
    "tensor of float64": lambda x: torch.from_numpy(x.astype(np.float64)),
    "transposed tensor": lambda x: torch.from_numpy(np.ascontiguousarray(x.T)).permute(
        *range(x.ndim)[::-1]
    ),
}


def whole_numbers(score: str, rng: np.random.Generator) -> Problem:
    """Small non-negative integers, which every dtype can hold, kept in float32."""
    problem = make_problem(score, rng, M=3, N=5)
    for part in (problem.inputs, problem.grads):
        for name, x in part.items():
            part[name] = rng.integers(0, 4, size=x.shape).astype(np.float32)
    if score == "additive":
        problem.options["b_h"] = rng.integers(0, 4, size=6).astype(np.float32)
    return problem


def converted(problem: Problem, convert: Callable[[Array], Any]) -> Problem:
    inputs, grads = (
        {name: convert(x) for name, x in part.items()} for part in (problem.inputs, problem.grads)
    )
    options = dict(problem.options)
    if "b_h" in options:
        options["b_h"] = convert(options["b_h"])
    return Problem(problem.score, inputs, options, grads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("score", SCORES)
def test_every_real_dtype(score: str, dtype: str, rng: np.random.Generator) -> None:
    problem = whole_numbers(score, rng)
    expected = problem.run()
    assert_same_bits(converted(problem, lambda x: x.astype(dtype)).run(), expected)
    odd = converted(problem, lambda x: strided(fortran(x.astype(dtype))))
    assert_same_bits(odd.run(), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("score", SCORES)
def test_every_layout(score: str, layout: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng)
    expected = problem.run()
    convert = LAYOUTS[layout]
    found = converted(problem, convert)
    assert_same_bits(found.run(), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_in_softmax(layout: str, rng: np.random.Generator) -> None:
    X, grad = rng.standard_normal((2, 3, 4, 5), dtype=np.float32)
    convert = LAYOUTS[layout]
    weights = attnext.masked_softmax(X, [1, 5, 3])
    np.testing.assert_array_equal(attnext.masked_softmax(convert(X), [1, 5, 3]), weights)
    d_X = attnext.masked_softmax_backward(grad, weights, 3)
    found = attnext.masked_softmax_backward(convert(grad), convert(weights), 3)
    np.testing.assert_array_equal(found, d_X)
    copy = attnext.sequence_mask(X, [1, 2, 0], 9)
    np.testing.assert_array_equal(attnext.sequence_mask(convert(X), [1, 2, 0], 9), copy)


def test_array_module_and_range() -> None:
    X = array.array("d", [0.5, 1.5, 2.5])
    np.testing.assert_array_equal(
        attnext.masked_softmax(X), attnext.masked_softmax([0.5, 1.5, 2.5])
    )
    lens = attnext.masked_softmax(np.zeros((3, 4)), range(1, 4))
    np.testing.assert_array_equal((lens > 0).sum(axis=1), [1, 2, 3])


def test_longdouble_and_float64_are_rounded_once() -> None:
    x = np.array([[1 + 2.0**-24 + 2.0**-50, 0]])  # to nearest float32: up, not to even
    assert attnext.sequence_mask(x, 2)[0, 0] == np.float32(1 + 2.0**-23)
    assert attnext.sequence_mask(x.astype(np.longdouble), 2)[0, 0] == np.float32(1 + 2.0**-23)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(1e300, np.inf), (-1e300, -np.inf), (np.inf, np.inf), (np.nan, np.nan), (1e-300, 0)],
)
@pytest.mark.parametrize("dtype", [np.float64, np.longdouble])
def test_conversion_to_float32_makes_no_noise(dtype: Any, value: float, rounded: float) -> None:
    """No warning and, under errstate, no exception either."""
    X = np.full((1, 1), value, dtype=dtype)
    with np.errstate(all="raise"):
        copy = attnext.sequence_mask(X, 1)
    np.testing.assert_array_equal(copy, np.full((1, 1), rounded, dtype=np.float32))


def test_keywords_may_come_in_any_order_and_spelling(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng)
    expected = problem.forward(valid_lens=[1, 2], scale=2.0)
    names = dict(reversed([*problem.inputs.items(), ("valid_lens", [1, 2]), ("scale", 2.0)]))
    np.testing.assert_array_equal(attnext.dot_product_attention(**names), expected)
    fresh = {"".join(list(name)): x for name, x in names.items()}  # strings not interned
    np.testing.assert_array_equal(attnext.dot_product_attention(**fresh), expected)


@pytest.mark.parametrize("kind", [bool, np.bool_, np.array])
def test_flags_are_bools_of_python_or_numpy(kind: Any, rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, M=4, N=4, lead=(2, 3))
    assert len(problem.forward(return_weights=kind(True))) == 2
    assert isinstance(problem.forward(return_weights=kind(False)), np.ndarray)
    causal = problem.but(causal=kind(True), enable_gqa=kind(True)).run()
    assert_same_bits(causal, problem.but(causal=True).run())
    assert_same_bits(problem.but(causal=kind(False), enable_gqa=kind(False)).run(), problem.run())


# ---- inputs stay as they are ---------------------------------------------------------------------


@pytest.mark.parametrize("convert", [np.copy, fortran, strided, lambda x: x.astype(np.float64)])
@pytest.mark.parametrize("score", SCORES)
def test_inputs_are_never_changed(
    score: str, convert: Callable[[Array], Array], rng: np.random.Generator
) -> None:
    lens = rng.integers(0, 150, size=(2, 35))
    problem = make_problem(score, rng, M=35, N=140, valid_lens=lens, dropout_p=0.3, seed=3)
    option = {"dot": "scale", "additive": "b_h", "gaussian": "w", "cosine": "eps"}[score]
    problem.options[option] = (
        rng.standard_normal(6, dtype=np.float32) if score == "additive" else np.array(0.5)
    )
    problem = converted(problem, convert).but(
        mask=convert(rng.random((35, 140)) < 0.9).astype(bool, copy=False),
        bias=convert(rng.standard_normal((2, 1, 140), dtype=np.float32)),
        causal=True,
        causal_offset=np.array([100, 5]),
    )
    given = [*problem.inputs.values(), *problem.grads.values(), lens]
    given += [x for x in problem.options.values() if isinstance(x, np.ndarray)]
    before = [x.copy() for x in given]
    output, weights, lse = problem.forward(return_weights=True, return_lse=True)
    saved = output.copy(), weights.copy(), lse.copy()
    problem.run()
    problem.backward(output=output, weights=weights, lse=lse)
    for x, copy in zip([*given, output, weights, lse], [*before, *saved], strict=True):
        np.testing.assert_array_equal(x, copy)


def test_softmax_inputs_are_never_changed(rng: np.random.Generator) -> None:
    X, grad = rng.standard_normal((2, 3, 4, 50), dtype=np.float32)
    lens = rng.integers(0, 60, size=(3, 4))
    given = [X, grad, lens]
    before = [x.copy() for x in given]
    weights = attnext.masked_softmax(X, lens)
    kept = weights.copy()
    attnext.masked_softmax_backward(grad, weights, lens)
    attnext.sequence_mask(X, lens[:, 0], 5)
    for x, copy in zip([*given, weights], [*before, kept], strict=True):
        np.testing.assert_array_equal(x, copy)


def test_one_array_may_be_all_inputs(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 5, 4), dtype=np.float32)
    together = attnext.dot_product_attention(x, x, x)
    np.testing.assert_array_equal(together, attnext.dot_product_attention(x, x.copy(), x.copy()))
    d = attnext.dot_product_attention_backward(x, x, x, x)
    apart = attnext.dot_product_attention_backward(x, x.copy(), x.copy(), x.copy())
    for a, b in zip(d, apart, strict=True):
        np.testing.assert_array_equal(a, b)


# ---- out= ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["queries", "keys", "values", "W_q", "W_k", "w_v", "b_h", "valid_lens"]
)
def test_out_may_overlap_no_input(name: str, rng: np.random.Generator) -> None:
    problem = make_problem("additive", rng, lead=(), M=6, N=6, D=6, Dk=6, Dv=6, H=6)
    problem.options["b_h"] = rng.standard_normal(6, dtype=np.float32)
    expected = problem.forward()
    memory = np.zeros(100, dtype=np.float32)
    out = memory[10:46].reshape(6, 6)
    given = {**problem.inputs, **problem.options}.get(name, np.array([1, 2, 3, 4, 5, 6]))
    size = given.nbytes // 4
    for first in (10 - size + 1, 20, 45):  # in front, inside or around, behind
        first = max(first, 0) // 2 * 2 if given.dtype.itemsize == 8 else max(first, 0)
        overlapping = memory[first : first + size].view(given.dtype).reshape(given.shape)
        if not np.shares_memory(overlapping, out):
            continue
        with pytest.raises(ValueError, match=f"^out shares memory with {name}, "):
            call_with(problem, name, overlapping, out)
    memory[50:] = 0
    apart = memory[50 : 50 + size].view(given.dtype).reshape(given.shape)
    apart[...] = given
    result = call_with(problem, name, apart, out)
    assert result is out
    if name != "valid_lens":
        np.testing.assert_array_equal(out, expected)


def call_with(problem: Problem, name: str, x: Array, out: Array) -> Any:
    arguments = {**problem.inputs, **problem.options, name: x}
    return attnext.additive_attention(**arguments, out=out)


def test_out_may_overlap_no_input_that_runs_backwards() -> None:
    """Such an input begins where its memory ends."""
    memory = np.zeros((8, 4), dtype=np.float32)
    X = memory[5:2:-1]
    for first in range(6):  # in front of the last three rows, over them, behind
        out = memory[first : first + 3]
        if not np.shares_memory(X, out):
            attnext.masked_softmax(X, out=out)
            continue
        with pytest.raises(ValueError, match="^out shares memory with X, "):
            attnext.masked_softmax(X, out=out)


def test_out_may_lie_between_the_rows_of_an_input(rng: np.random.Generator) -> None:
    """Shared address ranges are no shared memory."""
    memory = rng.standard_normal((2, 8, 4), dtype=np.float32)
    keys = memory[1, ::2]
    values = memory[1, 1::2]
    expected = attnext.dot_product_attention(values[:2], keys.copy(), keys.copy())
    out = memory[1, 1]  # one row between the keys' rows
    found = attnext.dot_product_attention(values[:1].copy(), keys, keys, out=out.reshape(1, 4))
    np.testing.assert_array_equal(found, expected[:1])


def test_out_of_a_failed_call_is_left_alone(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng)
    out = np.full((2, 3, 3), 7, dtype=np.float32)
    with pytest.raises(ValueError):
        problem.forward(out=out, valid_lens=[1, 2, 3])
    np.testing.assert_array_equal(out, 7)


def test_out_may_be_a_subclass_and_unwritten_memory(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng)
    out = np.full((2, 3, 3), np.nan, dtype=np.float32).view(Plain)
    assert problem.forward(out=out) is out
    np.testing.assert_array_equal(np.asarray(out), problem.forward())


# ---- refused, with these words -------------------------------------------------------------------

q, k, v = (np.zeros((2, n, d), dtype=np.float32) for n, d in ((3, 4), (5, 4), (5, 6)))
g = np.zeros((2, 3, 6), dtype=np.float32)
W, w = np.zeros((7, 4), dtype=np.float32), np.zeros(7, dtype=np.float32)
locked = read_only(g)

yes = np.ones((3, 5), dtype=bool)
many, few = (np.zeros((2, heads, 5, 4), dtype=np.float32) for heads in (6, 4))
o, s = np.zeros((2, 3, 4), dtype=np.float32), np.zeros((2, 3), dtype=np.float32)

dot, additive = attnext.dot_product_attention, attnext.additive_attention
gaussian, backward = attnext.gaussian_attention, attnext.dot_product_attention_backward
cosine, softmax = attnext.cosine_attention, attnext.masked_softmax
sequence_mask = attnext.sequence_mask
merge, merge_backward = attnext.merge_attention, attnext.merge_attention_backward

REAL = "expected real numbers (any float or integer dtype)"
HINT = "expected integers"
BIAS = "expected bools: to add floats to the scores, use the argument bias"
BINARY = "; all values are 0 or 1, so pass "

WRONG: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    # arity
    ("missing", lambda: dot(q, k), TypeError,
     "dot_product_attention() missing required argument 'values' (position 3)"),
    ("missing w_v", lambda: additive(q, k, v, W, W), TypeError,
     "additive_attention() missing required argument 'w_v' (position 6)"),
    ("too many", lambda: dot(q, k, v, None, 1.0), TypeError,
     "dot_product_attention() takes at most 4 positional arguments, got 5"),
    ("twice", lambda: dot(q, k, v, queries=q), TypeError,
     "dot_product_attention() got multiple values for argument 'queries'"),
    ("unknown", lambda: dot(q, k, v, wrong=1), TypeError,
     "dot_product_attention() got an unexpected keyword argument 'wrong'"),
    ("of another score", lambda: gaussian(q, k, v, scale=1), TypeError,
     "gaussian_attention() got an unexpected keyword argument 'scale'"),
    ("keyword only", lambda: softmax(q, None, "zero"), TypeError,
     "masked_softmax() takes at most 2 positional arguments, got 3"),
    ("none at all", lambda: softmax(), TypeError,
     "masked_softmax() missing required argument 'X' (position 1)"),
    # kinds and dtypes
    ("None", lambda: dot(None, k, v), TypeError, f"queries is None, {REAL}"),
    ("object()", lambda: dot(q, object(), v), TypeError, f"keys is of type object, {REAL}"),
    ("complex", lambda: dot(q.astype(complex), k, v), TypeError,
     f"queries has dtype complex128, {REAL}"),
    ("bool", lambda: dot(q, k, v.astype(bool)), TypeError, f"values has dtype bool, {REAL}"),
    ("object dtype", lambda: dot(q.astype(object), k, v), TypeError,
     f"queries has dtype object, {REAL}"),
    ("str", lambda: dot([["a"]], k, v), TypeError, f"queries has dtype <U1, {REAL}"),
    ("datetime", lambda: softmax(q.astype("M8[s]")), TypeError,
     f"X has dtype datetime64[s], {REAL}"),
    ("timedelta", lambda: softmax(q.astype("m8[s]")), TypeError,
     f"X has dtype timedelta64[s], {REAL}"),
    ("structured", lambda: softmax(np.zeros(3, dtype="f4,f4")), TypeError,
     f"X has dtype [('f0', '<f4'), ('f1', '<f4')], {REAL}"),
    ("masked array", lambda: dot(np.ma.masked_array(q), k, v), TypeError,
     "queries is a numpy.ma.MaskedArray, expected a plain array: its mask would be lost, so "
     "use the argument valid_lens for padding"),
    ("matrix", lambda: dot(q[0], np.matrix(k[0]), v[0]), TypeError,
     "keys is a numpy.matrix, expected a plain array: numpy.asarray(keys)"),
    ("requires_grad", lambda: dot(q, k, torch.zeros(2, 5, 6, requires_grad=True)), TypeError,
     "values is a tensor that requires grad, but a NumPy function computes no gradient: use the "
     "function of the same name in attnext.torch, or pass values.detach()"),
    # shapes
    ("no axes", lambda: dot(3.0, k, v), ValueError,
     "queries has shape (), expected two axes or more: (..., M, D)"),
    ("one axis", lambda: dot(q[0, 0], k, v), ValueError,
     "queries has shape (4,), expected two axes or more: (..., M, D)"),
    ("leading axes", lambda: dot(q, k[:1], v), ValueError,
     "keys has shape (1, 5, 4), expected (2, N, 4)"),
    ("features", lambda: dot(q, k[..., :3], v), ValueError,
     "keys has shape (2, 5, 3), expected (2, N, 4)"),
    ("rank of keys", lambda: dot(q, k[0], v), ValueError,
     "keys has shape (5, 4), expected (2, N, 4)"),
    ("number of values", lambda: dot(q, k, v[:, :4]), ValueError,
     "values has shape (2, 4, 6), expected (2, 5, Dv)"),
    ("rank of values", lambda: dot(q, k, v[0]), ValueError,
     "values has shape (5, 6), expected (2, 5, Dv)"),
    ("keys of additive", lambda: additive(q, k[0], v, W, W, w), ValueError,
     "keys has shape (5, 4), expected (2, N, Dk)"),
    ("W_q", lambda: additive(q, k, v, W[:, :2], W, w), ValueError,
     "W_q has shape (7, 2), expected (H, 4)"),
    ("W_k", lambda: additive(q, k, v, W, W[:5], w), ValueError,
     "W_k has shape (5, 4), expected (7, 4)"),
    ("w_v", lambda: additive(q, k, v, W, W, w[:3]), ValueError,
     "w_v has shape (3,), expected (7,) or (1, 7)"),
    ("column w_v", lambda: additive(q, k, v, W, W, w[:, None]), ValueError,
     "w_v has shape (7, 1), expected (7,) or (1, 7)"),
    ("b_h", lambda: additive(q, k, v, W, W, w, b_h=w[:2]), ValueError,
     "b_h has shape (2,), expected (7,)"),
    ("grad_output", lambda: backward(g[..., :2], q, k, v), ValueError,
     "grad_output has shape (2, 3, 2), expected (2, 3, 6)"),
    ("grad_weights", lambda: backward(g, q, k, v, grad_weights=g), ValueError,
     "grad_weights has shape (2, 3, 6), expected (2, 3, 5)"),
    ("grad_lse", lambda: backward(g, q, k, v, grad_lse=g), ValueError,
     "grad_lse has shape (2, 3, 6), expected (2, 3)"),
    ("output", lambda: backward(g, q, k, v, output=q), ValueError,
     "output has shape (2, 3, 4), expected (2, 3, 6)"),
    ("weights", lambda: backward(g, q, k, v, weights=q), ValueError,
     "weights has shape (2, 3, 4), expected (2, 3, 5)"),
    ("lse", lambda: backward(g, q, k, v, lse=q), ValueError,
     "lse has shape (2, 3, 4), expected (2, 3)"),
    ("scalar scores", lambda: softmax(1.0), ValueError,
     "X has shape (), expected one axis or more: (..., M, N)"),
    ("softmax gradient", lambda: attnext.masked_softmax_backward(q, k), ValueError,
     "grad_output has shape (2, 3, 4), expected (2, 5, 4)"),
    ("sequences", lambda: sequence_mask(q[0, 0], 1), ValueError,
     "X has shape (4,), expected two axes or more: (B, T, ...)"),
    # lengths
    ("1-D lengths", lambda: dot(q, k, v, [1, 2, 3]), ValueError,
     "valid_lens has shape (3,), expected (2,) or (2, 3)"),
    ("2-D lengths", lambda: dot(q, k, v, np.ones((2, 4), dtype=int)), ValueError,
     "valid_lens has shape (2, 4), expected (2,) or (2, 3)"),
    ("lengths of heads", lambda: softmax(np.zeros((2, 3, 4, 5)), [1, 2, 3]), ValueError,
     "valid_lens has shape (3,), expected (2,), (2, 4) or (2, 3, 4)"),
    ("lengths of a row", lambda: softmax(q[0, 0], [3]), ValueError,
     "valid_lens has shape (1,), expected an int"),
    ("lengths of rows", lambda: softmax(q[0], [3]), ValueError,
     "valid_lens has shape (1,), expected (3,) or an int"),
    ("float lengths", lambda: dot(q, k, v, [1.0, 2.0]), TypeError,
     f"valid_lens has dtype float64, {HINT}; all values are whole numbers, so pass "
     "numpy.array(valid_lens, int)"),
    ("float length", lambda: dot(q, k, v, 1.5), TypeError, f"valid_lens has dtype float64, {HINT}"),
    ("bool lengths", lambda: dot(q, k, v, [True, False]), TypeError,
     "valid_lens has dtype bool, expected integers: valid_lens counts keys"),
    ("bool length", lambda: dot(q, k, v, True), TypeError,
     "valid_lens has dtype bool, expected integers: valid_lens counts keys"),
    ("negative lengths", lambda: dot(q, k, v, [2, -1]), ValueError,
     "valid_lens contains -1, expected lengths of 0 or more"),
    ("negative length", lambda: dot(q, k, v, -3), ValueError,
     "valid_lens is -3, expected a length of 0 or more"),
    ("very negative length", lambda: dot(q, k, v, -(10**30)), ValueError,
     f"valid_lens is -{10**30}, expected a length of 0 or more"),
    ("str length", lambda: dot(q, k, v, "2"), TypeError,
     "valid_lens has dtype <U1, expected integers"),
    ("object length", lambda: dot(q, k, v, object()), TypeError,
     "valid_lens is of type object, expected integers"),
    ("sequence lengths", lambda: sequence_mask(q, [1, 2, 3]), ValueError,
     "valid_len has shape (3,), expected (2,)"),
    ("no sequence lengths", lambda: sequence_mask(q, None), TypeError,
     "valid_len is None, expected integers"),
    ("float sequence length", lambda: sequence_mask(q, 1.0), TypeError,
     f"valid_len has dtype float64, {HINT}; the value is a whole number, so pass int(valid_len)"),
    # masks
    ("int mask", lambda: dot(q, k, v, mask=yes.astype(int)), TypeError,
     f"mask has dtype int64, expected bools: True means attend{BINARY}mask.astype(bool)"),
    ("uint8 mask", lambda: softmax(q, mask=yes.view(np.uint8)), TypeError,
     f"mask has dtype uint8, expected bools: True means attend{BINARY}mask.astype(bool)"),
    ("list of int mask", lambda: dot(q, k, v, mask=[1, 0, 1, 1, 0]), TypeError,
     f"mask has dtype int64, expected bools: True means attend{BINARY}numpy.array(mask, bool)"),
    ("float mask", lambda: dot(q, k, v, mask=yes.astype(np.float32)), TypeError,
     f"mask has dtype float32, {BIAS}{BINARY}mask.astype(bool)"),
    ("float tensor mask", lambda: softmax(k, mask=torch.ones(5, 4)), TypeError,
     f"mask has dtype float32, {BIAS}{BINARY}mask.bool()"),
    ("str mask", lambda: dot(q, k, v, mask="causal"), TypeError,
     "mask has dtype <U6, expected bools"),
    ("object mask", lambda: dot(q, k, v, mask=object()), TypeError,
     "mask is of type object, expected bools"),
    ("masked array as mask", lambda: dot(q, k, v, mask=np.ma.masked_array(yes)), TypeError,
     "mask is a numpy.ma.MaskedArray, expected a plain array: its mask would be lost, so "
     "use the argument valid_lens for padding"),
    ("shape of mask", lambda: dot(q, k, v, mask=yes[:, :4]), ValueError,
     "mask has shape (3, 4), expected a shape that broadcasts to (2, 3, 5)"),
    ("batch of mask", lambda: dot(q, k, v, mask=np.ones((3, 3, 5), dtype=bool)), ValueError,
     "mask has shape (3, 3, 5), expected a shape that broadcasts to (2, 3, 5)"),
    ("axes of mask", lambda: dot(q, k, v, mask=yes[None, None]), ValueError,
     "mask has shape (1, 1, 3, 5), expected a shape that broadcasts to (2, 3, 5)"),
    ("mask of no keys", lambda: dot(q, k, v, mask=[]), ValueError,
     "mask has shape (0,), expected a shape that broadcasts to (2, 3, 5)"),
    ("mask of softmax", lambda: softmax(q, mask=yes), ValueError,
     "mask has shape (3, 5), expected a shape that broadcasts to (2, 3, 4)"),
    ("mask of softmax backward",
     lambda: attnext.masked_softmax_backward(q, q, mask=yes), ValueError,
     "mask has shape (3, 5), expected a shape that broadcasts to (2, 3, 4)"),
    ("bool bias", lambda: dot(q, k, v, bias=yes), TypeError,
     "bias has dtype bool, expected floats: use the argument mask for a bool mask"),
    ("bool bias in a list", lambda: dot(q, k, v, bias=[True] * 5), TypeError,
     "bias has dtype bool, expected floats: use the argument mask for a bool mask"),
    ("int bias", lambda: dot(q, k, v, bias=yes.astype(int)), TypeError,
     "bias has dtype int64, expected floats"),
    ("complex bias", lambda: dot(q, k, v, bias=1j), TypeError,
     "bias has dtype complex128, expected floats"),
    ("tensor bias", lambda: dot(q, k, v, bias=torch.zeros(5, requires_grad=True)), TypeError,
     "bias is a tensor that requires grad, but a NumPy function computes no gradient: use the "
     "function of the same name in attnext.torch, or pass bias.detach()"),
    ("shape of bias", lambda: dot(q, k, v, bias=q), ValueError,
     "bias has shape (2, 3, 4), expected a shape that broadcasts to (2, 3, 5)"),
    ("axes of bias", lambda: dot(q[0], k[0], v[0], bias=[[[0.0]]]), ValueError,
     "bias has shape (1, 1, 1), expected a shape that broadcasts to (3, 5)"),
    # bands
    ("float offset", lambda: dot(q, k, v, causal_offset=1.0), TypeError,
     f"causal_offset has dtype float64, {HINT}; the value is a whole number, so pass "
     "int(causal_offset)"),
    ("bool offset", lambda: dot(q, k, v, causal=True, causal_offset=True), TypeError,
     "causal_offset has dtype bool, expected integers"),
    ("no offset", lambda: dot(q, k, v, causal_offset=None), TypeError,
     "causal_offset is None, expected integers"),
    ("offsets", lambda: dot(q, k, v, causal=True, causal_offset=[1, 2, 3]), ValueError,
     "causal_offset has shape (3,), expected an int or (2,)"),
    ("offsets of queries", lambda: dot(q, k, v, causal_offset=[[0] * 3] * 2), ValueError,
     "causal_offset has shape (2, 3), expected an int or (2,)"),
    ("offsets of one entry", lambda: dot(q[0], k[0], v[0], causal_offset=[0] * 3), ValueError,
     "causal_offset has shape (3,), expected an int"),
    ("window 1", lambda: dot(q, k, v, window=1), TypeError,
     "window must be a pair of ints (left, right), got int"),
    ("array window", lambda: dot(q, k, v, window=np.array([1, 2])), TypeError,
     "window must be a pair of ints (left, right), got numpy.ndarray"),
    ("str window", lambda: dot(q, k, v, window="12"), TypeError,
     "window must be a pair of ints (left, right), got str"),
    ("window (1,)", lambda: dot(q, k, v, window=(1,)), ValueError,
     "window has length 1, expected 2: (left, right)"),
    ("window of three", lambda: dot(q, k, v, window=[1, 2, 3]), ValueError,
     "window has length 3, expected 2: (left, right)"),
    ("float window", lambda: dot(q, k, v, window=(1.0, 2)), TypeError,
     "window[0] must be an int, got float"),
    ("bool window", lambda: dot(q, k, v, window=(1, True)), TypeError,
     "window[1] must be an int, got bool"),
    ("None in window", lambda: dot(q, k, v, window=(None, 0)), TypeError,
     "window[0] must be an int, got NoneType"),
    ("window -2", lambda: dot(q, k, v, window=(0, -2)), ValueError,
     "window[1] is -2, expected 0 or more, or -1 for no bound"),
    ("window -10**30", lambda: dot(q, k, v, window=(-(10**30), 0)), ValueError,
     f"window[0] is -{10**30}, expected 0 or more, or -1 for no bound"),
    # heads
    ("heads", lambda: dot(many, few, few, enable_gqa=True), ValueError,
     "keys has shape (2, 4, 5, 4), expected a number of heads (axis -3) that divides 6, "
     "the heads of queries"),
    ("more heads", lambda: dot(few, many, many, enable_gqa=True), ValueError,
     "keys has shape (2, 6, 5, 4), expected a number of heads (axis -3) that divides 4, "
     "the heads of queries"),
    ("no heads", lambda: dot(many, many[:, :0], many[:, :0], enable_gqa=True), ValueError,
     "keys has shape (2, 0, 5, 4), expected a number of heads (axis -3) that divides 6, "
     "the heads of queries"),
    ("no axis of heads", lambda: dot(q[0], k[0], v[0], enable_gqa=True), ValueError,
     "queries has shape (3, 4), expected three axes or more with enable_gqa: (..., heads, M, D)"),
    ("rank with heads", lambda: dot(many, k, v, enable_gqa=True), ValueError,
     "keys has shape (2, 5, 4), expected (2, heads, N, 4)"),
    ("batch with heads", lambda: dot(many, many[:1], many[:1], enable_gqa=True), ValueError,
     "keys has shape (1, 6, 5, 4), expected (2, heads, N, 4)"),
    ("heads of values", lambda: dot(many, many[:, :3], many[:, :2], enable_gqa=True), ValueError,
     "values has shape (2, 2, 5, 4), expected (2, 3, 5, Dv)"),
    ("heads that are not enabled", lambda: dot(many, many[:, :3], many[:, :3]), ValueError,
     "keys has shape (2, 3, 5, 4), expected (2, 6, N, 4); if several query heads "
     "share one key head, pass enable_gqa=True"),
    # parts
    ("no parts", lambda: merge([], []), ValueError, "outputs is empty, expected at least one part"),
    ("array of no parts", lambda: merge(o[:0, None], s[:0]), ValueError,
     "outputs is empty, expected at least one part"),
    ("fewer lses", lambda: merge([o, o, o], [s, s]), ValueError,
     "lses has 2 parts, expected 3, as many as outputs has"),
    ("fewer stacked lses", lambda: merge([o, o, o], np.stack([s, s])), ValueError,
     "lses has shape (2, 2, 3), expected (3, 2, 3)"),
    ("shapes of outputs", lambda: merge([o, o[:, :2]], [s, s]), ValueError,
     "outputs[1] has shape (2, 2, 4), expected (2, 3, 4)"),
    ("shapes of lses", lambda: merge([o, o], [s, s[0]]), ValueError,
     "lses[1] has shape (3,), expected (2, 3)"),
    ("shape of lses", lambda: merge(o[None], o[None]), ValueError,
     "lses has shape (1, 2, 3, 4), expected (1, 2, 3)"),
    ("rows of outputs", lambda: merge([s[0], s[0]], [0.0, 0.0]), ValueError,
     "outputs[0] has shape (3,), expected two axes or more: (..., M, Dv)"),
    ("stacked rows", lambda: merge(s, s[:, 0]), ValueError,
     "outputs has shape (2, 3), expected three axes or more: (parts, ..., M, Dv)"),
    ("bool output", lambda: merge([o, o > 0], [s, s]), TypeError,
     f"outputs[1] has dtype bool, {REAL}"),
    ("None lse", lambda: merge([o], [None]), TypeError, f"lses[0] is None, {REAL}"),
    ("None outputs", lambda: merge(None, [s]), TypeError, f"outputs is None, {REAL}"),
    ("gradient of output", lambda: merge_backward(s, [o], [s]), ValueError,
     "grad_output has shape (2, 3), expected (2, 3, 4)"),
    ("gradient of lse", lambda: merge_backward(o, [o], [s], grad_lse=o), ValueError,
     "grad_lse has shape (2, 3, 4), expected (2, 3)"),
    # numbers and names
    ("inf scale", lambda: dot(q, k, v, scale=np.inf), ValueError,
     "scale is inf, expected a finite float32 number"),
    ("nan scale", lambda: dot(q, k, v, scale=np.nan), ValueError,
     "scale is nan, expected a finite float32 number"),
    ("scale over float32", lambda: dot(q, k, v, scale=1e39), ValueError,
     "scale is 1e+39, expected a finite float32 number"),
    ("scale over float64", lambda: dot(q, k, v, scale=10**400), ValueError,
     "scale is an int too large for a float"),
    ("str scale", lambda: dot(q, k, v, scale="1"), TypeError, "scale must be a number, got str"),
    ("bool scale", lambda: dot(q, k, v, scale=True), TypeError, "scale must be a number, got bool"),
    ("three scales", lambda: dot(q, k, v, scale=[1.0, 2.0, 3.0]), ValueError,
     "scale has shape (3,), expected a shape that broadcasts to (2,)"),
    ("two bandwidths", lambda: gaussian(q, k, v, w=[1.0, 2.0]), ValueError,
     "w has shape (2,), expected a number or an array of one element"),
    ("w and sigma", lambda: gaussian(q, k, v, w=1.0, sigma=1.0), ValueError,
     "w and sigma are both given, expected only one because w = 1 / sigma"),
    ("sigma 0", lambda: gaussian(q, k, v, sigma=0), ValueError,
     "sigma is 0, expected a finite sigma > 0 with a finite 1 / sigma"),
    ("sigma < 0", lambda: gaussian(q, k, v, sigma=-1.0), ValueError,
     "sigma is -1.0, expected a finite sigma > 0 with a finite 1 / sigma"),
    ("1 / sigma = inf", lambda: gaussian(q, k, v, sigma=1e-40), ValueError,
     "sigma is 1e-40, expected a finite sigma > 0 with a finite 1 / sigma"),
    ("nan w", lambda: gaussian(q, k, v, w=np.nan), ValueError,
     "w is nan, expected a finite float32 number"),
    ("empty_rows", lambda: dot(q, k, v, empty_rows="mean"), ValueError,
     "empty_rows is 'mean', expected 'uniform', 'zero' or 'nan'"),
    ("empty_rows None", lambda: softmax(q, empty_rows=None), TypeError,
     "empty_rows must be a str, got NoneType"),
    ("no seed", lambda: dot(q, k, v, dropout_p=0.5), ValueError,
     "seed is not given, expected 0 <= seed < 2**64 because dropout_p is 0.5"),
    ("seed", lambda: dot(q, k, v, dropout_p=0.5, seed=2**64), ValueError,
     "seed is 18446744073709551616, expected 0 <= seed < 2**64"),
    ("float seed", lambda: dot(q, k, v, dropout_p=0.5, seed=1.0), TypeError,
     "seed must be an int, got float"),
    ("dropout_p", lambda: dot(q, k, v, dropout_p=1, seed=0), ValueError,
     "dropout_p is 1, expected 0 <= dropout_p < 1"),
    ("negative dropout_p", lambda: dot(q, k, v, dropout_p=-0.1, dropout_mask=yes), ValueError,
     "dropout_p is -0.1, expected 0 <= dropout_p < 1"),
    ("seed and mask", lambda: dot(q, k, v, dropout_p=0.5, seed=1, dropout_mask=yes), ValueError,
     "dropout_mask and seed are both given, expected only one"),
    ("float dropout mask", lambda: dot(q, k, v, dropout_mask=yes * 2.0), TypeError,
     "dropout_mask has dtype float64, expected bools: True means keep"),
    ("int dropout mask", lambda: dot(q, k, v, dropout_mask=[1]), TypeError,
     f"dropout_mask has dtype int64, expected bools: True means keep{BINARY}"
     "numpy.array(dropout_mask, bool)"),
    ("shape of dropout mask", lambda: dot(q, k, v, dropout_mask=yes.T), ValueError,
     "dropout_mask has shape (5, 3), expected a shape that broadcasts to (2, 3, 5)"),
    ("no cosine scale", lambda: cosine(q, k, v, scale=None), TypeError,
     "scale must be a number, got NoneType"),
    ("eps 0", lambda: cosine(q, k, v, eps=0), ValueError, "eps is 0, expected eps > 0 in float32"),
    ("eps < 0", lambda: cosine(q, k, v, eps=-1e-8), ValueError,
     "eps is -1e-08, expected eps > 0 in float32"),
    ("tiny eps", lambda: attnext.cosine_scores(q, k, eps=1e-50), ValueError,
     "eps is 1e-50, expected eps > 0 in float32"),
    ("inf eps", lambda: cosine(q, k, v, eps=np.inf), ValueError,
     "eps is inf, expected a finite float32 number"),
    ("value", lambda: sequence_mask(q, 1, None), TypeError, "value must be a number, got NoneType"),
    # out
    ("list out", lambda: dot(q, k, v, out=[1]), TypeError,
     "out must be a numpy.ndarray, got list"),
    ("float64 out", lambda: dot(q, k, v, out=np.zeros((2, 3, 6))), TypeError,
     "out has dtype float64, expected float32"),
    ("swapped out", lambda: dot(q, k, v, out=g.astype(">f4")), TypeError,
     "out has dtype >f4, expected float32"),
    ("shape of out", lambda: dot(q, k, v, out=np.zeros((2, 3, 5), dtype=np.float32)), ValueError,
     "out has shape (2, 3, 5), expected (2, 3, 6)"),
    ("Fortran out", lambda: dot(q, k, v, out=fortran(g)), ValueError,
     "out is not C-contiguous, expected a writable C-contiguous array"),
    ("unaligned out", lambda: dot(q, k, v, out=unaligned(g)), ValueError,
     "out is unaligned, expected a writable C-contiguous array"),
    ("locked out", lambda: dot(q, k, v, out=locked), ValueError,
     "out is read-only, expected a writable C-contiguous array"),
    ("out is queries", lambda: dot(q, k, v[..., :4], out=q), ValueError,
     "out shares memory with queries, expected an array with its own memory"),
    ("out is X", lambda: softmax(q, out=q), ValueError,
     "out shares memory with X, expected an array with its own memory"),
    # the process
    ("no threads", lambda: attnext.set_num_threads(0), ValueError,
     "n is 0, expected 1 <= n <= 2147483647"),
    ("float threads", lambda: attnext.set_num_threads(2.0), TypeError,
     "n must be an int, got float"),
    ("bool threads", lambda: attnext.set_num_threads(True), TypeError,
     "n must be an int, got bool"),
    ("mode", lambda: attnext.show_config("json"), ValueError,
     "mode is 'json', expected 'stdout' or 'dicts'"),
    ("mode 1", lambda: attnext.show_config(1), TypeError, "mode must be a str, got int"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "error", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of np.matrix
def test_wrong_call(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


def test_at_least_thirty_messages() -> None:
    assert len({message for *_, message in WRONG}) >= 30


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "a",
        1j,
        True,
        object(),
        {},
        {1.0},
        b"abc",
        np.array(None),
        np.array("a"),
        np.zeros(3, "V4"),
    ],
    ids=repr_id,
)
@pytest.mark.parametrize("score", SCORES)
def test_every_array_argument_refuses_what_is_no_array(
    score: str, bad: Any, rng: np.random.Generator
) -> None:
    """By a TypeError that names it."""
    problem = make_problem(score, rng)
    if score == "additive":
        problem.options["b_h"] = rng.standard_normal(6, dtype=np.float32)
    for name in problem.inputs:
        with pytest.raises(TypeError, match=f"^{name} "):
            Problem(score, {**problem.inputs, name: bad}, problem.options).forward()
    for name in [*problem.grads, *problem.inputs, *("b_h",) * (score == "additive")]:
        if bad is None and name in ("grad_weights", "grad_lse", "b_h"):
            continue  # the same as not given
        arguments = {**problem.grads, **problem.inputs, **problem.options, name: bad}
        with pytest.raises(TypeError, match=f"^{name} "):
            getattr(attnext, FUNCTION[score] + "_backward")(**arguments)


@pytest.mark.parametrize("bad", ["a", 1j, object(), {}, b"abc", np.array(None), np.zeros(3, "V4")])
@pytest.mark.parametrize("name", ["mask", "bias", "dropout_mask", "causal_offset"])
def test_every_mask_refuses_what_is_none(name: str, bad: Any, rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng)
    for function in (problem.but(**{name: bad}).forward, problem.but(**{name: bad}).backward):
        with pytest.raises(TypeError, match=f"^{name} "):
            function()


@pytest.mark.filterwarnings("ignore:Creating an ndarray from ragged")  # before NumPy 1.24
def test_ragged_lists_are_value_errors_by_name() -> None:
    with pytest.raises(ValueError, match="^keys cannot be read as an array: "):
        dot(q, [[1, 2], [3]], v)
    with pytest.raises(ValueError, match="^valid_lens cannot be read as an array: "):
        dot(q, k, v, [[1, 2], [3]])


def test_pointers_that_numpy_does_not_follow_are_not_followed() -> None:
    """Objects, says this interface; what lies there are floats."""
    said = {**q.__array_interface__, "typestr": "|O8"}
    liar = types.SimpleNamespace(__array_interface__=said, kept=q)
    with pytest.raises(TypeError, match="^queries has dtype object, expected real numbers"):
        dot(liar, k, v)


# An array interface that calls floats objects, on a list, a tuple and an object of no such class.
LIARS = """
import types, numpy as np, attnext
from attnext import explain, kernel_regression, plot, reference

x = np.ones((2, 3, 4), "f4")
for shape in (2, 3, 2), (2,), ():
    said = {"__array_interface__": {**x.__array_interface__, "typestr": "|O8", "shape": shape}}
    ragged = [[1.0, 2.0], [3.0]]
    liars = [type("Liar", (kind,), said)(ragged) for kind in (list, tuple)]
    objects = np.asarray(types.SimpleNamespace(**said))
    for liar in [*liars, types.SimpleNamespace(**said), objects]:
        options = "valid_lens mask bias scale causal_offset window sink seed out".split()
        calls = [lambda name=name: attnext.dot_product_attention(x, x, x, **{name: liar})
                 for name in options]
        calls += [
            lambda: attnext.dot_product_attention(liar, x, x),
            lambda: attnext.gaussian_attention(x, x, x, sigma=liar),
            lambda: attnext.merge_attention([liar], [x]),
            lambda: attnext.sequence_mask(x, liar),
            lambda: attnext.DotProductAttention(scale=liar),
            lambda: attnext.AdditiveAttention(4, 4, 4, rng=liar),
            lambda: setattr(attnext.AdditiveAttention(4, 4, 4), "W_q", liar),
            lambda: reference.dot_product_attention(x, x, x, liar),
            lambda: reference.dot_product_attention(x, x, x, causal_offset=liar),
            lambda: explain.dot_product_attention(liar, x[0], x[0]),
            lambda: kernel_regression.average_pooling(liar, liar),
            lambda: plot.show_heatmaps(liar, "a", "b"),
        ]
        for i, call in enumerate(calls):
            print(type(liar).__bases__, shape, i, flush=True)
            try:
                call()
            except (TypeError, ValueError, ImportError):
                continue
            assert type(liar).__bases__[0] in (list, tuple), "was read"  # as seeds these are lists
"""


def test_objects_that_an_array_interface_only_claims_are_not_read() -> None:
    child = subprocess.run([sys.executable, "-P", "-c", LIARS], capture_output=True, text=True)
    assert child.returncode == 0, child.stdout.splitlines()[-1] + child.stderr


def test_tensors_numpy_cannot_read_are_type_errors_by_name() -> None:
    with pytest.raises(TypeError, match="^keys cannot be read as an array: "):
        dot(q, torch.zeros(2, 5, 4, dtype=torch.bfloat16), v)
    with pytest.raises(TypeError, match="^keys cannot be read as an array: "):
        dot(q, torch.zeros(2, 5, 4).to_sparse(), v)
    with pytest.raises(TypeError, match="^keys cannot be read as an array: "):
        dot(q, torch.zeros(2, 5, 4, device="meta"), v)


class Raises:
    """An object of which reading as an array fails."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise self.error("on purpose")


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ZeroDivisionError, OSError])
def test_exceptions_of_the_arguments_come_through(error: type[BaseException]) -> None:
    with pytest.raises(error, match="on purpose"):
        dot(q, Raises(error), v)
    for name in ("valid_lens", "mask", "bias", "dropout_mask", "causal_offset"):
        with pytest.raises(error, match="on purpose"):
            dot(q, k, v, **{name: Raises(error)})
    with pytest.raises(error, match="on purpose"):
        merge([o, Raises(error)], [s, s])


class Index:
    """An int that does something when it is read."""

    def __init__(self, value: int, action: Callable[[], None]) -> None:
        self.value, self.action = value, action

    def __index__(self) -> int:
        self.action()
        return self.value


def test_a_window_that_changes_while_it_is_read() -> None:
    window: list[Any] = []
    window += [Index(1, window.clear), Index(2, window.clear)]
    np.testing.assert_array_equal(dot(q, k, v, window=window), dot(q, k, v, window=(1, 2)))
    assert window == []

    def fails() -> None:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        dot(q, k, v, window=(Index(1, fails), 2))


def test_parts_that_change_while_they_are_read() -> None:
    parts: list[Any] = [o, o]
    lses: list[Any] = [s, s]

    class Clears:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
            parts.clear()
            lses.clear()
            return o.copy()

    parts[0] = Clears()
    with pytest.raises(ValueError, match="^lses has 0 parts, expected 2, as many as outputs has$"):
        merge(parts, lses)
    parts[:] = [Clears(), o]
    output, lse = merge(parts, (s, s))
    assert (output.shape, lse.shape, parts) == (o.shape, s.shape, [])


class Reshapes:
    """An argument that reshapes another one while it is read."""

    def __init__(self, x: Array, victim: Array, shape: tuple[int, ...]) -> None:
        self.x, self.victim, self.shape = x, victim, shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        # what an in-place reshape does, without the deprecation of assigning to shape
        self.victim.resize(self.shape, refcheck=False)
        return self.x


@pytest.mark.parametrize("shape", [(2, 4, 3), (24,), (1, 1, 24), (24, 1, 1), (2, 3, 4)], ids=str)
def test_an_argument_that_reshapes_another(shape: tuple[int, ...]) -> None:
    """The sizes of an array are read once: the call sees the old ones, or refuses."""
    for name in ("keys", "values", "valid_lens"):
        queries = np.ones((2, 3, 4), dtype=np.float32)
        arguments: dict[str, Any] = {
            "queries": queries,
            "keys": k,
            "values": v,
            "valid_lens": np.array([1, 2]),
        }
        arguments[name] = Reshapes(np.asarray(arguments[name]), queries, shape)
        try:
            output = dot(**arguments)
        except ValueError:
            continue
        assert output.shape == (2, 3, 6)


@pytest.mark.parametrize("shape", [(2, 15), (5, 3, 2), (30,), (1, 30)], ids=str)
@pytest.mark.parametrize("victim", ["mask", "bias"])
def test_an_argument_that_reshapes_a_mask(victim: str, shape: tuple[int, ...]) -> None:
    """All are read before one is looked at."""
    arguments: dict[str, Any] = {
        "mask": np.arange(30).reshape(2, 3, 5) % 4 > 0,
        "bias": np.arange(30, dtype=np.float32).reshape(2, 3, 5),
        "dropout_mask": np.arange(30).reshape(2, 3, 5) % 3 > 0,
    }
    arguments["dropout_mask"] = Reshapes(arguments["dropout_mask"], arguments[victim], shape)
    with pytest.raises(ValueError, match=re.escape(f"{victim} has shape {shape}, expected")):
        backward(g, q, k, v, **arguments, return_grad_bias=True)


# ---- sizes ---------------------------------------------------------------------------------------


@pytest.fixture
def at_once() -> Iterator[None]:
    """A walk over the huge axes would take hours: after 20 s of this process it is an error."""

    def too_long(*_: Any) -> None:
        raise TimeoutError("the call does not return at once")

    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, 20)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


HUGE = 2**40


def zeros(*shape: int) -> Array:
    return np.zeros(shape, dtype=np.float32)


@pytest.mark.parametrize(
    ("lead", "M", "N", "D", "Dv"),
    [
        ((0,), HUGE, 3, 4, 5),
        ((0,), 3, HUGE, 4, 5),
        ((0,), 3, 4, HUGE, 5),
        ((0, HUGE), 3, 4, 5, 6),
        ((HUGE, 0), 3, 4, 5, 6),
        ((HUGE,), 0, 0, 4, 5),
        ((HUGE,), 3, 4, 0, 0),
        ((), HUGE, HUGE, 0, 0),
        ((), 0, HUGE, 0, 0),
        ((), HUGE, 0, 0, 0),
        ((), 0, 0, HUGE, HUGE),
    ],
    ids=str,
)
@pytest.mark.parametrize("score", SCORES)
def test_huge_shapes_without_elements_return_at_once(
    score: str, lead: tuple[int, ...], M: int, N: int, D: int, Dv: int, at_once: None
) -> None:
    inputs = {
        "queries": zeros(*lead, M, D),
        "keys": zeros(*lead, N, D),
        "values": zeros(*lead, N, Dv),
    }
    if score == "additive":
        H = 0 if D == HUGE else 3
        inputs |= {"W_q": zeros(H, D), "W_k": zeros(H, D), "w_v": zeros(H)}
    for valid_lens, empty_rows in product([None, 0, 3, 2**50], EMPTY_ROWS):
        options = {"valid_lens": valid_lens, "empty_rows": empty_rows}
        problem = Problem(score, inputs, options, {"grad_output": zeros(*lead, M, Dv)})
        assert problem.forward().shape == (*lead, M, Dv), options
        for name, x in problem.backward().items():
            assert not np.any(x), (name, options)
            assert name == "d_w" or x.shape == inputs[name.removeprefix("d_")].shape
    if 0 in (*lead, M, N):
        names = {"queries", "keys", "W_q", "W_k", "w_v"}
        arrays = {name: x for name, x in inputs.items() if name in names}
        assert getattr(attnext, SCORES_FUNCTION[score])(**arrays).shape == (*lead, M, N)


@pytest.mark.parametrize(
    ("lead", "M", "N"),
    [((0,), HUGE, 3), ((0,), 3, HUGE), ((0, HUGE), 3, 4), ((HUGE, 0), 3, 4), ((HUGE,), 0, 3),
     ((HUGE,), 3, 0), ((HUGE,), 0, 0), ((HUGE, 2), 0, 0), ((), HUGE, 0), ((), 0, HUGE),
     ((2,), HUGE, 0), ((2,), 0, HUGE), ((3, 0, 2), HUGE, 2), ((2**29, 2**29), 0, 2)],
    ids=str,
)  # fmt: skip
def test_huge_masks_without_elements_return_at_once(
    lead: tuple[int, ...], M: int, N: int, at_once: None
) -> None:
    pairs = (*lead, M, N)
    shapes = (pairs, [min(n, 1) for n in pairs], [1])
    for score, shape, empty_rows in product(SCORES, shapes, EMPTY_ROWS):
        inputs = {"queries": zeros(*lead, M, 0), "keys": zeros(*lead, N, 0)}
        inputs["values"] = zeros(*lead, N, 0)
        if score == "additive":
            inputs |= {"W_q": zeros(3, 0), "W_k": zeros(3, 0), "w_v": zeros(3)}
        options: dict[str, Any] = {"causal": True, "window": (5, 5), "empty_rows": empty_rows}
        if len(lead) < 1 or lead[0] < HUGE:
            options["causal_offset"] = [1] * lead[0] if 0 < len(lead) and lead[0] < 9 else 1
        mask, bias = np.zeros(shape, dtype=bool), zeros(*shape)
        for more in ({"mask": mask}, {"bias": bias}, {"dropout_mask": mask, "dropout_p": 0.5}):
            grads = {"grad_output": zeros(*lead, M, 0)}
            problem = Problem(score, inputs, options | more, grads)
            assert problem.forward().shape == (*lead, M, 0)
            gradients = problem.backward(**{"return_grad_bias": True} if "bias" in more else {})
            for name, x in gradients.items():
                assert not np.any(x), name
            if "bias" in more:
                assert gradients["d_bias"].shape == tuple(shape)


@pytest.mark.parametrize("score", SCORES)
def test_no_query_heads_for_some_key_heads(score: str) -> None:
    inputs = {"queries": zeros(2, 0, 3, 4), "keys": np.ones((2, 4, 5, 4), dtype=np.float32)}
    inputs["values"] = np.ones((2, 4, 5, 6), dtype=np.float32)
    if score == "additive":
        inputs |= {"W_q": zeros(3, 4), "W_k": zeros(3, 4), "w_v": zeros(3)}
    grads = {"grad_output": zeros(2, 0, 3, 6)}
    gradients = Problem(score, inputs, {"enable_gqa": True}, grads).backward()
    assert gradients["d_keys"].shape == (2, 4, 5, 4)
    assert not any(x.any() for x in map(np.asarray, gradients.values()))


@pytest.mark.parametrize(
    "shape", [(HUGE, 0, 3), (3, 0, HUGE), (3, HUGE, 0, 5), (2**30, 0, 2**30), (2, 3, 0)], ids=str
)
def test_huge_parts_without_elements(shape: tuple[int, ...], at_once: None) -> None:
    outputs, lses = zeros(*shape), zeros(*shape[:-1])
    output, lse = merge(outputs, lses)
    assert (output.shape, lse.shape) == (shape[1:], shape[1:-1])
    d_outputs, d_lses = merge_backward(output, outputs, lses, grad_lse=lse)
    assert (d_outputs.shape, d_lses.shape) == (shape, shape[:-1])


@pytest.mark.parametrize("lens", [None, 0, 7])
@pytest.mark.parametrize(
    "shape", [(HUGE, 0), (0, HUGE), (HUGE, 3, 0), (0, 3, HUGE), (3, HUGE, 0)], ids=str
)
def test_huge_softmax_without_elements(
    shape: tuple[int, ...], lens: int | None, at_once: None
) -> None:
    X, mask = zeros(*shape), np.zeros(shape, dtype=bool)
    assert softmax(X, lens).shape == shape
    assert softmax(X, lens, mask=mask).shape == shape
    assert attnext.masked_softmax_backward(X, X, lens).shape == shape
    assert attnext.masked_softmax_backward(X, X, lens, mask=mask).shape == shape
    assert sequence_mask(X, lens or 0).shape == shape


def test_sizes_that_overflow(at_once: None) -> None:
    queries, keys, values = zeros(2**33, 0), zeros(2**33, 0), zeros(2**33, 0)
    with pytest.raises(ValueError):
        dot(queries, keys, values, return_weights=True)
    with pytest.raises(ValueError):
        attnext.dot_product_scores(queries, keys)
    with pytest.raises(ValueError):
        attnext.gaussian_scores(queries, keys)
    with pytest.raises(ValueError):
        dot(zeros(2**50, 0), zeros(0, 0), zeros(0, 2**50))
    W0 = zeros(3, 0)
    with pytest.raises(ValueError):
        attnext.additive_scores(queries, keys, W0, W0, zeros(3))


# ---- what is passed on ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(attnext.__all__)))
def test_functions_know_their_names_and_signatures(name: str) -> None:
    function = getattr(attnext, name)
    assert function.__name__ == name
    assert function.__doc__
    assert function.__module__.startswith("attnext")


def test_results_do_not_depend_on_the_error_state(rng: np.random.Generator) -> None:
    problem = make_problem("additive", rng, valid_lens=[0, 2], empty_rows="nan")
    problem.inputs["queries"][0, 0, 0] = np.inf
    expected = problem.run()
    with np.errstate(all="raise"):
        assert_same_bits(problem.run(), expected)
