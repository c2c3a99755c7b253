"""Memory: outputs, projections and a little scratch; never M x N x H, nor M x N unless asked for.

Each measurement is the growth of a process's peak, in a process of its own.
"""

from __future__ import annotations

import math

from helpers import run_python

MIB = 2**20

MEASURE = """
import os, resource, sys
from helpers import *

def peak():
    # The high-water mark of this program alone; ru_maxrss may start at that of its parent.
    try:
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    except FileNotFoundError:
        scale = 1 if sys.platform == "darwin" else 1024
        return scale * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def growth(call):
    # In a copy of this process.
    if os.fork():
        assert os.wait()[1] == 0
        return
    before = peak()
    result = call()
    print(peak() - before, flush=True)
    os._exit(0)

def problem(score, B, M, N, D, H):
    rng = np.random.default_rng(0)
    return make_problem(score, rng, lead=(B,), M=M, N=N, D=D, Dk=D, Dv=D, H=H, extra_grads=False)

for score in SCORES:
    problem(score, 1, 5, 7, 3, 4).run()  # what the first calls load
"""


def growths(code: str) -> list[int]:
    """Bytes by which each call that the code hands to growth() raises the peak."""
    return [int(line) for line in run_python("-c", MEASURE + code).stdout.split()]


def test_additive_attention_forms_no_tensor_of_hidden_units() -> None:
    """(4, 512, 512) with 256 hidden units: the textbook's tensor has 1 GiB."""
    B, M, N, D, H = 4, 512, 512, 64, 256
    code = f"""
p = problem("additive", {B}, {M}, {N}, {D}, {H})
growth(p.forward)
growth(p.backward)
"""
    forward, backward = growths(code)
    projections = 4 * B * (M + N) * H
    assert forward < 4 * B * M * D + projections + 64 * MIB
    gradients = 4 * (B * M * D + 2 * B * N * D + 2 * H * D + H)
    assert backward < gradients + 2 * projections + 64 * MIB  # with those of the projections


def test_no_tensor_of_all_pairs() -> None:
    """(1, 4096, 8192): scores or weights would have 128 MiB."""
    M, N, D, H = 4096, 8192, 8, 8
    code = f"""
for score in SCORES:
    p = problem(score, 1, {M}, {N}, {D}, {H})
    growth(p.forward)
    growth(p.backward)
"""
    found = growths(code)
    projections = 2 * 4 * (M + N) * H
    assert len(found) == 8
    assert max(found[::2]) < 4 * M * D + projections + 64 * MIB
    assert max(found[1::2]) < 4 * (M + 2 * N) * D + projections + 64 * MIB


def test_weights_are_formed_once_when_asked_for() -> None:
    M, N = 4096, 8192
    code = f"""
p = problem("dot", 1, {M}, {N}, 8, 0)
growth(lambda: p.forward(return_weights=True))
"""
    assert 2 * M * N < growths(code)[0] < 4 * M * N + 64 * MIB  # the peak was above the present


def test_masked_softmax_needs_its_result_only() -> None:
    code = """
X = np.zeros((64, 512, 512), dtype=np.float32)
growth(lambda: attnext.masked_softmax(X, 300))
"""
    size = 4 * 64 * 512 * 512
    assert size / 2 < growths(code)[0] < size + 32 * MIB


def test_inputs_as_they_should_be_are_not_copied() -> None:
    code = """
rng = np.random.default_rng(0)
p = make_problem("dot", rng, lead=(1,), M=4, N=2**18, D=64, Dv=64, extra_grads=False)
growth(p.forward)
"""
    assert growths(code)[0] < 32 * MIB  # keys alone have 64 MiB


# ---- masks ---------------------------------------------------------------------------------------


def test_a_mask_is_never_copied() -> None:
    """128 MiB of bytes, or a view that stands for as many."""
    code = """
MASKS = [
    lambda: np.ones((2, 16, 2048, 2048), dtype=bool),
    lambda: np.broadcast_to(np.ones((2048, 2048), dtype=bool), (2, 16, 2048, 2048)),
    lambda: np.ones((2, 16, 2048, 2049), dtype=bool)[..., 1:],
    lambda: np.ones((2, 2048, 16, 2048), dtype=bool).swapaxes(1, 2),
]
p = problem("dot", 1, 5, 7, 3, 4)
p.inputs = {name: np.zeros((2, 16, 2048, 4), dtype=np.float32) for name in p.inputs}
p.options["valid_lens"] = 100
for mask in MASKS:
    mask = mask()
    assert mask.nbytes == 128 * 2**20
    growth(lambda: p.forward(mask=mask))
    growth(lambda: p.forward(dropout_mask=mask))
"""
    found = growths(code)
    assert len(found) == 8
    assert max(found) < 4 * 2 * 16 * 2048 * 4 + 32 * MIB


def test_the_gradient_of_a_shared_bias_needs_no_tensor_of_all_pairs() -> None:
    """(8, 2048, 2048) pairs: in full it would have 128 MiB."""
    shapes = [(2048, 2048), (1, 1, 2048), (1, 8, 2048, 1), (8, 1, 2048), (1,)]
    code = f"""
p = problem("dot", 1, 5, 7, 3, 4)
p.inputs = {{name: np.zeros((1, 8, 2048, 4), dtype=np.float32) for name in p.inputs}}
p.grads["grad_output"] = p.inputs["queries"]
for shape in {shapes}:
    p.options["bias"] = np.zeros(shape, dtype=np.float32)
    growth(lambda: p.backward(return_grad_bias=True))
"""
    for shape, found in zip(shapes, growths(code), strict=True):
        gradients = 4 * (3 * 8 * 2048 * 4 + math.prod(shape))
        assert found < gradients + 64 * MIB, shape


def test_grouped_heads_copy_no_keys() -> None:
    """32 query heads on one of keys and values with 64 MiB each."""
    code = """
rng = np.random.default_rng(0)
p = make_problem("dot", rng, lead=(32,), M=1, N=2**18, D=64, Dv=64, kv_heads=1, extra_grads=False)
growth(p.forward)
"""
    assert growths(code)[0] < 32 * MIB


def test_merging_copies_no_part() -> None:
    code = """
outputs = np.zeros((8, 2**17, 64), dtype=np.float32)  # 256 MiB
lses = np.zeros((8, 2**17), dtype=np.float32)
growth(lambda: attnext.merge_attention(outputs, lses))
growth(lambda: attnext.merge_attention(list(outputs), list(lses)))
"""
    assert max(growths(code)) < 4 * 2**17 * 65 + 16 * MIB
