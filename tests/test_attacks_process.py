"""What a program may do to a call from outside: end, fork, take its threads or its stack.

Each case runs in a process of its own, as what it looks for is a crash.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers import run_python

# Each way into the core, long enough for the question about Ctrl-C, which comes after 20 ms.
CALLS = """
import os, signal, sys, threading, time
from helpers import *
x = np.random.default_rng(0).standard_normal((2, 1500, 64), dtype=np.float32)
layer = attnext.DotProductAttention()
layer(x, x, x)
calls = {
    "forward": lambda: attnext.dot_product_attention(x, x, x),
    "backward": lambda: attnext.dot_product_attention_backward(x, x, x, x),
    "layer": lambda: layer(x, x, x),
    "layer backward": lambda: layer.backward(x),
    "scores": lambda: attnext.gaussian_scores(x, x),
    "softmax": lambda: attnext.masked_softmax(np.broadcast_to(x[:, :, :1], (2, 1500, 9000))),
    "merge": lambda: attnext.merge_attention([x] * 40, [x[:, :, 0]] * 40),
}
"""


def status(code: str, *arguments: str) -> tuple[int, str]:
    """How a process of this code, which begins with CALLS, ends, and what it has to say."""
    done = run_python("-W", "ignore", "-c", CALLS + code, *arguments, check=False)
    return done.returncode, done.stderr[-1000:]


# ---- the end of the process ----------------------------------------------------------------------

DAEMON = """
attnext.set_num_threads(int(sys.argv[2]))
call = calls[sys.argv[1]]
def loop():
    while True:
        call()
threading.Thread(target=loop, daemon=True).start()
time.sleep(0.1)
"""


def test_exit_while_a_daemon_thread_is_in_a_call() -> None:
    """CPython ends the thread when it asks about Ctrl-C; no worker may use its stack after."""
    cases = [("forward", "2"), ("backward", "3"), ("layer backward", "2"), ("scores", "3")]
    with ThreadPoolExecutor(2) as pool:
        for case, ended in zip(cases, pool.map(lambda x: status(DAEMON, *x), cases), strict=True):
            assert ended == (0, ""), case


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2", "3"])
@pytest.mark.parametrize(
    "call", ["forward", "backward", "layer", "layer backward", "scores", "softmax", "merge"]
)
def test_exit_while_a_daemon_thread_is_in_any_call(call: str, threads: str) -> None:
    for _ in range(5):
        assert status(DAEMON, call, threads) == (0, "")


# ---- fork ----------------------------------------------------------------------------------------

FORK_IN_HANDLER = """
def handler(*_):
    global child
    if child is None:
        child = os.fork()

signal.signal(signal.SIGALRM, handler)
for name, threads in ("forward", 1), ("forward", 2), ("layer backward", 3):
    attnext.set_num_threads(threads)
    call, child = calls[name], None
    expected = call()
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    while child is None:
        found = call()
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=f"{name}, {threads}, {child}")
    if child == 0:
        np.testing.assert_array_equal(calls["forward"](), calls["forward"]())
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7, (name, threads)
"""


def test_a_handler_that_forks() -> None:
    """The child, which has no workers, gets the result of the call it was made in."""
    assert status(FORK_IN_HANDLER) == (0, "")
