"""docs/adding_a_scoring_function.md does what it says: its C is compiled here, and runs.

The page names four changes, and exactly these are made in a copy of the sources: its blocks of C
and of Python become the two files, its two diffs add the two lines. Its command compiles the C.
tests/c/run_bilinear.c then computes problems with the new score; the formulas that it and the slow
twin are held against are below.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from compiling import compile_objects, compiler, link, run
from helpers import (
    EMPTY_ROWS,
    FUSED_GENERIC,
    HANG,
    REPOSITORY,
    Array,
    Problem,
    assert_all_accurate,
    assert_same_bits,
    check_padding,
    make_problem,
    over_groups,
)
from numpy.typing import DTypeLike

PAGE = (REPOSITORY / "docs" / "adding_a_scoring_function.md").read_text(encoding="utf-8")
DRIVER = Path("tests", "c", "run_bilinear.c")
FLAGS = ("-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-O2")


# ---- the page and what it is made into -----------------------------------------------------------


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def patched(text: str, diff: str) -> str:
    """The text with the lines of the diff that begin with + put where the diff has them."""
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] == " ")
    after = "".join(line[1:] for line in lines)
    assert {line[0] for line in lines} == {" ", "+"}
    assert text.count(before) == 1, f"not there, or more than once:\n{before}"
    return text.replace(before, after)


def places() -> dict[str, list[str]]:
    """What the table at the head of the page names: the new files, and where their lines go."""
    rows = re.findall(r"^\| [^|]* \| `([^`]+)` \| in `([^`]+)` \|$", PAGE, re.MULTILINE)
    return {"files": [file for file, _ in rows], "lines": [line for _, line in rows]}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with the changes that the page names."""
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(REPOSITORY / "csrc", copy / "csrc")
    reference = Path("attnext", "reference")
    shutil.copytree(REPOSITORY / reference, copy / reference)
    (copy / DRIVER).parent.mkdir(parents=True)
    shutil.copy(REPOSITORY / DRIVER, copy / DRIVER)
    for file, text in zip(places()["files"], map("\n".join, contents()), strict=True):
        assert not (copy / file).exists()
        (copy / file).write_text(text)
    for file, diff in zip(places()["lines"], blocks("diff"), strict=True):
        (copy / file).write_text(patched((copy / file).read_text(), diff))
    return copy


def contents() -> list[list[str]]:
    """The blocks of the two files."""
    return [blocks("c"), blocks("python")]


@pytest.fixture(scope="module")
def program(copy: Path, c_objects: list[Path]) -> Path:
    """tests/c/run_bilinear.c with the score of the page."""
    [command] = blocks("sh")
    assert command.startswith("cc ")
    command = shlex.join(compiler()) + command.removeprefix("cc")
    run(["sh", "-c", f"cd {shlex.quote(str(copy))} && {command}"])
    driver = compile_objects([copy / DRIVER], copy, *FLAGS)
    return link(copy / "run_bilinear", [copy / "score_bilinear.o", *driver, *c_objects], "-pthread")


@pytest.fixture(scope="module")
def reference(copy: Path) -> Iterator[ModuleType]:
    """attnext.reference with the twin of the page, loaded by its path."""
    name = "reference_with_bilinear"
    path = copy / "attnext" / "reference" / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for loaded in [key for key in sys.modules if key.split(".")[0] == name]:
        del sys.modules[loaded]


# ---- problems ------------------------------------------------------------------------------------


