"""attnext.reference: central differences prove its gradients, PyTorch and d2l its meaning.

The fast functions are held against this reference, so nothing here leans on them: the gradients
are checked by differences of the forward alone, the values by known answers, by PyTorch in float64
and by rules that can be told without computing anything.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import PHILOX_KNOWN
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from wrong_calls import Call, Wrong, each, raised_by

import attnext
from attnext import reference as ref
from attnext.reference.dropout import dropout_keep, philox4x32
from attnext.reference.options import Options
from attnext.testing import assert_gradients_close, numerical_gradient, rel_error

Array = NDArray[np.float64]

EMPTY_ROWS = ["uniform", "zero", "nan"]


# ---- the attentions, told apart by what they score ---------------------------------------------


class Attention:
    """One way to call attention: its functions, parameters and options, and the same in torch."""

    def __init__(self, name: str, params: dict[str, tuple[int, ...]], **options: Any) -> None:
        self.function = name.partition("-")[0]
        self.name, self.params, self.options = name, params, options
        self.Dq, self.Dk = (3, 2) if self.function == "additive" else (3, 3)

    def __repr__(self) -> str:
        return self.name

    def arrays(
        self, lead: tuple[int, ...], M: int, N: int, Dv: int = 2, seed: int = 0
    ) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        shapes = {
            "queries": (*lead, M, self.Dq),
            "keys": (*lead, N, self.Dk),
            "values": (*lead, N, Dv),
            **self.params,
        }
        arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
        if "w" in arrays:
            arrays["w"] = np.array([0.8])  # not by chance next to 0, where all scores are equal
        return arrays

    def forward(self, arrays: dict[str, Array], lens: Any = None, **options: Any) -> Any:
        positional, keywords = self._split(arrays)
        function = getattr(ref, f"{self.function}_attention")
        return function(*positional, lens, **keywords, **self.options, **options)

    def backward(
        self, g: Any, arrays: dict[str, Array], lens: Any = None, **options: Any
    ) -> dict[str, Array]:
        positional, keywords = self._split(arrays)
        function = getattr(ref, f"{self.function}_attention_backward")
        d = function(g, *positional, lens, **keywords, **self.options, **options)
        if self.function == "additive":
            return {name: x for name, x in d._asdict().items() if x is not None}
        return dict(zip(["queries", "keys", "values", "w"], d, strict=False))

    def scores(self, arrays: dict[str, Array]) -> Array:
        positional, keywords = self._split(arrays)
        del positional[2]  # the values
        return getattr(ref, f"{self.function}_scores")(*positional, **keywords, **self.options)

    def _split(self, arrays: dict[str, Array]) -> tuple[list[Array], dict[str, Array]]:
        keywords = {name: x for name, x in arrays.items() if name in ("w", "b_h")}
        return [x for name, x in arrays.items() if name not in keywords], keywords

    def torch_scores(self, t: dict[str, torch.Tensor]) -> torch.Tensor:
        """The scores as d2l's code has them: broadcast sums, batched products."""
        q, k = t["queries"], t["keys"]
        if self.function == "additive":
            hidden = (q @ t["W_q"].T).unsqueeze(-2) + (k @ t["W_k"].T).unsqueeze(-3)
            hidden = hidden + t["b_h"] if "b_h" in t else hidden
            return (torch.tanh(hidden) @ t["w_v"].reshape(-1, 1)).squeeze(-1)
        if self.function == "gaussian":
            w = t["w"] if "w" in t else 1 / self.options.get("sigma", 1.0)
            distance = torch.linalg.vector_norm(q.unsqueeze(-2) - k.unsqueeze(-3), dim=-1)
            return -((w * distance) ** 2) / 2
        if self.function == "cosine":
            cosine = torch.nn.functional.cosine_similarity(q.unsqueeze(-2), k.unsqueeze(-3), dim=-1)
            return cosine * self.options.get("scale", 1.0)
        return q @ k.transpose(-1, -2) * self.options.get("scale", self.Dq**-0.5)


H = 4
ADDITIVE = Attention("additive", {"W_q": (H, 3), "W_k": (H, 2), "w_v": (H,)})
DOT = Attention("dot_product", {})
GAUSSIAN = Attention("gaussian", {"w": (1,)})
COSINE = Attention("cosine", {})
ATTENTIONS = [
    DOT,
    Attention("dot_product-scale", {}, scale=-0.7),
    ADDITIVE,
    Attention("additive-bias", {"W_q": (H, 3), "W_k": (H, 2), "w_v": (1, H), "b_h": (H,)}),
    GAUSSIAN,
    Attention("gaussian-sigma", {}, sigma=0.8),
    COSINE,
    Attention("cosine-scale", {}, scale=-3.0),
]
BASIC = [DOT, ADDITIVE, GAUSSIAN, COSINE]

