"""What the machine could do at most: the work in a case, and how fast the CPU can be.

Of the work there is what the mathematics asks for: products, divisions, exponentials of the pairs
that take part, and the arrays that have to be read. Of the CPU, measured in the same run and with
as many threads: fused multiply-adds, divisions, and floats read from arrays of the case's size
(peak.c); they give the least time in which the work can be done. A softmax has its limit in
copying the scores, which is timed as such; a toy its floor in making arrays for the results.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from .problem import Array, Problem

# ---- the work -----------------------------------------------------------------------------------

# An exponential: clamp, round, a polynomial of degree 6, and the exponent put in.
EXP = 8

# One triple (query, key, hidden unit) of the additive score, tanh written as 1 - 2 r,
# r = 1 / (1 + A B). s hidden units can share one division: w0/d0 + w1/d1 = (w0 d1 + w1 d0) /
# (d0 d1), and that again with the next two. By s: how many slots of the ports for multiply-adds
# a triple takes besides its 1/s divisions.
#   forward, 4 units: 4 (d), 2 (d0 d1, d2 d3), 4 (their numerators), 3 (joined), 1 (added); the
#   kernel takes 4 more, for the accuracy of (B - A) / (B + A)
#   backward: d, the r of each unit, r (1 - r), and the sums for dA, dB and dw_v
FORWARD = {1: 2.0, 2: 3.0, 4: 14 / 4}
BACKWARD = {1: 5.0, 2: 6.5, 4: 29 / 4}
# A division is also this many slots of those ports.
DIVISION = 3


@dataclass
class Work:
    """What has to be done; counted in lanes, so that a vector of 16 is 16."""

    slots: float  # multiply-adds, and what goes through the same ports
    floats: float = 0.0  # read from memory
    forward_triples: float = 0.0
    backward_triples: float = 0.0


@dataclass
class Rates:
    """What the CPU does in a second, all threads together."""

    fma: float
    division: float
    read: float


def work_of(problem: Problem, kind: str) -> Work:
    """The work of an attention. Backward computes the scores again, as nothing keeps them."""
    if kind == "backward":
        whole, forward = work_of(problem, "forward+backward"), work_of(problem, "forward")
        return Work(*(a - b for a, b in zip(astuple(whole), astuple(forward), strict=True)))
    case = problem.case
    pairs = float(problem.pairs.sum())
    queries = float(problem.pairs.any(-1).sum())
    keys = float(problem.pairs.any(-2).sum())
    Dq, Dv = case.Dq or case.D, case.Dv or case.D
    both = kind == "forward+backward"
    floats = (queries * Dq + keys * (case.D + Dv)) * (2 if both else 1)
    if case.score == "dot":
        # forward: scores, output; backward: scores again, dq, dk; dv and the weights' gradient
        slots = pairs * (4 * case.D + 3 * Dv if both else case.D + Dv)
        return Work(slots, floats)
    if case.score == "multi-head":
        # each linear layer forward; its gradient of the input, and of the weight
        linear = (2 * queries + 2 * keys) * case.D**2 * (3 if both else 1)
        return Work(linear + pairs * case.D * (7 if both else 2), floats)
    # projections forward, again in the backward, and twice for the gradients; the output likewise
    projections = (queries * Dq + keys * case.D) * case.H * (4 if both else 1)
    pooling = pairs * Dv * (3 if both else 1)
    exponentials = EXP * (pairs + (queries + keys) * case.H) * (2 if both else 1)
    triples = pairs * case.H
    forward_triples = triples * 2 if both else triples
    slots = projections + pooling + exponentials
    return Work(slots, floats, forward_triples, triples if both else 0.0)


def triples_seconds(triples: float, slots: dict[int, float], rates: Rates) -> float:
    """With the best number of hidden units to a division."""
    return triples * min(
        max(1 / units / rates.division, (own + DIVISION / units) / rates.fma)
        for units, own in slots.items()
    )


def limit_seconds(work: Work, rates: Rates) -> float:
    """The least time: that of the arithmetic, or of reading the arrays if it takes longer."""
    arithmetic = (
        work.slots / rates.fma
        + triples_seconds(work.forward_triples, FORWARD, rates)
        + triples_seconds(work.backward_triples, BACKWARD, rates)
    )
    return max(arithmetic, work.floats / rates.read)


# ---- the CPU ------------------------------------------------------------------------------------

FLAGS = {
    "avx512": ["-DLANES=16", "-mavx512f", "-mprefer-vector-width=512"],
    "avx2": ["-DLANES=8", "-mavx2", "-mfma"],
}


def compile_peak(folder: Path, instruction_set: str) -> Path | None:
    """peak.c as a shared library in this folder; None where there is no compiler for it."""
    source = Path(__file__).parent.parent / "peak.c"
    library = folder / f"peak-{instruction_set}.so"
    compiler = os.environ.get("CC") or shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    flags = ["-O2", "-ffp-contract=fast", "-shared", "-fPIC", *FLAGS.get(instruction_set, [])]
    command = [*shlex.split(compiler), *flags, str(source), "-o", str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return library if done.returncode == 0 else None


class Machine:
    """The functions of peak.c on so many threads, as calls that can be timed."""

    def __init__(self, library: Path, threads: int) -> None:
        functions = ctypes.CDLL(str(library))
        self.pool = ThreadPoolExecutor(threads)
        self.threads = threads
        self.functions = functions
        functions.peak_read.argtypes = [ctypes.c_void_p, ctypes.c_long]
        for name in ("peak_fma", "peak_division", "peak_read"):
            getattr(functions, name).restype = ctypes.c_long

    def calls(self, problem: Problem) -> dict[str, Callable[[], int]]:
        """Each returns the floats it has worked on; about a millisecond."""
        floats = max(2**12, sum(x.size for x in problem.arrays) // self.threads // 128 * 128)
        arrays = [aligned(floats) for _ in range(self.threads)]
        f = self.functions
        return {
            "fma": lambda: self.on_all(lambda i: f.peak_fma(200_000)),
            "division": lambda: self.on_all(lambda i: f.peak_division(15_000)),
            "read": lambda: self.on_all(lambda i: f.peak_read(arrays[i].ctypes.data, floats)),
        }

    def on_all(self, function: Callable[[int], int]) -> int:
        """The sum over the threads; one thread is the caller's."""
        if self.threads == 1:
            return function(0)
        return sum(self.pool.map(function, range(self.threads)))


