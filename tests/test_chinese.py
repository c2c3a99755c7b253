"""The Chinese of the documents, the explanations, the tour and the notebooks: one term each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXTS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "attnext/**/*.py", "csrc/**/*.[ch]", "examples/**/*.ipynb")
    for path in ROOT.glob(pattern)
)


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
    found = [
        f"{path.relative_to(ROOT)}: {line[max(match.start() - 12, 0) : match.end() + 12]}"
        for path in TEXTS
        for line in path.read_text(encoding="utf-8").splitlines()
        for match in re.finditer(other, line)
    ]
    assert found == [], f"expected {term}"
