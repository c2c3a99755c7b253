"""attnext.kernel_regression: against the formulas, d2l's PyTorch code and finite differences."""

from __future__ import annotations

import copy
import doctest
import importlib
import pickle
import tracemalloc
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from attnext import masked_softmax
from attnext._data import motorcycle
from attnext.kernel_regression import (
    BandwidthChoice,
    NWKernelRegression,
    average_pooling,
    choose_bandwidth,
    leave_one_out,
    leave_one_out_error,
    nadaraya_watson,
)

F32 = np.float32
Floats = NDArray[np.floating]


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=F32)


def f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, F32)


def formula(q: Floats, k: Floats, v: Floats, w: float) -> tuple[Floats, Floats]:
    """Predictions and weights in float64, straight from the definition; k, v are (n, N)."""
    scores = -((np.float64(w) * (q[:, None].astype(float) - k)) ** 2) / 2
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return (weights * v).sum(-1), weights


class D2lRegression(torch.nn.Module):
    """d2l's class, its meaning written again in PyTorch."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([w]))

    def forward(self, queries: Any, keys: Any, values: Any) -> Any:
        queries = queries.repeat_interleave(keys.shape[1]).reshape(-1, keys.shape[1])
        self.attention_weights = torch.softmax(-(((queries - keys) * self.w) ** 2) / 2, dim=1)
        return torch.bmm(self.attention_weights[:, None], values[..., None]).reshape(-1)


# ---- the functions -----------------------------------------------------------------------------


def test_average_pooling_is_the_mean_for_every_query() -> None:
    y = random(50)
    result = average_pooling(np.linspace(0, 5, 7), y)
    assert result.shape == (7,) and result.dtype == F32
    assert_allclose(result, np.full(7, y.mean(dtype=float)), rtol=0, atol=1e-6)


def test_average_pooling_does_not_read_the_queries() -> None:
    assert_array_equal(average_pooling([np.nan, np.inf], [1.0, 2.0]), f32(1.5, 1.5))


def test_average_pooling_over_nothing_is_zero() -> None:
    assert_array_equal(average_pooling([1.0, 2.0], []), f32(0, 0))
    assert average_pooling([], [1.0]).shape == (0,)


@pytest.mark.parametrize(("n", "N"), [(1, 1), (5, 3), (33, 50), (50, 133)])
def test_nadaraya_watson_against_the_formula(n: int, N: int) -> None:
    x, x_train, y_train = random(n, seed=1), random(N, seed=2), random(N, seed=3)
    for sigma in (0.05, 0.3, 1.0, 7.0, 1e4):
        y, weights = nadaraya_watson(x, x_train, y_train, sigma, return_weights=True)
        keys = np.broadcast_to(x_train, (n, N))
        expected, expected_weights = formula(x, keys, np.broadcast_to(y_train, (n, N)), 1 / sigma)
        assert y.shape == (n,) and weights.shape == (n, N) and y.dtype == weights.dtype == F32
        # A score of size s is known to s * 2^-22 in float32, and so is the logarithm of its weight.
        tolerance = 2e-6 + 2.0**-22 * float(np.min((x[:, None] - keys) ** 2, 1).max()) / sigma**2
        assert_allclose(weights, expected_weights, rtol=0, atol=tolerance)
        assert_allclose(y, expected, rtol=0, atol=tolerance * 2 * np.abs(y_train).max())
        assert_array_equal(nadaraya_watson(x, x_train, y_train, sigma), y)


def test_nadaraya_watson_is_what_d2l_computes() -> None:
    x, x_train, y_train = np.arange(0, 5, 0.1, dtype=F32), random(50), random(50, seed=1)
    scores = -((torch.tensor(x)[:, None] - torch.tensor(x_train)) ** 2) / 2
    weights = torch.softmax(scores, dim=1)
    ours, our_weights = nadaraya_watson(x, x_train, y_train, return_weights=True)
    assert_allclose(our_weights, weights, rtol=0, atol=1e-6)
    assert_allclose(ours, weights @ torch.tensor(y_train), rtol=0, atol=2e-6)


def test_nadaraya_watson_far_from_every_key_takes_the_nearest() -> None:
    assert_array_equal(nadaraya_watson([1e6, -1e6], [0, 1, 2], [5, 6, 7]), f32(7, 5))


def test_nadaraya_watson_tends_to_average_pooling() -> None:
    x, x_train, y_train = random(9), random(20, seed=1), random(20, seed=2)
    wide = nadaraya_watson(x, x_train, y_train, sigma=1e6)
    assert_allclose(wide, average_pooling(x, y_train), rtol=0, atol=1e-6)


@pytest.mark.parametrize("sigma", [0.0, -1.0, np.nan, np.inf])
def test_nadaraya_watson_wants_a_positive_bandwidth(sigma: float) -> None:
    with pytest.raises(ValueError, match="sigma"):
        nadaraya_watson([1.0], [1.0], [1.0], sigma)


@pytest.mark.parametrize("n", [1, 2, 5, 17])
def test_leave_one_out_is_what_d2l_builds(n: int) -> None:
    x, y = random(n), random(n, seed=1)
    keys, values = leave_one_out(x, y)
    off_diagonal = (1 - torch.eye(n)).bool()
    assert_array_equal(keys, torch.tensor(x).repeat(n, 1)[off_diagonal].reshape(n, n - 1))
    assert_array_equal(values, torch.tensor(y).repeat(n, 1)[off_diagonal].reshape(n, n - 1))
    assert keys.dtype == values.dtype == F32
    assert keys.flags.c_contiguous and keys.flags.writeable


# ---- the kernels --------------------------------------------------------------------------------


KERNELS = ("gaussian", "boxcar", "triangular", "epanechikov", "epanechnikov", "constant")
BOUNDED = ("boxcar", "triangular", "epanechikov", "epanechnikov")

D2L_KERNELS: dict[str, Callable[[Any], Any]] = {
    "gaussian": lambda d: torch.exp(-(d**2) / 2),
    "boxcar": lambda d: torch.abs(d) < 1.0,
    "triangular": lambda d: torch.clamp(1 - torch.abs(d), min=0),
    "epanechikov": lambda d: torch.clamp(1 - torch.abs(d), min=0),
    "epanechnikov": lambda d: torch.clamp(0.75 * (1 - d**2), min=0),  # not d2l's
    "constant": lambda d: 1.0 + 0 * d,
}


def d2l_nadaraya_watson(x: Any, x_train: Any, y_train: Any, kernel: str) -> tuple[Any, Any]:
    """d2l 1.0's function, its meaning written again: the kernel over its sum. (N, n) there."""
    k = D2L_KERNELS[kernel](x_train[:, None] - x[None, :]).to(x.dtype)
    weights = k / k.sum(0)
    return y_train @ weights, weights.T


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_is_what_d2l_computes(kernel: str) -> None:
    """With d2l's code run in float64: float32 differs from it at the edge of a boxcar."""
    sizes = [(1, 1), (5, 3), (50, 40), (33, 133)]
    for (n, N), sigma in product(sizes, [0.37, 1.0, 2.5]):
        rng = np.random.default_rng(n)
        x, x_train = (rng.uniform(0, 5, size).astype(F32) for size in (n, N))
        y_train = random(N, seed=3)
        scaled = (torch.tensor(a.astype(float) / sigma) for a in (x, x_train))
        theirs, their_weights = d2l_nadaraya_watson(*scaled, torch.tensor(y_train).double(), kernel)
        ours, weights = nadaraya_watson(
            x, x_train, y_train, sigma, kernel=kernel, empty_rows="nan", return_weights=True
        )
        # A score of size s is rounded to float32 within s * 2^-24, and a log k is above -37; what
        # the Gaussian makes of the same is tested above.
        tolerance = 2e-6 + (2.0**-22 * (5 / sigma) ** 2 if kernel == "gaussian" else 37 * 2.0**-24)
        assert_allclose(weights, their_weights, rtol=0, atol=tolerance)
        assert_allclose(ours, theirs, rtol=0, atol=tolerance * 2 * np.abs(y_train).max())
        assert ours.dtype == weights.dtype == F32
        assert_array_equal(
            nadaraya_watson(x, x_train, y_train, sigma, kernel=kernel, empty_rows="nan"), ours
        )