def bilinear_problem(
    rng: np.random.Generator, *, Dk: int = 33, masked: bool = True, **given: Any
) -> Problem:
    """masked: by lengths and a mask, with empty rows and keys that nobody attends to."""
    given = {"M": 70, "N": 300, "D": 19, "Dv": 17, "empty_rows": "uniform"} | given
    problem = make_problem("dot", rng, **given)
    x = problem.inputs
    *lead, M, Dq = x["queries"].shape
    *kv_lead, N, _ = x["keys"].shape
    x["keys"] = rng.standard_normal((*kv_lead, N, Dk), dtype=np.float32)
    W = rng.standard_normal((Dk, Dq), dtype=np.float32)
    x["W"] = W / np.float32(Dk * Dq) ** np.float32(0.5)
    if masked:
        lens = rng.integers(0, N, size=(*lead, M))
        lens[..., 1::5] = 0
        mask = rng.random((*lead, M, N)) < 0.8
        mask[..., 1] = False
        mask[..., 2::7, :] = False
        problem = problem.but(valid_lens=lens, mask=mask)
    return replace(problem, score="bilinear")


def poisoned(problem: Problem) -> Problem:
    """NaN in everything that takes no part."""
    x = {name: a.copy() for name, a in problem.inputs.items()}
    live = problem.takes_part()
    empty = ~live.any(axis=-1)
    by_query_head: Array = np.asarray(live.any(axis=-2))
    used = over_groups(np.any, by_query_head[..., None], (*x["keys"].shape[:-1], 1))[..., 0]
    assert empty.any() and not used.all()
    x["queries"][empty] = np.nan
    x["keys"][~used] = np.nan
    if problem.options["empty_rows"] != "uniform":  # those rows pool every value
        x["values"][~used] = np.nan
    return Problem(problem.score, x, problem.options, problem.grads)


def compute(
    program: Path, problem: Problem, instruction_set: str = "scalar", threads: int = 1, *more: str
) -> dict[str, Array]:
    """What the program makes of the problem."""
    x, options, g = problem.inputs, problem.options, problem.grads
    *lead, M, Dq = x["queries"].shape
    *kv_lead, N, Dk = x["keys"].shape
    Dv = x["values"].shape[-1]
    group = lead[-1] // kv_lead[-1] if options.get("enable_gqa") else 1
    lens, mask = options.get("valid_lens"), options.get("mask")
    mode = EMPTY_ROWS.index(options["empty_rows"])
    B = int(np.prod(lead, dtype=int))
    head = [B, group, M, N, Dq, Dk, Dv, mode, lens is not None, mask is not None]
    floats = [x["W"], x["queries"], x["keys"], x["values"]]
    floats += [g["grad_output"], g["grad_weights"], g["grad_lse"]]
    data = np.array(head, dtype=np.int64).tobytes()
    data += b"".join(a.astype(np.float32).tobytes() for a in floats)
    data += b"" if lens is None else lens.astype(np.int64).tobytes()
    data += b"" if mask is None else mask.astype(np.uint8).tobytes()

    command = [str(program), instruction_set, str(threads), *more]
    done = subprocess.run(command, input=data, capture_output=True, timeout=HANG)
    assert done.returncode == 0, done.stderr.decode()
    shapes: dict[str, tuple[int, ...]] = {
        "scores": (*lead, M, N),
        "output": (*lead, M, Dv),
        "weights": (*lead, M, N),
        "lse": (*lead, M),
        "d_queries": x["queries"].shape,
        "d_keys": x["keys"].shape,
        "d_values": x["values"].shape,
        "d_W": (Dk, Dq),
    }
    ends = np.cumsum([0] + [np.prod(shape, dtype=int) for shape in shapes.values()])
    numbers = np.frombuffer(done.stdout, dtype=np.float32)
    assert numbers.size == ends[-1]
    return {
        name: numbers[start:end].reshape(shapes[name])
        for name, (start, end) in zip(shapes, pairwise(ends), strict=True)
    }


# ---- the formulas --------------------------------------------------------------------------------


