"""A kernel regression whose bandwidth is a parameter, learned by gradient descent."""

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
    """What a forward keeps for its backward; w is a copy, so a step in between does no harm."""

    queries: Array  # (n, 1, 1)
    keys: Array  # (n, N, 1)
    values: Array  # (n, N, 1)
    w: Array  # (1,)
    output: Array  # (n, 1, 1)
    lse: Array  # (n, 1)


class NWKernelRegression:
    """Nadaraya-Watson regression whose kernel width is learned.

    The one parameter ``w`` is the inverse of the bandwidth: a larger w makes a narrower
    kernel. It is trained like any parameter: forward, backward, step.

    Parameters
    ----------
    rng : None, int, numpy.random.Generator, ..., optional
        Seed of the initial ``w``, anything `numpy.random.default_rng` takes.

    Attributes
    ----------
    attention_weights : ndarray, shape (n, N), float32, or None
        The weights of the last call; None before the first.
    grads : dict
        ``{"w": ndarray of shape (1,)}``: gradients added up since the last `zero_grad`.

    Notes
    -----
    y_i = sum_j softmax_j(-((q_i - k_ij) w)^2 / 2) v_ij, with w drawn uniformly from [0, 1):
    d2l's class of the same name.

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

    attention_weights: Array | Any  # to look at without a check for None
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
        """The live parameter, shape (1,): 1 / bandwidth. A value assigned to it is copied."""
        return self._w  # never replaced, so parameters() stays live

    @w.setter
    def w(self, value: ArrayLike) -> None:
        self._w[...] = as_float32("w", value, 1)

    def __call__(self, queries: ArrayLike, keys: ArrayLike, values: ArrayLike) -> Array:
        """Predict for each query from keys and values of its own.

        Parameters
        ----------
        queries : array_like, shape (n,)
            Where to predict.
        keys : array_like, shape (n, N)
            Row i holds the inputs that query i may look at.
        values : array_like, shape (n, N)
            The targets that belong to `keys`.

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
        # A batch of n attentions, each of one query over its own N keys of one feature.
        q, k, v, w = q[:, None, None], k[:, :, None], v[:, :, None], self._w.copy()
        output, weights, lse = gaussian_attention(
            q, k, v, w=w, return_weights=True, return_lse=True
        )
        self._saved = _Saved(q, k, v, w, output, lse)
        self.attention_weights = weights[:, 0]
        return output[:, 0, 0].copy()  # the caller may write into it: `error = y; error -= ...`

    def backward(self, grad_output: ArrayLike) -> tuple[Array, Array, Array]:
        """Gradients of the last call; the one of ``w`` is added to `grads`.

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
            If nothing has been predicted yet.
        TypeError
            If `grad_output` does not hold real numbers.
        ValueError
            If `grad_output` has another shape than the predictions.
        """
        if self._saved is None:
            raise RuntimeError("backward needs a forward first: call the object before backward")
        queries, keys, values, w, output, lse = self._saved
        grad = as_float32("grad_output", grad_output, len(queries))
        dq, dk, dv, dw = gaussian_attention_backward(
            grad[:, None, None], queries, keys, values, w=w, output=output, lse=lse
        )
        self.grads["w"] += dw
        return dq[:, 0, 0], dk[:, :, 0], dv[:, :, 0]

    def parameters(self) -> dict[str, Array]:
        """
        The live parameters by name: ``p -= lr * net.grads[name]`` trains.

        Returns
        -------
        dict of str to ndarray
            ``{"w": w}`` with w of shape (1,), float32; changing it changes the model.
        """
        return {"w": self._w}

    def zero_grad(self) -> None:
        """Set every gradient in `grads` to 0, in place."""
        for grad in self.grads.values():
            grad.fill(0)
