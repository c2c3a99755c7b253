"""What the environment says, for C; and what show_config shows of what C tells it."""

import os
import sys
from typing import Any

from attnext import __version__

_KEPT_MIB = 256  # four results of 64 MiB


def _setting(name: str, standard: int, least: int, most: int) -> int:
    """A whole number of the environment."""
    text = os.environ.get(name, "")
    if not text:
        return standard
    digits = text.lstrip().removeprefix("+")
    if len(digits) < 20 and digits.isascii() and digits.isdigit():
        found = int(digits)
        if least <= found <= most:
            return found
    raise ImportError(f"{name}={text!r}: expected a whole number >= {least}")


def settings(cpus: int, refused: str | None) -> tuple[int, int, bool]:
    """How many threads compute, how many MiB of memory are kept for the next call, and whether
    what needs no reading is read as well, in a run of the tests.

    refused: why not by the instruction set that ATTNEXT_CPU asks for.
    """
    if refused is not None:
        raise ImportError(f"ATTNEXT_CPU={os.environ.get('ATTNEXT_CPU')!r}: {refused}")
    threads = _setting("ATTNEXT_NUM_THREADS", cpus, 1, 2**31 - 1)
    kept = _setting("ATTNEXT_CACHE_MIB", _KEPT_MIB, 0, sys.maxsize >> 19)
    return threads, kept, bool(os.environ.get("ATTNEXT_DEFER"))


def show(mode: Any, facts: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """As dicts, or in words on stdout."""
    from attnext import _wrong  # not at import: it is seldom needed

    if not isinstance(mode, str):
        raise _wrong.kind("mode", mode, "a str")
    sets = facts["instruction_set"]
    sets["available"] = [name for name in sets["available"] if name is not None]
    if mode == "dicts":
        return {"version": __version__, **facts}
    if mode != "stdout":
        raise _wrong.value("mode", mode, "'stdout' or 'dicts'")
    kernels, threads, memory, build = facts.values()
    kept, limit = memory["kept"] >> 20, memory["limit"] >> 20
    print(f"attnext {__version__}")
    print(f"instruction set: {kernels['chosen']}, chosen from {kernels['available']}")
    print(f"threads: {threads['chosen']} (CPUs at hand: {threads['cpus']})")
    print(f"memory kept for large results: {kept} MiB (at most {limit})")
    print(f"built by {build['compiler']} for Python {build['python']}")
    return None
