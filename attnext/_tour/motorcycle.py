"""Part 7 of the tour: kernel regression on real measurements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnext import kernel_regression as kr
from attnext import reference
from attnext._data import motorcycle
from attnext._tour.canvas import Canvas
from attnext._tour.page import largest_difference
from attnext._tour.peer import Peer, Tensor
from attnext._tour.tour import Check, Tour
from attnext._width import ljust

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
    times, accelerations = motorcycle()
    first, last, n = times.min(), times.max(), len(times)
    tour.title(
        en="Real data: kernel regression on a motorcycle crash",
        zh="真实数据：摩托车碰撞实验的核回归",
    )
    tour.page.say(
        en=f"The data are {n} measurements from a simulated crash (Silverman 1985): the "
        f"acceleration of a rider's head, in g, {first:g} to {last:g} ms after the impact. "
        "Attention predicts the acceleration at any time. The query is this time, the keys are the "
        "times of the measurements, and the values are the measured accelerations. In training and "
        "for the errors below, each measurement is predicted from all the others (leave one out).",
        zh=f"数据是模拟碰撞中的{n}次测量（Silverman 1985）：碰撞后{first:g}到{last:g}毫秒之间骑手"
        "头部的加速度，单位为g。注意力可以预测任一时刻的加速度：查询是这个时刻，键是各次测量的时刻，"
        "值是测得的加速度。训练时和计算误差时，每次测量都由其余各次测量来预测（留一法）。",
    )
    x, y = standardise(times), standardise(accelerations)
    training = train(x, y)
    unit = float(times.std())  # one unit of x in ms
    fixed, learned = rule_of_thumb(times), unit / training.w[-1]
    _tell_training(tour, training, unit)
    _tell_gradients(tour, training, x, y)
    _tell_errors(tour, times, accelerations, fixed, learned)
    _check_curves(tour, times, accelerations, learned)
    _draw(tour, times, accelerations, learned)
    if tour.figures:
        sigmas = {
            tour.figures.text(en="learned", zh="学到的带宽"): learned,
            tour.figures.text(en="rule of thumb", zh="经验法则"): fixed,
        }
        tour.figures.loss(training.losses)
        tour.figures.bandwidth(times, accelerations, sigmas)
        tour.figures.fit(times, accelerations, sigmas)
        tour.figures.kernel_weights(times, accelerations, sigmas)


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


def _tell_training(tour: Tour, training: Training, unit: float) -> None:
    page, text = tour.page, tour.page.text
    losses = training.losses
    page.line()
    page.say(
        en="score = -(w (query - key))^2 / 2. The only parameter is w = 1 / bandwidth. Gradient "
        "descent learns w; the gradient comes from attnext's own backward pass. x and y are the "
        "times and the accelerations, scaled to mean 0 and variance 1.",
        zh="评分 = -(w (查询 - 键))^2 / 2，唯一的参数是w = 1 / 带宽。w由梯度下降学得，梯度来自"
        "attnext自己的反向传播。x和y是时刻和加速度，已缩放到均值为0、方差为1。",
    )
    page.line()
    shapes = text(en="both (133, 132)", zh="形状均为(133, 132)")
    loss = text(en="loss: mean of error^2", zh="损失：error^2的平均")
    page.code(f"keys, values = leave_one_out(x, y)          # {shapes}")
    page.code(f"error = net(x, keys, values) - y            # {loss}")
    page.code("net.backward(2 * error / 133)")
    page.code(f"net.w -= {LEARNING_RATE:g} * net.grads['w']")
    page.line()
    page.note(text(en="bandwidth in ms, and loss:", zh="带宽（毫秒）与损失："))
    shown = SHOWN[::2] if page.narrow else SHOWN
    bars = page.sparkline([losses[step] for step in shown])
    sigmas = [f"{unit / training.w[step]:.2f}" for step in shown]
    page.note(ljust(text(en="step", zh="步数"), 6) + "".join(f"{step:>6}" for step in shown))
    for name, row in [
        (text(en="ms", zh="毫秒"), sigmas),
        (text(en="loss", zh="损失"), [f"{losses[step]:.3f}" for step in shown]),
    ]:
        page.line("      " + ljust(name, 6) + "".join(f"{number:>6}" for number in row))
    page.line(page.style(f"      {'':<6}" + "".join(f"{bar:>6}" for bar in bars), "cyan"))
    page.line()
    rises = [after - before for before, after in zip(losses[:-1], losses[1:], strict=True)]
    tour.result(
        text(
            en=f"the loss falls at every step, from {losses[0]:.3f} to {losses[-1]:.3f}",
            zh=f"损失每一步都在下降，从{losses[0]:.3f}到{losses[-1]:.3f}",
        ),
        Check("steps at which the loss rises", sum(rise > 1e-6 for rise in rises), 0),
        Check("the loss falls below a third", losses[-1] < losses[0] / 3, True),
    )


def _tell_gradients(tour: Tour, training: Training, x: Array, y: Array) -> None:
    """Compare the gradients of w at the steps shown with the peer's."""
    if tour.peer is None:
        return
    ours = [training.gradients[step] for step in SHOWN]
    theirs = peer_gradients(tour.peer, x, y, [training.w[step] for step in SHOWN])
    n, off = len(SHOWN), largest_difference(ours, theirs)
    tour.result(
        tour.page.text(
            en=f"the gradients at {n} of the steps: within {off:.0e} of torch's autograd",
            zh=f"其中{n}步的梯度：与torch的自动微分相差{off:.0e}",
        ),
        *tour.compare_with_torch("gradients of w", ours, theirs),
    )


