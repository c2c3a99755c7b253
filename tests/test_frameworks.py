"""How d2l, PyTorch, JAX and ONNX Runtime differ: the evidence for the table of docs/semantics.md.

Each row of that table names a test of this file. The test runs the frameworks, says in a few words
what it saw, and compares them with the cell. When a new version of a framework does otherwise, the
test of that row fails, and row, test and code that relied on it are to be looked at.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax_process
import numpy as np
import onnx
import pytest
import torch
from frameworks import ATTEND, OPSET, REFUSALS, Inputs, NotThere, softmax_by
from helpers import REPOSITORY, Array
from torch.nn import functional

NONE = "–"  # the framework has no such thing
EMPTY_ROWS = ("uniform", "zero", "nan")


# ---- the table -----------------------------------------------------------------------------------


def read_table() -> dict[str, dict[str, str]]:
    """{name of the test: {name of the framework: cell}}"""
    text = (REPOSITORY / "docs" / "semantics.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")]
            for line in text.splitlines() if line.startswith("|")]  # fmt: skip
    (header,) = [row for row in rows if list(ATTEND) == row[1:-1]]
    tests = [row for row in rows if re.fullmatch(r"`test_\w+`", row[-1])]
    return {row[-1].strip("`"): dict(zip(header[1:-1], row[1:-1], strict=True)) for row in tests}


TABLE = read_table()


@pytest.fixture(params=ATTEND)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def documented(request: pytest.FixtureRequest, framework: str) -> str:
    """The cell of the table that this test is the evidence for."""
    return TABLE[request.node.originalname][framework]


@pytest.fixture(scope="module", autouse=True)
def no_worker_is_left_behind() -> Iterator[None]:
    yield
    jax_process.stop()


def test_every_row_has_its_test_and_every_test_its_row() -> None:
    tests = [
        name
        for name, value in globals().items()
        if name.startswith("test_") and "documented" in inspect.signature(value).parameters
    ]
    assert tests == list(TABLE)


# ---- what is asked -------------------------------------------------------------------------------


def attend(framework: str, q: Array, k: Array, v: Array, **options: Any) -> dict[str, Array]:
    """Its attention of float32 arrays (B, heads, M, D)."""
    x = Inputs(*(np.asarray(a, dtype=np.float32) for a in (q, k, v)))
    return ATTEND[framework](x, **options)


def attend_padded(
    framework: str, q: Array, k: Array, v: Array, length: int, **options: Any
) -> dict[str, Array]:
    """Keys behind the length take no part: by a length, or where there is none, by a mask."""
    try:
        return attend(framework, q, k, v, lengths=[length] * len(q), **options)
    except NotThere:
        behind = np.arange(k.shape[-2]) >= length
        return attend(framework, q, k, v, mask=~behind[None, None, None], **options)


def weights_of(framework: str, M: int = 2, N: int = 4, **options: Any) -> Array:
    """(M, N): weights of scores that are all 0, seen through values that are the identity."""
    return np.asarray(attend(framework, *alike(M, N), **options)["output"][0, 0])


def alike(M: int, N: int) -> tuple[Array, Array, Array]:
    """Queries (1, 1, M, N) and keys (1, 1, N, N) whose scores are all 0; values: the identity."""
    return np.zeros((1, 1, M, N)), np.zeros((1, 1, N, N)), np.eye(N)[None, None]


def no_key_for_the_first_query(framework: str, **options: Any) -> dict[str, Array]:
    """Two queries, four keys, of which only the second query sees any."""
    q, k, v = alike(2, 4)
    none_and_all = np.array([[False], [True]]).repeat(4, axis=1)[None, None]  # (1, 1, 2, 4)
    try:
        return attend(framework, q, k, v, mask=none_and_all, **options)
    except NotThere:
        return attend(framework, q, k, v, lengths=[[0, 4]], **options)


def unless_there_is_none(answer: Callable[[], str]) -> str:
    try:
        return answer()
    except NotThere:
        return NONE


def unless_refused(answer: Callable[[], str]) -> str:
    try:
        return unless_there_is_none(answer)
    except REFUSALS:
        return "error"


# ---- what is seen --------------------------------------------------------------------------------


def in_words(row: Array) -> str:
    """What became of a row of weights (N,), or of an output (Dv,) of values that are 1 / N."""
    if np.isnan(row).all():
        return "NaN"
    if not row.any():
        return "0"
    np.testing.assert_allclose(row, np.full(row.shape, 1 / row.size), rtol=1e-6)
    return "mean of values"


def by_empty_rows(answer: Callable[..., str]) -> str:
    """attnext has three rules; a list of what each gives."""
    *all_but_last, last = [answer(empty_rows=rule) for rule in EMPTY_ROWS]
    return f"{', '.join(all_but_last)} or {last}: `empty_rows`"


# ---- padding -------------------------------------------------------------------------------------


def with_padding(framework: str, fill: float, length: int = 3, **options: Any) -> dict[str, Array]:
    """The same random numbers in every call, but `fill` in keys and values behind the length."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, size, 5)) for size in (2, 5, 5))
    k[..., length:, :] = v[..., length:, :] = fill
    return attend_padded(framework, q, k, v, length, **options)


