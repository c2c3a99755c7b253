"""The three drawers of csrc and the one arrow between them: python -> core -> simd."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from compiling import sources
from helpers import REPOSITORY

CSRC = REPOSITORY / "csrc"
FILES = sorted([*CSRC.glob("*/*.c"), *CSRC.glob("*/*.h")])
MAY_INCLUDE = {"python": {"python", "core", "simd"}, "core": {"core", "simd"}, "simd": {"simd"}}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
INTRINSIC = re.compile(r"\b_mm\w*\(|\b__m(?:128|256|512)\w*\b|\bv(?:ld1|st1|fma)q?_\w+\(")

every_file = pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}/{f.name}")


def code_of(file: Path) -> str:
    """The text without comments."""
    return re.sub(r"/\*.*?\*/", " ", file.read_text(), flags=re.DOTALL)


def test_the_drawers() -> None:
    assert {file.parent.name for file in FILES} == {"python", "core", "simd"}
    assert len(FILES) > 30


@every_file
def test_includes_follow_the_arrow(file: Path) -> None:
    drawer = file.parent.name
    for kind, name in INCLUDE.findall(code_of(file)):
        if kind == '"':
            target = (file.parent / name).resolve()
            assert target.is_file(), f"{name} is not relative to {file.name}"
            assert target.parent.name in MAY_INCLUDE[drawer], f"{drawer} includes {name}"


@every_file
def test_only_python_includes_python_and_numpy(file: Path) -> None:
    names = [name for kind, name in INCLUDE.findall(code_of(file)) if kind == "<"]
    if file.parent.name != "python":
        assert not [name for name in names if name == "Python.h" or name.startswith("numpy/")]
        assert not re.search(r"\bPy[A-Z_]\w*", code_of(file))


@every_file
def test_only_vocabularies_name_intrinsics(file: Path) -> None:
    allowed = file.parent.name == "simd" and re.fullmatch(r"v_(avx2|avx512)\.h", file.name)
    assert allowed or not INTRINSIC.search(code_of(file))
    names = [name for _, name in INCLUDE.findall(code_of(file))]
    includes = [name for name in names if name in ("immintrin.h", "arm_neon.h", "x86intrin.h")]
    assert file.parent.name == "simd" or not includes


@every_file
def test_algorithms_have_no_if_on_an_instruction_set(file: Path) -> None:
    on_a_set = r"#\s*(?:el)?if.*__(?:AVX\w*|SSE\w*|x86_64|aarch64|ARM_\w+|FMA)__"
    allowed = file.parent.name == "simd" and not file.name.startswith("kernels_body")
    allowed = allowed and file.name not in (
        "kernels_math.h",
        "kernels_matmul.h",
        "kernels_layout.h",
        "kernels_softmax.h",
        "kernels_softmax_rows.h",
        "kernels_query.h",
        "kernels_additive_query.h",
        "kernels_random.h",
        "kernels_rows.h",
        "kernels_additive.h",
    )
    assert allowed or not re.search(on_a_set, code_of(file))


@every_file
def test_the_core_allocates_nothing(file: Path) -> None:
    calls = r"\b(?:malloc|calloc|realloc|aligned_alloc|posix_memalign|free|alloca)\s*\("
    assert file.parent.name == "python" or not re.search(calls, code_of(file))


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


def test_core_and_simd_compile_without_python_and_without_a_warning(c_objects: list[Path]) -> None:
    assert [path.stem for path in c_objects] == [
        f"{path.parent.name}_{path.stem}" for path in sources("core", "simd")
    ]
