"""Threads, processes and signals around the calls. Bits for any threads: test_bits.py.

What the pool itself promises is checked from C, in test_parallel_c.py.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers import (
    HANG,
    SCORES,
    Problem,
    assert_same_bits,
    import_errors,
    make_problem,
    run_python,
)

import attnext

linux = sys.platform == "linux"


def python(code: str, **environment: Any) -> str:
    """What the code prints in a process of its own."""
    return run_python("-c", code, **environment).stdout


def problem_of(score: str = "dot", M: int = 300) -> Problem:
    """Enough work for several threads."""
    rng = np.random.default_rng(1)
    return make_problem(score, rng, lead=(3,), M=M, N=300, D=32, Dv=32, H=32)


# ---- how many ------------------------------------------------------------------------------------


def test_set_and_get(threads: None) -> None:
    for n in (1, 2, 7, 1000, np.int64(3), 2**31 - 1):
        call: Any = attnext.set_num_threads
        assert call(n) is None
        assert attnext.get_num_threads() == n
        assert type(attnext.get_num_threads()) is int
        problem_of(M=40).forward()


def test_a_wrong_number_changes_nothing(threads: None) -> None:
    attnext.set_num_threads(5)
    for n in (0, -1, 2**31, 2**100, -(2**100)):
        with pytest.raises(ValueError, match="^n is "):
            attnext.set_num_threads(n)
    wrong: Any
    for wrong in (1.0, "2", None, True):
        with pytest.raises(TypeError, match="^n must be an int, got "):
            attnext.set_num_threads(wrong)
    assert attnext.get_num_threads() == 5


def test_the_environment_sets_the_first_number() -> None:
    code = "import attnext; print(attnext.get_num_threads())"
    assert python(code, ATTNEXT_NUM_THREADS="3").strip() == "3"
    cpus = attnext.show_config("dicts")["threads"]["cpus"]
    assert python(code).strip() == str(cpus)
    assert python(code, ATTNEXT_NUM_THREADS="").strip() == str(cpus)


def test_a_wrong_environment_is_an_import_error() -> None:
    wrong = ["0", "-1", "two", "2.0", "99999999999999999999", "3 4"]
    for value, message in import_errors("ATTNEXT_NUM_THREADS", wrong).items():
        assert message == f"ATTNEXT_NUM_THREADS is {value!r}, expected a whole number >= 1"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="CPU affinity is Linux's")
def test_the_default_keeps_to_the_allowed_cpus() -> None:
    code = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import attnext
print(attnext.get_num_threads())
"""
    assert python(code).strip() == "1"


# ---- import has no side effects ------------------------------------------------------------------


def test_import_loads_numpy_and_nothing_else() -> None:
    code = """
import sys, numpy
before = set(sys.modules)
import attnext
roots = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(roots - {"attnext", "numpy", "__future__"}))
"""
    assert python(code).strip() == "[]"


def test_calls_import_nothing_either() -> None:
    """But for what of attnext reads arguments that are not plain, where there is one: without a GIL
    a list, too, which another thread may change."""
    code = """
import sys, sysconfig
from helpers import *
lens = (1, 2) if sysconfig.get_config_var("Py_GIL_DISABLED") else [1, 2]
problems = [
    make_problem(score, np.random.default_rng(0), valid_lens=lens, **options)
    for score, options in zip(SCORES, [{}, {}, {"w": 0.5}, {}], strict=True)
]
before = set(sys.modules)
for problem in problems:
    problem.run()
    problem.forward(out=np.zeros((2, 3, 3), dtype=np.float32))
print(sorted(set(sys.modules) - before))
attnext.masked_softmax([[1.0, 2.0]])
print(sorted(set(sys.modules) - before))
"""
    plain, read = python(code).splitlines()
    assert plain == "[]"
    assert read == "['attnext._hints', 'attnext._reading', 'attnext._wrong']"


@pytest.mark.skipif(not linux, reason="counts threads in /proc")
def test_import_and_small_calls_start_no_thread_and_a_large_call_does() -> None:
    code = """
import os
from threading import Event, Thread
from helpers import *
count = lambda: len(os.listdir("/proc/self/task"))
Thread(target=Event().wait, daemon=True).start()  # with it ThreadSanitizer starts one of its own
before = count()  # NumPy's own may be among them
rng = np.random.default_rng(0)
attnext.set_num_threads(3)
for score in SCORES:
    make_problem(score, rng).run()
attnext.masked_softmax(np.zeros((3, 4)))
small = count() - before
for score in SCORES:
    make_problem(score, rng, M=300, N=300, D=32).run()
print(small, count() - before)
"""
    assert python(code).split() == ["0", "2"]


