"""The drawers of csrc and the one arrow between them: python -> core -> simd.

tensors stands before python, whose module alone knows of it. web is another door, to pages. os
stands aside: the others use it, and it uses nothing. What is allowed is listed here, all else is
forbidden, so that a new file is judged by the rules of its drawer.
"""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from compiling import WITHOUT_PYTHON, run, sources
from helpers import REPOSITORY

CSRC = REPOSITORY / "csrc"
FILES = sorted(
    path for path in CSRC.rglob("*") if path.is_file() and path.suffix in {".c", ".h", ".def"}
)

MAY_INCLUDE = {
    "python": {"python", "core", "simd", "os/parallel.h", "os/cpu_count.h", "os/memory.h"},
    "python/py_module.c": {"tensors/tensors.h"},
    "tensors": {"tensors", "python/py_attnext.h", "core/arena.h"},
    "core": {"core", "simd", "os/parallel.h"},
    "simd": {"simd"},
    "os": {"os"},
    "web": {"web", "core", "os/parallel.h"},
    "web/serial.c": {"simd/kernels.h"},
}
DOORS = {"python", "tensors"}  # to Python, all of it
EVERYWHERE = {f"{name}.h" for name in "float limits math stdbool stddef stdint string".split()}
MAY_INCLUDE_OF_THE_SYSTEM = {
    "python": {"Python.h", "stdarg.h", "stdio.h", "stdlib.h", "structmember.h"}
    | {"numpy/arrayobject.h", "numpy/arrayscalars.h"},
    "tensors": set(),
    "core": set(),
    "simd": set(),
    "simd/dispatch.c": {"cpuid.h", "stdio.h"},
    "simd/kernels_avx2.c": {"immintrin.h"},
    "simd/kernels_avx512.c": {"immintrin.h"},
    "simd/v_avx2.h": {"immintrin.h"},
    "simd/v_avx512.h": {"immintrin.h"},
    "simd/v_wasm.h": {"wasm_simd128.h"},
    "web": set(),
    "os": {"fcntl.h", "fenv.h", "pthread.h", "sched.h", "signal.h", "stdatomic.h", "stdio.h"}
    | {"stdlib.h", "sys/mman.h", "time.h", "unistd.h", "windows.h"},
    "os/memory.c": {"sanitizer/asan_interface.h"},
}
MAY_NAME_INTRINSICS = {"simd/v_avx2.h", "simd/v_avx512.h", "simd/v_wasm.h"}