# leading axes, valid_lens; 3 queries and 4 keys
LENGTHS: list[tuple[tuple[int, ...], Any]] = [
    ((), None),
    ((), 3),
    ((), [0, 4, 2]),
    ((2,), [0, 9]),
    ((2,), [[1, 0, 4], [2, 9, 3]]),
    ((2, 2), [3, 0]),
    ((2, 2), [[1, 0, 4], [2, 9, 3]]),
    ((1, 2), [[[1, 0, 4], [2, 9, 3]]]),
]


def pairs_taking_part(lens: Any, lead: tuple[int, ...], M: int, N: int) -> NDArray[np.bool_]:
    """Who takes part, pair by pair: a second opinion on the reference's broadcasting."""
    result = np.zeros((*lead, M, N), dtype=bool)
    for index in np.ndindex(result.shape):
        entry = np.asarray(N if lens is None else lens)
        if entry.ndim == len(lead) + 1:
            entry = entry[index[:-1]]
        elif entry.ndim == 2:  # (first axis, M)
            entry = entry[index[0], index[-2]]
        elif entry.ndim == 1:  # (first axis,)
            entry = entry[index[0]]
        result[index] = index[-1] < int(entry)
    return result


def random_like(*arrays: Array, seed: int = 9) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=np.shape(x)) for x in arrays]


# ---- gradients, by central differences; of compositions: test_reference_masks.py ---------------


@pytest.mark.parametrize("attention", ATTENTIONS, ids=repr)
@pytest.mark.parametrize("through", ["output", "weights", "lse"])
def test_each_path_of_the_gradient_on_its_own(attention: Attention, through: str) -> None:
    arrays, lens = attention.arrays((2,), 2, 4), [3, 2]
    extras = {"return_weights": True, "return_lse": True}
    position = ["output", "weights", "lse"].index(through)
    results = attention.forward(arrays, lens, **extras)
    (g,) = random_like(results[position])
    if through == "output":
        d = attention.backward(g, arrays, lens)
    else:
        d = attention.backward(np.zeros_like(results[0]), arrays, lens, **{f"grad_{through}": g})
    for name, x in arrays.items():
        numerical = numerical_gradient(
            lambda x, name=name: attention.forward(arrays | {name: x}, lens, **extras)[position],
            x,
            grad_output=g,
        )
        assert rel_error(d[name].reshape(x.shape), numerical) <= 1e-7, name


def test_the_gradient_of_w_is_that_of_1_over_sigma() -> None:
    attention = Attention("gaussian", {})
    arrays = attention.arrays((2,), 3, 4)
    output = attention.forward(arrays, sigma=0.8)
    (g,) = random_like(output)
    numerical = numerical_gradient(
        lambda w: attention.forward(arrays, sigma=1 / w), 1 / 0.8, grad_output=g
    )
    d = attention.backward(g, arrays, sigma=0.8)
    assert rel_error(d["w"], numerical) <= 1e-7
    assert isinstance(d["w"], np.float64)
    assert_array_equal(d["w"], attention.backward(g, arrays, w=1 / 0.8)["w"])


@pytest.mark.parametrize("lead, lens", LENGTHS)
@pytest.mark.parametrize("empty_rows", ["uniform", "zero"])
def test_masked_softmax_gradient(lead: tuple[int, ...], lens: Any, empty_rows: str) -> None:
    X, g = np.random.default_rng(0).normal(size=(2, *lead, 3, 4))
    weights = ref.masked_softmax(X, lens, empty_rows=empty_rows)
    numerical = numerical_gradient(
        lambda x: ref.masked_softmax(x, lens, empty_rows=empty_rows), X, grad_output=g
    )
    dX = ref.masked_softmax_backward(g, weights, lens, empty_rows=empty_rows)
    assert rel_error(dX, numerical) <= 1e-7
    assert_array_equal(dX[~pairs_taking_part(lens, lead, 3, 4)], 0)


def test_gradient_of_tanh_keeps_its_digits_far_from_0() -> None:
    """At a = 25, 1 - tanh(a)^2 is 0 in float64; 1 / cosh(a)^2 is right to the last digits."""
    q, k, v = np.array([[25.0]]), np.array([[0.0], [0.5]]), np.array([[0.0], [1.0]])
    one = np.ones((1, 1))
    d = ref.additive_attention_backward(one, q, k, v, one, one, one[0])
    d_s = 0.25  # w_0 w_1 (v_1 - v_0), with equal weights
    # sech(a)^2 = 4 exp(-2a) (1 - 2 exp(-2a) + ...)
    assert_allclose(d.keys[:, 0], [-d_s * 4 * np.exp(-50), d_s * 4 * np.exp(-51)], rtol=1e-12)


# ---- values and gradients, by PyTorch in float64 -----------------------------------------------


