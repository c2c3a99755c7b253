"""The functions of the chapter, divided into steps so that a misconception can replace a step.

Every step is a method. A misconception is this class with one or two steps replaced, so every
function that uses the step, forward or backward, makes the mistake. All steps are NumPy code in
float64 for batches, (B, M, N). A test compares the right steps with `attnext.reference`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


class Book:
    """The right steps."""

    # ---- lengths and masks -----------------------------------------------------------------------

    def lengths_of_queries(self, lens: Array, M: int) -> Array:
        """Return a length for each query, (B, M), from lengths of samples, (B,), or of queries."""
        return np.repeat(lens, M).reshape(-1, M) if lens.ndim == 1 else lens

    def is_valid(self, positions: Array, lens: Array) -> Array:
        """Return True at the positions that are not masked."""
        return positions < lens

    def unmasked(self, S: Array, lens: Array | None) -> Array:
        """Return True for each pair that is not masked, in the shape of the scores."""
        if lens is None:
            return np.ones(S.shape, bool)
        return self.is_valid(
            np.arange(S.shape[-1]), self.lengths_of_queries(lens, S.shape[1])[..., None]
        )

    def mask_scores(self, S: Array, live: Array) -> Array:
        """Return the scores with -inf where they are masked."""
        return np.where(live, S, -np.inf)

    def sequence_axis(self, X: Array) -> int:
        """Return the axis of the positions of a sequence."""
        return 1

    def fill_value(self, X: Array, value: float) -> Any:
        """Return the value that padding is filled with."""
        return value

    def sequence_mask(self, X: Array, valid_len: Array, value: float = 0) -> Array:
        axis = self.sequence_axis(X)
        others = tuple(a for a in range(1, X.ndim) if a != axis)
        keep = self.is_valid(np.arange(X.shape[axis]), valid_len[:, None])
        return np.where(np.expand_dims(keep, others), X, self.fill_value(X, value))

    # ---- softmax ---------------------------------------------------------------------------------

    def maximum(self, S: Array) -> Array:
        """Return the number that is subtracted before the exponential: the maximum of the row."""
        largest: Array = S.max(-1, keepdims=True)
        return largest

    def exponential(self, S: Array) -> Array:
        return np.exp(S)

    def total(self, E: Array) -> Array:
        """Return the divisor of the exponentials: the sum of the row."""
        total: Array = E.sum(-1, keepdims=True)
        return total

    def softmax(self, S: Array) -> Array:
        E = self.exponential(S - self.maximum(S))
        return E / self.total(E)

    def fill_empty_rows(self, P: Array, live: Array) -> Array:
        """Return the weights, with 1/N in rows of length 0."""
        return np.where(live.any(-1, keepdims=True), P, 1 / P.shape[-1])

    def finish(self, P: Array, live: Array) -> Array:
        """Return the weights as the softmax gives them: there is no step after it."""
        return P

    def masked_softmax(self, X: Array, valid_lens: Array | None) -> Array:
        live = self.unmasked(X, valid_lens)
        return self.finish(
            self.fill_empty_rows(self.softmax(self.mask_scores(X, live)), live), live
        )

    # ---- scores ----------------------------------------------------------------------------------

    def transpose_keys(self, K: Array) -> Array:
        return K.swapaxes(-1, -2)

    def products(self, Q: Array, K: Array) -> Array:
        return Q @ self.transpose_keys(K)

    def scale(self, Q: Array, K: Array) -> float:
        return 1 / float(np.sqrt(Q.shape[-1]))

    def dot_product_scores(self, queries: Array, keys: Array) -> Array:
        return self.products(queries, keys) * self.scale(queries, keys)

    def order_matrices(self, W_q: Array, W_k: Array) -> tuple[Array, Array]:
        """Return the matrix for the queries, then the matrix for the keys."""
        return W_q, W_k

    def project(self, X: Array, W: Array) -> Array:
        return X @ W.T

    def combine(self, A: Array, C: Array) -> Array:
        """Add the projections of every query and every key: (B, M, N, H)."""
        return A[:, :, None] + C[:, None]

    def activation(self, F: Array) -> Array:
        return np.tanh(F)

    def features(self, Q: Array, K: Array, W_q: Array, W_k: Array) -> Array:
        W_q, W_k = self.order_matrices(W_q, W_k)
        return self.activation(self.combine(self.project(Q, W_q), self.project(K, W_k)))

    def project_to_scores(self, F: Array, w_v: Array) -> Array:
        """Return the score of each pair from its hidden units."""
        return F @ w_v

    def additive_scores(
        self, queries: Array, keys: Array, W_q: Array, W_k: Array, w_v: Array
    ) -> Array:
        return self.project_to_scores(self.features(queries, keys, W_q, W_k), w_v)

    def squares(self, Q: Array, K: Array) -> Array:
        """Return the squared distances (M, N) of queries (M, D) and keys (N, D)."""
        squares: Array = ((Q[:, None] - K[None]) ** 2).sum(-1)
        return squares

    def exponent(self, squares: Array, sigma: float) -> Array:
        return -squares / (2 * sigma**2)

    def gaussian_kernel(self, queries: Array, keys: Array, sigma: float) -> Array:
        return self.softmax(self.exponent(self.squares(queries, keys), sigma))

    # ---- pooling ---------------------------------------------------------------------------------

    def pool(self, P: Array, K: Array, V: Array) -> Array:
        return P @ V

    def attend(self, S: Array, K: Array, V: Array, lens: Array | None) -> Array:
        return self.pool(self.masked_softmax(S, lens), K, V)

    def dot_product_attention(
        self, queries: Array, keys: Array, values: Array, valid_lens: Array | None = None
    ) -> Array:
        return self.attend(self.dot_product_scores(queries, keys), keys, values, valid_lens)

    def additive_attention(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        W_q: Array,
        W_k: Array,
        w_v: Array,
        valid_lens: Array | None = None,
    ) -> Array:
        scores = self.additive_scores(queries, keys, W_q, W_k, w_v)
        return self.attend(scores, keys, values, valid_lens)

    def nadaraya_watson(self, x: Array, x_train: Array, y_train: Array, sigma: float) -> Array:
        P = self.gaussian_kernel(x[:, None], x_train[:, None], sigma)
        return self.pool(P, x_train[:, None], y_train[:, None])[:, 0]

    # ---- backward --------------------------------------------------------------------------------

    def row_dot(self, dP: Array, P: Array) -> Array:
        """Return sum(P * dP) of each row: the gradient of the division by the row's sum."""
        dot: Array = (P * dP).sum(-1, keepdims=True)
        return dot

    def masked_softmax_backward(self, dweights: Array, weights: Array) -> Array:
        dX: Array = weights * (dweights - self.row_dot(dweights, weights))
        return dX

    def mask_gradient(self, dS: Array, live: Array) -> Array:
        """Return dS with 0 where the scores were masked, rows of length 0 included."""
        return np.where(live, dS, 0)

    def value_gradient(self, P: Array, dO: Array) -> Array:
        return P.swapaxes(-1, -2) @ dO

    def weight_gradient(self, dO: Array, V: Array) -> Array:
        return dO @ V.swapaxes(-1, -2)

    def softmax_gradients(
        self, dO: Array, S: Array, V: Array, lens: Array | None
    ) -> tuple[Array, Array]:
        """Return the gradients of the scores and of the values."""
        P = self.masked_softmax(S, lens)
        dS = self.masked_softmax_backward(self.weight_gradient(dO, V), P)
        return self.mask_gradient(dS, self.unmasked(S, lens)), self.value_gradient(P, dO)

    def backward_scale(self, Q: Array, K: Array) -> float:
        """Return the scale of the backward pass: the same as in the forward pass."""
        return self.scale(Q, K)

    def query_gradient(self, dS: Array, K: Array) -> Array:
        return dS @ K

    def key_gradient(self, dS: Array, Q: Array) -> Array:
        return dS.swapaxes(-1, -2) @ Q

    def order_gradients(self, gradients: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the gradients in the order of the arguments."""
        return gradients

    def dot_product_scores_backward(
        self, grad_output: Array, queries: Array, keys: Array
    ) -> tuple[Array, ...]:
        c = self.backward_scale(queries, keys)
        dQ = c * self.query_gradient(grad_output, keys)
        return self.order_gradients((dQ, c * self.key_gradient(grad_output, queries)))

    def dot_product_attention_backward(
        self,
        grad_output: Array,
        queries: Array,
        keys: Array,
        values: Array,
        valid_lens: Array | None = None,
    ) -> tuple[Array, ...]:
        S = self.dot_product_scores(queries, keys)
        dS, dV = self.softmax_gradients(grad_output, S, values, valid_lens)
        return (*self.dot_product_scores_backward(dS, queries, keys), dV)

    def activation_derivative(self, F: Array) -> Array:
        """Return the derivative of tanh, from its result."""
        return 1 - F**2

    def feature_gradient(self, dS: Array, w_v: Array) -> Array:
        """Return the gradients of the hidden units from the gradients of the scores."""
        return dS[..., None] * w_v

    def matrix_gradient(self, dA: Array, X: Array) -> Array:
        """Return the gradient of a matrix: a sum over all rows of all samples, which share it."""
        gradient: Array = np.einsum("bmh,bmd->hd", dA, X)
        return gradient

    def w_v_gradient(self, dS: Array, F: Array) -> Array:
        gradient: Array = np.einsum("bmn,bmnh->h", dS, F)
        return gradient

    def additive_scores_backward(
        self, grad_output: Array, queries: Array, keys: Array, W_q: Array, W_k: Array, w_v: Array
    ) -> tuple[Array, ...]:
        F = self.features(queries, keys, W_q, W_k)
        U = self.feature_gradient(grad_output, w_v) * self.activation_derivative(F)
        dA, dC = U.sum(2), U.sum(1)
        W_q, W_k = self.order_matrices(W_q, W_k)
        dQ, dK = self.order_gradients((dA @ W_q, dC @ W_k))
        dW_q, dW_k = self.order_matrices(
            self.matrix_gradient(dA, queries), self.matrix_gradient(dC, keys)
        )
        return dQ, dK, dW_q, dW_k, self.w_v_gradient(grad_output, F)

    def additive_attention_backward(
        self,
        grad_output: Array,
        queries: Array,
        keys: Array,
        values: Array,
        W_q: Array,
        W_k: Array,
        w_v: Array,
        valid_lens: Array | None = None,
    ) -> tuple[Array, ...]:
        S = self.additive_scores(queries, keys, W_q, W_k, w_v)
        dS, dV = self.softmax_gradients(grad_output, S, values, valid_lens)
        dQ, dK, *rest = self.additive_scores_backward(dS, queries, keys, W_q, W_k, w_v)
        return (dQ, dK, dV, *rest)

    # ---- heads and examples ----------------------------------------------------------------------

    def other_examples(self, n: int) -> Array:
        """Return the indices of the other examples, (n, n - 1): row i has all except i."""
        return np.array([[j for j in range(n) if j != i] for i in range(n)])

    def leave_one_out(self, x: Array, y: Array) -> tuple[Array, ...]:
        others = self.other_examples(len(x))
        return self.order_gradients((x[others], y[others]))

    def split(self, X: Array, heads: int) -> Array:
        """Reshape (B, n, h) to (B, n, heads, d): head 0 has the first d features."""
        return X.reshape(*X.shape[:2], heads, -1)

    def forward_axes(self) -> tuple[int, ...]:
        """Return the axes that transpose (B, n, heads, d) to (B, heads, n, d)."""
        return 0, 2, 1, 3

    def merge(self, X: Array) -> Array:
        """Reshape (B, heads, n, d) to (B * heads, n, d)."""
        return X.reshape(-1, *X.shape[2:])

    def transpose_qkv(self, X: Array, num_heads: int) -> Array:
        return self.merge(self.split(X, num_heads).transpose(self.forward_axes()))

    def unmerge(self, X: Array, heads: int) -> Array:
        return X.reshape(-1, heads, *X.shape[1:])

    def backward_axes(self) -> tuple[int, ...]:
        """Return the axes that transpose (B, heads, n, d) to (B, n, heads, d)."""
        return 0, 2, 1, 3

    def transpose_output(self, X: Array, num_heads: int) -> Array:
        X = self.unmerge(X, num_heads).transpose(self.backward_axes())
        return X.reshape(*X.shape[:2], -1)

    # ---- positions -------------------------------------------------------------------------------

    def positions(self, num_steps: int) -> Array:
        return np.arange(num_steps)

    def frequencies(self, even: Array, num_hiddens: int) -> Array:
        """Return the frequency of each pair of columns, from the index of its even column."""
        return 1 / 10000 ** (even / num_hiddens)

    def sines(self, angles: Array) -> Array:
        return np.sin(angles)

    def cosines(self, angles: Array) -> Array:
        return np.cos(angles)

    def interleave(self, sines: Array, cosines: Array) -> Array:
        """Return the columns in turn: a sine, its cosine, the next sine, and so on."""
        return np.stack([sines, cosines], axis=-1).reshape(len(sines), -1)

    def positional_encoding(self, num_steps: int, num_hiddens: int) -> Array:
        frequencies = self.frequencies(np.arange(0, num_hiddens, 2), num_hiddens)
        angles = self.positions(num_steps)[:, None] * frequencies
        return self.interleave(self.sines(angles), self.cosines(angles))
