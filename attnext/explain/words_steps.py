"""What is said of each step, in every language, and its formula, which is the same in all.

What stands in braces is filled in by the step.
"""

from __future__ import annotations

from attnext.explain.words_backward import BACKWARD, BACKWARD_VARIANTS
from attnext.explain.words_of import Words

_SOFTMAX = {
    "X": Words(
        "scores = X",
        ("Scores", "A row for each query, a column for each key: the larger, the better they fit."),
        ("评分", "每个查询占一行，每个键占一列；评分越高，二者越匹配。"),
    ),
    "lens": Words(
        "lens = {expanded}",
        (
            "Expanded lengths",
            "One valid length for each of the {rows} rows; more than {N} counts as {N}.",
        ),
        ("展开后的有效长度", "{rows}行各有一个有效长度；大于{N}的按{N}计。"),
    ),
    "flat": Words(
        "scores = X.reshape(-1, {N})",
        ("Flattened scores", "All rows stand one below the other, in the order of the lengths."),
        ("展平后的评分", "所有行依次排成二维，与展开后的有效长度逐行对应。"),
    ),
    "takes_part": Words(
        "takes_part[i, j] = {conditions}",
        ("Mask", "{live} of {pairs} pairs of query and key take part; the others are never read."),
        ("掩码", "{pairs}个“查询－键”对中有{live}个参与计算，其余的从不读取。"),
    ),
    "masked": Words(
        "scores = where(takes_part, scores, -inf)",
        (
            "Masked scores",
            "A pair that takes no part gets -inf, where d2l's code puts -1e6: its exponential is "
            "exactly 0.",
        ),
        ("掩蔽后的评分", "不参与的位置记为-inf（d2l的代码用-1e6），其指数恰好为0。"),
    ),
    "empty_rows": Words(
        "empty = not any(takes_part)",
        (
            "Empty rows",
            "{empty} of {rows} rows have no key that takes part: by empty_rows={mode!r} each of "
            "their weights is {fill}.",
        ),
        (
            "空行",
            "{rows}行中有{empty}行没有任何键参与：按empty_rows={mode!r}，这些行的权重均为{fill}。",
        ),
    ),
    "exp": Words(
        "e = exp(scores - max(scores))",
        (
            "Exponentials",
            "Taking off the largest score of the row changes no weight, and nothing overflows.",
        ),
        ("指数", "减去本行的最高评分不改变权重，却能避免上溢。"),
    ),
    "total": Words(
        "total = sum(e)",
        ("Row sums", "Each row will be divided by its sum."),
        ("各行之和", "下一步将各行除以自己的和。"),
    ),
    "softmax": Words(
        "weights = (e / total).reshape(X.shape)",
        ("Weights", "Each row sums to 1, and a key that takes no part has weight 0."),
        ("注意力权重", "每行之和为1，不参与的键权重为0。"),
    ),
}

_SCORES = {
    "memory": Words(
        "keys, values = memory",
        (
            "Memory",
            "{N} keys and their values, taken in once; shown are the keys. What follows is "
            "computed for this call, but for what is said to be made once.",
        ),
        (
            "记忆",
            "{N}个键及其值，只存入一次；这里显示的是键。以下除注明“只算一次”的以外，都为本次调用而算。",
        ),
    ),
    "shared_heads": Words(
        "keys = repeat(keys, {group}, axis=-3)",
        ("Shared heads", "Each head of keys and values serves {group} heads of queries."),
        ("共享的头", "键和值的每个头由{group}个查询头共用。"),
    ),
    "raw": Words(
        "raw = queries @ keys^T",
        (
            "Dot products",
            "The dot product of a query and a key is large if they point the same way.",
        ),
        ("点积", "查询与键的方向越一致，点积越大。"),
    ),
    "scaled": Words(
        "scores = raw / sqrt({D})",
        (
            "Scaled scores",
            "For features of variance 1 a dot product has variance {D}; this makes it 1, so that "
            "softmax does not saturate.",
        ),
        (
            "缩放后的评分",
            "若各特征方差为1，则点积的方差为{D}；除以sqrt({D})使其回到1，softmax才不致饱和。",
        ),
    ),
    "scaled_by": Words(
        "scores = {scale} * raw",
        ("Scaled scores", "The dot products times the scale that was given."),
        ("缩放后的评分", "点积乘以给定的缩放系数scale。"),
    ),
    "hidden_q": Words(
        "hidden_q = queries @ W_q^T",
        ("Projected queries", "W_q takes each query from {D} features to {H} hidden units."),
        ("投影后的查询", "W_q把每个查询从{D}维映射到{H}个隐藏单元。"),
    ),
    "hidden_k": Words(
        "hidden_k = keys @ W_k^T",
        ("Projected keys", "W_k takes each key from {D} features to the same {H} hidden units."),
        ("投影后的键", "W_k把每个键从{D}维映射到同样的{H}个隐藏单元。"),
    ),
    "features": Words(
        "features[i, j] = hidden_q[i] + hidden_k[j]{bias}",
        ("Broadcast sum", "Every query is added to every key: {H} hidden units for each pair."),
        ("广播求和", "每个查询与每个键相加，每个“查询－键”对得到{H}个隐藏单元。"),
    ),
    "activations": Words(
        "activations = tanh(features)",
        ("tanh", "tanh brings every hidden unit between -1 and 1."),
        ("tanh激活", "tanh把每个隐藏单元压到-1与1之间。"),
    ),
    "additive": Words(
        "scores = activations @ w_v",
        ("Scores", "w_v weighs the {H} hidden units of a pair and sums them to one number."),
        ("评分", "w_v对每一对的{H}个隐藏单元加权求和，得到一个标量。"),
    ),
    "distance": Words(
        "distance[i, j] = |queries[i] - keys[j]|",
        ("Distances", "How far each key lies from each query."),
        ("距离", "每个查询到每个键的欧几里得距离。"),
    ),
    "gaussian": Words(
        "scores = -({w:.6g} * distance)^2 / 2",
        (
            "Scores",
            "The logarithm of a Gaussian kernel of bandwidth {sigma:.6g}: near keys score high.",
        ),
        ("评分", "带宽为{sigma:.6g}的高斯核的对数：越近的键，评分越高。"),
    ),
    "unit_q": Words(
        "unit_q = queries / max(|queries|, {eps:g})",
        ("Queries of length 1", "Of each query, only the direction is left."),
        ("单位长度的查询", "每个查询只保留方向。"),
    ),
    "unit_k": Words(
        "unit_k = keys / max(|keys|, {eps:g})",
        ("Keys of length 1", "Of each key, only the direction is left."),
        ("单位长度的键", "每个键只保留方向。"),
    ),
    "cosine": Words(
        "scores = {scale} * unit_q @ unit_k^T",
        ("Scores", "The cosine of the angle between query and key, times the scale."),
        ("评分", "查询与键夹角的余弦，再乘以缩放系数scale。"),
    ),
}

