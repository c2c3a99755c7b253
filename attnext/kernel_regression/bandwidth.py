"""Leave-one-out cross-validation: predict each example from all others, and choose a bandwidth.

On its own training examples, a kernel regression has no error with an infinitely narrow kernel,
because it copies each y[i]. Therefore the example itself must not be used in its prediction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnext._core import gaussian_attention

from .inputs import as_float32
from .kernels import kernel_as_attention

if TYPE_CHECKING:
    from .inputs import Array
    from .kernels import EmptyRows, Kernel

_SEARCHED = 64  # default number of bandwidths to try


def leave_one_out(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    """Return, for each example, the keys and values of all other examples.

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
    d2l builds the same two arrays with a mask ``1 - eye(n)``. Use them to train
    `NWKernelRegression`. To evaluate a given bandwidth, `leave_one_out_error` needs less memory.

    Examples
    --------
    >>> keys, values = leave_one_out([1, 2, 3], [10, 20, 30])
    >>> keys
    array([[2., 3.],
           [1., 3.],
           [1., 2.]], dtype=float32)
    """
    inputs, targets = _examples(x, y, least=1)
    n = inputs.size
    others = np.arange(n - 1) + (np.arange(n - 1) >= np.arange(n)[:, None])
    return inputs[others], targets[others]


def leave_one_out_error(
    x: ArrayLike,
    y: ArrayLike,
    sigma: float = 1.0,
    *,
    kernel: Kernel = "gaussian",
    empty_rows: EmptyRows = "uniform",
) -> float:
    """Return the root mean squared error when each example is predicted from all others.

    Parameters
    ----------
    x : array_like, shape (n,)
        Training inputs, at least two. Duplicates are allowed.
    y : array_like, shape (n,)
        Training targets.
    sigma : float, default 1.0
        Bandwidth of the kernel, > 0, in the units of `x`.
    kernel : str, default "gaussian"
        As in `nadaraya_watson`.
    empty_rows : {"uniform", "zero", "nan"}, default "uniform"
        Prediction for an example if the kernel is 0 for all other examples: the mean of the other
        targets, 0, or NaN.

    Returns
    -------
    error : float
        The error, in the units of `y`. NaN if a prediction or a target is NaN.

    Raises
    ------
    TypeError
        If an argument does not hold real numbers, or `kernel` or `empty_rows` is not a str.
    ValueError
        If there are fewer than two examples, an argument is not one-dimensional, the two differ
        in length, `sigma` is not above 0, or the name in `kernel` or `empty_rows` is unknown.

    Notes
    -----
    The error is sqrt(mean_i (y_i - f_i(x_i))^2), where f_i is `nadaraya_watson` of all examples
    except i. All n predictions are computed by one self-attention with a masked diagonal, so no
    example is copied.

    Examples
    --------
    The mean of its two neighbours predicts the middle example exactly. The others have an error:

    >>> round(leave_one_out_error([0, 1, 2], [0, 1, 2], sigma=1.1, kernel="boxcar"), 4)
    0.8165

    The constant kernel gives the error of average pooling:

    >>> round(leave_one_out_error([0, 1, 2], [0, 1, 2], kernel="constant"), 4)
    1.2247
    """
    inputs, targets = _examples(x, y, least=2)
    attention = kernel_as_attention(inputs, inputs, targets, sigma, kernel)
    output, weights = gaussian_attention(
        **attention,
        mask=~np.eye(inputs.size, dtype=bool),
        empty_rows="zero" if empty_rows == "uniform" else empty_rows,
        return_weights=True,
    )
    predictions = output[:, 0].astype(np.float64)
    if empty_rows == "uniform":  # the rule of attention would include y[i]
        empty = ~weights.any(axis=1)
        predictions[empty] = _means_of_the_others(targets)[empty]
    return float(np.sqrt(np.mean((predictions - targets) ** 2)))


class BandwidthChoice(NamedTuple):
    """The result of `choose_bandwidth`.

    Parameters
    ----------
    sigma : float
        The bandwidth with the smallest error. If several have the same error, the largest.
    error : float
        The leave-one-out error of `sigma`.
    sigmas : ndarray of float64
        All bandwidths that were tried, in the given order.
    errors : ndarray of float64
        The leave-one-out error of each bandwidth.
    """

    sigma: float
    error: float
    sigmas: NDArray[np.float64]
    errors: NDArray[np.float64]


def choose_bandwidth(
    x: ArrayLike,
    y: ArrayLike,
    sigmas: ArrayLike | None = None,
    *,
    kernel: Kernel = "gaussian",
    empty_rows: EmptyRows = "uniform",
) -> BandwidthChoice:
    """Choose the bandwidth with the smallest leave-one-out error.

    Parameters
    ----------
    x : array_like, shape (n,)
        Training inputs, at least two, all finite.
    y : array_like, shape (n,)
        Training targets, all finite.
    sigmas : array_like, one axis, optional
        The bandwidths to try, in any order. Default: 64 bandwidths, evenly spaced on a logarithmic
        scale. The smallest is half the median gap between neighbouring distinct inputs, where a
        prediction is almost the nearest target. The largest is the range of the inputs, where a
        prediction is almost the mean of all targets.
    kernel : str, default "gaussian"
        The same as in `nadaraya_watson`, except "constant", which has no bandwidth.
    empty_rows : {"uniform", "zero", "nan"}, default "uniform"
        The same as in `leave_one_out_error`. With "nan", a bandwidth is not chosen if the kernel is
        0 between some example and all others.

    Returns
    -------
    BandwidthChoice
        A named tuple (sigma, error, sigmas, errors): the best bandwidth and its error, then all
        bandwidths that were tried and their errors.

    Raises
    ------
    TypeError
        The same as in `leave_one_out_error`.
    ValueError
        The same as in `leave_one_out_error`. Also if an example is not finite, if all inputs are
        equal and `sigmas` is not given, or if the error is NaN for every bandwidth.

    Notes
    -----
    This is least-squares cross-validation (see Haerdle, "Applied nonparametric regression", 1990,
    chapter 5). `NWKernelRegression` can minimise the same error by gradient descent instead.

    Examples
    --------
    >>> x = np.linspace(0, 6, 30)
    >>> y = np.sin(x) + np.random.default_rng(0).normal(0, 0.1, 30)
    >>> choice = choose_bandwidth(x, y)
    >>> round(choice.sigma, 2), round(choice.error, 3)
    (0.1, 0.104)
    >>> choose_bandwidth(x, y, [0.1, 0.5, 1.0], kernel="boxcar").sigma
    0.5
    """
    inputs, targets = _examples(x, y, least=2)
    for name, array in (("x", inputs), ("y", targets)):
        if not np.isfinite(array).all():
            i = int(np.argmin(np.isfinite(array)))
            raise ValueError(f"{name} is {array[i]} at index {i}, expected finite numbers")
    if kernel == "constant":
        raise ValueError("kernel is 'constant', expected a kernel that has a bandwidth")
    tried = _evenly_spaced(inputs) if sigmas is None else _bandwidths(sigmas)
    errors = np.array(
        [
            leave_one_out_error(inputs, targets, sigma, kernel=kernel, empty_rows=empty_rows)
            for sigma in tried.tolist()
        ]
    )
    if np.isnan(errors).all():
        raise ValueError(
            f"sigmas are {tried.min():g} to {tried.max():g} and all give the error NaN, expected "
            "one for which each example has a neighbour within the kernel: add larger sigmas"
        )
    error = float(np.nanmin(errors))
    return BandwidthChoice(float(tried[errors == error].max()), error, tried, errors)


def _examples(x: ArrayLike, y: ArrayLike, least: int) -> tuple[Array, Array]:
    """Return inputs and targets (n,), with n >= least."""
    inputs = as_float32("x", x, "n")
    targets = as_float32("y", y, inputs.size)
    if inputs.size < least:
        examples = "one example" if least == 1 else "two examples"
        raise ValueError(f"x has shape {inputs.shape}, expected at least {examples}")
    return inputs, targets


def _means_of_the_others(targets: Array) -> NDArray[np.float64]:
    """Return, for each example, the mean of the other n - 1 targets, (n,)."""
    wide = targets.astype(np.float64)
    means: NDArray[np.float64] = (wide.sum() - wide) / (wide.size - 1)
    return means


def _evenly_spaced(inputs: Array) -> NDArray[np.float64]:
    """Return bandwidths from half the median gap of the inputs to their range."""
    distinct = np.unique(inputs).astype(np.float64)
    if distinct.size == 1:
        raise ValueError(
            f"x is {distinct[0]:g} for all examples, expected different inputs: pass sigmas"
        )
    return np.geomspace(np.median(np.diff(distinct)) / 2, np.ptp(distinct), _SEARCHED)


def _bandwidths(sigmas: ArrayLike) -> NDArray[np.float64]:
    """Return the given bandwidths as float64."""
    tried = np.asarray(sigmas)
    if tried.dtype.kind not in "fiu":
        raise TypeError(f"sigmas has dtype {tried.dtype}, expected real numbers")
    if tried.ndim != 1 or tried.size == 0:
        raise ValueError(f"sigmas has shape {tried.shape}, expected (n,) with n >= 1")
    return tried.astype(np.float64)