@pytest.mark.parametrize("kernel", BOUNDED)
def test_the_logarithm_of_a_kernel_is_a_score(kernel: str) -> None:
    x, x_train, y_train = random(6), random(9, seed=1), random(9, seed=2)
    u = np.abs(x[:, None].astype(float) - x_train) / 0.8
    k = np.maximum(1 - (u**2 if kernel == "epanechnikov" else u), 0)
    k = np.sign(k) if kernel == "boxcar" else k
    scores = np.log(np.where(k > 0, k, 1).astype(F32))
    by_softmax = masked_softmax(scores, mask=k > 0)
    weights = nadaraya_watson(x, x_train, y_train, 0.8, kernel=kernel, return_weights=True)[1]
    assert_allclose(weights, by_softmax, rtol=2.0**-21)  # the same sums, in another order
    assert_array_equal(weights == 0, np.where(k.any(1, keepdims=True), k == 0, False))


@pytest.mark.parametrize("kernel", BOUNDED)
def test_the_edge_of_a_bounded_kernel_is_outside(kernel: str) -> None:
    """Distances 2, 1, 0 at sigma = 2: the triangle is 0, 1/2, 1 there, the parabola 0, 3/4, 1."""
    _, weights = nadaraya_watson([2], [0, 1, 2, 4], [1] * 4, 2, kernel=kernel, return_weights=True)
    near = {"boxcar": 1 / 2, "epanechnikov": 3 / 7}.get(kernel, 1 / 3)
    expected = [0, near, 1 - near, 0]
    assert_allclose(weights[0], expected, rtol=0, atol=1e-7)
    assert weights[0, 0] == weights[0, 3] == 0