def formulas(problem: Problem, dtype: DTypeLike) -> Mapping[str, Array]:
    """score(q, k) = k^T W q, every array formed in full, in this dtype."""
    x = {name: np.nan_to_num(a).astype(dtype) for name, a in problem.inputs.items()}
    g = {name: a.astype(dtype) for name, a in problem.grads.items()}
    q, k, v, W = x["queries"], x["keys"], x["values"], x["W"]
    if problem.options.get("enable_gqa"):
        k, v = (np.repeat(a, q.shape[-3] // a.shape[-3], axis=-3) for a in (k, v))
    live = problem.takes_part()
    empty = ~live.any(axis=-1, keepdims=True)
    mode = problem.options["empty_rows"]

    scores = q @ W.T @ k.swapaxes(-1, -2)  # (..., M, N)
    s = np.where(live, scores, -np.inf)
    top = np.where(empty, 0, s.max(axis=-1, keepdims=True)).astype(dtype)
    e = np.exp(s - top)
    total = e.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    w = e / np.where(empty, 1, total)
    if mode == "uniform":
        w = np.where(empty, 1 / np.asarray(k.shape[-2], dtype=dtype), w)
    output = w @ v

    d_w = g["grad_output"] @ v.swapaxes(-1, -2) + g["grad_weights"]
    d_s = w * (d_w - (w * d_w).sum(axis=-1, keepdims=True) + g["grad_lse"][..., None])
    d_s = np.where(live, d_s, 0)
    d_a = d_s @ k  # (..., M, Dk)
    d_q = d_a @ W
    d_W = d_a.reshape(-1, W.shape[0]).T @ q.reshape(-1, W.shape[1])
    d_k = d_s.swapaxes(-1, -2) @ (q @ W.T)
    d_v = w.swapaxes(-1, -2) @ g["grad_output"]
    if mode == "nan":
        w, output, d_q = (np.where(empty, np.nan, a) for a in (w, output, d_q))
    return {
        "scores": scores,
        "output": output,
        "weights": w,
        "lse": lse,
        "d_queries": d_q,
        "d_keys": over_groups(np.sum, d_k, problem.inputs["keys"].shape),
        "d_values": over_groups(np.sum, d_v, problem.inputs["values"].shape),
        "d_W": d_W,
    }


# ---- the score of the page -----------------------------------------------------------------------

# A block has 32 queries in the forward and 64 in the backward, a tile 128 keys; sums of more than
# 256 terms, and gradients of more than 256 queries, are summed in parts.
CASES: dict[str, dict[str, Any]] = {
    "one small block": {"lead": (), "M": 3, "N": 5, "D": 4, "Dk": 6, "Dv": 2, "masked": False},
    "more than a tile": {},
    "without masks": {"masked": False},
    "shared heads": {"lead": (2, 4), "kv_heads": 2, "M": 40, "N": 140},
    "many queries": {"lead": (1,), "M": 600, "N": 50},
    "many features": {"M": 20, "N": 30, "D": 300, "Dk": 270},
}


# Each case with one rule for empty rows, and each rule with one case; the others in .ci/run.
RULES = [
    pytest.param(case, rule, marks=[pytest.mark.slow] * (case != "more than a tile" and i > 0))
    for case in CASES
    for i, rule in enumerate(EMPTY_ROWS)
]


@pytest.mark.parametrize(("case", "empty_rows"), RULES)
def test_values_and_gradients(
    case: str,
    empty_rows: str,
    program: Path,
    instruction_sets: list[str],
    rng: np.random.Generator,
) -> None:
    problem = bilinear_problem(rng, empty_rows=empty_rows, **CASES[case])
    exact = formulas(problem, np.float64)
    scalar = compute(program, problem)
    assert_all_accurate(scalar, exact, problem, formulas)
    check_padding(problem, scalar)
    assert len(instruction_sets) > 1
    for name in instruction_sets:
        got = compute(program, problem, name)
        if name != "generic" or FUSED_GENERIC or "avx2" in instruction_sets:
            assert_same_bits(got, scalar, name)
        else:
            assert_all_accurate(got, exact, problem, formulas)
            check_padding(problem, got)


@pytest.mark.parametrize("case", CASES)
def test_any_threads_give_the_same_bits(case: str, program: Path, rng: np.random.Generator) -> None:
    problem = bilinear_problem(rng, **CASES[case])
    scalar = compute(program, problem)
    for threads in (2, 3, 8):
        assert_same_bits(compute(program, problem, "scalar", threads), scalar)


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
def test_what_takes_no_part_may_be_nan(
    empty_rows: str, program: Path, rng: np.random.Generator
) -> None:
    problem = bilinear_problem(rng, empty_rows=empty_rows)
    expected, got = compute(program, problem), compute(program, poisoned(problem))
    del expected["scores"], got["scores"]  # of every pair, whether it takes part or not
    assert_same_bits(got, expected)


def test_identity_is_dot_product_attention(program: Path, rng: np.random.Generator) -> None:
    problem = bilinear_problem(rng, D=24, Dk=24)
    problem.inputs["W"] = np.eye(24, dtype=np.float32)
    bilinear, dot = compute(program, problem), compute(program, problem, "scalar", 1, "dot")
    assert np.any(bilinear.pop("d_W")) and np.isnan(dot.pop("d_W")).all()
    assert_same_bits(bilinear, dot)


def test_the_twin(reference: ModuleType, rng: np.random.Generator) -> None:
    """In float64 the page's file of Python and the formulas agree but for rounding."""
    for case in ({"M": 5, "N": 9}, {"M": 5, "N": 9, "lead": (2, 4), "kv_heads": 2}):
        problem = bilinear_problem(rng, **case)
        x, options, g = problem.inputs, problem.options, problem.grads
        inputs = x["queries"], x["keys"], x["values"], x["W"]
        exact = formulas(problem, np.float64)
        got = reference.bilinear_attention(*inputs, **options, return_weights=True, return_lse=True)
        d = reference.bilinear_attention_backward(g["grad_output"], *inputs, **options, **extra(g))
        names = ["output", "weights", "lse", "d_queries", "d_keys", "d_values", "d_W"]
        for name, a in zip(names, (*got, *d), strict=True):
            np.testing.assert_allclose(a, exact[name], rtol=1e-12, atol=1e-12, err_msg=name)
        if "kv_heads" not in case:
            scores = reference.bilinear_scores(x["queries"], x["keys"], x["W"])
            np.testing.assert_allclose(scores, exact["scores"], rtol=1e-12, atol=1e-12)


def extra(grads: Mapping[str, Array]) -> dict[str, Array]:
    return {name: a for name, a in grads.items() if name != "grad_output"}


# ---- the rest of the page ------------------------------------------------------------------------


def test_four_changes_are_all() -> None:
    """Two files and two lines; beside these the page has one command, and no other block."""
    assert places() == {
        "files": ["csrc/core/score_bilinear.c", "attnext/reference/bilinear.py"],
        "lines": ["csrc/core/attn.h", "attnext/reference/__init__.py"],
    }
    of_c, of_python = (re.findall(r"^\+(.*)", diff, re.MULTILINE) for diff in blocks("diff"))
    assert len(of_c) == len(ast.parse("\n".join(of_python)).body) == 1
    assert len(blocks("python")) == len(blocks("sh")) == 1
    assert len(re.findall(r"^```\w+$", PAGE, re.MULTILINE)) == len(blocks("c")) + 4


def test_every_field_of_the_struct_is_explained() -> None:
    walk_h = (REPOSITORY / "csrc" / "core" / "walk.h").read_text()
    [body] = re.findall(r"^struct attn_score \{\n(.*?)^\};", walk_h, re.MULTILINE | re.DOTALL)
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    fields = re.findall(r"\(\*(\w+)\)|^    \w+ (\w+)(?:\[\d\])?;", body, re.MULTILINE)
    names = [pointer or number for pointer, number in fields]
    table = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", PAGE, re.MULTILINE)
    assert len(names) > 10
    assert re.findall(r"\w+", " ".join(table)) == names


def test_what_the_page_names_exists() -> None:
    """Files, and identifiers: each stands in some file that the page names."""
    named = set(re.findall(r"`([\w./]+)`", PAGE))
    files = {name for name in named if "/" in name or name.endswith(".py")}
    to_be_written = set(places()["files"])
    assert to_be_written <= files
    texts = []
    for name in files - to_be_written:
        path = REPOSITORY / name
        assert path.exists(), name
        texts.append(path.read_text(encoding="utf-8") if path.is_file() else "")
    words = set(re.findall(r"\w+", "\n".join(texts + blocks("c") + blocks("python"))))
    identifiers = {name for name in named - files if re.fullmatch(r"\w*_\w*", name)}
    assert len(identifiers) > 15
    assert identifiers - words == set()


# ---- the door ------------------------------------------------------------------------------------

FROM_PYTHON = """
import inspect
import numpy as np
from attnext import _core, reference

rng = np.random.default_rng(0)
q, k, v = (rng.normal(size=(2, n, d)) for n, d in ((5, 3), (7, 4), (7, 6)))
W, lens, grad = rng.normal(size=(4, 3)), [3, 7], rng.normal(size=(2, 5, 6))
options = {"causal": True, "bias": np.zeros((5, 7)), "empty_rows": "zero"}
verbs = ("attention", "attention_backward", "scores", "scores_backward")
for name in (f"bilinear_{verb}" for verb in verbs):
    ours, twin = getattr(_core, name), getattr(reference, name)
    shown = [inspect.signature(f).parameters.values() for f in (ours, twin)]
    one, other = ([(p.name, p.kind, p.default) for p in parameters] for parameters in shown)
    assert one == other, name
    assert "W : array_like, shape (Dk, Dq)" in ours.__doc__
    if name.endswith("scores"):
        pairs = [(ours(q, k, W), twin(q, k, W))]
    elif name.endswith("scores_backward"):
        of_scores = rng.normal(size=(2, 5, 7))
        d = ours(of_scores, q, k, W)
        pairs = list(zip((d.queries, d.keys, d.W), twin(of_scores, q, k, W), strict=True))
    elif name.endswith("backward"):
        named, dbias = ours(grad, q, k, v, W, lens, return_grad_bias=True, **options)
        assert type(named) is _core.BilinearGradients
        assert named._fields == ("queries", "keys", "values", "W")
        expected = twin(grad, q, k, v, W, lens, return_grad_bias=True, **options)
        pairs = list(zip((*named, dbias), expected, strict=True))
    else:
        pairs = [(ours(q, k, v, W, lens, **options), twin(q, k, v, W, lens, **options))]
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
assert _core.SCORES["bilinear"][0] == ("W",)
try:
    _core.bilinear_scores(q, k, W.T)
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_the_door_opens_by_itself(copy: Path) -> None:
    """The two files and two lines are all: the functions, their signatures, docstrings, messages
    and the named tuple of the gradients are in the compiled module."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy / name)
    ignored = shutil.ignore_patterns("reference", "*.so", "__pycache__")
    shutil.copytree(REPOSITORY / "attnext", copy / "attnext", ignore=ignored, dirs_exist_ok=True)
    # Quickly; but for kernels, which know no score, and may be there already.
    quick, cc = copy / "cc", shlex.join(compiler())
    kernels = f'case " $* " in *" csrc/simd/"*) exec {cc} "$@" ;; esac'
    quick.write_text(f'#!/bin/sh\n{kernels}\nexec {cc} "$@" -O0\n')
    quick.chmod(0o755)
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    own = {**os.environ, "CC": str(quick)}
    done = subprocess.run(build, cwd=copy, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-c", FROM_PYTHON]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "W has shape (3, 4), expected (4, 3)\n"
