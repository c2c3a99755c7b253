"""The Chinese of the documents, the explanations, the tour and the notebooks: one term each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def texts(*patterns: str) -> dict[str, str]:
    paths = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def prose(text: str) -> str:
    """What a reader sees of a page: no blocks of code; of a notebook its cells of text."""
    if text.startswith("{"):
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def hits(pattern: str, texts: dict[str, str]) -> Iterator[str]:
    for name, text in texts.items():
        for line in text.splitlines():
            for match in re.finditer(pattern, line):
                yield f"{name}: {line[max(match.start() - 12, 0) : match.end() + 12]}"


TEXTS = texts("*.md", "docs/*.md", "attnext/**/*.py", "csrc/**/*.[ch]", "examples/**/*.ipynb")
PAGES = texts("*.zh-CN.md", "docs/*.zh-CN.md", "examples/zh-CN/**/*.ipynb")
CHINESE, LATIN = "[一-鿿]", "[A-Za-z0-9`$]"


@pytest.mark.parametrize(
    ("other", "term"),
    [
        ("分数|得分|打分", "评分"),  # score, as in 评分函数
        ("批次", "样本"),  # an entry of a batch; the whole batch is 批量
        ("注意力得分|关注度", "注意力权重"),
        ("遮罩|屏蔽", "掩码、掩蔽"),
        ("丢弃法", "暂退法"),
    ],
)
def test_one_term_for_one_thing(other: str, term: str) -> None:
    """That of the Chinese edition of Dive into Deep Learning."""
    assert len(TEXTS) > 50
    assert list(hits(other, TEXTS)) == [], f"expected {term}"


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        (f"{CHINESE}[,;:?!]", "Chinese punctuation after Chinese"),
        (rf"{CHINESE}\**{LATIN}|{LATIN}\**{CHINESE}", "a space between Chinese and Latin"),
    ],
)
def test_one_typography(fault: str, rule: str) -> None:
    """Pages by several people, from one to the next of which a reader goes."""
    assert len(PAGES) > 5
    pages = {name: prose(text) for name, text in PAGES.items()}
    assert list(hits(fault, pages)) == [], f"expected {rule}"
