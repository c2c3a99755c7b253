"""Dot-product attention: score(q, k) = scale * q . k"""

from __future__ import annotations

import math

from numpy.typing import ArrayLike

from .arguments import Array, as_finite, as_inputs, as_queries_and_keys, check_same_features
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
from .scores import DotProduct


def dot_product_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
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
    """Pool values by the softmax of scaled dot products of queries and keys.

    Parameters
    ----------
    queries, keys, values : array_like, shapes (..., M, D), (..., N, D) and (..., N, Dv)
        Any leading axes (batch, heads), the same for all three, or none.
    valid_lens : None, int or array_like of integers, optional
        How many keys take part, the first ones. One int for all queries; shape (B,) with
        B = ``queries.shape[0]``; (B, M), shared by the axes between; or ``queries.shape[:-1]``.
        A length above N means N. None: all keys.
    scale : float, optional
        What the dot products are multiplied by, finite; ``1 / sqrt(D)`` by default.
    mask : array_like of bool, optional
        Which pairs take part, True for those that do; any shape that broadcasts to (..., M, N).
    bias : array_like of floats, optional
        What is added to the scores; any shape that broadcasts to (..., M, N). A pair of bias -inf
        takes no part.
    causal : bool, optional
        Query i attends to key j only if ``j <= i + causal_offset``.
    causal_offset : int or array_like of integers, shape (B,), optional
        How far the diagonal is shifted, that of the window too: 0 starts it at the first key,
        ``N - M`` ends it at the last. (B,) with three axes or more.
    window : (int, int), optional
        ``(left, right)``: query i attends to key j only if ``i + causal_offset - left <= j <=
        i + causal_offset + right``; -1 is no bound on that side.
    enable_gqa : bool, optional
        Keys and values may have fewer heads, the last leading axis, than the queries: a number
        that divides theirs, Hq. Query head i uses key head ``i // (Hq / Hk)``.
    dropout_p : float, optional
        Probability, 0 <= dropout_p < 1, that a weight is left out of the pooling; those kept are
        scaled by ``1 / (1 - dropout_p)``. Needs `seed` or `dropout_mask`.
    seed : int, optional
        Which weights dropout drops, 0 <= seed < 2**64: the same ones as in the fast function.
    dropout_mask : array_like of bool, optional
        Which weights dropout keeps, in place of `seed`; any shape that broadcasts to (..., M, N).
    empty_rows : {'uniform', 'zero', 'nan'}, optional
        What becomes of a query that no key takes part in: 'uniform' pools with weights 1/N over
        all keys, 'zero' gives weights and output 0, 'nan' gives NaN.
    return_weights, return_lse : bool, optional
        Also return the attention weights; the log-sum-exp of the scores.
    out : ndarray of float64, shape (..., M, Dv), optional
        Where to put the output.

    Returns
    -------
    output : ndarray of float64, shape (..., M, Dv)
        The values, averaged with the attention weights.
    weights : ndarray of float64, shape (..., M, N)
        Only with `return_weights`: the weights before dropout. Rows sum to 1; exactly 0
        where a pair takes no part.
    lse : ndarray of float64, shape (..., M)
        Only with `return_lse`: logarithm of the sum of ``exp(score)`` over the keys that take
        part, -inf where there are none.

    Raises
    ------
    TypeError
        An array is not of real numbers, lengths or offsets are not integers, mask or
        dropout_mask not bools, bias not floats, seed or a bound of the window not an int.
    ValueError
        An argument has the wrong shape or an impossible value.

    Notes
    -----
    ``output = softmax(scale * queries @ keys^T + bias) @ values`` (Vaswani et al. 2017, "Attention
    is all you need", equation 1). A pair takes part if all of valid_lens, mask, bias, causal and
    window allow it; what takes no part is never read.

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[1, 0]], [[1, 0], [0, 1]], [[10], [20]]
    >>> reference.dot_product_attention(q, k, v, scale=1).round(4)
    array([[12.6894]])
    >>> reference.dot_product_attention(q, k, v, mask=[False, True])
    array([[20.]])
    """
    q, k, v = as_inputs(queries, keys, values, enable_gqa)
    score = _dot_product_score(q, k, scale)
    masks = Masks(valid_lens, mask, bias, causal, causal_offset, window)
    dropout = Dropout(dropout_p, seed, dropout_mask)
    pairs = all_pairs(q, k, masks, dropout, empty_rows)
    return attention(score, q, k, v, pairs, return_weights, return_lse, out)


