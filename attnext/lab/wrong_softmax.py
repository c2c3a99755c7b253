"""Misconceptions about lengths, masks and the softmax."""

from __future__ import annotations

import numpy as np

from attnext.lab.book import Array, Book
from attnext.lab.misconceptions import Step, wrong


def _over(*axes: int) -> Step:
    """A softmax over these axes."""

    def softmax(book: Book, S: Array) -> Array:
        E: Array = np.exp(S - S.max(axes, keepdims=True))
        P: Array = E / E.sum(axes, keepdims=True)
        return P

    return softmax


def _ways_over(*axes: int) -> list[dict[str, Step]]:
    """The same with padding at -inf, and at -1e6."""
    return [{"softmax": _over(*axes)}, {"softmax": _over(*axes), **_sentinel(-1e6)}]


def _sentinel(value: float) -> dict[str, Step]:
    """Padding has this score, whatever the others are."""

    def masked(book: Book, S: Array, live: Array) -> Array:
        return np.where(live, S, value)

    return {"masked": masked, "empty": _as_it_is}


def _as_it_is(book: Book, P: Array, live: Array) -> Array:
    return P


def _added(number: float) -> Step:
    return lambda book, S, live: S + np.where(live, 0, number)


def _unmasked(book: Book, S: Array, live: Array) -> Array:
    return S


def _after(book: Book, P: Array, live: Array) -> Array:
    return P * live


def _only_queries(book: Book, S: Array, live: Array) -> Array:
    """A length counts queries: those behind it see nothing, those before it see all."""
    M, N = S.shape[-2:]
    counts = live.sum(-1, keepdims=True)
    return np.where(np.arange(M)[:, None] < counts, S, -1e30)


