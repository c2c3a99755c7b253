"""attnext.view in JupyterLab and in HTML made of a notebook: .ci/browser/notebook.py SCREENSHOTS"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from driver import Keys, Page, WebElement, browser, cut_cells, wait_for

CELLS = (
    """\
import numpy as np
import attnext
from attnext import view
rng = np.random.default_rng(0)
tokens = "the cat sat on the mat because it was warm".split()
x = rng.standard_normal((1, 10, 8))
shown = view.show(attnext.dot_product_attention, x, x, x[..., :4], [8])
shown.with_labels(queries=tokens, keys=tokens)""",
    """\
x_train = np.sort(rng.uniform(0, 5, 30))
y_train = 2 * np.sin(x_train) + x_train**0.8 + rng.normal(0, 0.4, 30)
view.show("nadaraya_watson", np.linspace(0, 5, 81), x_train, y_train, sigma=0.4)""",
    """\
heads = attnext.MultiHeadAttention(16, 16, 16, 16, 8, rng=0)
x = 2 * rng.standard_normal((2, 10, 16))
view.show(heads, x, x, x, causal=True).with_labels(queries=tokens, keys=tokens)""",
    """\
from attnext import explain
explain.dot_product_attention(x, x, x, 8, causal=True).with_labels(queries=tokens, keys=tokens)""",
)
WEIGHTS = ".panel[data-step=weights] .cell"


def main(shots: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        book = nbformat.v4.new_notebook()
        book.cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
        book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
        if not seen(book, folder, shots):
            print("the kernel did not answer, as the page says; once more")
            assert seen(book, folder, shots), "the kernel did not answer again"


def seen(book: nbformat.NotebookNode, folder: Path, shots: Path) -> bool:
    """The notebook in JupyterLab and out of it. False: of a widget that waited for its kernel the
    page says that no answer came, where it tells a reader to run the cell again: on a busy machine
    JupyterLab lost a message once, and anywidget waits for no model longer than two seconds."""
    nbformat.write(book, folder / "view.ipynb")
    with jupyterlab(folder) as address, browser(shots) as page:
        page.size(1280, 4000)  # what is not in sight, JupyterLab does not draw
        page.open(f"{address}/lab/tree/view.ipynb")
        try:
            in_jupyterlab(page)
        except AssertionError:
            if not any("The kernel does not answer" in x.text for x in page.all(".status.wrong")):
                raise
            page.shot("no-answer")
            return False
        exported(page, folder)
        return True


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """A server for this folder, which needs no password."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--expose-app-in-browser"]
    command += ["--allow-root", f"--port={port}", "--IdentityProvider.token=", "--ip=127.0.0.1"]
    command += ["--LabApp.extension_manager=readonly", "--LabApp.news_url=None"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        wait_for("server", lambda: socket.create_connection(("127.0.0.1", port), 1))
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def command(page: Page, name: str, arguments: object = None) -> None:
    """A command of JupyterLab, by its name."""
    run = "window.jupyterapp.commands.execute(arguments[0], arguments[1] ?? {})"
    page.script(run, name, arguments)


# ---- what is checked -----------------------------------------------------------------------------


def in_jupyterlab(page: Page) -> None:
    kernel = "currentWidget?.sessionContext?.session?.kernel?.status"
    idle = f"return window.jupyterapp?.shell?.{kernel} === 'idle'"
    wait_for("kernel", lambda: page.script(idle))
    command(page, "notebook:run-all-cells")
    wait_for("picture", lambda: len(page.all(".attnext-view .panel")) >= 11)
    views = page.all(".attnext-view")
    assert len(views) == 3
    saved = page.all("[id^=attnext-]")
    assert len(saved) == 3 and not any(each.is_displayed() for each in saved)
    attention, regression, heads = views
    slider_moves_numbers(page, attention)
    hover_shows_the_product(page, attention)
    keys_walk_over_the_grid(page, attention)
    steps_have_sentences(page, attention)
    languages(page, attention)
    points_can_be_dragged(page, regression)
    a_head_opens(page, heads)
    no_number_is_cut(page, "in JupyterLab")
    dark(page, attention)
    time.sleep(2)  # what is saved follows when nothing has moved for a while
    command(page, "docmanager:save")
    time.sleep(3)


def no_number_is_cut(page: Page, where: str) -> None:
    count, cut = cut_cells(page)
    assert count > 500, f"{count} cells of explanations {where}"
    assert not cut, f"{where} {len(cut)} of {count} cells are cut: {cut[:9]}"


def texts(page: Page, view: object, selector: str) -> list[str]:
    script = "return [...arguments[0].querySelectorAll(arguments[1])].map((e) => e.textContent)"
    return [str(text) for text in page.script(script, view, selector)]  # type: ignore[attr-defined]


def find(page: Page, view: object, selector: str) -> object:
    script = "return arguments[0].querySelector(arguments[1])"
    return wait_for(selector, lambda: page.script(script, view, selector))


def weights(page: Page, view: object) -> list[WebElement]:
    """The cells of the attention weights, row by row."""
    script = "return [...arguments[0].querySelectorAll(arguments[1])]"
    found: list[WebElement] = page.script(script, view, WEIGHTS)  # type: ignore[assignment]
    return found


def slider_moves_numbers(page: Page, view: object) -> None:
    output = ".panel[data-step=output] .cell"
    before = texts(page, view, output)
    assert len(before) == 40
    page.script("arguments[0].focus()", find(page, view, "input[aria-label=temperature]"))
    page.press(*[Keys.ARROW_RIGHT] * 12)
    wait_for("other numbers", lambda: texts(page, view, output) != before)
    settled = texts(page, view, output)
    page.press(Keys.HOME)  # the sharpest softmax: each query takes the value of one key
    wait_for("others again", lambda: texts(page, view, output) != settled)
    page.script("arguments[0].focus()", find(page, view, "input[aria-label='valid length']"))
    before = texts(page, view, output)
    page.press(*[Keys.ARROW_LEFT] * 3)
    wait_for("fewer keys", lambda: texts(page, view, output) != before)
    masked = f"{WEIGHTS}.masked"
    wait_for("five keys", lambda: len(texts(page, view, masked)) == 50)


def hover_shows_the_product(page: Page, view: object) -> None:
    page.hover(weights(page, view)[23])
    assert wait_for("pair", lambda: texts(page, view, ".pair") == ["query sat · key on"])
    assert texts(page, view, ".vectors th") == ["query", "key", "product"]
    assert texts(page, view, ".panel[data-step=weights] .head.lit") == ["on", "sat"]
    numbers = [text.replace("−", "-") for text in texts(page, view, ".vectors td:not(.sum)")]
    q, k, product = (list(map(float, numbers[i : i + 8])) for i in (0, 8, 16))
    assert all(abs(a * b - c) < 0.01 for a, b, c in zip(q, k, product, strict=True))
    page.shot_of(view, "lab-hover")


def keys_walk_over_the_grid(page: Page, view: object) -> None:
    page.script("arguments[0].focus()", find(page, view, f"{WEIGHTS}[tabindex='0']"))
    page.press(Keys.PAGE_UP, Keys.HOME, Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    wait_for("pair", lambda: texts(page, view, ".pair") == ["query cat · key sat"])
    said = str(page.script("return document.activeElement.getAttribute('aria-label')"))
    assert said.startswith("cat, sat: "), said
    assert page.script("return document.activeElement.getAttribute('role')") == "gridcell"


def steps_have_sentences(page: Page, view: object) -> None:
    forward = find(page, view, "button[aria-label='Previous step']")
    page.script("arguments[0].click()", forward)
    wait_for("sentence", lambda: "Masked scores" in texts(page, view, ".sentence strong")[0])
    assert texts(page, view, ".panel.current .name") == ["Masked scores"]


def languages(page: Page, view: object) -> None:
    page.script("arguments[0].click()", find(page, view, ".language"))
    wait_for("Chinese", lambda: "掩蔽后的评分" in texts(page, view, ".sentence strong")[0])
    assert "温度" in texts(page, view, ".control span")
    page.shot_of(view, "lab-chinese")
    page.script("arguments[0].click()", find(page, view, ".language"))
    wait_for("English", lambda: "Masked scores" in texts(page, view, ".sentence strong")[0])
    assert texts(page, view, "output")[0].startswith("0.063")  # of the scale at first


def points_can_be_dragged(page: Page, view: object) -> None:
    fit = "return arguments[0].querySelector('.fit').getAttribute('d')"
    before = page.script(fit, view)
    page.drag(find(page, view, ".dots circle:nth-of-type(12)"), 0, -60)  # type: ignore[arg-type]
    wait_for("another curve", lambda: page.script(fit, view) != before)
    before = page.script(fit, view)
    page.script("arguments[0].focus()", find(page, view, ".dots circle:nth-of-type(20)"))
    page.press(*[Keys.ARROW_UP] * 5)
    wait_for("another curve", lambda: page.script(fit, view) != before)
    page.shot_of(view, "lab-regression")


def a_head_opens(page: Page, view: object) -> None:
    assert len(texts(page, view, ".wall button")) == 8
    cells = "[...arguments[0].querySelectorAll(arguments[1])]"
    colours = f"return {cells}.map((each) => each.style.backgroundColor)"
    before = page.script(colours, view, WEIGHTS)
    page.script("arguments[0].click()", find(page, view, ".wall button:nth-of-type(6)"))
    wait_for("another head", lambda: page.script(colours, view, WEIGHTS) != before)
    assert find(page, view, ".wall button:nth-of-type(6)[aria-pressed=true]")
    page.shot_of(view, "lab-heads")


def dark(page: Page, view: object) -> None:
    theme = "return arguments[0].dataset.theme"
    assert page.script(theme, view) == "light"
    command(page, "apputils:change-theme", {"theme": "JupyterLab Dark"})
    wait_for("dark", lambda: page.script(theme, view) == "dark")
    page.shot_of(view, "lab-dark")
    command(page, "apputils:change-theme", {"theme": "JupyterLab Light"})
    wait_for("light", lambda: page.script(theme, view) == "light")


def exported(page: Page, folder: Path) -> None:
    """The notebook as it was saved, as HTML."""
    book = nbformat.read(folder / "view.ipynb", 4)
    assert len([x for cell in book.cells for x in cell.outputs if "text/html" in x.data]) == 4
    run = [sys.executable, "-m", "nbconvert", "--to", "html", "--log-level=ERROR", "view.ipynb"]
    subprocess.run(run, cwd=folder, check=True)
    page.open((folder / "view.html").as_uri())
    views = wait_for("pictures", lambda: len(found := page.all(".attnext-view")) == 3 and found)
    attention = views[0]  # type: ignore[index]
    chosen = texts(page, attention, "output")  # before it was saved
    assert chosen[0].startswith("0.063") and chosen[1] == "5 / 10", chosen
    page.hover(weights(page, attention)[34])
    wait_for("pair", lambda: texts(page, attention, ".pair") == ["query on · key the"])
    assert page.script("return arguments[0].querySelector('input').disabled", attention)
    no_number_is_cut(page, "in the HTML of a notebook")
    page.whole_shot("exported-1280", 1280)
    page.whole_shot("exported-390", 390)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
