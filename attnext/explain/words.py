"""Every word that an explanation says around its steps, in every language; theirs: words_steps.py.

What stands in braces is filled in.
"""

from __future__ import annotations

from attnext.reference.arguments import shown

LANGUAGES = ("en", "zh")

# ---- around the steps ----------------------------------------------------------------------------

_ATTENTIONS = {
    "dot_product": ("dot-product", "点积"),
    "additive": ("additive", "加性"),
    "gaussian": ("Gaussian", "高斯核"),
    "cosine": ("cosine", "余弦"),
    "multi_head": ("multi-head", "多头"),
}
_OTHERS = {
    "masked_softmax": ("masked softmax", "掩蔽softmax操作"),
    "merge_attention": ("merged attention", "注意力的合并"),
    "sequence_mask": ("sequence mask", "序列掩码"),
    "positional_encoding": ("positional encoding", "位置编码"),
}


def _titles() -> dict[str, dict[str, str]]:
    """Of each function, and of its backward."""
    titles = dict(_OTHERS)
    for name, (en, zh) in _ATTENTIONS.items():
        scaled = "缩放" if name == "dot_product" else ""
        titles[f"{name}_attention"] = f"{en} attention", f"{scaled}{zh}注意力"
        titles[f"{name}_scores"] = f"{en} scores", f"{scaled}{zh}评分"
    titles |= {
        f"{f}_backward": (f"backward of {en}", f"{zh}的反向传播") for f, (en, zh) in titles.items()
    }
    return {f: {"en": en[0].upper() + en[1:], "zh": zh} for f, (en, zh) in titles.items()}


TITLES = _titles()

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
    "part": {"en": "part", "zh": "部分"},
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
