"""Who takes part: attnext and its peers. A peer is imported when it is first asked for.

Each is a function of a peer_*.py: from a problem, the work and the number of threads to a call
without arguments, or None where the peer has no such function. By work, the call returns

    forward            the output, and the weights if the case asks for them
    forward+backward   the same, then the gradients of all inputs in their order
    backward           these gradients alone, given what a forward has kept
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .problem import Problem

WORKS = ("forward", "forward+backward", "backward")

Call = Callable[[], Any]
Maker = Callable[[Problem, str, int], Call | None]

CPUS = ("avx2", "generic")  # asked for by themselves (--cpu)
PEERS = {
    "attnext": ("peer_attnext", "call"),
    "attnext no memory": ("peer_attnext", "anew"),
    "attnext unaligned": ("peer_attnext", "unaligned"),
    **{f"attnext {cpu}": ("narrower", cpu) for cpu in CPUS},
    "attnext.torch": ("peer_attnext_torch", "call"),
    "NumPy": ("peer_numpy", "call"),
    "torch eager": ("peer_torch", "eager"),
    "torch no memory": ("peer_torch", "anew"),
    "torch SDPA": ("peer_torch", "sdpa"),
    "torch MHA": ("peer_torch", "module"),
    "torch.compile": ("peer_torch", "compiled"),
    "JAX jit": ("peer_jax", "call"),
    "ONNX Runtime": ("peer_onnx", "call"),
}
# attnext, and attnext in another way: as such, no peers of it.
OURS = tuple(name for name in PEERS if name.startswith("attnext"))
OTHERS = tuple(name for name in PEERS if name not in OURS)
# Where queries come one by one: attnext with a memory, torch with keys that the caller projects
# once; and both with direct calls, which do it anew at every step.
STEPWISE_ONLY = ("attnext no memory", "torch no memory")
STEPWISE_TOO = (*[name for name in OURS if name not in STEPWISE_ONLY], "torch eager")
# Who has heads between linear layers, too.
MULTI_HEAD_TOO = (*STEPWISE_TOO, "torch SDPA", "torch MHA", "torch.compile")
SLOW_TO_COMPILE = ("torch.compile", "JAX jit")


def load(names: list[str]) -> tuple[dict[str, Maker], dict[str, str]]:
    """The makers of those that are installed and work; of the others, what went wrong."""
    makers: dict[str, Maker] = {}
    missing: dict[str, str] = {}
    for name in names:
        module, function = PEERS[name]
        try:
            makers[name] = getattr(importlib.import_module(f".{module}", __package__), function)
        except Exception as error:  # whatever a broken installation raises
            missing[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return makers, missing


def takes(name: str, problem: Problem) -> bool:
    """Whether this peer is asked for a call at all."""
    if problem.case.score == "multi-head":
        return name in MULTI_HEAD_TOO
    return name in STEPWISE_TOO or problem.case.steps == (name in STEPWISE_ONLY)
