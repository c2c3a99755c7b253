"""The fuzzer of attnext.torch: rounds of it hold, and what it looks for it finds.

.ci/run fuzz has it run for longer; fuzz_torch.py says what a round is.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import fuzz_torch
import pytest
import torch
from fuzz_program import Broken
from fuzz_torch import any_tensors, no_tensors, second_derivatives, with_memory
from helpers import settle
from torch import Tensor

import attnext.torch as ours

pytestmark = pytest.mark.filterwarnings("ignore")  # as fuzz_torch.main


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """As fuzz_torch.main has it, and back."""
    before = gc.get_threshold(), torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settle()
    gc.disable()
    yield
    gc.set_threshold(*before[0])
    torch.set_num_threads(before[1])
    gc.enable()


def rounds(kind: Callable[[random.Random], None], many: int = 30) -> None:
    for seed in range(many):
        kind(random.Random(seed))


@pytest.mark.parametrize("kind", fuzz_torch.ROUNDS)
def test_rounds_hold(kind: Callable[[random.Random], None]) -> None:
    rounds(kind)


# ---- faults of each kind are found ---------------------------------------------------------------

softmax = ours.masked_softmax


class Once(torch.autograd.Function):
    """Its gradient is a constant to autograd."""

    @staticmethod
    def forward(ctx: Any, X: Tensor) -> Tensor:
        weights = torch.softmax(X, -1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        flows: Tensor = (grad - (grad * weights).sum(-1, keepdim=True)) * weights
        return flows.detach()


def is_off(X: Tensor, **more: Any) -> Tensor:
    off: Tensor = softmax(X, **more) * (1 + 2**-20)
    return off


def has_other_gradients(X: Tensor, **more: Any) -> Tensor:
    other: Tensor = softmax(X if X.is_contiguous() else X + 0.01 * (X - X.detach()), **more)
    return other


def reads_anything(X: Tensor, **more: Any) -> Tensor:
    return torch.zeros(X.shape)


def has_no_second_derivatives(X: Tensor, **more: Any) -> Tensor:
    return Once.apply(X)  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (any_tensors, is_off),
        (any_tensors, has_other_gradients),
        (no_tensors, reads_anything),
        (second_derivatives, has_no_second_derivatives),
    ],
    ids=lambda of: of.__name__,
)
def test_a_wrong_function_is_found(
    kind: Callable[[random.Random], None],
    fault: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fuzz_torch, "FUNCTIONS", ["masked_softmax"])
    monkeypatch.setattr(fuzz_torch, "OPTIONS", set())
    rounds(kind)
    monkeypatch.setattr(ours, "masked_softmax", fault)
    with pytest.raises(Broken):
        rounds(kind, 100)


def test_a_memory_that_others_disturb_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = ours.DotProductAttention(0.0)
    calls: list[Tensor] = []
    call = layer.forward

    def forward(*given: Any) -> Any:
        calls.append(torch.zeros(()))
        return call(*given) * (1 + (len(calls) > 2) * 2**-20)

    monkeypatch.setattr(layer, "forward", forward)
    monkeypatch.setattr(fuzz_torch, "MAKERS", {"dot": lambda: layer})
    with pytest.raises(Broken, match="other bits in a thread"):
        with_memory(random.Random(0))
