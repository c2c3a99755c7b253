"""Gaussian attention: score(q, k) = -(w * |q - k|)^2 / 2"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Array, as_finite, as_positive, check_same_features
from .attention import (
    Attended,
    Score,
    all_scores,
    all_scores_backward,
    attention,
    attention_backward,
)
from .options import Backward, Forward

if TYPE_CHECKING:
    from .options import BackwardOptions, ForwardOptions


class Gaussian(Score):
    """score(q, k) = -(w * |q - k|)^2 / 2"""

    def __init__(self, q: Array, k: Array, w: ArrayLike | None, sigma: ArrayLike | None) -> None:
        check_same_features(q, k)
        if w is not None and sigma is not None:
            raise ValueError("w and sigma are both given, expected one of them: w = 1 / sigma")
        if sigma is None:
            self.w = 1.0 if w is None else as_finite("w", w, one_element=True)
        else:
            self.w = 1 / as_positive("sigma", sigma, one_element=True)
        self.parameters: dict[str, Array | None] = {"w": np.array(self.w)}

    def forward(self, q: Array, k: Array) -> Array:
        s: Array = -np.sum((self.w * (q - k)) ** 2, axis=1) / 2
        return s

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        # forward was: s_j = -w^2 / 2 * sum_d (q_d - k_jd)^2
        difference = q - k  # (n, D)
        d_difference = -(self.w**2) * d_s[:, None] * difference  # (n, D)
        d_w = -self.w * np.sum(d_s * np.sum(difference**2, axis=1))
        return np.sum(d_difference, axis=0), -d_difference, {"w": d_w}


@Forward.spelled_out
def gaussian_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    w: ArrayLike | None = None,
    sigma: ArrayLike | None = None,
    **options: Unpack[ForwardOptions],
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
    **options : optional
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
    (1964) and Watson (1964) with a Gaussian kernel (Dive into Deep Learning: 1.0 (en) 11.2, 2nd ed.
    (zh) 10.2).

    Examples
    --------
    >>> from attnext import reference
    >>> x, y = [[0.0], [1.0], [2.0]], [[5.0], [2.0], [4.0]]
    >>> reference.gaussian_attention([[1.5]], x, y, sigma=0.5).round(3)
    array([[3.018]])
    """
    score = partial(Gaussian, w=w, sigma=sigma)
    inputs = queries, keys, values, valid_lens
    return attention("gaussian_attention", score, inputs, options)


@Backward.spelled_out
def gaussian_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    w: ArrayLike | None = None,
    sigma: ArrayLike | None = None,
    **options: Unpack[BackwardOptions],
) -> tuple[Any, ...]:
    """Gradients of `gaussian_attention`.

    Parameters
    ----------
    grad_output : array_like, shape (..., M, Dv)
        Gradient of the loss with respect to the output.
    queries, keys, values : array_like, shapes (..., M, D), (..., N, D) and (..., N, Dv)
        As given to `gaussian_attention`.
    valid_lens, w, sigma : optional
        As given to `gaussian_attention`.
    **options : optional
        As in `dot_product_attention_backward`.

    Returns
    -------
    dq, dk, dv : ndarray of float64
        Gradients with respect to `queries`, `keys` and `values`, in their shapes.
    dw : float64
        Gradient with respect to ``w = 1 / sigma``, whichever of the two was given.
    dbias, dsink : ndarray of float64
        Only if asked for, as from `dot_product_attention_backward`.

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
    score = partial(Gaussian, w=w, sigma=sigma)
    inputs = queries, keys, values, valid_lens
    return attention_backward("gaussian_attention_backward", score, grad_output, inputs, options)


def gaussian_scores(
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    w: ArrayLike | None = None,
    sigma: ArrayLike | None = None,
    softcap: ArrayLike | None = None,
) -> Array:
    """Logarithm of a Gaussian kernel of the distance of every query to every key.

    Parameters
    ----------
    queries, keys : array_like, shapes (..., M, D) and (..., N, D)
        Any leading axes, the same for both, or none.
    w, sigma : float, optional
        As in `gaussian_attention`.
    softcap : float, optional
        As in `dot_product_scores`.

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
    return all_scores(partial(Gaussian, w=w, sigma=sigma), queries, keys, softcap)


def gaussian_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    w: ArrayLike | None = None,
    sigma: ArrayLike | None = None,
    softcap: ArrayLike | None = None,
) -> tuple[Array, Array, np.float64]:
    """Gradients of `gaussian_scores`.

    Parameters
    ----------
    grad_output : array_like, shape (..., M, N)
        Gradient of the loss with respect to the scores.
    queries, keys : array_like, shapes (..., M, D) and (..., N, D)
        As given to `gaussian_scores`.
    w, sigma, softcap : float, optional
        As given to `gaussian_scores`.

    Returns
    -------
    dq, dk : ndarray of float64
        Gradients with respect to `queries` and `keys`, in their shapes.
    dw : float64
        Gradient with respect to ``w = 1 / sigma``, whichever of the two was given.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    See Also
    --------
    gaussian_scores : The function these are the gradients of.

    Examples
    --------
    >>> from attnext import reference
    >>> dq, dk, dw = reference.gaussian_scores_backward([[1]], [[0, 0]], [[3, 4]], w=2)
    >>> dq
    array([[12., 16.]])
    >>> float(dw)
    -50.0
    """
    score = partial(Gaussian, w=w, sigma=sigma)
    dq, dk, dw = all_scores_backward(score, grad_output, queries, keys, softcap)
    return dq, dk, dw