def dot_product_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
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
) -> tuple[Array | None, ...]:
    """Gradients of `dot_product_attention`.

    Parameters
    ----------
    grad_output : array_like, shape (..., M, Dv)
        Gradient of the loss with respect to the output.
    queries, keys, values : array_like, shapes (..., M, D), (..., N, D) and (..., N, Dv)
        As given to `dot_product_attention`.
    valid_lens, scale, mask, bias, causal, causal_offset, window, enable_gqa : optional
        As given to `dot_product_attention`.
    dropout_p, seed, dropout_mask, empty_rows : optional
        As given to `dot_product_attention`.
    grad_weights, grad_lse : array_like, shapes (..., M, N) and (..., M), optional
        Gradients of the loss with respect to the returned weights and lse.
    weights, output, lse : array_like, shapes (..., M, N), (..., M, Dv) and (..., M), optional
        What the forward returned. Only the shapes are looked at here: all are computed again.
    return_grad_bias : bool, optional
        Also return the gradient of the bias.

    Returns
    -------
    dq, dk, dv : ndarray of float64
        Gradients with respect to `queries`, `keys` and `values`, in their shapes.
    dbias : ndarray of float64
        Only with `return_grad_bias`: gradient with respect to `bias`, in its shape. None if no bias
        was given.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    Notes
    -----
    With weights P and g = `grad_output`: ``dv = P^T g``, ``dP = g v^T``, the gradient of the
    scores is ``dS = P * (dP - rowsum(P * dP))``, and ``dq = scale * dS k``,
    ``dk = scale * dS^T q``. The gradient of the bias is dS, summed over the axes along which the
    bias was broadcast.

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[1, 1]], [[1, 1], [1, 1]], [[1, 2], [3, 4]]
    >>> dq, dk, dv = reference.dot_product_attention_backward([[1, 0]], q, k, v, scale=1)
    >>> dk
    array([[-0.5, -0.5],
           [ 0.5,  0.5]])
    """
    q, k, v = as_inputs(queries, keys, values, enable_gqa)
    score = _dot_product_score(q, k, scale)
    masks = Masks(valid_lens, mask, bias, causal, causal_offset, window)
    dropout = Dropout(dropout_p, seed, dropout_mask)
    pairs = all_pairs(q, k, masks, dropout, empty_rows)
    d = attention_backward(
        grad_output, score, q, k, v, pairs, grad_weights, grad_lse, weights, output, lse
    )
    return (d.queries, d.keys, d.values, *bias_gradient(d, bias, return_grad_bias))


def dot_product_scores(
    queries: ArrayLike, keys: ArrayLike, *, scale: ArrayLike | None = None
) -> Array:
    """Scaled dot product of every query with every key.

    Parameters
    ----------
    queries, keys : array_like, shapes (..., M, D) and (..., N, D)
        Any leading axes, the same for both, or none.
    scale : float, optional
        What the dot products are multiplied by, finite; ``1 / sqrt(D)`` by default.

    Returns
    -------
    scores : ndarray of float64, shape (..., M, N)
        ``scale * queries @ keys^T``.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    Notes
    -----
    For independent features of mean 0 and variance 1 the dot product has variance D, and the
    default scale brings it back to 1 (Vaswani et al. 2017, section 3.2.1).

    Examples
    --------
    >>> from attnext import reference
    >>> reference.dot_product_scores([[1, 2, 3, 4]], [[1, 1, 1, 1], [2, 0, 2, 0]])
    array([[5., 4.]])
    """
    q, k = as_queries_and_keys(queries, keys)
    return all_scores(_dot_product_score(q, k, scale), q, k)


def _dot_product_score(q: Array, k: Array, scale: ArrayLike | None) -> DotProduct:
    check_same_features(q, k)
    D = q.shape[-1]
    return DotProduct(1 / math.sqrt(max(D, 1)) if scale is None else as_finite("scale", scale))
