"""Read the environment variables for C, and define the functions that show and change settings."""

import os
import sys
from typing import Any

from attnext import __version__

_KEPT_MIB = 256  # four results of 64 MiB


def _setting(name: str, standard: int, least: int, most: int) -> int:
    """Return the whole number in an environment variable, or the standard value."""
    text = os.environ.get(name, "")
    if not text:
        return standard
    digits = text.lstrip().removeprefix("+")
    if len(digits) < 20 and digits.isascii() and digits.isdigit():
        found = int(digits)
        if least <= found <= most:
            return found
    raise ImportError(f"{name} is {text!r}, expected a whole number >= {least}")


def settings(cpus: int, refused: str | None, core: Any) -> tuple[int, int, bool]:
    """Return the number of threads, the MiB of memory to keep for later calls, and a test flag.

    The test flag makes C read all arguments in Python. refused: an error message if the instruction
    set in ATTNEXT_CPU cannot be used, otherwise None.
    """
    fill(core)
    if refused is not None:
        raise ImportError(f"ATTNEXT_CPU={os.environ.get('ATTNEXT_CPU')!r}: {refused}")
    threads = _setting("ATTNEXT_NUM_THREADS", cpus, 1, 2**31 - 1)
    kept = _setting("ATTNEXT_CACHE_MIB", _KEPT_MIB, 0, sys.maxsize >> 19)
    return threads, kept, bool(os.environ.get("ATTNEXT_DEFER"))


# ---- the functions -----------------------------------------------------------------------------


def _functions(core: Any) -> tuple[Any, ...]:
    """Return the functions for this compiled module; a process may load several."""

    def set_num_threads(n: Any) -> None:
        from attnext import _reading  # not at import: it is seldom needed

        core._threads(_reading.between("n", n, 1, 2**31 - 1, "1 <= n <= 2147483647"))

    def get_num_threads() -> Any:
        return core._threads(0)

    def empty_cache() -> None:
        core._release()

    def show_config(mode: Any = "stdout") -> dict[str, Any] | None:
        return _show(mode, core._facts())

    return set_num_threads, get_num_threads, empty_cache, show_config


def fill(core: Any) -> None:
    """Put the functions into the compiled module."""
    for function in _functions(core):
        function.__module__, function.__qualname__ = core.__name__, function.__name__
        function.__annotations__ = {}  # so that help() shows them like functions in C
        setattr(core, function.__name__, function)


def _show(mode: Any, facts: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Return the facts as dicts, or print them."""
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
    print(f"threads: {threads['chosen']} (available CPUs: {threads['cpus']})")
    print(f"memory kept for large results: {kept} MiB (at most {limit})")
    print(f"built by {build['compiler']} for Python {build['python']}")
    return None