@pytest.mark.parametrize(
    "attention, lead, lens, dropout_p",
    [
        (attention, *lengths, [0.0, 0.3][(i + j) % 2])  # in turn
        for i, attention in enumerate(ATTENTIONS)
        for j, lengths in enumerate(LENGTHS)
    ],
    ids=repr,
)
def test_against_d2l_semantics_in_torch(
    attention: Attention, lead: tuple[int, ...], lens: Any, dropout_p: float
) -> None:
    """d2l's masked softmax with its -1e6 (uniform where nothing takes part) and autograd."""
    arrays = attention.arrays(lead, 3, 4)
    options = {"dropout_p": dropout_p, "seed": 11}
    output, weights, lse = attention.forward(
        arrays, lens, return_weights=True, return_lse=True, **options
    )
    g_output, g_weights, g_lse = random_like(output, weights, lse)
    d = attention.backward(
        g_output, arrays, lens, grad_weights=g_weights, grad_lse=g_lse, **options
    )

    part = torch.from_numpy(pairs_taking_part(lens, lead, 3, 4))
    live = part.any(-1)
    keep = torch.from_numpy(dropout_keep(weights.shape, Options(dropout_p=dropout_p, seed=11)))
    t = {name: torch.from_numpy(x).requires_grad_() for name, x in arrays.items()}
    scores = attention.torch_scores(t)
    t_weights = torch.softmax(torch.where(part, scores, -1e6), dim=-1)
    t_output = (t_weights * keep) @ t["values"]
    t_lse = torch.logsumexp(torch.where(part, scores, -torch.inf), dim=-1)
    through_lse = (torch.from_numpy(g_lse) * t_lse)[live].sum()
    loss = (torch.from_numpy(g_output) * t_output).sum() + through_lse
    loss = loss + (torch.from_numpy(g_weights) * t_weights).sum()
    expected = torch.autograd.grad(loss, list(t.values()), materialize_grads=True)

    assert_allclose(output, t_output.detach(), rtol=1e-12, atol=1e-14)
    assert_allclose(weights, t_weights.detach(), rtol=1e-12, atol=0)
    assert_allclose(lse, t_lse.detach(), rtol=1e-12, atol=1e-14)
    for name, x in zip(arrays, expected, strict=True):
        assert rel_error(d[name].reshape(x.shape), x) <= 1e-12, name


def test_nan_rows_are_those_of_torch_softmax() -> None:
    X = np.random.default_rng(0).normal(size=(2, 3, 4))
    part = torch.from_numpy(pairs_taking_part([0, 3], (2,), 3, 4))
    x = torch.from_numpy(X).requires_grad_()
    expected = torch.softmax(torch.where(part, x, -torch.inf), dim=-1)
    weights = ref.masked_softmax(X, [0, 3], empty_rows="nan")
    assert_allclose(weights, expected.detach(), rtol=1e-13)
    assert np.isnan(weights[0]).all() and np.isfinite(weights[1]).all()


@pytest.mark.parametrize("attention", BASIC, ids=repr)
@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
def test_attention_is_masked_softmax_of_scores_times_values(
    attention: Attention, empty_rows: str
) -> None:
    arrays, lens = attention.arrays((2, 2), 3, 4), [[1, 0, 4], [2, 9, 3]]
    weights = ref.masked_softmax(attention.scores(arrays), lens, empty_rows=empty_rows)
    expected = np.matmul(weights, arrays["values"])
    output = attention.forward(arrays, lens, empty_rows=empty_rows)
    assert_allclose(output, expected, rtol=1e-13, atol=1e-15)


# ---- known answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dot_product", "additive", "gaussian", "cosine"])
def test_d2l_toy_example(name: str) -> None:
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(2, 1, 20 if name == "additive" else 2))
    keys = np.ones((2, 10, 2))
    values = np.arange(40).reshape(1, 10, 4).repeat(2, axis=0)
    parameters = []
    if name == "additive":
        parameters = [rng.normal(size=(8, 20)), rng.normal(size=(8, 2)), rng.normal(size=8)]
    output = getattr(ref, f"{name}_attention")(queries, keys, values, *parameters, [2, 6])
    assert_allclose(output, [[[2, 3, 4, 5]], [[10, 11, 12, 13]]], rtol=1e-14)


def test_known_softmax_weights() -> None:
    row = ref.masked_softmax([1.2474, -0.6254, 1.4849, 2.9333, -0.1787])
    assert round(row[3], 4) == 0.6697
    assert_array_equal(
        ref.masked_softmax([0.9, 0.8, 0.3, 0.4], 3).round(4), [0.4076, 0.3688, 0.2237, 0]
    )
    assert_array_equal(ref.masked_softmax([0.8, 0.2, 0.9, 0.4], 2).round(4), [0.6457, 0.3543, 0, 0])


