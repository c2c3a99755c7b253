"""Dot-product attention: score(q, k) = scale * q . k"""

from __future__ import annotations

import math
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Array, as_scale, check_same_features
from .attention import (
    Attended,
    Score,
    all_scores,
    all_scores_backward,
    attention,
    attention_backward,
)
from .options import Forward, ScaledBackward

if TYPE_CHECKING:
    from .options import ForwardOptions, ScaledBackwardOptions


class DotProduct(Score):
    """score(q, k) = scale * q . k"""

    def __init__(self, q: Array, k: Array, scale: ArrayLike | None) -> None:
        check_same_features(q, k)
        D = q.shape[-1]
        self.lead = q.shape[:-2]
        self.scale = as_scale(1 / math.sqrt(max(D, 1)) if scale is None else scale, self.lead)
        self.parameters: dict[str, Array | None] = {}

    def at(self, batch: tuple[int, ...]) -> Score:
        one = copy(self)
        one.scale = np.broadcast_to(self.scale, self.lead)[batch]
        return one

    def forward(self, q: Array, k: Array) -> Array:
        s: Array = self.scale * (k @ q)
        return s

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        # forward was: s_j = scale * sum_d k_jd * q_d
        d_q = self.scale * (d_s @ k)  # (D,)
        d_k = self.scale * np.outer(d_s, q)  # (n, D)
        return d_q, d_k, {"scale": d_s @ (k @ q)}


@Forward.spelled_out
def dot_product_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
    **options: Unpack[ForwardOptions],
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
    scale : float or array_like, optional
        What the dot products are multiplied by, finite: a number, or an array that broadcasts to
        ``queries.shape[:-2]``, as one number for each head does; ``1 / sqrt(D)`` by default.
    **options : optional
        Masks, dropout, and what else to return: the fields of `options.Forward`.

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
    score = partial(DotProduct, scale=scale)
    inputs = queries, keys, values, valid_lens
    return attention("dot_product_attention", score, inputs, options)


@ScaledBackward.spelled_out
def dot_product_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
    **options: Unpack[ScaledBackwardOptions],
) -> tuple[Array | None, ...]:
    """Gradients of `dot_product_attention`.

    Parameters
    ----------
    grad_output : array_like, shape (..., M, Dv)
        Gradient of the loss with respect to the output.
    queries, keys, values : array_like, shapes (..., M, D), (..., N, D) and (..., N, Dv)
        As given to `dot_product_attention`.
    valid_lens, scale : optional
        As given to `dot_product_attention`.
    **options : optional
        The fields of `options.Backward`.

    Returns
    -------
    dq, dk, dv : ndarray of float64
        Gradients with respect to `queries`, `keys` and `values`, in their shapes.
    dbias, dsink, dscale : ndarray of float64
        Only with `return_grad_bias`, `return_grad_sink`, `return_grad_scale`: gradients with
        respect to `bias`, `sink` and `scale`, each in its shape. None if no bias or sink was given.

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
    score = partial(DotProduct, scale=scale)
    inputs = queries, keys, values, valid_lens
    function = "dot_product_attention_backward"
    return attention_backward(function, score, grad_output, inputs, options, ScaledBackward)


def dot_product_scores(
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    scale: ArrayLike | None = None,
    softcap: ArrayLike | None = None,
) -> Array:
    """Scaled dot product of every query with every key.

    Parameters
    ----------
    queries, keys : array_like, shapes (..., M, D) and (..., N, D)
        Any leading axes, the same for both, or none.
    scale : float or array_like, optional
        What the dot products are multiplied by, finite: a number, or an array that broadcasts to
        ``queries.shape[:-2]``, as one number for each head does; ``1 / sqrt(D)`` by default.
    softcap : float, optional
        A bound on the size of scores, softcap > 0: each becomes
        ``softcap * tanh(score / softcap)``.

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
    return all_scores(partial(DotProduct, scale=scale), queries, keys, softcap)


def dot_product_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    scale: ArrayLike | None = None,
    softcap: ArrayLike | None = None,
    return_grad_scale: bool = False,
) -> tuple[Array, ...]:
    """Gradients of `dot_product_scores`.

    Parameters
    ----------
    grad_output : array_like, shape (..., M, N)
        Gradient of the loss with respect to the scores.
    queries, keys : array_like, shapes (..., M, D) and (..., N, D)
        As given to `dot_product_scores`.
    scale : float or array_like, optional
        As given to `dot_product_scores`.
    softcap : float, optional
        As given to `dot_product_scores`.
    return_grad_scale : bool, optional
        Also return the gradient of `scale`.

    Returns
    -------
    dq, dk : ndarray of float64
        Gradients with respect to `queries` and `keys`, in their shapes.
    dscale : ndarray of float64
        Only with `return_grad_scale`: gradient with respect to `scale`, in its shape.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    See Also
    --------
    dot_product_scores : The function these are the gradients of.

    Examples
    --------
    >>> from attnext import reference
    >>> q, k = [[1, 2]], [[3, 4], [5, 7]]
    >>> dq, dk = reference.dot_product_scores_backward([[1, -1]], q, k, scale=2)
    >>> dk
    array([[ 2.,  4.],
           [-2., -4.]])
    """
    score = partial(DotProduct, scale=scale)
    return all_scores_backward(score, grad_output, queries, keys, softcap, return_grad_scale)
