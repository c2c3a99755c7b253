"""The scoring functions: one query against n keys, forward and backward side by side."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from .arguments import Array


class Score(Protocol):
    """A scoring function and its parameters, if it has any."""

    parameters: dict[str, Array]

    def forward(self, q: Array, k: Array) -> Array:
        """Scores s (n,) of a query q (Dq,) against keys k (n, Dk)."""

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        """Gradients d_q (Dq,) and d_k (n, Dk), and those of the parameters by their names."""


class DotProduct:
    """score(q, k) = scale * q . k"""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.parameters: dict[str, Array] = {}

    def forward(self, q: Array, k: Array) -> Array:
        return self.scale * (k @ q)

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        # forward was: s_j = scale * sum_d k_jd * q_d
        d_q = self.scale * (d_s @ k)  # (D,)
        d_k = self.scale * np.outer(d_s, q)  # (n, D)
        return d_q, d_k, {}


class Cosine:
    """score(q, k) = scale * q . k / (max(|q|, eps) * max(|k|, eps))"""

    def __init__(self, scale: float, eps: float) -> None:
        self.scale, self.eps = scale, eps
        self.parameters: dict[str, Array] = {}

    def forward(self, q: Array, k: Array) -> Array:
        return self.scale * (self._to_length_1(k) @ self._to_length_1(q))

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        # forward was: s_j = scale * u_j . t, where t and u_j are q and k_j brought to length 1
        d_t = self.scale * (d_s @ self._to_length_1(k))  # (D,)
        d_u = self.scale * np.outer(d_s, self._to_length_1(q))  # (n, D)
        return self._to_length_1_backward(d_t, q), self._to_length_1_backward(d_u, k), {}

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


class Additive:
    """score(q, k) = w_v . tanh(W_q q + W_k k + b_h)"""

    def __init__(self, W_q: Array, W_k: Array, w_v: Array, b_h: Array) -> None:
        self.W_q = W_q  # (H, Dq)
        self.W_k = W_k  # (H, Dk)
        self.w_v = w_v  # (H,)
        self.b_h = b_h  # (H,)
        self.parameters = {"W_q": W_q, "W_k": W_k, "w_v": w_v, "b_h": b_h}

    def forward(self, q: Array, k: Array) -> Array:
        a = self.W_q @ q + k @ self.W_k.T + self.b_h  # (n, H)
        return np.tanh(a) @ self.w_v

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        a = self.W_q @ q + k @ self.W_k.T + self.b_h  # (n, H)
        # forward was: s = tanh(a) @ w_v
        d_w_v = d_s @ np.tanh(a)  # (H,)
        d_tanh = np.outer(d_s, self.w_v)  # (n, H)
        # tanh' = 1 - tanh^2, written so that no digits are lost where tanh is close to 1
        d_a = d_tanh / np.cosh(a) ** 2  # (n, H)
        # forward was: a = W_q q + W_k k + b_h, with one q and one b_h for all n keys
        d_b_h = np.sum(d_a, axis=0)  # (H,)
        d_W_q = np.outer(d_b_h, q)  # (H, Dq)
        d_q = d_b_h @ self.W_q  # (Dq,)
        d_W_k = d_a.T @ k  # (H, Dk)
        d_k = d_a @ self.W_k  # (n, Dk)
        return d_q, d_k, {"W_q": d_W_q, "W_k": d_W_k, "w_v": d_w_v, "b_h": d_b_h}


class Gaussian:
    """score(q, k) = -(w * |q - k|)^2 / 2"""

    def __init__(self, w: float) -> None:
        self.w = w
        self.parameters = {"w": np.array(w)}

    def forward(self, q: Array, k: Array) -> Array:
        s: Array = -np.sum((self.w * (q - k)) ** 2, axis=1) / 2
        return s

    def backward(self, d_s: Array, q: Array, k: Array) -> tuple[Array, Array, dict[str, Array]]:
        # forward was: s_j = -w^2 / 2 * sum_d (q_d - k_jd)^2
        difference = q - k  # (n, D)
        d_difference = -(self.w**2) * d_s[:, None] * difference  # (n, D)
        d_w = -self.w * np.sum(d_s * np.sum(difference**2, axis=1))
        return np.sum(d_difference, axis=0), -d_difference, {"w": d_w}