def test_a_boxcar_takes_the_plain_mean_of_what_is_near() -> None:
    y = nadaraya_watson([0.5, 10.0], [0, 1, 9.5, 10.75], [1, 2, 5, 8], 1.0, kernel="boxcar")
    assert_array_equal(y, f32(1.5, 6.5))


def test_epanechikov_is_another_name_of_triangular() -> None:
    arguments = (random(20), random(30, seed=1), random(30, seed=2), 0.3)
    triangular = nadaraya_watson(*arguments, kernel="triangular")
    assert_array_equal(nadaraya_watson(*arguments, kernel="epanechikov"), triangular)


@pytest.mark.parametrize("sigma", [1e-3, 1.0, 1e3])
def test_a_constant_kernel_is_average_pooling(sigma: float) -> None:
    x, x_train, y_train = random(7), random(30, seed=1), random(30, seed=2)
    pooled = nadaraya_watson(x, x_train, y_train, sigma, kernel="constant")
    assert_array_equal(pooled, average_pooling(x, y_train))


@pytest.mark.parametrize("kernel", BOUNDED)
@pytest.mark.parametrize(
    ("empty_rows", "prediction", "weight"),
    [("uniform", 3.0, 1 / 3), ("zero", 0.0, 0.0), ("nan", np.nan, np.nan)],
)
def test_a_query_with_nothing_within_reach(
    kernel: str, empty_rows: Any, prediction: float, weight: float
) -> None:
    """d2l divides 0 by 0 there."""
    x_train, y_train = [0.0, 1.0, 2.0], [1.0, 2.0, 6.0]
    y, weights = nadaraya_watson(
        [9.0, 0.0],
        x_train,
        y_train,
        kernel=kernel,  # type: ignore[arg-type]
        empty_rows=empty_rows,
        return_weights=True,
    )
    assert_array_equal(y, f32(prediction, 1))
    assert_array_equal(weights, np.array([[weight] * 3, [1, 0, 0]], F32))
    theirs, _ = d2l_nadaraya_watson(
        torch.tensor([9.0, 0.0]), torch.tensor(x_train), torch.tensor(y_train), kernel
    )
    assert_array_equal(theirs, [np.nan, 1])


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_targets_at_all(kernel: Any) -> None:
    y, weights = nadaraya_watson([1, 2], [], [], kernel=kernel, return_weights=True)
    assert_array_equal(y, f32(0, 0))
    assert weights.shape == (2, 0)
    assert nadaraya_watson([], [1], [1], kernel=kernel).shape == (0,)


@pytest.mark.parametrize("kernel", BOUNDED)
def test_targets_out_of_reach_are_not_read(kernel: Any) -> None:
    y = nadaraya_watson([0.0, 9.0], [0.25, 9.0, 9.5], [1, np.nan, np.inf], kernel=kernel)
    assert_array_equal(y, f32(1, np.nan))


@pytest.mark.parametrize("kernel", ["gaussian", *BOUNDED])
def test_nan_inputs_give_nan(kernel: Any) -> None:
    assert_array_equal(
        nadaraya_watson([np.nan, 0.0], [0, 9], [1, 1], kernel=kernel), f32(np.nan, 1)
    )
    assert np.isnan(nadaraya_watson([0.0], [0, np.nan], [1, 1], kernel=kernel)[0])


@pytest.mark.parametrize("kernel", BOUNDED)
def test_infinite_inputs_are_out_of_reach(kernel: Any) -> None:
    assert_array_equal(
        nadaraya_watson([0.0], [0, np.inf, -np.inf], [1, 5, 7], kernel=kernel), f32(1)
    )
    y = nadaraya_watson([np.inf], [0, 1], [1, 5], kernel=kernel, empty_rows="zero")
    assert_array_equal(y, f32(0))


# ---- leave one out ------------------------------------------------------------------------------


def one_by_one(
    x: Floats, y: Floats, sigma: float, kernel: Any, empty_rows: Any = "uniform"
) -> float:
    """The leave-one-out error by n regressions, each from the others."""
    keys, values = leave_one_out(x, y)
    errors = [
        nadaraya_watson([x[i]], keys[i], values[i], sigma, kernel=kernel, empty_rows=empty_rows)[0]
        - y[i].astype(float)
        for i in range(len(x))
    ]
    return float(np.sqrt(np.mean(np.square(errors))))