def test_sequence_mask() -> None:
    X = np.arange(1.0, 13).reshape(2, 3, 2)
    expected = X.copy()
    expected[0, 1:] = expected[1, 3:] = -1
    assert_array_equal(ref.sequence_mask(X, [1, 5], value=-1), expected)
    assert_array_equal(ref.sequence_mask(X, 0), np.zeros_like(X))
    assert_array_equal(ref.sequence_mask([[1, 2, 3], [4, 5, 6]], [1, 2]), [[1, 0, 0], [4, 5, 0]])
    assert ref.sequence_mask(np.zeros((0, 3)), []).shape == (0, 3)
    assert np.isnan(ref.sequence_mask(X, [1, 3], value=np.nan)[0, 1:]).all()


# ---- dropout -----------------------------------------------------------------------------------


@pytest.mark.parametrize("counter, key, expected", PHILOX_KNOWN)
def test_philox_known_answers(counter: str, key: str, expected: str) -> None:
    c, k, words = ([int(word, 16) for word in text.split()] for text in (counter, key, expected))
    assert philox4x32(c, (k[0], k[1])).tolist() == words
    assert philox4x32([[c, c]], (k[0], k[1])).tolist() == [[words, words]]


def test_dropout_decides_pair_by_pair() -> None:
    """Word i % 4 of block i // 4 under the key of the seed, against p * 2^32."""
    seed, p, shape = 2**40 + 17, 0.37, (2, 3, 5)
    keep = dropout_keep(shape, Options(dropout_p=p, seed=seed)).reshape(-1)
    p32 = float(np.float32(p))
    for i in range(2 * 3 * 5):
        words = philox4x32([i // 4, 0, 0, 0], (17, 2**8))
        assert keep[i] == (1 / (1 - p32) if words[i % 4] >= p32 * 2**32 else 0), i
    assert {0.0, 1 / (1 - p32)} == set(keep.tolist())


def test_dropout_drops_a_share_of_p() -> None:
    dropped = [
        np.mean(dropout_keep((20, 30, 50), Options(dropout_p=0.25, seed=seed)) == 0)
        for seed in range(4)
    ]
    # four standard deviations of a mean of 30000 draws
    assert_allclose(dropped, 0.25, rtol=0, atol=4 * np.sqrt(0.25 * 0.75 / 30000))
    assert len(set(dropped)) > 1


# ---- rows without a key ------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ATTENTIONS, ids=repr)
@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
def test_empty_rows(attention: Attention, empty_rows: str) -> None:
    arrays, lens = attention.arrays((), 3, 4), [2, 0, 4]
    g = np.random.default_rng(1).normal(size=(3, 2))
    g_weights, g_lse = random_like(np.zeros((3, 4)), np.zeros(3))
    output, weights, lse = attention.forward(
        arrays, lens, empty_rows=empty_rows, return_weights=True, return_lse=True
    )
    d = attention.backward(
        g, arrays, lens, empty_rows=empty_rows, grad_weights=g_weights, grad_lse=g_lse
    )

    others = arrays | {"queries": arrays["queries"][[0, 2]]}
    expected_output, expected_weights, expected_lse = attention.forward(
        others, [2, 4], return_weights=True, return_lse=True
    )
    expected = attention.backward(
        g[[0, 2]], others, [2, 4], grad_weights=g_weights[[0, 2]], grad_lse=g_lse[[0, 2]]
    )
    assert_array_equal(output[[0, 2]], expected_output)
    assert_array_equal(weights[[0, 2]], expected_weights)
    assert_array_equal(lse, [expected_lse[0], -np.inf, expected_lse[1]])
    assert_array_equal(d["queries"][[0, 2]], expected["queries"])
    row = {"uniform": 0.25, "zero": 0.0, "nan": np.nan}[empty_rows]
    assert_array_equal(weights[1], np.full(4, row))
    assert_array_equal(d["queries"][1], np.full(3, np.nan if empty_rows == "nan" else 0))
    if empty_rows == "uniform":
        assert_allclose(output[1], arrays["values"].mean(axis=0), rtol=1e-14)
        assert_allclose(d["values"], expected["values"] + g[1] / 4, rtol=1e-13)
    else:
        assert_array_equal(output[1], np.full(2, row))
        assert_array_equal(d["values"], expected["values"])
    for name in set(d) - {"queries", "values"}:
        assert_array_equal(d[name], expected[name])


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
def test_masked_softmax_of_empty_rows(empty_rows: str) -> None:
    X = np.random.default_rng(0).normal(size=(2, 3))
    row = {"uniform": 1 / 3, "zero": 0.0, "nan": np.nan}[empty_rows]
    weights = ref.masked_softmax(X, [0, 3], empty_rows=empty_rows)
    assert_array_equal(weights[0], np.full(3, row))
    assert_array_equal(weights[1], ref.masked_softmax(X[1]))
    dX = ref.masked_softmax_backward(np.eye(2, 3), weights, [0, 3], empty_rows=empty_rows)
    assert_array_equal(dX[0], np.full(3, np.nan if empty_rows == "nan" else 0))
    assert np.isfinite(dX[1]).all() and dX[1].any()


# ---- who takes part is never hidden ------------------------------------------------------------


@pytest.mark.parametrize("attention", BASIC, ids=repr)
@pytest.mark.parametrize("where", ["keys", "values"])
def test_nan_reaches_exactly_the_rows_it_takes_part_in(attention: Attention, where: str) -> None:
    arrays, lens = attention.arrays((), 3, 4), [4, 2, 3]
    clean = attention.forward(arrays, lens, return_weights=True, return_lse=True)
    clean_d = attention.backward(np.ones((3, 2)), arrays, lens)
    arrays[where] = arrays[where].copy()
    arrays[where][2, 0] = np.nan  # attended to by rows 0 and 2
    output, weights, lse = attention.forward(arrays, lens, return_weights=True, return_lse=True)
    d = attention.backward(np.ones((3, 2)), arrays, lens)

    assert_array_equal(output[1], clean[0][1])
    assert_array_equal(d["queries"][1], clean_d["queries"][1])
    assert np.isnan(d["queries"][[0, 2]]).all()
    assert np.isnan(d["keys"][:3]).all()  # through rows 0 and 2, whose scores have no gradient
    if where == "values":
        assert np.isnan(output[[0, 2], 0]).all() and np.isfinite(output[:, 1]).all()
        assert_array_equal(weights, clean[1])
        assert_array_equal(lse, clean[2])
    else:
        assert np.isnan(output[[0, 2]]).all() and np.isnan(lse[[0, 2]]).all()
        assert np.isnan(weights[0]).all() and np.isnan(weights[2, :3]).all()
        assert weights[2, 3] == 0 and lse[1] == clean[2][1]


def test_nan_in_a_value_of_weight_0_is_not_hidden() -> None:
    q, k, v = [[1.0]], [[0.0], [-1e9]], [[1.0, 2.0], [np.nan, 3.0]]
    output, weights = ref.dot_product_attention(q, k, v, return_weights=True)
    assert_array_equal(weights, [[1, 0]])
    assert_array_equal(output, [[np.nan, 2]])


def test_nan_in_scores_of_masked_softmax() -> None:
    X = np.array([[1, np.nan, 3], [1, 2, np.nan]])
    weights = ref.masked_softmax(X, [3, 2])
    assert np.isnan(weights[0]).all()
    assert_array_equal(weights[1], ref.masked_softmax([1, 2, 0], 2))


# ---- lse, and scores that are not finite -------------------------------------------------------


@pytest.mark.parametrize(
    "scores, length, weights, lse",
    [
        ([0.0, -np.inf, 0.0, 7.0], 3, [0.5, 0, 0.5, 0], np.log(2)),
        ([-np.inf, -np.inf, 1.0], 2, [np.nan, np.nan, 0], -np.inf),
        ([np.inf, 1.0, 2.0], 2, [np.nan, np.nan, 0], np.inf),
        ([np.inf, -np.inf, 2.0], 2, [np.nan, np.nan, 0], np.inf),
        ([np.nan, np.inf, 2.0], 2, [np.nan, np.nan, 0], np.nan),
        ([np.nan, 1.0, 2.0], 2, [np.nan, np.nan, 0], np.nan),
        ([1.0, np.inf, np.nan], 1, [1, 0, 0], 1.0),
        ([1e4, 1e4, 1e4], 3, [1 / 3, 1 / 3, 1 / 3], 1e4 + np.log(3)),
        ([-1e4, -1e4, 0.0], 2, [0.5, 0.5, 0], -1e4 + np.log(2)),
        ([-1e300, 1e300, 0.0], 2, [0, 1, 0], 1e300),
    ],
)
def test_scores_that_are_not_finite_or_large(
    scores: list[float], length: int, weights: list[float], lse: float
) -> None:
    """A row that is not empty, but of scores -inf alone, is NaN with lse -inf; +inf: NaN, +inf."""
    N = len(scores)
    keys, values = np.array(scores)[:, None], np.ones((N, 1))
    result = ref.dot_product_attention(
        [[1.0]], keys, values, length, scale=1, return_weights=True, return_lse=True
    )
    assert_allclose(result[0], [[np.sum(weights)]], rtol=1e-15)
    assert_allclose(result[1], [weights], rtol=1e-15)
    assert_allclose(result[2], [lse], rtol=1e-15)
    assert_allclose(ref.masked_softmax(scores, length), weights, rtol=1e-15)

    dq, dk, dv = ref.dot_product_attention_backward(
        [[1.0]], [[1.0]], keys, values, length, scale=1, grad_lse=[1.0]
    )
    bad = not np.isfinite(weights).all()
    assert np.isnan(dq).all() == (bad or np.isinf(keys[:length]).any())
    assert_allclose(dv[:, 0], weights, rtol=1e-15)
    assert_array_equal(dk[length:], 0)


# ---- lengths -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lead, lens", LENGTHS)
@pytest.mark.parametrize("kind", [list, np.int8, np.uint64, ">i4", torch.tensor])
def test_lengths_of_every_shape_and_kind(
    lead: tuple[int, ...], lens: Any, kind: type | str | Callable[..., Any]
) -> None:
    X = np.random.default_rng(0).normal(size=(*lead, 3, 4))
    part = pairs_taking_part(lens, lead, 3, 4)
    if lens is not None and kind is not list:
        lens = kind(lens) if kind is torch.tensor else np.array(lens, dtype=kind)
    assert_array_equal(ref.masked_softmax(X, lens, empty_rows="zero") > 0, part)


def test_lengths_above_n_and_in_place_of_none() -> None:
    X = np.random.default_rng(0).normal(size=(2, 3))
    for lens in [3, 4, 2**70, np.uint64(2**64 - 1), [3, 2**62]]:
        assert_array_equal(ref.masked_softmax(X, lens), ref.masked_softmax(X))
    assert ref.masked_softmax(np.zeros((0, 3, 4)), []).shape == (0, 3, 4)


# ---- arguments ---------------------------------------------------------------------------------


q24, k34, v35 = np.ones((2, 4)), np.ones((3, 4)), np.ones((3, 5))
dot, additive, gaussian = ref.dot_product_attention, ref.additive_attention, ref.gaussian_attention

WRONG: list[Wrong] = [
    (lambda: dot(q24, k34, v35, [1, 2, 3]), ValueError,
     "valid_lens has shape (3,), expected (2,)"),
    (lambda: ref.masked_softmax(np.ones((2, 5, 4)), [1, 2, 3]), ValueError,
     "valid_lens has shape (3,), expected (2,) or (2, 5)"),
    (lambda: ref.masked_softmax(np.ones((2, 6, 5, 4)), [[1]]), ValueError,
     "valid_lens has shape (1, 1), expected (2,) or (2, 5) or (2, 6, 5)"),
    (lambda: ref.masked_softmax(np.ones(4), [1]), ValueError,
     "valid_lens has shape (1,), expected an int"),
    (lambda: ref.masked_softmax(1.0), ValueError, "X has shape (), expected one axis or more"),
    (lambda: dot(q24, k34, v35, -1), ValueError, "valid_lens contains -1"),
    (lambda: dot(q24, k34, v35, 1.5), TypeError, "valid_lens has dtype float64, expected integers"),
    (lambda: dot(q24, k34, v35, [True, False]), TypeError, "valid_lens has dtype bool"),
    (lambda: dot(q24[0], k34, v35), ValueError, "queries has shape (4,), expected two axes"),
    (lambda: dot(q24, k34[:, :3], v35), ValueError, "keys has shape (3, 3), expected (N, 4)"),
    (lambda: dot(q24, k34, v35[:2]), ValueError, "values has shape (2, 5), expected (3, Dv)"),
    (lambda: dot(q24, k34[None], v35), ValueError, "keys has shape (1, 3, 4), expected (N, Dk)"),
    (lambda: dot(q24 * 1j, k34, v35), TypeError, "queries has dtype complex128"),
    (lambda: dot(q24, k34 > 0, v35), TypeError, "keys has dtype bool, expected real numbers"),
    (lambda: dot(q24, k34, np.ma.masked_array(v35)), TypeError, "values is a MaskedArray"),
    (lambda: dot(torch.ones(2, 4, requires_grad=True), k34, v35), TypeError,
     "queries is a tensor that requires grad"),
    (lambda: dot(q24, k34, v35, scale=np.inf), ValueError, "scale is inf, expected a finite"),
    (lambda: dot(q24, k34, v35, scale=[1.0]), ValueError,
     "scale has shape (1,), expected a shape that broadcasts to ()"),
    (lambda: dot(q24, k34, v35, dropout_p=1.0, seed=1), ValueError, "dropout_p is 1.0"),
    (lambda: dot(q24, k34, v35, dropout_p=-0.1, seed=1), ValueError, "dropout_p is -0.1"),
    (lambda: dot(q24, k34, v35, dropout_p=np.nan, seed=1), ValueError, "dropout_p is nan"),
    (lambda: dot(q24, k34, v35, dropout_p=1e300, seed=1), ValueError, "dropout_p is 1e+300"),
    (lambda: dot(q24, k34, v35, dropout_p=0.5), ValueError, "seed is not given"),
    (lambda: dot(q24, k34, v35, dropout_p=0.5, seed=-1), ValueError, "seed is -1"),
    (lambda: dot(q24, k34, v35, seed=2**64), ValueError, "seed is 18446744073709551616"),
    (lambda: dot(q24, k34, v35, seed=1.0), TypeError, "seed must be an int, got float"),
    (lambda: dot(q24, k34, v35, seed=True), TypeError, "seed must be an int, got bool"),
    (lambda: dot(q24, k34, v35, empty_rows="none"), ValueError, "empty_rows is 'none'"),
    (lambda: dot(q24, k34, v35, out=np.zeros((2, 4))), ValueError,
     "out has shape (2, 4), expected (2, 5)"),
    (lambda: dot(q24, k34, v35, out=np.zeros((2, 5), np.float32)), TypeError,
     "out has dtype float32, expected float64"),
    (lambda: dot(q24, k34, v35, out=np.zeros((5, 2)).T), ValueError,
     "not a writable C-contiguous array"),
    (lambda: dot(q24, k34, v35, out=[[0.0]]), TypeError, "out must be a numpy.ndarray, got list"),
    (lambda: dot(q24, k34, v35, out=v35[:2]), ValueError, "out shares memory with an input"),
    (lambda: gaussian(q24, k34, v35, w=1, sigma=1), ValueError, "w and sigma are both given"),
    (lambda: gaussian(q24, k34, v35, sigma=0), ValueError, "sigma is 0, expected sigma > 0"),
    (lambda: gaussian(q24, k34, v35, w=[1, 2]), ValueError, "w has shape (2,)"),
    (lambda: additive(q24, k34, v35, np.ones((6, 3)), np.ones((6, 4)), np.ones(6)), ValueError,
     "W_q has shape (6, 3), expected (H, 4)"),
    (lambda: additive(q24, k34, v35, np.ones((6, 4)), np.ones((5, 4)), np.ones(6)), ValueError,
     "W_k has shape (5, 4), expected (6, 4)"),
    (lambda: additive(q24, k34, v35, np.ones((6, 4)), np.ones((6, 4)), np.ones((6, 1))), ValueError,
     "w_v has shape (6, 1), expected (6,) or (1, 6)"),
    (lambda: additive(q24, k34, v35, np.ones((6, 4)), np.ones((6, 4)), np.ones(6), b_h=[1]),
     ValueError, "b_h has shape (1,), expected (6,)"),
    (lambda: ref.dot_product_attention_backward(v35, q24, k34, v35), ValueError,
     "grad_output has shape (3, 5), expected (2, 5)"),
    (lambda: ref.dot_product_attention_backward(v35[:2], q24, k34, v35, lse=[1.0]), ValueError,
     "lse has shape (1,), expected (2,)"),
    (lambda: ref.dot_product_attention_backward(v35[:2], q24, k34, v35, grad_weights=q24),
     ValueError, "grad_weights has shape (2, 4), expected (2, 3)"),
    (lambda: ref.masked_softmax_backward(q24, k34), ValueError,
     "grad_output has shape (2, 4), expected (3, 4)"),
    (lambda: ref.sequence_mask([1, 2], [1]), ValueError, "X has shape (2,), expected two axes"),
    (lambda: ref.sequence_mask(q24, [1]), ValueError, "valid_len has shape (1,), expected (2,)"),
    (lambda: ref.sequence_mask(q24, [1.0, 2.0]), TypeError, "valid_len has dtype float64"),
]  # fmt: skip


@each(WRONG)
def test_wrong_calls_say_what_is_wrong(call: Call, error: type[Exception], message: str) -> None:
    assert message in raised_by(call, error)


@pytest.mark.parametrize("attention", ATTENTIONS, ids=repr)
def test_inputs_of_any_kind_and_layout_and_never_written(attention: Attention) -> None:
    arrays = attention.arrays((2,), 3, 4, Dv=5)
    arrays = {name: x.round() for name, x in arrays.items()}  # the same in every dtype
    g = np.arange(30.0).reshape(2, 3, 5)
    expected = attention.forward(arrays, [2, 3])
    expected_d = attention.backward(g, arrays, [2, 3])
    for convert in [
        lambda x: x.tolist(),
        lambda x: x.astype(np.float16),
        lambda x: x.astype(">f4"),
        lambda x: x.astype(np.int64),
        lambda x: np.asfortranarray(x),
        lambda x: torch.from_numpy(x),
    ]:
        converted = {name: convert(x) for name, x in arrays.items()}
        before = repr(converted)
        output = attention.forward(converted, [2, 3])
        d = attention.backward(convert(g), converted, [2, 3])
        assert repr(converted) == before
        assert output.dtype == np.float64 and output.flags.c_contiguous
        assert_allclose(output, expected, rtol=1e-14, atol=1e-15)
        for name, x in expected_d.items():
            assert_allclose(d[name], x, rtol=1e-12, atol=1e-13, err_msg=name)


def test_results_are_new_arrays() -> None:
    arrays = DOT.arrays((), 2, 3)
    frozen = {name: x.copy() for name, x in arrays.items()}
    for x in frozen.values():
        x.flags.writeable = False
    results = DOT.forward(frozen, return_weights=True, return_lse=True)
    results += tuple(DOT.backward(np.ones((2, 2)), frozen).values())
    X = arrays["keys"]
    results += (ref.masked_softmax(X), ref.masked_softmax_backward(X, X), ref.sequence_mask(X, 9))
    for result in results:
        assert result.flags.writeable and result.flags.owndata
        assert not any(np.shares_memory(result, x) for x in [*frozen.values(), X])


def test_out_is_filled_and_returned() -> None:
    arrays = DOT.arrays((2,), 3, 4)
    out = np.full((2, 3, 2), np.nan)
    output, lse = DOT.forward(arrays, [0, 2], out=out, return_lse=True)
    assert output is out
    assert_array_equal(out, DOT.forward(arrays, [0, 2]))
    assert lse.shape == (2, 3)
    X, out = arrays["keys"], np.full((2, 4, 3), np.nan)
    assert ref.masked_softmax(X, 2, out=out) is out
    assert_array_equal(out, ref.masked_softmax(X, 2))


def test_what_the_forward_returned_changes_no_gradient() -> None:
    arrays, lens = ADDITIVE.arrays((2,), 3, 4), [0, 2]
    output, lse = ADDITIVE.forward(arrays, lens, return_lse=True)
    (g,) = random_like(output)
    d = ADDITIVE.backward(g, arrays, lens)
    assert_gradients_close(
        ADDITIVE.backward(g, arrays, lens, output=output, lse=lse), d, rtol=0, atol=0
    )


def test_gradients_of_additive_attention_have_names_and_shapes() -> None:
    attention = ATTENTIONS[3]
    arrays = attention.arrays((2,), 3, 4)
    positional, keywords = attention._split(arrays)
    d = ref.additive_attention_backward(np.ones((2, 3, 2)), *positional, **keywords)
    assert d._fields == ("queries", "keys", "values", "W_q", "W_k", "w_v", "b_h")
    for name, x in arrays.items():
        assert getattr(d, name).shape == x.shape
    assert ref.additive_attention_backward(np.ones((2, 3, 2)), *positional).b_h is None


@pytest.mark.parametrize("attention", ATTENTIONS, ids=repr)
@pytest.mark.parametrize("lead, M", [((0,), 3), ((2, 0), 3), ((2,), 0)])
def test_nothing_in_nothing_out(attention: Attention, lead: tuple[int, ...], M: int) -> None:
    arrays = attention.arrays(lead, M, 4)
    output, weights, lse = attention.forward(arrays, 2, return_weights=True, return_lse=True)
    assert (output.shape, weights.shape, lse.shape) == ((*lead, M, 2), (*lead, M, 4), (*lead, M))
    for name, x in attention.backward(output, arrays, 2).items():
        assert_array_equal(x, np.zeros(np.shape(x)), err_msg=name)


def test_no_features_mean_equal_scores() -> None:
    output, lse = ref.dot_product_attention(
        np.ones((1, 0)), np.ones((2, 0)), [[1.0], [3.0]], return_lse=True
    )
    assert_array_equal(output, [[2.0]])
    assert_allclose(lse, [np.log(2)])


# ---- the module --------------------------------------------------------------------------------


TUPLES = {"AdditiveGradients", "MultiHeadGradients"}


@pytest.mark.parametrize("name", [name for name in ref.__all__ if name not in TUPLES])
def test_twins_have_one_signature(name: str) -> None:
    slow, fast = (inspect.signature(getattr(module, name)) for module in (ref, attnext))
    assert [(p.name, p.kind, p.default) for p in slow.parameters.values()] == [
        (p.name, p.kind, p.default) for p in fast.parameters.values()
    ]


def test_every_fast_function_has_a_twin() -> None:
    fast = {name for name in attnext.__all__ if name.endswith(("_backward", "_scores"))}
    fast |= {name for name in attnext.__all__ if name.endswith(("_attention", "_softmax", "_mask"))}
    assert fast | TUPLES | {"positional_encoding"} == set(ref.__all__)
    for name in TUPLES:
        assert getattr(attnext, name)._fields == getattr(ref, name)._fields


def test_loads_by_its_path_without_the_compiled_module() -> None:
    code = """if True:
        import importlib.util, sys
        sys.modules["attnext"] = None  # an import of it fails from here on
        spec = importlib.util.spec_from_file_location("reference_alone", sys.argv[1])
        reference = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = reference
        spec.loader.exec_module(reference)
        print(reference.dot_product_attention([[0]], [[1], [2]], [[3], [5]]))
    """
    result = subprocess.run(
        [sys.executable, "-c", code, ref.__file__], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[[4.]]\n"


def test_examples() -> None:
    names = [module.name for module in pkgutil.iter_modules(ref.__path__, "attnext.reference.")]
    results = [doctest.testmod(importlib.import_module(name)) for name in names]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) >= 2 * (len(ref.__all__) - 1)