def aligned(floats: int) -> Array:
    """Zeros that start at a multiple of 64 bytes."""
    memory = np.zeros(floats + 16, np.float32)
    first = -memory.ctypes.data % 64 // 4
    memory += 1  # pages of their own
    return memory[first : first + floats]


def copying(problem: Problem, work: str, threads: int) -> Callable[[], list[Array]]:
    """The physical limit of a masked softmax: copying the valid part, and no arithmetic.

    Forward that of the scores into a new array, backward that of the gradient into another;
    reading the weights as well is left out. Batch entries are shared out to the threads.
    """
    (X,), g = problem.arrays, problem.grad_output
    sources = {"forward": [X], "forward+backward": [X, g], "backward": [g]}[work]
    lens = [int(n) for n in problem.pairs[:, 0].sum(-1)]
    pool = ThreadPoolExecutor(threads)

    def copy(source: Array, out: Array, part: int) -> None:
        for b in range(part, len(source), threads):
            out[b, :, : lens[b]] = source[b, :, : lens[b]]

    def call() -> list[Array]:
        copies = []
        for source in sources:
            out = np.zeros(source.shape, source.dtype)  # the system's zeros: not touched so far
            list(pool.map(partial(copy, source, out), range(threads)))
            copies.append(out)
        return copies

    return call


def making(results: list[Array]) -> Callable[[], list[Array]]:
    """The floor of a toy: a call that makes the arrays of its results, and leaves them empty."""
    shapes, dtype, empty = [x.shape for x in results], results[0].dtype, np.empty
    if len(shapes) == 1:
        return lambda: [empty(shapes[0], dtype)]
    return lambda: [empty(shape, dtype) for shape in shapes]
