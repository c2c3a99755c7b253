"""Part 7 of the tour: kernel regression on real measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnext import kernel_regression as kr
from attnext import reference
from attnext._data import motorcycle
from attnext._tour.canvas import Canvas
from attnext._tour.page import Check, Tour, largest_difference
from attnext._tour.peer import Peer, Tensor

Array = NDArray[np.float32]

STEPS = 512
LEARNING_RATE = 4.0
SHOWN = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # steps of the training that are printed


@dataclass(frozen=True)
class Training:
    """Gradient descent: w, the loss there and its gradient, before every step and at the end."""

    w: list[float]
    losses: list[float]
    gradients: list[float]


def kernel_regression(tour: Tour) -> None:
    """Part 7: average pooling, a fixed kernel, a learned kernel; errors and the fit."""
    page = tour.page
    times, accelerations = motorcycle()
    tour.title("Real data: kernel regression on a motorcycle crash")
    page.say(
        f"The acceleration of a rider's head, in g, {times.min():g} to {times.max():g} ms after a "
        f"simulated crash: {len(times)} measurements (Silverman 1985). Attention draws the curve: "
        "the query is a time, the keys are the times measured at, the values what was measured. "
        "In training and for the errors, each measurement is predicted from all the others "
        "(leave one out)."
    )
    fixed = rule_of_thumb(times)
    x, y = standardise(times), standardise(accelerations)
    training = train(x, y)
    learned = float(times.std()) / training.w[-1]
    _tell_training(tour, training, x, y, float(times.std()))
    _tell_errors(tour, times, accelerations, fixed, learned)
    _draw(tour, times, accelerations, learned)


def rule_of_thumb(x: Array) -> float:
    """Silverman's bandwidth: 0.9 min(standard deviation, IQR / 1.34) n^(-1/5)."""
    low, high = np.percentile(x, [25, 75])
    return float(0.9 * min(x.std(ddof=1), (high - low) / 1.34) * x.size**-0.2)


def standardise(x: Array) -> Array:
    """Mean 0, standard deviation 1."""
    scaled: Array = (x - x.mean()) / x.std()
    return scaled


def train(x: Array, y: Array) -> Training:
    """Learn w by plain gradient descent on the squared error of leave-one-out predictions."""
    keys, values = kr.leave_one_out(x, y)
    net = kr.NWKernelRegression(rng=0)
    training = Training([], [], [])
    for _ in range(STEPS + 1):
        error = net(x, keys, values) - y
        net.zero_grad()
        net.backward(2 * error / len(x))
        training.w.append(float(net.w[0]))
        training.losses.append(float(np.mean(error**2)))
        training.gradients.append(float(net.grads["w"][0]))
        net.w -= LEARNING_RATE * net.grads["w"]
    return training


def peer_gradients(peer: Peer, x: Array, y: Array, w: list[float]) -> list[float]:
    """The gradient of the same loss at each of these w, by PyTorch's autograd."""
    keys, values = map(peer.tensor, kr.leave_one_out(x, y))
    queries, targets = peer.tensor(x), peer.tensor(y)

    def loss(w: Tensor) -> Tensor:
        return ((peer.kernel_regression(queries, keys, values, w) - targets) ** 2).mean()

    return [float(peer.gradients(loss, 1.0, [at])[0][0]) for at in w]


def leave_one_out_error(
    times: Array, accelerations: Array, predict: Callable[[Array, Array, Array], Array]
) -> float:
    """Root mean square of the errors of predict(query, keys, values), each made from the others."""
    keys, values = kr.leave_one_out(times, accelerations)
    predictions = [predict(times[i : i + 1], keys[i], values[i])[0] for i in range(len(times))]
    return float(np.sqrt(np.mean((np.array(predictions) - accelerations) ** 2)))


