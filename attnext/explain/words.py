"""The texts of explanations in both languages: titles, and the files of texts/.

The entry of a step has five lines: the formula, the name and note in English, and the name and
note in Chinese. Placeholders in braces are filled in when a step is added.
"""

from __future__ import annotations

from typing import NamedTuple

from attnext._words import entries, table
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
    """Return the titles of all functions and backward functions, by name and language."""
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

AXES, PHRASES = table("explain/texts/axes"), table("explain/texts/phrases")
PHRASES["comma"] = {"en": ", ", "zh": "，"}  # a line of a file does not end in a space


def phrase(key: str, lang: str, **numbers: object) -> str:
    """Return a phrase with its placeholders filled in."""
    return PHRASES[key][lang].format(**numbers)


class Words(NamedTuple):
    """The texts of a step: its formula, and (name, note) in each language."""

    formula: str
    en: tuple[str, str]
    zh: tuple[str, str]


def _of_steps(file: str) -> dict[str, Words]:
    lines = entries(f"explain/texts/{file}")
    return {key: Words(formula, (a, b), (c, d)) for key, (formula, a, b, c, d) in lines.items()}


STEPS = _of_steps("steps")
VARIANTS = _of_steps("variants")  # alternative texts of steps


def check_lang(lang: object) -> None:
    """Raise ValueError unless the language is 'en' or 'zh'."""
    if not isinstance(lang, str) or lang not in LANGUAGES:
        raise ValueError(f"lang is {shown(lang)}, expected 'en' or 'zh'")
