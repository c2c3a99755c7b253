"""The same attention in PyTorch: d2l's code for it, to stand beside ours where it is installed.

Tensors in, tensors out; `Peer.run` and `Peer.gradients` take and return arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float32]
Tensor = Any  # torch may be absent, for the type checker too


def load_peer() -> Peer | None:
    """PyTorch, or None where it cannot be imported."""
    try:
        return Peer(import_module("torch"))
    except (ImportError, OSError):  # OSError: it is there, but a library it needs is not
        return None


class Peer:
    """The attentions of d2l, in PyTorch."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.name = f"PyTorch {torch.__version__.split('+')[0]}"

    def tensor(self, array: ArrayLike) -> Tensor:
        """A float32 tensor with a copy of the numbers."""
        return self.torch.tensor(np.asarray(array), dtype=self.torch.float32)

    def run(self, function: Callable[..., Tensor], *arrays: ArrayLike, **options: Any) -> Array:
        """Call one of the functions below on arrays."""
        with self.torch.no_grad():
            result: Array = function(*map(self.tensor, arrays), **options).numpy()
        return result

    def gradients(
        self,
        function: Callable[..., Tensor],
        grad_output: ArrayLike,
        *arrays: ArrayLike,
        **options: Any,
    ) -> list[Array]:
        """The gradient of sum(grad_output * function(...)) for each array, by autograd."""
        inputs = [self.tensor(array).requires_grad_() for array in arrays]
        function(*inputs, **options).backward(self.tensor(grad_output))
        return [leaf.grad.numpy() for leaf in inputs]

    def timed_gradients(
        self, function: Callable[..., Tensor], grad_output: ArrayLike, *arrays: ArrayLike
    ) -> Callable[[], object]:
        """`gradients` on tensors made beforehand, ready to be called again and again."""
        leaves = [self.tensor(array).requires_grad_() for array in arrays]
        grad = self.tensor(grad_output)
        return lambda: self.torch.autograd.grad(function(*leaves), leaves, grad)

    def sequence_mask(self, X: Tensor, valid_len: Any, value: float = 0.0) -> Tensor:
        """X (n, steps) with `value` from step valid_len[i] of row i on."""
        lens = self.torch.as_tensor(valid_len)
        return X.masked_fill(self.torch.arange(X.shape[1]) >= lens[:, None], value)

    def masked_softmax(self, X: Tensor, valid_lens: Any = None) -> Tensor:
        """Softmax over the last axis of X (B, M, N), padding set to -1e6 before."""
        if valid_lens is None:
            return X.softmax(-1)
        lens = self.torch.as_tensor(valid_lens)
        if lens.dim() == 1:
            lens = lens.repeat_interleave(X.shape[1])
        masked = self.sequence_mask(X.reshape(-1, X.shape[-1]), lens.reshape(-1), -1e6)
        return masked.reshape(X.shape).softmax(-1)

    def dot_product(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        valid_lens: Any = None,
        scale: float | None = None,
    ) -> Tensor:
        """Scaled dot-product attention; scale None means 1/sqrt(d)."""
        scale = queries.shape[-1] ** -0.5 if scale is None else scale
        return self.masked_softmax(queries @ keys.mT * scale, valid_lens) @ values

    def fused_dot_product(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The same without lengths, by PyTorch's fastest way."""
        attention = self.torch.nn.functional.scaled_dot_product_attention
        return attention(queries, keys, values)

    def additive(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        W_q: Tensor,
        W_k: Tensor,
        w_v: Tensor,
        valid_lens: Any = None,
    ) -> Tensor:
        """Additive attention, with the (B, M, N, H) tensor between."""
        features = (queries @ W_q.T).unsqueeze(2) + (keys @ W_k.T).unsqueeze(1)
        return self.masked_softmax(features.tanh() @ w_v, valid_lens) @ values

    def kernel_regression(self, queries: Tensor, keys: Tensor, values: Tensor, w: Tensor) -> Tensor:
        """d2l's NWKernelRegression: queries (n,), keys and values (n, N), w (1,) -> (n,)."""
        weights = (-(((queries[:, None] - keys) * w) ** 2) / 2).softmax(-1)
        return (weights * values).sum(-1)