def _tell_training(tour: Tour, training: Training, x: Array, y: Array, unit: float) -> None:
    """unit: one unit of x in ms."""
    page, peer = tour.page, tour.peer
    losses, w = training.losses, training.w
    page.line()
    page.say(
        "score = -(w (query - key))^2 / 2. The one parameter, w = 1 / bandwidth, is learned by "
        "gradient descent with the gradient from attnext's own backward; x and y are the times "
        "and accelerations, scaled to mean 0 and variance 1:"
    )
    page.line()
    page.code("keys, values = leave_one_out(x, y)          # (133, 132) each")
    page.code("error = net(x, keys, values) - y            # loss: the mean of error^2")
    page.code("net.backward(2 * error / 133)")
    page.code(f"net.w -= {LEARNING_RATE:g} * net.grads['w']")
    page.line()
    bars = page.sparkline([losses[step] for step in SHOWN])
    page.line(page.style(f"      {'step':<6}" + "".join(f"{step:>6}" for step in SHOWN), "dim"))
    page.line(f"      {'ms':<6}" + "".join(f"{unit / w[step]:>6.2f}" for step in SHOWN))
    page.line(f"      {'loss':<6}" + "".join(f"{losses[step]:>6.3f}" for step in SHOWN))
    page.line(page.style(f"      {'':<6}" + "".join(f"{bar:>6}" for bar in bars), "cyan"))
    page.line()
    rises = [after - before for before, after in zip(losses[:-1], losses[1:], strict=True)]
    tour.result(
        f"the loss falls at every step, from {losses[0]:.3f} to {losses[-1]:.3f}",
        Check("steps at which the loss rises", sum(rise > 1e-6 for rise in rises), 0),
        Check("the loss falls below a third", losses[-1] < losses[0] / 3, True),
    )
    if peer is not None:
        ours = [training.gradients[step] for step in SHOWN]
        theirs = peer_gradients(peer, x, y, [w[step] for step in SHOWN])
        off = largest_difference(ours, theirs)
        tour.result(
            f"the gradients at these {len(SHOWN)} steps: {off:.0e} from those of torch's autograd",
            *tour.beside("gradients of w", ours, theirs),
        )


def _tell_errors(
    tour: Tour, times: Array, accelerations: Array, fixed: float, learned: float
) -> None:
    page, n = tour.page, len(times)
    keys, values = kr.leave_one_out(times, accelerations)

    def error(sigma: float) -> float:
        return leave_one_out_error(
            times, accelerations, lambda q, k, v: kr.nadaraya_watson(q, k, v, sigma)
        )

    def exact_error(sigma: float) -> float:
        args = (times[:, None, None], keys[:, :, None], values[:, :, None])
        predictions = reference.gaussian_attention(*args, sigma=sigma)[:, 0, 0]
        return float(np.sqrt(np.mean((predictions - accelerations) ** 2)))

    average = leave_one_out_error(times, accelerations, lambda q, k, v: kr.average_pooling(q, v))
    # Leaving i out moves the mean away from y_i, by a factor n / (n - 1).
    exact_average = float(accelerations.std(dtype=np.float64)) * n / (n - 1)
    rows = [
        ("average pooling", average, exact_average),
        (f"Gaussian, {fixed:.1f} ms: rule of thumb", error(fixed), exact_error(fixed)),
        (f"Gaussian, {learned:.1f} ms: learned", error(learned), exact_error(learned)),
    ]
    page.line()
    page.line(page.style("      leave-one-out error (root mean square), g", "dim"))
    for name, ours, exact in rows:
        bar = page.style("█" * round(ours / average * 32), "cyan")
        tour.result(f"{name:<35}{ours:>5.1f}  {bar}", Check(name, ours, exact, 1e-4 * exact))

    searched = np.geomspace(0.3, 10, 60).tolist()
    least, best = min((error(sigma), sigma) for sigma in searched)
    page.line()
    tour.result(
        f"a search over {len(searched)} bandwidths does no better: {least:.1f} g at {best:.1f} ms",
        Check("learned kernel, beside the best of a search", rows[2][1], least, 0.1),
    )


def _draw(tour: Tour, times: Array, accelerations: Array, learned: float) -> None:
    page = tour.page
    mean = float(kr.average_pooling([0.0], accelerations)[0])
    tour.result(
        f"average pooling predicts {mean:.2f} g at every time: the mean",
        Check("average pooling", mean, accelerations.mean(dtype=np.float64), 1e-4),
    )
    canvas = Canvas(page, (0, 60), (-140, 80), height=22, width=70)
    canvas.level(mean, "dim")
    canvas.points(times, accelerations, "yellow")
    canvas.curve(lambda x: kr.nadaraya_watson(x, times, accelerations, learned), "cyan")
    legend = [("∘ measured", "yellow"), (f"{canvas.ink * 2} learned kernel", "cyan")]
    keys = "    ".join(page.style(*entry) for entry in [*legend, ("╌╌ average pooling", "dim")])
    page.line()
    page.line(f"      g over ms:    {keys}")
    for line in canvas.lines(range(0, 60, 10), (50, 0, -50, -100)):
        page.line(line)
