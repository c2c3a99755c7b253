"""Kernels written as attention scores, and predictions with a fixed bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike

from attnext._core import gaussian_attention, gaussian_scores
from attnext._options import as_flag

from .inputs import as_float32

if TYPE_CHECKING:
    from .inputs import Array

    Kernel: TypeAlias = Literal[
        "gaussian", "boxcar", "triangular", "epanechikov", "epanechnikov", "constant"
    ]
    EmptyRows: TypeAlias = Literal["uniform", "zero", "nan"]

_KERNELS = ("gaussian", "boxcar", "triangular", "epanechikov", "epanechnikov", "constant")


def average_pooling(x_test: ArrayLike, y_train: ArrayLike) -> Array:
    """Predict the mean of the training targets for every query.

    Parameters
    ----------
    x_test : array_like, shape (n,)
        The queries. Only their number matters; their values are not used.
    y_train : array_like, shape (N,)
        Training targets.

    Returns
    -------
    ndarray, shape (n,), float32
        The mean of `y_train`, repeated n times.

    Raises
    ------
    TypeError
        If an argument does not contain real numbers.
    ValueError
        If an argument is not one-dimensional.

    Notes
    -----
    f(x) = (1/N) sum_i y_i. This is attention with all scores equal to 0: the softmax then gives
    each target the weight 1/N. Without targets (N = 0) the prediction is 0, the same as for
    attention without keys.

    Examples
    --------
    >>> average_pooling([0.0, 0.5], [1.0, 2.0, 6.0])
    array([3., 3.], dtype=float32)
    """
    targets = as_float32("y_train", y_train, "N")
    queries = np.zeros((as_float32("x_test", x_test, "n").size, 1), np.float32)
    keys = np.zeros((targets.size, 1), np.float32)
    return gaussian_attention(queries, keys, targets[:, None])[:, 0]


@overload
def nadaraya_watson(
    x: ArrayLike,
    x_train: ArrayLike,
    y_train: ArrayLike,
    sigma: float = ...,
    *,
    kernel: Kernel = ...,
    empty_rows: EmptyRows = ...,
    return_weights: Literal[False] = ...,
) -> Array: ...
@overload
def nadaraya_watson(
    x: ArrayLike,
    x_train: ArrayLike,
    y_train: ArrayLike,
    sigma: float = ...,
    *,
    kernel: Kernel = ...,
    empty_rows: EmptyRows = ...,
    return_weights: Literal[True],
) -> tuple[Array, Array]: ...
def nadaraya_watson(
    x: ArrayLike,
    x_train: ArrayLike,
    y_train: ArrayLike,
    sigma: float = 1.0,
    *,
    kernel: Kernel = "gaussian",
    empty_rows: EmptyRows = "uniform",
    return_weights: bool = False,
) -> Array | tuple[Array, Array]:
    """Predict a mean of the training targets, weighted by a kernel of the distance.

    Parameters
    ----------
    x : array_like, shape (n,)
        The queries: the inputs to predict for.
    x_train : array_like, shape (N,)
        Training inputs: the keys.
    y_train : array_like, shape (N,)
        Training targets: the values.
    sigma : float, default 1.0
        Bandwidth of the kernel, > 0, in the units of `x`. With a small bandwidth, only the nearest
        training inputs matter. With a large one, the prediction approaches `average_pooling`.
    kernel : str, default "gaussian"
        Name of the kernel: "gaussian", "boxcar", "triangular", "epanechnikov" or "constant". The
        name "epanechikov" also means "triangular", as in d2l. See Notes.
    empty_rows : {"uniform", "zero", "nan"}, default "uniform"
        Prediction for a query if the kernel is 0 for all training inputs: the mean of all targets,
        0, or NaN. This happens only with kernels of finite width.
    return_weights : bool, default False
        Also return the attention weights.

    Returns
    -------
    y : ndarray, shape (n,), float32
        The predictions.
    weights : ndarray, shape (n, N), float32
        Only with ``return_weights=True``. Row i contains the weights of all training targets in
        the prediction for ``x[i]``. Each row sums to 1, except for rows that `empty_rows` decides.

    Raises
    ------
    TypeError
        If an argument does not contain real numbers, or `kernel` or `empty_rows` is not a str.
    ValueError
        If an argument is not one-dimensional, `x_train` and `y_train` differ in length, `sigma` is
        not above 0, or the name in `kernel` or `empty_rows` is unknown.

    Notes
    -----
    With u_i = (x - x_i) / sigma, the prediction is f(x) = sum_i k(u_i) y_i / sum_j k(u_j)
    (Nadaraya, "On estimating regression", 1964; Watson, "Smooth regression analysis", 1964). The
    kernels are those of d2l and Epanechnikov's ("Non-parametric estimation of a multivariate
    probability density", 1969):

    ============= ================= ====================================
    kernel        k(u)              score log k(u)
    ============= ================= ====================================
    gaussian      exp(-u^2 / 2)     -u^2 / 2
    boxcar        1 if abs(u) < 1   0, masked if abs(u) >= 1
    triangular    1 - abs(u)        log(1 - abs(u)), masked if abs(u) >= 1
    epanechnikov  3/4 (1 - u^2)     log(1 - u^2), masked if abs(u) >= 1
    constant      1                 0, the same as `average_pooling`
    ============= ================= ====================================

    The factor 3/4 does not change the weights, so the score omits it. The kernel that d2l 1.0 calls
    "epanechikov" is the triangular kernel; attnext accepts this name for it.

    Every kernel regression is an attention, because k / sum k = softmax(log k): the logarithm of
    the kernel is the score. Where the kernel is 0, the score is -inf, so the key is masked. If all
    keys of a query are masked, `empty_rows` decides the prediction. The code of d2l divides by the
    sum of the kernel and gets NaN for such a query. The Gaussian kernel is never 0, and its softmax
    is never 0 / 0, even if the query is far from every key.

    Examples
    --------
    >>> nadaraya_watson([0.0, 100.0], [0.0, 1.0], [3.0, 5.0]).round(3)
    array([3.755, 5.   ], dtype=float32)

    A boxcar kernel predicts the mean of the targets within sigma. The last query has none:

    >>> x, x_train, y_train = [0.0, 1.5, 9.0], [0, 1, 2, 3], [10, 20, 40, 50]
    >>> nadaraya_watson(x, x_train, y_train, sigma=1, kernel="boxcar", empty_rows="nan")
    array([10., 30., nan], dtype=float32)
    """
    queries, keys = as_float32("x", x, "n"), as_float32("x_train", x_train, "N")
    values = as_float32("y_train", y_train, keys.size)
    attention = kernel_as_attention(queries, keys, values, sigma, kernel)
    if as_flag("return_weights", return_weights):
        output, weights = gaussian_attention(
            **attention, empty_rows=empty_rows, return_weights=True
        )
        return output[:, 0], weights
    predictions: Array = gaussian_attention(**attention, empty_rows=empty_rows)[:, 0]
    return predictions


def kernel_as_attention(
    x: Array, x_train: Array, y_train: Array, sigma: float, kernel: str
) -> dict[str, Any]:
    """Return the arguments with which `gaussian_attention` computes this kernel regression.

    x (n,), x_train and y_train (N,). The Gaussian kernel is the score of that function. For the
    other kernels, queries and keys are set to 0, so the Gaussian score is 0 and the bias is the
    score.
    """
    if not isinstance(kernel, str):
        raise TypeError(f"kernel is of type {type(kernel).__name__}, expected a str")
    if kernel not in _KERNELS:
        *names, last = map(repr, _KERNELS)
        raise ValueError(f"kernel is {kernel!r}, expected {', '.join(names)} or {last}")
    bias = None
    if kernel != "gaussian":
        gaussian_scores(
            [[0.0]], [[0.0]], sigma=sigma
        )  # raises an error if sigma is not a valid bandwidth
        if kernel != "constant":
            bias = _log_kernel(kernel, x, x_train, float(sigma))
        x, x_train = np.zeros_like(x), np.zeros_like(x_train)
    return {
        "queries": x[:, None],
        "keys": x_train[:, None],
        "values": y_train[:, None],
        "sigma": sigma,
        "bias": bias,
    }


def _log_kernel(kernel: str, x: Array, x_train: Array, sigma: float) -> Array:
    """Return log k((x - x_train) / sigma), (n, N). It is -inf where k is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):  # log 0 is -inf, inf - inf is NaN
        # In float32, 1 - u would lose most of its digits near u = 1.
        u = np.abs(x[:, None].astype(np.float64) - x_train) / sigma
        k = np.maximum(1 - (u**2 if kernel == "epanechnikov" else u), 0)
        if kernel == "boxcar":
            k = np.ceil(k)  # 1 wherever the triangle is above 0
        return np.log(k.astype(np.float32))
