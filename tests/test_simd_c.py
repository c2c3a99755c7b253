"""The kernels themselves, in C: each instruction set against the scalar table, bit for bit.

tests/c/test_kernels.c is compiled here against csrc/simd alone, with fused multiply-add for the
generic kernels, which must then be exact too; in a larger sample also as the extension is built.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from compiling import compile_objects, link, run
from helpers import REPOSITORY, TESTS, Once

KERNEL_TESTS = TESTS / "c" / "test_kernels.c"
KERNELS_H = (REPOSITORY / "csrc" / "simd" / "kernels.h").read_text()
KERNELS = re.findall(r"^    (?:void|float) \(\*(\w+)\)", KERNELS_H, re.MULTILINE)

# Largest errors in units in the last place, as kernels_math.h and kernels_softcap.h state them,
# over every 1499th float: with fused multiply-add, and with two roundings in its place (SSE2).
FUSED = {"exp2": 1.0, "exp": 1.15, "exp_near": 1.04, "tanh": 2.0, "softcap": 2.5, "slope": 4.2}
UNFUSED = {"exp2": 1.5, "exp": 1.5, "exp_near": 1.5, "tanh": 2.0, "softcap": 2.5, "slope": 4.2}


@pytest.fixture(scope="session")
def program(once: Once, c_objects: list[Path], fused: tuple[str, ...]) -> Path:
    def make(folder: Path) -> None:
        tests = compile_objects([KERNEL_TESTS], folder, "-O1", *fused)
        link(folder / "test_kernels", tests + of_simd(c_objects))

    return once("kernels", make) / "test_kernels"


def of_simd(objects: list[Path]) -> list[Path]:
    return [path for path in objects if path.name.startswith("simd_")]


@pytest.fixture(scope="session")
def unfused_program(once: Once, program: Path, c_objects: list[Path]) -> Path:
    """The same with generic kernels for a target without fused multiply-add, if this may be one."""

    def make(folder: Path) -> None:
        again = [KERNEL_TESTS, REPOSITORY / "csrc" / "simd" / "kernels_generic.c"]
        objects = compile_objects(again, folder, "-Og")
        replaced = {path.name for path in objects}
        kept = [path for path in of_simd(c_objects) if path.name not in replaced]
        link(folder / "test_kernels", objects + kept)

    return once("unfused kernels", make) / "test_kernels"


def test_every_kernel_has_a_test(program: Path) -> None:
    assert len(KERNELS) > 20
    assert run([str(program)]).split() == KERNELS


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_set_equals_scalar(kernel: str, program: Path, instruction_sets: list[str]) -> None:
    """In 2000 of up to 13,000 cases: every size with every option. `.ci/run fuzz` has them all."""
    lines = [line.split() for line in run([str(program), kernel, "2000"]).splitlines()]
    assert [name for name, _, _ in lines] == instruction_sets
    for name, how, count in lines:
        assert how == "equal" or (name == "generic" and "avx2" not in instruction_sets)
        assert int(count) >= 30


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_unfused_generic_kernels_are_near_scalar(kernel: str, unfused_program: Path) -> None:
    lines = run([str(unfused_program), kernel, "generic"]).splitlines()
    assert "generic" in {line.split()[0] for line in lines}


@pytest.fixture(scope="session")
def accuracy(program: Path) -> dict[tuple[str, str], list[float]]:
    return accuracy_of(program)


def accuracy_of(program: Path) -> dict[tuple[str, str], list[float]]:
    """By instruction set and function: the largest error and where it is, or special values."""
    lines = [line.split() for line in run([str(program), "accuracy"]).splitlines()]
    number = float.fromhex
    return {
        (name, what): [number(x) if "x" in x else float(x) for x in rest]
        for name, what, *rest in lines
    }


@pytest.mark.parametrize("function", FUSED)
def test_accuracy_of_exp_tanh_and_softcap(
    function: str, accuracy: dict[tuple[str, str], list[float]], program: Path
) -> None:
    assert_bounds(function, accuracy, program)


@pytest.mark.slow
def test_accuracy_of_unfused_kernels(unfused_program: Path) -> None:
    measured = accuracy_of(unfused_program)
    for function in FUSED:
        assert_bounds(function, measured, unfused_program)


def assert_bounds(
    function: str, accuracy: dict[tuple[str, str], list[float]], program: Path
) -> None:
    unfused = "near" in run([str(program), "prob_tile"])  # what the generic kernels are here
    for (name, what), (error, *_) in accuracy.items():
        if what == function:
            bounds = UNFUSED if name == "generic" and unfused else FUSED
            assert error <= bounds[function], name


def test_special_values_of_exp_and_tanh(
    accuracy: dict[tuple[str, str], list[float]], instruction_sets: list[str]
) -> None:
    for name in instruction_sets:
        *exp2, nan = accuracy[name, "exp2_special"]  # of -inf -200 -126.00001 -126 0 127 128 inf
        assert exp2 == [0, 0, 0, 2.0**-126, 1, 2.0**127, 2.0**127, 2.0**127]
        assert nan != nan
        *tanh, nan = accuracy[name, "tanh_special"]  # of -inf -20 -1e-41 -0 0 1e-41 20 inf
        tiny = float(np.float32(1e-41))
        assert tanh == [-1, -1, -tiny, 0, 0, tiny, 1, 1]
        assert nan != nan
