"""Large results: the memory that csrc/os/memory.c keeps for the next call, and gives back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import Array, bits, import_errors, run_python

import attnext

MIB = 1 << 20
LEAST = 8  # MiB: a result below it is malloc's


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    attnext.empty_cache()
    yield
    attnext.empty_cache()


def scores(mib: int) -> Array:
    return np.linspace(-3, 3, mib * MIB // 4, dtype=np.float32).reshape(mib, -1)


def kept() -> int:
    return attnext.show_config("dicts")["memory"]["kept"]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_large_result_lies_where_one_that_is_gone_lay() -> None:
    X = scores(LEAST)
    weights = attnext.masked_softmax(X)
    expected, place = bits(weights), weights.ctypes.data
    assert weights.flags.owndata and kept() == 0  # what is in use is not what is kept
    del weights
    assert LEAST * MIB <= kept() <= (LEAST + 2) * MIB
    again = attnext.masked_softmax(X)
    assert again.ctypes.data == place and kept() == 0
    assert np.array_equal(bits(again), expected)


def test_the_memory_is_given_back_when_asked_for() -> None:
    weights = attnext.masked_softmax(scores(2 * LEAST))
    del weights
    before = resident()
    attnext.empty_cache()
    assert kept() == 0
    assert before - resident() > LEAST * MIB


def test_a_smaller_result_is_not_kept() -> None:
    attnext.masked_softmax(scores(LEAST - 1))
    assert kept() == 0


def test_a_block_much_too_large_is_not_taken() -> None:
    attnext.masked_softmax(scores(2 * LEAST))
    small = attnext.masked_softmax(scores(LEAST))
    assert kept() >= 2 * LEAST * MIB
    assert small.shape == (LEAST, MIB // 4)


def test_never_more_is_kept_than_the_limit_and_the_newest_stays() -> None:
    limit = attnext.show_config("dicts")["memory"]["limit"]
    assert limit == 256 * MIB
    X = scores(64)
    results = [attnext.masked_softmax(X) for _ in range(5)]
    newest = results[-1].ctypes.data
    while results:
        results.pop(0)
        assert kept() <= limit
    assert kept() > limit // 2
    places = [attnext.masked_softmax(X) for _ in range(3)]
    assert newest in [place.ctypes.data for place in places]


def test_larger_than_the_limit_is_not_kept() -> None:
    code = """
import attnext, numpy as np
weights = attnext.masked_softmax(np.zeros((40, 1 << 18), np.float32))
del weights
print(attnext.show_config("dicts")["memory"])
"""
    done = run_python("-c", code, ATTNEXT_CACHE_MIB="39")
    assert done.stdout.strip() == str({"kept": 0, "limit": 39 * MIB})


def test_off() -> None:
    code = """
import attnext, numpy as np
weights = attnext.masked_softmax(np.zeros((40, 1 << 18), np.float32))
del weights
print(attnext.show_config("dicts")["memory"])
attnext.show_config()
"""
    lines = run_python("-c", code, ATTNEXT_CACHE_MIB="0").stdout.splitlines()
    assert lines[0] == str({"kept": 0, "limit": 0})
    assert "memory kept for large results: 0 MiB (at most 0)" in lines


def test_a_wrong_limit_is_an_import_error() -> None:
    wrong = ["-1", "1.5", "much", "1 ", str(2**60)]
    for value, message in import_errors("ATTNEXT_CACHE_MIB", wrong).items():
        assert message == f"ATTNEXT_CACHE_MIB is {value!r}, expected a whole number >= 0"


def test_a_large_result_can_be_resized() -> None:
    weights = attnext.masked_softmax(scores(LEAST))
    first = weights.ravel()[:7].copy()
    weights.resize((7,), refcheck=False)
    assert np.array_equal(weights, first)
    weights.resize((LEAST * MIB,), refcheck=False)
    assert np.array_equal(weights[:7], first) and not weights[7:].any()


def test_numpy_allocates_as_before() -> None:
    """Around a call, on success and on failure."""
    for wrong in (False, True):
        if wrong:
            with pytest.raises((MemoryError, ValueError)):  # 2**44 bytes of weights
                huge = np.broadcast_to(np.float32(0), (2, 1 << 21, 1))
                attnext.dot_product_attention(huge, huge, huge, return_weights=True)
        attnext.masked_softmax(scores(LEAST))
        before = kept()
        np.ones(LEAST * MIB // 4, np.float32)
        assert kept() == before > 0


def test_results_of_many_threads() -> None:
    X = [np.full((LEAST, MIB // 4), i, np.float32) for i in range(3)]
    failures: list[int] = []

    def work(i: int) -> None:
        for _ in range(5):
            copy = attnext.sequence_mask(X[i], [MIB] * LEAST)
            if not np.array_equal(copy, X[i]):
                failures.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert 0 < kept() <= 2 * 3 * (LEAST + 2) * MIB  # each has two: the last one and the next


def test_what_is_kept_is_not_for_a_child() -> None:
    code = """
import os, attnext, numpy as np
X = np.zeros((40, 1 << 18), np.float32)
attnext.masked_softmax(X)
held = attnext.masked_softmax(X)
attnext.masked_softmax(X)
assert attnext.show_config("dicts")["memory"]["kept"] > 0
if (child := os.fork()) == 0:
    ok = attnext.show_config("dicts")["memory"]["kept"] == 0
    ok = ok and np.array_equal(attnext.masked_softmax(X), held)
    del held
    os._exit(0 if ok and attnext.show_config("dicts")["memory"]["kept"] > 0 else 1)
status = os.waitpid(child, 0)[1]
assert attnext.show_config("dicts")["memory"]["kept"] > 0
print(status)
"""
    assert run_python("-c", code).stdout.strip() == "0"


def test_kept_memory_goes_before_a_memory_error() -> None:
    code = """
import resource, attnext, numpy as np
attnext.set_num_threads(1)
X = np.zeros((200, 1 << 18), np.float32)
Y = X[:100]
attnext.masked_softmax(X)
assert attnext.show_config("dicts")["memory"]["kept"] >= 200 << 20
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (20 << 20),) * 2)
print(attnext.masked_softmax(Y).shape, attnext.show_config("dicts")["memory"]["kept"] >> 20)
try:
    attnext.masked_softmax(np.broadcast_to(np.float32(0), (800, 1 << 18)))
except MemoryError:
    print("MemoryError")
"""
    assert run_python("-c", code).stdout.splitlines() == ["(100, 262144) 100", "MemoryError"]


def test_an_array_may_outlive_everything() -> None:
    code = """
import attnext, numpy as np, sys
weights = attnext.masked_softmax(np.zeros((40, 1 << 18), np.float32))
for name in [name for name in sys.modules if name.startswith("attnext")]:
    del sys.modules[name]
del attnext
sys.kept_until_the_end = weights
"""
    assert run_python("-c", code).returncode == 0
