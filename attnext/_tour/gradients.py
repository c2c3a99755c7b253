"""Parts 5 and 6 of the tour: why the dot product is scaled, and the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import attnext
from attnext import reference
from attnext._tour.page import largest_difference
from attnext._tour.peer import Array
from attnext._tour.tour import EXACT, Check, Tour
from attnext._width import ljust, rjust
from attnext.testing import numerical_gradient

Floats = NDArray[np.float64]

SIZES = (4, 16, 64, 256, 1024)  # of the queries and keys in part 5


class Spread(NamedTuple):
    """What softmax makes of scores."""

    variance: float  # of the scores
    top: float  # mean of the largest weight of each query
    gradient: float  # size of the median query's
    off: float  # distance of the gradients from torch's, relative; 0 without it

    def row(self, *widths: int) -> str:
        """In columns of these widths."""
        numbers = f"{self.variance:.2f}", f"{self.top:.2f}", f"{self.gradient:.6f}"
        return "".join(map(rjust, numbers, widths))


def scaling(tour: Tour) -> None:
    """Part 5: the variance of the scores and the size of the softmax gradient against d."""
    page, text = tour.page, tour.page.text
    tour.title(en="Why 1/sqrt(d)", zh="为什么是1/sqrt(d)")
    page.say(
        en="The dot product of two random vectors of d features has variance d. Large scores "
        "saturate the softmax: one key gets nearly all the weight, and the gradient is nearly 0. "
        "Then the layer cannot learn. Divided by sqrt(d), the scores have variance 1 for every d.",
        zh="两个d维随机向量的点积，方差为d。评分太大，softmax就会饱和：一个键几乎独占全部权重，"
        "梯度几乎为0，模型也就学不下去。除以sqrt(d)之后，不论d是多少，评分的方差都是1。",
    )
    page.line()
    page.say(
        en="The table is measured on 400 random queries with 16 keys each. Variance: of the "
        "scores. Top: the largest weight of a query, averaged over the queries. Gradient: the norm "
        "of the gradient from masked_softmax_backward, the median over the queries.",
        zh="下表用400个随机查询测得，每个查询有16个键。方差：评分的方差。峰值：每个查询的最大权重，"
        "对各查询取平均。梯度：masked_softmax_backward所得梯度的范数，对各查询取中位数。",
    )
    page.line()
    widths, gap = ((9, 5, 10), "  ") if page.narrow else ((11, 8, 12), " " * 5)
    heads = (
        text(en="variance", zh="方差"),
        text(en="top", zh="峰值"),
        text(en="gradient", zh="梯度"),
    )
    head = "".join(map(rjust, heads, widths))
    whole = sum(widths)
    page.note(f"{'':4}{'q . k':^{whole}}{gap}{'q . k / sqrt(d)':^{whole}}")
    page.note(f"{'d':>4}{head}{gap}{head}")
    rng = np.random.default_rng(5)
    raw, scaled = [], []
    for d in SIZES:
        queries = rng.standard_normal((400, 1, d), dtype=np.float32)
        keys = rng.standard_normal((400, 16, d), dtype=np.float32)
        grad = rng.standard_normal((400, 1, 16), dtype=np.float32)
        raw.append(_spread(tour, queries, keys, grad, 1.0))
        scaled.append(_spread(tour, queries, keys, grad, d**-0.5))
        tour.result(
            f"{d:>4}{raw[-1].row(*widths)}{gap}{scaled[-1].row(*widths)}",
            Check(f"variance of the scores over d, d = {d}", raw[-1].variance / d, 1, 0.1),
            Check(f"variance of the scaled scores, d = {d}", scaled[-1].variance, 1, 0.1),
        )
    page.line()
    _tell_gradients(tour, raw, scaled)
    if tour.figures:
        curves = (
            ([spread.variance for spread in spreads], [spread.gradient for spread in spreads])
            for spreads in (raw, scaled)
        )
        tour.figures.scaling(SIZES, *curves)


def _tell_gradients(tour: Tour, raw: list[Spread], scaled: list[Spread]) -> None:
    text = tour.page.text
    fade = raw[0].gradient / raw[-1].gradient
    sizes = [measured.gradient for measured in scaled]
    spread = max(sizes) / min(sizes)
    tour.result(
        text(
            en=f"from d = 4 to 1024 the gradient shrinks {fade:,.0f}-fold, but not with scaling",
            zh=f"d从4增大到1024，梯度缩小到{fade:,.0f}分之一；缩放之后则基本不变",
        ),
        Check("the unscaled gradient shrinks more than 1000-fold", fade > 1000, True),
        Check("sizes of the scaled gradient, largest over smallest", spread, 1, 0.25),
    )
    if tour.peer is not None:
        off = max(measured.off for measured in raw + scaled)
        tour.result(
            text(
                en=f"torch's autograd computes the same gradients, within {off:.0e}",
                zh=f"torch的自动微分得到同样的梯度，最多相差{off:.0e}",
            ),
            Check("softmax gradients, compared with PyTorch, relative", off, 0, EXACT),
        )


def _spread(tour: Tour, queries: Array, keys: Array, grad: Array, scale: float) -> Spread:
    scores = attnext.dot_product_scores(queries, keys, scale=scale)
    weights = attnext.masked_softmax(scores)
    gradient = attnext.masked_softmax_backward(grad, weights)
    size = float(np.median(np.linalg.norm(gradient, axis=-1)))
    off = 0.0
    if tour.peer is not None:
        (theirs,) = tour.peer.gradients(tour.peer.masked_softmax, grad, scores)
        off = largest_difference(gradient, theirs)
    return Spread(float(scores.var()), float(weights.max(-1).mean()), size, off)


# ---- 6: the backward pass --------------------------------------------------------------------


def backward(tour: Tour) -> None:
    """Part 6: compare every gradient of additive attention with finite differences."""
    page, peer = tour.page, tour.peer
    tour.title(
        en="The backward pass, checked by finite differences",
        zh="反向传播：用有限差分检验",
    )
    page.say(
        en="Change one input by h and see how the loss changes: (loss(x + h) - loss(x - h)) / 2h "
        "is the numerical gradient. No formula of the backward pass is needed for it. The tour "
        "computes it in float64 for every input of additive attention, with padding. The table "
        "shows the relative difference of the gradients that layer.backward returns in float32.",
        zh="让一个输入变动h，看损失怎样变化：(loss(x + h) - loss(x - h)) / 2h就是数值梯度。"
        "求数值梯度不需要反向传播的公式。这里对带填充的加性注意力的每个输入，都以float64求出数值"
        "梯度。表中列出layer.backward以float32返回的梯度的相对误差。",
    )
    page.line()
    page.code("loss = sum(grad_output * layer(queries, keys, values, valid_lens=[4, 6]))")
    page.line()
    rng = np.random.default_rng(6)
    layer = attnext.AdditiveAttention(3, 5, 4, rng=rng)
    arrays: dict[str, Array] = {
        "queries": rng.standard_normal((2, 3, 5), dtype=np.float32),
        "keys": rng.standard_normal((2, 6, 3), dtype=np.float32),
        "values": rng.standard_normal((2, 6, 4), dtype=np.float32),
        "W_q": layer.W_q,
        "W_k": layer.W_k,
        "w_v": layer.w_v,
    }
    lens, grad_output = [4, 6], rng.standard_normal((2, 3, 4), dtype=np.float32)
    layer(arrays["queries"], arrays["keys"], arrays["values"], lens)
    ours = dict(zip(arrays, layer.backward(grad_output), strict=False)) | layer.grads
    theirs = None
    if peer is not None:
        theirs = peer.gradients(peer.additive, grad_output, *arrays.values(), valid_lens=lens)

    def numerical(name: str) -> Floats:
        def loss(x: Floats) -> float:
            q, k, v, W_q, W_k, w_v = (arrays | {name: x}).values()
            output = reference.additive_attention(q, k, v, W_q, W_k, w_v, lens)
            return float(np.sum(grad_output * output))

        return numerical_gradient(loss, arrays[name])

    _gradient_table(tour, {name: ours[name] for name in arrays}, numerical, theirs)


def _gradient_table(
    tour: Tour,
    gradients: dict[str, Array],
    numerical: Callable[[str], Floats],
    theirs: list[Array] | None,
) -> None:
    """Write each gradient's relative difference from the numerical one and from torch's."""
    text = tour.page.text
    a, b, c, d, e = (8, 10, 8, 18, 11) if tour.page.narrow else (14, 12, 8, 21, 13)
    tour.page.note(
        ljust(text(en="input", zh="变量"), a)
        + ljust(text(en="shape", zh="形状"), b)
        + rjust(text(en="largest", zh="最大值"), c)
        + rjust(text(en="from numerical", zh="与数值梯度相差"), d)
        + ("" if theirs is None else rjust(text(en="from torch", zh="与torch差"), e))
    )
    for i, (name, ours) in enumerate(gradients.items()):
        off = largest_difference(ours, numerical(name))
        other = None if theirs is None else theirs[i]
        tour.result(
            f"{name:<{a}}{ours.shape!s:<{b}}{np.abs(ours).max():>{c}.4f}{off:>{d}.0e}"
            + ("" if other is None else f"{largest_difference(ours, other):>{e}.0e}"),
            Check(f"gradient of {name}, relative error", off, 0, EXACT),
            *tour.compare_with_torch(f"gradient of {name}", ours, other),
        )
