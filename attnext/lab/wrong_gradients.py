"""Misconceptions about backward passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnext.lab.book import Array, Book
from attnext.lab.misconceptions import wrong

_ATTENTION = "dot_product_attention_backward"
_ORDERS = (2, 1, 0), (2, 0, 1), (0, 2, 1), (1, 2, 0)  # of dq, dk, dv
_BACKWARDS = (
    "masked_softmax_backward",
    "dot_product_scores_backward",
    "dot_product_attention_backward",
    "additive_scores_backward",
    "additive_attention_backward",
)


def _in_order(book: Book, arguments: Any, order: tuple[int, ...]) -> tuple[Array, ...]:
    """Return the gradients of dot-product attention in another order."""
    gradients = Book.dot_product_attention_backward(book, *arguments)
    return tuple(gradients[i] for i in order)


GRADIENTS = [
    wrong("no-row-dot", row_dot=lambda b, dP, P: 0),
    wrong("row-sum-without-weights", row_dot=lambda b, dP, P: dP.sum(-1, keepdims=True)),
    wrong(
        "row-mean",
        {"row_dot": lambda b, dP, P: (P * dP).mean(-1, keepdims=True)},
        {"row_dot": lambda b, dP, P: dP.mean(-1, keepdims=True)},
    ),
    wrong("row-dot-over-queries", row_dot=lambda b, dP, P: (P * dP).sum(-2, keepdims=True)),
    wrong("row-dot-over-all", row_dot=lambda b, dP, P: (P * dP).sum()),
    wrong("diagonal-of-the-jacobian", masked_softmax_backward=lambda b, dP, P: dP * P * (1 - P)),
    wrong("softmax-not-gone-through", masked_softmax_backward=lambda b, dP, P: dP),
    wrong(
        "factor-of-weights-forgotten",
        masked_softmax_backward=lambda b, dP, P: dP - (P * dP).sum(-1, keepdims=True),
    ),
    wrong(
        "sign",
        {"masked_softmax_backward": lambda b, dP, P: -P * (dP - (P * dP).sum(-1)[..., None])},
        {"masked_softmax_backward": lambda b, dP, P: P * (dP + (P * dP).sum(-1)[..., None])},
        {"backward_scale": lambda b, Q, K: -b.scale(Q, K)},
        {"activation_derivative": lambda b, F: F**2 - 1},
    ),
    wrong(
        "scale-not-gone-through",
        {"backward_scale": lambda b, Q, K: 1.0},
        {"key_gradient": lambda b, dS, Q: Book.key_gradient(b, dS, Q) / b.scale(Q, Q)},
        {"query_gradient": lambda b, dS, K: Book.query_gradient(b, dS, K) / b.scale(K, K)},
    ),
    wrong("scale-divided-out", backward_scale=lambda b, Q, K: 1 / b.scale(Q, K)),
    wrong("scale-twice-on-the-way-back", backward_scale=lambda b, Q, K: b.scale(Q, K) ** 2),
    wrong("dS-not-transposed", key_gradient=lambda b, dS, Q: dS @ Q),
    wrong("dS-transposed-for-queries", query_gradient=lambda b, dS, K: dS.swapaxes(-1, -2) @ K),
    wrong("weights-not-transposed", value_gradient=lambda b, P, dO: P @ dO),
    wrong("values-not-transposed", weight_gradient=lambda b, dO, V: dO @ V),
    wrong(
        "values-get-everything",
        value_gradient=lambda b, P, dO: np.broadcast_to(
            dO.sum(-2, keepdims=True), (*P.shape[:-2], P.shape[-1], dO.shape[-1])
        ),
    ),
    wrong(
        "wrong-order",
        {"order_gradients": lambda b, g: (g[1], g[0], *g[2:])},
        *({_ATTENTION: lambda b, *a, order=order: _in_order(b, a, order)} for order in _ORDERS),
    ),
    wrong(
        "grad-output-ignored",
        *(
            {name: lambda b, g, *a, name=name: getattr(Book, name)(b, np.ones(g.shape), *a)}
            for name in _BACKWARDS
        ),
    ),
    wrong("gradient-of-padding", mask_gradient=lambda b, dS, live: dS),
    wrong("no-slope-of-tanh", activation_derivative=lambda b, F: 1.0),
    wrong("slope-of-tanh-not-squared", activation_derivative=lambda b, F: 1 - F),
    wrong("slope-of-a-sigmoid", activation_derivative=lambda b, F: F * (1 - F)),
    wrong("slope-at-the-tanh", activation_derivative=lambda b, F: 1 - np.tanh(F) ** 2),
    wrong(
        "w_v-not-gone-through", feature_gradient=lambda b, dS, w: dS[..., None] * np.ones_like(w)
    ),
    wrong(
        "w_v-before-the-tanh",
        w_v_gradient=lambda b, dS, F: np.einsum("bmn,bmnh->h", dS, np.arctanh(F)),
    ),
    wrong(
        "matrices-averaged-over-batch",
        matrix_gradient=lambda b, dA, X: np.einsum("bmh,bmd->hd", dA, X) / len(X),
    ),
    wrong(
        "matrices-of-each-entry", matrix_gradient=lambda b, dA, X: np.einsum("bmh,bmd->bhd", dA, X)
    ),
    wrong("matrices-of-the-last-entry", matrix_gradient=lambda b, dA, X: dA[-1].T @ X[-1]),
    wrong(
        "gradient-of-matrix-transposed",
        matrix_gradient=lambda b, dA, X: np.einsum("bmh,bmd->dh", dA, X),
    ),
]