_POOLING = {
    "softcap": Words(
        "scores = {cap:.6g} * tanh(scores / {cap:.6g})",
        (
            "Softcapped scores",
            "Scores far below {cap:.6g} hardly change, and none gets beyond it, however large it "
            "was.",
        ),
        (
            "加软上限后的评分",
            "远小于{cap:.6g}的评分几乎不变；再大的评分，其绝对值也不超过{cap:.6g}。",
        ),
    ),
    "bias": Words(
        "scores = scores + bias",
        ("Biased scores", "The bias is added before softmax; -inf in it masks."),
        ("加偏置后的评分", "偏置在softmax之前加到评分上；其中的-inf起掩蔽作用。"),
    ),
    "weights": Words(
        "weights = softmax(scores)",
        (
            "Attention weights",
            "exp(score) over the sum of those in its row, so that each row sums to 1.",
        ),
        ("注意力权重", "本行各评分取指数后除以其总和：权重非负，每行之和为1。"),
    ),
    "sink": Words(
        "scores = concat([scores, sink])",
        (
            "Sink",
            "One more score in each row, which takes weight and has no value: where to put what no "
            "key deserves.",
        ),
        ("注意力汇（sink）", "每行多出的一个评分，占去一部分权重，但没有对应的值。"),
    ),
    "keep": Words(
        "keep = {rule}",
        (
            "Dropout",
            "{kept} of {pairs} weights are kept; the attention weights above are those before "
            "dropout.",
        ),
        ("暂退法（dropout）", "{pairs}个权重中保留{kept}个；上面的注意力权重是暂退之前的。"),
    ),
    "kept": Words(
        "kept = weights * keep / (1 - {p:.6g})",
        ("Weights after dropout", "Those kept are scaled up, so that the expected sum stays 1."),
        ("暂退后的权重", "保留下来的权重按比例放大，使每行之和的期望仍为1。"),
    ),
    "output": Words(
        "output = {weights} @ values",
        ("Output", "For each query the values, averaged with the weights of its row."),
        ("输出", "对每个查询，用该行的权重对值加权求和。"),
    ),
    "predictions": Words(
        "predictions = output.reshape(-1)",
        ("Predictions", "One number for each query."),
        ("预测", "每个查询得到一个数。"),
    ),
}

_POSITIONS = {
    "positions": Words(
        "t = arange({num_steps})",
        ("Positions", "The places of a sequence, from 0 on."),
        ("位置", "序列中的各个位置，从0开始。"),
    ),
    "frequencies": Words(
        "frequency[j] = 10000^(-2 j / {num_hiddens})",
        (
            "Frequencies",
            "One for each pair of columns: the first wave has a length of 2 pi steps, the last one "
            "of nearly 10000 times as many.",
        ),
        ("频率", "每两列共用一个频率：最快的波周期为2π步，最慢的接近其10000倍。"),
    ),
    "angles": Words(
        "angle[t, j] = t * frequency[j]",
        ("Angles", "How far each wave has come at each position."),
        ("角度", "每个位置上各个波转过的角度。"),
    ),
    "encoding": Words(
        "P[t, 2 j] = sin(angle[t, j]), P[t, 2 j + 1] = cos(angle[t, j])",
        (
            "Positional encoding",
            "A row for each position, to be added to the features of what stands there. A shift "
            "turns each pair of columns by an angle that is the same at all positions.",
        ),
        (
            "位置编码",
            "每个位置占一行，加到该位置的特征上。平移若干步相当于把每两列旋转同一个角度，与起点无关。",
        ),
    ),
}