def test_the_float_mode_stays_as_it_was() -> None:
    """Subnormal numbers in, out and everywhere, before and after a call on several threads."""
    code = """
import ctypes
from helpers import *
tiny = np.array([1e-41], dtype=np.float32)
assert tiny[0] * np.float32(1) == tiny[0] != 0
assert ctypes.CDLL(None).fegetround() == 0
attnext.set_num_threads(3)
rng = np.random.default_rng(0)
for score in SCORES:
    make_problem(score, rng, M=300, N=300, D=32).run()
assert tiny[0] * np.float32(1) == tiny[0] != 0
assert ctypes.CDLL(None).fegetround() == 0
values = np.full((2, 300, 300, 8), tiny[0])
output = attnext.dot_product_attention(values, values, values)
np.testing.assert_allclose(output, values, rtol=1e-3)
"""
    python(code)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="CPU affinity is Linux's")
def test_the_callers_affinity_stays_as_it_was(threads: None) -> None:
    before = os.sched_getaffinity(0)
    attnext.set_num_threads(3)
    problem_of().run()
    assert os.sched_getaffinity(0) == before


# ---- Python threads ------------------------------------------------------------------------------


def test_another_python_thread_progresses_during_a_call(threads: None) -> None:
    """This thread gets the GIL only where the other gives it up, and that is in a call alone."""
    attnext.set_num_threads(1)
    seen, begun = threading.Event(), threading.Lock()
    problem = problem_of()
    call = partial(attnext.dot_product_attention, *problem.inputs.values())
    calls = 0

    def call_until_seen() -> None:
        nonlocal calls
        begun.release()
        while not seen.is_set() and calls < 5000:
            call()
            calls += 1

    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # seconds
    begun.acquire()
    try:
        thread = threading.Thread(target=call_until_seen)
        thread.start()
        begun.acquire()
        seen.set()
        thread.join()
    finally:
        sys.setswitchinterval(before)
    assert calls < 5000


@pytest.mark.parametrize("n", [1, 2, 3])
def test_calls_from_several_threads_at_once(n: int, threads: None) -> None:
    """One of them has the pool; the others work on their own. Results are the same."""
    problems = [problem_of(score, M) for score in SCORES for M in (40, 300)]
    attnext.set_num_threads(1)
    expected = [problem.run() for problem in problems]
    attnext.set_num_threads(n)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(Problem.run, problems * 4))
    for i, result in enumerate(found):
        assert_same_bits(result, expected[i % len(problems)])


def test_the_number_of_threads_may_change_during_calls(threads: None) -> None:
    problem = problem_of()
    expected = problem.run()
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            for n in (1, 4, 2, 8):
                attnext.set_num_threads(n)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(10):
            assert_same_bits(problem.run(), expected)
    finally:
        stop.set()
        thread.join()


def test_lengths_changed_by_another_thread_during_a_call(threads: None) -> None:
    """They are copied first: whatever is written later, no memory outside is read."""
    attnext.set_num_threads(2)
    problem = problem_of()
    lens = np.full((3, 300), 300)
    lens[0] = 10
    problem.options["valid_lens"] = lens
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            lens[...] = 2**40
            lens[...] = 10

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(20):
            assert np.isfinite(problem.forward()).all()
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("name", ["mask", "bias", "dropout_mask"])
@pytest.mark.parametrize("score", SCORES)
def test_masks_changed_by_another_thread_during_a_call(
    score: str, name: str, threads: None
) -> None:
    """They are read as they are: any result may come of it, but no memory outside is touched."""
    attnext.set_num_threads(2)
    problem = problem_of(score)
    shape, forbidden = (3, 300, 300), -np.inf if name == "bias" else False
    x = np.zeros(shape, dtype=np.float32) if name == "bias" else np.ones(shape, dtype=bool)
    problem.options[name] = x
    allowed = x.copy()
    more: dict[str, Any] = {"return_grad_bias": True} if name == "bias" else {}
    expected, gradients = problem.forward(), problem.backward(**more)
    stop = threading.Event()

    def write() -> None:
        rng = np.random.default_rng(0)
        while not stop.is_set():
            start = rng.integers(300)
            x[:, :, start:] = x[:, start:, :] = forbidden
            x[...] = allowed

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for empty_rows in ("uniform", "zero", "nan") * 2:
            assert problem.but(empty_rows=empty_rows).forward().shape == expected.shape
            found = problem.but(empty_rows=empty_rows).backward(**more)
            assert found.keys() == gradients.keys()
    finally:
        stop.set()
        thread.join()
    np.testing.assert_array_equal(problem.forward(), expected)
    assert_same_bits(problem.backward(**more), gradients)