LENGTHS = [
    wrong(
        "lengths-tiled",
        en="The lengths are repeated in the wrong order: [2, 3] became [2, 3, 2, 3]. The queries "
        "of "
        "an entry lie next to each other: [2, 2, 3, 3], np.repeat or torch.repeat_interleave.",
        zh="有效长度重复的顺序不对：[2, 3]变成了[2, 3, 2, 3]。同一样本的各个查询是相邻的，应为"
        "[2, 2, 3, 3]：用np.repeat或torch.repeat_interleave。",
        of_each_row=lambda b, lens, M: (np.tile(lens, M) if lens.ndim == 1 else lens).reshape(
            -1, M
        ),
    ),
    wrong(
        "lengths-transposed",
        en="The lengths of the queries are read along the wrong axis: valid_lens[b, i] belongs to "
        "query i of entry b.",
        zh="各查询的有效长度取错了轴：valid_lens[b, i]属于样本b的查询i。",
        of_each_row=lambda b, lens, M: (
            np.repeat(lens, M).reshape(-1, M) if lens.ndim == 1 else lens.T.reshape(-1, M)
        ),
    ),
    wrong(
        "first-length-for-all",
        en="The first length is used for every entry. Each entry has its own.",
        zh="所有样本都用了第一个有效长度。每个样本有自己的长度。",
        of_each_row=lambda b, lens, M: np.full((len(lens), M), lens.flat[0]),
    ),
    wrong(
        "longest-length-for-all",
        en="The largest length is used for every entry. Each entry has its own.",
        zh="所有样本都用了最大的有效长度。每个样本有自己的长度。",
        of_each_row=lambda b, lens, M: np.full((len(lens), M), lens.max()),
    ),
    wrong(
        "one-length-for-the-entry",
        en="Of the lengths of an entry's queries only the first is used. Each query has its own: "
        "valid_lens[b, i].",
        zh="同一样本中只用了第一个查询的有效长度。每个查询有自己的长度：valid_lens[b, i]。",
        of_each_row=lambda b, lens, M: np.repeat(lens if lens.ndim == 1 else lens[:, 0], M).reshape(
            -1, M
        ),
    ),
    wrong(
        "one-too-many",
        en="One place too many takes part: places are counted from 0, so that of length 2 places "
        "0 and 1 take part, j < length and not j <= length.",
        zh="多留了一个位置：位置从0开始数，长度为2时参与的是位置0和1，条件是j < 长度，而不是"
        "j <= 长度。",
        within=lambda b, places, lens: places <= lens,
    ),
    wrong(
        "one-too-few",
        en="One place too few takes part: of length 2 places 0 and 1 do, j < length.",
        zh="少留了一个位置：长度为2时，位置0和1都参与，条件是j < 长度。",
        within=lambda b, places, lens: places < lens - 1,
    ),
    wrong(
        "mask-inverted",
        en="The mask is the wrong way round: what takes part is left out, and the padding stays. "
        "Places j < length take part.",
        zh="掩码反了：该参与的被去掉，填充反而留下。参与的是j < 长度的位置。",
        within=lambda b, places, lens: places >= lens,
    ),
    wrong(
        "padding-in-front",
        en="The last places take part instead of the first ones. The padding stands at the end.",
        zh="参与的成了末尾的位置，而不是开头的。填充在末尾。",
        within=lambda b, places, lens: places >= places.size - lens,
    ),
    wrong(
        "lengths-ignored",
        en="The lengths change nothing: every place takes part. Use valid_lens.",
        zh="有效长度没有起作用：所有位置都参与了。请用上valid_lens。",
        ways=[
            {"of_each_row": lambda b, lens, M: np.full((len(lens), M), 2**62)},
            {"sequence_mask": lambda b, X, valid_len, value=0: X},
        ],
    ),
    wrong(
        "queries-masked",
        en="The lengths leave out queries. They count keys: the last axis of the scores.",
        zh="有效长度去掉的是查询。它数的是键，即评分的最后一个轴。",
        masked=_only_queries,
        empty=_as_it_is,
    ),
    wrong(
        "features-masked",
        en="The mask runs along the last axis. Places are axis 1, whatever comes after.",
        zh="掩码用在了最后一个轴上。位置是轴1，无论后面还有什么轴。",
        sequence_axis=lambda b, X: X.ndim - 1,
    ),
    wrong(
        "mask-multiplied",
        en="X is multiplied by the mask, and NaN times 0 is NaN. Choose: np.where, torch.where, or "
        "write into a copy.",
        zh="用掩码去乘X，而NaN乘0仍是NaN。应当选取：np.where、torch.where，或写入副本。",
        sequence_mask=lambda b, X, valid_len, value=0: (
            X * Book().sequence_mask(np.ones(X.shape), valid_len)
            + value * (1 - Book().sequence_mask(np.ones(X.shape), valid_len))
        ),
    ),
    wrong(
        "value-ignored",
        en="The padding is filled with 0, whatever value says. Fill it with value.",
        zh="不论value是多少，填充处都写成了0。应写入value。",
        filling=lambda b, X, value: 0,
    ),
]

