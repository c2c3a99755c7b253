"""Misconceptions about scores, kernels and pooling."""

from __future__ import annotations

import numpy as np

from attnext.lab.book import Array, Book
from attnext.lab.misconceptions import wrong

DOT = [
    wrong("no-scale", scale=lambda b, Q, K: 1.0),
    wrong("scale-by-d", scale=lambda b, Q, K: 1 / Q.shape[-1]),
    wrong("square-root-last", scale=lambda b, Q, K: 1 / (2 * Q.shape[-1])),
    wrong("scale-inside-out", scale=lambda b, Q, K: np.sqrt(Q.shape[-1])),
    wrong("scale-by-keys", scale=lambda b, Q, K: 1 / np.sqrt(K.shape[-2])),
    wrong("scale-by-queries", scale=lambda b, Q, K: 1 / np.sqrt(Q.shape[-2])),
    wrong("scale-by-batch", scale=lambda b, Q, K: 1 / np.sqrt(Q.shape[0])),
    wrong(
        "scale-after-softmax",
        dot_product_attention=lambda b, q, k, v, lens=None: (
            b.attend(q @ k.swapaxes(-1, -2), k, v, lens) / np.sqrt(q.shape[-1])
        ),
    ),
    wrong(
        "queries-and-keys-swapped",
        {"products": lambda b, Q, K: K @ Q.swapaxes(-1, -2)},
        {"combine": lambda b, A, C: A[:, None] + C[:, :, None]},
        {"squares": lambda b, Q, K: ((K[:, None] - Q[None]) ** 2).sum(-1)},
    ),
    wrong(
        "keys-reshaped", transpose_keys=lambda b, K: K.reshape(K.shape[0], K.shape[2], K.shape[1])
    ),
    wrong("keys-not-transposed", transpose_keys=lambda b, K: K),
    wrong(
        "cosine",
        {"dot_product_scores": lambda b, queries, keys: _cosines(queries, keys)},
        {"products": lambda b, Q, K: _cosines(Q, K)},
    ),
    wrong("mean-of-products", scale=lambda b, Q, K: Q.shape[-1] ** -1.5),
]

ADDITIVE = [
    wrong("no-tanh", activation=lambda b, F: F, activation_derivative=lambda b, F: 1.0),
    wrong(
        "tanh-too-late", activation=lambda b, F: F, project_to_scores=lambda b, F, w: np.tanh(F @ w)
    ),
    wrong("tanh-too-early", project=lambda b, X, W: np.tanh(X @ W.T), activation=lambda b, F: F),
    wrong(
        "sigmoid",
        activation=lambda b, F: 1 / (1 + np.exp(-F)),
        activation_derivative=lambda b, F: F * (1 - F),
    ),
    wrong(
        "relu", activation=lambda b, F: np.maximum(F, 0), activation_derivative=lambda b, F: F > 0
    ),
    wrong("matrices-swapped", order_matrices=lambda b, W_q, W_k: (W_k, W_q)),
    wrong(
        "one-matrix-for-both",
        {"order_matrices": lambda b, W_q, W_k: (W_q, W_q)},
        {"order_matrices": lambda b, W_q, W_k: (W_k, W_k)},
    ),
    wrong("matrices-not-transposed", project=lambda b, X, W: X @ W),
    wrong("product-of-projections", combine=lambda b, A, C: A[:, :, None] * C[:, None]),
    wrong(
        "difference-of-projections",
        {"combine": lambda b, A, C: A[:, :, None] - C[:, None]},
        {"combine": lambda b, A, C: C[:, None] - A[:, :, None]},
    ),
    wrong(
        "no-w_v",
        {"project_to_scores": lambda b, F, w: F.sum(-1)},
        {"project_to_scores": lambda b, F, w: F.mean(-1)},
    ),
    wrong("additive-scaled", project_to_scores=lambda b, F, w: F @ w / np.sqrt(F.shape[-1])),
]