@pytest.mark.parametrize("kernel", KERNELS)
def test_leave_one_out_error_against_one_regression_each(kernel: Any) -> None:
    """The narrow bounded kernels leave examples with nothing within reach."""
    for sigma, n in product([1e-3, 0.05, 0.4, 3.0, 100.0], [2, 3, 17, 60]):
        x, y = random(n), random(n, seed=1)
        for empty_rows in ("uniform", "zero", "nan"):
            expected = one_by_one(x, y, sigma, kernel, empty_rows)
            error = leave_one_out_error(x, y, sigma, kernel=kernel, empty_rows=empty_rows)
            # Two sums of the same weights in another order; no error is more than what one adds.
            assert_allclose(error, expected, rtol=0, atol=4e-6 * np.abs(y).max())


def test_leave_one_out_error_in_closed_form() -> None:
    """Leaving i out moves the mean away from y_i, by a factor n / (n - 1)."""
    times, accelerations = motorcycle()
    exact = accelerations.std(dtype=float) * 133 / 132
    error = leave_one_out_error(times, accelerations, kernel="constant")
    assert isinstance(error, float)
    assert_allclose(error, exact, rtol=1e-6)


def test_a_twin_with_the_same_input_is_another_example() -> None:
    assert leave_one_out_error([1, 1, 5, 5], [2, 2, 7, 7], 0.1) == 0
    assert leave_one_out_error([1, 1], [2, 4], kernel="boxcar") == 2


def test_leave_one_out_error_does_not_read_the_target_it_predicts() -> None:
    """Only y[0] is not predicted well; were it read, its huge value would drown the others."""
    error = leave_one_out_error([0, 1, 2, 3], [1e30, 0, 0, 0], 0.9, kernel="boxcar")
    assert_allclose(error, np.sqrt((1e30**2 + 3 * (1e30 / 3) ** 2) / 4), rtol=1e-6)


@pytest.mark.parametrize("kernel", ["gaussian", "boxcar", "triangular"])
def test_choose_bandwidth_takes_the_smallest_error(kernel: Any) -> None:
    x, y = motorcycle()
    sigmas = np.geomspace(0.3, 30, 21)
    choice = choose_bandwidth(x, y, sigmas[::-1], kernel=kernel)
    assert isinstance(choice, BandwidthChoice)
    assert_array_equal(choice.sigmas, sigmas[::-1])
    errors = [leave_one_out_error(x, y, sigma, kernel=kernel) for sigma in sigmas]
    assert_array_equal(choice.errors[::-1], errors)
    assert choice.error == min(errors)
    assert choice.sigma == sigmas[int(np.argmin(errors))]
    assert sigmas[0] < choice.sigma < sigmas[-1]
    assert isinstance(choice.sigma, float) and isinstance(choice.error, float)


@pytest.mark.parametrize("kernel", ["gaussian", "boxcar", "triangular"])
def test_the_bandwidths_tried_by_default(kernel: Any) -> None:
    """x has the distinct values 0, 1, 3, 7: gaps of 1, 2 and 4, a range of 7."""
    x, y = [3.0, 0.0, 1.0, 7.0, 1.0], [1.0, 5.0, 2.0, 0.0, 1.0]
    choice = choose_bandwidth(x, y, kernel=kernel)
    assert choice.sigmas.shape == choice.errors.shape == (64,)
    assert_allclose(choice.sigmas, np.geomspace(1, 7, 64), rtol=1e-12)
    again = choose_bandwidth(x, y, choice.sigmas, kernel=kernel)
    assert again.sigma == choice.sigma and again.error == choice.error


def test_the_default_bandwidths_hold_the_best_of_a_finer_search() -> None:
    x, y = motorcycle()
    choice = choose_bandwidth(x, y)
    finer = choose_bandwidth(x, y, np.linspace(0.3, 10, 1000))
    assert choice.error <= finer.error * 1.001
    assert choice.sigmas[0] < finer.sigma < choice.sigmas[-1]


def test_gradient_descent_leads_to_the_chosen_bandwidth() -> None:
    """The loss that NWKernelRegression learns by falls towards it from both sides."""
    x, y = motorcycle()
    keys, values = leave_one_out(x, y)
    net = NWKernelRegression()
    sigmas = np.linspace(0.5, 1.5, 101)
    choice = choose_bandwidth(x, y, sigmas)

    def slope(sigma: float) -> float:
        """d loss / d w, w = 1 / sigma; the square root of the loss is the leave-one-out error."""
        net.w = [1 / sigma]
        error = net(x, keys, values) - y
        assert_allclose(
            np.sqrt(np.mean(error.astype(float) ** 2)), leave_one_out_error(x, y, sigma), rtol=1e-5
        )
        net.zero_grad()
        net.backward(2 * error / len(x))
        return float(net.grads["w"][0])

    assert slope(choice.sigma * 1.02) < 0 < slope(choice.sigma * 0.98)


