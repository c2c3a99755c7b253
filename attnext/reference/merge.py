"""Merge attentions over disjoint sets of keys into the attention over all keys."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .arguments import Array, as_array, as_array_or_zeros
from .options import OTHER
from .softmax import softmax, softmax_backward


@OTHER.spelled_out
@np.errstate(all="ignore")
def merge_attention(outputs: ArrayLike, lses: ArrayLike) -> tuple[Array, Array]:
    """Merge attentions over disjoint sets of keys into the attention over all keys.

    Notes
    -----
    ``lse = log(sum_p exp(lses[p]))`` and ``output = sum_p exp(lses[p] - lse) * outputs[p]``, as
    FlashAttention merges its blocks of keys (Dao et al. 2022, section 3.1).

    Examples
    --------
    >>> from attnext import reference
    >>> q, k, v = [[1.0]], [[1.0], [2.0], [3.0]], [[1.0], [2.0], [4.0]]
    >>> first = reference.dot_product_attention(q, k[:2], v[:2], return_lse=True)
    >>> other = reference.dot_product_attention(q, k[2:], v[2:], return_lse=True)
    >>> output, lse = reference.merge_attention(*zip(first, other))
    >>> output.round(4), reference.dot_product_attention(q, k, v).round(4)
    (array([[3.2405]]), array([[3.2405]]))
    """
    parts, part_lses = _as_parts(outputs, lses)
    output = np.zeros(parts.shape[1:])
    lse = np.full(part_lses.shape[1:], -np.inf)
    for row in np.ndindex(lse.shape):
        o, s = parts[:, *row], part_lses[:, *row]  # (P, Dv), (P,)
        live = s != -np.inf
        if live.any():
            # merging is attention again: each part has its lse as score and its output as value
            w, lse[row] = softmax(s[live])
            output[row] = w @ o[live]
    return output, lse


@OTHER.spelled_out
@np.errstate(all="ignore")
def merge_attention_backward(
    grad_output: ArrayLike,
    outputs: ArrayLike,
    lses: ArrayLike,
    *,
    grad_lse: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Gradients of `merge_attention`.

    Notes
    -----
    With ``w[p] = exp(lses[p] - lse)`` and g = `grad_output`: ``d_outputs[p] = w[p] * g`` and
    ``d_lses[p] = w[p] * (g . (outputs[p] - output) + grad_lse)``.

    Examples
    --------
    >>> from attnext import reference
    >>> outputs, lses = [[[1.0]], [[5.0]]], [[0.0], [0.0]]
    >>> d_outputs, d_lses = reference.merge_attention_backward([[1.0]], outputs, lses)
    >>> d_lses
    array([[-1.],
           [ 1.]])
    """
    parts, part_lses = _as_parts(outputs, lses)
    d_output = as_array("grad_output", grad_output, parts.shape[1:])
    d_lse = as_array_or_zeros("grad_lse", grad_lse, part_lses.shape[1:])
    d_outputs, d_lses = np.zeros_like(parts), np.zeros_like(part_lses)
    for row in np.ndindex(d_lse.shape):
        o, s = parts[:, *row], part_lses[:, *row]
        live = s != -np.inf
        if live.any():
            w, _ = softmax(s[live])
            # forward was: output = w @ o
            d_outputs[live, *row] = np.outer(w, d_output[row])
            d_w = o[live] @ d_output[row]
            # forward was: w, lse = softmax(s)
            d_lses[live, *row] = softmax_backward(d_w, d_lse[row], w)
    return d_outputs, d_lses


def _as_parts(outputs: ArrayLike, lses: ArrayLike) -> tuple[Array, Array]:
    """Return outputs (P, ..., M, Dv) and lses (P, ..., M); lists and tuples are stacked."""
    o, s = _stack("outputs", outputs), _stack("lses", lses)
    if o.ndim < 3:
        expected = "three axes or more: (P, ..., M, Dv)"
        raise ValueError(f"outputs has shape {o.shape}, expected {expected}")
    if len(o) == 0:
        raise ValueError(f"outputs has shape {o.shape}, expected at least one part")
    return o, as_array("lses", s, o.shape[:-1])


def _stack(name: str, parts: ArrayLike) -> Array:
    if not isinstance(parts, list | tuple) or len(parts) == 0:
        return as_array(name, parts)
    shape = as_array(f"{name}[0]", parts[0]).shape
    return np.stack([as_array(f"{name}[{p}]", part, shape) for p, part in enumerate(parts)])
