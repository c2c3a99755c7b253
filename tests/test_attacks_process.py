"""What a program may do to a call from outside: end, fork, take its threads or its stack.

Each case runs in a process of its own, as what it looks for is a crash.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import compiling
import pytest
from helpers import run_python

# Each way into the core, with enough work that it gives up the GIL and asks about Ctrl-C.
CALLS = """
import os, signal, sys, threading
from dataclasses import replace
from functools import partial
from helpers import *
x = np.random.default_rng(0).standard_normal((2, 300, 64), dtype=np.float32)
layer = attnext.DotProductAttention()
layer(x, x, x)
calls = {
    "forward": partial(attnext.dot_product_attention, x, x, x),
    "backward": partial(attnext.dot_product_attention_backward, x, x, x, x),
    "layer": partial(layer, x, x, x),
    "layer backward": partial(layer.backward, x),
    "scores": partial(attnext.gaussian_scores, x, x),
    "softmax": partial(attnext.masked_softmax, np.broadcast_to(x[:, :, :1], (2, 300, 2000))),
    "merge": partial(attnext.merge_attention, [x] * 40, [x[:, :, 0]] * 40),
}
"""


def status(code: str, *arguments: str, **environment: str) -> tuple[int, str]:
    """How a process of this code, which begins with CALLS, ends, and what it has to say."""
    done = run_python("-W", "ignore", "-c", CALLS + code, *arguments, check=False, **environment)
    return done.returncode, done.stderr[-1000:]


# ---- the end of the process ----------------------------------------------------------------------

# This thread gets the GIL when the other has given it up inside the core, and never else. There the
# other asks at every chance.
DAEMON = """
import questions
attnext.set_num_threads(int(sys.argv[2]))
sys.setswitchinterval(1000)
call, begun = calls[sys.argv[1]], threading.Lock()
begun.acquire()
def loop():
    questions.begin(0)
    begun.release()
    while True:
        call()
threading.Thread(target=loop, daemon=True).start()
begun.acquire()
"""


def test_exit_while_a_daemon_thread_is_in_a_call(questions: dict[str, str]) -> None:
    """CPython ends the thread when it asks about Ctrl-C; no worker may use its stack after."""
    cases = [("forward", "2"), ("backward", "3"), ("layer backward", "2"), ("scores", "3")]
    with ThreadPoolExecutor(2) as pool:
        ends = pool.map(lambda x: status(DAEMON, *x, **questions), cases)
        for case, ended in zip(cases, ends, strict=True):
            assert ended == (0, ""), case


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2", "3"])
@pytest.mark.parametrize(
    "call", ["forward", "backward", "layer", "layer backward", "scores", "softmax", "merge"]
)
def test_exit_while_a_daemon_thread_is_in_any_call(
    call: str, threads: str, questions: dict[str, str]
) -> None:
    for _ in range(5):
        assert status(DAEMON, call, threads, **questions) == (0, "")


# ---- fork ----------------------------------------------------------------------------------------

FORK_IN_HANDLER = """
import questions
def handler(*_):
    global child
    child = os.fork()

signal.signal(signal.SIGALRM, handler)
for name, threads in ("forward", 1), ("forward", 2), ("layer backward", 3):
    call, child = calls[name], None
    attnext.set_num_threads(1)
    expected, looks = call(), questions.some_looks(call, 3)
    attnext.set_num_threads(threads)
    for at in looks:
        (found,), _ = questions.run(call, at)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=f"{name}, {threads}, {child}")
        if child == 0:
            np.testing.assert_array_equal(calls["forward"](), calls["forward"]())
            os._exit(7)
        if child is not None:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7, (name, threads)
        assert child is not None or threads > 1
        child = None
"""


def test_a_handler_that_forks(questions: dict[str, str]) -> None:
    """The child, which has no workers, gets the result of the call it was made in."""
    assert status(FORK_IN_HANDLER, **questions) == (0, "")


# ---- the stack -----------------------------------------------------------------------------------

RECURSION = """
import functools

class Recursive:
    pass