def test_nan_in_padding(framework: str, documented: str) -> None:
    clean = with_padding(framework, 0.0)["output"]
    output = with_padding(framework, np.nan)["output"]
    assert np.isfinite(clean).all()
    seen = "no effect" if np.array_equal(output, clean) else in_words(output[0, 0, 0])
    assert seen == documented


def test_gradients_with_nan_in_padding(framework: str, documented: str) -> None:
    """Of the query."""

    def answer() -> str:
        g = np.ones((1, 1, 2, 5), dtype=np.float32)
        clean, d = (with_padding(framework, fill, grad_output=g) for fill in (0.0, np.nan))
        assert np.isfinite(clean["d_queries"]).all()
        if np.array_equal(d["d_queries"], clean["d_queries"]):
            return "no effect"
        return in_words(d["d_queries"][0, 0, 0])

    assert unless_there_is_none(answer) == documented


def test_scores_below_a_million(framework: str, documented: str) -> None:
    """Two keys of score -2e6 take part, a key of score 5 does not."""
    q, k, v = alike(1, 3)
    q[..., 0] = 3**0.5  # the scale is 1 / sqrt(3)
    k[..., 0] = [-2e6, -2e6, 5.0]
    weights = attend_padded(framework, q, k, v, 2)["output"][0, 0, 0]
    if weights[2] == 0:
        np.testing.assert_allclose(weights[:2], 0.5)
        assert documented == "as any others"
    else:
        np.testing.assert_allclose(weights, [0, 0, 1])
        assert documented == "padding gets the weight"


def test_length_above_n(framework: str, documented: str) -> None:
    def answer() -> str:
        weights = weights_of(framework, lengths=[7])
        np.testing.assert_allclose(weights, np.full((2, 4), 0.25))
        return "all keys"

    assert unless_refused(answer) == documented


def test_negative_length(framework: str, documented: str) -> None:
    def answer() -> str:
        zero, negative = (weights_of(framework, lengths=[length]) for length in (0, -1))
        np.testing.assert_array_equal(zero, negative)
        return "as 0"

    assert unless_refused(answer) == documented


def test_lengths_for_each_query(framework: str, documented: str) -> None:
    def answer() -> str:
        weights = weights_of(framework, lengths=[[1, 2]])
        np.testing.assert_allclose(weights, [[1, 0, 0, 0], [0.5, 0.5, 0, 0]])
        return "yes"

    assert unless_refused(answer) == documented


# ---- rows without a key --------------------------------------------------------------------------


def test_row_without_keys(framework: str, documented: str) -> None:
    def answer(**rule: str) -> str:
        output = no_key_for_the_first_query(framework, **rule)["output"][0, 0]
        np.testing.assert_allclose(output[1], np.full(4, 0.25))
        return in_words(output[0])

    assert (by_empty_rows(answer) if framework == "attnext" else answer()) == documented


