"""Check a backward pass that was written by hand.

`numerical_gradient` computes a gradient from the forward function only. `rel_error` returns the
relative difference of two arrays. `assert_gradients_close` compares gradients; if they differ, its
error message says which gradient is wrong, at which index, and by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnext._hints import suggest_names as _suggest_names

__all__ = ["assert_gradients_close", "numerical_gradient", "rel_error"]

_suggest_names(__name__, __all__)

Array: TypeAlias = NDArray[np.float64]

# One gradient, or several: a tuple (named or not), a list of arrays, or a dict.
Gradients: TypeAlias = ArrayLike | Mapping[str, Any] | Sequence[Any] | None


def __dir__() -> list[str]:
    """Return the public names, so that completion does not offer the imports."""
    return __all__


def numerical_gradient(
    f: Callable[[Array], ArrayLike],
    x: ArrayLike,
    *,
    grad_output: ArrayLike | None = None,
    eps: float = 1e-5,
) -> Array:
    """Compute the gradient of a function by central differences in float64.

    Parameters
    ----------
    f : callable
        A function that takes a float64 array of the shape of `x`. It returns a number or an array
        computed in float64, as the functions of `attnext.reference` do. It is called twice for each
        element of `x`, each time with a new array.
    x : array_like, shape (...)
        The point at which to compute the gradient, with real numbers of any dtype. It is not
        modified.
    grad_output : array_like in the shape of f(x), optional
        Gradient of the loss with respect to ``f(x)``, the same as in a backward pass. The result is
        then the gradient of ``sum(grad_output * f(x))``. Required unless f returns a single number.
    eps : float, optional
        Step size: each element is increased and decreased by `eps`.

    Returns
    -------
    gradient : ndarray of float64, shape (...)
        The gradient, in the shape of `x`.

    Raises
    ------
    TypeError
        If `x` or `grad_output` does not contain real numbers, or f returns float32 or something
        that is not an array.
    ValueError
        If f returns an array and `grad_output` is missing or has another shape, if f is not finite
        near `x`, or if `eps` is not above 0.

    Notes
    -----
    The gradient is ``(f(x + eps) - f(x - eps)) / (2 eps)``, computed for one element of `x` at a
    time. The error is about ``eps**2`` times the third derivative, plus ``1e-16 / eps`` times f. A
    correct gradient therefore agrees to 1e-8 or better (Stanford CS231n, "Gradient checks"). In
    float32 the second term would be a few percent, so functions that return float32 are not
    accepted.

    Examples
    --------
    >>> import numpy as np
    >>> from attnext import reference
    >>> from attnext.testing import numerical_gradient
    >>> numerical_gradient(lambda x: np.sum(x**2), [1.0, 2.0]).round(6)
    array([2., 4.])

    If the function returns an array, `grad_output` is its upstream gradient:

    >>> numerical_gradient(reference.masked_softmax, [0.0, 0.0], grad_output=[1, 0]).round(6)
    array([ 0.25, -0.25])
    """
    x = _real_array("x", x)
    g = None if grad_output is None else _real_array("grad_output", grad_output)
    if not eps > 0:
        raise ValueError(f"eps is {eps!r}, expected eps > 0")
    gradient = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        above, below = x.copy(), x.copy()
        above[index] += eps
        below[index] -= eps
        step = above[index] - below[index]  # 2 eps after rounding
        rise = _evaluate(f, above, g, index) - _evaluate(f, below, g, index)
        gradient[index] = np.sum(rise if g is None else g * rise) / step
    return gradient


def rel_error(a: ArrayLike, b: ArrayLike) -> float:
    """Return the largest difference of two arrays, relative to their largest element.

    Parameters
    ----------
    a, b : array_like, shape (...)
        Two arrays of the same shape, with real numbers of any dtype.

    Returns
    -------
    error : float
        ``max|a - b| / max(|a|, |b|)``, between 0 and 2. It is 0 if both arrays are all zeros or
        empty, and NaN if an array contains NaN or inf.

    Raises
    ------
    TypeError
        If an argument does not contain real numbers.
    ValueError
        If the shapes differ, because there is no broadcasting.

    Notes
    -----
    The function of the same name in CS231n divides each difference by the element it belongs to.
    This one divides all differences by the largest element. The reason: if large terms cancel in an
    element, its rounding error is as large as that of the terms, even though the element is small.

    Examples
    --------
    >>> from attnext.testing import rel_error
    >>> rel_error([1.0, 100.0], [1.5, 100.0])
    0.005
    """
    a, b = _real_array("a", a), _real_array("b", b)
    if a.shape != b.shape:
        raise ValueError(f"b has shape {b.shape}, expected {a.shape}, the shape of a")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("nan")
    largest = _largest(a, b)
    return 0.0 if largest == 0 else float(np.max(np.abs(a - b)) / largest)


def assert_gradients_close(
    actual: Gradients,
    expected: Gradients,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    names: Sequence[str] | None = None,
) -> None:
    """Raise an AssertionError with an explanation unless the gradients agree.

    Parameters
    ----------
    actual, expected : array_like, or several in a tuple, list or dict
        The gradients of the backward pass, and the correct gradients. Tuples, named tuples and
        lists are compared in order, and dicts by key. None stands for a missing parameter and
        equals only None.
    rtol : float, optional
        Allowed difference relative to the largest element of the gradient. The default fits float32
        gradients; use 1e-7 for float64 gradients.
    atol : float, optional
        Allowed absolute difference. If the correct gradient is 0, only `atol` matters.
    names : str or sequence of str, optional
        The name of the gradient in the message, or one name for each gradient of a tuple or list.
        Default: the field names of a named tuple.

    Raises
    ------
    AssertionError
        If a gradient is missing, has another shape, is not finite, or is not close.
    TypeError
        If a gradient does not contain real numbers, or a single gradient is compared with several.

    Notes
    -----
    Gradients are close if ``max|actual - expected| <= atol + rtol * max(|actual|, |expected|)``.
    Both maxima are over the whole array (see `rel_error`).

    Examples
    --------
    >>> import numpy as np
    >>> from attnext import reference
    >>> from attnext.testing import assert_gradients_close, numerical_gradient
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 2, 4))
    >>> g = np.ones((2, 4))
    >>> dq, dk, dv = reference.dot_product_attention_backward(g, q, k, v)
    >>> numerical = numerical_gradient(
    ...     lambda k: reference.dot_product_attention(q, k, v), k, grad_output=g
    ... )
    >>> assert_gradients_close(dk, numerical, rtol=1e-7)

    The message if a factor of 2 is missing:

    >>> right = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> assert_gradients_close(right / 2, right, names="W_q")
    Traceback (most recent call last):
        ...
    AssertionError: the gradient of W_q is off by a relative error of 0.5, more than rtol=1e-05
      worst at index (1, 1): got 2, expected 4
      4 of 4 elements are off by more than 4e-05
      the whole gradient is 0.5 times the expected gradient
    """
    problems = [
        problem
        for name, a, e in _pair_up(actual, expected, names)
        if (problem := _compare(name, a, e, rtol, atol)) is not None
    ]
    if problems:
        raise AssertionError("\n".join(problems))


# ---- one gradient --------------------------------------------------------------------------------


def _compare(name: str, actual: Any, expected: Any, rtol: float, atol: float) -> str | None:
    """Return a message that says what is wrong with a gradient, or None."""
    if actual is None or expected is None:
        if actual is expected:
            return None
        got, want = ("None" if x is None else "an array" for x in (actual, expected))
        return f"{name} is {got}, expected {want}"
    a, e = _real_array(name, actual), _real_array(f"expected {name}", expected)
    if a.shape != e.shape:
        hint = " (is it the transpose?)" if a.ndim > 1 and a.T.shape == e.shape else ""
        return f"{name} has shape {a.shape}, expected {e.shape}{hint}"
    for what, x in [(name, a), (f"the expected value of {name}", e)]:
        if not np.isfinite(x).all():
            bad = np.argwhere(~np.isfinite(x))
            index = tuple(int(i) for i in bad[0])
            return f"{what} is {x[index]} at index {index}; {len(bad)} of {x.size} are not finite"
    difference, allowed = np.abs(a - e), atol + rtol * _largest(a, e)
    if not (difference > allowed).any():
        return None
    worst = tuple(int(i) for i in np.unravel_index(np.argmax(difference), a.shape))
    lines = [
        f"{name} is off by a relative error of {rel_error(a, e):.3g}, more than rtol={rtol:.3g}",
        f"worst at index {worst}: got {a[worst]:.6g}, expected {e[worst]:.6g}",
        f"{np.sum(difference > allowed)} of {a.size} elements are off by more than {allowed:.3g}",
    ]
    factor = _common_factor(a, e)
    if factor is not None:
        lines.append(f"the whole gradient is {factor:.4g} times the expected gradient")
    elif _largest(e) <= 1e-6 * _largest(a) or _largest(e) <= 10 * atol:
        lines.append(
            "the expected gradient is 0 or close to 0: set atol to the difference that you allow"
        )
    return "\n  ".join(lines)


def _common_factor(a: Array, e: Array) -> float | None:
    """Return c if a = c * e to three digits and c is neither 0 nor close to 1, otherwise None."""
    largest = _largest(e)
    if a.size < 2 or largest == 0:
        return None
    unit = e / largest
    c = float(np.sum(a * unit) / np.sum(unit * unit) / largest)
    if c == 0 or abs(c - 1) < 0.01 or rel_error(a, c * e) > 1e-3:
        return None
    return c


# ---- several gradients ---------------------------------------------------------------------------


def _pair_up(
    actual: Gradients, expected: Gradients, names: Sequence[str] | None
) -> list[tuple[str, Any, Any]]:
    """Return (name, actual, expected) for each gradient."""
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        if actual.keys() != expected.keys():
            raise AssertionError(f"actual has gradients {[*actual]}, expected {[*expected]}")
        return [(f"the gradient of {key}", actual[key], expected[key]) for key in expected]
    several = _are_several(actual) or _are_several(expected)
    if several and isinstance(actual, tuple | list) and isinstance(expected, tuple | list):
        if len(actual) != len(expected):
            raise AssertionError(f"actual has {len(actual)} gradients, expected {len(expected)}")
        names = names or getattr(actual, "_fields", None) or getattr(expected, "_fields", None)
        if names is None:
            called = [f"gradient {i}" for i in range(len(expected))]
        elif isinstance(names, str) or len(names) != len(expected):
            raise ValueError(f"names is {names!r}, expected {len(expected)} names")
        else:
            called = [f"the gradient of {name}" for name in names]
        return list(zip(called, actual, expected, strict=True))
    if several or isinstance(actual, Mapping) or isinstance(expected, Mapping):
        kinds = f"actual is {type(actual).__name__}, expected is {type(expected).__name__}"
        raise TypeError(
            f"{kinds}, expected both to be dicts, both tuples or lists, or both single arrays"
        )
    return [(f"the gradient of {names}" if names else "the gradient", actual, expected)]


def _are_several(x: Gradients) -> bool:
    """True for several gradients such as (dq, dk), False for one such as [1.0, 2.0]."""
    return isinstance(x, tuple | list) and any(
        item is None or hasattr(item, "__array__") for item in x
    )


# ---- arrays --------------------------------------------------------------------------------------


def _real_array(name: str, value: Any) -> Array:
    """Return the value as a float64 array."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} has dtype {array.dtype}, expected real numbers")
    return array.astype(np.float64)


