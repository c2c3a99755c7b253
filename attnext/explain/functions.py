"""The four attentions, step by step, with the arguments of the fast functions."""

from __future__ import annotations

from typing import Any, Unpack

from numpy.typing import ArrayLike

from attnext._options import (
    AdditiveForward,
    CosineForward,
    DotProductForward,
    GaussianForward,
    Shared,
)
from attnext.explain.attention import explain_attention
from attnext.explain.options import FORWARD
from attnext.explain.trace import Trace


@FORWARD.spelled_out
def dot_product_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    lang: str = "en",
    **options: Unpack[DotProductForward],
) -> Trace:
    """Explain `attnext.dot_product_attention`: dot products, scale, weights, output.

    Notes
    -----
    ``output = softmax(scale * queries @ keys^T + bias) @ values`` (Vaswani et al. 2017,
    "Attention is all you need", equation 1).

    Examples
    --------
    >>> import numpy as np
    >>> from attnext import explain
    >>> x1, x2 = np.eye(2)[None], np.array([[[1, 0], [0, 2], [1, 1]]])
    >>> trace = explain.dot_product_attention(x1, x2, x2, scale=1)
    >>> for step in trace.steps:
    ...     print(step.name, step.shape, "", step.formula)
    Dot products (1, 2, 3)  raw = queries @ keys^T
    Scaled scores (1, 2, 3)  scores = 1 * raw
    Attention weights (1, 2, 3)  weights = softmax(scores)
    Output (1, 2, 2)  output = weights @ values
    """
    return _explain("dot_product_attention", **locals())


@FORWARD.spelled_out
def additive_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    lang: str = "en",
    **options: Unpack[AdditiveForward],
) -> Trace:
    """Explain `attnext.additive_attention`: projections, broadcast sum, tanh, scores, output.

    Notes
    -----
    ``score(q, k) = w_v . tanh(W_q q + W_k k + b_h)`` (Bahdanau, Cho and Bengio 2015, "Neural
    machine translation by jointly learning to align and translate", appendix A.1.2). The broadcast
    sum and its tanh are of shape (..., M, N, H). If they hold more than 2**21 numbers they are
    computed query by query, and their steps keep the numbers of the first query and the range of
    all.

    Examples
    --------
    >>> import numpy as np
    >>> from attnext import explain
    >>> q, k, v = np.ones((1, 1, 4)), np.ones((1, 3, 2)), np.ones((1, 3, 6))
    >>> W_q, W_k, w_v = np.ones((8, 4)), np.ones((8, 2)), np.ones(8)
    >>> trace = explain.additive_attention(q, k, v, W_q, W_k, w_v, [2])
    >>> for step in trace.steps:
    ...     print(step.name, step.shape)
    Projected queries (1, 1, 8)
    Projected keys (1, 3, 8)
    Broadcast sum (1, 1, 3, 8)
    tanh (1, 1, 3, 8)
    Scores (1, 1, 3)
    Mask (1, 1, 3)
    Masked scores (1, 1, 3)
    Attention weights (1, 1, 3)
    Output (1, 1, 6)
    """
    return _explain("additive_attention", **locals())


@FORWARD.spelled_out
def gaussian_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    lang: str = "en",
    **options: Unpack[GaussianForward],
) -> Trace:
    """Explain `attnext.gaussian_attention`: distances, kernel, weights, output.

    Notes
    -----
    ``score(q, k) = -(w * |q - k|)**2 / 2``, which makes the output the regression of Nadaraya
    (1964) and Watson (1964) with a Gaussian kernel (Dive into Deep Learning: 1.0 (en) 11.2, 2nd ed.
    (zh) 10.2).

    Examples
    --------
    >>> from attnext import explain
    >>> x, y = [[0.0], [1.0], [2.0]], [[5.0], [2.0], [4.0]]
    >>> trace = explain.gaussian_attention([[1.5]], x, y, sigma=0.5)
    >>> trace["distance"].values
    array([[1.5, 0.5, 0.5]])
    >>> trace.output.round(3)
    array([[3.018]], dtype=float32)
    """
    return _explain("gaussian_attention", **locals())


@FORWARD.spelled_out
def cosine_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    lang: str = "en",
    **options: Unpack[CosineForward],
) -> Trace:
    """Explain `attnext.cosine_attention`: vectors of length 1, cosines, weights, output.

    Notes
    -----
    ``score(q, k) = scale * q . k / (max(|q|, eps) * max(|k|, eps))`` (Graves, Wayne and Danihelka
    2014, "Neural Turing machines", section 3.3.1).

    Examples
    --------
    >>> from attnext import explain
    >>> trace = explain.cosine_attention([[3, 4]], [[6, 8], [8, 6]], [[10], [20]])
    >>> trace["cosine"].values.round(4)
    array([[1.  , 0.96]])
    """
    return _explain("cosine_attention", **locals())


def _explain(function: str, *, lang: str, options: Shared, **arguments: Any) -> Trace:
    return explain_attention(function, arguments | FORWARD.completed(function, options), lang)