def test_of_equal_errors_the_widest_bandwidth_is_chosen() -> None:
    x, y = [0.0, 1.0, 2.0], [4.0, 5.0, 6.0]
    choice = choose_bandwidth(x, y, [50, 80, 5, 70], kernel="boxcar")
    assert_array_equal(choice.errors, [choice.error] * 4)
    assert choice.sigma == 80


def test_a_bandwidth_that_leaves_an_example_alone_is_out_of_the_question_with_nan() -> None:
    x, y = [0.0, 0.1, 5.0, 5.1, 9.0], [1.0, 1.0, 5.0, 5.0, 3.0]
    choice = choose_bandwidth(x, y, [1, 6, 9], kernel="boxcar", empty_rows="nan")
    assert_array_equal(np.isnan(choice.errors), [True, False, False])
    assert choice.sigma == 9
    assert choose_bandwidth(x, y, [1, 6, 9], kernel="boxcar").sigma == 1


@pytest.mark.parametrize("kernel", ["gaussian", "boxcar", "triangular"])
def test_two_examples_are_enough(kernel: Any) -> None:
    choice = choose_bandwidth([0.0, 2.0], [1.0, 4.0], kernel=kernel)
    assert choice.error == 3 and choice.sigma == choice.sigmas[-1] == pytest.approx(2)


