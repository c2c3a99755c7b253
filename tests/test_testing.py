"""attnext.testing: right gradients pass, wrong ones fail, and the message says where and why."""

from __future__ import annotations

import doctest
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from attnext import reference, testing
from attnext.testing import assert_gradients_close, numerical_gradient, rel_error


class Pair(NamedTuple):
    W: Any
    b: Any


# ---- numerical_gradient ------------------------------------------------------------------------


def test_gradient_of_a_number() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3))
    assert rel_error(numerical_gradient(lambda x: np.sum(np.sin(x)), x), np.cos(x)) < 1e-9
    assert rel_error(numerical_gradient(lambda x: float(np.prod(x)), x), np.prod(x) / x) < 1e-9


def test_gradient_of_an_array_contracts_with_grad_output() -> None:
    rng = np.random.default_rng(0)
    A, x, g = rng.normal(size=(4, 3)), rng.normal(size=3), rng.normal(size=4)
    assert rel_error(numerical_gradient(lambda x: A @ x, x, grad_output=g), g @ A) < 1e-9
    assert rel_error(numerical_gradient(lambda x: x, x, grad_output=x), x) < 1e-9


@pytest.mark.parametrize("x", [2.0, np.float32(2), [2], np.array([[2]]), np.array(2, dtype=">f4")])
def test_x_of_any_real_kind(x: Any) -> None:
    gradient = numerical_gradient(lambda x: x**3, x)
    assert gradient.shape == np.shape(x) and gradient.dtype == np.float64
    assert_allclose(gradient, np.full(np.shape(x), 12.0), rtol=1e-9)


def test_x_is_not_written_and_f_cannot_spoil_the_result() -> None:
    x = np.array([1.0, 2.0])

    def f(x: Any) -> Any:
        result = np.sum(x**2)
        x[:] = 0
        return result

    assert_allclose(numerical_gradient(f, x), [2, 4], rtol=1e-9)
    assert_array_equal(x, [1, 2])
    assert numerical_gradient(f, np.zeros((0, 3))).shape == (0, 3)


def test_eps_is_the_distance_moved() -> None:
    seen: list[float] = []
    numerical_gradient(lambda x: seen.append(float(x[0])) or x[0], [1.0], eps=0.25)
    assert seen == [1.25, 0.75]
    # x^3: the error of central differences is eps^2
    assert_allclose(numerical_gradient(lambda x: x**3, 1.0, eps=0.25), 3 + 0.25**2)


