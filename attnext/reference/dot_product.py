"""Dot-product attention: score(q, k) = scale * q . k"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Array
from .attention import Attended, all_scores, all_scores_backward, attention, attention_backward
from .options import BACKWARD, FORWARD, SCORES, SCORES_BACKWARD, Options
from .score import Scaled

if TYPE_CHECKING:
    from .._options import DotProductBackward, DotProductScores, DotProductScoresBackward
    from .options import DotProductAttention


class DotProduct(Scaled):
    """score(q, k) = scale * q . k"""

    def __init__(self, q: Array, k: Array, o: Options) -> None:
        default = 1 / math.sqrt(max(q.shape[-1], 1))
        super().__init__(q, k, default if o.scale is None else o.scale)

    def forward(self, q: Array, k: Array) -> Array:
        s: Array = self.scale * (k @ q)
        return s

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        # forward was: s_j = scale * sum_d k_jd * q_d
        d_q = self.scale * (d_s @ k)  # (D,)
        d_k = self.scale * np.outer(d_s, q)  # (n, D)
        return d_q, d_k, {"scale": d_s @ (k @ q)}


@FORWARD.spelled_out
def dot_product_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    **options: Unpack[DotProductAttention],
) -> Attended:
    """Pool values by the softmax of scaled dot products of queries and keys.

    Notes
    -----
    ``output = softmax(scale * queries @ keys^T + bias) @ values`` (Vaswani et al. 2017, "Attention
    is all you need", equation 1). A query attends to a key if `valid_lens`, `mask`, `bias`,
    `causal` and `window`, as far as they are given, all allow it. Other keys are never read.

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[1, 0]], [[1, 0], [0, 1]], [[10], [20]]
    >>> reference.dot_product_attention(q, k, v, scale=1).round(4)
    array([[12.6894]])
    >>> reference.dot_product_attention(q, k, v, mask=[False, True])
    array([[20.]])
    """
    inputs = queries, keys, values, valid_lens
    return attention("dot_product_attention", DotProduct, inputs, options)


@BACKWARD.spelled_out
def dot_product_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    **options: Unpack[DotProductBackward],
) -> tuple[Array | None, ...]:
    """Gradients of `dot_product_attention`.

    Notes
    -----
    Let P be the weights and g = `grad_output`. Then ``dv = P^T g`` and ``dP = g v^T``. The gradient
    of the scores is ``dS = P * (dP - rowsum(P * dP))``. From it follow ``dq = scale * dS k`` and
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
    inputs = queries, keys, values, valid_lens
    function = "dot_product_attention_backward"
    return attention_backward(function, DotProduct, grad_output, inputs, options)


@SCORES.spelled_out
def dot_product_scores(
    queries: ArrayLike, keys: ArrayLike, **options: Unpack[DotProductScores]
) -> Array:
    """Scaled dot product of every query with every key.

    Notes
    -----
    If the features are independent with mean 0 and variance 1, the dot product has variance D. The
    default scale makes the variance of the score 1 (Vaswani et al. 2017, section 3.2.1).

    Examples
    --------
    >>> from attnext import reference
    >>> reference.dot_product_scores([[1, 2, 3, 4]], [[1, 1, 1, 1], [2, 0, 2, 0]])
    array([[5., 4.]])
    """
    return all_scores("dot_product_scores", DotProduct, queries, keys, options)


@SCORES_BACKWARD.spelled_out
def dot_product_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    **options: Unpack[DotProductScoresBackward],
) -> tuple[Array, ...]:
    """Gradients of `dot_product_scores`.

    Examples
    --------
    >>> from attnext import reference
    >>> q, k = [[1, 2]], [[3, 4], [5, 7]]
    >>> dq, dk = reference.dot_product_scores_backward([[1, -1]], q, k, scale=2)
    >>> dk
    array([[ 2.,  4.],
           [-2., -4.]])
    """
    function = "dot_product_scores_backward"
    return all_scores_backward(function, DotProduct, grad_output, queries, keys, options)