def test_a_thousand_examples_need_no_thousand_copies() -> None:
    x, y = random(1000), random(1000, seed=1)
    tracemalloc.start()
    leave_one_out_error(x, y, 0.1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Weights and mask, 5 bytes for each pair; keys and values of one's own would be 8 more.
    assert peak < 7 * 1000 * 1000


# ---- the object -------------------------------------------------------------------------------


def test_w_starts_uniform_from_rng() -> None:
    expected = np.random.default_rng(3).random(1, dtype=F32)
    assert_array_equal(NWKernelRegression(rng=3).w, expected)
    assert_array_equal(NWKernelRegression(np.random.default_rng(3)).w, expected)
    drawn = np.array([NWKernelRegression(rng=seed).w[0] for seed in range(300)])
    assert drawn.min() >= 0 and drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.06  # 3.6 standard errors


@pytest.mark.parametrize("w", [0.0, 0.4, 1.0, 13.0, -2.0])
@pytest.mark.parametrize(("n", "N"), [(1, 1), (4, 7), (50, 49)])
def test_forward_and_backward_against_torch_and_the_formula(n: int, N: int, w: float) -> None:
    q, k, v, grad = random(n), random(n, N, seed=1), random(n, N, seed=2), random(n, seed=3)
    net = NWKernelRegression()
    net.w = [w]
    ours = net(q, k, v)
    gradients = net.backward(grad)

    expected, weights = formula(q, k, v, w)
    theirs = D2lRegression(w)
    leaves = [torch.tensor(a, requires_grad=True) for a in (q, k, v)]
    prediction = theirs(*leaves)
    prediction.backward(torch.tensor(grad))

    def close(got: Any, exact: Floats, torchs: Any) -> None:
        """As near to float64 as twice torch's distance, and 2e-6 of the largest entry."""
        torchs_error = np.abs(torchs.detach().numpy() - exact).max()
        limit = 2 * torchs_error + 2e-6 * np.abs(exact).max()
        assert got.shape == exact.shape
        assert_allclose(got, exact, rtol=0, atol=limit)

    close(ours, expected, prediction)
    assert net.attention_weights is not None
    close(net.attention_weights, weights, theirs.attention_weights)
    # d loss / d score = weight * (v - y) * grad, and score = -(w (q - k))^2 / 2.
    d_score = weights * (v - expected[:, None]) * grad[:, None]
    distance = q[:, None].astype(float) - k
    exact = (
        (-(w**2) * d_score * distance).sum(-1),
        w**2 * d_score * distance,
        weights * grad[:, None],
    )
    for got, by_hand, leaf in zip(gradients, exact, leaves, strict=True):
        close(got, by_hand, leaf.grad)
    close(net.grads["w"], np.array([(-w * d_score * distance**2).sum()]), theirs.w.grad)


def test_every_gradient_against_finite_differences() -> None:
    q, k, v, grad = random(4), random(4, 6, seed=1), random(4, 6, seed=2), random(4, seed=3)
    net = NWKernelRegression()
    net.w = [0.8]
    w = net.w.astype(float)
    net(q, k, v)
    analytic = dict(zip("qkv", net.backward(grad), strict=True)) | {"w": net.grads["w"]}
    arrays = {"q": q, "k": k, "v": v, "w": w}
    for name, array in arrays.items():
        numerical = np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            losses = []
            for step in (1e-6, -1e-6):
                moved = array.astype(float)
                moved[index] += step
                at = arrays | {name: moved}
                losses.append(grad @ formula(at["q"], at["k"], at["v"], float(at["w"][0]))[0])
            numerical[index] = (losses[0] - losses[1]) / 2e-6
        assert_allclose(analytic[name], numerical, rtol=0, atol=2e-6 * np.abs(numerical).max())


def trained_once() -> tuple[NWKernelRegression, NDArray[np.float32]]:
    net, grad = NWKernelRegression(rng=0), random(5, seed=3)
    net(random(5), random(5, 4, seed=1), random(5, 4, seed=2))
    return net, grad


def test_gradients_of_w_add_up_until_zeroed() -> None:
    net, grad = trained_once()
    assert_array_equal(net.grads["w"], f32(0))
    net.backward(grad)
    once = net.grads["w"].copy()
    assert once[0] != 0
    net.backward(grad)
    assert_array_equal(net.grads["w"], once + once)
    net.zero_grad()
    assert_array_equal(net.grads["w"], f32(0))


def test_parameters_are_live() -> None:
    net = NWKernelRegression(rng=0)
    parameters = net.parameters()
    assert list(parameters) == list(net.grads) == ["w"]
    assert parameters["w"].shape == net.grads["w"].shape == (1,)
    parameters["w"] -= F32(0.25)
    assert_array_equal(net.w, parameters["w"])
    net.w = [0.5]
    assert_array_equal(parameters["w"], f32(0.5))


def test_w_is_copied_when_set() -> None:
    net, value = NWKernelRegression(rng=0), np.array([2.0], F32)
    net.w = value
    value[0] = 3
    assert_array_equal(net.w, f32(2))


def test_backward_before_a_forward_is_an_error() -> None:
    net = NWKernelRegression(rng=0)
    assert net.attention_weights is None
    with pytest.raises(RuntimeError, match="forward"):
        net.backward([1.0])


def test_what_happens_after_the_forward_does_not_reach_the_backward() -> None:
    q, k, v = random(5), random(5, 4, seed=1), random(5, 4, seed=2)
    net, grad = trained_once()
    expected = net.backward(grad)
    expected_w = net.grads["w"].copy()
    net.zero_grad()
    y = net(q, k, v)
    y -= 1  # written into
    assert net.attention_weights is not None
    net.attention_weights.fill(7)
    net.w += 1  # stepped too early
    for got, known in zip(net.backward(grad), expected, strict=True):
        assert_array_equal(got, known)
    assert_array_equal(net.grads["w"], expected_w)


def test_inputs_are_never_written() -> None:
    arrays = [random(5), random(5, 4, seed=1), random(5, 4, seed=2)]
    grad = random(5, seed=3)
    before = [a.copy() for a in (*arrays, grad)]
    for array in (*arrays, grad):
        array.flags.writeable = False
    net = NWKernelRegression(rng=0)
    net(*arrays)
    net.backward(grad)
    for array, known in zip((*arrays, grad), before, strict=True):
        assert_array_equal(array, known)


@pytest.mark.parametrize(("n", "N"), [(0, 4), (3, 0), (0, 0)])
def test_nothing_to_predict_or_nothing_to_look_at(n: int, N: int) -> None:
    net = NWKernelRegression(rng=0)
    assert_array_equal(net(np.ones(n), np.ones((n, N)), np.ones((n, N))), np.zeros(n, F32))
    assert net.attention_weights is not None and net.attention_weights.shape == (n, N)
    dq, dk, dv = net.backward(np.ones(n))
    assert_array_equal(dq, np.zeros(n, F32))
    assert dk.shape == dv.shape == (n, N)
    assert_array_equal(net.grads["w"], f32(0))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_has_a_life_of_its_own(duplicate: Callable[[Any], Any]) -> None:
    net, grad = trained_once()
    twin = duplicate(net)
    net.backward(grad)
    assert_array_equal(twin.grads["w"], f32(0))
    twin.backward(grad)
    assert_array_equal(twin.grads["w"], net.grads["w"])
    twin.w += 1
    assert twin.w[0] == net.w[0] + 1


def test_repr_shows_w() -> None:
    net = NWKernelRegression()
    net.w = [0.25]
    assert repr(net) == "NWKernelRegression(w=0.25)"


# ---- inputs -------------------------------------------------------------------------------------


def call(net_argument: str, value: Any) -> None:
    good = {"queries": np.ones(3), "keys": np.ones((3, 2)), "values": np.ones((3, 2))}
    NWKernelRegression(rng=0)(**(good | {net_argument: value}))


def backward(value: Any) -> None:
    net = NWKernelRegression(rng=0)
    net(np.ones(3), np.ones((3, 2)), np.ones((3, 2)))
    net.backward(value)


def set_w(value: Any) -> None:
    NWKernelRegression(rng=0).w = value


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: average_pooling(1.0, [1]), "x_test has shape (), expected (n,)"),
        (lambda: average_pooling([1], [[1]]), "y_train has shape (1, 1), expected (N,)"),
        (lambda: nadaraya_watson([[1]], [1], [1]), "x has shape (1, 1), expected (n,)"),
        (lambda: nadaraya_watson([1], 1, [1]), "x_train has shape (), expected (N,)"),
        (lambda: nadaraya_watson([1], [1, 2], [1]), "y_train has shape (1,), expected (2,)"),
        (lambda: leave_one_out([[1]], [1]), "x has shape (1, 1), expected (n,)"),
        (lambda: leave_one_out([1, 2], [1]), "y has shape (1,), expected (2,)"),
        (lambda: leave_one_out([], []), "x has shape (0,), expected at least one example"),
        (lambda: leave_one_out_error([1], [1]), "x has shape (1,), expected at least two examples"),
        (lambda: leave_one_out_error([1, 2], [1]), "y has shape (1,), expected (2,)"),
        (lambda: leave_one_out_error([[1, 2]], [1]), "x has shape (1, 2), expected (n,)"),
        (lambda: choose_bandwidth([], []), "x has shape (0,), expected at least two examples"),
        (lambda: choose_bandwidth([1, 2], [[1], [2]]), "y has shape (2, 1), expected (2,)"),
        (
            lambda: choose_bandwidth([1, 2], [1, 2], 0.5),
            "sigmas has shape (), expected (n,) with n >= 1",
        ),
        (
            lambda: choose_bandwidth([1, 2], [1, 2], []),
            "sigmas has shape (0,), expected (n,) with n >= 1",
        ),
        (lambda: call("queries", np.ones((3, 1))), "queries has shape (3, 1), expected (n,)"),
        (lambda: call("keys", np.ones(2)), "keys has shape (2,), expected (3, N)"),
        (lambda: call("keys", np.ones((4, 2))), "keys has shape (4, 2), expected (3, N)"),
        (lambda: call("values", np.ones((3, 1))), "values has shape (3, 1), expected (3, 2)"),
        (lambda: backward(np.ones(2)), "grad_output has shape (2,), expected (3,)"),
        (lambda: backward(1.0), "grad_output has shape (), expected (3,)"),
        (lambda: set_w(1.0), "w has shape (), expected (1,)"),
        (lambda: set_w([1.0, 2.0]), "w has shape (2,), expected (1,)"),
    ],
)
def test_wrong_shapes_are_named(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        wrong()
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "kind",
    [
        np.ones(3, complex),
        np.ones(3, bool),
        np.array(["1", "2", "3"]),
        np.array([1, None, 2], object),
        np.array(["2020-01-01"] * 3, "datetime64[D]"),
        np.ma.masked_array([1.0, 2.0, 3.0], [True, False, False]),
        torch.ones(3, requires_grad=True),
    ],
    ids=lambda kind: f"{type(kind).__name__}-{kind.dtype}",
)
def test_wrong_kinds_are_named(kind: Any) -> None:
    for wrong, name in [
        (lambda: average_pooling([1], kind), "y_train"),
        (lambda: nadaraya_watson(kind, [1], [1]), "x"),
        (lambda: leave_one_out([1, 2, 3], kind), "y"),
        (lambda: leave_one_out_error(kind, [1, 2, 3]), "x"),
        (lambda: choose_bandwidth([1, 2, 3], kind), "y"),
        (lambda: call("queries", kind), "queries"),
        (lambda: backward(kind), "grad_output"),
        (lambda: set_w(kind), "w"),
    ]:
        with pytest.raises(TypeError, match=f"^{name} "):
            wrong()