def test_a_step_lost_to_rounding_does_not_spoil_the_result() -> None:
    """At 1e9 a step of 1e-5 is moved by 7e-8 to the next number there is."""
    assert rel_error(numerical_gradient(lambda x: x[0], [1e9 + 1]), [1.0]) < 1e-12


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: numerical_gradient(lambda x: x, [1.0, 2.0]), ValueError,
         "f returned an array of shape (2,), expected one number: pass a grad_output"),
        (lambda: numerical_gradient(lambda x: x, [1.0], grad_output=[1.0, 2.0]), ValueError,
         "grad_output has shape (2,), expected (1,), the shape of f(x)"),
        (lambda: numerical_gradient(lambda x: x, [1.0], grad_output="a"), TypeError,
         "grad_output has dtype <U1, expected real numbers"),
        (lambda: numerical_gradient(lambda x: np.float32(x[0]), [1.0]), TypeError,
         "f returned float32, expected float64"),
        (lambda: numerical_gradient(lambda x: (x, x), [1.0]), TypeError,
         "f returned a tuple of 2, expected one number or array"),
        (lambda: numerical_gradient(lambda x: None, [1.0]), TypeError,
         "the result of f has dtype object, expected real numbers"),
        (lambda: numerical_gradient(lambda x: np.log(np.maximum(x, 0)).sum(), [1.0, 1e-6]),
         ValueError, "f is not finite near x, expected finite numbers: x was moved by eps"),
        (lambda: numerical_gradient(lambda x: x, [1j]), TypeError,
         "x has dtype complex128, expected real numbers"),
        (lambda: numerical_gradient(lambda x: x, 1.0, eps=0), ValueError,
         "eps is 0, expected eps > 0"),
        (lambda: numerical_gradient(lambda x: x, 1.0, eps=np.nan), ValueError, "eps is nan"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_numerical_gradient_says_what_is_wrong(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()


# ---- rel_error ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "a, b, expected",
    [
        ([1.0, 4.0], [1.0, 4.0], 0),
        ([1.0, 4.0], [2.0, 4.0], 0.25),
        ([1.0, 4.0], [1.0, 5.0], 0.2),
        ([[-2.0]], [[2.0]], 2),
        (3, 4, 0.25),
        ([0.0], [1e-300], 1),
        ([0.0, 0.0], [0.0, -0.0], 0),
        ([], [], 0),
        ([1.0, np.nan], [1.0, np.nan], np.nan),
        ([np.inf], [1.0], np.nan),
    ],
)
def test_rel_error(a: Any, b: Any, expected: float) -> None:
    assert_array_equal(rel_error(a, b), expected)
    assert_array_equal(rel_error(b, a), expected)
    assert isinstance(rel_error(a, b), float)


def test_rel_error_does_not_broadcast() -> None:
    with pytest.raises(ValueError, match=r"b has shape \(1,\), expected \(2,\)"):
        rel_error([1.0, 1.0], [1.0])
    with pytest.raises(TypeError, match="a has dtype bool"):
        rel_error([True], [1.0])


# ---- assert_gradients_close --------------------------------------------------------------------


@pytest.mark.parametrize(
    "actual, expected",
    [
        ([1.0, 2.0], [1.0, 2.00001]),
        (np.float32(0.1), 0.1),
        (np.zeros((2, 0)), np.zeros((2, 0))),
        ((np.ones(2), np.zeros(3)), (np.ones(2), np.full(3, 1e-9))),
        ([np.ones(2), None], (np.ones(2), None)),
        ((np.float32(1), np.float32(2)), (1.0, 2.0)),
        (Pair(np.ones(2), None), (np.ones(2), None)),
        ({"W": np.ones(2), "b": None}, {"b": None, "W": [1, 1]}),
    ],
)
def test_close_gradients_pass(actual: Any, expected: Any) -> None:
    assert_gradients_close(actual, expected)
    assert_gradients_close(expected, actual)


ONES = np.ones((2, 3))
ALMOST = ONES.copy()
ALMOST[1, 2] = 1.5


@pytest.mark.parametrize(
    "actual, expected, message",
    [
        (ALMOST, ONES,
         "the gradient is off by a relative error of 0.333, more than rtol=1e-05\n"
         "  worst at index (1, 2): got 1.5, expected 1\n"
         "  1 of 6 elements are off by more than 1.5e-05"),
        (-ALMOST, ALMOST, "  the whole gradient is -1 times the expected gradient"),
        (np.arange(6.0) / 4, np.arange(6.0), "  the whole gradient is 0.25 times the expected"),
        ([1e-3, 0.0], [0.0, 0.0], "  the expected gradient is 0 or close to 0"),
        (ONES, ONES.T, "the gradient has shape (2, 3), expected (3, 2) (is it the transpose?)"),
        (ONES, ONES[0], "the gradient has shape (2, 3), expected (3,)"),
        ([1.0, np.nan], [1.0, 2.0],
         "the gradient is nan at index (1,); 1 of 2 are not finite"),
        ([1.0, 2.0], [-np.inf, np.inf],
         "the expected value of the gradient is -inf at index (0,); 2 of 2 are not finite"),
        (None, ONES, "the gradient is None, expected an array"),
        (ONES, None, "the gradient is an array, expected None"),
        ((ONES, ONES, ALMOST), (ONES, ALMOST, ONES),
         "gradient 1 is off by a relative error of 0.333"),
        ((ONES, ONES, ALMOST), (ONES, ALMOST, ONES),
         "gradient 2 is off by a relative error of 0.333"),
        (Pair(ONES, ALMOST), Pair(ONES, ONES), "the gradient of b is off"),
        ([ONES, ALMOST], Pair(ONES, ONES), "the gradient of b is off"),
        ((ONES, ONES), (ONES,), "actual has 2 gradients, expected 1"),
        ({"W": ONES, "b": ALMOST}, {"b": ONES, "W": ONES}, "the gradient of b is off"),
        ({"W": ONES}, {"W": ONES, "b": ONES}, "actual has gradients ['W'], expected ['W', 'b']"),
    ],
)  # fmt: skip
def test_wrong_gradients_fail_and_say_why(actual: Any, expected: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(message)):
        assert_gradients_close(actual, expected)


def test_a_right_gradient_is_not_mentioned() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_gradients_close((ONES, ALMOST), (ONES, ONES), names=["keys", "values"])
    assert str(caught.value).startswith("the gradient of values is off")
    assert "keys" not in str(caught.value) and "times what" not in str(caught.value)
    with pytest.raises(AssertionError, match=r"^the gradient of W_q is off"):
        assert_gradients_close(ALMOST, ONES, names="W_q")


def test_tolerances() -> None:
    """max|a - e| <= atol + rtol * max, right at the edge; the numbers are exact in binary."""
    assert_gradients_close([1.0, 8.0], [1.5, 8.0], rtol=1 / 16, atol=0)
    assert_gradients_close([0.0], [0.25], rtol=0, atol=0.25)
    assert_gradients_close([0.5, 8.0], [1.5, 8.0], rtol=1 / 16, atol=0.5)
    for rtol, atol in [(1 / 17, 0), (0, 0.49), (1 / 32, 0.24)]:
        with pytest.raises(AssertionError):
            assert_gradients_close([1.0, 8.0], [1.5, 8.0], rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    "actual, expected, names, error, message",
    [
        ({"W": ONES}, (ONES,), None, TypeError, "actual is dict, expected is tuple"),
        (ONES, (ONES, ONES), None, TypeError, "actual is ndarray, expected is tuple"),
        (ONES, {"W": ONES}, None, TypeError, "actual is ndarray, expected is dict"),
        (ONES > 0, ONES, "W", TypeError, "the gradient of W has dtype bool, expected real numbers"),
        ((ONES, ONES), (ONES, ONES), ["W"], ValueError, "names is ['W'], expected 2 names"),
        ((ONES, ONES), (ONES, ONES), "Wb", ValueError, "names is 'Wb', expected 2 names"),
    ],
)  # fmt: skip
def test_misuse_is_told_apart_from_a_wrong_gradient(
    actual: Any, expected: Any, names: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        assert_gradients_close(actual, expected, names=names)


# ---- together ----------------------------------------------------------------------------------


def test_a_lab_finds_the_forgotten_scale() -> None:
    """dq without the 1 / sqrt(D) of the forward: the factor is in the message."""
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 4))
    g = np.ones((2, 4))
    g[0, 0] = 2
    dq, _, _ = reference.dot_product_attention_backward(g, q, k, v)
    numerical = numerical_gradient(
        lambda q: reference.dot_product_attention(q, k, v), q, grad_output=g
    )
    assert_gradients_close(dq, numerical, rtol=1e-7)
    with pytest.raises(AssertionError, match="the whole gradient is 2 times the expected gradient"):
        assert_gradients_close(dq * 2, numerical, names="queries")


def test_examples() -> None:
    failed, tried = doctest.testmod(testing)
    assert failed == 0 and tried >= 10
