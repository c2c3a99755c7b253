"""What a lab needs to check a backward pass written by hand.

`numerical_gradient` finds a gradient from the forward alone, `rel_error` says in one number how
far two arrays are apart, and `assert_gradients_close` compares gradients and, where they differ,
says which, where, and by how much.
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
    """What completion offers: not what this is written with."""
    return __all__


def numerical_gradient(
    f: Callable[[Array], ArrayLike],
    x: ArrayLike,
    *,
    grad_output: ArrayLike | None = None,
    eps: float = 1e-5,
) -> Array:
    """Gradient of a function by central differences in float64.

    Parameters
    ----------
    f : callable
        Takes a float64 array in the shape of `x` and returns a number or an array, computed in
        float64; the functions of `attnext.reference` are. Called twice for each entry of `x`, each
        time with a new array.
    x : array_like, shape (...)
        Where to take the gradient; real numbers of any dtype. Never written.
    grad_output : array_like in the shape of f(x), optional
        Gradient of the loss with respect to ``f(x)``, as a backward pass takes it: the result is
        the gradient of ``sum(grad_output * f(x))``. Needed unless f returns a single number.
    eps : float, optional
        How far an entry is moved, in either direction.

    Returns
    -------
    gradient : ndarray of float64, shape (...)
        In the shape of `x`.

    Raises
    ------
    TypeError
        `x` or `grad_output` is not of real numbers, or f returns float32 or no array at all.
    ValueError
        f returns an array but there is no `grad_output`, their shapes differ, f is not finite near
        `x`, or `eps` is not greater than 0.

    Notes
    -----
    ``(f(x + eps) - f(x - eps)) / (2 eps)``, one entry of `x` at a time. The error is about
    ``eps**2`` times the third derivative plus ``1e-16 / eps`` times f: a correct gradient agrees to
    1e-8 or better (Stanford CS231n, "Gradient checks"). In float32 that second term alone is
    some percent, which is why a function that returns float32 is refused.

    Examples
    --------
    >>> import numpy as np
    >>> from attnext import reference
    >>> from attnext.testing import numerical_gradient
    >>> numerical_gradient(lambda x: np.sum(x**2), [1.0, 2.0]).round(6)
    array([2., 4.])

    With an array-valued function, `grad_output` says what flows back into it:

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
        step = above[index] - below[index]  # 2 eps, as rounding has left it
        rise = _evaluate(f, above, g, index) - _evaluate(f, below, g, index)
        gradient[index] = np.sum(rise if g is None else g * rise) / step
    return gradient


def rel_error(a: ArrayLike, b: ArrayLike) -> float:
    """Largest difference of two arrays, relative to the largest entry of either.

    Parameters
    ----------
    a, b : array_like, shape (...)
        Real numbers of any dtype; both of the same shape.

    Returns
    -------
    error : float
        ``max|a - b| / max(|a|, |b|)``, from 0 to 2; 0 for arrays that are all zero or have no
        entries, NaN if there is a NaN or inf in either.

    Raises
    ------
    TypeError
        An argument is not of real numbers.
    ValueError
        The shapes differ. There is no broadcasting.

    Notes
    -----
    CS231n's function of this name divides each difference by the entry it belongs to. Here the
    largest entry of the array is the measure for all of them: an entry that is small because large
    terms cancel in it cannot be expected to have more correct digits than they have.

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
    """Raise an AssertionError that explains itself unless gradients agree.

    Parameters
    ----------
    actual, expected : array_like, or several in a tuple, list or dict
        What the backward pass gave, and what it should have given. Several gradients are compared
        one by one: tuples (named ones too) and lists of arrays in their order, dicts by their
        keys. None, for a parameter that is not there, agrees with None only.
    rtol : float, optional
        How far a gradient may be off, relative to its own largest entry. The default suits float32
        gradients; float64 ones should agree to 1e-7.
    atol : float, optional
        How far it may be off in any case; what decides where the true gradient is 0.
    names : str or sequence of str, optional
        What to call the gradient, or the gradients of a tuple or list, in the message. A named
        tuple has names of its own.

    Raises
    ------
    AssertionError
        Some gradient is missing, has another shape, is not finite, or is not close.
    TypeError
        A gradient is not of real numbers, or one is compared with several.

    Notes
    -----
    Close means ``max|actual - expected| <= atol + rtol * max(|actual|, |expected|)``, both maxima
    over the whole array (see `rel_error`).

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

    A forgotten factor, as the message tells it:

    >>> right = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> assert_gradients_close(right / 2, right, names="W_q")
    Traceback (most recent call last):
        ...
    AssertionError: the gradient of W_q is off by a relative error of 0.5, more than rtol=1e-05
      worst at index (1, 1): got 2, expected 4
      4 of 4 entries are off by more than 4e-05
      all of it is 0.5 times what was expected
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
    """What is wrong with a gradient, or None."""
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
        f"{np.sum(difference > allowed)} of {a.size} entries are off by more than {allowed:.3g}",
    ]
    factor = _common_factor(a, e)
    if factor is not None:
        lines.append(f"all of it is {factor:.4g} times what was expected")
    elif _largest(e) <= 1e-6 * _largest(a) or _largest(e) <= 10 * atol:
        lines.append("the expected gradient is 0 or close to it: if so, it is atol that decides")
    return "\n  ".join(lines)


