"""Nadaraya-Watson kernel regression: attention in its oldest and simplest form.

A prediction is an average of the training targets, weighted by how near each training input
lies to the query: the training inputs are the keys, the targets are the values. The names,
calls and shapes are those of *Dive into Deep Learning* (d2l).
All the computing is done by `attnext.gaussian_attention` and its backward.

Letters: n queries, N keys = values of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnext._core import gaussian_attention, gaussian_attention_backward

if TYPE_CHECKING:
    Array: TypeAlias = NDArray[np.float32]

__all__ = ["NWKernelRegression", "average_pooling", "leave_one_out", "nadaraya_watson"]


def average_pooling(x_test: ArrayLike, y_train: ArrayLike) -> Array:
    """Predict the mean of the training targets, whatever the query.

    Parameters
    ----------
    x_test : array_like, shape (n,)
        Where to predict. Only the number of queries matters; the values are not read.
    y_train : array_like, shape (N,)
        Training targets.

    Returns
    -------
    ndarray, shape (n,), float32
        The mean of `y_train`, n times.

    Raises
    ------
    TypeError
        If an argument does not hold real numbers.
    ValueError
        If an argument is not one-dimensional.

    Notes
    -----
    f(x) = (1/N) sum_i y_i. This is attention that looks at no key: with every score 0, the
    softmax gives each target the weight 1/N. Without targets (N = 0) it predicts 0, as
    attention over no keys does.

    Examples
    --------
    >>> average_pooling([0.0, 0.5], [1.0, 2.0, 6.0])
    array([3., 3.], dtype=float32)
    """
    targets = _float32("y_train", y_train, "N")
    queries = np.zeros((_float32("x_test", x_test, "n").size, 1), np.float32)
    keys = np.zeros((targets.size, 1), np.float32)
    return gaussian_attention(queries, keys, targets[:, None])[:, 0]


@overload
def nadaraya_watson(
    x: ArrayLike,
    x_train: ArrayLike,
    y_train: ArrayLike,
    sigma: float = ...,
    *,
    return_weights: Literal[False] = ...,
) -> Array: ...
@overload
def nadaraya_watson(
    x: ArrayLike,
    x_train: ArrayLike,
    y_train: ArrayLike,
    sigma: float = ...,
    *,
    return_weights: Literal[True],
) -> tuple[Array, Array]: ...
def nadaraya_watson(
    x: ArrayLike,
    x_train: ArrayLike,
    y_train: ArrayLike,
    sigma: float = 1.0,
    *,
    return_weights: bool = False,
) -> Array | tuple[Array, Array]:
    """Predict by a mean of the training targets, weighted by a Gaussian kernel.

    Parameters
    ----------
    x : array_like, shape (n,)
        Where to predict: the queries.
    x_train : array_like, shape (N,)
        Training inputs: the keys.
    y_train : array_like, shape (N,)
        Training targets: the values.
    sigma : float, default 1.0
        Bandwidth of the kernel, > 0, in the units of `x`. Small: only near neighbours count.
        Large: the prediction approaches `average_pooling`.
    return_weights : bool, default False
        Return the attention weights too.

    Returns
    -------
    y : ndarray, shape (n,), float32
        The predictions.
    weights : ndarray, shape (n, N), float32
        Only with ``return_weights=True``. Row i holds the weight of every training target in
        the prediction for ``x[i]``; each row sums to 1.

    Raises
    ------
    TypeError
        If an argument does not hold real numbers.
    ValueError
        If an argument is not one-dimensional, `x_train` and `y_train` differ in length, or
        `sigma` is not above 0.

    Notes
    -----
    f(x) = sum_i softmax_i(-((x - x_i) / sigma)^2 / 2) y_i: Nadaraya, "On estimating
    regression", 1964; Watson, "Smooth regression analysis", 1964; d2l with sigma = 1.
    The softmax never underflows to 0/0, however far a query lies from every key.

    Examples
    --------
    >>> nadaraya_watson([0.0, 100.0], [0.0, 1.0], [3.0, 5.0]).round(3)
    array([3.755, 5.   ], dtype=float32)
    """
    queries = _float32("x", x, "n")[:, None]
    keys = _float32("x_train", x_train, "N")[:, None]
    values = _float32("y_train", y_train, len(keys))[:, None]
    if not return_weights:
        return gaussian_attention(queries, keys, values, sigma=sigma)[:, 0]
    output, weights = gaussian_attention(queries, keys, values, sigma=sigma, return_weights=True)
    return output[:, 0], weights


def leave_one_out(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    """For each example, the keys and values of all the others.

    A kernel regression trained to predict y[i] from all examples would make its kernel
    infinitely narrow and copy y[i]. So example i is predicted from the others alone.

    Parameters
    ----------
    x : array_like, shape (n,)
        Training inputs.
    y : array_like, shape (n,)
        Training targets.

    Returns
    -------
    keys : ndarray, shape (n, n-1), float32
        Row i is `x` without ``x[i]``, in order.
    values : ndarray, shape (n, n-1), float32
        Row i is `y` without ``y[i]``, in order.

    Raises
    ------
    TypeError
        If an argument does not hold real numbers.
    ValueError
        If an argument is not one-dimensional, is empty, or the two differ in length.

    Notes
    -----
    d2l builds the same two arrays with a mask ``1 - eye(n)``.

    Examples
    --------
    >>> keys, values = leave_one_out([1, 2, 3], [10, 20, 30])
    >>> keys
    array([[2., 3.],
           [1., 3.],
           [1., 2.]], dtype=float32)
    """
    inputs = _float32("x", x, "n")
    targets = _float32("y", y, inputs.size)
    n = inputs.size
    if n == 0:
        raise ValueError("x has shape (0,), expected at least one example to leave out")
    others = np.arange(n - 1) + (np.arange(n - 1) >= np.arange(n)[:, None])
    return inputs[others], targets[others]


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

    attention_weights: Array | None
    grads: dict[str, Array]

    def __init__(
        self, rng: int | np.random.Generator | np.random.SeedSequence | None = None
    ) -> None:
        self._w: Array = np.random.default_rng(rng).random(1, dtype=np.float32)
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
        self._w[...] = _float32("w", value, 1)

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
        q = _float32("queries", queries, "n")
        k = _float32("keys", keys, q.size, "N")
        v = _float32("values", values, *k.shape)
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
        grad = _float32("grad_output", grad_output, len(queries))
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


def _float32(name: str, array: ArrayLike, *dims: int | str) -> Array:
    """`array` as float32, C-contiguous; a dim of its shape that is a letter fits any size."""
    if isinstance(array, np.ma.MaskedArray | np.matrix):
        raise TypeError(f"{name} must be a plain array, got {type(array).__name__}")
    if getattr(array, "requires_grad", False):
        raise TypeError(f"{name} is a tensor that requires grad: detach() it, or use attnext.torch")
    numbers = np.asarray(array)
    if numbers.dtype.kind not in "fiu":
        raise TypeError(f"{name} has dtype {numbers.dtype}, expected real numbers")
    sizes = numbers.shape
    fits = len(sizes) == len(dims) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(dims, sizes, strict=True)
    )
    if not fits:
        expected = ", ".join(map(str, dims)) + ("," if len(dims) == 1 else "")
        raise ValueError(f"{name} has shape {sizes}, expected ({expected})")
    return np.ascontiguousarray(numbers, dtype=np.float32)
