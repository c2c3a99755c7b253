"""Parts 3 and 4 of the tour: the two scoring functions of d2l, on d2l's small example."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import attnext
from attnext import reference
from attnext._tour.page import Page, numbers_text, weights_text
from attnext._tour.peer import Array
from attnext._tour.tour import EXACT, Check, Tour
from attnext._width import ljust

Floats = NDArray[np.floating]


def additive_attention(tour: Tour) -> None:
    """Part 3: queries and keys of different sizes."""
    page = tour.page
    tour.title(
        en="Additive attention: queries and keys of different sizes",
        zh="加性注意力：查询和键的维度可以不同",
    )
    page.say(
        en="score = w_v . tanh(W_q q + W_k k). A small network compares a query of 20 features "
        "with keys of 2 features. In d2l's example all keys are equal. So all valid keys have the "
        "same weight, whatever the network has learned. The output is the mean of their values.",
        zh="评分 = w_v . tanh(W_q q + W_k k)：用一个小网络比较20维的查询与2维的键。在d2l的例子里，"
        "所有的键都相同。因此不论网络学到了什么，每个有效的键权重都相等，输出就是它们的值的平均。",
    )
    rng = np.random.default_rng(20)
    layer = attnext.AdditiveAttention(2, 20, 8, dropout=0.1, rng=rng)
    layer.eval()
    W = (layer.W_q, layer.W_k, layer.w_v)
    queries = rng.standard_normal((2, 1, 20), dtype=np.float32)
    keys, values, lens = np.ones((2, 10, 2), np.float32), _book_values(), [2, 6]
    page.line()
    page.code("AdditiveAttention(key_size=2, query_size=20, num_hiddens=8, dropout=0.1)")
    page.code("queries (2, 1, 20), keys (2, 10, 2), values (2, 10, 4), valid_lens [2, 6]")
    page.code("-> output (2, 1, 4), attention_weights (2, 1, 10)")
    output = layer(queries, keys, values, lens)
    theirs = tour.theirs("additive", queries, keys, values, *W, valid_lens=lens)
    even = _book_table(tour, layer.attention_weights, output, theirs)

    keys = rng.standard_normal((2, 10, 2), dtype=np.float32)
    off, from_torch, checks = tour.differences(
        "ten different keys",
        layer(queries, keys, values, lens),
        reference.additive_attention(queries, keys, values, *W, valid_lens=lens),
        tour.theirs("additive", queries, keys, values, *W, valid_lens=lens),
    )
    tour.result(
        page.text(
            en=f"ten different keys: within {off} of the float64 reference{from_torch}",
            zh=f"换成十个不同的键：与float64参考实现相差{off}{from_torch}",
        ),
        *checks,
    )
    if tour.figures:
        weights = {
            tour.figures.text(en="ten equal keys", zh="十个相同的键"): even,
            tour.figures.text(en="ten different keys", zh="十个不同的键"): _rows(
                layer.attention_weights
            ),
        }
        tour.figures.book_example("3-additive-attention", weights, lens)


def dot_product_attention(tour: Tour) -> None:
    """Part 4: scaled, as a layer; then without the scale, in four steps."""
    page = tour.page
    tour.title(
        en="Dot-product attention: queries and keys of equal size",
        zh="点积注意力：查询和键的维度相同",
    )
    page.say(
        en="score = q . k / sqrt(d). There are no parameters: one matrix product computes all "
        "scores. The same example:",
        zh="评分 = q . k / sqrt(d)：没有参数，一次矩阵乘法就算出全部评分。仍用同一个例子：",
    )
    rng = np.random.default_rng(2)
    layer = attnext.DotProductAttention(dropout=0.5)
    layer.eval()
    queries = rng.standard_normal((2, 1, 2), dtype=np.float32)
    keys, values, lens = np.ones((2, 10, 2), np.float32), _book_values(), [2, 6]
    page.line()
    page.code("DotProductAttention(dropout=0.5)")
    page.code("queries (2, 1, 2), keys (2, 10, 2), values (2, 10, 4), valid_lens [2, 6]")
    output = layer(queries, keys, values, lens)
    theirs = tour.theirs("dot_product", queries, keys, values, valid_lens=lens)
    even = _book_table(tour, layer.attention_weights, output, theirs)
    if tour.figures:
        title = tour.figures.text(en="ten equal keys", zh="十个相同的键")
        tour.figures.book_example("4-dot-product-attention", {title: even}, lens)
    page.line()
    page.say(
        en="Dot-product attention without the scale, in four steps: x1 (2, 3, 4) holds the "
        "queries, x2 (2, 5, 4) holds the keys and the values.",
        zh="不缩放的点积注意力，分四步计算：x1 (2, 3, 4)作查询，x2 (2, 5, 4)既作键又作值。",
    )
    page.line()
    _four_steps(tour, rng)


def _four_steps(tour: Tour, rng: np.random.Generator) -> None:
    page, text = tour.page, tour.page.text
    x1 = rng.standard_normal((2, 3, 4), dtype=np.float32)
    x2 = rng.standard_normal((2, 5, 4), dtype=np.float32)
    scores = attnext.dot_product_scores(x1, x2, scale=1.0)
    weights = attnext.masked_softmax(scores)
    output = weights @ x2
    head = ljust(text(en="step", zh="步骤"), 25) + ljust(text(en="shape", zh="形状"), 12)
    numbers = text(en="for the query x1[0, 0]", zh="查询x1[0, 0]的数值")
    _one_or_two_lines(page, head, numbers, "dim")
    for step, array in [
        ("1  x1", x1),
        (text(en="2  scores = x1 x2^T", zh="2  评分 = x1 x2^T"), scores),
        (text(en="3  weights = softmax", zh="3  权重 = softmax(评分)"), weights),
        (text(en="4  output = weights x2", zh="4  输出 = 权重 x2"), output),
    ]:
        row = weights_text(array[0, 0]) if array is weights else numbers_text(array[0, 0], 3)
        _one_or_two_lines(page, ljust(step, 25) + f"{array.shape!s:<12}", row)
    off, from_torch, checks = tour.differences(
        "one call",
        attnext.dot_product_attention(x1, x2, x2, scale=1.0),
        output,
        tour.theirs("dot_product", x1, x2, x2, scale=1.0),
    )
    tour.result(
        text(
            en=f"one call: within {off} of the four steps{from_torch}",
            zh=f"一次调用：与分四步的结果相差{off}{from_torch}",
        ),
        *checks,
    )
    if tour.figures:
        tour.figures.four_steps(weights)


def _one_or_two_lines(page: Page, left: str, numbers: str, *styles: str) -> None:
    """Write the numbers of a step after its name, or below it if the page is narrow."""
    if page.narrow:
        page.indented(left, *styles)
        left = " " * 3
    page.indented(left + numbers, *styles)


def _book_values() -> Array:
    return np.tile(np.arange(40, dtype=np.float32).reshape(1, 10, 4), (2, 1, 1))


def _book_table(tour: Tour, weights: Array | None, output: Array, theirs: Array | None) -> Floats:
    """Write and check the results of d2l's example, equal for both scores; return the weights."""
    page, text = tour.page, tour.page.text
    rows = _rows(weights)
    page.line()
    tour.table(
        ljust(text(en="weights", zh="权重"), 13) + text(en="keys", zh="键"),
        [
            f"{_bars(page, row)}   " + text(en=f"{used} of 10", zh=f"10个中的{used}个")
            for row, used in zip(rows, np.count_nonzero(rows, axis=1), strict=True)
        ],
        "output of sample",
        output[:, 0],
        None if theirs is None else theirs[:, 0],
        [[2, 3, 4, 5], [10, 11, 12, 13]],
        tolerance=EXACT * 13,
        show=numbers_text,
    )
    tour.result(
        text(
            en="valid keys have the weight 1/2 or 1/6, padding has exactly 0",
            zh="有效的键，权重为1/2或1/6；填充的权重恰好为0",
        ),
        Check("weights of the valid keys of sample 0", rows[0, :2], [1 / 2] * 2, EXACT),
        Check("weights of the valid keys of sample 1", rows[1, :6], [1 / 6] * 6, EXACT),
        Check("weights of the padding of sample 0", rows[0, 2:], [0] * 8),
        Check("weights of the padding of sample 1", rows[1, 6:], [0] * 4),
    )
    return rows


def _rows(weights: Array | None) -> Floats:
    """Return the weights (2, 1, 10) of the single query as (2, 10); zeros if there are none."""
    return np.zeros((2, 10)) if weights is None else weights[:, 0]


def _bars(page: Page, weights: Floats) -> str:
    """A bar for each weight, a dot for 0; 1/2 is a full bar."""
    return "".join(page.sparkline([w, 0.5])[0] if w > 0 else "·" for w in weights)
