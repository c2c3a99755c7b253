"""Gaussian attention: score(q, k) = -(w * |q - k|)^2 / 2"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .arguments import (
    Array,
    as_finite,
    as_inputs,
    as_positive,
    as_queries_and_keys,
    check_same_features,
)
from .attention import (
    Attended,
    all_pairs,
    all_scores,
    attention,
    attention_backward,
    bias_gradient,
)
from .dropout import Dropout
from .masks import Masks
from .scores import Gaussian


def gaussian_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    w: ArrayLike | None = None,
    sigma: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    causal: bool = False,
    causal_offset: ArrayLike = 0,
    window: tuple[int, int] | None = None,
    enable_gqa: bool = False,
    dropout_p: ArrayLike = 0.0,
    seed: int | None = None,
    dropout_mask: ArrayLike | None = None,
    empty_rows: str = "uniform",
    return_weights: bool = False,
    return_lse: bool = False,
    out: Array | None = None,
) -> Attended:
    """Pool values by a Gaussian kernel of the distance between queries and keys.

    Parameters
    ----------
    queries, keys, values : array_like, shapes (..., M, D), (..., N, D) and (..., N, Dv)
        Any leading axes (batch, heads), the same for all three, or none.
    valid_lens : None, int or array_like of integers, optional
        As in `dot_product_attention`.
    w : float, optional
        Inverse of the bandwidth, finite, a number or an array of one element; 1 by default.
    sigma : float, optional
        The bandwidth itself, ``w = 1 / sigma``, greater than 0; instead of `w`.
    mask, bias, causal, causal_offset, window, enable_gqa : optional
        As in `dot_product_attention`.
    dropout_p, seed, dropout_mask, empty_rows : optional
        As in `dot_product_attention`.
    return_weights, return_lse, out : optional
        As in `dot_product_attention`.

    Returns
    -------
    output, weights, lse : ndarray of float64
        As from `dot_product_attention`.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`; ValueError also if both `w` and `sigma` are given.

    Notes
    -----
    ``score(q, k) = -(w * |q - k|)**2 / 2``, which makes the output the regression of Nadaraya
    (1964) and Watson (1964) with a Gaussian kernel (Dive into Deep Learning, section 11.2).

    Examples
    --------
    >>> from attnext import reference
    >>> x, y = [[0.0], [1.0], [2.0]], [[5.0], [2.0], [4.0]]
    >>> reference.gaussian_attention([[1.5]], x, y, sigma=0.5).round(3)
    array([[3.018]])
    """
    q, k, v = as_inputs(queries, keys, values, enable_gqa)
    score = _gaussian_score(q, k, w, sigma)
    masks = Masks(valid_lens, mask, bias, causal, causal_offset, window)
    dropout = Dropout(dropout_p, seed, dropout_mask)
    pairs = all_pairs(q, k, masks, dropout, empty_rows)
    return attention(score, q, k, v, pairs, return_weights, return_lse, out)


def gaussian_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    w: ArrayLike | None = None,
    sigma: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    causal: bool = False,
    causal_offset: ArrayLike = 0,
    window: tuple[int, int] | None = None,
    enable_gqa: bool = False,
    dropout_p: ArrayLike = 0.0,
    seed: int | None = None,
    dropout_mask: ArrayLike | None = None,
    empty_rows: str = "uniform",
    grad_weights: ArrayLike | None = None,
    grad_lse: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    output: ArrayLike | None = None,
    lse: ArrayLike | None = None,
    return_grad_bias: bool = False,
) -> tuple[Any, ...]:
    """Gradients of `gaussian_attention`.

    Parameters
    ----------
    grad_output : array_like, shape (..., M, Dv)
        Gradient of the loss with respect to the output.
    queries, keys, values : array_like, shapes (..., M, D), (..., N, D) and (..., N, Dv)
        As given to `gaussian_attention`.
    valid_lens, w, sigma, mask, bias, causal, causal_offset, window, enable_gqa : optional
        As given to `gaussian_attention`.
    dropout_p, seed, dropout_mask, empty_rows : optional
        As given to `gaussian_attention`.
    grad_weights, grad_lse, weights, output, lse, return_grad_bias : optional
        As in `dot_product_attention_backward`.

    Returns
    -------
    dq, dk, dv : ndarray of float64
        Gradients with respect to `queries`, `keys` and `values`, in their shapes.
    dw : float64
        Gradient with respect to ``w = 1 / sigma``, whichever of the two was given.
    dbias : ndarray of float64
        Only with `return_grad_bias`, as from `dot_product_attention_backward`.

    Raises
    ------
    TypeError, ValueError
        As in `gaussian_attention`.

    Notes
    -----
    With dS the gradient of the scores: ``dq = -w**2 * sum dS (q - k)`` over the keys, dk the same
    with the other sign over the queries, and ``dw = -w * sum dS |q - k|**2`` over all pairs.

    Examples
    --------
    >>> from attnext import reference
    >>> x, y = [[-1.0], [1.0]], [[0.0], [4.0]]
    >>> dq, dk, dv, dw = reference.gaussian_attention_backward([[1.0]], [[0.0]], x, y, w=0.5)
    >>> dq
    array([[0.5]])
    """
    q, k, v = as_inputs(queries, keys, values, enable_gqa)
    score = _gaussian_score(q, k, w, sigma)
    masks = Masks(valid_lens, mask, bias, causal, causal_offset, window)
    dropout = Dropout(dropout_p, seed, dropout_mask)
    pairs = all_pairs(q, k, masks, dropout, empty_rows)
    d = attention_backward(
        grad_output, score, q, k, v, pairs, grad_weights, grad_lse, weights, output, lse
    )
    d_w = np.float64(d.parameters["w"])
    return (d.queries, d.keys, d.values, d_w, *bias_gradient(d, bias, return_grad_bias))


def gaussian_scores(
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    w: ArrayLike | None = None,
    sigma: ArrayLike | None = None,
) -> Array:
    """Logarithm of a Gaussian kernel of the distance of every query to every key.

    Parameters
    ----------
    queries, keys : array_like, shapes (..., M, D) and (..., N, D)
        Any leading axes, the same for both, or none.
    w, sigma : float, optional
        As in `gaussian_attention`.

    Returns
    -------
    scores : ndarray of float64, shape (..., M, N)
        ``-(w * |q - k|)**2 / 2`` of every pair.

    Raises
    ------
    TypeError, ValueError
        As in `gaussian_attention`.

    Notes
    -----
    The constant of the normal density is left out: softmax does not see it.

    Examples
    --------
    >>> from attnext import reference
    >>> reference.gaussian_scores([[0.0, 0.0]], [[0.0, 2.0], [3.0, 4.0]])
    array([[ -2. , -12.5]])
    """
    q, k = as_queries_and_keys(queries, keys)
    return all_scores(_gaussian_score(q, k, w, sigma), q, k)


def _gaussian_score(q: Array, k: Array, w: ArrayLike | None, sigma: ArrayLike | None) -> Gaussian:
    check_same_features(q, k)
    if sigma is None:
        return Gaussian(1.0 if w is None else as_finite("w", w, one_element=True))
    if w is not None:
        raise ValueError("w and sigma are both given, expected one of them: w = 1 / sigma")
    return Gaussian(1 / as_positive("sigma", sigma, one_element=True))
