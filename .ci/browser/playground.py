"""The site's playground in a browser: .ci/browser/playground.py SCREENSHOTS

What docs/site/playground.py writes, in a page of its own: sliders, sentence, points and keys move,
the numbers follow, and are those of Python.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from driver import Keys, Page, browser, served, wait_for

import attnext

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = """<!doctype html><html lang="{lang}"><meta charset="utf-8"><title>playground</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="site.css">
<body style="margin: 1rem; {colours}"><div class="playground" data-attnext="sentence"></div>
<div class="playground" data-attnext="regression"></div>
<script type="module" src="playground/playground.js"></script>"""
SENTENCE, REGRESSION = ".playground:nth-of-type(1)", ".playground:nth-of-type(2)"
WEIGHTS = f"{SENTENCE} .panel[data-step=weights] .cell"

# Asks the page's own module, beside what is drawn.
COMPUTE = """
const [q, done] = arguments;
const { load, array } = await import("/web/attnext.js");
const attnext = await load(new URL("/web/attnext.wasm", location));
const { weights } = attnext.dot_product_attention(array(q), array(q), array(q), { causal: true });
done(Array.from(new Uint32Array(weights.data.slice().buffer)));
"""


def weights(page: Page) -> list[str]:
    return [cell.get_attribute("aria-label") or "" for cell in page.all(WEIGHTS)]


def moved(page: Page, selector: str, *keys: str) -> None:
    """Keys on a slider, and what is drawn then is not what was."""
    before = weights(page)
    page.script("arguments[0].focus()", page.one(selector))
    page.press(*keys)
    wait_for(f"change by {selector}", lambda: weights(page) not in ([], before))


def sentence(page: Page) -> None:
    wait_for("weights", lambda: weights(page))
    words = len(page.all(f"{SENTENCE} .lines-svg .token")) // 2
    assert len(weights(page)) == words**2
    for name in ("temperature", "valid length", "window"):
        moved(page, f"{SENTENCE} input[aria-label='{name}']", *[Keys.ARROW_LEFT] * 4)
    field = page.one(f"{SENTENCE} input[type=text]")
    field.clear()
    field.send_keys("one two one")
    wait_for("three words", lambda: len(weights(page)) == 9)
    field.clear()
    field.send_keys(" ")
    wait_for("a note of what is missing", lambda: "at least one word" in note(page))
    assert weights(page) == []
    field.send_keys("word " * 23)
    wait_for("20 words", lambda: len(weights(page)) == 400)
    assert "last 3 of 23 are left out" in note(page), note(page)
    field.clear()
    field.send_keys("cat cats")
    wait_for("two words", lambda: len(weights(page)) == 4)
    assert note(page) == ""


def steps_agree(page: Page) -> None:
    """The step number, the selected chip and the sentence always show the same step."""
    for _ in range(3):
        page.script("arguments[0].click()", page.one(f"{SENTENCE} button[aria-label='Next step']"))
        number = page.one(f"{SENTENCE} .step-number").text.partition(" ")[0]
        assert page.one(f"{SENTENCE} .sentence strong").text.startswith(f"{number}. ")
    box = page.one(f"{SENTENCE} .check input")  # one step more before the one that is read
    page.script("arguments[0].click()", box)
    wait_for("causal", lambda: len(page.all(f"{WEIGHTS}.masked")) > 0)
    number = page.one(f"{SENTENCE} .step-number").text.partition(" ")[0]
    assert page.one(f"{SENTENCE} .sentence strong").text.startswith(f"{number}. ")
    page.script("arguments[0].click()", box)
    wait_for("all pairs", lambda: len(page.all(f"{WEIGHTS}.masked")) == 0)
    facts = page.one(f"{SENTENCE} .facts").text.split("\n")
    assert facts[:2] == ["× scale", "4"] and len(facts) == 6, facts


def note(page: Page) -> str:
    return page.one(f"{SENTENCE} .playground-note").get_attribute("textContent") or ""


def regression(page: Page) -> None:
    path = f"{REGRESSION} .curve-svg .fit"
    curve = wait_for("curve", lambda: page.one(path).get_attribute("d"))
    slider = page.one(f"{REGRESSION} input[type=range]")
    page.script("arguments[0].focus()", slider)
    page.press(*[Keys.ARROW_RIGHT] * 8)
    wide = wait_for("wider", lambda: (d := page.one(path).get_attribute("d")) != curve and d)
    point = page.all(f"{REGRESSION} .dots circle")[4]
    page.drag(point, 0, -60)
    wait_for("dragged curve", lambda: page.one(path).get_attribute("d") != wide)


def bits(page: Page) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(17, 8)).astype(np.float32)
    page.driver.set_script_timeout(60)
    wrapped = f"(async () => {{{COMPUTE}}})().catch((error) => arguments[1](String(error)))"
    text = wrapped.replace("arguments;", "args;").replace("arguments[1]", "args[1]")
    got = page.driver.execute_async_script(f"const args = [...arguments]; {text}", x.tolist())
    _, expected = attnext.dot_product_attention(x, x, x, causal=True, return_weights=True)
    assert got == expected.view(np.uint32).ravel().tolist(), "other bits than in Python"


def main(shots: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        served(Path(name)) as address,
        browser(shots) as page,
    ):
        command = [sys.executable, "-P", str(ROOT / "docs" / "site" / "playground.py"), name]
        subprocess.run(command, check=True)
        (Path(name) / "site.css").write_bytes((ROOT / "docs/site/static/site.css").read_bytes())
        for lang, colours in (("en", ""), ("zh-CN", "background: #14181e; color: #ced6dd")):
            text = PAGE.format(lang=lang, colours=colours)
            (Path(name) / f"{lang}.html").write_text(text, encoding="utf-8")
        page.open(f"{address}/en.html")
        wait_for("weights", lambda: weights(page))
        steps_agree(page)
        sentence(page)
        regression(page)
        bits(page)
        for width in (1280, 390):
            page.whole_shot(f"playground-{width}", width)
            page.open(f"{address}/zh-CN.html")
            wait_for("weights", lambda: weights(page))
            page.whole_shot(f"playground-zh-dark-{width}", width)
            page.open(f"{address}/en.html")
            wait_for("weights", lambda: weights(page))
        errors = [line for line in page.errors() if not re.search("favicon", line)]
        assert not errors, errors
    print("the playground: sliders, sentence, points and keys move; the bits of Python")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
