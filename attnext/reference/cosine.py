"""Cosine attention: score(q, k) = scale * q . k / (|q| |k|)"""

from __future__ import annotations

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
from .scores import Cosine


def cosine_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike = 1.0,
    eps: ArrayLike = 1e-8,
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
    """Pool values by the softmax of the cosines of queries and keys.

    Parameters
    ----------
    queries, keys, values : array_like, shapes (..., M, D), (..., N, D) and (..., N, Dv)
        Any leading axes (batch, heads), the same for all three, or none.
    valid_lens : None, int or array_like of integers, optional
        As in `dot_product_attention`.
    scale : float, optional
        What the cosines are multiplied by, finite.
    eps : float, optional
        The least that a norm counts as, greater than 0.
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
        As in `dot_product_attention`.

    Notes
    -----
    ``score(q, k) = scale * q . k / (max(|q|, eps) * max(|k|, eps))``, the addressing by content of
    Graves, Wayne and Danihelka (2014), "Neural Turing machines", section 3.3.1, with the eps of
    torch.nn.functional.cosine_similarity. A vector of zeros scores 0.

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[1, 0]], [[9, 0], [0, 1]], [[10], [20]]
    >>> reference.cosine_attention(q, k, v).round(4)
    array([[12.6894]])
    """
    q, k, v = as_inputs(queries, keys, values, enable_gqa)
    score = _cosine_score(q, k, scale, eps)
    masks = Masks(valid_lens, mask, bias, causal, causal_offset, window)
    dropout = Dropout(dropout_p, seed, dropout_mask)
    pairs = all_pairs(q, k, masks, dropout, empty_rows)
    return attention(score, q, k, v, pairs, return_weights, return_lse, out)


def cosine_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike = 1.0,
    eps: ArrayLike = 1e-8,
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
    """Gradients of `cosine_attention`.

    Parameters
    ----------
    grad_output : array_like, shape (..., M, Dv)
        Gradient of the loss with respect to the output.
    queries, keys, values : array_like, shapes (..., M, D), (..., N, D) and (..., N, Dv)
        As given to `cosine_attention`.
    valid_lens, scale, eps, mask, bias, causal, causal_offset, window, enable_gqa : optional
        As given to `cosine_attention`.
    dropout_p, seed, dropout_mask, empty_rows : optional
        As given to `cosine_attention`.
    grad_weights, grad_lse, weights, output, lse, return_grad_bias : optional
        As in `dot_product_attention_backward`.

    Returns
    -------
    dq, dk, dv : ndarray of float64
        Gradients with respect to `queries`, `keys` and `values`, in their shapes.
    dbias : ndarray of float64
        Only with `return_grad_bias`, as from `dot_product_attention_backward`.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    Notes
    -----
    With u and t for a key and a query over their norms, and dS the gradient of the scores:
    ``dt = scale * sum dS u`` over the keys and ``dq = (dt - (dt . t) t) / |q|``, at a right angle
    to q; dk the same over the queries. Where a norm is less than `eps`, which then divides in its
    place, only ``dq = dt / eps`` remains.

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[2, 0]], [[0, 1], [0, -1]], [[1], [3]]
    >>> dq, dk, dv = reference.cosine_attention_backward([[1]], q, k, v)
    >>> dq
    array([[ 0. , -0.5]])
    """
    q, k, v = as_inputs(queries, keys, values, enable_gqa)
    score = _cosine_score(q, k, scale, eps)
    masks = Masks(valid_lens, mask, bias, causal, causal_offset, window)
    dropout = Dropout(dropout_p, seed, dropout_mask)
    pairs = all_pairs(q, k, masks, dropout, empty_rows)
    d = attention_backward(
        grad_output, score, q, k, v, pairs, grad_weights, grad_lse, weights, output, lse
    )
    return (d.queries, d.keys, d.values, *bias_gradient(d, bias, return_grad_bias))


def cosine_scores(
    queries: ArrayLike, keys: ArrayLike, *, scale: ArrayLike = 1.0, eps: ArrayLike = 1e-8
) -> Array:
    """Scaled cosine of the angle between every query and every key.

    Parameters
    ----------
    queries, keys : array_like, shapes (..., M, D) and (..., N, D)
        Any leading axes, the same for both, or none.
    scale, eps : float, optional
        As in `cosine_attention`.

    Returns
    -------
    scores : ndarray of float64, shape (..., M, N)
        ``scale * q . k / (max(|q|, eps) * max(|k|, eps))`` of every pair.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    Notes
    -----
    The cosine lies between -1 and 1 whatever D is, so that the scale alone says how sharply
    attention tells keys apart.

    Examples
    --------
    >>> from attnext import reference
    >>> reference.cosine_scores([[3, 4]], [[6, 8], [-1, 0], [0, 0]])
    array([[ 1. , -0.6,  0. ]])
    """
    q, k = as_queries_and_keys(queries, keys)
    return all_scores(_cosine_score(q, k, scale, eps), q, k)


def _cosine_score(q: Array, k: Array, scale: ArrayLike, eps: ArrayLike) -> Cosine:
    check_same_features(q, k)
    return Cosine(as_finite("scale", scale), as_positive("eps", eps))