a, x = Recursive(), np.ones((2, 2), dtype=np.float32)
layer(x, x, x)
dot, bias = attnext.dot_product_attention, np.ones(2)
cases = {
    "queries": lambda *_, **__: dot(a, x, x),
    "keys": lambda *_, **__: dot(x, a, x),
    "values": lambda *_, **__: dot(x, x, a),
    "valid_lens": lambda *_, **__: dot(x, x, x, a),
    "mask": lambda *_, **__: dot(x, x, x, mask=a),
    "causal_offset": lambda *_, **__: dot(x, x, x, causal=True, causal_offset=a),
    "window": lambda *_, **__: dot(x, x, x, window=(a, 1)),
    "W_q": lambda *_, **__: attnext.additive_attention_backward(x, x, x, x, a, x, bias),
    "grad_output": lambda *_, **__: attnext.dot_product_attention_backward(a, x, x, x),
    "scores": lambda *_, **__: attnext.dot_product_scores(x, a),
    "softmax": lambda *_, **__: attnext.masked_softmax(x, a),
    "merge": lambda *_, **__: attnext.merge_attention_backward(x, [a, x], [bias, bias]),
    "a layer": lambda *_, **__: layer(x, x, x, a),
    "its backward": lambda *_, **__: layer.backward(a),
    "a layer without a frame of Python's": functools.partial(layer, a, x, x),
    "a function likewise": functools.partial(dot, a, x, x),
}

def recurse():
    for name, case in cases.items():
        Recursive.__array__ = Recursive.__index__ = case
        try:
            case()
        except RecursionError:
            print(name)

threading.stack_size(8 << 20)  # as most systems have it
thread = threading.Thread(target=recurse)
thread.start()
thread.join()
"""


def test_arguments_that_call_again_as_deep_as_python_lets_them() -> None:
    """What is on the stack while an argument is read is small: at Python's limit of 1000 frames
    there is a RecursionError, which keeps its type, and no crash."""
    done = run_python("-c", CALLS + RECURSION, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == RECURSION.count("lambda") + RECURSION.count("partial(")


SMALL_STACK = """
rng = np.random.default_rng(0)
sizes = {"M": 40, "N": 40, "D": 130, "Dv": 70}, {"M": 200, "N": 200, "dropout_p": 0.5, "seed": 1}
problems = [make_problem(score, rng, **more) for score in SCORES for more in ({}, *sizes)]
small, wide = x[:, :40, :8], np.ones((2, 70, 512), np.float32)
layers = attnext.AdditiveAttention(8, 8, 8), attnext.MultiHeadAttention(8, 8, 8, 8, 2)
wide_layers = (
    attnext.AdditiveAttention(512, 512, 512),
    attnext.MultiHeadAttention(512, 512, 512, 512, 8),
)
attnext.set_num_threads(2)  # the workers' stacks are not of this size
layer(x, x, x)

def run():
    for threads in (1, 2):
        attnext.set_num_threads(threads)
        for problem in problems:
            problem.run()
        for layer in layers:
            layer(small, small, small, [2, 3])
            layer.backward(small)
        for layer in wide_layers:  # their rows are 2 KiB apart (csrc/core/projection.c)
            memory = layer.memory(wide, wide)
            layer(wide, memory)
            layer(wide, wide, wide)
            layer.backward(wide)
        attnext.masked_softmax_backward(x, x)
        for call in ("softmax", "merge"):
            calls[call]()

threading.stack_size(64 << 10)
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


def test_a_thread_with_a_small_stack(instruction_sets: list[str]) -> None:
    """64 KiB, as SECURITY.md promises; musl gives a thread 128."""
    for name in instruction_sets:
        assert status(SMALL_STACK, ATTNEXT_CPU=name) == (0, ""), name


# ---- floating-point exceptions -------------------------------------------------------------------