def _tell_errors(
    tour: Tour, times: Array, accelerations: Array, fixed: float, learned: float
) -> None:
    page, text, n = tour.page, tour.page.text, len(times)
    keys, values = kr.leave_one_out(times, accelerations)

    def exact(sigma: float) -> float:
        args = (times[:, None, None], keys[:, :, None], values[:, :, None])
        predictions = reference.gaussian_attention(*args, sigma=sigma)[:, 0, 0]
        return float(np.sqrt(np.mean((predictions - accelerations) ** 2)))

    average = kr.leave_one_out_error(times, accelerations, kernel="constant")
    by_rule, by_descent = (
        kr.leave_one_out_error(times, accelerations, sigma) for sigma in (fixed, learned)
    )
    # Leaving i out moves the mean away from y_i, by a factor n / (n - 1).
    exact_average = float(accelerations.std(dtype=np.float64)) * n / (n - 1)
    rule = text(en=f"{fixed:.1f} ms (rule of thumb)", zh=f"{fixed:.1f}毫秒（经验法则）")
    descent = text(en=f"{learned:.1f} ms (learned)", zh=f"{learned:.1f}毫秒（学得）")
    gaussian = text(en="Gaussian, ", zh="高斯核，")
    page.line()
    page.note(
        text(en="leave-one-out error in g (root mean square)", zh="留一法误差（均方根），单位为g")
    )
    for name, what, ours, known in [
        (text(en="average pooling", zh="平均汇聚"), "average pooling", average, exact_average),
        (gaussian + rule, f"Gaussian, {fixed:.1f} ms", by_rule, exact(fixed)),
        (gaussian + descent, f"Gaussian, {learned:.1f} ms", by_descent, exact(learned)),
    ]:
        bar = page.style("█" * round(ours / average * (page.width - 48)), "cyan")
        check = Check(f"{what}, leave-one-out error", ours, known, 1e-4 * known)
        tour.result(ljust(name, 35) + f"{ours:>5.1f}  {bar}", check)

    choice = kr.choose_bandwidth(times, accelerations)
    tried, least, best = len(choice.sigmas), choice.error, choice.sigma
    page.line()
    tour.result(
        text(
            en=f"of {tried} other bandwidths, the best one gives {least:.1f} g, at {best:.1f} ms",
            zh=f"另取{tried}个带宽，其中最好的误差也是{least:.1f} g，带宽为{best:.1f}毫秒",
        ),
        Check("learned kernel, compared with the best of a search", by_descent, least, 0.1),
    )


def _check_curves(tour: Tour, times: Array, accelerations: Array, sigma: float) -> None:
    """Compare both predictions, at every ms, with the known values and the peer's."""
    text = tour.page.text
    x = np.arange(61, dtype=np.float32)
    mean = accelerations.mean(dtype=np.float64)
    pooled = kr.average_pooling(x, accelerations)
    tour.result(
        text(
            en=f"average pooling predicts the mean at every time: {pooled[0]:.2f} g",
            zh=f"平均汇聚在每个时刻的预测都是全部测量值的平均：{pooled[0]:.2f} g",
        ),
        Check("average pooling", pooled, np.full(61, mean), 1e-4),
    )
    keys, values = (np.tile(array, (len(x), 1)) for array in (times, accelerations))
    off, from_torch, checks = tour.differences(
        "the learned curve",
        kr.nadaraya_watson(x, times, accelerations, sigma),
        reference.gaussian_attention(
            x[:, None], times[:, None], accelerations[:, None], sigma=sigma
        )[:, 0],
        tour.theirs("kernel_regression", x, keys, values, [1 / sigma]),
    )
    tour.result(
        text(
            en=f"the learned curve: within {off} of the float64 reference{from_torch}",
            zh=f"学得的曲线：与float64参考实现相差{off}{from_torch}",
        ),
        *checks,
    )


def _draw(tour: Tour, times: Array, accelerations: Array, sigma: float) -> None:
    page, text = tour.page, tour.page.text
    canvas = Canvas(page, (0, 60), (-140, 80), height=22, width=page.width - 10)
    canvas.level(float(accelerations.mean()), "dim")
    canvas.points(times, accelerations, "yellow")
    canvas.curve(lambda x: kr.nadaraya_watson(x, times, accelerations, sigma), "cyan")
    legend = [
        (text(en="∘ measured", zh="∘ 测量值"), "yellow"),
        (f"{canvas.ink * 2} " + text(en="learned kernel", zh="学得的核"), "cyan"),
        (text(en="╌╌ average pooling", zh="╌╌ 平均汇聚"), "dim"),
    ]
    page.line()
    page.indented(
        text(en="acceleration in g, over time in ms", zh="纵轴：加速度，g；横轴：时间，毫秒")
    )
    gap = "  " if page.narrow else " " * 4
    page.line("      " + gap.join(page.style(*entry) for entry in legend))
    for line in canvas.lines(range(0, 60, 10), (50, 0, -50, -100)):
        page.line(line)
