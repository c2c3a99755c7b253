"""What the console scripts say of themselves: help in English, and in Chinese with --lang zh."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from attnext._width import wrap

# What argparse would write of its own, in the two languages.
_WORDS = {
    "usage": ("usage: ", "用法："),
    "arguments": ("positional arguments", "参数"),
    "options": ("options", "选项"),
    "help": ("show this help message and exit", "显示本帮助并退出"),
}


class _Formatter(argparse.HelpFormatter):
    """Lines are as long as they are wide: a Chinese character takes two columns."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(text, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in wrap(text, width - len(indent)))


class Command(argparse.ArgumentParser):
    """A parser that speaks the language that its words ask for."""

    def __init__(self, prog: str, words: Sequence[str], description: tuple[str, str]) -> None:
        self.chinese = _wants_chinese(words)
        super().__init__(
            prog, None, self.say(description), formatter_class=_Formatter, add_help=False
        )
        self._positionals.title = self.say(_WORDS["arguments"])
        self._optionals.title = self.say(_WORDS["options"])
        self.add_argument("-h", "--help", action="help", help=self.say(_WORDS["help"]))

    def say(self, text: tuple[str, str]) -> str:
        """The English or the Chinese one."""
        return text[self.chinese]

    def format_help(self) -> str:
        """The help, with its first word in the language too."""
        english, chinese = _WORDS["usage"]
        text = super().format_help()
        return text.replace(english, chinese, 1) if self.chinese else text


def _wants_chinese(words: Sequence[str]) -> bool:
    """Whether --lang zh stands among the words, and the output can hold it."""
    language = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    language.add_argument("--lang")
    try:
        _WORDS["usage"][1].encode(getattr(sys.stdout, "encoding", None) or "utf-8")
        return bool(language.parse_known_args(words)[0].lang == "zh")
    except (argparse.ArgumentError, UnicodeEncodeError):
        return False