KERNEL = [
    wrong("factor-inside-the-square", exponent=lambda b, s, sigma: -s / (2 * sigma) ** 2),
    wrong("squares-averaged", squares=lambda b, Q, K: ((Q[:, None] - K[None]) ** 2).mean(-1)),
    wrong("queries-tiled", nadaraya_watson=lambda b, x, xt, yt, sigma: _tiled(b, x, xt, yt, sigma)),
    wrong("no-half", exponent=lambda b, s, sigma: -s / sigma**2),
    wrong("sigma-not-squared", exponent=lambda b, s, sigma: -s / (2 * sigma)),
    wrong("sigma-inside-out", exponent=lambda b, s, sigma: -s * sigma**2 / 2),
    wrong("sigma-ignored", exponent=lambda b, s, sigma: -s / 2),
    wrong(
        "distance-not-squared",
        {"exponent": lambda b, s, sigma: -np.sqrt(s) / (2 * sigma**2)},
        {"exponent": lambda b, s, sigma: -np.sqrt(s) / sigma},
        {"exponent": lambda b, s, sigma: -np.sqrt(s) / (2 * sigma)},
    ),
    wrong("far-is-large", exponent=lambda b, s, sigma: s / (2 * sigma**2)),
    wrong(
        "density-not-normalised",
        gaussian_kernel=lambda b, q, k, sigma: (
            np.exp(b.exponent(b.squares(q, k), sigma)) / (sigma * np.sqrt(2 * np.pi))
        ),
    ),
    wrong(
        "divided-by-the-number",
        gaussian_kernel=lambda b, q, k, sigma: np.exp(b.exponent(b.squares(q, k), sigma)) / len(k),
    ),
    wrong("first-feature-only", squares=lambda b, Q, K: (Q[:, :1] - K[:, 0]) ** 2),
    wrong("square-of-the-sum", squares=lambda b, Q, K: (Q[:, None] - K[None]).sum(-1) ** 2),
    wrong("product-for-distance", exponent=lambda b, s, sigma: s, squares=lambda b, Q, K: Q @ K.T),
]

POOLING = [
    wrong(
        "softmax-in-scores",
        {
            "dot_product_scores": lambda b, queries, keys: b.softmax(
                Book.dot_product_scores(b, queries, keys)
            )
        },
        {"project_to_scores": lambda b, F, w: b.softmax(F @ w)},
    ),
    wrong("keys-as-values", pool=lambda b, P, K, V: P @ K),
    wrong(
        "average-pooling",
        pool=lambda b, P, K, V: np.broadcast_to(
            V.mean(-2, keepdims=True), (*P.shape[:-1], V.shape[-1])
        ),
    ),
    wrong("weights-transposed", pool=lambda b, P, K, V: P.swapaxes(-1, -2) @ V),
    wrong("divided-by-keys", pool=lambda b, P, K, V: P @ V / V.shape[-2]),
    wrong(
        "weights-returned",
        {"attend": lambda b, S, K, V, lens: b.masked_softmax(S, lens)},
        {
            "nadaraya_watson": lambda b, x, xt, yt, sigma: b.gaussian_kernel(
                x[:, None], xt[:, None], sigma
            )
        },
    ),
    wrong(
        "kernel-sum-without-division",
        nadaraya_watson=lambda b, x, xt, yt, sigma: (
            np.exp(b.exponent(b.squares(x[:, None], xt[:, None]), sigma)) @ yt
        ),
    ),
]


def _tiled(book: Book, x: Array, x_train: Array, y_train: Array, sigma: float) -> Array:
    """PyTorch's x.repeat(n).reshape(-1, n), which repeats the whole of x, not each element."""
    n = len(x_train)
    squares = (np.tile(x, n).reshape(-1, n) - x_train) ** 2
    y: Array = book.softmax(book.exponent(squares, sigma)) @ y_train
    return y


def _cosines(Q: Array, K: Array) -> Array:
    Q, K = (X / np.linalg.norm(X, axis=-1, keepdims=True) for X in (Q, K))
    return Q @ K.swapaxes(-1, -2)
