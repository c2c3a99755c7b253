"""Exceptions of the caller and of PyTorch reach the caller of attnext.torch, and C runs once.

A call may run code that is not attnext's: hooks that pack saved tensors, among them those of
torch.utils.checkpoint, modes, handlers of signals. Nothing that such code raises is an answer of
attnext's, so nothing is caught and tried again.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import checkpoint

import attnext.torch as ours
from attnext import _core
from attnext.torch.nn import MultiheadAttention


class Mine(Exception):
    pass


class MineToo(ValueError):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"queries {one} {two}")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each function of C is called."""
    counts: dict[str, int] = {}

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return function(*args, **options)

        return call

    for name in ("dot_product_attention", "multi_head_attention", "masked_softmax"):
        for form in (f"_{name}", name, f"{name}_backward", f"_{name}_backward"):
            if hasattr(_core, form):
                monkeypatch.setattr(_core, form, counted(form, getattr(_core, form)))
    return counts


def total(counts: dict[str, int]) -> int:
    return sum(counts.values())


# ---- checkpoints ---------------------------------------------------------------------------------

X = torch.randn(2, 3, 8)
LENS = torch.tensor([2, 3])


def dropped(q: Tensor) -> Tensor:
    return ours.dot_product_attention(q, q, q, LENS, dropout_p=0.5)


ATTENTIONS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "sdpa": lambda: lambda q: ours.scaled_dot_product_attention(q, q, q),
    "dropout": lambda: dropped,
    "lengths in a list": lambda: lambda q: ours.dot_product_attention(q, q, q, [2, 3]),
    "float64": lambda: lambda q: ours.dot_product_attention(*[q.double()] * 3, LENS).float(),
    "softmax": lambda: lambda q: ours.masked_softmax(q @ q.mT, LENS) @ q,
    "layer": lambda: partial(_self_attention, ours.MultiHeadAttention(8, 8, 8, 8, 2, 0.5)),
    "nn": lambda: partial(_self_attention, MultiheadAttention(8, 2, 0.5, batch_first=True)),
}


def _self_attention(layer: Any, q: Tensor) -> Tensor:
    made = layer(q, q, q)
    output: Tensor = made[0] if isinstance(made, tuple) else made
    return output


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("nested", [False, True])
def test_checkpoint(name: str, early: bool, nested: bool) -> None:
    """Attention is the last that saves tensors; then PyTorch ends the recomputation early."""
    attend = ATTENTIONS[name]()
    found = []
    for again in (False, True):
        torch.manual_seed(0)
        q = X.clone().requires_grad_()
        run: Callable[..., Any] = attend
        with checkpoints.set_checkpoint_early_stop(early):
            for _ in range(again * (1 + nested)):
                run = partial(checkpoint, run, use_reentrant=False)
            output = run(q)
            output.square().sum().backward()
        found.append((output.detach(), q.grad))
    for first, second in zip(*found, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["sdpa", "dropout", "lengths in a list"])
def test_checkpoint_calls_c_three_times(name: str, calls: dict[str, int]) -> None:
    """Forward, recomputation, backward."""
    q = X.clone().requires_grad_()
    output: Any = checkpoint(ATTENTIONS[name](), q, use_reentrant=False)
    output.sum().backward()
    assert total(calls) == 3


# ---- hooks, modes, signals -----------------------------------------------------------------------


ERRORS = [
    Mine("mine"),
    MineToo(1, 2),
    ValueError("queries are mine"),
    TypeError("mask"),
    OSError(5),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("name", ["sdpa", "dropout", "lengths in a list", "layer", "nn"])
def test_a_hook_that_raises(name: str, error: Exception, calls: dict[str, int]) -> None:
    """The very exception comes out, unchanged, and C was called once."""
    attend = ATTENTIONS[name]()
    text = str(error)

    def pack(x: Tensor) -> Tensor:
        raise error

    q = X.clone().requires_grad_()
    with saved_tensors_hooks(pack, lambda x: x), pytest.raises(type(error)) as raised:
        attend(q)
    assert raised.value is error and str(error) == text
    assert total(calls) == 1


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_hook_that_raises_on_the_way_back(error: Exception, calls: dict[str, int]) -> None:
    def unpack(x: Tensor) -> Tensor:
        raise error

    q = X.clone().requires_grad_()
    with saved_tensors_hooks(lambda x: x, unpack):
        output = ATTENTIONS["sdpa"]()(q)
    with pytest.raises(type(error)) as raised:
        output.sum().backward()
    assert raised.value is error and total(calls) == 1


class Raises(TorchFunctionMode):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise self.error


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("name", ["sdpa", "dropout", "layer", "nn"])
def test_a_mode_that_raises(name: str, error: Exception, calls: dict[str, int]) -> None:
    attend = ATTENTIONS[name]()
    with pytest.raises(type(error)) as raised, Raises(error):
        attend(X)
    assert raised.value is error and total(calls) == 0


@pytest.mark.parametrize("error", [Mine("mine"), TimeoutError(), ValueError("late")], ids=repr)
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_a_signal_handler_that_raises(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a handler does that ends a call after a time limit."""
    counted = _core._dot_product_attention  # type: ignore[attr-defined]

    sent = []

    def sends(*args: Any, **options: Any) -> Any:
        sent.append(error)
        signal.raise_signal(signal.SIGTERM)
        return counted(*args, **options)

    def handler(number: int, frame: Any) -> None:
        raise error

    assert threading.current_thread() is threading.main_thread()
    monkeypatch.setattr(_core, "_dot_product_attention", sends)
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(type(error)) as raised:
            ours.scaled_dot_product_attention(X, X, X)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert raised.value is error and len(sent) == 1


# ---- errors of attnext's own ---------------------------------------------------------------------


def test_a_memory_error_is_raised_at_once(calls: dict[str, int]) -> None:
    huge = torch.zeros(1, 1).expand(2**40, 4)
    with pytest.raises(MemoryError):
        ours.dot_product_attention(huge, X[0, :, :4], X[0])
    assert total(calls) == 1
    with pytest.raises(MemoryError):
        ours.scaled_dot_product_attention(huge, X[0, :, :4], X[0])
    assert total(calls) == 2


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"valid_lens": torch.tensor([1, 2, 3])}, "valid_lens"),
        ({"keys": X[..., :5]}, "keys"),
        ({"empty_rows": "none"}, "empty_rows"),
    ],
)
def test_a_wrong_argument_is_refused_by_one_call(
    options: dict[str, Any], word: str, calls: dict[str, int]
) -> None:
    inputs = {"queries": X, "keys": X, "values": X}
    with pytest.raises(ValueError, match=f"^{word} "):
        ours.dot_product_attention(**{**inputs, **options})
    assert total(calls) == 1


def test_leading_axes_that_broadcast_are_refused_once_and_then_served(
    calls: dict[str, int],
) -> None:
    """C refuses shapes before it computes."""
    output = ours.scaled_dot_product_attention(X[0], X, X)
    assert torch.equal(output, ours.scaled_dot_product_attention(X[0].expand_as(X), X, X))
    assert total(calls) == 3
    with contextlib.suppress(ValueError):
        ours.scaled_dot_product_attention(X[:, :, :4], X, X)
    assert total(calls) == 4
