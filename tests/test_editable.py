"""What an editable install compiles: what a change touches, and no more.

The compiler is a stand-in that writes down what it was asked to compile, and preprocesses it, with
the headers of others empty.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import compiler
from helpers import REPOSITORY

STAND_IN = """#!/bin/sh
case " $* " in
*" -c "*)
    printf '%s\\n' "$*" >>"$COMPILED"
    if [ -z "$NAMES_ALONE" ]; then exec {compiler} -nostdinc "-I$OTHERS" "$@" -E; fi
    while [ "$1" != -o ]; do shift; done
    exec touch "$2" ;;
*" -shared "*)
    for object; do :; done
    while [ "$1" != -o ]; do shift; done
    exec touch "$2" ;;
esac
exec {compiler} "$@"
"""
BUILD = "from setuptools.build_meta import build_editable; build_editable('wheels')"


def includes(file: Path) -> set[Path]:
    """The file and what it includes, and so on."""
    found, new = {file}, {file}
    while new:
        one = new.pop()
        names = re.findall(r'^\s*#\s*include "([^"]+)"', one.read_text(), re.MULTILINE)
        new |= {(one.parent / name).resolve() for name in names} - found
        found |= new
    return found


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[..., list[str]]:
    """In a copy of the clone: the files that an editable install compiles, in order."""
    clone = tmp_path / "clone with a space"
    for name in ("csrc", "attnext"):
        ignore = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(REPOSITORY / name, clone / name, ignore=ignore)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, clone)
    others = tmp_path / "others"
    for file in (clone / "csrc").rglob("*.[ch]"):
        for name in re.findall(r"^\s*#\s*include <(.+)>", file.read_text(), re.MULTILINE):
            (others / name).parent.mkdir(parents=True, exist_ok=True)
            (others / name).touch()
    stand_in, log = tmp_path / "cc", tmp_path / "log"
    stand_in.write_text(STAND_IN.format(compiler=" ".join(compiler())))
    stand_in.chmod(0o755)

    def install(**environment: str) -> list[str]:
        log.write_text("")
        own = {"CC": str(stand_in), "COMPILED": str(log), "OTHERS": str(others), "LD_PRELOAD": ""}
        done = subprocess.run(
            [sys.executable, "-c", BUILD],
            cwd=clone,
            env=os.environ | own | environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return sorted(re.findall(r" -c csrc/(\S+)", log.read_text()))

    install.clone, install.log = clone, log  # type: ignore[attr-defined]
    return install


def test_an_editable_install_compiles_what_a_change_touches(
    compiled: Callable[..., list[str]],
) -> None:
    csrc: Path = compiled.clone.resolve() / "csrc"  # type: ignore[attr-defined]
    everything = sorted(str(file.relative_to(csrc)) for file in csrc.glob("*/*.c"))
    everything = [name for name in everything if not name.startswith("web/")]  # a door to pages
    assert compiled() == everything
    touched = {csrc / name for name in ("core/pairs.h", "python/py_options.def", "os/memory.c")}
    for file in touched:
        file.touch()
    (csrc / "core" / "new.c").write_text('#include "pairs.h"\n')
    dependants = [name for name in everything if touched & includes(csrc / name)]
    assert 20 < len(dependants) < len(everything) - 20
    assert compiled() == sorted([*dependants, "core/new.c"])
    (csrc / "core" / "new.c").unlink()
    assert compiled() == []
    # As objects of two commands do not mix; nobody asks afterwards what these were made of.
    assert compiled(CFLAGS="-DOTHER", NAMES_ALONE="1") == everything


FORBIDDEN = {
    "CC": "-ffast-math -ffp-contract=fast",
    "CFLAGS": "-Ofast -fassociative-math -fno-signed-zeros -fno-trapping-math -ffp-model=fast",
    "CPPFLAGS": "-ffinite-math-only -freciprocal-math",
    "LDFLAGS": "-funsafe-math-optimizations -mdaz-ftz",
}
FORBIDDEN_X86 = {"CFLAGS": "-march=native -mfma -mavx2 -mfpmath=387 -mno-sse2"}


def test_options_that_change_results_are_removed(
    compiled: Callable[..., list[str]], tmp_path: Path
) -> None:
    """From all places that they come from; what is allowed stays. .ci/steps/compilers compares the
    bits of such builds."""
    given = dict(FORBIDDEN)
    if platform.machine() == "x86_64":
        given["CFLAGS"] += " " + FORBIDDEN_X86["CFLAGS"]
    given["CC"] = f"{tmp_path / 'cc'} {given['CC']}"
    given["CFLAGS"] += " -DALLOWED -fno-plt"
    forbidden = {word for words in given.values() for word in words.split()}
    forbidden -= {str(tmp_path / "cc"), "-DALLOWED", "-fno-plt"}
    assert compiled(NAMES_ALONE="1", **given)
    log: Path = compiled.log  # type: ignore[attr-defined]
    for line in log.read_text().splitlines():
        words = line.split()
        assert not forbidden & set(words), line
        assert {"-DALLOWED", "-fno-plt", "-fno-fast-math", "-ffp-contract=off"} <= set(words)
