"""The kernels, written as scores of attention, and predictions with a kernel of a given width."""

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
    """Predict by a mean of the training targets, weighted by a kernel of the distance.

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
    kernel : str, default "gaussian"
        How the weight falls with the distance, one of "gaussian", "boxcar", "triangular",
        "epanechnikov", "constant", and "epanechikov", which is d2l's name of "triangular": see
        Notes.
    empty_rows : {"uniform", "zero", "nan"}, default "uniform"
        What a query predicts that has no training input within reach, as it can happen with
        every kernel that has an edge: the mean of all targets, 0, or NaN.
    return_weights : bool, default False
        Return the attention weights too.

    Returns
    -------
    y : ndarray, shape (n,), float32
        The predictions.
    weights : ndarray, shape (n, N), float32
        Only with ``return_weights=True``. Row i holds the weight of every training target in
        the prediction for ``x[i]``; each row sums to 1, but for what `empty_rows` says.

    Raises
    ------
    TypeError
        If an argument does not hold real numbers, or `kernel` or `empty_rows` is not a str.
    ValueError
        If an argument is not one-dimensional, `x_train` and `y_train` differ in length,
        `sigma` is not above 0, or there is no kernel or rule of that name.

    Notes
    -----
    With u = (x - x_i) / sigma, f(x) = sum_i k(u_i) y_i / sum_j k(u_j): Nadaraya, "On estimating
    regression", 1964; Watson, "Smooth regression analysis", 1964. The kernels are those of d2l, and
    Epanechnikov's, "Non-parametric estimation of a multivariate probability density", 1969:

    ============= ================= ====================================
    kernel        k(u)              score log k(u)
    ============= ================= ====================================
    gaussian      exp(-u^2 / 2)     -u^2 / 2
    boxcar        1 if abs(u) < 1   0, masked from abs(u) = 1 on
    triangular    1 - abs(u)        log(1 - abs(u)), masked likewise
    epanechnikov  3/4 (1 - u^2)     log(1 - u^2), masked likewise
    constant      1                 0: `average_pooling`, without a width
    ============= ================= ====================================

    A factor such as 3/4, which makes a kernel integrate to 1, changes no weight and is left out of
    the score. What d2l 1.0 calls "epanechikov" is the triangular kernel, under that name here too.

    Every kernel regression is an attention: k / sum k = softmax(log k), so the logarithm of the
    kernel is the score. Where the kernel is 0, its logarithm -inf is a mask; a query that all
    keys are masked from is an empty row, and `empty_rows` is the rule that all of attnext has
    for these. Dividing by the sum of the kernel, as d2l does, gives NaN there. The
    Gaussian reaches everywhere: its softmax never becomes 0/0, however far a query lies from
    every key.

    Examples
    --------
    >>> nadaraya_watson([0.0, 100.0], [0.0, 1.0], [3.0, 5.0]).round(3)
    array([3.755, 5.   ], dtype=float32)

    A boxcar takes the mean of what lies nearer than sigma; nothing does in the last query:

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
    """The arguments of `gaussian_attention` that make it a regression with this kernel.

    x (n,), x_train and y_train (N,). The Gaussian kernel is that function's own score. For the
    others all queries and keys are 0, and so is their Gaussian score; the bias is the score.
    """
    if not isinstance(kernel, str):
        raise TypeError(f"kernel must be a str, got {type(kernel).__name__}")
    if kernel not in _KERNELS:
        *names, last = map(repr, _KERNELS)
        raise ValueError(f"kernel is {kernel!r}, expected {', '.join(names)} or {last}")
    bias = None
    if kernel != "gaussian":
        gaussian_scores([[0.0]], [[0.0]], sigma=sigma)  # refuses a sigma that is no bandwidth
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
    """(n, N): log k((x - x_train) / sigma), -inf where k is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):  # log 0 is -inf, inf - inf is NaN
        # float64 up to here: near the edge, 1 - u in float32 would be mostly rounding.
        u = np.abs(x[:, None].astype(np.float64) - x_train) / sigma
        k = np.maximum(1 - (u**2 if kernel == "epanechnikov" else u), 0)
        if kernel == "boxcar":
            k = np.ceil(k)  # 1 wherever the triangle is above 0
        return np.log(k.astype(np.float32))
