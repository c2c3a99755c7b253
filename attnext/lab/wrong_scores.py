"""Misconceptions about scores, kernels and pooling."""

from __future__ import annotations

import numpy as np

from attnext.lab.book import Array
from attnext.lab.misconceptions import wrong

DOT = [
    wrong(
        "no-scale",
        en="The scores are not scaled. Divide them by the square root of d, the size of a query.",
        zh="评分没有缩放。要除以d的平方根，d是查询的大小。",
        scale=lambda b, Q, K: 1.0,
    ),
    wrong(
        "scale-by-d",
        en="The scores are divided by d itself. Divide them by its square root.",
        zh="评分除以了d本身。应除以d的平方根。",
        scale=lambda b, Q, K: 1 / Q.shape[-1],
    ),
    wrong(
        "scale-inside-out",
        en="The scores are multiplied by the square root of d. Divide by it.",
        zh="评分乘以了d的平方根。应除以它。",
        scale=lambda b, Q, K: np.sqrt(Q.shape[-1]),
    ),
    wrong(
        "scale-by-keys",
        en="The scores are scaled by the number of keys. d is the size of a query, its last axis: "
        "queries.shape[-1].",
        zh="缩放用的是键的个数。d是查询的大小，即最后一个轴：queries.shape[-1]。",
        scale=lambda b, Q, K: 1 / np.sqrt(K.shape[-2]),
    ),
    wrong(
        "scale-by-queries",
        en="The scores are scaled by the number of queries. d is the size of a query, its last "
        "axis: queries.shape[-1].",
        zh="缩放用的是查询的个数。d是查询的大小，即最后一个轴：queries.shape[-1]。",
        scale=lambda b, Q, K: 1 / np.sqrt(Q.shape[-2]),
    ),
    wrong(
        "scale-by-batch",
        en="The scores are scaled by the size of the batch, shape[0]. d is the size of a query, "
        "its "
        "last axis: queries.shape[-1].",
        zh="缩放用的是批量大小shape[0]。d是查询的大小，即最后一个轴：queries.shape[-1]。",
        scale=lambda b, Q, K: 1 / np.sqrt(Q.shape[0]),
    ),
    wrong(
        "scale-after-softmax",
        en="The weights are divided by the square root of d, after the softmax. The scores are to "
        "be, before it.",
        zh="除以d的平方根的是softmax之后的权重。应在softmax之前，除评分。",
        dot_product_attention=lambda b, q, k, v, lens=None: (
            b.attend(q @ k.swapaxes(-1, -2), k, v, lens) / np.sqrt(q.shape[-1])
        ),
    ),
    wrong(
        "queries-and-keys-swapped",
        en="The scores are those of the keys over the queries, the matrix transposed. A row is a "
        "query: queries @ keys^T.",
        zh="评分成了键对查询的，即转置了的矩阵。一行是一个查询：queries @ keys^T。",
        ways=[
            {"products": lambda b, Q, K: K @ Q.swapaxes(-1, -2)},
            {"combine": lambda b, A, C: A[:, None] + C[:, :, None]},
            {"squares": lambda b, Q, K: ((K[:, None] - Q[None]) ** 2).sum(-1)},
        ],
    ),
    wrong(
        "keys-reshaped",
        en="The keys are reshaped where they are to be transposed: reshape keeps the order of the "
        "numbers, and mixes features of different keys. keys.swapaxes(-1, -2).",
        zh="键该转置的地方用了reshape：它保持数的先后次序，把不同键的特征混在了一起。应为"
        "keys.swapaxes(-1, -2)。",
        turned=lambda b, K: K.reshape(K.shape[0], K.shape[2], K.shape[1]),
    ),
    wrong(
        "keys-not-transposed",
        en="The keys are not transposed: queries @ keys sums over the keys, not over the features.",
        zh="键没有转置：queries @ keys是对键求和，而不是对特征求和。",
        turned=lambda b, K: K,
    ),
    wrong(
        "cosine",
        en="The vectors are divided by their lengths: that is the cosine. The dot product leaves "
        "them as they are.",
        zh="向量除以了自己的长度，那是余弦。点积不改变向量。",
        ways=[
            {"dot_product_scores": lambda b, queries, keys: _cosines(queries, keys)},
            {"products": lambda b, Q, K: _cosines(Q, K)},
        ],
    ),
    wrong(
        "mean-of-products",
        en="The products are averaged over the features, not summed. Sum them, and divide by the "
        "square root of d.",
        zh="乘积对特征取了平均，而不是求和。应求和，再除以d的平方根。",
        scale=lambda b, Q, K: Q.shape[-1] ** -1.5,
    ),
]