SIGMA = "expected a finite sigma > 0 with a finite 1 / sigma"
NAMES = "expected 'gaussian', 'boxcar', 'triangular', 'epanechikov', 'epanechnikov' or 'constant'"


def regress(**options: Any) -> None:
    nadaraya_watson([1.0], [1.0], [1.0], **options)


def choose(**options: Any) -> None:
    choose_bandwidth(**({"x": [1.0, 2.0, 4.0], "y": [1.0, 2.0, 3.0]} | options))


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: regress(sigma=0), ValueError, f"sigma is 0, {SIGMA}"),
        (lambda: regress(sigma=0, kernel="boxcar"), ValueError, f"sigma is 0, {SIGMA}"),
        (lambda: regress(sigma=-1.5, kernel="constant"), ValueError, f"sigma is -1.5, {SIGMA}"),
        (lambda: regress(sigma=np.nan, kernel="boxcar"), ValueError, f"sigma is nan, {SIGMA}"),
        (lambda: regress(kernel="box"), ValueError, f"kernel is 'box', {NAMES}"),
        (lambda: regress(kernel=abs), TypeError, "kernel is of type builtin_function"),
        (lambda: regress(kernel=None), TypeError, "kernel is of type NoneType, expected a str"),
        (
            lambda: regress(empty_rows="mean"),
            ValueError,
            "empty_rows is 'mean', expected 'uniform', 'zero' or 'nan'",
        ),
        (
            lambda: regress(empty_rows="mean", kernel="boxcar"),
            ValueError,
            "empty_rows is 'mean', expected 'uniform', 'zero' or 'nan'",
        ),
        (
            lambda: leave_one_out_error([1, 2], [1, 2], empty_rows="mean"),  # type: ignore[arg-type]
            ValueError,
            "empty_rows is 'mean', expected 'uniform', 'zero' or 'nan'",
        ),
        (lambda: leave_one_out_error([1, 2], [1, 2], 0), ValueError, f"sigma is 0, {SIGMA}"),
        (lambda: choose(kernel="box"), ValueError, f"kernel is 'box', {NAMES}"),
        (
            lambda: choose(kernel="constant"),
            ValueError,
            "kernel is 'constant', expected a kernel that has a bandwidth",
        ),
        (lambda: choose(sigmas=[1.0, -2.0]), ValueError, f"sigma is -2.0, {SIGMA}"),
        (
            lambda: choose(sigmas=["1"]),
            TypeError,
            "sigmas has dtype <U1, expected real numbers",
        ),
        (
            lambda: choose(x=[1, 2, np.nan]),
            ValueError,
            "x is nan at index 2, expected finite numbers",
        ),
        (
            lambda: choose(y=[1, np.inf, 3]),
            ValueError,
            "y is inf at index 1, expected finite numbers",
        ),
        (
            lambda: choose(x=[2, 2, 2]),
            ValueError,
            "x is 2 for all examples, expected different inputs: pass sigmas",
        ),
        (
            lambda: choose(sigmas=[0.5, 0.25], kernel="boxcar", empty_rows="nan"),
            ValueError,
            "sigmas are 0.25 to 0.5 and all give the error NaN, expected one for which each "
            "example has a neighbour within the kernel: add larger sigmas",
        ),
    ],
)
def test_wrong_options_are_named(
    wrong: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        wrong()
    assert type(raised.value) is error
    assert str(raised.value).startswith(message)


def test_a_tensor_that_requires_grad_points_to_attnext_torch() -> None:
    with pytest.raises(TypeError, match=r"^x is a tensor that requires grad.*attnext\.torch"):
        nadaraya_watson(torch.ones(2, requires_grad=True), [1], [1])


def test_a_matrix_is_refused() -> None:
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix([[1.0, 2.0]])
    with pytest.raises(TypeError, match="^keys is a matrix, expected a plain array"):
        call("keys", matrix)


@pytest.mark.parametrize(
    "convert",
    [
        lambda a: a.tolist(),
        lambda a: a.astype(np.float64),
        lambda a: a.astype(np.float16),
        lambda a: a.astype(">f4"),
        lambda a: a.astype(np.int64),
        lambda a: a.astype(np.uint8),
        lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
        lambda a: torch.tensor(a),
    ],
    ids=["list", "f8", "f2", ">f4", "i8", "u1", "strided", "tensor"],
)
def test_other_layouts_are_converted(convert: Callable[[Any], Any]) -> None:
    q, k, v = np.arange(3, dtype=F32), np.arange(6, dtype=F32).reshape(3, 2), np.ones((3, 2), F32)
    k[0, 0] = v[2, 1] = 3
    net = NWKernelRegression(rng=0)
    assert_array_equal(net(convert(q), convert(k), convert(v)), net(q, k, v))
    expected = nadaraya_watson(q, k[0], v[0])
    assert_array_equal(nadaraya_watson(convert(q), convert(k[0]), convert(v[0])), expected)


# ---- the data ---------------------------------------------------------------------------------


def test_the_motorcycle_data_are_those_of_silverman() -> None:
    times, accelerations = motorcycle()
    assert times.shape == accelerations.shape == (133,)
    assert times.dtype == accelerations.dtype == F32
    assert np.all(np.diff(times) >= 0)
    assert (times[0], accelerations[0]) == (F32(2.4), 0)
    assert (times[-1], accelerations[-1]) == (F32(57.6), F32(10.7))
    assert accelerations.min() == -134 and accelerations.max() == 75
    assert times.flags.writeable and times.flags.c_contiguous


def test_the_examples_in_the_docstrings() -> None:
    for module, examples in [("kernels", 4), ("bandwidth", 9), ("learned", 7)]:
        result = doctest.testmod(importlib.import_module(f"attnext.kernel_regression.{module}"))
        assert result.failed == 0 and result.attempted >= examples