EXCEPTIONS = """
import ctypes, platform
libm = ctypes.CDLL("libm.so.6")
INVALID, DIVBYZERO = 1, 2 if platform.machine() == "aarch64" else 4
rng = np.random.default_rng(0)
problems = {}
for score in SCORES:
    for M, N in (1, 9), (5, 70), (70, 300):
        shape = 2, M, N
        options = {
            "plain": {},
            "lengths": {"valid_lens": [0, N // 2]},
            "zero": {"valid_lens": [0, N], "empty_rows": "zero"},
            "nan": {"valid_lens": [0, N // 2], "empty_rows": "nan", "softcap": 2.0},
            "causal": {"causal": True, "softcap": 1e-30},
            "window": {"window": (1, 2), "sink": rng.normal(size=M).astype("f4")},
            "mask": {"mask": rng.random(shape) < 0.3, "sink": np.full(M, -np.inf, "f4")},
            "bias": {"bias": np.where(rng.random(shape) < 0.3, -np.inf, 1).astype("f4")},
            "lowest": {"bias": np.full(shape, np.finfo("f4").min)},
            "dropout": {"dropout_p": 0.5, "seed": 1, "valid_lens": [1, N]},
        }
        for name, option in options.items():
            problem = make_problem(score, rng, M=M, N=N, H=9, **option)
            problems[f"{score} {name} {M} {N}"] = problem.run
            if score == "additive":  # pairs of all forms (csrc/core/additive.h)
                sizes = 10.0 ** rng.integers(-2, 3, (2, N, 1))
                problem = replace(problem, inputs={**problem.inputs})
                problem.inputs["keys"] = (problem.inputs["keys"] * sizes).astype("f4")
                problems[f"{score} {name} {M} {N} large"] = problem.run
for w in 1e-38, 1e-20, 1e15, 1e25, 1e38:
    problems[f"gaussian w {w}"] = make_problem("gaussian", rng, w=np.float32(w)).run
x = rng.normal(size=(3, 40, 70)).astype("f4")
for n in 1, 5, 17, 63, 70:
    for masks in {}, {"valid_lens": [0, 1, n]}, {"mask": rng.random((3, 40, n)) < 0.2}:
        row = 100 * x[..., :n]
        problems[f"softmax {n} {list(masks)}"] = partial(attnext.masked_softmax, row, **masks)
        weights = attnext.masked_softmax(row, **masks)
        back = partial(attnext.masked_softmax_backward, row, weights, **masks)
        problems[f"softmax backward {n} {list(masks)}"] = back
lses = [x[:, :, 0], np.full((3, 40), -np.inf, "f4")]
problems["merge"] = partial(attnext.merge_attention, [x, x], lses)
problems["merge backward"] = partial(attnext.merge_attention_backward, x, [x, x], lses)
small = x[:, :, :8]
def train(layer):
    layer(small, small, small, [0, 3, 40])
    layer.backward(small)
    memory = layer.memory(small, small, [0, 3, 40])
    layer(small, memory)
    layer.backward(small)
    memory.backward()
for layer in (
    attnext.DotProductAttention(0.1, rng=0),
    attnext.AdditiveAttention(8, 8, 5, rng=0),
    attnext.MultiHeadAttention(8, 8, 8, 8, 2, rng=0),
):
    problems[type(layer).__name__] = partial(train, layer)
"""

RAISED = """
attnext.set_num_threads(1)
for name, run in problems.items():
    libm.feclearexcept(INVALID | DIVBYZERO)
    run()
    if raised := libm.fetestexcept(INVALID | DIVBYZERO):
        print(name, raised, file=sys.stderr)
"""

TRAPPED = """
import faulthandler
faulthandler.enable()
libm.feenableexcept(INVALID | DIVBYZERO)  # before there are workers, which inherit it
attnext.set_num_threads(2)
for run in problems.values():
    run()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the names of glibc")
@pytest.mark.parametrize("code", [RAISED, TRAPPED], ids=["raised", "trapped"])
def test_finite_inputs_raise_no_invalid_operation(code: str, instruction_sets: list[str]) -> None:
    """Neither FE_INVALID nor FE_DIVBYZERO, not on the way either: a host may trap them.

    FE_INEXACT, FE_UNDERFLOW and, where a result or a masked score is too large, FE_OVERFLOW are in
    the nature of the results. tests/c/fuzz_results.h asks the same of random problems.
    """
    for name in instruction_sets:
        assert status(EXCEPTIONS + code, ATTNEXT_CPU=name) == (0, ""), name


# ---- threads that cannot be had ------------------------------------------------------------------

FEW_THREADS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

/* Fails once it has made as many threads as the variable THREADS says. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*body)(void *), void *arg)
{
    static int made;
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
    return made >= atoi(getenv("THREADS")) ? EAGAIN : (made++, create(thread, attr, body, arg));
}
"""

