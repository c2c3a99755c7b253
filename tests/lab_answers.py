"""The chapter as students write it, and right: in NumPy by hand, in PyTorch as the book has it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

# ---- in NumPy, padding left out by -inf ----------------------------------------------------------


def np_sequence_mask(X: Any, valid_len: Any, value: float = 0) -> Any:
    X = X.copy()
    for row, length in zip(X, valid_len, strict=True):
        row[length:] = value
    return X


def np_masked_softmax(X: Any, valid_lens: Any) -> Any:
    keep = np.ones(X.shape, bool)
    if valid_lens is not None:
        lens = valid_lens[:, None] if valid_lens.ndim == 1 else valid_lens
        keep = keep & (np.arange(X.shape[-1]) < lens[..., None])
        keep |= ~keep.any(-1, keepdims=True)
        X = np.where((lens == 0)[..., None], 0.0, X)
    S = np.where(keep, X, -np.inf)
    E = np.exp(S - S.max(-1, keepdims=True))
    return E / E.sum(-1, keepdims=True)


def np_masked_softmax_backward(dweights: Any, weights: Any) -> Any:
    """One row after the other, by the Jacobian."""
    dX = np.zeros(weights.shape)
    for i in np.ndindex(*weights.shape[:-1]):
        p = weights[i]
        dX[i] = (np.diag(p) - np.outer(p, p)) @ dweights[i]
    return dX


def np_dot_product_scores(queries: Any, keys: Any) -> Any:
    return np.einsum("bmd,bnd->bmn", queries, keys) / np.sqrt(queries.shape[-1])


def np_dot_product_scores_backward(grad_output: Any, queries: Any, keys: Any) -> Any:
    c = 1 / np.sqrt(queries.shape[-1])
    dq = np.einsum("bmn,bnd->bmd", grad_output, keys) * c
    return [dq, np.einsum("bmn,bmd->bnd", grad_output, queries) * c]


def np_dot_product_attention(queries: Any, keys: Any, values: Any, valid_lens: Any = None) -> Any:
    return np_masked_softmax(np_dot_product_scores(queries, keys), valid_lens) @ values


def np_through_softmax(dO: Any, S: Any, values: Any, valid_lens: Any) -> Any:
    P = np_masked_softmax(S, valid_lens)
    dS = np_masked_softmax_backward(dO @ values.swapaxes(1, 2), P)
    if valid_lens is not None:
        lens = valid_lens[:, None] if valid_lens.ndim == 1 else valid_lens
        dS = dS * (np.arange(S.shape[-1]) < lens[..., None])
    return dS, P.swapaxes(1, 2) @ dO


def np_dot_product_attention_backward(
    grad_output: Any, queries: Any, keys: Any, values: Any, valid_lens: Any = None
) -> Any:
    S = np_dot_product_scores(queries, keys)
    dS, dv = np_through_softmax(grad_output, S, values, valid_lens)
    return (*np_dot_product_scores_backward(dS, queries, keys), dv)


def np_additive_scores(queries: Any, keys: Any, W_q: Any, W_k: Any, w_v: Any) -> Any:
    return np.tanh((queries @ W_q.T)[:, :, None] + (keys @ W_k.T)[:, None]) @ w_v


def np_additive_scores_backward(
    grad_output: Any, queries: Any, keys: Any, W_q: Any, W_k: Any, w_v: Any
) -> Any:
    """Entry by entry, query by query."""
    dq, dk, dW_q, dW_k, dw_v = (np.zeros(x.shape) for x in (queries, keys, W_q, W_k, w_v))
    for b, m in np.ndindex(*queries.shape[:2]):
        T = np.tanh(W_q @ queries[b, m] + keys[b] @ W_k.T)
        U = grad_output[b, m][:, None] * w_v * (1 - T**2)
        dq[b, m] = U.sum(0) @ W_q
        dk[b] += U @ W_k
        dW_q += np.outer(U.sum(0), queries[b, m])
        dW_k += U.T @ keys[b]
        dw_v += grad_output[b, m] @ T
    return dq, dk, dW_q, dW_k, dw_v


def np_additive_attention(
    queries: Any, keys: Any, values: Any, W_q: Any, W_k: Any, w_v: Any, valid_lens: Any = None
) -> Any:
    return np_masked_softmax(np_additive_scores(queries, keys, W_q, W_k, w_v), valid_lens) @ values


def np_additive_attention_backward(
    grad_output: Any,
    queries: Any,
    keys: Any,
    values: Any,
    W_q: Any,
    W_k: Any,
    w_v: Any,
    valid_lens: Any = None,
) -> Any:
    S = np_additive_scores(queries, keys, W_q, W_k, w_v)
    dS, dv = np_through_softmax(grad_output, S, values, valid_lens)
    dq, dk, *rest = np_additive_scores_backward(dS, queries, keys, W_q, W_k, w_v)
    return dq, dk, dv, *rest


def np_gaussian_kernel(queries: Any, keys: Any, sigma: float) -> Any:
    distance = np.linalg.norm(queries[:, None] - keys, axis=-1)
    K = np.exp(-((distance / sigma) ** 2) / 2)
    return K / K.sum(1, keepdims=True)


def np_nadaraya_watson(x: Any, x_train: Any, y_train: Any, sigma: float) -> Any:
    y = []
    for at in x:
        K = np.exp(-((at - x_train) ** 2) / (2 * sigma**2))
        y.append(float((K * y_train).sum() / K.sum()))
    return y


def np_leave_one_out(x: Any, y: Any) -> Any:
    n = len(x)
    others = ~np.eye(n, dtype=bool)
    return np.tile(x, (n, 1))[others].reshape(n, -1), np.tile(y, (n, 1))[others].reshape(n, -1)


def np_transpose_qkv(X: Any, num_heads: int) -> Any:
    return np.concatenate([np.stack(np.split(x, num_heads, axis=-1)) for x in X])


def np_transpose_output(X: Any, num_heads: int) -> Any:
    entries = X.reshape(-1, num_heads, *X.shape[1:])
    return np.stack([np.concatenate(list(heads), axis=-1) for heads in entries])


def np_positional_encoding(num_steps: int, num_hiddens: int) -> Any:
    P = np.zeros((num_steps, num_hiddens))
    for t, j in np.ndindex(*P.shape):
        angle = t / 10000 ** (2 * (j // 2) / num_hiddens)
        P[t, j] = math.sin(angle) if j % 2 == 0 else math.cos(angle)
    return P


# ---- in PyTorch, padding at -1e6, gradients by autograd ------------------------------------------


def pt_sequence_mask(X: Any, valid_len: Any, value: float = 0) -> Any:
    mask = torch.arange(X.size(1))[None, :] < valid_len[:, None]
    X = X.clone()
    X[~mask] = value
    return X


def pt_masked_softmax(X: Any, valid_lens: Any) -> Any:
    if valid_lens is None:
        return torch.softmax(X, dim=-1)
    shape = X.shape
    if valid_lens.dim() == 1:
        valid_lens = torch.repeat_interleave(valid_lens, shape[1])
    else:
        valid_lens = valid_lens.reshape(-1)
    X = pt_sequence_mask(X.reshape(-1, shape[-1]), valid_lens, value=-1e6)
    return torch.softmax(X.reshape(shape), dim=-1)


def pt_masked_softmax_backward(dweights: Any, weights: Any) -> Any:
    return torch._softmax_backward_data(dweights, weights, -1, torch.float32)


def pt_dot_product_scores(queries: Any, keys: Any) -> Any:
    return torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(queries.shape[-1])


def pt_dot_product_attention(queries: Any, keys: Any, values: Any, valid_lens: Any = None) -> Any:
    return torch.bmm(pt_masked_softmax(pt_dot_product_scores(queries, keys), valid_lens), values)


def pt_additive_scores(queries: Any, keys: Any, W_q: Any, W_k: Any, w_v: Any) -> Any:
    q = torch.nn.functional.linear(queries, W_q)
    k = torch.nn.functional.linear(keys, W_k)
    features = torch.tanh(q.unsqueeze(2) + k.unsqueeze(1))
    return torch.nn.functional.linear(features, w_v[None]).squeeze(-1)


def pt_additive_attention(
    queries: Any, keys: Any, values: Any, W_q: Any, W_k: Any, w_v: Any, valid_lens: Any = None
) -> Any:
    scores = pt_additive_scores(queries, keys, W_q, W_k, w_v)
    return torch.bmm(pt_masked_softmax(scores, valid_lens), values)


def by_autograd(forward: Any, arrays: int) -> Any:
    """The backward of a forward whose first so many arguments are differentiated."""

    def backward(grad_output: Any, *arguments: Any) -> Any:
        leaves = [x.clone().requires_grad_() for x in arguments[:arrays]]
        return torch.autograd.grad(forward(*leaves, *arguments[arrays:]), leaves, grad_output)

    return backward


def pt_gaussian_kernel(queries: Any, keys: Any, sigma: float) -> Any:
    return torch.softmax(-(torch.cdist(queries, keys) ** 2) / (2 * sigma**2), dim=1)


def pt_nadaraya_watson(x: Any, x_train: Any, y_train: Any, sigma: float) -> Any:
    return torch.softmax(-(((x[:, None] - x_train) / sigma) ** 2) / 2, dim=1) @ y_train


def pt_leave_one_out(x: Any, y: Any) -> Any:
    keep = (1 - torch.eye(len(x))).type(torch.bool)
    rows = [a.repeat((len(x), 1))[keep].reshape((len(x), -1)) for a in (x, y)]
    return tuple(rows)


def pt_transpose_qkv(X: Any, num_heads: int) -> Any:
    X = X.reshape(X.shape[0], X.shape[1], num_heads, -1).permute(0, 2, 1, 3)
    return X.reshape(-1, X.shape[2], X.shape[3])


def pt_transpose_output(X: Any, num_heads: int) -> Any:
    X = X.reshape(-1, num_heads, X.shape[1], X.shape[2]).permute(0, 2, 1, 3)
    return X.reshape(X.shape[0], X.shape[1], -1)


def pt_positional_encoding(num_steps: int, num_hiddens: int) -> Any:
    P = torch.zeros((num_steps, num_hiddens))
    X = torch.arange(num_steps, dtype=torch.float32).reshape(-1, 1) / torch.pow(
        10000, torch.arange(0, num_hiddens, 2, dtype=torch.float32) / num_hiddens
    )
    P[:, 0::2] = torch.sin(X)
    P[:, 1::2] = torch.cos(X)
    return P


pt_dot_product_scores_backward = by_autograd(pt_dot_product_scores, 2)
pt_dot_product_attention_backward = by_autograd(pt_dot_product_attention, 3)
pt_additive_scores_backward = by_autograd(pt_additive_scores, 5)
pt_additive_attention_backward = by_autograd(pt_additive_attention, 6)

ANSWERS = SimpleNamespace(
    numpy={n.removeprefix("np_"): f for n, f in globals().items() if n.startswith("np_")},
    torch={n.removeprefix("pt_"): f for n, f in globals().items() if n.startswith("pt_")},
)