def test_bias_of_minus_infinity_everywhere(framework: str, documented: str) -> None:
    def answer(**rule: str) -> str:
        bias = np.zeros((1, 1, 2, 4), dtype=np.float32)
        bias[..., 0, :] = -np.inf
        weights = weights_of(framework, bias=bias, **rule)
        np.testing.assert_allclose(weights[1], np.full(4, 0.25))
        return in_words(weights[0])

    seen = by_empty_rows(answer) if framework == "attnext" else unless_there_is_none(answer)
    assert seen == documented


def test_gradients_of_a_row_without_keys(framework: str, documented: str) -> None:
    """What the row alone contributes: the other one has a gradient of 0."""

    def answer(**rule: str) -> str:
        g = np.array([[1.0], [0.0]], dtype=np.float32).repeat(4, axis=1)[None, None]
        d = no_key_for_the_first_query(framework, grad_output=g, **rule)
        assert not d["d_keys"].any()
        if np.isnan(d["d_queries"][0, 0, 0]).all():
            return "NaN"
        assert not d["d_queries"].any()
        return {"0": "0", "mean of values": "that of a mean"}[in_words(d["d_values"][0, 0, 0])]

    seen = by_empty_rows(answer) if framework == "attnext" else unless_there_is_none(answer)
    assert seen == documented


def test_lse_of_a_row_without_keys(framework: str, documented: str) -> None:
    result = no_key_for_the_first_query(framework)
    if "lse" not in result:
        assert documented == NONE
        return
    lse = float(result["lse"][0, 0, 0])
    assert ("−∞" if lse == -np.inf else f"{lse:.1g}".replace("-", "−")) == documented


def test_no_keys_at_all(framework: str, documented: str) -> None:
    """N = 0."""

    def answer() -> str:
        q, none = np.zeros((1, 1, 2, 3)), np.zeros((1, 1, 0, 3))
        return in_words(attend(framework, q, none, none)["output"][0, 0, 0])

    assert unless_refused(answer) == documented


# ---- NaN and infinity ----------------------------------------------------------------------------