def _common_factor(a: Array, e: Array) -> float | None:
    """c if a = c * e to three digits, c being neither 0 nor close to 1: a forgotten factor."""
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
    """What to call it, actual, expected: for each gradient there is."""
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        if actual.keys() != expected.keys():
            raise AssertionError(f"there are gradients {[*actual]}, expected {[*expected]}")
        return [(f"the gradient of {key}", actual[key], expected[key]) for key in expected]
    several = _are_several(actual) or _are_several(expected)
    if several and isinstance(actual, tuple | list) and isinstance(expected, tuple | list):
        if len(actual) != len(expected):
            raise AssertionError(f"there are {len(actual)} gradients, expected {len(expected)}")
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
        raise TypeError(f"{kinds}: one dict, tuple or list compares only with another")
    return [(f"the gradient of {names}" if names else "the gradient", actual, expected)]


def _are_several(x: Gradients) -> bool:
    """(dq, dk) is several gradients; [1.0, 2.0] is one, written in numbers."""
    return isinstance(x, tuple | list) and any(
        item is None or hasattr(item, "__array__") for item in x
    )


# ---- arrays --------------------------------------------------------------------------------------


def _real_array(name: str, value: Any) -> Array:
    """The value as a float64 array."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} has dtype {array.dtype}, expected real numbers")
    return array.astype(np.float64)


def _largest(*arrays: Array) -> float:
    return max(float(np.max(np.abs(x), initial=0.0)) for x in arrays)


def _evaluate(
    f: Callable[[Array], ArrayLike], x: Array, g: Array | None, moved: tuple[int, ...]
) -> Array:
    """f(x) as float64, of one number or in the shape of g, and finite."""
    result = f(x)
    if isinstance(result, tuple):
        raise TypeError(f"f returned a tuple of {len(result)}, expected one number or array")
    y = np.asarray(result)
    if y.dtype.kind == "f" and y.dtype.itemsize < 8:
        raise TypeError(
            f"f returned {y.dtype}, too coarse for differences this small: expected float64, as "
            "the functions of attnext.reference return"
        )
    y = _real_array("the result of f", y)
    if g is None and y.size != 1:
        raise ValueError(
            f"f returned an array of shape {y.shape}, expected one number, or a grad_output of "
            "that shape that says what flows back into it"
        )
    if g is not None and g.shape != y.shape:
        raise ValueError(f"grad_output has shape {g.shape}, expected {y.shape}, the shape of f(x)")
    if not np.isfinite(y).all():
        raise ValueError(f"f is not finite when the entry of x at index {moved} is moved a little")
    return y
