"""Memory: outputs, projections and a little scratch; never M x N x H, nor M x N unless asked for.

Each measurement is the growth of a process's peak, in a process of its own.
"""

from __future__ import annotations

import math

import pytest
from helpers import run_python

MIB = 2**20

MEASURE = """
import resource, sys
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
    before = peak()
    result = call()
    return peak() - before

def problem(score, B, M, N, D, H):
    rng = np.random.default_rng(0)
    return make_problem(score, rng, lead=(B,), M=M, N=N, D=D, Dk=D, Dv=D, H=H, extra_grads=False)

for score in SCORES:
    problem(score, 1, 5, 7, 3, 4).run()  # what the first calls load
"""


def growth_of(score: str, call: str, B: int, M: int, N: int, D: int, H: int) -> int:
    """Bytes by which the call raises the peak."""
    code = f"p = problem({score!r}, {B}, {M}, {N}, {D}, {H})\nprint(growth(p.{call}))"
    return int(run_python("-c", MEASURE + code).stdout)


@pytest.mark.parametrize("call", ["forward", "backward"])
def test_additive_attention_forms_no_tensor_of_hidden_units(call: str) -> None:
    """(16, 512, 512) with 256 hidden units: the textbook's tensor has 4 GiB."""
    B, M, N, D, H = 16, 512, 512, 64, 256
    outputs = 4 * B * M * D
    projections = 4 * B * (M + N) * H
    if call == "backward":
        outputs = 4 * (B * M * D + 2 * B * N * D + 2 * H * D + H)
        projections *= 2  # they and their gradients
    assert growth_of("additive", call, B, M, N, D, H) < outputs + projections + 64 * MIB


@pytest.mark.parametrize("call", ["forward", "backward"])
@pytest.mark.parametrize("score", ["dot", "gaussian", "cosine", "additive"])
def test_no_tensor_of_all_pairs(score: str, call: str) -> None:
    """(1, 8192, 8192): scores or weights would have 256 MiB."""
    M, N, D, H = 8192, 8192, 8, 8
    arrays = 4 * (M + 2 * N) * D if call == "backward" else 4 * M * D
    projections = 2 * 4 * (M + N) * H
    assert growth_of(score, call, 1, M, N, D, H) < arrays + projections + 64 * MIB


def test_weights_are_formed_once_when_asked_for() -> None:
    M, N = 4096, 8192
    code = f"p = problem('dot', 1, {M}, {N}, 8, 0)\n"
    code += "print(growth(lambda: p.forward(return_weights=True)))"
    growth = int(run_python("-c", MEASURE + code).stdout)
    assert 2 * M * N < growth < 4 * M * N + 64 * MIB  # the peak before was above the present


def test_masked_softmax_needs_its_result_only() -> None:
    code = """
X = np.zeros((64, 512, 512), dtype=np.float32)
print(growth(lambda: attnext.masked_softmax(X, 300)))
"""
    size = 4 * 64 * 512 * 512
    assert size / 2 < int(run_python("-c", MEASURE + code).stdout) < size + 32 * MIB


def test_inputs_as_they_should_be_are_not_copied() -> None:
    code = """
rng = np.random.default_rng(0)
p = make_problem("dot", rng, lead=(1,), M=4, N=2**18, D=64, Dv=64, extra_grads=False)
print(growth(p.forward))
"""
    assert int(run_python("-c", MEASURE + code).stdout) < 32 * MIB  # keys alone have 64 MiB


# ---- masks ---------------------------------------------------------------------------------------

MASKS = {
    "of its own": "np.ones((2, 32, 2048, 2048), dtype=bool)",
    "shared": "np.broadcast_to(np.ones((2048, 2048), dtype=bool), (2, 32, 2048, 2048))",
    "wider rows": "np.ones((2, 32, 2048, 2049), dtype=bool)[..., 1:]",
    "heads last": "np.ones((2, 2048, 32, 2048), dtype=bool).swapaxes(1, 2)",
}


@pytest.mark.parametrize("argument", ["mask", "dropout_mask"])
@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_is_never_copied(mask: str, argument: str) -> None:
    """256 MiB of bytes, or a view that stands for as many."""
    code = f"""
p = problem("dot", 1, 5, 7, 3, 4)
p.inputs = {{name: np.zeros((2, 32, 2048, 4), dtype=np.float32) for name in p.inputs}}
p.options["valid_lens"] = 100
p.options[{argument!r}] = {MASKS[mask]}
p.options[{argument!r}].nbytes == 256 * 2**20 or sys.exit(1)
print(growth(p.forward))
"""
    output = 4 * 2 * 32 * 2048 * 4
    assert int(run_python("-c", MEASURE + code).stdout) < output + 32 * MIB


@pytest.mark.parametrize(
    "shape", [(2048, 2048), (1, 1, 2048), (1, 16, 2048, 1), (16, 1, 2048), (1,)], ids=str
)
def test_the_gradient_of_a_shared_bias_needs_no_tensor_of_all_pairs(shape: tuple[int, ...]) -> None:
    """(2, 16, 2048, 2048) pairs: in full it would have 512 MiB."""
    code = f"""
p = problem("dot", 1, 5, 7, 3, 4)
p.inputs = {{name: np.zeros((2, 16, 2048, 4), dtype=np.float32) for name in p.inputs}}
p.grads["grad_output"] = p.inputs["queries"]
p.options["bias"] = np.zeros({shape}, dtype=np.float32)
print(growth(lambda: p.backward(return_grad_bias=True)))
"""
    gradients = 4 * (3 * 2 * 16 * 2048 * 4 + math.prod(shape))
    assert int(run_python("-c", MEASURE + code).stdout) < gradients + 64 * MIB


def test_grouped_heads_copy_no_keys() -> None:
    """32 query heads on one of keys and values with 64 MiB each."""
    code = """
rng = np.random.default_rng(0)
p = make_problem("dot", rng, lead=(32,), M=1, N=2**18, D=64, Dv=64, kv_heads=1, extra_grads=False)
print(growth(p.forward))
"""
    assert int(run_python("-c", MEASURE + code).stdout) < 32 * MIB


def test_merging_copies_no_part() -> None:
    code = """
outputs = np.zeros((8, 2**17, 64), dtype=np.float32)  # 256 MiB
lses = np.zeros((8, 2**17), dtype=np.float32)
print(growth(lambda: attnext.merge_attention(outputs, lses)))
print(growth(lambda: attnext.merge_attention(list(outputs), list(lses))))
"""
    growths = [int(x) for x in run_python("-c", MEASURE + code).stdout.split()]
    assert max(growths) < 4 * 2**17 * 65 + 16 * MIB
