"""Answers known from outside: the book's toy examples, hand-computed rows, closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attnext

# Dive into Deep Learning, section 11.3: all keys are equal, so the output is the mean of the
# valid values, whatever the queries and parameters.
KEYS = np.ones((2, 10, 2))
VALUES = np.arange(40).reshape(1, 10, 4).repeat(2, axis=0)
LENS = [2, 6]
OUTPUT = [[[2, 3, 4, 5]], [[10, 11, 12, 13]]]


def test_toy_additive(rng: np.random.Generator) -> None:
    W_q, W_k, w_v = rng.normal(size=(8, 20)), rng.normal(size=(8, 2)), rng.normal(size=8)
    queries = rng.normal(size=(2, 1, 20))
    output, weights = attnext.additive_attention(
        queries, KEYS, VALUES, W_q, W_k, w_v, LENS, return_weights=True
    )
    np.testing.assert_allclose(output, OUTPUT, rtol=1e-6)
    np.testing.assert_allclose(weights[0, 0], [1 / 2] * 2 + [0] * 8, rtol=1e-6)
    np.testing.assert_allclose(weights[1, 0], [1 / 6] * 6 + [0] * 4, rtol=1e-6)


def test_toy_dot(rng: np.random.Generator) -> None:
    output = attnext.dot_product_attention(rng.normal(size=(2, 1, 2)), KEYS, VALUES, LENS)
    np.testing.assert_allclose(output, OUTPUT, rtol=1e-6)


def test_toy_gaussian(rng: np.random.Generator) -> None:
    output = attnext.gaussian_attention(rng.normal(size=(2, 1, 2)), KEYS, VALUES, LENS, sigma=0.3)
    np.testing.assert_allclose(output, OUTPUT, rtol=1e-6)


def test_toy_cosine(rng: np.random.Generator) -> None:
    output = attnext.cosine_attention(rng.normal(size=(2, 1, 2)), KEYS, VALUES, LENS, scale=10)
    np.testing.assert_allclose(output, OUTPUT, rtol=1e-6)


def test_toy_by_a_mask_a_bias_and_a_window(rng: np.random.Generator) -> None:
    """Lengths 2 and 6 in other words."""
    queries = rng.normal(size=(2, 1, 2))
    mask = np.arange(10) < np.array(LENS)[:, None, None]
    bias = np.where(mask, 0.25, -np.inf)
    every: list[dict[str, Any]] = [
        {"mask": mask},
        {"bias": bias},
        {"causal": True, "causal_offset": [1, 5]},
        {"window": (1, 4), "causal_offset": [-3, 1], "mask": mask},
    ]
    for options in every:
        output = attnext.dot_product_attention(queries, KEYS, VALUES, **options)
        np.testing.assert_allclose(output, OUTPUT, rtol=1e-6)


def test_raw_row() -> None:
    row = [1.2474, -0.6254, 1.4849, 2.9333, -0.1787]
    assert attnext.masked_softmax(row)[3].round(4) == np.float32(0.6697)


@pytest.mark.parametrize(
    ("row", "valid", "weights"),
    [
        ([0.9, 0.8, 0.3, 0.4], 3, [0.4076, 0.3688, 0.2237, 0]),
        ([0.8, 0.2, 0.5, 0.7], 2, [0.6457, 0.3543, 0, 0]),
    ],
)
def test_masked_rows(row: list[float], valid: int, weights: list[float]) -> None:
    result = attnext.masked_softmax([[row]], [valid])
    np.testing.assert_array_equal(result.round(4)[0, 0], np.array(weights, dtype=np.float32))


def test_lengths_of_the_book() -> None:
    """Section 11.3: 1-D lengths [2, 3], then one for each row."""
    X = np.zeros((2, 2, 4))
    np.testing.assert_allclose(
        attnext.masked_softmax(X, [2, 3]),
        [[[1 / 2, 1 / 2, 0, 0]] * 2, [[1 / 3, 1 / 3, 1 / 3, 0]] * 2],
        rtol=1e-7,
    )
    np.testing.assert_allclose(
        attnext.masked_softmax(X, [[1, 3], [2, 4]]),
        [[[1.0, 0, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0]], [[1 / 2, 1 / 2, 0, 0], [1 / 4] * 4]],
        rtol=1e-7,
    )


def test_dot_weights_in_closed_form() -> None:
    """Scores 0 and log 3: weights 1/4 and 3/4, lse log 4."""
    output, weights, lse = attnext.dot_product_attention(
        [[1.0]], [[0.0], [np.log(3)]], [[4.0], [8.0]], scale=1, return_weights=True, return_lse=True
    )
    np.testing.assert_allclose(weights, [[1 / 4, 3 / 4]], rtol=3e-7)
    np.testing.assert_allclose(output, [[7.0]], rtol=3e-7)
    np.testing.assert_allclose(lse, [np.log(4)], rtol=3e-7)


def test_additive_score_in_closed_form() -> None:
    """tanh(log 2 / 2) = 1/3."""
    half = np.log(2) / 2
    scores = attnext.additive_scores(
        [[half]], [[0.0], [-half], [-2 * half]], [[1.0]], [[1.0]], [6.0]
    )
    np.testing.assert_allclose(scores, [[2, 0, -2]], atol=1e-6)


def test_gaussian_score_is_the_logarithm_of_the_kernel() -> None:
    scores = attnext.gaussian_scores([[0.0, 0.0]], [[0.0, 2.0], [3.0, 4.0]], sigma=2)
    np.testing.assert_array_equal(scores, [[-0.5, -3.125]])


def test_soft_lookup_of_an_exact_key() -> None:
    """A query far up the direction of one key takes that key's value."""
    output = attnext.dot_product_attention(1000 * np.eye(3), np.eye(3), np.arange(3.0)[:, None])
    np.testing.assert_array_equal(output, [[0], [1], [2]])


