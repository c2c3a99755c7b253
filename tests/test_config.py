"""show_config, the choice of instruction set at import, and importing from the source folder."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import REPOSITORY, import_errors, python_environment, run_python

import attnext

SETS = ["scalar", "generic", "avx2", "avx512", "wasm"]  # narrowest first


def test_dicts() -> None:
    config = attnext.show_config("dicts")
    assert config.keys() == {"version", "instruction_set", "threads", "memory", "build"}
    assert config["version"] == attnext.__version__
    available = config["instruction_set"]["available"]
    assert available == [name for name in SETS if name in available]
    assert available[:2] == ["scalar", "generic"]
    assert config["instruction_set"]["chosen"] in available
    assert config["threads"]["chosen"] == attnext.get_num_threads()
    assert config["threads"]["cpus"] >= 1
    assert config["build"]["compiler"] and config["build"]["python"]


def test_each_call_returns_a_dict_of_its_own() -> None:
    attnext.show_config("dicts")["instruction_set"]["available"].clear()
    assert attnext.show_config("dicts")["instruction_set"]["available"]


def test_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert attnext.show_config() is None
    text = capsys.readouterr().out
    assert attnext.show_config(mode="stdout") is None
    assert capsys.readouterr().out == text
    config = attnext.show_config("dicts")
    for part in (config["version"], config["instruction_set"]["chosen"], "threads"):
        assert part in text


def chosen(**environment: str) -> str:
    code = "import attnext; print(attnext.show_config('dicts')['instruction_set']['chosen'])"
    return run_python("-c", code, **environment).stdout.strip()


def test_every_available_set_can_be_chosen(instruction_sets: list[str]) -> None:
    for name in instruction_sets:
        assert chosen(ATTNEXT_CPU=name) == name


def test_the_widest_set_is_the_default(instruction_sets: list[str]) -> None:
    assert chosen() == chosen(ATTNEXT_CPU="") == instruction_sets[-1]


def test_an_unknown_set_is_an_import_error_that_lists_the_choices(
    instruction_sets: list[str],
) -> None:
    for wrong, message in import_errors(
        "ATTNEXT_CPU", ["sse2", "AVX2", "avx2 ", "1", "scalar,avx2"]
    ).items():
        assert message == (
            f"ATTNEXT_CPU={wrong!r}: unknown instruction set; this CPU can use: "
            + " ".join(instruction_sets)
        )


def test_a_set_that_failed_may_be_chosen_again() -> None:
    code = """
import os
try:
    import attnext
except ImportError:
    os.environ["ATTNEXT_CPU"] = "scalar"
    import attnext
print(attnext.show_config("dicts")["instruction_set"]["chosen"])
"""
    assert run_python("-c", code, ATTNEXT_CPU="sse2").stdout == "scalar\n"


def test_the_set_is_chosen_once_a_process(instruction_sets: list[str]) -> None:
    """A memory keeps its keys as the kernels that made it read them."""
    code = """
import importlib, os, sys
import numpy as np
from attnext import _core

x = np.random.default_rng(0).standard_normal((1, 40, 24), dtype=np.float32)
layer = _core.MultiHeadAttention(24, 24, 24, 72, 2, rng=0).eval()
memory = layer.memory(x[:, :39], x[:, :39])
expected = layer(x, x, x)
del sys.modules["attnext._core"]
os.environ["ATTNEXT_CPU"] = "scalar"
again = importlib.import_module("attnext._core")
memory.append(x[:, 39:], x[:, 39:])
assert np.array_equal(layer(x, memory), expected)
print(again is _core, again.show_config("dicts")["instruction_set"]["chosen"])
"""
    widest = instruction_sets[-1]
    assert run_python("-c", code, ATTNEXT_CPU=widest).stdout == f"False {widest}\n"


def test_importing_from_the_source_folder_says_what_to_do(tmp_path: Path) -> None:
    """The folder attnext/ of a clone shadows the installed package; it has no compiled module."""
    not_compiled = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(REPOSITORY / "attnext", tmp_path / "attnext", ignore=not_compiled)
    done = subprocess.run(
        [sys.executable, "-c", "import attnext"],
        cwd=tmp_path,
        env={**python_environment(), "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: attnext is being imported from a source folder")
    assert "pip install ." in last and "pip install -e ." in last


def test_public_names() -> None:
    assert sorted(attnext.__all__) == sorted(set(attnext.__all__))
    for name in attnext.__all__:
        assert hasattr(attnext, name)


def test_importing_attnext_imports_nothing_that_numpy_does_not() -> None:
    code = """
import __future__, numpy, sys
there = set(sys.modules)
import attnext
print([name for name in sys.modules if name not in there and name.split(".")[0] != "attnext"])
"""
    assert run_python("-c", code).stdout == "[]\n"


ALONE = ("explain", "kernel_regression", "lab", "reference", "testing")  # need NumPy alone
SUBMODULES = (*ALONE, "dask", "plot", "torch")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX's")
def test_a_submodule_loads_when_it_is_first_used() -> None:
    """Each in a copy of one process, in which none is loaded."""
    code = f"""
import os, sys, attnext
for name in {SUBMODULES}:
    assert f"attnext.{{name}}" not in sys.modules
    assert name in dir(attnext)
    if os.fork():
        assert os.wait()[1] == 0, name
    else:
        submodule = getattr(attnext, name)
        print(submodule.__name__, bool(submodule.__all__), flush=True)
        os._exit(0)
"""
    expected = [f"attnext.{name} True" for name in SUBMODULES]
    assert run_python("-c", code).stdout.splitlines() == expected


def test_a_submodule_whose_library_is_missing_is_not_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda library: None)
    offered = {name for name in SUBMODULES if name in dir(attnext)}
    assert offered == set(ALONE)
    with pytest.raises(AttributeError, match="module 'attnext' has no attribute 'jax'"):
        _ = attnext.jax  # type: ignore[attr-defined]
