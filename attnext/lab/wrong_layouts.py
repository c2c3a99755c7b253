"""Misconceptions about the order of numbers in memory, about positions, and about examples."""

from __future__ import annotations

import numpy as np

from attnext.lab.book import Array, Book
from attnext.lab.misconceptions import wrong

HEADS = [
    wrong(
        "heads-not-moved",
        en="The array is reshaped without a transpose, so that numbers of different places end up "
        "in one head. Split the last axis into heads, move them to the front, then merge.",
        zh="只做了reshape而没有转置，不同位置的数混进了同一个头。应先把最后一轴拆成各个头，把头"
        "移到前面，再合并。",
        ways=[
            {"transpose_qkv": lambda b, X, h: X.reshape(len(X) * h, X.shape[1], -1)},
            {"transpose_output": lambda b, X, h: X.reshape(len(X) // h, X.shape[1], -1)},
        ],
    ),
    wrong(
        "heads-split-as-d-heads",
        en="The features are split as (d, heads): a head then has every heads-th of them. Head "
        "after head it is (heads, d).",
        zh="特征拆成了(d, heads)：每个头隔着取特征。应一个头接一个头地拆，即(heads, d)。",
        ways=[
            {"split": lambda b, X, h: X.reshape(*X.shape[:2], -1, h).swapaxes(-1, -2)},
            {
                "transpose_output": lambda b, X, h: (
                    X.reshape(-1, h, *X.shape[1:])
                    .transpose(0, 2, 3, 1)
                    .reshape(len(X) // h, X.shape[1], -1)
                )
            },
        ],
    ),
    wrong(
        "heads-before-batch",
        en="The heads are merged in front of the batch, so that entry b, head i stands at i * B + "
        "b. The heads of an entry lie next to each other: b * heads + i.",
        zh="合并时头排在了批量之前，样本b的头i位于i * B + b。同一样本的各个头应相邻：b * heads + "
        "i。",
        ways=[
            {"merge": lambda b, X: X.swapaxes(0, 1).reshape(-1, *X.shape[2:])},
            {"unmerge": lambda b, X, h: X.reshape(h, -1, *X.shape[1:]).swapaxes(0, 1)},
        ],
    ),
    wrong(
        "heads-not-merged",
        en="The heads are an axis of their own, (B, heads, n, d). The book merges them with the "
        "batch: (B * heads, n, d).",
        zh="头成了单独的一个轴(B, heads, n, d)。书中把它与批量合并：(B * heads, n, d)。",
        merge=lambda b, X: X,
    ),
    wrong(
        "heads-behind-places",
        en="The heads stand behind the places, (B, n, heads, d): they are split, but not yet moved "
        "to the front and merged with the batch.",
        zh="头还在位置之后，(B, n, heads, d)：拆开了，但没有移到前面与批量合并。",
        transpose_qkv=lambda b, X, h: b.split(X, h),
    ),
    wrong(
        "places-and-features-swapped",
        en="Places and features of a head are exchanged, (B * heads, d, n). The features come "
        "last: transpose(0, 2, 1, 3).",
        zh="一个头的位置与特征调换了，(B * heads, d, n)。特征在最后：transpose(0, 2, 1, 3)。",
        forward_axes=lambda b: (0, 2, 3, 1),
    ),
    wrong(
        "places-not-moved-back",
        en="The heads are undone from the batch, but not moved behind the places again: transpose "
        "before the last reshape.",
        zh="头从批量中拆了出来，却没有移回位置之后：最后的reshape之前要转置。",
        backward_axes=lambda b: (0, 1, 2, 3),
    ),
    wrong(
        "heads-averaged",
        en="The heads are averaged or summed. They are laid next to each other: (B, n, heads * d).",
        zh="各个头取了平均或求了和。应把它们并排拼接：(B, n, heads * d)。",
        ways=[
            {"transpose_output": lambda b, X, h: b.unmerge(X, h).mean(1)},
            {"transpose_output": lambda b, X, h: b.unmerge(X, h).sum(1)},
        ],
    ),
]

POSITIONS = [
    wrong(
        "sines-then-cosines",
        en="All sines come first, then all cosines. They take turns: sine, cosine, sine, cosine.",
        zh="先排了所有正弦，再排所有余弦。它们应交替排列：正弦、余弦、正弦、余弦。",
        weave=lambda b, s, c: np.concatenate([s, c], axis=-1),
    ),
    wrong(
        "sine-and-cosine-swapped",
        en="Sines and cosines are exchanged: the even columns, from 0 on, are sines.",
        zh="正弦与余弦调换了：从0开始的偶数列是正弦。",
        weave=lambda b, s, c: Book().weave(c, s),
    ),
    wrong(
        "only-sines",
        en="Every column is a sine. The odd ones are the cosine of the same angle.",
        zh="每一列都是正弦。奇数列应是同一角度的余弦。",
        cosines=lambda b, angles: np.sin(angles),
    ),
    wrong(
        "exponent-halved",
        en="The frequencies fall too slowly: pair j has the exponent 2 j / num_hiddens, not j / "
        "num_hiddens.",
        zh="频率降得太慢：第j对的指数是2j / num_hiddens，而不是j / num_hiddens。",
        frequencies=lambda b, even, n: 1 / 10000 ** (even / 2 / n),
    ),
    wrong(
        "exponent-doubled",
        en="The frequencies fall too fast: column 2 j has the exponent 2 j / num_hiddens, not 4 j "
        "/ "
        "num_hiddens.",
        zh="频率降得太快：第2j列的指数是2j / num_hiddens，而不是4j / num_hiddens。",
        frequencies=lambda b, even, n: 1 / 10000 ** (2 * even / n),
    ),
    wrong(
        "a-frequency-for-each-column",
        en="Sine and cosine of a pair have different angles: every column got an exponent of its "
        "own. Column 2 j + 1 is the cosine of the angle of column 2 j.",
        zh="一对正弦和余弦的角度不同：每一列都用了自己的指数。第2j + 1列是第2j列那个角度的余弦。",
        ways=[
            {"positional_encoding": lambda b, steps, n: _each_column(steps, np.arange(n) / n)},
            {"positional_encoding": lambda b, steps, n: _each_column(steps, 2 * np.arange(n) / n)},
        ],
    ),
    wrong(
        "frequency-inside-out",
        en="The positions are multiplied by the power of 10000. Divide: later columns are slower "
        "waves.",
        zh="位置乘以了10000的幂。应相除：越靠后的列，波越慢。",
        frequencies=lambda b, even, n: 10000 ** (even / n),
    ),
    wrong(
        "one-frequency",
        en="All columns have the same frequency. Each pair has its own, from 1 down to nearly "
        "1 / 10000.",
        zh="所有列的频率都相同。每一对有自己的频率，从1降到接近1 / 10000。",
        frequencies=lambda b, even, n: np.ones(len(even)),
    ),
    wrong(
        "positions-from-one",
        en="The positions begin at 1. The first one is 0: its sines are 0, its cosines 1.",
        zh="位置从1开始了。第一个位置是0：正弦为0，余弦为1。",
        places=lambda b, steps: np.arange(1, steps + 1),
    ),
    wrong(
        "positions-as-fractions",
        en="The positions are divided by their number. They are counted: 0, 1, 2, ...",
        zh="位置除以了个数。位置就是序号：0、1、2……",
        places=lambda b, steps: np.arange(steps) / steps,
    ),
    wrong(
        "another-base",
        en="The base is not 10000.",
        zh="底数不是10000。",
        ways=[
            {"frequencies": lambda b, even, n, base=base: 1 / base ** (even / n)}
            for base in (1000.0, 1e5)
        ],
    ),
    wrong(
        "encoding-transposed",
        en="Rows and columns are exchanged. A row is a position, a column a feature.",
        zh="行与列调换了。一行是一个位置，一列是一个特征。",
        positional_encoding=lambda b, steps, n: Book().positional_encoding(steps, n).T,
    ),
]

EXAMPLES = [
    wrong(
        "itself-kept",
        en="Each row has its own example alone: the mask is the wrong way round. All *but* it are "
        "wanted, ~np.eye(n, dtype=bool).",
        zh="每一行只剩下了自己：掩码反了。要的是除自己以外的所有样例：~np.eye(n, dtype=bool)。",
        others=lambda b, n: np.arange(n)[:, None],
    ),
    wrong(
        "nothing-left-out",
        en="Nothing is left out: every row has all n examples, its own too.",
        zh="什么也没有去掉：每一行都有全部n个样例，连自己也在内。",
        others=lambda b, n: np.tile(np.arange(n), (n, 1)),
    ),
    wrong(
        "same-one-left-out",
        en="Every row leaves out the same example. Row i leaves out example i.",
        zh="每一行去掉的都是同一个样例。第i行去掉的应是第i个。",
        ways=[
            {"others": lambda b, n: np.tile(np.arange(n - 1), (n, 1))},
            {"others": lambda b, n: np.tile(np.arange(1, n), (n, 1))},
        ],
    ),
    wrong(
        "left-out-in-columns",
        en="Rows and columns are exchanged, (n - 1, n). A row is a query with all its keys: "
        "(n, n - 1).",
        zh="行与列调换了，成了(n - 1, n)。一行是一个查询和它所有的键：(n, n - 1)。",
        leave_one_out=lambda b, x, y: tuple(a.T for a in Book().leave_one_out(x, y)),
    ),
    wrong(
        "columns-first",
        en="The mask is read column by column, so that the rows are not those of one example. "
        "np.tile(x, (n, 1)) before the mask: row i is x without x[i].",
        zh="掩码是按列读出的，一行不再属于同一个样例。先np.tile(x, (n, 1))再用掩码：第i行是去掉"
        "x[i]的x。",
        ways=[
            {
                "others": lambda b, n: np.repeat(np.arange(n), n)[
                    ~np.eye(n, dtype=bool).ravel()
                ].reshape(n, n - 1)
            }
        ],
    ),
    wrong(
        "going-round",
        en="Row i begins behind example i and goes round. The numbers are right, but their order "
        "is to be that of x.",
        zh="第i行从第i个样例之后开始，绕了一圈。数是对的，但次序应与x相同。",
        others=lambda b, n: (np.arange(n)[:, None] + np.arange(1, n)) % n,
    ),
    wrong(
        "neighbour-left-out",
        en="Row i leaves out the example beside its own: off by one.",
        zh="第i行去掉的是旁边的样例：差了一个。",
        ways=[
            {"others": lambda b, n, by=by: np.roll(Book().others(n), by, axis=0)} for by in (1, -1)
        ],
    ),
]


def _each_column(steps: int, exponents: Array) -> Array:
    angles = np.arange(steps)[:, None] / 10000**exponents
    encoding: Array = np.sin(angles)
    encoding[:, 1::2] = np.cos(angles[:, 1::2])
    return encoding