def test_softmax_gradient_of_a_pair_is_p_times_one_minus_p() -> None:
    d_X = attnext.masked_softmax_backward([[1.0, 0.0, 5.0]], [[0.25, 0.75, 0.0]], 2)
    np.testing.assert_array_equal(d_X, [[0.1875, -0.1875, 0.0]])


def test_variance_of_scores_grows_with_d_and_the_scale_takes_it_back(
    rng: np.random.Generator,
) -> None:
    """Why 1/sqrt(D): scores of normal vectors have variance D without it, 1 with it."""
    for D in (4, 64, 256):
        q, k = rng.standard_normal((2, 1000, D))
        raw, scaled = attnext.dot_product_scores(q, k, scale=1), attnext.dot_product_scores(q, k)
        assert abs(raw.var() / D - 1) < 0.1
        assert abs(scaled.var() - 1) < 0.1


def test_equal_scores_under_a_band_are_running_means() -> None:
    """Causal: the mean so far. A window of two: the mean of a number and the one before."""
    q, v = np.zeros((5, 1)), np.array([[1.0], [3], [8], [0], [3]])
    output = attnext.dot_product_attention(q, q, v, causal=True)
    np.testing.assert_allclose(output, [[1], [2], [4], [3], [3]], rtol=1e-6)
    output = attnext.dot_product_attention(q, q, v, window=(1, 0))
    np.testing.assert_allclose(output, [[1.0], [2.0], [5.5], [4.0], [1.5]], rtol=1e-6)
    output = attnext.dot_product_attention(q, q, v, window=(0, 1), causal_offset=1)
    np.testing.assert_allclose(output, [[5.5], [4.0], [1.5], [3.0], [3.0]], rtol=1e-6)


def test_a_bias_of_logarithms_counts_keys_several_times() -> None:
    """log 3 on the second of two equal keys: it weighs three times as much. ALiBi is a bias too."""
    output, lse = attnext.dot_product_attention(
        [[0.0]], [[0.0], [0.0]], [[4.0], [8.0]], bias=[0.0, np.log(3)], return_lse=True
    )
    np.testing.assert_allclose(output, [[7.0]], rtol=3e-7)
    np.testing.assert_allclose(lse, [np.log(4)], rtol=3e-7)


def test_cosine_score_in_closed_form() -> None:
    """60 degrees: the cosine is a half. A scale of 2 log 3 makes it weigh three times as much."""
    keys = [[1.0, np.sqrt(3)], [np.sqrt(3), -1.0]]
    np.testing.assert_allclose(attnext.cosine_scores([[5.0, 0.0]], keys[:1]), [[0.5]], rtol=3e-7)
    weights = attnext.cosine_attention(
        [[0.5, np.sqrt(0.75)]], keys, keys, scale=np.log(3), return_weights=True
    )[1]
    np.testing.assert_allclose(weights, [[3 / 4, 1 / 4]], rtol=1e-6)


def test_gradient_of_a_bias_in_closed_form() -> None:
    """p (v - mean): weights 1/4 and 3/4, values 4 and 8."""
    q, k, v, bias = [[0.0]], [[0.0], [0.0]], [[4.0], [8.0]], [0.0, np.log(3)]
    *_, d_bias = attnext.dot_product_attention_backward(
        [[1.0]], q, k, v, bias=bias, return_grad_bias=True
    )
    np.testing.assert_allclose(d_bias, [0.25 * (4 - 7), 0.75 * (8 - 7)], rtol=1e-6)


def test_merge_in_closed_form() -> None:
    """One key of score 0 and three of score 0: weights 1/4 and 3/4."""
    output, lse = attnext.merge_attention([[[4.0]], [[8.0]]], [[0.0], [np.log(3)]])
    np.testing.assert_allclose(output, [[7.0]], rtol=3e-7)
    np.testing.assert_allclose(lse, [np.log(4)], rtol=3e-7)