ADDITIVE = [
    wrong(
        "no-tanh",
        en="The tanh is forgotten: without it the query adds the same to every key, and is lost in "
        "the softmax.",
        zh="忘了tanh：没有它，查询给每个键加的都一样，经过softmax就消失了。",
        bend=lambda b, F: F,
        bend_slope=lambda b, F: 1.0,
    ),
    wrong(
        "tanh-too-late",
        en="The tanh is taken of the score. It belongs around the sum, before w_v.",
        zh="tanh取在了评分上。它应包住相加的结果，在w_v之前。",
        bend=lambda b, F: F,
        read_off=lambda b, F, w: np.tanh(F @ w),
    ),
    wrong(
        "tanh-too-early",
        en="The tanh is taken of query and key each, before the sum. It belongs around the sum.",
        zh="tanh分别取在查询和键上，然后才相加。它应包住相加的结果。",
        project=lambda b, X, W: np.tanh(X @ W.T),
        bend=lambda b, F: F,
    ),
    wrong(
        "sigmoid",
        en="The bend is a sigmoid. It is to be a tanh.",
        zh="激活函数用了sigmoid，应为tanh。",
        bend=lambda b, F: 1 / (1 + np.exp(-F)),
        bend_slope=lambda b, F: F * (1 - F),
    ),
    wrong(
        "relu",
        en="The bend is a ReLU. It is to be a tanh.",
        zh="激活函数用了ReLU，应为tanh。",
        bend=lambda b, F: np.maximum(F, 0),
        bend_slope=lambda b, F: F > 0,
    ),
    wrong(
        "matrices-swapped",
        en="W_q and W_k are swapped: W_q is for the queries, W_k for the keys.",
        zh="W_q和W_k用反了：W_q用于查询，W_k用于键。",
        matrices=lambda b, W_q, W_k: (W_k, W_q),
    ),
    wrong(
        "one-matrix-for-both",
        en="Queries and keys are projected by the same matrix. W_q is for the queries, W_k for the "
        "keys.",
        zh="查询和键用了同一个矩阵。W_q用于查询，W_k用于键。",
        ways=[
            {"matrices": lambda b, W_q, W_k: (W_q, W_q)},
            {"matrices": lambda b, W_q, W_k: (W_k, W_k)},
        ],
    ),
    wrong(
        "matrices-not-transposed",
        en="A row of W_q belongs to a hidden unit, as in torch.nn.Linear: queries @ W_q.T. Without "
        "the transpose the sums run over the wrong axis.",
        zh="W_q的一行属于一个隐藏单元，与torch.nn.Linear一样：queries @ W_q.T。不转置，求和的轴就"
        "错了。",
        project=lambda b, X, W: X @ W,
    ),
    wrong(
        "product-of-projections",
        en="The projections are multiplied. They are to be added: hence the name.",
        zh="投影后的查询和键相乘了。应当相加，“加性”由此得名。",
        combine=lambda b, A, C: A[:, :, None] * C[:, None],
    ),
    wrong(
        "difference-of-projections",
        en="The projections are subtracted from each other. They are to be added.",
        zh="投影后的查询和键相减了。应当相加。",
        ways=[
            {"combine": lambda b, A, C: A[:, :, None] - C[:, None]},
            {"combine": lambda b, A, C: C[:, None] - A[:, :, None]},
        ],
    ),
    wrong(
        "no-w_v",
        en="The hidden units are summed without w_v: each is to have its weight, features @ w_v.",
        zh="隐藏单元直接求和，没有用w_v：每个单元有自己的权重，features @ w_v。",
        ways=[
            {"read_off": lambda b, F, w: F.sum(-1)},
            {"read_off": lambda b, F, w: F.mean(-1)},
        ],
    ),
    wrong(
        "additive-scaled",
        en="The additive score is divided by a square root. Only the dot product is.",
        zh="加性评分除以了平方根。只有点积才需要。",
        read_off=lambda b, F, w: F @ w / np.sqrt(F.shape[-1]),
    ),
]

