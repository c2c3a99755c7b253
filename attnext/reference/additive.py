"""Additive attention: score(q, k) = w_v . tanh(W_q q + W_k k + b_h)"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Array, as_array, as_array_or_zeros
from .attention import Attended, all_scores, all_scores_backward, attention, attention_backward
from .options import BACKWARD, FORWARD, SCORES, SCORES_BACKWARD, Options
from .score import Score

if TYPE_CHECKING:
    from .._options import AdditiveBackward, AdditiveScores
    from .options import AdditiveAttention


class Additive(Score):
    """score(q, k) = w_v . tanh(W_q q + W_k k + b_h)"""

    def __init__(
        self,
        q: Array,
        k: Array,
        o: Options,
        W_q: ArrayLike,
        W_k: ArrayLike,
        w_v: ArrayLike,
    ) -> None:
        self.W_q = as_array("W_q", W_q, ("H", q.shape[-1]))  # (H, Dq)
        H = len(self.W_q)
        self.W_k = as_array("W_k", W_k, (H, k.shape[-1]))  # (H, Dk)
        weights = as_array("w_v", w_v)  # (H,) or (1, H); its gradient has the same shape
        if weights.shape not in [(H,), (1, H)]:
            raise ValueError(f"w_v has shape {weights.shape}, expected {(H,)} or {(1, H)}")
        self.w_v = weights.reshape(H)
        self.b_h = as_array_or_zeros("b_h", o.b_h, (H,))
        self.parameters = {
            "W_q": self.W_q,
            "W_k": self.W_k,
            "w_v": weights,
            "b_h": None if o.b_h is None else self.b_h,
        }

    def forward(self, q: Array, k: Array) -> Array:
        a = self.W_q @ q + k @ self.W_k.T + self.b_h  # (n, H)
        return np.tanh(a) @ self.w_v

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        a = self.W_q @ q + k @ self.W_k.T + self.b_h  # (n, H)
        # forward was: s = tanh(a) @ w_v
        d_w_v = d_s @ np.tanh(a)  # (H,)
        d_tanh = np.outer(d_s, self.w_v)  # (n, H)
        # tanh' = 1 - tanh^2 = 1 / cosh^2; the second form loses no digits where tanh is close to 1
        d_a = d_tanh / np.cosh(a) ** 2  # (n, H)
        # forward was: a = W_q q + W_k k + b_h, with one q and one b_h for all n keys
        d_b_h = np.sum(d_a, axis=0)  # (H,)
        d_W_q = np.outer(d_b_h, q)  # (H, Dq)
        d_q = d_b_h @ self.W_q  # (Dq,)
        d_W_k = d_a.T @ k  # (H, Dk)
        d_k = d_a @ self.W_k  # (n, Dk)
        return d_q, d_k, {"W_q": d_W_q, "W_k": d_W_k, "w_v": d_w_v, "b_h": d_b_h}


class AdditiveGradients(NamedTuple):
    """Gradients of `additive_attention`, each in the shape of its input.

    Parameters
    ----------
    queries, keys, values, W_q, W_k, w_v : ndarray of float64
        Gradients with respect to these inputs; `values` is None from `additive_scores_backward`.
    b_h : ndarray of float64 or None
        Gradient with respect to the bias; None if no bias was given.
    """

    queries: Array
    keys: Array
    values: Array | Any  # None from additive_scores_backward
    W_q: Array
    W_k: Array
    w_v: Array
    b_h: Array | None


@FORWARD.spelled_out
def additive_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: ArrayLike | None = None,
    **options: Unpack[AdditiveAttention],
) -> Attended:
    """Pool values by the softmax of additive (Bahdanau) scores of queries and keys.

    Notes
    -----
    ``score(q, k) = w_v . tanh(W_q q + W_k k + b_h)`` (Bahdanau, Cho and Bengio 2015, "Neural
    machine translation by jointly learning to align and translate", appendix A.1.2).

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[1.0]], [[-1.0], [0.0]], [[10.0], [20.0]]
    >>> reference.additive_attention(q, k, v, [[0.5]], [[0.5]], [2.0]).round(4)
    array([[17.159]])
    """
    score = partial(Additive, W_q=W_q, W_k=W_k, w_v=w_v)
    inputs = queries, keys, values, valid_lens
    return attention("additive_attention", score, inputs, options)


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
    **options: Unpack[AdditiveBackward],
) -> Any:
    """Gradients of `additive_attention`.

    Notes
    -----
    Let ``a = W_q q + W_k k + b_h`` and let dS be the gradient of the scores. Then ``da = dS * w_v *
    (1 - tanh(a)**2)``. The gradient of a projected query is the sum of da over the keys, the
    gradient of a projected key the sum over the queries, and the gradient of `b_h` the sum over
    all pairs.

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[0.0]], [[0.0], [0.0]], [[1.0], [3.0]]
    >>> d = reference.additive_attention_backward([[1.0]], q, k, v, [[1.0]], [[1.0]], [2.0])
    >>> d.keys
    array([[-1.],
           [ 1.]])
    """
    score = partial(Additive, W_q=W_q, W_k=W_k, w_v=w_v)
    inputs = queries, keys, values, valid_lens
    d = attention_backward("additive_attention_backward", score, grad_output, inputs, options)
    fields = len(AdditiveGradients._fields)
    gradients = AdditiveGradients(*d[:fields])
    return (gradients, *d[fields:]) if d[fields:] else gradients


@SCORES.spelled_out
def additive_scores(
    queries: ArrayLike,
    keys: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    **options: Unpack[AdditiveScores],
) -> Array:
    """Additive (Bahdanau) score of every query with every key.

    Notes
    -----
    The score of Bahdanau, Cho and Bengio (2015), appendix A.1.2.

    Examples
    --------
    >>> from attnext import reference
    >>> reference.additive_scores([[1.0]], [[-1.0], [0.0]], [[0.5]], [[0.5]], [2.0]).round(4)
    array([[0.    , 0.9242]])
    """
    score = partial(Additive, W_q=W_q, W_k=W_k, w_v=w_v)
    return all_scores("additive_scores", score, queries, keys, options)


@SCORES_BACKWARD.spelled_out
def additive_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    **options: Unpack[AdditiveScores],
) -> AdditiveGradients:
    """Gradients of `additive_scores`.

    Examples
    --------
    >>> from attnext import reference
    >>> d = reference.additive_scores_backward([[1, 1]], [[1]], [[-1], [1]], [[0.5]], [[0.5]], [2])
    >>> d.keys.round(2)
    array([[1.  ],
           [0.42]])
    """
    score = partial(Additive, W_q=W_q, W_k=W_k, w_v=w_v)
    function = "additive_scores_backward"
    d = all_scores_backward(function, score, grad_output, queries, keys, options)
    d_queries, d_keys, *d_parameters = d
    return AdditiveGradients(d_queries, d_keys, None, *d_parameters)
