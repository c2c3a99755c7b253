"""The arrays of a case: the same random numbers in every run, for everybody who computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .cases import Case
from .masks import MASKS

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Problem:
    """What there is to compute with."""

    case: Case
    inputs: dict[str, Array]  # in the order of our functions' arguments, and of the gradients
    grad_output: Array  # the gradient that flows into the output
    options: dict[str, Any]  # valid_lens, mask, causal, window, as our functions take them
    allowed: Array | None  # the same as bools that broadcast to (*lead, M, N); None: all pairs

    @property
    def arrays(self) -> list[Array]:
        """The inputs without their names."""
        return list(self.inputs.values())

    @property
    def pairs(self) -> Array:
        """Which pairs take part, (*lead, M, N); nothing is copied."""
        allowed = np.True_ if self.allowed is None else self.allowed
        return np.broadcast_to(allowed, (*self.case.lead, self.case.M, self.case.N))


def make(case: Case) -> Problem:
    """Standard normal float32 inputs; parameters scaled as a layer's initial ones."""
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape, dtype=np.float32)

    options, allowed = MASKS[case.mask](case.lead, case.M, case.N)
    lead, M, N = case.lead, case.M, case.N
    if case.score == "softmax":
        X = normal(*lead, M, N)
        return Problem(case, {"X": X}, normal(*lead, M, N), options, allowed)
    Dq, Dv = case.Dq or case.D, case.Dv or case.D
    inputs = {
        "queries": normal(*lead, M, Dq),
        "keys": normal(*lead, N, case.D),
        "values": normal(*lead, N, Dv),
    }
    if case.score == "additive":
        inputs["W_q"] = normal(case.H, Dq) / np.float32(Dq**0.5)
        inputs["W_k"] = normal(case.H, case.D) / np.float32(case.D**0.5)
        inputs["w_v"] = normal(case.H) / np.float32(case.H**0.5)
    if case.score == "multi-head":
        if "mask" in options and options["mask"].ndim == 3:  # of an entry: for all its heads
            options = {"mask": options["mask"][:, None]}
        for name in ("W_q", "W_k", "W_v", "W_o"):
            inputs[name] = normal(case.D, case.D) / np.float32(case.D**0.5)
    return Problem(case, inputs, normal(*lead, M, Dv), options, allowed)
