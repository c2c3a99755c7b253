"""The console script `attnext`, and ``python -m attnext``: the tour."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile

import attnext
from attnext._commands import Command, run_command
from attnext._tour import run

# What --help says, in English and in Chinese.
HELP = {
    "description": (
        "Show in the terminal what attnext does. The tour computes attention, compares every "
        "result with the known answer and, if PyTorch is installed, with PyTorch. It then fits a "
        "curve to real measurements and compares running times. The exit status is 1 if a check "
        "fails, otherwise 0.",
        "在终端里演示attnext：计算注意力，把每个结果与已知的答案比较，若装有PyTorch也与PyTorch"
        "比较；然后用真实的测量数据拟合曲线，最后比较用时。有检验未通过时退出码为1，否则为0。",
    ),
    "epilog": (
        "Colours are used only on a terminal. Set the environment variable NO_COLOR to turn them "
        "off. `attnext lab DIR` writes notebooks and assignments into a folder; see `attnext lab "
        "--help`.",
        "只有输出到终端时才使用颜色；设置环境变量NO_COLOR可关闭颜色。`attnext lab DIR --lang zh`"
        "把笔记本和作业写入一个目录，详见`attnext lab --help --lang zh`。",
    ),
    "version": ("show program's version number and exit", "显示版本号并退出"),
    "lang": (
        "language of the text: en (English, the default) or zh (Chinese)",
        "文字的语言：en为英文（默认），zh为中文",
    ),
    "plots": (
        "also write the figures into this folder, as PNG files; the folder is created if needed, "
        "and existing files of the same names are replaced; needs matplotlib",
        "同时把图存为PNG文件，写入这个目录；目录不存在则新建，同名文件会被替换；需要matplotlib",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tour, or `attnext lab`; return the exit status.

    The tour returns 0 if every check passed and 1 if one failed or the output cannot be written.
    Wrong arguments, or a folder that cannot be written, exit with 2 before anything is done.
    Ctrl-C ends the process by its signal.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["lab"]:
        return run_command(lambda: _lab(words[1:]))
    return run_command(lambda: _tour(words))


def _lab(words: Sequence[str]) -> int:
    """Write the notebooks and assignments of `attnext lab DIR`."""
    return import_module("attnext.lab.handout").main(words)  # type: ignore[no-any-return]


def _tour(words: Sequence[str]) -> int:
    """Run the tour."""
    parser = _parser(words)
    arguments = parser.parse_args(words)
    if arguments.plots is not None:
        obstacle = _prepare(arguments.plots)
        if obstacle:
            parser.error(f"argument --plots: {obstacle}")
    return run(sys.stdout, arguments.lang, arguments.plots)


def _parser(words: Sequence[str]) -> Command:
    """Return the parser of the tour's arguments."""
    parser = Command("attnext", words, HELP["description"])
    parser.epilog = parser.say(HELP["epilog"])
    version = f"attnext {attnext.__version__}"
    parser.add_argument(
        "--version", action="version", version=version, help=parser.say(HELP["version"])
    )
    parser.add_argument("--lang", choices=("en", "zh"), default="en", help=parser.say(HELP["lang"]))
    parser.add_argument("--plots", metavar="DIR", type=Path, help=parser.say(HELP["plots"]))
    return parser


def _prepare(folder: Path) -> str:
    """Create the folder for the figures; return "", or why figures cannot be written into it."""
    try:
        import_module("matplotlib")
    except ImportError:
        return (
            "figures need matplotlib, which is not installed; run `pip install matplotlib`, or, in "
            "a clone of attnext, `pip install '.[lab]'`"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):  # only a write shows whether the folder is writable
            return ""
    except FileExistsError:
        return f"{folder} is a file, expected a folder"
    except OSError as error:
        return f"cannot write into the folder {folder}: {error.strerror}"


if __name__ == "__main__":
    sys.exit(main())
