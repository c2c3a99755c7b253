"""The attention functions and their backward functions, step by step."""

from __future__ import annotations

from typing import Any, Unpack

from numpy.typing import ArrayLike

from attnext._options import (
    AdditiveBackward,
    AdditiveForward,
    CosineBackward,
    CosineForward,
    DotProductBackward,
    DotProductForward,
    GaussianBackward,
    GaussianForward,
    MultiHeadBackward,
    MultiHeadForward,
    Shared,
)
from attnext.explain.attention import explain_attention
from attnext.explain.backward import explain_attention_backward
from attnext.explain.multi_head import explain_heads
from attnext.explain.multi_head_backward import explain_heads_backward
from attnext.explain.options import BACKWARD, FORWARD, HEADS, HEADS_BACKWARD
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


@BACKWARD.spelled_out
def dot_product_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    lang: str = "en",
    **options: Unpack[DotProductBackward],
) -> Trace:
    """Explain `attnext.dot_product_attention_backward`, in the order of the chain rule.

    Notes
    -----
    With weights P and g = `grad_output`: ``dP = g v^T``, ``dS = P * (dP - rowsum(P * dP))``,
    ``dq = scale * dS k``, ``dk = scale * dS^T q``, ``dv = P^T g``.

    Examples
    --------
    >>> from attnext import explain
    >>> q, k, v = [[1, 1]], [[1, 1], [1, 1]], [[1, 2], [3, 4]]
    >>> trace = explain.dot_product_attention_backward([[1, 0]], q, k, v, scale=1)
    >>> trace["d_scores"].values
    array([[-0.5,  0.5]])
    >>> dq, dk, dv = trace.output
    >>> dk
    array([[-0.5, -0.5],
           [ 0.5,  0.5]], dtype=float32)
    """
    return _explain_backward("dot_product_attention", **locals())


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
    sum and its tanh have shape (..., M, N, H). If they have more than 2**21 elements, they are
    computed query by query. Their steps then keep only the array of the first query, and the
    minimum, mean and maximum of all queries.

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


@BACKWARD.spelled_out
def additive_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    lang: str = "en",
    **options: Unpack[AdditiveBackward],
) -> Trace:
    """Explain `attnext.additive_attention_backward`: softmax, tanh and projections.

    Notes
    -----
    ``d_features[i, j] = dS[i, j] * w_v * (1 - tanh^2)`` has shape (..., M, N, H). If it has more
    than 2**21 elements, the step keeps only the array of the first query.

    Examples
    --------
    >>> from attnext import explain
    >>> q, k, v = [[0.0]], [[0.0], [0.0]], [[1.0], [3.0]]
    >>> trace = explain.additive_attention_backward([[1.0]], q, k, v, [[1.0]], [[1.0]], [2.0])
    >>> [step.key for step in trace.steps][3:]
    ['d_scores', 'd_features', 'd_hidden_q', 'd_hidden_k', 'd_queries', 'd_keys', 'd_W_q', \
'd_W_k', 'd_w_v', 'd_values']
    """
    return _explain_backward("additive_attention", **locals())


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
    ``score(q, k) = -(w * |q - k|)**2 / 2``. The output is then kernel regression with a Gaussian
    kernel (Nadaraya 1964, Watson 1964; Dive into Deep Learning: 1.0 (en) 11.2, 2nd ed. (zh) 10.2).

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