def _largest(*arrays: Array) -> float:
    return max(float(np.max(np.abs(x), initial=0.0)) for x in arrays)


def _evaluate(
    f: Callable[[Array], ArrayLike], x: Array, g: Array | None, moved: tuple[int, ...]
) -> Array:
    """Return f(x) as float64. Raise an error if its type or shape is wrong or it is not finite."""
    result = f(x)
    if isinstance(result, tuple):
        raise TypeError(f"f returned a tuple of {len(result)}, expected one number or array")
    y = np.asarray(result)
    if y.dtype.kind == "f" and y.dtype.itemsize < 8:
        raise TypeError(
            f"f returned {y.dtype}, expected float64 because the differences are small: use the "
            "functions of attnext.reference, or compute in float64"
        )
    y = _real_array("the result of f", y)
    if g is None and y.size != 1:
        raise ValueError(
            f"f returned an array of shape {y.shape}, expected one number: pass a grad_output of "
            "this shape, the upstream gradient"
        )
    if g is not None and g.shape != y.shape:
        raise ValueError(f"grad_output has shape {g.shape}, expected {y.shape}, the shape of f(x)")
    if not np.isfinite(y).all():
        raise ValueError(
            f"f is not finite near x, expected finite numbers: x was moved by eps at index {moved}"
        )
    return y
