"""The documentation site in a browser: .ci/browser/pages.py SITE SCREENSHOTS

On every notebook page no number of an explanation is cut. The picture of the first page shows the
numbers that the Python lines below it print.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from urllib.parse import quote

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
    labels = [re.split(": |：|，|, ", cell.get_attribute("aria-label") or "")[-1] for cell in cells]
    shown = np.array([float(label.replace("−", "-")) for label in labels])
    expected = np.array(printed(name))
    assert shown.size == expected.size, f"{name}: {shown.size} weights, {expected.size} printed"
    apart = np.abs(shown.reshape(expected.shape) - expected).max()
    assert apart <= 0.0055, f"{name}: picture and lines are {apart} apart"
    (pair,) = wait_for("pair", lambda: page.all(".detail .pair"))
    weight = float(page.all(".detail .facts b")[-1].text)
    assert weight > 0.1, f"{name}: the first pair, {pair.text}, has weight {weight}"
    print(f"{name}: {pair.text}, {weight}")


def search(page: Page, site: Path, address: str) -> None:
    """A Chinese term finds every Chinese page that has it; a name is found by its parts."""
    for term in ("掩蔽", "有效长度"):
        sources = [path for path in site.glob("_sources/**/*zh-CN*/**/*") if path.is_file()]
        sources += site.glob("_sources/**/*.zh-CN*")
        having = [path for path in sources if term in path.read_text("utf-8")]
        found = results(page, address, term)
        assert len(having) > 5 and len(found) >= len(having), f"{term}: {found} of {having}"
    found = results(page, address, "dot product attention")
    assert any("attnext.dot_product_attention" in link for link in found), found


def results(page: Page, address: str, query: str) -> list[str]:
    page.open(f"{address}/search.html?q={quote(query)}")
    wait_for("end of the search", lambda: page.all(".search-summary, #search-results > p"))
    wait_for("results", lambda: page.all("#search-results li a"))
    time.sleep(1)  # until the last results are in the list
    return [link.get_attribute("href") or "" for link in page.all("#search-results li a")]


def main(site: Path, shots: Path) -> None:
    with served(site) as address, browser(shots) as page:
        notebook_pages(page, site, address)
        search(page, site, address)
        for name in HOMES:
            first_page(page, address, name)
            for width in (1280, 390):
                for mode in ("light", "dark"):
                    page.script("document.documentElement.dataset.theme = arguments[0]", mode)
                    page.whole_shot(f"{name}-{mode}-{width}", width)
        errors = [line for line in page.errors() if not re.search("favicon|theme mode", line)]
        assert not errors, errors


if __name__ == "__main__":
    main(*(Path(argument).resolve() for argument in sys.argv[1:]))
