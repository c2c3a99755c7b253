"""Parts 1 and 2 of the tour: masking the padding."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

import attnext
from attnext._tour.page import numbers_text, weights_text
from attnext._tour.tour import ROUNDED, Check, Tour
from attnext._width import ljust

Lengths: TypeAlias = list[int] | list[list[int]]  # for each sample, for each query

# Part 1: two samples of two queries and four keys, and two ways to give their lengths.
X = np.array(
    [
        [[0.8, 0.2, 0.9, 0.4], [0.1, 0.7, 0.3, 0.5]],
        [[0.6, 0.2, 0.7, 0.1], [0.9, 0.8, 0.3, 0.4]],
    ],
    np.float32,
)
PER_ENTRY: Lengths = [2, 3]
PER_QUERY: Lengths = [[1, 3], [2, 4]]
# The weights for these lengths, by row.
OF_ENTRIES: list[list[float]] = [
    [0.6457, 0.3543, 0, 0],
    [0.3543, 0.6457, 0, 0],
    [0.3603, 0.2415, 0.3982, 0],
    [0.4076, 0.3688, 0.2237, 0],
]
OF_QUERIES: list[list[float]] = [
    [1, 0, 0, 0],
    [0.2473, 0.4506, 0.3021, 0],
    [0.5987, 0.4013, 0, 0],
    [0.3268, 0.2957, 0.1793, 0.1982],
]


def masked_softmax(tour: Tour) -> None:
    """Part 1: lengths for each sample, and for each query."""
    page, text = tour.page, tour.page.text
    tour.title(en="Masked softmax: scores become weights", zh="掩蔽softmax操作：评分变成权重")
    page.say(
        en="A softmax turns a row of scores into weights that sum to 1. The keys beyond the valid "
        "length of the row are padding. Padding is never read, and its weight is exactly 0.",
        zh="softmax把一行评分变成总和为1的权重。超出有效长度的键是填充：填充从不被读取，"
        "权重恰好为0。",
    )
    page.line()
    page.code("masked_softmax(X, valid_lens)     X (2, 2, 4) -> weights (2, 2, 4)")
    for lens, known, en, zh in (
        (PER_ENTRY, OF_ENTRIES, "one length for each sample", "每个样本一个有效长度"),
        (PER_QUERY, OF_QUERIES, "one length for each query", "每个查询一个有效长度"),
    ):
        title = text(en=f"valid_lens = {lens}: {en}", zh=f"valid_lens = {lens}：{zh}")
        _softmax_table(tour, lens, title, known)
    _poison(tour)
    if tour.figures:
        tour.figures.masked_softmax(X, [PER_ENTRY, PER_QUERY])


def _poison(tour: Tour) -> None:
    """Check that the values in the padding have no effect."""
    poisoned = X.copy()
    poisoned[0, :, 2:] = poisoned[1, :, 3:] = np.nan
    tour.page.line()
    tour.result(
        tour.page.text(
            en="with NaN in the padding, the weights are the same, bit for bit",
            zh="填充处换成NaN，得到的权重逐位相同",
        ),
        Check(
            "weights with NaN in the padding",
            attnext.masked_softmax(poisoned, PER_ENTRY),
            attnext.masked_softmax(X, PER_ENTRY),
        ),
    )


def _softmax_table(
    tour: Tour,
    valid_lens: Lengths,
    title: str,
    known: list[list[float]],
) -> None:
    text = tour.page.text
    tour.page.line()
    tour.page.indented(title)
    lens = np.broadcast_to(np.array(valid_lens).reshape(2, -1), X.shape[:2])
    theirs = tour.theirs("masked_softmax", X, valid_lens=valid_lens)
    tour.table(
        ljust(text(en="scores", zh="评分"), 17) + text(en="valid", zh="有效"),
        [
            f"{numbers_text(scores):<17}{valid:>3}"
            for scores, valid in zip(X.reshape(4, 4), lens.ravel(), strict=True)
        ],
        "weights of row",
        attnext.masked_softmax(X, valid_lens).reshape(4, 4),
        None if theirs is None else theirs.reshape(4, 4),
        known,
        tolerance=ROUNDED,
        show=weights_text,
        width=26,
    )


def sequence_mask(tour: Tour) -> None:
    """Part 2: valid lengths applied to the data."""
    page = tour.page
    tour.title(en="Sequence mask: overwrite the padding", zh="序列掩蔽：改写填充")
    page.say(
        en="A sequence mask applies valid lengths to the data. In each row, the elements beyond "
        "the valid length are replaced by `value`.",
        zh="序列掩蔽把有效长度直接用在数据上：每一行中超出有效长度的元素都换成value。",
    )
    X, valid_len = np.array([[1, 2, 3], [4, 5, 6]], np.float32), [1, 2]
    page.line()
    page.code("sequence_mask(X, valid_len, value=0)     X (2, 3) -> (2, 3)")
    page.line()
    tour.table(
        f"{'X':<9}" + page.text(en="valid", zh="有效"),
        [f"{numbers_text(X[i]):<9}{valid_len[i]:>3}" for i in range(2)],
        "row",
        attnext.sequence_mask(X, valid_len),
        tour.theirs("sequence_mask", X, valid_len=valid_len),
        [[1, 0, 0], [4, 5, 0]],
        show=numbers_text,
    )
