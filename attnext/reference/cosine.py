"""Cosine attention: score(q, k) = scale * q . k / (|q| |k|)"""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Array, as_positive, as_scale, check_same_features
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


class Cosine(Score):
    """score(q, k) = scale * q . k / (max(|q|, eps) * max(|k|, eps))"""

    def __init__(self, q: Array, k: Array, scale: ArrayLike, eps: ArrayLike) -> None:
        check_same_features(q, k)
        self.lead = q.shape[:-2]
        self.scale, self.eps = as_scale(scale, self.lead), as_positive("eps", eps)
        self.parameters: dict[str, Array | None] = {}

    def at(self, batch: tuple[int, ...]) -> Score:
        one = copy(self)
        one.scale = np.broadcast_to(self.scale, self.lead)[batch]
        return one

    def forward(self, q: Array, k: Array) -> Array:
        s: Array = self.scale * (self._to_length_1(k) @ self._to_length_1(q))
        return s

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        # forward was: s_j = scale * u_j . t, where t and u_j are q and k_j brought to length 1
        t, u = self._to_length_1(q), self._to_length_1(k)
        d_q = self._to_length_1_backward(self.scale * (d_s @ u), q)  # (D,)
        d_k = self._to_length_1_backward(self.scale * np.outer(d_s, t), k)  # (n, D)
        return d_q, d_k, {"scale": d_s @ (u @ t)}

    def _to_length_1(self, x: Array) -> Array:
        """x (..., D) over its norm; a shorter x than eps stays shorter than 1, and 0 stays 0."""
        norm = np.linalg.norm(x, axis=-1, keepdims=True)
        u: Array = x / np.maximum(norm, self.eps)
        return u

    def _to_length_1_backward(self, d_u: Array, x: Array) -> Array:
        norm = np.linalg.norm(x, axis=-1, keepdims=True)
        u = self._to_length_1(x)
        # forward was: u = x / max(|x|, eps), and the gradient of |x| is x / |x|: what of d_u
        # points along x changes the norm alone. Below eps the divisor is a constant
        along = np.where(norm < self.eps, 0, np.sum(d_u * u, axis=-1, keepdims=True) * u)
        d_x: Array = (d_u - along) / np.maximum(norm, self.eps)
        return d_x


@Forward.spelled_out
def cosine_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike = 1.0,
    eps: ArrayLike = 1e-8,
    **options: Unpack[ForwardOptions],
) -> Attended:
    """Pool values by the softmax of the cosines of queries and keys.

    Parameters
    ----------
    queries, keys, values : array_like, shapes (..., M, D), (..., N, D) and (..., N, Dv)
        Any leading axes (batch, heads), the same for all three, or none.
    valid_lens : None, int or array_like of integers, optional
        As in `dot_product_attention`.
    scale : float or array_like, optional
        What the cosines are multiplied by, finite, as in `dot_product_attention`.
    eps : float, optional
        The least that a norm counts as, greater than 0.
    **options : optional
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
    score = partial(Cosine, scale=scale, eps=eps)
    inputs = queries, keys, values, valid_lens
    return attention("cosine_attention", score, inputs, options)


@ScaledBackward.spelled_out
def cosine_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike = 1.0,
    eps: ArrayLike = 1e-8,
    **options: Unpack[ScaledBackwardOptions],
) -> tuple[Array | None, ...]:
    """Gradients of `cosine_attention`.

    Parameters
    ----------
    grad_output : array_like, shape (..., M, Dv)
        Gradient of the loss with respect to the output.
    queries, keys, values : array_like, shapes (..., M, D), (..., N, D) and (..., N, Dv)
        As given to `cosine_attention`.
    valid_lens, scale, eps : optional
        As given to `cosine_attention`.
    **options : optional
        As in `dot_product_attention_backward`.

    Returns
    -------
    dq, dk, dv : ndarray of float64
        Gradients with respect to `queries`, `keys` and `values`, in their shapes.
    dbias, dsink, dscale : ndarray of float64
        Only if asked for, as from `dot_product_attention_backward`.

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
    score = partial(Cosine, scale=scale, eps=eps)
    inputs = queries, keys, values, valid_lens
    function = "cosine_attention_backward"
    return attention_backward(function, score, grad_output, inputs, options, ScaledBackward)


def cosine_scores(
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    scale: ArrayLike = 1.0,
    eps: ArrayLike = 1e-8,
    softcap: ArrayLike | None = None,
) -> Array:
    """Scaled cosine of the angle between every query and every key.

    Parameters
    ----------
    queries, keys : array_like, shapes (..., M, D) and (..., N, D)
        Any leading axes, the same for both, or none.
    scale, eps : optional
        As in `cosine_attention`.
    softcap : float, optional
        As in `dot_product_scores`.

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
    return all_scores(partial(Cosine, scale=scale, eps=eps), queries, keys, softcap)


def cosine_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    scale: ArrayLike = 1.0,
    eps: ArrayLike = 1e-8,
    softcap: ArrayLike | None = None,
    return_grad_scale: bool = False,
) -> tuple[Array, ...]:
    """Gradients of `cosine_scores`.

    Parameters
    ----------
    grad_output : array_like, shape (..., M, N)
        Gradient of the loss with respect to the scores.
    queries, keys : array_like, shapes (..., M, D) and (..., N, D)
        As given to `cosine_scores`.
    scale : float or array_like, optional
        As given to `cosine_scores`.
    eps, softcap : float, optional
        As given to `cosine_scores`.
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
    cosine_scores : The function these are the gradients of.

    Examples
    --------
    >>> from attnext import reference
    >>> dq, dk = reference.cosine_scores_backward([[1.0]], [[2.0, 0.0]], [[3.0, 4.0]])
    >>> dq.round(3)
    array([[0. , 0.4]])
    """
    score = partial(Cosine, scale=scale, eps=eps)
    return all_scores_backward(score, grad_output, queries, keys, softcap, return_grad_scale)
