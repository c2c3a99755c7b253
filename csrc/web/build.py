"""The core and its door to a page, compiled to one WebAssembly module that imports nothing:

python csrc/web/build.py attnext.wasm

by emscripten's compiler if there is one, else by clang as the package ziglang has it. Both give the
same numbers to the bit; emscripten's module is a tenth smaller.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

CSRC = Path(__file__).resolve().parent.parent
FLAGS = ["-std=c11", "-Os", "-msimd128", "-ffp-contract=off", "-fno-math-errno"]
FLAGS += ["-Wall", "-Wextra", "-Werror"]
FUNCTIONS = ["web_attention", "web_workspace", "web_masked_softmax"]
EXPORTS = [f"-Wl,--export={name}" for name in [*FUNCTIONS, "__heap_base"]]

EMSCRIPTEN = ["emcc", "--no-entry", "-sSTANDALONE_WASM", "-sALLOW_MEMORY_GROWTH"]
ZIG = [
    sys.executable,
    "-P",
    "-m",
    "ziglang",
    "cc",
    "-target",
    "wasm32-wasi",
    "-mexec-model=reactor",
]


def compiler() -> list[str] | None:
    """The command and what it needs to be told of a page; None where there is no such compiler."""
    if shutil.which("emcc"):
        return EMSCRIPTEN
    return ZIG if importlib.util.find_spec("ziglang") else None


def build(target: Path) -> None:
    """Compiles csrc/core, csrc/web and the one vocabulary of SIMD128."""
    command = compiler()
    if command is None:
        sys.exit("there is no compiler for WebAssembly: pip install ziglang, or install emscripten")
    sources = [*sorted(CSRC.glob("core/*.c")), *sorted(CSRC.glob("web/*.c"))]
    sources.append(CSRC / "simd" / "kernels_wasm.c")
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, *FLAGS, *EXPORTS, *map(str, sources), "-o", str(target)], check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
