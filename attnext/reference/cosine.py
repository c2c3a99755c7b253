"""Cosine attention: score(q, k) = scale * q . k / (|q| |k|)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Array, as_positive
from .attention import Attended, all_scores, all_scores_backward, attention, attention_backward
from .options import BACKWARD, FORWARD, SCORES, SCORES_BACKWARD, Options
from .score import Scaled

if TYPE_CHECKING:
    from .._options import CosineBackward, CosineScores, CosineScoresBackward
    from .options import CosineAttention


class Cosine(Scaled):
    """score(q, k) = scale * q . k / (max(|q|, eps) * max(|k|, eps))"""

    def __init__(self, q: Array, k: Array, o: Options) -> None:
        super().__init__(q, k, o.get("scale", 1.0))
        self.eps = as_positive("eps", o.get("eps", 1e-8))

    def forward(self, q: Array, k: Array) -> Array:
        s: Array = self.scale * (self._to_length_1(k) @ self._to_length_1(q))
        return s

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        # forward was: s_j = scale * u_j . t, where t and u_j are q and k_j divided by their norms
        t, u = self._to_length_1(q), self._to_length_1(k)
        d_q = self._to_length_1_backward(self.scale * (d_s @ u), q)  # (D,)
        d_k = self._to_length_1_backward(self.scale * np.outer(d_s, t), k)  # (n, D)
        return d_q, d_k, {"scale": d_s @ (u @ t)}

    def _to_length_1(self, x: Array) -> Array:
        """Return x (..., D) divided by its norm, or by eps if the norm is smaller than eps."""
        norm = np.linalg.norm(x, axis=-1, keepdims=True)
        u: Array = x / np.maximum(norm, self.eps)
        return u

    def _to_length_1_backward(self, d_u: Array, x: Array) -> Array:
        norm = np.linalg.norm(x, axis=-1, keepdims=True)
        u = self._to_length_1(x)
        # forward was: u = x / max(|x|, eps), and the gradient of |x| is x / |x|
        # A change of x along x only changes the norm, not u, so that part of d_u is subtracted.
        # Below eps the divisor is a constant, and nothing is subtracted
        along = np.where(norm < self.eps, 0, np.sum(d_u * u, axis=-1, keepdims=True) * u)
        d_x: Array = (d_u - along) / np.maximum(norm, self.eps)
        return d_x


@FORWARD.spelled_out
def cosine_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    **options: Unpack[CosineAttention],
) -> Attended:
    """Pool values by the softmax of the cosines of queries and keys.

    Notes
    -----
    ``score(q, k) = scale * q . k / (max(|q|, eps) * max(|k|, eps))``, the content-based addressing
    of Graves, Wayne and Danihelka (2014), "Neural Turing machines", section 3.3.1. eps is that of
    torch.nn.functional.cosine_similarity. The score of a zero vector is 0.

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[1, 0]], [[9, 0], [0, 1]], [[10], [20]]
    >>> reference.cosine_attention(q, k, v).round(4)
    array([[12.6894]])
    """
    inputs = queries, keys, values, valid_lens
    return attention("cosine_attention", Cosine, inputs, options)


@BACKWARD.spelled_out
def cosine_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    **options: Unpack[CosineBackward],
) -> tuple[Array | None, ...]:
    """Gradients of `cosine_attention`.

    Notes
    -----
    Let t and u be a query and a key divided by their norms, and dS the gradient of the scores. Then
    ``dt = scale * sum dS u`` over the keys, and ``dq = (dt - (dt . t) t) / |q|``, which is
    perpendicular to q. dk follows in the same way from a sum over the queries. If a norm is less
    than `eps`, it is replaced by the constant `eps`, and ``dq = dt / eps``.

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[2, 0]], [[0, 1], [0, -1]], [[1], [3]]
    >>> dq, dk, dv = reference.cosine_attention_backward([[1]], q, k, v)
    >>> dq
    array([[ 0. , -0.5]])
    """
    inputs = queries, keys, values, valid_lens
    return attention_backward("cosine_attention_backward", Cosine, grad_output, inputs, options)


@SCORES.spelled_out
def cosine_scores(queries: ArrayLike, keys: ArrayLike, **options: Unpack[CosineScores]) -> Array:
    """Scaled cosine of the angle between every query and every key.

    Notes
    -----
    The cosine is between -1 and 1 for any D. So only the scale determines how sharply attention
    distinguishes keys.

    Examples
    --------
    >>> from attnext import reference
    >>> reference.cosine_scores([[3, 4]], [[6, 8], [-1, 0], [0, 0]])
    array([[ 1. , -0.6,  0. ]])
    """
    return all_scores("cosine_scores", Cosine, queries, keys, options)


@SCORES_BACKWARD.spelled_out
def cosine_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    **options: Unpack[CosineScoresBackward],
) -> tuple[Array, ...]:
    """Gradients of `cosine_scores`.

    Examples
    --------
    >>> from attnext import reference
    >>> dq, dk = reference.cosine_scores_backward([[1.0]], [[2.0, 0.0]], [[3.0, 4.0]])
    >>> dq.round(3)
    array([[0. , 0.4]])
    """
    function = "cosine_scores_backward"
    return all_scores_backward(function, Cosine, grad_output, queries, keys, options)