# ---- processes -----------------------------------------------------------------------------------

AFTER_FORK = """
import os, sys, warnings
from helpers import *
warnings.simplefilter("ignore", DeprecationWarning)  # of os.fork() beside threads
attnext.set_num_threads(3)
problem = make_problem("dot", np.random.default_rng(1), lead=(3,), M=300, N=300, D=32)
expected = problem.run()
for _ in range(5):
    child = os.fork()
    if child == 0:
        assert_same_bits(problem.run(), expected)
        grandchild = os.fork()
        if grandchild == 0:
            assert_same_bits(problem.run(), expected)
            os._exit(7)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
    assert_same_bits(problem.run(), expected)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX's")
def test_fork_after_use() -> None:
    python(AFTER_FORK)


def output_of(M: int) -> Any:
    attnext.set_num_threads(2)
    return problem_of("additive", M).forward()


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork beside threads
def test_multiprocessing(method: str, threads: None) -> None:
    attnext.set_num_threads(2)
    sizes = [300, 40, 300, 20]
    expected = [output_of(M) for M in sizes]
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.map_async(output_of, sizes).get(timeout=HANG)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_exit_right_after_a_call_on_several_threads() -> None:
    for end in ("", "import os; os._exit(0)", "import sys; sys.exit(0)", "raise SystemExit"):
        done = run_python(
            "-c",
            f"""
from helpers import *
attnext.set_num_threads(4)
make_problem("dot", np.random.default_rng(1), lead=(3,), M=300, N=300, D=32).run()
{end}
""",
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


# ---- Ctrl-C --------------------------------------------------------------------------------------

LONG_CALLS = """
import questions, signal
from helpers import *
problems = {}
for score in SCORES:
    for M, N in (130, 600), (1, 8000):
        sizes = {"lead": (2,), "M": M, "N": N, "D": 32, "Dv": 32, "H": 32}
        made = make_problem(score, np.random.default_rng(0), **sizes, extra_grads=False)
        problems[score, M, N, "forward"] = lambda made=made: {"output": made.forward()}
        problems[score, M, N, "backward"] = made.backward
handled, raising = 0, True

def handler(*_):
    global handled
    handled += 1
    if raising:
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, handler)
"""

ASKING = """
attnext.set_num_threads(1)
for (*which, call), problem in problems.items():
    tiles = 2 * -(-which[1] // 64) * -(-which[2] // 128)
    assert questions.run(problem)[1] // 2 >= (3 if call == "backward" else 1) * tiles, (which, call)
"""

STOPPING = """
for problem in problems.values():
    attnext.set_num_threads(1)
    expected = problem()
    looks = list(questions.some_looks(problem, 4))
    for threads in 1, 2:
        attnext.set_num_threads(threads)
        for at in looks:
            raising = True
            assert not questions.run(problem, at)[0] or threads > 1
            raising = False
            (found,), _ = questions.run(problem, at)
            assert_same_bits(found, expected)
assert handled > len(problems)
"""


def test_a_call_asks_again_and_again(questions: dict[str, str]) -> None:
    """Whether to stop: for each tile of 64 queries and 128 keys, which takes no time. So a call of
    any length is back at once."""
    python(LONG_CALLS + ASKING, **questions)


def test_a_handler_that_raises_stops_a_call_and_one_that_returns_does_not(
    questions: dict[str, str],
) -> None:
    """Wherever it comes; and all is well afterwards."""
    python(LONG_CALLS + STOPPING, **questions)


NESTED = """
import questions, signal
from functools import partial
from helpers import *
attnext.set_num_threads(2)
rng = np.random.default_rng(1)
problem = make_problem("additive", rng, lead=(4,), M=300, N=300, H=64, extra_grads=False)
inner = make_problem("dot", rng, lead=(3,), M=300, N=300, D=32)
expected, inner_expected = problem.forward(), inner.forward()
found = []
signal.signal(signal.SIGALRM, lambda *_: found.append(inner.forward()))
for at in questions.some_looks(problem.forward):
    (output,), _ = questions.run(problem.forward, at)
    np.testing.assert_array_equal(output, expected)
for output in found:
    np.testing.assert_array_equal(output, inner_expected)
assert found
"""


def test_a_handler_may_call_attnext_itself(questions: dict[str, str]) -> None:
    """While the call it interrupts still has the pool."""
    python(NESTED, **questions)
