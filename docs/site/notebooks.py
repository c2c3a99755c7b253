"""The index of the notebooks: a picture of each, how long it takes, what is learned. What is said
is the table of docs/teachers.md, which so stays the one place for it.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# lang: (the table's page, the folder, words for class, run, minutes, solutions, download)
EDITIONS = {
    "en": ("teachers.md", "examples", ("to read", "to run", "min", "Solutions", "Download .ipynb")),
    "zh": (
        "teachers.zh-CN.md",
        "examples/zh-CN",
        ("阅读", "运行", "分钟", "参考答案", "下载 .ipynb"),
    ),
}


def rows(page: str) -> list[list[str]]:
    """name, what is learned, minutes to read, minutes to run, what it needs; of each notebook."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    table = re.findall(r"^\| (\d\d \w+ \|.*) \|$", text, re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in table]


def read(folder: str, name: str) -> dict[str, object]:
    notebook: dict[str, object] = json.loads((ROOT / folder / f"{name}.ipynb").read_text("utf-8"))
    return notebook


def title(folder: str, name: str) -> str:
    """The heading a notebook begins with."""
    first = "".join(read(folder, name)["cells"][0]["source"])  # type: ignore[index]
    return first.partition("\n")[0].removeprefix("# ")


def thumbnail(name: str) -> bytes:
    """The last of the pictures that are stored in a notebook's outputs."""
    outputs = [
        output["data"]["image/png"]
        for cell in read("examples", name)["cells"]  # type: ignore[attr-defined]
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]
    return base64.b64decode(outputs[-1])


def cards(lang: str) -> str:
    """The index as HTML, for a page in docs/site."""
    page, folder, (read_word, run_word, minutes, solutions, download) = EDITIONS[lang]
    made = []
    for label, learned, reading, running, needs in rows(page):
        name = label.replace(" ", "_")
        up, facts = "../..", f"{read_word} {reading} · {run_word} {running} {minutes} · {needs}"
        if lang == "en":
            facts = f"{reading} {read_word} · {running} {minutes} {run_word} · {needs}"
        made.append(
            f'<article class="notebook"><a class="picture" href="{up}/{folder}/{name}.html">'
            f'<img alt="" loading="lazy" src="{up}/_static/notebooks/{name}.png"></a><div>'
            f'<h3><a href="{up}/{folder}/{name}.html">{escape(title(folder, name))}</a></h3>'
            f'<p>{escape(learned)}</p><p class="facts">{escape(facts)}</p><p class="actions">'
            f'<a href="{up}/{folder}/{name}.ipynb" download>{download}</a>'
            f'<a href="{up}/{folder}/solutions/{name}.html">{solutions}</a></p></div></article>'
        )
    return '<div class="notebooks">' + "\n".join(made) + "</div>"


def buttons(pagename: str) -> str:
    """What stands above a notebook's page: download, and the way to its solutions or back."""
    lang = "zh" if "/zh-CN/" in pagename else "en"
    *_, solutions, download = EDITIONS[lang][2]
    name = pagename.rpartition("/")[2]
    link = f'<a href="{name}.ipynb" download>{download}</a>'
    if "/solutions/" not in pagename:
        link += f'<a href="solutions/{name}.html">{solutions}</a>'
    return f'<p class="actions">{link}</p>'


def write(site: Path) -> None:
    """The notebooks themselves, to be downloaded, and a picture of each."""
    for path in ROOT.glob("examples/**/*.ipynb"):
        shutil.copy(path, site / path.relative_to(ROOT))
    pictures = site / "_static" / "notebooks"
    pictures.mkdir(parents=True, exist_ok=True)
    for label, *_ in rows("teachers.md"):
        name = label.replace(" ", "_")
        (pictures / f"{name}.png").write_bytes(thumbnail(name))