WITH_FEW_THREADS = """
def results():
    return [calls[name]() for name in ("forward", "backward", "layer", "scores")]

attnext.set_num_threads(1)
expected = results()
attnext.set_num_threads(4)
for threads in 0, 1, 2, 3:
    os.environ["THREADS"] = str(threads)
    for found, one in zip(results(), expected, strict=True):
        np.testing.assert_array_equal(found[0], one[0])
    print(len(os.listdir("/proc/self/task")) - 1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD is Linux's")
def test_with_fewer_threads_than_asked_for(tmp_path: Path) -> None:
    """As under a limit of processes (RLIMIT_NPROC), which does not hold for root: those that
    cannot be had are done without, and made when they can be."""
    source, library = tmp_path / "few.c", tmp_path / "few.so"
    source.write_text(FEW_THREADS)
    flags = ["-shared", "-fPIC", str(source), "-o", str(library), "-ldl"]
    compiling.run([*compiling.compiler(), *flags])
    few = {"LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "1", "THREADS": "0"}
    done = run_python("-c", CALLS + WITH_FEW_THREADS, check=False, **few)
    assert (done.stdout.split(), done.stderr) == (["0", "1", "2", "3"], "")


# ---- handlers of signals -------------------------------------------------------------------------

MORE_CALLS = """
import questions
memory = layer.memory(x, x)
additive = attnext.AdditiveAttention(64, 64, 8, rng=0)
additive(x, x, x)
calls["memory"] = partial(layer, x, memory, need_weights=False)
calls["additive backward"] = partial(additive.backward, x)
calls["a memory made"] = partial(attnext.AdditiveAttention(64, 64, 64, rng=0).memory, x, x)
attnext.set_num_threads(1)
looks = {name: list(questions.some_looks(call)) for name, call in calls.items()}
"""

INTERRUPTED = """
def handler(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, handler)
for threads in 1, 3:
    attnext.set_num_threads(threads)
    for name, call in calls.items():
        for at in looks[name]:
            layer(x, x, x)
            context, grads = layer.context, {n: g.copy() for n, g in additive.grads.items()}
            done, _ = questions.run(call, at)
            assert threads > 1 or not done, f"{name} goes on after look {at}"
            if not done:
                assert layer.context is context, name
                assert_same_bits(additive.grads, grads)
    np.testing.assert_array_equal(calls["forward"](), attnext.dot_product_attention(x, x, x))
"""

MEDDLING = """
count = 0

def handler(*_):
    global count
    count += 1
    attnext.set_num_threads(1 + count % 4)
    attnext.empty_cache()
    layer(x[:, :2], x, x)

signal.signal(signal.SIGALRM, handler)
for name in "forward", "backward", "layer backward", "additive backward", "memory":
    additive.zero_grad()
    layer(x, x, x)
    expected, call = calls[name](), calls[name]
    if name == "layer backward":
        call = partial(layer.backward, x, context=layer.context)
    for at in looks[name]:
        (found,), _ = questions.run(call, at)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)
assert count >= len(looks["forward"])  # there on one thread; with more, all may be done before
"""


def test_ctrl_c_in_every_call_leaves_all_as_it_was(questions: dict[str, str]) -> None:
    """The last context, the gradients; wherever it comes."""
    assert status(MORE_CALLS + INTERRUPTED, **questions) == (0, "")


def test_a_handler_that_changes_the_number_of_threads(questions: dict[str, str]) -> None:
    """And what is kept of memory, and the layer that is being called."""
    assert status(MORE_CALLS + MEDDLING, **questions) == (0, "")


# ---- other interpreters --------------------------------------------------------------------------

SUB_INTERPRETERS = """
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters  # since Python 3.13

code = f"import sys; sys.path[:] = {sys.path!r}; import attnext"
for _ in range(2):
    sub = interpreters.create()
    try:
        refused = interpreters.run_string(sub, code)
    except interpreters.RunFailedError as error:
        refused = error
    assert "ImportError" in str(refused), refused
    interpreters.destroy(sub)
    np.testing.assert_array_equal(calls["layer"](), calls["forward"]())
    calls["layer backward"]()
    assert "W_q" in attnext.AdditiveAttention(2, 3, 4).parameters()
"""


def test_a_sub_interpreter_is_refused() -> None:
    """By attnext, or by NumPy before it; the main one does not notice."""
    done = run_python("-W", "ignore", "-c", CALLS + SUB_INTERPRETERS, check=False)
    assert done.returncode == 0, done.stderr
