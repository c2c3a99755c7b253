"""``attnext lab DIR``: the notebooks, an assignment for each, data and a page on how to begin."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import attnext
from attnext._commands import Command
from attnext.lab.assignments import Notebook, as_json, assignment, plain
from attnext.lab.words import HANDOUT, said

# What --help says, in English and in Chinese.
HELP = {
    "description": (
        "Write the notebooks into a folder, without outputs, with an assignment for each: cells to "
        "fill in, and checks beside them, marked for nbgrader.",
        "把不含输出的笔记本写入一个目录，每本配一份作业：待填写的单元格，旁边是检查，带有nbgrader的标记。",
    ),
    "folder": ("where to; made if needed", "写到哪里；没有则新建"),
    "lang": ("the language: English or Chinese", "语言：en为英文，zh为中文"),
    "solutions": (
        "fill the solutions in, between the marks that nbgrader takes out: for teachers",
        "填入答案，放在nbgrader会删去的标记之间：供教师使用",
    ),
}


def main(argv: Sequence[str]) -> int:
    """Write a folder; return 0. What cannot be written exits with 2."""
    parser = Command("attnext lab", argv, HELP["description"])
    parser.add_argument("folder", metavar="DIR", type=Path, help=parser.say(HELP["folder"]))
    parser.add_argument("--lang", choices=("en", "zh"), default="en", help=parser.say(HELP["lang"]))
    parser.add_argument("--solutions", action="store_true", help=parser.say(HELP["solutions"]))
    arguments = parser.parse_args(argv)
    try:
        written = write(arguments.folder, arguments.lang, arguments.solutions)
    except OSError as error:
        parser.error(f"cannot write into the folder {arguments.folder}: {error.strerror}")
    sys.stdout.write(
        said(HANDOUT, "written", arguments.lang, count=written, folder=arguments.folder) + "\n"
    )
    return 0


def write(folder: Path, lang: str = "en", solutions: bool = False) -> int:
    """Write everything; return the number of files. Files of these names are overwritten."""
    texts = dict(_texts(lang, solutions))
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    return len(texts)


def _texts(lang: str, solutions: bool) -> Iterator[tuple[str, str]]:
    """Every file, by its name."""
    for name, chapter, solved in sources(lang):
        yield f"notebooks/{name}.ipynb", as_json(plain(chapter))
        handed_out = assignment(chapter, solved, lang, solutions)
        yield f"assignments/{name}/{name}.ipynb", as_json(handed_out)
    data = files("attnext").joinpath("data", "motorcycle.csv").read_text(encoding="utf-8")
    yield "data/motorcycle.csv", data
    yield "README.md", said(HANDOUT, "readme", lang, version=attnext.__version__)


def sources(lang: str) -> Iterator[tuple[str, Notebook, Notebook]]:
    """Name, notebook and solutions of each chapter, in their order."""
    folder = _examples() / "zh-CN" if lang == "zh" else _examples()
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".ipynb"):
            solved = folder / "solutions" / path.name
            yield path.name.removesuffix(".ipynb"), _read(path), _read(solved)


def _examples() -> Traversable:
    """Where the notebooks are: inside of the package, or in the clone that it is used from."""
    packaged = files("attnext").joinpath("data", "notebooks")
    if packaged.is_dir():
        return packaged
    return Path(__file__).resolve().parents[2] / "examples"


def _read(path: Traversable) -> Notebook:
    notebook: Notebook = json.loads(path.read_text(encoding="utf-8"))
    return notebook
