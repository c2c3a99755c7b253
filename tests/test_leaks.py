"""No function and no error path loses memory.

Objects are counted by sys.getallocatedblocks() around some hundred calls; what the functions
allocate beside Python's allocator shows in the size of the process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import SCORES, SLACK, Problem, lost_blocks, make_problem, run_python
from test_inputs import WRONG, Raises, read_only, strided

import attnext

# Under PYTHONMALLOC=malloc, as with a sanitizer, there are no blocks to count.
pytestmark = pytest.mark.skipif(sys.getallocatedblocks() == 0, reason="PYTHONMALLOC=malloc")


def test_a_leak_would_be_seen() -> None:
    kept = []
    assert lost_blocks(lambda: kept.append(np.zeros(3))) >= 1


CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda x: x,
    "strided": strided,
    "float64": lambda x: x.astype(np.float64),
    "list": lambda x: x.tolist(),
    "read-only": read_only,
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
@pytest.mark.parametrize("score", SCORES)
def test_attention(score: str, conversion: str, rng: np.random.Generator) -> None:
    convert = CONVERSIONS[conversion]
    options: dict[str, Any] = {"valid_lens": [[1, 2], [0, 2]], "dropout_p": 0.5, "seed": 1}
    problem = make_problem(score, rng, M=2, N=2, D=1, Dv=1, H=1, **options)
    own: dict[str, dict[str, Any]] = {
        "dot": {"scale": np.float64(2)},
        "additive": {"b_h": np.zeros(1)},
        "gaussian": {"w": np.ones(1)},
        "cosine": {"scale": np.float64(2), "eps": np.float32(1)},
    }
    problem.options |= own[score]
    problem.inputs = {name: convert(x) for name, x in problem.inputs.items()}
    problem.grads = {name: convert(x) for name, x in problem.grads.items()}
    out, output, lse = (
        np.zeros(shape, dtype=np.float32) for shape in ((2, 2, 1), (2, 2, 1), (2, 2))
    )
    assert lost_blocks(lambda: problem.forward(return_weights=True, return_lse=True)) < SLACK
    assert lost_blocks(lambda: problem.forward(out=out)) < SLACK
    assert lost_blocks(lambda: problem.backward(output=output, lse=lse)) < SLACK


MASK_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda x: x,
    "strided": strided,
    "keys strided": lambda x: x.repeat(2, axis=-1)[..., ::2],
    "list": np.ndarray.tolist,
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
}


@pytest.mark.parametrize("conversion", MASK_CONVERSIONS)
@pytest.mark.parametrize("score", SCORES)
def test_attention_under_masks(score: str, conversion: str, rng: np.random.Generator) -> None:
    convert = MASK_CONVERSIONS[conversion]
    options: dict[str, Any] = {
        "mask": convert(rng.random((2, 2, 2, 3)) < 0.7),
        "bias": convert(rng.standard_normal((2, 2, 2, 3))),
        "dropout_mask": convert(rng.random((2, 2, 2, 3)) < 0.7),
        "causal": True,
        "causal_offset": [1, 2],
        "window": [3, 1],
        "valid_lens": [[3, 2], [1, 3]],
    }
    problem = make_problem(score, rng, lead=(2, 2), M=2, N=3, D=1, Dv=1, H=1, kv_heads=1, **options)
    weights = problem.forward(return_weights=True)[1]
    assert lost_blocks(problem.forward) < SLACK
    assert lost_blocks(lambda: problem.backward(return_grad_bias=True, weights=weights)) < SLACK


def test_the_other_functions(rng: np.random.Generator) -> None:
    X, W, w = rng.standard_normal((2, 3)), np.ones((2, 3)), np.ones(2)
    out = np.zeros((2, 3), dtype=np.float32)
    calls: list[Callable[[], Any]] = [
        lambda: attnext.masked_softmax(X, [1, 2], empty_rows="zero"),
        lambda: attnext.masked_softmax(X, 2, out=out),
        lambda: attnext.masked_softmax_backward(X, X, np.array([1, 2])),
        lambda: attnext.sequence_mask(X, 2, 1.5),
        lambda: attnext.dot_product_scores(X, X, scale=2),
        lambda: attnext.masked_softmax(X, [1, 2], mask=[[True, False, True]]),
        lambda: attnext.masked_softmax_backward(X, X, mask=np.ones((2, 6), bool)[:, ::2]),
        lambda: attnext.merge_attention([X, X.tolist()], [w, w]),
        lambda: attnext.merge_attention(np.ones((3, 2, 3)), np.ones((3, 2))),
        lambda: attnext.merge_attention_backward(X, (X, X), [w, w], grad_lse=w),
        lambda: attnext.gaussian_scores(X, X, sigma=[2.0]),
        lambda: attnext.cosine_scores(X, X, scale=2, eps=0.5),
        lambda: attnext.additive_scores(X, X, W, W, w, b_h=w),
        lambda: attnext.set_num_threads(attnext.get_num_threads()),
        lambda: attnext.show_config("dicts"),
        lambda: attnext.empty_cache(),
    ]
    for call in calls:
        assert lost_blocks(call) < SLACK


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 2, 3), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_arrays_without_elements(
    score: str, shape: tuple[int, int, int], rng: np.random.Generator
) -> None:
    B, M, N = shape
    problem = make_problem(score, rng, lead=(B,), M=M, N=N)
    assert lost_blocks(problem.run) < SLACK


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of np.matrix
def test_error_paths() -> None:
    for name, call, error, *_ in WRONG:

        def wrong_call(
            name: str = name, call: Callable[[], Any] = call, error: type[Exception] = error
        ) -> None:
            try:
                call()
            except error:
                return
            raise AssertionError(f"no error: {name}")

        assert lost_blocks(wrong_call) < SLACK, name


@pytest.mark.parametrize("score", SCORES)
def test_an_error_in_each_argument_in_turn(score: str, rng: np.random.Generator) -> None:
    """What was converted before it is given back."""
    problem = make_problem(score, rng, valid_lens=[1, 2])
    for part in (problem.inputs, problem.grads):
        for name, x in part.items():
            part[name] = x.tolist()
    if score == "additive":
        problem.options["b_h"] = [0.0] * 6
    pairs: dict[str, Any] = {"mask": np.ones((2, 3, 5), bool), "bias": np.ones((2, 1, 5))}
    pairs |= {"weights": np.ones((2, 3, 5)), "dropout_mask": np.ones((3, 1), bool)}
    arguments = {**problem.grads, **problem.inputs, **problem.options}
    arguments |= {name: x.tolist() for name, x in pairs.items()}
    arguments |= {"output": np.zeros((2, 3, 3)).tolist(), "lse": np.zeros((2, 3)).tolist()}
    arguments |= {"causal_offset": [1, 2]}
    for name in arguments:
        wrong = {**arguments, name: Raises(ZeroDivisionError)}

        def call(wrong: dict[str, Any] = wrong) -> None:
            try:
                Problem(score, wrong).backward()
            except ZeroDivisionError:
                return
            raise AssertionError("no error")

        assert lost_blocks(call) < SLACK


@pytest.mark.parametrize("at", range(6))
def test_an_error_in_each_part_of_a_merge_in_turn(at: int) -> None:
    parts = [np.zeros((2, 3)).tolist(), np.zeros((2, 3)), np.zeros((2, 3)).tolist()]
    parts += [np.zeros(2).tolist(), np.zeros(2), np.zeros(2).tolist()]
    parts[at] = Raises(ZeroDivisionError)

    def call(function: Callable[..., Any], *first: Any) -> None:
        try:
            function(*first, parts[:3], parts[3:])
        except ZeroDivisionError:
            return
        raise AssertionError("no error")

    assert lost_blocks(lambda: call(attnext.merge_attention)) < SLACK
    backward = attnext.merge_attention_backward
    assert lost_blocks(lambda: call(backward, [[0.0] * 3] * 2)) < SLACK


@pytest.mark.parametrize(
    "wrong",
    [
        {"mask": np.ones((2, 3, 5))},
        {"mask": np.ones((4, 5), bool)},
        {"mask": [[1, 0, 1, 1, 1]]},
        {"bias": np.ones(5, int)},
        {"bias": [[1.0] * 4]},
        {"bias": [0.0] * 5, "causal_offset": 1.5},
        {"bias": [0.0] * 5, "causal_offset": [1, 2, 3]},
        {"mask": [True] * 5, "window": (1, -2)},
        {"mask": [True] * 5, "window": 3},
        {"mask": [True] * 5, "window": [1, "2"]},
        {"mask": [True] * 5, "dropout_mask": [1] * 5},
        {"mask": [True] * 5, "dropout_mask": [True] * 5, "seed": 1},
        {"mask": [True] * 5, "bias": [0.0] * 5, "enable_gqa": True},
        {"mask": [True] * 5, "bias": [0.0] * 5, "valid_lens": -1},
        {"mask": [True] * 5, "bias": [0.0] * 5, "empty_rows": "none"},
    ],
    ids=str,
)
def test_error_paths_of_masks(wrong: dict[str, Any], rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, lead=(2,), **wrong)

    def call() -> None:
        for function in (problem.forward, problem.backward):
            try:
                function()
            except (TypeError, ValueError):
                continue
            raise AssertionError("no error")

    if "enable_gqa" in wrong:
        for name in ("keys", "values"):
            problem.inputs[name] = np.concatenate([problem.inputs[name]] * 2)[:3]
    assert lost_blocks(call) < SLACK


def test_scratch_memory_is_freed(questions: dict[str, str]) -> None:
    """Calls whose scratch is a megabyte or more, among them interrupted ones."""
    code = """
import questions, resource, signal
from helpers import *
attnext.set_num_threads(2)
rng = np.random.default_rng(0)
problems = [make_problem(score, rng, M=40, N=2000, D=3, H=16, Dv=2) for score in SCORES]

def interrupt(*_):
    raise KeyboardInterrupt

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

signal.signal(signal.SIGALRM, interrupt)
interrupted = 0

def calls(count):
    global interrupted
    for i in range(count):
        for problem in problems:
            problem.run()
    large = make_problem("additive", rng, lead=(2,), M=2000, N=2000, D=3, H=64, extra_grads=False)
    for i in range(count // 5):
        interrupted += not questions.run(large.forward, 2 + 2 * i)[0]

calls(20)
before = peak()
calls(50)
print(peak() - before, interrupted)
"""
    growth, interrupted = map(int, run_python("-c", code, **questions).stdout.split())
    assert interrupted >= 10
    assert growth < 50_000  # kilobytes; kept scratch would be over two hundred megabytes
