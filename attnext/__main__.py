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
        "Show a tour of attnext in the terminal. It computes attention and compares the results "
        "with known answers and, if it is installed, with PyTorch. Then it fits a regression to "
        "real measurements and prints timings. The exit status is 1 if a result differs from its "
        "known answer.",
        "在终端里演示attnext：计算注意力，把结果与已知答案比较，装有PyTorch时也与PyTorch比较；"
        "然后用真实的测量数据做回归，最后比较用时。若有结果与答案不符，退出码为1。",
    ),
    "epilog": (
        "Colours are used on a terminal only; set the environment variable NO_COLOR to turn them "
        "off. `attnext lab DIR` writes notebooks and assignments into a folder; see "
        "`attnext lab --help`.",
        "只有在终端里才使用颜色；设置环境变量NO_COLOR可以关闭颜色。`attnext lab DIR --lang zh`"
        "把笔记本和作业写入一个目录，详见`attnext lab --help`。",
    ),
    "version": ("show program's version number and exit", "显示版本号并退出"),
    "lang": (
        "language of the text: en (English, the default for any locale) or zh (Chinese)",
        "文字的语言：en为英文（与系统的语言设置无关），zh为中文",
    ),
    "plots": (
        "also save the figures as PNG files in this folder; the folder is created if needed, and "
        "files of the same names are replaced; requires matplotlib",
        "同时把图存为PNG文件，放入这个目录（没有则新建，同名文件会被替换）；需要matplotlib",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tour, or `attnext lab`; return the exit status.

    The tour returns 0 if every known answer was found and 1 if one was missed. Wrong arguments and
    a folder that cannot be written exit with 2, before anything is done. An output that cannot be
    written ends with 1, Ctrl-C with its signal.
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
    """What the words may be."""
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
    """Make the folder for the figures; return why there can be none, or nothing."""
    try:
        import_module("matplotlib")
    except ImportError:
        return (
            "the figures are drawn by matplotlib, which is not installed; it comes with "
            "`pip install matplotlib`, or, where attnext was cloned, `pip install '.[lab]'`"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(
            dir=folder
        ):  # asks the file system itself: modes are not the whole story
            return ""
    except FileExistsError:
        return f"{folder} is a file, expected a folder"
    except OSError as error:
        return f"cannot write into the folder {folder}: {error.strerror}"


if __name__ == "__main__":
    sys.exit(main())
