"""No function and no error path loses memory.

Objects are counted by sys.getallocatedblocks() around a thousand calls; what the functions
allocate beside Python's allocator shows in the size of the process.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import SCORES, Problem, make_problem, run_python
from test_inputs import WRONG, Raises, read_only, strided

import attnext

# Under PYTHONMALLOC=malloc, as with a sanitizer, there are no blocks to count.
pytestmark = pytest.mark.skipif(sys.getallocatedblocks() == 0, reason="PYTHONMALLOC=malloc")

CALLS = 1000
SLACK = 60  # blocks that caches of Python and NumPy may take; a leak takes one a call, 100 or more


def lost_blocks(call: Callable[[], Any], calls: int = CALLS) -> int:
    """Blocks that are there after so many calls and were not before: the least of three tries."""
    for _ in range(20):
        call()
    gc.freeze()  # so that what other tests left behind is not looked through each time
    try:
        for _ in range(3):
            gc.collect()
            before = sys.getallocatedblocks()
            for _ in range(calls):
                call()
            gc.collect()
            lost = sys.getallocatedblocks() - before
            if lost <= SLACK:
                break
        return lost
    finally:
        gc.unfreeze()


def test_a_leak_would_be_seen() -> None:
    kept = []
    assert lost_blocks(lambda: kept.append(np.zeros(3))) >= CALLS


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
    problem.options |= {
        "dot": {"scale": np.float64(2)},
        "additive": {"b_h": np.zeros(1)},
        "gaussian": {"w": np.ones(1)},
    }[score]
    problem.inputs = {name: convert(x) for name, x in problem.inputs.items()}
    problem.grads = {name: convert(x) for name, x in problem.grads.items()}
    out, output, lse = (
        np.zeros(shape, dtype=np.float32) for shape in ((2, 2, 1), (2, 2, 1), (2, 2))
    )
    assert lost_blocks(lambda: problem.forward(return_weights=True, return_lse=True)) <= SLACK
    assert lost_blocks(lambda: problem.forward(out=out)) <= SLACK
    assert lost_blocks(lambda: problem.backward(output=output, lse=lse)) <= SLACK


def test_the_other_functions(rng: np.random.Generator) -> None:
    X, W, w = rng.standard_normal((2, 3)), np.ones((2, 3)), np.ones(2)
    out = np.zeros((2, 3), dtype=np.float32)
    calls: list[Callable[[], Any]] = [
        lambda: attnext.masked_softmax(X, [1, 2], empty_rows="zero"),
        lambda: attnext.masked_softmax(X, 2, out=out),
        lambda: attnext.masked_softmax_backward(X, X, np.array([1, 2])),
        lambda: attnext.sequence_mask(X, 2, 1.5),
        lambda: attnext.dot_product_scores(X, X, scale=2),
        lambda: attnext.gaussian_scores(X, X, sigma=[2.0]),
        lambda: attnext.additive_scores(X, X, W, W, w, b_h=w),
        lambda: attnext.set_num_threads(attnext.get_num_threads()),
        lambda: attnext.show_config("dicts"),
    ]
    for call in calls:
        assert lost_blocks(call) <= SLACK


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 2, 3), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_arrays_without_elements(
    score: str, shape: tuple[int, int, int], rng: np.random.Generator
) -> None:
    B, M, N = shape
    problem = make_problem(score, rng, lead=(B,), M=M, N=N)
    assert lost_blocks(problem.run) <= SLACK


@pytest.mark.parametrize(
    ("call", "error"), [case[1:3] for case in WRONG], ids=[case[0] for case in WRONG]
)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of np.matrix
def test_error_paths(call: Callable[[], Any], error: type[Exception]) -> None:
    def wrong_call() -> None:
        try:
            call()
        except error:
            return
        raise AssertionError("no error")

    assert lost_blocks(wrong_call) <= SLACK


@pytest.mark.parametrize("score", SCORES)
def test_an_error_in_each_argument_in_turn(score: str, rng: np.random.Generator) -> None:
    """What was converted before it is given back."""
    problem = make_problem(score, rng, valid_lens=[1, 2])
    for part in (problem.inputs, problem.grads):
        for name, x in part.items():
            part[name] = x.tolist()
    if score == "additive":
        problem.options["b_h"] = [0.0] * 6
    arguments = {**problem.grads, **problem.inputs, **problem.options}
    arguments |= {"output": np.zeros((2, 3, 3)).tolist(), "lse": np.zeros((2, 3)).tolist()}
    for name in arguments:
        wrong = {**arguments, name: Raises(ZeroDivisionError)}

        def call(wrong: dict[str, Any] = wrong) -> None:
            try:
                Problem(score, wrong).backward()
            except ZeroDivisionError:
                return
            raise AssertionError("no error")

        assert lost_blocks(call, 100) <= SLACK


def test_scratch_memory_is_freed() -> None:
    """Calls whose scratch is a megabyte or more, among them interrupted ones."""
    code = """
import resource, signal
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
    for i in range(count // 10):
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        try:
            large.forward()
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

calls(20)
before = peak()
calls(200)
print(peak() - before, interrupted)
"""
    growth, interrupted = map(int, run_python("-c", code).stdout.split())
    assert interrupted >= 10
    assert growth < 50_000  # kilobytes; kept scratch would be hundreds of megabytes
