"""What is said of each step of a backward, as words_steps.py has it."""

from __future__ import annotations

from attnext.explain.words_of import Words

BACKWARD = {
    "given": Words(
        "weights = masked_softmax(X)",
        ("Weights", "What the forward returned."),
        ("注意力权重", "前向传播返回的权重。"),
    ),
    "grad_output": Words(
        "d_weights = grad_output",
        ("Gradient of the weights", "What flows back: how the loss changes with each weight."),
        ("权重的梯度", "反向传来的梯度：损失随每个权重的变化率。"),
    ),
    "again": Words(
        "weights = softmax(scores)",
        ("Attention weights", "Those of the forward; its own trace shows how they come about."),
        ("注意力权重", "前向传播的权重；其来历见前向传播的各个步骤。"),
    ),
    "d_weights": Words(
        "d_weights = {g} @ values^T{more}",
        (
            "Gradient of the weights",
            "The forward was output = weights @ values, so this is the dot product of each value "
            "with the gradient of the output.",
        ),
        (
            "权重的梯度",
            "前向计算为output = weights @ values，因此等于各个值与输出梯度的点积。",
        ),
    ),
    "mean": Words(
        "mean = sum_j(weights * d_weights)",
        (
            "Weighted mean of each row",
            "It is taken off next: weights sum to 1, so one grows only at the others' expense.",
        ),
        ("各行的加权平均", "下一步要减去它：权重之和为1，一个增大，其余必然减小。"),
    ),
    "d_scores": Words(
        "{left} = weights * (d_weights - mean){more}",
        (
            "Gradient of the scores",
            "The weight, times how far its gradient is from the row's mean; exactly 0 for a pair "
            "that takes no part.",
        ),
        ("评分的梯度", "权重乘以其梯度与本行加权平均之差；不参与的位置恰好为0。"),
    ),
    "d_softcap": Words(
        "d_scores = d_scores * (1 - tanh(scores / {cap:.6g})^2)",
        (
            "Gradient through the cap",
            "The slope of the tanh: near 1 for a score far below the cap, near 0 for one close to "
            "it.",
        ),
        ("穿过软上限的梯度", "乘以tanh的斜率：评分远小于上限时约为1，接近上限时约为0。"),
    ),
    "d_queries": Words(
        "d_queries = {scale} * d_scores @ keys",
        ("Gradient of the queries", "The forward was scores = scale * queries @ keys^T."),
        ("查询的梯度", "前向计算为scores = scale * queries @ keys^T。"),
    ),
    "d_keys": Words(
        "d_keys = {scale} * d_scores^T @ queries",
        ("Gradient of the keys", "A key serves every query, so this is a sum over the queries."),
        ("键的梯度", "每个键为所有查询所用，因此对查询求和。"),
    ),
    "d_values": Words(
        "d_values = {weights}^T @ {g}",
        (
            "Gradient of the values",
            "A value receives the gradient of each output in the share of its weight.",
        ),
        ("值的梯度", "每个输出的梯度按注意力权重分给各个值。"),
    ),
    "d_bias": Words(
        "d_bias = d_scores, summed to {to}",
        ("Gradient of the bias", "The forward was scores + bias, with the bias broadcast."),
        ("偏置的梯度", "前向计算为scores + bias，其中偏置经过广播，因此对广播的轴求和。"),
    ),
    "d_scale": Words(
        "d_scale = d_scores * ({products}), summed to {to}",
        ("Gradient of the scale", "The forward was scores = scale * {products}."),
        (
            "缩放系数的梯度",
            "前向计算为scores = scale * {products}，因此对共用它的所有位置求和。",
        ),
    ),
    "d_sink": Words(
        "d_sink = weight_of_sink * (0 - mean){more}, summed to {to}",
        ("Gradient of the sink", "As that of a score whose weight nobody used; it has no value."),
        ("sink的梯度", "与其他评分的梯度相同，只是它没有值，其权重的梯度为0。"),
    ),
    "grad_scores": Words(
        "d_scores = grad_output",
        ("Gradient of the scores", "What flows back: how the loss changes with each score."),
        ("评分的梯度", "反向传来的梯度：损失随每个评分的变化率。"),
    ),
    "d_features": Words(
        "d_features[i, j] = d_scores[i, j] * w_v * (1 - tanh^2)",
        (
            "Gradient of the broadcast sum",
            "The forward was scores = tanh(features) @ w_v; the slope of tanh is 1 - tanh^2, near "
            "0 where a unit is saturated.",
        ),
        (
            "广播求和的梯度",
            "前向计算为scores = tanh(features) @ w_v；tanh的斜率为1 - tanh^2，饱和处接近0。",
        ),
    ),
    "d_hidden_q": Words(
        "d_hidden_q[i] = sum_j(d_features[i, j])",
        ("Gradient of the projected queries", "Each was added to every key, so this is a sum."),
        ("投影后查询的梯度", "前向中它与每个键相加，因此对键求和。"),
    ),
    "d_hidden_k": Words(
        "d_hidden_k[j] = sum_i(d_features[i, j])",
        ("Gradient of the projected keys", "Each was added to every query, so this is a sum."),
        ("投影后键的梯度", "前向中它与每个查询相加，因此对查询求和。"),
    ),
    "d_unit_q": Words(
        "d_unit_q = {scale} * d_scores @ unit_k",
        (
            "Gradient of the queries of length 1",
            "The forward was scores = {scale} * unit_q @ unit_k^T.",
        ),
        ("单位长度查询的梯度", "前向计算为scores = {scale} * unit_q @ unit_k^T。"),
    ),
    "d_unit_k": Words(
        "d_unit_k = {scale} * d_scores^T @ unit_q",
        ("Gradient of the keys of length 1", "A key serves every query, so this is a sum."),
        ("单位长度键的梯度", "每个键为所有查询所用，因此对查询求和。"),
    ),
    "d_w": Words(
        "d_w = -{w:.6g} * sum(d_scores * distance^2)",
        ("Gradient of w", "All pairs share the inverse bandwidth, so this is one number."),
        ("w的梯度", "所有“查询－键”对共用带宽的倒数w，因此只有一个数。"),
    ),
    "d_joined": Words(
        "d_joined = grad_output @ W_o",
        ("Gradient of the heads side by side", "The forward was output = joined @ W_o^T."),
        ("各头拼接结果的梯度", "前向计算为output = joined @ W_o^T。"),
    ),
    "d_pooled": Words(
        "d_pooled = split(d_joined, {heads})",
        ("Gradient of what each head pooled", "Each head gets the features that it gave."),
        ("各头汇聚结果的梯度", "每个头取回自己贡献的那些特征。"),
    ),
    "d_outputs": Words(
        "d_outputs[p] = share[p] * grad_output",
        ("Gradients of the outputs", "Each part receives the gradient in its share."),
        ("各部分输出的梯度", "输出的梯度按份额分给各部分。"),
    ),
    "d_shares": Words(
        "d_share[p] = outputs[p] . grad_output",
        ("Gradient of the shares", "The forward was output = sum_p(share[p] * outputs[p])."),
        ("份额的梯度", "前向计算为output = sum_p(share[p] * outputs[p])。"),
    ),
    "d_lses": Words(
        "d_lses = share * (d_share - sum_p(share * d_share)){more}",
        (
            "Gradients of the log-sum-exps",
            "The share, times how far its gradient is from the mean: as in every softmax.",
        ),
        ("各部分log-sum-exp的梯度", "份额乘以其梯度与加权平均之差，与任何softmax一样。"),
    ),
}

