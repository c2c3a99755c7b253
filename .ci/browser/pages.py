"""The documentation site in a browser: .ci/browser/pages.py SITE SCREENSHOTS

On every notebook page no number of an explanation is cut. The picture of the first page shows the
numbers that the Python lines below it print.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
from driver import Page, browser, cut_cells, served, wait_for

ROOT = Path(__file__).resolve().parent.parent.parent
HOMES = ("home", "home.zh-CN")
CELLS = ".panel[data-step=weights] .cell"


def notebook_pages(page: Page, site: Path, address: str) -> None:
    """Measure the cells of all pages made of notebooks."""
    total = 0
    for path in sorted(site.glob("examples/**/*.html")):
        page.open(f"{address}/{path.relative_to(site)}")
        count, cut = cut_cells(page)
        total += count
        assert not cut, f"{path.relative_to(site)}: {len(cut)} of {count} cells cut: {cut[:9]}"
    assert total > 1000, f"only {total} cells in all pages"
    print(f"{total} cells of explanations, none narrower than its text")


def printed(name: str) -> list[list[float]]:
    """Return the array that the lines of a first page print."""
    text = (ROOT / "docs" / "site" / f"{name}.md").read_text("utf-8")
    (array,) = re.findall(r"^array\((\[\[.*?\]\])", text, re.DOTALL | re.MULTILINE)
    rows = re.findall(r"\[([\d., ]+)\]", array)
    return [[float(number) for number in row.split(",")] for row in rows]


def first_page(page: Page, address: str, name: str) -> None:
    """Compare the picture with the printed numbers; the pair that is shown first is alike."""
    page.open(f"{address}/docs/site/{name}.html")
    cells = wait_for("weights", lambda: page.all(CELLS))
    labels = [re.split(": |，|, ", cell.get_attribute("aria-label") or "")[-1] for cell in cells]
    shown = np.array([float(label.replace("−", "-")) for label in labels])
    expected = np.array(printed(name))
    assert shown.size == expected.size, f"{name}: {shown.size} weights, {expected.size} printed"
    apart = np.abs(shown.reshape(expected.shape) - expected).max()
    assert apart <= 0.0055, f"{name}: picture and lines are {apart} apart"
    (pair,) = wait_for("pair", lambda: page.all(".detail .pair"))
    weight = float(page.all(".detail .facts b")[-1].text)
    assert weight > 0.1, f"{name}: the first pair, {pair.text}, has weight {weight}"
    print(f"{name}: {pair.text}, {weight}")


def main(site: Path, shots: Path) -> None:
    with served(site) as address, browser(shots) as page:
        notebook_pages(page, site, address)
        for name in HOMES:
            first_page(page, address, name)
            for width in (1280, 390):
                for mode in ("light", "dark"):
                    page.script("document.documentElement.dataset.theme = arguments[0]", mode)
                    page.whole_shot(f"{name}-{mode}-{width}", width)
        errors = [line for line in page.errors() if "favicon" not in line]
        assert not errors, errors


if __name__ == "__main__":
    main(*(Path(argument).resolve() for argument in sys.argv[1:]))
