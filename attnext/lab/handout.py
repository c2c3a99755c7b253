"""``attnext lab DIR``: the notebooks, an assignment for each, data and a page on how to begin."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import attnext
from attnext._commands import Command, encodable, encoding_of
from attnext._files import write_files
from attnext.lab.assignments import Notebook, as_json, assignment, plain
from attnext.lab.words import HANDOUT, said

# What --help says, in English and in Chinese.
HELP = {
    "description": (
        "Write the notebooks, without outputs, and an assignment for each notebook into a folder. "
        "An assignment has cells to fill in, each followed by a check, and can be graded with "
        "nbgrader.",
        "把笔记本（不含输出）写入一个目录，每篇笔记本配一份作业。作业中有待填写的单元格，每格之后有"
        "检查，可以用nbgrader评分。",
    ),
    "folder": ("folder to write into; created if needed", "要写入的目录；不存在则新建"),
    "lang": (
        "language: en (English, the default) or zh (Chinese)",
        "语言：en为英文（默认），zh为中文",
    ),
    "force": (
        "overwrite existing files that have other contents; without --force, the command lists "
        "these files and writes nothing",
        "覆盖内容不同的同名文件；不加--force时，只列出这些文件，什么也不写",
    ),
    "solutions": (
        "include the solutions, between the marks that tell nbgrader to remove them; for teachers",
        "填入答案，放在nbgrader会删去的标记之间；供教师使用",
    ),
}


class Kept(OSError):
    """Raised without `force` if files exist with other contents; `names` lists them."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(errno.EEXIST, os.strerror(errno.EEXIST))
        self.names = names


def main(argv: Sequence[str]) -> int:
    """Write a folder; return 0. Exit with 2 if it cannot be written."""
    parser = Command("attnext lab", argv, HELP["description"])
    parser.add_argument("folder", metavar="DIR", type=Path, help=parser.say(HELP["folder"]))
    parser.add_argument("--lang", choices=("en", "zh"), default="en", help=parser.say(HELP["lang"]))
    parser.add_argument("--solutions", action="store_true", help=parser.say(HELP["solutions"]))
    parser.add_argument("--force", action="store_true", help=parser.say(HELP["force"]))
    arguments = parser.parse_args(argv)
    folder: Path = arguments.folder
    spoken = "zh" if parser.chinese else "en"
    try:
        count = write(folder, arguments.lang, arguments.solutions, arguments.force)
    except Kept as kept:
        names = "".join(f"\n  {folder / name}" for name in kept.names)
        parser.error(said(HANDOUT, "kept", spoken, names=names))
    except OSError as error:
        where = error.filename2 or error.filename or folder
        reason = f"{where}: {error.strerror}"
        parser.error(said(HANDOUT, "unwritable", spoken, folder=folder, reason=reason))
    text = said(HANDOUT, "written", spoken, count=count, folder=folder)
    sys.stdout.write(encodable(text, encoding_of(sys.stdout)) + "\n")
    return 0


def write(folder: Path, lang: str = "en", solutions: bool = False, force: bool = False) -> int:
    """Write everything into `folder`; return the number of files.

    Files that are there already with the same contents stay as they are. If any file has other
    contents, raise Kept and change nothing, unless `force` is true.
    """
    contents = {name: text.encode() for name, text in _texts(lang, solutions)}
    changed = {name: text for name, text in contents.items() if not _is_same(folder / name, text)}
    kept = [name for name in changed if os.path.lexists(folder / name)]
    if kept and not force:
        raise Kept(kept)
    write_files(folder, changed)
    return len(contents)


def _is_same(path: Path, content: bytes) -> bool:
    """True if this file, and not a symbolic link to it, has these contents."""
    return path.is_file() and not path.is_symlink() and path.read_bytes() == content


def _texts(lang: str, solutions: bool) -> Iterator[tuple[str, str]]:
    """Generate the name, relative to the folder, and the text of every file."""
    for name, chapter, solved in sources(lang):
        yield f"notebooks/{name}.ipynb", as_json(plain(chapter))
        handed_out = assignment(name, chapter, solved, lang, solutions)
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
