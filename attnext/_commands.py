"""Shared by the console scripts: help in two languages, and errors of the standard output."""

from __future__ import annotations

import argparse
import codecs
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from attnext._width import wrap

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

# The texts that argparse itself writes, in the two languages.
_WORDS = {
    "usage": ("usage: ", "用法："),
    "arguments": ("positional arguments", "参数"),
    "options": ("options", "选项"),
    "help": ("show this help message and exit", "显示本帮助并退出"),
}


class _Formatter(argparse.HelpFormatter):
    """Wrap lines by their width on the screen: a Chinese character takes two columns."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(text, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in wrap(text, width - len(indent)))


class Command(argparse.ArgumentParser):
    """A parser whose help is in the language of --lang."""

    def __init__(self, prog: str, words: Sequence[str], description: tuple[str, str]) -> None:
        self.chinese = _wants_chinese(words)
        super().__init__(
            prog, None, self.say(description), formatter_class=_Formatter, add_help=False
        )
        self._positionals.title = self.say(_WORDS["arguments"])
        self._optionals.title = self.say(_WORDS["options"])
        self.add_argument("-h", "--help", action="help", help=self.say(_WORDS["help"]))

    def say(self, text: tuple[str, str]) -> str:
        """Return the English or the Chinese text."""
        return text[self.chinese]

    def format_help(self) -> str:
        """Return the help, with its first word, "usage", in the same language."""
        english, chinese = _WORDS["usage"]
        text = super().format_help()
        return text.replace(english, chinese, 1) if self.chinese else text

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Write the help or an error; argparse's own method ignores a full disk."""
        if message and (stream := file or sys.stderr) is not None:
            stream.write(message)


def _wants_chinese(words: Sequence[str]) -> bool:
    """True if --lang zh is among the words and the standard output can encode Chinese."""
    language = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    language.add_argument("--lang")
    try:
        _WORDS["usage"][1].encode(encoding_of(sys.stdout))
        return bool(language.parse_known_args(words)[0].lang == "zh")
    except (argparse.ArgumentError, UnicodeEncodeError):
        return False


# ---- the standard output -------------------------------------------------------------------------


def run_command(command: Callable[[], int]) -> int:
    """Run a command that writes to the standard output; return its exit status.

    If the output cannot be written, because it is closed or the disk is full, say so on the
    standard error and return 1. If its reader has left, as in `attnext | head`, return 1 silently.
    Ctrl-C ends the process by its signal, as a shell expects.
    """
    try:
        if sys.stdout is None:  # `attnext >&-`
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        try:
            return command()
        finally:  # also after SystemExit: argparse writes the help and does not flush it
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        if error.filename is not None:  # an error of another file
            raise
        _drop_output()
        if sys.stderr is not None:  # print would write to sys.stdout instead
            with suppress(OSError):
                text = f"attnext: cannot write to the standard output: {error.strerror}"
                print(text, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        _drop_output()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    return 1


def _drop_output() -> None:
    """Discard unwritten output. Python would try to write it at exit and print a traceback."""
    with suppress(OSError, AttributeError):  # no file: None or a StringIO
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def encoding_of(stream: TextIO) -> str:
    """Return the stream's encoding; utf-8 for a StringIO, which has none and takes everything."""
    name = getattr(stream, "encoding", None) or "utf-8"
    try:
        return codecs.lookup(name).name
    except LookupError:  # an unknown name
        return "ascii"


def encodable(text: str, encoding: str) -> str:
    """Return the text with escapes for characters that the encoding lacks, as in a path."""
    return text.encode(encoding, "backslashreplace").decode(encoding)
