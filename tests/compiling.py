"""Compiling the C tests and csrc with the compiler that Python was built with."""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path

from helpers import REPOSITORY, TESTS

WITHOUT_PYTHON = ("core", "os", "simd")  # the drawers of csrc that compile without it


def compiler() -> list[str]:
    """The C compiler: $CC, or the one that sysconfig names, without flags."""
    named = shlex.split(sysconfig.get_config_var("CC") or "cc")  # which may be ccache gcc
    without = list(takewhile(lambda word: not word.startswith("-"), named))
    return shlex.split(os.environ.get("CC", "")) or without


def sources(*drawers: str) -> list[Path]:
    return [
        path for drawer in drawers for path in sorted((REPOSITORY / "csrc" / drawer).glob("*.c"))
    ]


def compile_objects(files: list[Path], folder: Path, *flags: str) -> list[Path]:
    """Each file compiled to an object, two at a time; a warning with -Werror is a failure."""

    def compile_one(file: Path) -> Path:
        target = folder / f"{file.parent.name}_{file.stem}.o"
        run([*compiler(), "-std=c11", *flags, "-c", str(file), "-o", str(target)])
        return target

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(compile_one, files))


def link(program: Path, objects: list[Path], *flags: str) -> Path:
    run([*compiler(), *map(str, objects), "-o", str(program), *flags, "-lm"])
    return program


def shared_library(target: Path) -> None:
    """Of the C file of that name in tests/c."""
    source = TESTS / "c" / target.with_suffix(".c").name
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    run([*compiler(), *flags, str(source), "-o", str(target), "-ldl"])


def preloading(library: Path) -> dict[str, str]:
    """The environment in which a process begins with this library; a sanitizer's stays first."""
    others = os.environ.get("LD_PRELOAD")
    return {"LD_PRELOAD": " ".join(filter(None, [others, str(library)]))}


def run(command: list[str]) -> str:
    """The standard output of a command that has to succeed; its messages if it does not."""
    alone = {**os.environ, "LD_PRELOAD": ""}  # what Python may have been given is not for compilers
    done = subprocess.run(command, capture_output=True, text=True, env=alone)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout
