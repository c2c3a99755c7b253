"""The console script `attnext`, and ``python -m attnext``: the tour."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile

import attnext
from attnext._tour import run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tour; return 0 if every known answer was found, 1 if one was missed.

    Arguments that make no sense, and figures that cannot be written, exit with 2 before it starts.
    Output that cannot be written ends it with 1, Ctrl-C as that signal does.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["lab"]:
        return import_module("attnext.lab.handout").main(words[1:])  # type: ignore[no-any-return]
    parser = argparse.ArgumentParser(
        prog="attnext",
        description="A tour of attnext in the terminal: attention computed, checked against known "
        "answers and, where it is installed, PyTorch; then a regression on real measurements, and "
        "timings. Takes a few seconds. Exits with 1 if a known answer is missed.",
        epilog="Colours appear on a terminal only; set NO_COLOR to have none. `attnext lab DIR` "
        "writes notebooks and assignments into a folder: `attnext lab --help`.",
    )
    parser.add_argument("--version", action="version", version=f"attnext {attnext.__version__}")
    parser.add_argument(
        "--lang",
        choices=("en", "zh"),
        default="en",
        help="the language of the text: English, whatever the locale, or Chinese",
    )
    parser.add_argument(
        "--plots",
        metavar="DIR",
        type=Path,
        help="also draw the figures, labelled in English, into PNG files in this folder, which is "
        "made if needed; needs matplotlib",
    )
    arguments = parser.parse_args(words)
    if arguments.plots is not None:
        obstacle = _prepare(arguments.plots)
        if obstacle:
            parser.error(f"argument --plots: {obstacle}")
    try:
        if sys.stdout is None:  # `attnext >&-`
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        status = run(sys.stdout, arguments.lang, arguments.plots)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `attnext | head`: the reader has seen enough
        _drop_output()
    except OSError as error:  # a full disk
        _drop_output()
        print(f"attnext: cannot write: {error.strerror}", file=sys.stderr)
    except KeyboardInterrupt:  # ended by the signal, as a shell expects to see it
        _drop_output()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    return 1


def _drop_output() -> None:
    """Have what is still to be written go nowhere, or Python would try again at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