@BACKWARD.spelled_out
def gaussian_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    lang: str = "en",
    **options: Unpack[GaussianBackward],
) -> Trace:
    """Explain `attnext.gaussian_attention_backward`, including the gradient of the bandwidth.

    Notes
    -----
    With dS the gradient of the scores, the gradient of w is ``dw = -w * sum dS * distance**2``.
    Gradient descent on w learns the bandwidth.

    Examples
    --------
    >>> from attnext import explain
    >>> x, y = [[-1.0], [1.0]], [[0.0], [4.0]]
    >>> trace = explain.gaussian_attention_backward([[1.0]], [[0.0]], x, y, w=0.5)
    >>> trace["d_queries"].values
    array([[0.5]], dtype=float32)
    """
    return _explain_backward("gaussian_attention", **locals())


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
    """Explain `attnext.cosine_attention`: unit-length vectors, cosines, weights, output.

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


@BACKWARD.spelled_out
def cosine_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    lang: str = "en",
    **options: Unpack[CosineBackward],
) -> Trace:
    """Explain `attnext.cosine_attention_backward`, in the order of the chain rule.

    Notes
    -----
    With ``u = q / |q|``: ``dq = (du - (u . du) u) / |q|``. The part of du along u is removed,
    because the cosine does not depend on the length of q.

    Examples
    --------
    >>> from attnext import explain
    >>> q, k, v = [[2.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[0.0], [4.0]]
    >>> trace = explain.cosine_attention_backward([[1.0]], q, k, v)
    >>> trace["d_unit_q"].values.round(3), trace["d_queries"].values.round(3)
    (array([[-0.786,  0.786]]), array([[0.   , 0.393]], dtype=float32))
    """
    return _explain_backward("cosine_attention", **locals())


@HEADS.spelled_out
def multi_head_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    W_v: ArrayLike,
    W_o: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    num_heads: int,
    lang: str = "en",
    **options: Unpack[MultiHeadForward],
) -> Trace:
    """Explain `attnext.multi_head_attention`: heads, scores, weights, pooled values, output.

    Notes
    -----
    ``output = W_o concat(head_1, ..., head_H)``, where each head is an attention with its own
    projections (Vaswani et al. 2017, section 3.2.2; Dive into Deep Learning: 1.0 (en) 11.5, 2nd
    ed. (zh) 10.5).

    Examples
    --------
    >>> import numpy as np
    >>> from attnext import explain
    >>> X, W = np.ones((1, 3, 4)), np.eye(4)
    >>> trace = explain.multi_head_attention(X, X, X, W, W, W, W, [2], num_heads=2)
    >>> for step in trace.steps:
    ...     print(step.name, step.shape)
    Queries of the heads (1, 2, 3, 2)
    Keys of the heads (1, 2, 3, 2)
    Values of the heads (1, 2, 3, 2)
    Dot products (1, 2, 3, 3)
    Scaled scores (1, 2, 3, 3)
    Mask (1, 2, 3, 3)
    Masked scores (1, 2, 3, 3)
    Attention weights (1, 2, 3, 3)
    Output of each head (1, 2, 3, 2)
    Concatenated heads (1, 3, 4)
    Output (1, 3, 4)
    """
    arguments = locals()
    lang, given = arguments.pop("lang"), arguments.pop("options")
    return explain_heads(arguments | HEADS.completed("multi_head_attention", given), lang)


@HEADS_BACKWARD.spelled_out
def multi_head_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    W_v: ArrayLike,
    W_o: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    num_heads: int,
    lang: str = "en",
    **options: Unpack[MultiHeadBackward],
) -> Trace:
    """Explain `attnext.multi_head_attention_backward`, in the order of the chain rule.

    Notes
    -----
    The backward pass goes through W_o, then through the dot-product attention of each head, then
    through W_q, W_k and W_v. The heads are independent between the linear layers.

    Examples
    --------
    >>> import numpy as np
    >>> from attnext import explain
    >>> I, x = np.eye(2), np.array([[4.0, 0.0], [0.0, 4.0]])
    >>> grad = [[1, 0], [0, 0]]
    >>> trace = explain.multi_head_attention_backward(grad, x, x, x, I, I, I, I, num_heads=2)
    >>> [step.key for step in trace.steps][:6]
    ['d_joined', 'd_pooled', 'again', 'd_weights', 'mean', 'd_scores']
    >>> trace["d_values"].values.round(2)
    array([[1., 0.],
           [0., 0.]], dtype=float32)
    """
    arguments = locals()
    lang, given = arguments.pop("lang"), arguments.pop("options")
    taken = HEADS_BACKWARD.completed("multi_head_attention_backward", given)
    return explain_heads_backward(arguments | taken, lang)


def _explain(function: str, *, lang: str, options: Shared, **arguments: Any) -> Trace:
    return explain_attention(function, arguments | FORWARD.completed(function, options), lang)


def _explain_backward(function: str, *, lang: str, options: Any, **arguments: Any) -> Trace:
    given = arguments | BACKWARD.completed(f"{function}_backward", options)
    return explain_attention_backward(function, given, lang)