_HEADS = {
    "head_queries": Words(
        "queries = split(queries @ W_q^T{bias}, {heads})",
        (
            "Queries of the heads",
            "W_q takes each query from {D} features to {H}: {d} for each of {heads} heads.",
        ),
        ("各头的查询", "W_q把每个查询从{D}维映射到{H}维，{heads}个头各得{d}维。"),
    ),
    "head_keys": Words(
        "keys = split(keys @ W_k^T{bias}, {heads})",
        ("Keys of the heads", "W_k does the same with each key, from {D} features to {H}."),
        ("各头的键", "W_k把每个键从{D}维映射到{H}维，同样分给{heads}个头。"),
    ),
    "head_values": Words(
        "values = split(values @ W_v^T{bias}, {heads})",
        ("Values of the heads", "W_v does the same with each value, from {D} features to {H}."),
        ("各头的值", "W_v把每个值从{D}维映射到{H}维，同样分给{heads}个头。"),
    ),
    "pooled": Words(
        "pooled = {weights} @ values",
        ("What each head pooled", "The values of the head, averaged with its own weights."),
        ("各头的汇聚结果", "每个头用自己的权重对自己的值加权求和。"),
    ),
    "joined": Words(
        "joined = concat(pooled of each head)",
        ("Heads side by side", "{heads} times {d} features, in the order of the heads."),
        ("各头拼接", "把{heads}个头各{d}维的结果按顺序拼接起来。"),
    ),
    "mixed": Words(
        "output = joined @ W_o^T{bias}",
        ("Output", "W_o mixes what the heads found: each feature may come from all of them."),
        ("输出", "W_o把各头的结果混合起来：输出的每一维都可来自所有的头。"),
    ),
}

_PARTS = {
    "sequences": Words(
        "copy = X",
        ("Sequences", "{B} sequences of {T} steps each, whatever their lengths."),
        ("序列", "{B}条序列，每条{T}步，不论其实际长度。"),
    ),
    "of_sequences": Words(
        "lens = minimum(valid_len, {T})",
        ("Lengths", "How many steps of each sequence are kept; more than {T} counts as {T}."),
        ("有效长度", "每条序列保留多少步；大于{T}的按{T}计。"),
    ),
    "copy": Words(
        "copy = where(kept, X, {value})",
        ("Output", "What is not kept becomes {value}; X itself stays as it is."),
        ("输出", "不保留的位置变为{value}；X本身不变。"),
    ),
    "lses": Words(
        "lses = log(sum(exp(scores))) of each part",
        (
            "Log-sum-exps",
            "A column for each of {P} parts of the keys: the logarithm of the sum that its softmax "
            "divided by.",
        ),
        ("各部分的log-sum-exp", "键分为{P}个部分，每部分一列：其softmax分母的对数。"),
    ),
    "share": Words(
        "share = softmax(lses)",
        (
            "Share of each part",
            "How much of the weight of all keys falls to the keys of a part: each row sums to 1.",
        ),
        ("各部分所占的份额", "全部权重中落在各部分的键上的那一份：每行之和为1。"),
    ),
    "merged": Words(
        "output = sum_p(share[p] * outputs[p])",
        ("Output", "The outputs of the parts, averaged with their shares."),
        ("输出", "用各部分的份额对各部分的输出加权求和。"),
    ),
    "merged_lse": Words(
        "lse = log(sum_p(exp(lses[p])))",
        ("Log-sum-exp", "That of all keys, with which the result can be merged again."),
        ("log-sum-exp", "全部键的log-sum-exp，可用来继续合并。"),
    ),
}

STEPS = _SOFTMAX | _SCORES | _POOLING | _HEADS | _PARTS | BACKWARD | _POSITIONS

# Other words for a step where its own are not true.
VARIANTS = BACKWARD_VARIANTS | {
    "steps_kept": Words(
        "kept[i, t] = t < lens[i]",
        ("Mask", "{live} of {pairs} steps are kept, the first ones of each sequence."),
        ("掩码", "{pairs}步中保留{live}步，即每条序列的前几步。"),
    ),
    "weights_and_sink": Words(
        "weights = softmax(scores)[..., :-1]",
        (
            "Attention weights",
            "exp(score) over the sum of those in its row; without the weight of the sink each row "
            "sums to less than 1.",
        ),
        (
            "注意力权重",
            "本行各评分取指数后除以其总和；去掉sink所占的权重，每行之和小于1。",
        ),
    ),
}