def test_nan_in_a_key_that_takes_part(framework: str, documented: str) -> None:
    """Of two sequences one is hit."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 1, size, 5)) for size in (3, 4, 4))
    clean = attend(framework, q, k, v)["output"]
    k[1, 0, 2, 0] = np.nan
    output = attend(framework, q, k, v)["output"]
    np.testing.assert_array_equal(output[0], clean[0])
    assert in_words(output[1].ravel()) == documented


def test_softmax_of_minus_infinity_alone(framework: str, documented: str) -> None:
    assert in_words(softmax_by(framework, np.full(3, -np.inf, dtype=np.float32))) == documented


# ---- mask and bias -------------------------------------------------------------------------------


def test_true_in_a_mask(framework: str, documented: str) -> None:
    def answer() -> str:
        mask = np.array([True, False, False, False]).reshape(1, 1, 1, 4).repeat(2, axis=2)
        weights = weights_of(framework, mask=mask)
        np.testing.assert_allclose(weights, [[1, 0, 0, 0]] * 2)
        if framework != "PyTorch":
            return "attend"
        return "attend; in `nn.MultiheadAttention`: leave out"

    if framework == "PyTorch":
        layer = torch.nn.MultiheadAttention(4, 1, batch_first=True)
        x = torch.zeros(1, 4, 4)
        _, weights = layer(x, x, x, key_padding_mask=torch.tensor([[True, False, False, False]]))
        torch.testing.assert_close(weights[0, 0], torch.tensor([0, 1 / 3, 1 / 3, 1 / 3]))
    assert unless_there_is_none(answer) == documented


def one_and_zeros_for_a_mask(framework: str, dtype: type) -> str:
    def answer() -> str:
        mask = np.array([1, 0, 0, 0], dtype=dtype).reshape(1, 1, 1, 4).repeat(2, axis=2)
        weights = weights_of(framework, mask=mask)[0]
        np.testing.assert_allclose(weights[0] / weights[1], np.e, rtol=1e-6)
        return "added to the scores"

    return unless_refused(answer)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_integers_for_a_mask(framework: str, documented: str, dtype: type) -> None:
    assert one_and_zeros_for_a_mask(framework, dtype) == documented


def test_floats_for_a_mask(framework: str, documented: str) -> None:
    assert one_and_zeros_for_a_mask(framework, np.float32) == documented


def test_bools_for_a_bias(framework: str, documented: str) -> None:
    def answer() -> str:
        bias = np.array([True, False, False, False]).reshape(1, 1, 1, 4).repeat(2, axis=2)
        weights = weights_of(framework, bias=bias)[0]
        if weights[1] == 0:
            return "a mask"
        np.testing.assert_allclose(weights[0] / weights[1], np.e, rtol=1e-6)
        return "True adds 1"

    assert unless_refused(answer) == documented


def test_bias_and_scale(framework: str, documented: str) -> None:
    """A bias of log 3 makes a weight three times as large, if the scale leaves it alone."""

    def answer() -> str:
        bias = np.log([[[[3, 1, 1, 1]]]]).astype(np.float32).repeat(2, axis=2)
        weights = weights_of(framework, bias=bias)  # D = 4: the scale is 1/2
        np.testing.assert_allclose(weights, [[3 / 6, 1 / 6, 1 / 6, 1 / 6]] * 2, rtol=1e-6)
        return "after the scale"

    assert unless_there_is_none(answer) == documented


def test_softcap(framework: str, documented: str) -> None:
    """Two scores far beyond a cap of log 3, and one of 0 with a bias of log 2: 3 : 3 : 2."""

    def answer() -> str:
        q, k = np.full((1, 1, 1, 4), 100.0), np.array([[1.0], [2.0], [0.0]]).repeat(4, axis=1)
        bias = np.log([[[[1, 1, 2]]]]).astype(np.float32)
        options = {"softcap": float(np.log(3)), "bias": bias}
        weights = attend(framework, q, k[None, None], np.eye(3)[None, None], **options)["output"]
        np.testing.assert_allclose(weights[0, 0], [[3 / 8, 3 / 8, 2 / 8]], rtol=1e-6)
        return "after the scale, before the bias"

    assert unless_there_is_none(answer) == documented


# ---- places and heads ----------------------------------------------------------------------------


def corner(live: Array) -> str:
    """Which corner of (M, N) the diagonal goes through."""
    M, N = live.shape
    corners = {"top left": 0, "bottom right": N - M}
    (name,) = [name for name, k in corners.items() if np.array_equal(live, np.tri(M, N, k) > 0)]
    return name


def test_causal_with_fewer_queries_than_keys(framework: str, documented: str) -> None:
    def answer(**more: Any) -> str:
        return corner(weights_of(framework, M=2, N=4, causal=True, **more) > 0)

    seen = unless_there_is_none(answer)
    if framework == "attnext":
        seen += f"; `causal_offset=N - M`: {answer(causal_offset=2)}"
    if framework == "ONNX Runtime":
        seen += f"; with lengths: {answer(lengths=[4])}"
    assert seen == documented


def test_mask_with_causal(framework: str, documented: str) -> None:
    def answer() -> str:
        mask = np.array([True, False, True, True]).reshape(1, 1, 1, 4).repeat(4, axis=2)
        weights = weights_of(framework, M=4, N=4, mask=mask, causal=True)
        np.testing.assert_array_equal(weights > 0, (np.tri(4) > 0) & mask[0, 0])
        return "both count"

    assert unless_refused(answer) == documented


def test_window(framework: str, documented: str) -> None:
    def answer() -> str:
        weights = weights_of(framework, M=4, N=4, window=(1, 0))
        np.testing.assert_allclose(
            weights, [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5]]
        )
        unbounded = weights_of(framework, M=4, N=4, window=(-1, 0))
        if np.array_equal(unbounded > 0, np.tri(4) > 0):
            return "i − left to i + right; −1: no bound"
        assert in_words(unbounded[0]) == "mean of values"
        return "i − left to i + right; −1: no key is left"

    assert unless_there_is_none(answer) == documented


def test_heads_that_share_keys(framework: str, documented: str) -> None:
    """Four heads of queries, two of keys, told apart by their values."""

    def answer() -> str:
        q, k = np.zeros((1, 4, 1, 3)), np.zeros((1, 2, 2, 3))
        v = np.array([1.0, 2.0]).reshape(1, 2, 1, 1) * np.ones((1, 2, 2, 3))
        heads = attend(framework, q, k, v)["output"][0, :, 0, 0]
        return {(1, 1, 2, 2): "i // group", (1, 2, 1, 2): "i % key heads"}[tuple(heads.tolist())]

    assert unless_there_is_none(answer) == documented


# ---- what is returned, and dropout ---------------------------------------------------------------


def test_extras(framework: str, documented: str) -> None:
    """What there is besides the output."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, size, 4)) for size in (2, 5, 5))
    result = attend(framework, q, k, v)
    scores = q @ k.swapaxes(-1, -2) / 2
    lse = np.log(np.exp(scores).sum(axis=-1))
    expected = {"weights": np.exp(scores - lse[..., None]), "lse": lse}
    extras = [name for name in expected if name in result]
    for name in extras:
        np.testing.assert_allclose(result[name], expected[name], rtol=1e-5, atol=1e-6)
    assert (", ".join(extras) or NONE) == documented