# Other words for a step where its own are not true.
BACKWARD_VARIANTS = {
    **{
        f"{name}_projected": Words(
            f"d_{name} = {{right}}",
            (f"Gradient of the {name}", "The forward was {forward}."),
            (f"{zh}的梯度", "前向计算为{forward}。"),
        )
        for name, zh in (("queries", "查询"), ("keys", "键"), ("values", "值"))
    },
    **{
        f"{name}_of_heads": Words(
            f"d_{name[0]} = {{right}}",
            (f"Gradient of the heads' {name}", "The forward was {forward} in each head."),
            (f"各头的{zh}的梯度", "每个头的前向计算为{forward}。"),
        )
        for name, zh in (("queries", "查询"), ("keys", "键"), ("values", "值"))
    },
    "parameter": Words(
        "d_{of} = {right}",
        ("Gradient of {of}", "All rows share it, so this is a sum over all of them."),
        ("{of}的梯度", "所有的行共用它，因此对它们求和。"),
    ),
    "gaussian_queries": Words(
        "d_queries = -{w2:.6g} * sum_j(d_scores * (queries - keys))",
        ("Gradient of the queries", "The forward was scores = -(w * |queries - keys|)^2 / 2."),
        ("查询的梯度", "前向计算为scores = -(w * |queries - keys|)^2 / 2。"),
    ),
    "gaussian_keys": Words(
        "d_keys = {w2:.6g} * sum_i(d_scores * (queries - keys))",
        ("Gradient of the keys", "The same with the other sign: only the difference counts."),
        ("键的梯度", "与查询的梯度符号相反：评分只取决于二者之差。"),
    ),
    "cosine_queries": Words(
        "d_queries = (d_unit_q - (unit_q . d_unit_q) * unit_q) / max(|queries|, {eps:g})",
        (
            "Gradient of the queries",
            "Only what lies across a query turns it; along it only its length would change, which "
            "the cosine does not see.",
        ),
        ("查询的梯度", "只有与查询垂直的部分使它转向；沿查询方向只改变长度，而余弦与长度无关。"),
    ),
    "cosine_keys": Words(
        "d_keys = (d_unit_k - (unit_k . d_unit_k) * unit_k) / max(|keys|, {eps:g})",
        ("Gradient of the keys", "Likewise: only what lies across a key turns it."),
        ("键的梯度", "同样，只有与键垂直的部分使它转向。"),
    ),
}
