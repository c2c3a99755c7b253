"""NWKernelRegression: kernel regression that learns its bandwidth by gradient descent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attnext import _constructors
from attnext._core import gaussian_attention, gaussian_attention_backward

from .inputs import as_float32

if TYPE_CHECKING:
    from .inputs import Array


class _Saved(NamedTuple):
    """Arrays that a forward pass stores for its backward pass. w is a copy of the parameter."""

    queries: Array  # (n, 1, 1)
    keys: Array  # (n, N, 1)
    values: Array  # (n, N, 1)
    w: Array  # (1,)
    output: Array  # (n, 1, 1)
    lse: Array  # (n, 1)


class NWKernelRegression:
    """Nadaraya-Watson kernel regression with a learned bandwidth.

    The only parameter ``w`` is the inverse of the bandwidth: a larger w makes the kernel narrower.
    Train it like any other parameter: forward pass, backward pass, update.

    Parameters
    ----------
    rng : None, int, numpy.random.Generator, ..., optional
        Seed for the initial ``w``: any argument of `numpy.random.default_rng`.

    Attributes
    ----------
    attention_weights : ndarray, shape (n, N), float32, or None
        The attention weights of the last call; None before the first call.
    grads : dict
        ``{"w": ndarray of shape (1,)}``: the sum of the gradients since the last `zero_grad`.

    Notes
    -----
    y_i = sum_j softmax_j(-((q_i - k_ij) w)^2 / 2) v_ij, as in d2l's class of the same name. The
    initial w is drawn uniformly from [0, 1).

    Examples
    --------
    Learn w from leave-one-out predictions by gradient descent on the squared error:

    >>> from attnext.kernel_regression import leave_one_out
    >>> x = np.linspace(0, 5, 50, dtype=np.float32)
    >>> y = 2 * np.sin(x) + x**0.8
    >>> keys, values = leave_one_out(x, y)
    >>> net = NWKernelRegression(rng=0)
    >>> for _ in range(20):
    ...     error = net(x, keys, values) - y
    ...     net.zero_grad()
    ...     _ = net.backward(2 * error / len(x))
    ...     net.w -= 20 * net.grads["w"]
    >>> bool(np.mean(error**2) < 0.01)
    True
    """

    attention_weights: Array | Any  # Any, so that type checkers need no check for None
    grads: dict[str, Array]

    def __init__(
        self, rng: int | np.random.Generator | np.random.SeedSequence | None = None
    ) -> None:
        self._w: Array = _constructors.generator("rng", rng).random(1, dtype=np.float32)
        self._saved: _Saved | None = None
        self.attention_weights = None
        self.grads = {"w": np.zeros(1, np.float32)}

    def __repr__(self) -> str:
        return f"NWKernelRegression(w={self._w[0]:.6g})"

    @property
    def w(self) -> Array:
        """The parameter w = 1 / bandwidth, shape (1,). Assignment copies the value into it."""
        return self._w  # never replaced, so parameters() stays live

    @w.setter
    def w(self, value: ArrayLike) -> None:
        self._w[...] = as_float32("w", value, 1)

    def __call__(self, queries: ArrayLike, keys: ArrayLike, values: ArrayLike) -> Array:
        """Predict for each query from the keys and values of its row.

        Parameters
        ----------
        queries : array_like, shape (n,)
            The inputs to predict for.
        keys : array_like, shape (n, N)
            Row i contains the training inputs for query i.
        values : array_like, shape (n, N)
            The training targets of `keys`.

        Returns
        -------
        ndarray, shape (n,), float32
            The predictions.

        Raises
        ------
        TypeError
            If an argument does not hold real numbers.
        ValueError
            If the shapes do not fit together, or ``w`` is not finite.
        """
        q = as_float32("queries", queries, "n")
        k = as_float32("keys", keys, q.size, "N")
        v = as_float32("values", values, *k.shape)
        # A batch of n attentions, each with one query and N keys of one feature.
        q, k, v, w = q[:, None, None], k[:, :, None], v[:, :, None], self._w.copy()
        output, weights, lse = gaussian_attention(
            q, k, v, w=w, return_weights=True, return_lse=True
        )
        self._saved = _Saved(q, k, v, w, output, lse)
        self.attention_weights = weights[:, 0]
        return output[:, 0, 0].copy()  # the caller may write into it: `error = y; error -= ...`

    def backward(self, grad_output: ArrayLike) -> tuple[Array, Array, Array]:
        """Return the gradients of the last call, and add the gradient of ``w`` to `grads`.

        Parameters
        ----------
        grad_output : array_like, shape (n,)
            Gradient of the loss with respect to the predictions.

        Returns
        -------
        dq : ndarray, shape (n,), float32
            Gradient with respect to the queries.
        dk, dv : ndarray, shape (n, N), float32
            Gradients with respect to keys and values.

        Raises
        ------
        RuntimeError
            If the object has not been called yet.
        TypeError
            If `grad_output` does not hold real numbers.
        ValueError
            If the shape of `grad_output` differs from the shape of the predictions.
        """
        if self._saved is None:
            raise RuntimeError("backward needs a forward pass: call the object before backward")
        queries, keys, values, w, output, lse = self._saved
        grad = as_float32("grad_output", grad_output, len(queries))
        dq, dk, dv, dw = gaussian_attention_backward(
            grad[:, None, None], queries, keys, values, w=w, output=output, lse=lse
        )
        self.grads["w"] += dw
        return dq[:, 0, 0], dk[:, :, 0], dv[:, :, 0]

    def parameters(self) -> dict[str, Array]:
        """
        Return the parameters by name. ``p -= lr * net.grads[name]`` updates the model.

        Returns
        -------
        dict of str to ndarray
            ``{"w": w}`` with w of shape (1,), float32. A change of w changes the model.
        """
        return {"w": self._w}

    def zero_grad(self) -> None:
        """Set every gradient in `grads` to 0, in place."""
        for grad in self.grads.values():
            grad.fill(0)
