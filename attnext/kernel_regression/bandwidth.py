"""Leave one out: every example predicted from all the others, and the bandwidth that does it best.

A kernel regression judged by how well it predicts what it has seen would take an infinitely narrow
kernel and copy each y[i]. What an example is predicted from must not contain the example itself.
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

_SEARCHED = 64  # bandwidths, unless the caller says which


def leave_one_out(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    """For each example, the keys and values of all the others.

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
    d2l builds the same two arrays with a mask ``1 - eye(n)``. To train `NWKernelRegression` with;
    to judge a given bandwidth, `leave_one_out_error` makes no copies.

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
    """Root mean square of the errors, each example predicted from all the others.

    Parameters
    ----------
    x : array_like, shape (n,)
        Training inputs, two or more; the same input may occur again.
    y : array_like, shape (n,)
        Training targets.
    sigma : float, default 1.0
        Bandwidth of the kernel, > 0, in the units of `x`.
    kernel : str, default "gaussian"
        As in `nadaraya_watson`.
    empty_rows : {"uniform", "zero", "nan"}, default "uniform"
        What is predicted for an example that has no other within reach: the mean of all the
        others, 0, or NaN.

    Returns
    -------
    error : float
        In the units of `y`. NaN if a prediction or a target is.

    Raises
    ------
    TypeError
        If an argument does not hold real numbers, or `kernel` or `empty_rows` is not a str.
    ValueError
        If there are fewer than two examples, an argument is not one-dimensional, the two differ
        in length, `sigma` is not above 0, or there is no kernel or rule of that name.

    Notes
    -----
    sqrt(mean_i (y_i - f_i(x_i))^2), where f_i is `nadaraya_watson` of all examples but i. That is
    attention of the inputs over themselves with a mask on the diagonal: one call for all n
    predictions, and no n - 1 examples copied n times.

    Examples
    --------
    The middle one of three is predicted well by its neighbours' mean, the others not so well:

    >>> round(leave_one_out_error([0, 1, 2], [0, 1, 2], sigma=1.1, kernel="boxcar"), 4)
    0.8165

    The kernel that looks at no key tells how far average pooling is off:

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
    if empty_rows == "uniform":  # attention's own takes in all values, y[i] too
        empty = ~weights.any(axis=1)
        predictions[empty] = _means_of_the_others(targets)[empty]
    return float(np.sqrt(np.mean((predictions - targets) ** 2)))


class BandwidthChoice(NamedTuple):
    """What `choose_bandwidth` has found, and what it has tried.

    Parameters
    ----------
    sigma : float
        The bandwidth with the smallest error; of several, the widest.
    error : float
        Its leave-one-out error.
    sigmas : ndarray of float64
        The bandwidths tried, in the order in which they were given.
    errors : ndarray of float64
        The leave-one-out error of each.
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
        Training inputs, two or more; finite.
    y : array_like, shape (n,)
        Training targets; finite.
    sigmas : array_like, one axis, optional
        The bandwidths to try, in any order. By default 64 of them, evenly spaced on a logarithmic
        scale from half the median gap between neighbouring distinct inputs, where a prediction is
        little more than the nearest target, to the whole range of the inputs, where it is little
        less than the mean of all.
    kernel : str, default "gaussian"
        As in `nadaraya_watson`; not "constant", which has no width.
    empty_rows : {"uniform", "zero", "nan"}, default "uniform"
        As in `leave_one_out_error`. With "nan" a bandwidth that leaves an example with nothing
        within reach is out of the question.

    Returns
    -------
    BandwidthChoice
        The named tuple (sigma, error, sigmas, errors): the best bandwidth and its error, all that
        were tried and theirs.

    Raises
    ------
    TypeError
        As in `leave_one_out_error`.
    ValueError
        As in `leave_one_out_error`; if an example is not finite, the inputs are all the same and
        there are no `sigmas`, or no bandwidth has an error that is a number.

    Notes
    -----
    Least-squares cross-validation, as for instance in Haerdle, "Applied nonparametric regression",
    1990, chapter 5. `NWKernelRegression` follows the gradient of the same error down instead.

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
        raise ValueError("kernel is 'constant', expected one with a bandwidth to choose")
    tried = _evenly_spaced(inputs) if sigmas is None else _bandwidths(sigmas)
    errors = np.array(
        [
            leave_one_out_error(inputs, targets, sigma, kernel=kernel, empty_rows=empty_rows)
            for sigma in tried.tolist()
        ]
    )
    if np.isnan(errors).all():
        raise ValueError(
            f"sigmas are {tried.min():g} to {tried.max():g}, each with the error NaN, expected one "
            "that has another example within reach of every example"
        )
    error = float(np.nanmin(errors))
    return BandwidthChoice(float(tried[errors == error].max()), error, tried, errors)


def _examples(x: ArrayLike, y: ArrayLike, least: int) -> tuple[Array, Array]:
    """Inputs and targets (n,), n being this number or more."""
    inputs = as_float32("x", x, "n")
    targets = as_float32("y", y, inputs.size)
    if inputs.size < least:
        examples = "one example" if least == 1 else "two examples, one"
        raise ValueError(f"x has shape {inputs.shape}, expected at least {examples} to leave out")
    return inputs, targets


def _means_of_the_others(targets: Array) -> NDArray[np.float64]:
    """(n,): for each example, the mean of the other n - 1 targets."""
    wide = targets.astype(np.float64)
    means: NDArray[np.float64] = (wide.sum() - wide) / (wide.size - 1)
    return means


def _evenly_spaced(inputs: Array) -> NDArray[np.float64]:
    """Bandwidths on the scales of these inputs, from a gap between two to the range of all."""
    distinct = np.unique(inputs).astype(np.float64)
    if distinct.size == 1:
        raise ValueError(f"x is {distinct[0]:g} throughout, which sets no scale: expected sigmas")
    return np.geomspace(np.median(np.diff(distinct)) / 2, np.ptp(distinct), _SEARCHED)


def _bandwidths(sigmas: ArrayLike) -> NDArray[np.float64]:
    """The bandwidths given, of any real dtype, as float64."""
    tried = np.asarray(sigmas)
    if tried.dtype.kind not in "fiu":
        raise TypeError(f"sigmas has dtype {tried.dtype}, expected real numbers")
    if tried.ndim != 1 or tried.size == 0:
        raise ValueError(f"sigmas has shape {tried.shape}, expected one axis, not empty")
    return tried.astype(np.float64)
