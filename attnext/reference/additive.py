"""Additive attention: score(q, k) = w_v . tanh(W_q q + W_k k + b_h)"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Array, as_array, as_array_or_zeros, as_inputs, as_queries_and_keys
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
from .scores import Additive


class AdditiveGradients(NamedTuple):
    """Gradients of `additive_attention`, each in the shape of what it belongs to.

    Parameters
    ----------
    queries, keys, values, W_q, W_k, w_v : ndarray of float64
        Gradients with respect to these.
    b_h : ndarray of float64 or None
        Gradient with respect to the bias; None where none was given.
    """

    queries: Array
    keys: Array
    values: Array
    W_q: Array
    W_k: Array
    w_v: Array
    b_h: Array | None


def additive_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    b_h: ArrayLike | None = None,
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
    """Pool values by the softmax of additive (Bahdanau) scores of queries and keys.

    Parameters
    ----------
    queries, keys, values : array_like, shapes (..., M, Dq), (..., N, Dk) and (..., N, Dv)
        Any leading axes (batch, heads), the same for all three, or none.
    W_q, W_k : array_like, shapes (H, Dq) and (H, Dk)
        Projections of queries and keys to H hidden units, in the layout of torch.nn.Linear.
    w_v : array_like, shape (H,) or (1, H)
        Weight of each hidden unit in the score.
    valid_lens : None, int or array_like of integers, optional
        As in `dot_product_attention`.
    b_h : array_like, shape (H,), optional
        Bias of the hidden units.
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
    ``score(q, k) = w_v . tanh(W_q q + W_k k + b_h)`` (Bahdanau, Cho and Bengio 2015, "Neural
    machine translation by jointly learning to align and translate", appendix A.1.2).

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[1.0]], [[-1.0], [0.0]], [[10.0], [20.0]]
    >>> reference.additive_attention(q, k, v, [[0.5]], [[0.5]], [2.0]).round(4)
    array([[17.159]])
    """
    q, k, v = as_inputs(queries, keys, values, enable_gqa)
    score = _additive_score(q, k, W_q, W_k, w_v, b_h)
    masks = Masks(valid_lens, mask, bias, causal, causal_offset, window)
    dropout = Dropout(dropout_p, seed, dropout_mask)
    pairs = all_pairs(q, k, masks, dropout, empty_rows)
    return attention(score, q, k, v, pairs, return_weights, return_lse, out)


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
    b_h: ArrayLike | None = None,
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
) -> Any:
    """Gradients of `additive_attention`.

    Parameters
    ----------
    grad_output : array_like, shape (..., M, Dv)
        Gradient of the loss with respect to the output.
    queries, keys, values : array_like, shapes (..., M, Dq), (..., N, Dk) and (..., N, Dv)
        As given to `additive_attention`.
    W_q, W_k, w_v : array_like, shapes (H, Dq), (H, Dk) and (H,) or (1, H)
        As given to `additive_attention`.
    valid_lens, b_h, mask, bias, causal, causal_offset, window, enable_gqa : optional
        As given to `additive_attention`.
    dropout_p, seed, dropout_mask, empty_rows : optional
        As given to `additive_attention`.
    grad_weights, grad_lse, weights, output, lse, return_grad_bias : optional
        As in `dot_product_attention_backward`.

    Returns
    -------
    gradients : AdditiveGradients
        A named tuple of the gradients with respect to `queries`, `keys`, `values`, `W_q`, `W_k`,
        `w_v` and `b_h`, each in the shape of what it belongs to; `b_h` is None if none was given.
    dbias : ndarray of float64
        Only with `return_grad_bias`, as from `dot_product_attention_backward`.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    Notes
    -----
    With ``a = W_q q + W_k k + b_h`` and dS the gradient of the scores, ``da = dS * w_v *
    (1 - tanh(a)**2)``; its sum over the keys flows to the query, its sum over the queries to the
    key, and its sum over all pairs to `b_h`.

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[0.0]], [[0.0], [0.0]], [[1.0], [3.0]]
    >>> d = reference.additive_attention_backward([[1.0]], q, k, v, [[1.0]], [[1.0]], [2.0])
    >>> d.keys
    array([[-1.],
           [ 1.]])
    """
    q, k, v = as_inputs(queries, keys, values, enable_gqa)
    score = _additive_score(q, k, W_q, W_k, w_v, b_h)
    masks = Masks(valid_lens, mask, bias, causal, causal_offset, window)
    dropout = Dropout(dropout_p, seed, dropout_mask)
    pairs = all_pairs(q, k, masks, dropout, empty_rows)
    d = attention_backward(
        grad_output, score, q, k, v, pairs, grad_weights, grad_lse, weights, output, lse
    )
    d_of = d.parameters
    d_w_v = d_of["w_v"].reshape(np.shape(w_v))  # (H,) or (1, H), as it came
    d_b_h = None if b_h is None else d_of["b_h"]
    gradients = AdditiveGradients(
        d.queries, d.keys, d.values, d_of["W_q"], d_of["W_k"], d_w_v, d_b_h
    )
    d_bias = bias_gradient(d, bias, return_grad_bias)
    return (gradients, *d_bias) if d_bias else gradients


def additive_scores(
    queries: ArrayLike,
    keys: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    *,
    b_h: ArrayLike | None = None,
) -> Array:
    """Additive (Bahdanau) score of every query with every key.

    Parameters
    ----------
    queries, keys : array_like, shapes (..., M, Dq) and (..., N, Dk)
        Any leading axes, the same for both, or none.
    W_q, W_k, w_v : array_like, shapes (H, Dq), (H, Dk) and (H,) or (1, H)
        As in `additive_attention`.
    b_h : array_like, shape (H,), optional
        Bias of the hidden units.

    Returns
    -------
    scores : ndarray of float64, shape (..., M, N)
        ``w_v . tanh(W_q q + W_k k + b_h)`` of every pair.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    Notes
    -----
    The score of Bahdanau, Cho and Bengio (2015), appendix A.1.2.

    Examples
    --------
    >>> from attnext import reference
    >>> reference.additive_scores([[1.0]], [[-1.0], [0.0]], [[0.5]], [[0.5]], [2.0]).round(4)
    array([[0.    , 0.9242]])
    """
    q, k = as_queries_and_keys(queries, keys)
    return all_scores(_additive_score(q, k, W_q, W_k, w_v, b_h), q, k)


def _additive_score(
    q: Array, k: Array, W_q: ArrayLike, W_k: ArrayLike, w_v: ArrayLike, b_h: ArrayLike | None
) -> Additive:
    Wq = as_array("W_q", W_q, ("H", q.shape[-1]))
    H = Wq.shape[0]
    Wk = as_array("W_k", W_k, (H, k.shape[-1]))
    wv = as_array("w_v", w_v)
    if wv.shape not in [(H,), (1, H)]:
        raise ValueError(f"w_v has shape {wv.shape}, expected {(H,)} or {(1, H)}")
    return Additive(Wq, Wk, wv.reshape(H), as_array_or_zeros("b_h", b_h, (H,)))
