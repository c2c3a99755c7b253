"""Gaussian attention: score(q, k) = -(w * |q - k|)^2 / 2"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Array, as_finite, as_positive, check_same_features
from .attention import Attended, all_scores, all_scores_backward, attention, attention_backward
from .options import BACKWARD, FORWARD, SCORES, SCORES_BACKWARD, Options
from .score import Score

if TYPE_CHECKING:
    from .._options import GaussianBackward, GaussianScores
    from .options import GaussianAttention


class Gaussian(Score):
    """score(q, k) = -(w * |q - k|)^2 / 2"""

    def __init__(self, q: Array, k: Array, o: Options) -> None:
        check_same_features(q, k)
        w, sigma = o.w, o.sigma
        if w is not None and sigma is not None:
            raise ValueError("w and sigma are both given, expected only one because w = 1 / sigma")
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


@FORWARD.spelled_out
def gaussian_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    **options: Unpack[GaussianAttention],
) -> Attended:
    """Pool values by a Gaussian kernel of the distance between queries and keys.

    Notes
    -----
    ``score(q, k) = -(w * |q - k|)**2 / 2``. The output is then the kernel regression of Nadaraya
    (1964) and Watson (1964) with a Gaussian kernel (Dive into Deep Learning, 11.2 in English, 10.2
    in Chinese).

    Examples
    --------
    >>> from attnext import reference
    >>> x, y = [[0.0], [1.0], [2.0]], [[5.0], [2.0], [4.0]]
    >>> reference.gaussian_attention([[1.5]], x, y, sigma=0.5).round(3)
    array([[3.018]])
    """
    inputs = queries, keys, values, valid_lens
    return attention("gaussian_attention", Gaussian, inputs, options)


@BACKWARD.spelled_out
def gaussian_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    **options: Unpack[GaussianBackward],
) -> tuple[Any, ...]:
    """Gradients of `gaussian_attention`.

    Notes
    -----
    Let dS be the gradient of the scores. Then ``dq = -w**2 * sum dS (q - k)``, summed over the
    keys; ``dk = w**2 * sum dS (q - k)``, summed over the queries; and ``dw = -w * sum dS
    |q - k|**2``, summed over all pairs.

    Examples
    --------
    >>> from attnext import reference
    >>> x, y = [[-1.0], [1.0]], [[0.0], [4.0]]
    >>> dq, dk, dv, dw = reference.gaussian_attention_backward([[1.0]], [[0.0]], x, y, w=0.5)
    >>> dq
    array([[0.5]])
    """
    inputs = queries, keys, values, valid_lens
    return attention_backward("gaussian_attention_backward", Gaussian, grad_output, inputs, options)


@SCORES.spelled_out
def gaussian_scores(
    queries: ArrayLike, keys: ArrayLike, **options: Unpack[GaussianScores]
) -> Array:
    """Logarithm of a Gaussian kernel of the distance between every query and every key.

    Notes
    -----
    The constant factor of the normal density is omitted because softmax cancels it.

    Examples
    --------
    >>> from attnext import reference
    >>> reference.gaussian_scores([[0.0, 0.0]], [[0.0, 2.0], [3.0, 4.0]])
    array([[ -2. , -12.5]])
    """
    return all_scores("gaussian_scores", Gaussian, queries, keys, options)


@SCORES_BACKWARD.spelled_out
def gaussian_scores_backward(
    grad_output: ArrayLike, queries: ArrayLike, keys: ArrayLike, **options: Unpack[GaussianScores]
) -> tuple[Array, Array, np.float64]:
    """Gradients of `gaussian_scores`.

    Examples
    --------
    >>> from attnext import reference
    >>> dq, dk, dw = reference.gaussian_scores_backward([[1]], [[0, 0]], [[3, 4]], w=2)
    >>> dq
    array([[12., 16.]])
    >>> float(dw)
    -50.0
    """
    function = "gaussian_scores_backward"
    dq, dk, dw = all_scores_backward(function, Gaussian, grad_output, queries, keys, options)
    return dq, dk, dw
