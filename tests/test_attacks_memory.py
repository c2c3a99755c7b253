"""Every allocation fails once: failing_allocations.py, in a process of its own.

While allocations fail they do for every thread, and a worker of pytest-xdist has one that talks to
its master: that ended the worker now and then.
"""

from helpers import TESTS, run_python


def test_every_allocation_may_fail() -> None:
    sweep = TESTS / "failing_allocations.py"
    done = run_python("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", sweep, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