def test_gradient_through_lse(framework: str, documented: str) -> None:
    """The loss is the sum of the lse; with keys that differ, its gradient is not 0."""

    def answer() -> str:
        q, k, v = alike(2, 4)
        d = attend(
            framework, q, k + np.eye(4), v,
            grad_output=np.zeros((1, 1, 2, 4), dtype=np.float32),
            grad_lse=np.ones((1, 1, 2), dtype=np.float32),
        )  # fmt: skip
        if not d["d_queries"].any():
            return "0: it is stopped"
        # dlse / dq = sum_j p_j k_j / sqrt(D)
        np.testing.assert_allclose(d["d_queries"], np.full((1, 1, 2, 4), 0.25 / 2), rtol=1e-6)
        return "yes"

    assert unless_there_is_none(answer) == documented


def test_dropout(framework: str, documented: str) -> None:
    """Of 64 weights of 1/64, and whether they are dropped again in the same way."""

    def weights(**more: Any) -> Array:
        dropped = weights_of(framework, M=1, N=64, dropout_p=0.5, **more)
        assert {*dropped.ravel().tolist()} == {0.0, 2 / 64}  # after the softmax, and rescaled
        return dropped

    def answer() -> str:
        if framework == "attnext":
            np.testing.assert_array_equal(weights(seed=1), weights(seed=1))
            assert not np.array_equal(weights(seed=1), weights(seed=2))
            return "weights, by `seed`"
        torch.manual_seed(1)
        first, second = weights(), weights()
        torch.manual_seed(1)
        np.testing.assert_array_equal(first, weights())
        assert not np.array_equal(first, second)
        return "weights, by a global generator"

    assert unless_there_is_none(answer) == documented


# ---- what there is to ask for --------------------------------------------------------------------
#
# A dash in the table says that a framework has no such argument. If one is added, look again.


def test_arguments_of_torch() -> None:
    first, _ = str(functional.scaled_dot_product_attention.__doc__).split("->", 1)
    assert re.findall(r"(\w+)(?==|[,)])", re.sub(r"=[^,)]+", "=", first)) == [
        "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa",
    ]  # fmt: skip


def test_arguments_of_jax() -> None:
    assert jax_process.call("parameters") == [
        "query", "key", "value", "bias", "mask", "scale", "is_causal", "query_seq_lengths",
        "key_value_seq_lengths", "local_window_size", "implementation", "return_residual",
    ]  # fmt: skip


def test_arguments_of_the_onnx_operator() -> None:
    schema = onnx.defs.get_schema("Attention", OPSET)
    assert [x.name for x in schema.inputs] == [
        "Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen",
    ]  # fmt: skip
    assert sorted(schema.attributes) == [
        "is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap",
        "softmax_precision",
    ]  # fmt: skip