# Which compiler, machine or system it is: what a file may make a condition of. Macros that do not
# begin with an underscore are the project's own, or CPython's.
MAY_ASK_ABOUT = {
    "python/py_config.c": {"__clang__", "__GNUC__"},
    "simd/dispatch.c": {"__x86_64__", "__wasm_simd128__"},
    "simd/kernels.h": {"__x86_64__", "__wasm_simd128__"},
    "simd/float_rules.h": {
        "__FAST_MATH__",
        "__FINITE_MATH_ONLY__",
        "__FLT_EVAL_METHOD__",
        "__x86_64__",
    },
    "simd/kernels_avx2.c": {"__x86_64__", "__clang__"},
    "simd/kernels_avx512.c": {"__x86_64__", "__clang__"},
    "simd/kernels_wasm.c": {"__wasm_simd128__"},
    "simd/kernels_body.h": {"__clang__"},
    "simd/kernels_matmul.h": {"__clang__"},
    "simd/v_scalar.h": {"__clang__"},
    "simd/v_generic.h": {"__FP_FAST_FMAF", "__FMA__", "__ARM_FEATURE_FMA"},
    "os": {"_GNU_SOURCE", "_WIN32", "__linux__", "__wasm__"},
    "os/memory.c": {"__SANITIZE_ADDRESS__"},
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
CONDITION = re.compile(r"^\s*#\s*(?:el)?if.*(?:\\\n.*)*", re.MULTILINE)
INTRINSIC = re.compile(
    r"\b_mm\w*\(|\b__m(?:128|256|512)\w*\b|\bv(?:ld1|st1|fma)q?_\w+\(|\bwasm_\w+\(|\bv128_t\b"
)
SYSTEM_CALL = re.compile(r"\b(?:pthread_\w+|sched_\w+|clock_\w+|sysconf|fork)\b")
ALLOCATION = re.compile(r"\b(?:[mc]alloc|realloc|aligned_alloc|posix_memalign|free|alloca)\s*\(")


def code_of(file: Path) -> str:
    """The text without comments."""
    return re.sub(r"/\*.*?\*/", " ", file.read_text(), flags=re.DOTALL)


def allowed(table: dict[str, set[str]], file: Path) -> set[str]:
    """What the table allows to the file's drawer, and to the file itself."""
    drawer = file.parent.name
    return table.get(drawer, set()) | table.get(f"{drawer}/{file.name}", set())


def test_the_drawers() -> None:
    assert {file.parent.relative_to(CSRC).as_posix() for file in FILES} == {
        name for name in MAY_INCLUDE if "/" not in name
    }
    assert len(FILES) > 30


@pytest.mark.parametrize("table", [MAY_INCLUDE, MAY_INCLUDE_OF_THE_SYSTEM, MAY_ASK_ABOUT])
def test_the_lists_name_files_that_are_there(table: dict[str, set[str]]) -> None:
    assert not [name for name in table if not (CSRC / name).exists()]


def test_includes_follow_the_arrow() -> None:
    for file in FILES:
        for kind, name in INCLUDE.findall(code_of(file)):
            if kind == '"':
                target = (file.parent / name).resolve()
                assert target.is_file(), f"{name} is not relative to {file.name}"
                one_of = {target.parent.name, f"{target.parent.name}/{target.name}"}
                assert one_of & allowed(MAY_INCLUDE, file), (file, name)
            else:
                may = EVERYWHERE | allowed(MAY_INCLUDE_OF_THE_SYSTEM, file)
                assert name in may, (file, name)


def test_what_only_some_files_name() -> None:
    """Python, intrinsics, an operating system, allocations; and on what a condition may depend."""
    for file in FILES:
        name, code = f"{file.parent.name}/{file.name}", code_of(file)
        in_python, in_os = file.parent.name in DOORS, file.parent.name == "os"
        said = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', code)  # help() may name PyTorch
        assert in_python or not re.search(r"\bPy[A-Z_]\w*", said), name
        assert name in MAY_NAME_INTRINSICS or not INTRINSIC.search(code), name
        assert in_os or not SYSTEM_CALL.search(code), name
        # os/memory.c is where memory comes from: of the heap, where there are no pages
        assert in_python or file.name == "memory.c" or not ALLOCATION.search(code), name
        asked = re.findall(r"\b_\w+", "\n".join(CONDITION.findall(code)))
        assert set(asked) <= allowed(MAY_ASK_ABOUT, file), name


def test_file_names_are_unique() -> None:
    names = [file.name for file in FILES]
    assert sorted(set(names)) == sorted(names)


def test_vocabularies_define_the_same_names_in_the_same_order() -> None:
    """Helpers of one vocabulary's own come in between."""

    def names(file: Path) -> list[str]:
        return re.findall(r"^V_FN [^(]*?\b([vm]_\w+)\(", code_of(file), re.MULTILINE)

    specified = names(CSRC / "simd" / "v_scalar.h")
    assert len(specified) > 20
    for file in CSRC.glob("simd/v_*.h"):
        assert [name for name in names(file) if name in specified] == specified, file.name


def test_all_but_python_compiles_without_python_and_without_a_warning(
    c_objects: list[Path],
) -> None:
    assert [path.stem for path in c_objects] == [
        f"{path.parent.name}_{path.stem}" for path in sources(*WITHOUT_PYTHON)
    ]


def test_the_files_of_the_core_go_in_no_circle(c_objects: list[Path]) -> None:
    """By the symbols they define and use: each can be read after those it calls."""
    defines: dict[str, str] = {}
    uses: dict[str, set[str]] = {}
    for path in c_objects:
        if path.stem.startswith("core_"):
            uses[path.stem] = set()
            for line in run(["nm", str(path)]).splitlines():
                *_, kind, name = line.split()
                if kind == "U":
                    uses[path.stem].add(name)
                elif kind.isupper():
                    defines[name] = path.stem
    assert len(defines) > 50
    TopologicalSorter(
        {
            file: {defines[name] for name in names & defines.keys()} - {file}
            for file, names in uses.items()
        }
    ).prepare()  # raises CycleError, which names the files


def test_the_files_of_attnext_import_each_other_in_no_circle() -> None:
    """When they run: what is imported for its type alone does not count."""

    class Imports(ast.NodeVisitor):
        def __init__(self, package: list[str]) -> None:
            self.package, self.names = package, set[str]()

        def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
            package = self.package[: len(self.package) - node.level + 1] if node.level else []
            module = ".".join([*package, *filter(None, [node.module])])
            self.names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}

        def visit_If(self, node: ast.If) -> None:
            if ast.unparse(node.test) != "TYPE_CHECKING":
                self.generic_visit(node)

    files = {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts): path
        for path in REPOSITORY.glob("attnext/**/*.py")
        if path.name != "__init__.py"  # which gathers what the others have
    }
    imports = {}
    for name, path in files.items():
        visitor = Imports(name.split(".")[:-1])
        visitor.visit(ast.parse(path.read_text(encoding="utf-8")))
        imports[name] = visitor.names & files.keys() - {name}
    assert sum(map(len, imports.values())) > 100
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the files