SOFTMAX = [
    wrong(
        "softmax-over-queries",
        en="The softmax runs over the queries: every column sums to 1. Each query shares out its "
        "own weights over the keys: axis=-1.",
        zh="softmax沿着查询的方向计算，每一列之和为1。每个查询把自己的权重分给各个键：axis=-1。",
        ways=_ways_over(-2),
    ),
    wrong(
        "softmax-over-batch",
        en="The softmax runs over the batch, axis 0. Entries have nothing to do with each other: "
        "axis=-1, the keys.",
        zh="softmax沿着批量的方向（轴0）计算。样本之间互不相干：应沿着键，axis=-1。",
        ways=_ways_over(0),
    ),
    wrong(
        "softmax-over-all",
        en="The softmax runs over all numbers at once, and they sum to 1 together. Each row is to "
        "sum to 1: axis=-1, and keepdims=True for the division.",
        zh="softmax是对所有的数一起算的，总和为1。应使每一行之和为1：axis=-1，相除时"
        "keepdims=True。",
        ways=[
            {
                "softmax": lambda b, S: (
                    np.exp(S - S.max(-1, keepdims=True))
                    / np.exp(S - S.max(-1, keepdims=True)).sum()
                )
            },
            {"softmax": lambda b, S: np.exp(S - S.max()) / np.exp(S - S.max()).sum()},
        ],
    ),
    wrong(
        "softmax-over-matrix",
        en="The softmax runs over all pairs of an entry, and they sum to 1 together. Each row is "
        "to "
        "sum to 1: axis=-1.",
        zh="softmax是对一个样本的所有配对一起算的，总和为1。应使每一行之和为1：axis=-1。",
        ways=_ways_over(-2, -1),
    ),
    wrong(
        "no-maximum",
        en="exp overflows for large scores, and inf / inf is NaN. Take the row's maximum off "
        "first: "
        "the weights stay the same.",
        zh="评分很大时exp会溢出，inf / inf得到NaN。先减去这一行的最大值，权重不变。",
        maximum=lambda b, S: 0,
    ),
    wrong(
        "maximum-of-all",
        en="The maximum of all scores is taken off, not that of the row: in a row far below it "
        "every exp is 0, and 0 / 0 is NaN. S.max(-1, keepdims=True).",
        zh="减去的是所有评分的最大值，而不是这一行的：远低于它的行，exp全部为0，0 / 0得到NaN。"
        "应为S.max(-1, keepdims=True)。",
        maximum=lambda b, S: np.nanmax(S),
    ),
    wrong(
        "mask-with-zero",
        en="Padding has the score 0, and exp(0) is 1: it still takes weight. Its score must be "
        "-inf, or very negative, so that its exp is 0.",
        zh="填充处的评分成了0，而exp(0)等于1，它仍然分到权重。它的评分应为-inf或非常小的负数，"
        "使exp为0。",
        ways=[_sentinel(0.0), {"masked": lambda b, S, live: S * live, "empty": _as_it_is}],
    ),
    wrong(
        "mask-with-one",
        en="Padding has the score 1, as if it were a number of a mask. Its score must be -inf, or "
        "very negative.",
        zh="填充处的评分成了1，好像它是掩码里的数。它的评分应为-inf或非常小的负数。",
        ways=[_sentinel(1.0)],
    ),
    wrong(
        "mask-too-small",
        en="Padding has a score that is negative, but not enough: where the other scores are lower "
        "still, the padding takes all the weight. Use -inf, or -1e6 as the book does.",
        zh="填充处的评分虽是负数，却不够小：其余评分更低时，权重就全被填充占去。应取-inf，或像"
        "书中那样取-1e6。",
        ways=[
            _sentinel(value) for value in (-1.0, -9.0, -10.0, -50.0, -99.0, -100.0, -999.0, -1e3)
        ],
    ),
    wrong(
        "mask-added",
        en="A large negative number is added to the padding's score: NaN plus anything is NaN, and "
        "in a row without a key the scores still show. Put the number in its place: np.where, "
        "masked_fill.",
        zh="给填充处的评分加上了一个很大的负数：NaN加什么都是NaN，而在没有键的行里，原来的评分仍然"
        "起作用。应把它换成那个数：np.where，masked_fill。",
        ways=[
            {"masked": _added(-1e9)},
            *({"masked": _added(by), "empty": _as_it_is} for by in (-1e9, -1e6, -np.inf)),
        ],
    ),
    wrong(
        "mask-after-softmax",
        en="The weights are set to 0 after the softmax, so the rest sums to less than 1. Mask the "
        "scores, before the softmax.",
        zh="softmax之后才把权重置0，余下的权重之和不到1。应在softmax之前掩蔽评分。",
        ways=[
            {"masked": _unmasked, "empty": _as_it_is, "finish": _after},
            {
                "masked": _unmasked,
                "empty": _as_it_is,
                "finish": lambda b, P, live: np.where(live, P, 0),
            },
        ],
    ),
    wrong(
        "minus-infinity-after-softmax",
        en="The weights of padding are -inf or a large negative number: that belongs into the "
        "scores, before the softmax. The weights there are 0.",
        zh="填充处的权重成了-inf或很大的负数：那是softmax之前评分该取的值。那里的权重应为0。",
        ways=[
            {
                "masked": _unmasked,
                "empty": _as_it_is,
                "finish": lambda b, P, live, v=value: np.where(live, P, v),
            }
            for value in (-np.inf, -1e6, -1e9)
        ],
    ),
    wrong(
        "empty-row-nan",
        en="A row without a key is NaN, since -inf - (-inf) is. Say what the mean of nothing is: "
        "1/N for each key, as in the book, or 0.",
        zh="没有键的行成了NaN，因为-inf - (-inf)就是NaN。要规定空集的平均是什么：像书中那样每个键"
        "1/N，或者0。",
        empty=_as_it_is,
    ),
    wrong(
        "padding-in-the-softmax",
        en="The padding goes into the softmax, and is taken out again afterwards: where it is far "
        "larger than the rest, 0 / 0 is left, and where it is NaN, NaN. Mask first, then take the "
        "maximum and the exponential.",
        zh="填充先进入了softmax，之后才去掉：填充远大于其余的数时，剩下的是0 / 0；填充是NaN时，"
        "得到的也是NaN。应先掩蔽，再求最大值和指数。",
        masked=_unmasked,
        empty=_as_it_is,
        finish=lambda b, P, live: (
            np.where(live, P, 0) / np.where(live, P, 0).sum(-1, keepdims=True)
        ),
    ),
    wrong(
        "no-exponential",
        en="The scores are divided by their sum, without the exponential: weights may become "
        "negative, and equal scores of 0 divide by 0. exp comes first.",
        zh="评分直接除以了它们的和，没有取指数：权重可能为负，和为0时还会除以0。要先取exp。",
        ways=[
            {
                "softmax": lambda b, S: (
                    np.where(np.isinf(S), 0, S) / np.where(np.isinf(S), 0, S).sum(-1, keepdims=True)
                )
            }
        ],
    ),
    wrong(
        "not-normalised",
        en="The exponentials are not divided by their sum: a row is to sum to 1.",
        zh="指数没有除以它们的和：每一行之和应为1。",
        ways=[
            {"total": lambda b, E: 1.0},
            {"total": lambda b, E: 1.0, "maximum": lambda b, S: 0},
        ],
    ),
    wrong(
        "no-softmax",
        en="There is no softmax: what is returned, or pooled with, are the scores themselves.",
        zh="没有做softmax：返回的（或用来加权的）就是评分本身。",
        softmax=lambda b, S: np.where(np.isinf(S), 0, S),
    ),
    wrong(
        "softmax-twice",
        en="The softmax is taken twice: the weights come out nearly even. Once is enough.",
        zh="softmax做了两次，权重变得几乎相等。做一次就够了。",
        finish=lambda b, P, live: b.softmax(P),
    ),
    wrong(
        "log-softmax",
        en="This is the logarithm of the weights, a log_softmax. Weights are wanted: softmax.",
        zh="这是权重的对数，即log_softmax。要的是权重：softmax。",
        finish=lambda b, P, live: np.log(P),
    ),
    wrong(
        "hard-maximum",
        en="All the weight goes to the largest score. A softmax is softer: every key has its "
        "share.",
        zh="权重全给了最大的评分。softmax更“软”：每个键都有一份。",
        softmax=lambda b, S: (np.arange(S.shape[-1]) == S.argmax(-1)[..., None]) * 1.0,
    ),
    wrong(
        "base-two",
        en="The exponential is 2**x in the place of e**x: np.exp, not np.exp2.",
        zh="指数用的是2**x，应为e**x：np.exp，而不是np.exp2。",
        exponential=lambda b, S: 2.0**S,
    ),
    wrong(
        "softmin",
        en="The smaller the score, the larger the weight: a sign is wrong before exp.",
        zh="评分越小权重反而越大：exp之前的符号错了。",
        softmax=lambda b, S: _over(-1)(b, np.where(np.isinf(S), S, -S)),
    ),
]