KERNEL = [
    wrong(
        "no-half",
        en="The 2 is forgotten: the exponent is -distance**2 / (2 * sigma**2).",
        zh="漏了2：指数是-distance**2 / (2 * sigma**2)。",
        exponent=lambda b, s, sigma: -s / sigma**2,
    ),
    wrong(
        "sigma-not-squared",
        en="sigma is not squared: the exponent is -distance**2 / (2 * sigma**2).",
        zh="sigma没有平方：指数是-distance**2 / (2 * sigma**2)。",
        exponent=lambda b, s, sigma: -s / (2 * sigma),
    ),
    wrong(
        "sigma-inside-out",
        en="The distance is multiplied by sigma. Divide by it: a larger sigma is a wider kernel.",
        zh="距离乘以了sigma。应除以它：sigma越大，核越宽。",
        exponent=lambda b, s, sigma: -s * sigma**2 / 2,
    ),
    wrong(
        "sigma-ignored",
        en="sigma plays no part. The exponent is -distance**2 / (2 * sigma**2).",
        zh="sigma没有起作用。指数是-distance**2 / (2 * sigma**2)。",
        exponent=lambda b, s, sigma: -s / 2,
    ),
    wrong(
        "distance-not-squared",
        en="The distance is not squared: exp(-|u|) is another kernel, with a sharp top.",
        zh="距离没有平方：exp(-|u|)是另一种核，顶端是尖的。",
        ways=[
            {"exponent": lambda b, s, sigma: -np.sqrt(s) / (2 * sigma**2)},
            {"exponent": lambda b, s, sigma: -np.sqrt(s) / sigma},
            {"exponent": lambda b, s, sigma: -np.sqrt(s) / (2 * sigma)},
        ],
    ),
    wrong(
        "far-is-large",
        en="The minus sign is forgotten: the farther a key, the larger its weight.",
        zh="漏了负号：键越远，权重反而越大。",
        exponent=lambda b, s, sigma: s / (2 * sigma**2),
    ),
    wrong(
        "density-not-normalised",
        en="The kernel is divided by its integral, sigma * sqrt(2 pi), not by the sum over the "
        "keys. Weights sum to 1.",
        zh="核除以了它的积分sigma * sqrt(2π)，而不是对各个键的和。权重之和应为1。",
        gaussian_kernel=lambda b, q, k, sigma: (
            np.exp(b.exponent(b.squares(q, k), sigma)) / (sigma * np.sqrt(2 * np.pi))
        ),
    ),
    wrong(
        "divided-by-the-number",
        en="The kernel is divided by the number of keys, not by its sum over the keys.",
        zh="核除以了键的个数，而不是它对各个键的和。",
        gaussian_kernel=lambda b, q, k, sigma: np.exp(b.exponent(b.squares(q, k), sigma)) / len(k),
    ),
    wrong(
        "first-feature-only",
        en="Only the first feature counts for the distance. Sum the squares of all.",
        zh="距离只算了第一个特征。应对所有特征的平方求和。",
        squares=lambda b, Q, K: (Q[:, :1] - K[:, 0]) ** 2,
    ),
    wrong(
        "square-of-the-sum",
        en="The differences are summed before they are squared, and cancel. Square first.",
        zh="各特征的差先求和再平方，正负抵消了。应先平方。",
        squares=lambda b, Q, K: (Q[:, None] - K[None]).sum(-1) ** 2,
    ),
    wrong(
        "product-for-distance",
        en="The kernel is of products of query and key. It is of their distance.",
        zh="核用的是查询与键的乘积，应为它们的距离。",
        exponent=lambda b, s, sigma: s,
        squares=lambda b, Q, K: Q @ K.T,
    ),
]

POOLING = [
    wrong(
        "keys-as-values",
        en="The keys are averaged in the place of the values.",
        zh="加权平均的是键，应为值。",
        pool=lambda b, P, K, V: P @ K,
    ),
    wrong(
        "average-pooling",
        en="This is the plain mean of the values. The weights play no part.",
        zh="这只是值的简单平均，权重没有起作用。",
        pool=lambda b, P, K, V: np.broadcast_to(
            V.mean(-2, keepdims=True), (*P.shape[:-1], V.shape[-1])
        ),
    ),
    wrong(
        "weights-transposed",
        en="The weights are transposed before they meet the values. weights @ values, as it is.",
        zh="权重与值相乘之前被转置了。直接weights @ values即可。",
        pool=lambda b, P, K, V: P.swapaxes(-1, -2) @ V,
    ),
    wrong(
        "divided-by-keys",
        en="The weighted sum is divided by the number of keys too. The weights sum to 1 already.",
        zh="加权和又除以了键的个数。权重之和本来就是1。",
        pool=lambda b, P, K, V: P @ V / V.shape[-2],
    ),
    wrong(
        "weights-returned",
        en="These are the weights. Pool the values with them: weights @ values.",
        zh="这是权重。还要用它们对值加权求和：weights @ values。",
        ways=[
            {"attend": lambda b, S, K, V, lens: b.masked_softmax(S, lens)},
            {
                "nadaraya_watson": lambda b, x, xt, yt, sigma: b.gaussian_kernel(
                    x[:, None], xt[:, None], sigma
                )
            },
        ],
    ),
    wrong(
        "kernel-sum-without-division",
        en="The values are summed with the kernel as weight, but never divided by its sum.",
        zh="用核对值加权求和之后，没有除以核的和。",
        nadaraya_watson=lambda b, x, xt, yt, sigma: (
            np.exp(b.exponent(b.squares(x[:, None], xt[:, None]), sigma)) @ yt
        ),
    ),
]


def _cosines(Q: Array, K: Array) -> Array:
    Q, K = (X / np.linalg.norm(X, axis=-1, keepdims=True) for X in (Q, K))
    return Q @ K.swapaxes(-1, -2)
