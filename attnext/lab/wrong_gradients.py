"""Misconceptions about backward passes."""

from __future__ import annotations

import numpy as np

from attnext.lab.misconceptions import wrong

GRADIENTS = [
    wrong(
        "no-row-dot",
        en="The row's dot product is forgotten: dS = P * (dP - sum(P * dP)). A score that grows "
        "takes weight from all the others of its row.",
        zh="漏了这一行的点积：dS = P * (dP - sum(P * dP))。一个评分变大，会分走同一行其余的权重。",
        row_dot=lambda b, dP, P: 0,
    ),
    wrong(
        "row-sum-without-weights",
        en="What is taken off is the plain sum of dP. It is the sum of P * dP.",
        zh="减去的是dP的简单求和。应减去P * dP的和。",
        row_dot=lambda b, dP, P: dP.sum(-1, keepdims=True),
    ),
    wrong(
        "row-mean",
        en="What is taken off is a mean over the row. It is the sum of P * dP.",
        zh="减去的是这一行的平均。应减去P * dP的和。",
        ways=[
            {"row_dot": lambda b, dP, P: (P * dP).mean(-1, keepdims=True)},
            {"row_dot": lambda b, dP, P: dP.mean(-1, keepdims=True)},
        ],
    ),
    wrong(
        "row-dot-over-queries",
        en="The dot product runs over the queries. It is that of a row: axis=-1, keepdims=True.",
        zh="点积沿着查询的方向求和。它是一行之内的：axis=-1, keepdims=True。",
        row_dot=lambda b, dP, P: (P * dP).sum(-2, keepdims=True),
    ),
    wrong(
        "row-dot-over-all",
        en="One dot product is taken for all rows together. Each row has its own: axis=-1.",
        zh="所有行合起来只求了一个点积。每一行有自己的：axis=-1。",
        row_dot=lambda b, dP, P: (P * dP).sum(),
    ),
    wrong(
        "diagonal-of-the-jacobian",
        en="Only the diagonal of the softmax's Jacobian is used, P * (1 - P) as of a sigmoid. A "
        "score moves the weights of its whole row.",
        zh="只用了softmax雅可比矩阵的对角线P * (1 - P)，像sigmoid那样。一个评分会改变整行的权重。",
        masked_softmax_backward=lambda b, dP, P: dP * P * (1 - P),
    ),
    wrong(
        "softmax-not-gone-through",
        en="The gradient of the weights is taken for that of the scores: the softmax has a "
        "backward "
        "of its own between the two.",
        zh="把权重的梯度当成了评分的梯度：二者之间还有softmax的反向传播。",
        masked_softmax_backward=lambda b, dP, P: dP,
    ),
    wrong(
        "factor-of-weights-forgotten",
        en="The factor P in front is forgotten: dS = P * (dP - sum(P * dP)).",
        zh="漏了前面的因子P：dS = P * (dP - sum(P * dP))。",
        masked_softmax_backward=lambda b, dP, P: dP - (P * dP).sum(-1, keepdims=True),
    ),
    wrong(
        "sign",
        en="The sign is wrong: all gradients point the other way.",
        zh="符号错了：所有梯度都指向相反的方向。",
        ways=[
            {"masked_softmax_backward": lambda b, dP, P: -P * (dP - (P * dP).sum(-1)[..., None])},
            {"masked_softmax_backward": lambda b, dP, P: P * (dP + (P * dP).sum(-1)[..., None])},
            {"slope": lambda b, Q, K: -b.scale(Q, K)},
            {"bend_slope": lambda b, F: F**2 - 1},
        ],
    ),
    wrong(
        "scale-not-gone-through",
        en="The scale is forgotten on the way back: dS meets queries and keys times 1 / sqrt(d).",
        zh="反向时漏了缩放：dS传到查询和键时，也要乘以1 / sqrt(d)。",
        slope=lambda b, Q, K: 1.0,
    ),
    wrong(
        "scale-divided-out",
        en="On the way back the scale is divided by. A factor of the forward is one of the "
        "backward.",
        zh="反向时除以了缩放因子。前向的因子，反向时也是乘上去的。",
        slope=lambda b, Q, K: 1 / b.scale(Q, K),
    ),
    wrong(
        "scale-twice-on-the-way-back",
        en="On the way back the scale is multiplied twice. Once is enough.",
        zh="反向时缩放因子乘了两次。一次就够了。",
        slope=lambda b, Q, K: b.scale(Q, K) ** 2,
    ),
    wrong(
        "dS-not-transposed",
        en="dS is not transposed for the keys: a key sums what all queries send it, dS^T @ "
        "queries.",
        zh="求键的梯度时dS没有转置：一个键要把所有查询传来的加起来，dS^T @ queries。",
        to_keys=lambda b, dS, Q: dS @ Q,
    ),
    wrong(
        "dS-transposed-for-queries",
        en="dS is transposed for the queries. A query sums over its keys: dS @ keys.",
        zh="求查询的梯度时dS多转置了一次。一个查询对它的键求和：dS @ keys。",
        to_queries=lambda b, dS, K: dS.swapaxes(-1, -2) @ K,
    ),
    wrong(
        "weights-not-transposed",
        en="The weights are not transposed for the values: a value sums what all queries took of "
        "it, weights^T @ grad_output.",
        zh="求值的梯度时权重没有转置：一个值要把所有查询从它取走的加起来，weights^T @ "
        "grad_output。",
        to_values=lambda b, P, dO: P @ dO,
    ),
    wrong(
        "values-not-transposed",
        en="The values are not transposed for the weights: grad_output @ values^T, a sum over the "
        "features of a value.",
        zh="求权重的梯度时值没有转置：grad_output @ values^T，对值的特征求和。",
        to_weights=lambda b, dO, V: dO @ V,
    ),
    wrong(
        "values-get-everything",
        en="Every value gets the whole gradient. It gets its weight's share: weights^T @ "
        "grad_output.",
        zh="每个值都得到了整个梯度。它应按权重得到一份：weights^T @ grad_output。",
        to_values=lambda b, P, dO: np.broadcast_to(
            dO.sum(-2, keepdims=True), (*P.shape[:-2], P.shape[-1], dO.shape[-1])
        ),
    ),
    wrong(
        "wrong-order",
        en="The first two results are exchanged. They come in the order of the arguments.",
        zh="前两个结果调换了。它们应按参数的次序返回。",
        returned=lambda b, g: (g[1], g[0], *g[2:]),
    ),
    wrong(
        "gradient-of-padding",
        en="Scores that were masked, or belong to a row without a key, changed nothing: their "
        "gradient is 0. Mask dS as the scores were masked.",
        zh="被掩蔽的评分，以及没有键的行中的评分，不影响结果，梯度为0。dS要像评分一样掩蔽。",
        only_live=lambda b, dS, live: dS,
    ),
    wrong(
        "no-slope-of-tanh",
        en="The derivative of the tanh is forgotten: times 1 - tanh**2.",
        zh="漏了tanh的导数：要乘以1 - tanh**2。",
        bend_slope=lambda b, F: 1.0,
    ),
    wrong(
        "slope-of-tanh-not-squared",
        en="The derivative of the tanh is 1 - tanh**2, with the square.",
        zh="tanh的导数是1 - tanh**2，有平方。",
        bend_slope=lambda b, F: 1 - F,
    ),
    wrong(
        "slope-of-a-sigmoid",
        en="t * (1 - t) is the derivative of a sigmoid. That of the tanh is 1 - t**2.",
        zh="t * (1 - t)是sigmoid的导数。tanh的导数是1 - t**2。",
        bend_slope=lambda b, F: F * (1 - F),
    ),
    wrong(
        "slope-at-the-tanh",
        en="The tanh is taken twice: from t = tanh(x) the derivative is 1 - t**2, not "
        "1 - tanh(t)**2.",
        zh="tanh取了两次：已有t = tanh(x)，导数是1 - t**2，而不是1 - tanh(t)**2。",
        bend_slope=lambda b, F: 1 - np.tanh(F) ** 2,
    ),
    wrong(
        "w_v-not-gone-through",
        en="w_v is forgotten on the way back: each hidden unit gets dS times its w_v.",
        zh="反向时漏了w_v：每个隐藏单元得到的是dS乘以它的w_v。",
        spread=lambda b, dS, w: dS[..., None] * np.ones_like(w),
    ),
    wrong(
        "w_v-before-the-tanh",
        en="The gradient of w_v is taken with what goes into the tanh. w_v met what came out of "
        "it.",
        zh="求w_v的梯度时用了tanh之前的数。与w_v相乘的是tanh之后的。",
        of_reading=lambda b, dS, F: np.einsum("bmn,bmnh->h", dS, np.arctanh(F)),
    ),
    wrong(
        "matrices-averaged-over-batch",
        en="The gradients of W_q and W_k are averaged over the batch. They are sums: the mean is "
        "the business of the loss.",
        zh="W_q和W_k的梯度对批量取了平均。它们是和：取平均是损失函数的事。",
        of_matrix=lambda b, dA, X: np.einsum("bmh,bmd->hd", dA, X) / len(X),
    ),
    wrong(
        "matrices-of-each-entry",
        en="The gradients of W_q and W_k are left apart for each entry. The matrices serve the "
        "whole batch: sum over it.",
        zh="W_q和W_k的梯度按样本分开了。矩阵是整个批量共用的，应对批量求和。",
        of_matrix=lambda b, dA, X: np.einsum("bmh,bmd->bhd", dA, X),
    ),
    wrong(
        "matrices-of-the-last-entry",
        en="The gradients of W_q and W_k are those of the last entry alone: = where += is meant.",
        zh="W_q和W_k的梯度只剩最后一个样本的：该用+=的地方用了=。",
        of_matrix=lambda b, dA, X: dA[-1].T @ X[-1],
    ),
    wrong(
        "gradient-of-matrix-transposed",
        en="The gradients of W_q and W_k are transposed. A gradient has the shape of what it is "
        "of: (hidden units, features).",
        zh="W_q和W_k的梯度转置了。梯度的形状与参数相同：（隐藏单元，特征）。",
        of_matrix=lambda b, dA, X: np.einsum("bmh,bmd->dh", dA, X),
    ),
]
