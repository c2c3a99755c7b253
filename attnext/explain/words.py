"""Every word that an explanation says around its steps, in every language; theirs: words_steps.py.

What stands in braces is filled in.
"""

from __future__ import annotations

from attnext.reference.arguments import shown

LANGUAGES = ("en", "zh")

# ---- around the steps ----------------------------------------------------------------------------

TITLES = {
    "masked_softmax": {"en": "Masked softmax", "zh": "掩蔽softmax操作"},
    "dot_product_attention": {"en": "Dot-product attention", "zh": "缩放点积注意力"},
    "additive_attention": {"en": "Additive attention", "zh": "加性注意力"},
    "gaussian_attention": {"en": "Gaussian attention", "zh": "高斯核注意力"},
    "cosine_attention": {"en": "Cosine attention", "zh": "余弦注意力"},
    "multi_head_attention": {"en": "Multi-head attention", "zh": "多头注意力"},
    "masked_softmax_backward": {
        "en": "Backward of masked softmax",
        "zh": "掩蔽softmax操作的反向传播",
    },
    "dot_product_attention_backward": {
        "en": "Backward of dot-product attention",
        "zh": "缩放点积注意力的反向传播",
    },
    "positional_encoding": {"en": "Positional encoding", "zh": "位置编码"},
}

AXES = {
    "batch": {"en": "batch", "zh": "样本"},
    "group": {"en": "group", "zh": "组"},
    "head": {"en": "head", "zh": "头"},
    "query": {"en": "query", "zh": "查询"},
    "key": {"en": "key", "zh": "键"},
    "row": {"en": "row", "zh": "行"},
    "feature": {"en": "feature", "zh": "特征"},
    "unit": {"en": "unit", "zh": "单元"},
    "position": {"en": "position", "zh": "位置"},
    "wave": {"en": "wave", "zh": "波"},
    "axis": {"en": "axis", "zh": "轴"},
}

PHRASES = {
    "agreement": {
        "en": "The steps are float64, by their formulas. What attnext.{function} returned is "
        "float32 and is shown as it is; it differs from the steps by {difference:.2g} at most, "
        "which is within the rounding of float32.",
        "zh": "各步骤按公式以float64计算。attnext.{function}返回的结果是float32，原样显示；"
        "二者最多相差{difference:.2g}，在float32的舍入误差之内。",
    },
    "once": {
        "en": " Made once, when the keys came into the memory.",
        "zh": "只算一次：键存入记忆时已经算好。",
    },
    "legend": {"en": "· takes no part", "zh": "· 不参与计算"},
    "masked": {"en": "takes no part", "zh": "不参与计算"},
    "summary": {
        "en": "{count} numbers: min {least:.4g}, mean {mean:.4g}, max {largest:.4g}",
        "zh": "共{count}个数：最小{least:.4g}，平均{mean:.4g}，最大{largest:.4g}",
    },
    "nothing": {"en": "no numbers", "zh": "没有数"},
    "comma": {"en": ", ", "zh": "，"},
}


def phrase(key: str, lang: str, **numbers: object) -> str:
    """A phrase, with its numbers filled in."""
    return PHRASES[key][lang].format(**numbers)


def check_lang(lang: object) -> None:
    """The language must be one of the table's."""
    if not isinstance(lang, str) or lang not in LANGUAGES:
        raise ValueError(f"lang is {shown(lang)}, expected 'en' or 'zh'")
