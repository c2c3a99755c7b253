"""The pages and notebooks that are there in English and in Chinese, and how their links compare."""

from __future__ import annotations

import re
from pathlib import Path

from helpers import REPOSITORY


def in_english(page: Path) -> Path:
    """The English one of a pair: X.md of X.zh-CN.md, examples/X.ipynb of examples/zh-CN/X.ipynb."""
    return Path(re.sub(r"\.zh-CN(?=\.md$)|zh-CN/(?=[\w/]+\.ipynb$|solutions$)", "", str(page)))


IN_CHINESE = {
    in_english(page): page
    for pattern in ("*.zh-CN.md", "docs/*.zh-CN.md", "csrc/*.zh-CN.md", "examples/zh-CN/**/*.ipynb")
    for page in sorted(REPOSITORY.glob(pattern))
}


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> list[str]:
    """What GitHub and the site call the headings of a page, in their order."""
    prose = without_blocks(page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


def destination(link: str, page: Path) -> tuple[str, int, bool]:
    """What a link of a page has in common with that of its translation: the page in English, the
    number of the heading, and whether it leads to the other language though this one has the page.
    """
    if "://" in link:
        return link.replace("//zh.d2l.ai", "//d2l.ai"), 0, False
    target, _, anchor = link.partition("#")
    to = (page.parent / target).resolve() if target else page
    english = in_english(to)
    other = english in IN_CHINESE and (to == english) != (page == in_english(page))
    return str(english), anchors(to).index(anchor) if anchor else 0, other


def destinations(text: str, page: Path) -> list[tuple[str, int, bool]]:
    """Those of all links, in an order that does not depend on the language."""
    return sorted(destination(link, page) for link in re.findall(r"\]\(([^)\s]+)\)", text))
