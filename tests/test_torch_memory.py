"""Memories of attnext.torch's layers: keys and values that stay, in autograd's graph."""

from __future__ import annotations

import copy
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from allocations import ACTIONS, in_allocations
from helpers import in_threads
from torch import Tensor, nn

import attnext
import attnext.torch as ours
from attnext.torch import AdditiveAttention, DotProductAttention, MultiHeadAttention, memory_graph

KINDS = ["additive", "additive with bias", "dot", "dot with scale"]
KINDS += ["multi-head", "multi-head, shared, with bias"]
B, M, N, DK, DV = 2, 6, 7, 4, 5
Layer = AdditiveAttention | DotProductAttention | MultiHeadAttention

every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def make_layer(kind: str, dropout: float = 0.0) -> Layer:
    if kind.startswith("dot"):
        return DotProductAttention(dropout, scale=0.3 if "scale" in kind else None)
    if kind.startswith("multi"):
        shared = 1 if "shared" in kind else None
        bias = "bias" in kind
        return MultiHeadAttention(DK, 3, DV, 10, 2, dropout, bias, num_kv_heads=shared)
    return AdditiveAttention(DK, 3, 9, dropout, bias="bias" in kind)


def entries(kind: str) -> tuple[int, ...]:
    """The leading axes of a mask of each entry of the batch: shared by heads, if there are any."""
    return (B, 1) if kind.startswith("multi") else (B,)


def make_inputs(layer: Layer, keys: int = N) -> tuple[Tensor, Tensor, Tensor]:
    Dq = DK if isinstance(layer, DotProductAttention) else 3
    shapes = (B, M, Dq), (B, keys, DK), (B, keys, DV)
    queries, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    return queries, k, v


def gradients(result: Tensor, layer: Layer, *inputs: Tensor) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(result.shape, generator=generator)
    return list(torch.autograd.grad((result * weights).sum(), [*inputs, *layer.parameters()]))


def assert_close(got: list[Tensor], expected: list[Tensor]) -> None:
    """Up to the rounding of sums in another order."""
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6 * max(1.0, float(b.abs().max())))


def assert_alike(got: Tensor, expected: Tensor, layer: Layer, *inputs: Tensor) -> None:
    assert torch.equal(got, expected)
    assert_close(gradients(got, layer, *inputs), gradients(expected, layer, *inputs))


def steps(layer: Layer, queries: Tensor, memory: Any, **options: Any) -> Tensor:
    rows = [layer(queries[:, t : t + 1], memory, **options) for t in range(queries.shape[1])]
    return torch.cat(rows, dim=1)


# ---- results and gradients -----------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("lens", [None, 3, [7, 2]], ids=str)
def test_steps_are_one_call(kind: str, lens: Any) -> None:
    layer = make_layer(kind)
    queries, keys, values = make_inputs(layer)
    mask = torch.rand(B, 1, N) > 0.3  # of keys: it knows no heads
    expected = layer(queries, keys, values, lens, mask=mask.reshape(*entries(kind), 1, N))
    memory = layer.memory(keys, values, None if lens is None else torch.tensor(lens), mask=mask)
    got = steps(layer, queries, memory)
    assert_alike(got, expected, layer, queries, keys, values)


@every_kind
def test_options_and_weights(kind: str) -> None:
    layer = make_layer(kind)
    queries, keys, values = make_inputs(layer)
    bias, sink = torch.randn(M, N, requires_grad=True), torch.randn(B, 1, requires_grad=True)
    options: dict[str, Any] = {"bias": bias, "sink": sink, "softcap": 2.0, "window": (3, 2)}
    options |= {"mask": torch.rand(*entries(kind), M, N) > 0.2, "empty_rows": "zero"}
    results = []
    for given in ((keys, values, [7, 4]), (layer.memory(keys, values, [7, 4]),)):
        output = layer(queries, *given, **options, causal_offset=1)
        assert layer.attention_weights is not None
        results.append(torch.cat([output.flatten(), layer.attention_weights.flatten()]))
    assert torch.equal(*results)
    got, expected = (gradients(x, layer, queries, keys, values, bias, sink) for x in results)
    assert_close(got, expected)
    for recorded in (True, False):
        with torch.set_grad_enabled(recorded):
            alone = layer(queries, layer.memory(keys, values), need_weights=False)
            assert layer.attention_weights is None
            assert torch.equal(alone, layer(queries, keys, values, need_weights=False))


@every_kind
def test_second_derivatives_are_refused(kind: str) -> None:
    """Asked for on the way to what a call, and what a memory, is made of."""
    layer = make_layer(kind)
    inputs = make_inputs(layer)
    memory = layer.memory(*inputs[1:])
    d = torch.autograd.grad(layer(inputs[0], memory).sum(), inputs, create_graph=True)
    for x in inputs[:2]:
        with pytest.raises(RuntimeError, match="a Memory has no second derivatives"):
            torch.autograd.grad(d[0].square().sum(), x, retain_graph=True)


@every_kind
def test_a_decoding_loop_is_one_causal_call(kind: str) -> None:
    """One key more for each query; the first keys have no gradient, and one is not appended."""
    layer = make_layer(kind)
    queries, keys, values = make_inputs(layer, M)
    expected = layer(queries, keys, values, causal=True)
    memory = layer.memory(keys[:, :0].detach(), values[:, :0].detach())
    rows = []
    for t in range(M):
        memory.append(keys[:, t : t + 1], values[:, t : t + 1])
        assert len(memory) == t + 1
        rows.append(layer(queries[:, t : t + 1], memory, causal=True))
    got = torch.cat(rows, dim=1)
    assert_alike(got, expected, layer, queries, keys, values)


@every_kind
def test_any_part_of_the_graph_any_number_of_times(kind: str) -> None:
    layer = make_layer(kind)
    queries, keys, values = make_inputs(layer)
    loss = steps(layer, queries, layer.memory(keys, values)).square().sum()
    wanted = [queries, keys, values, *layer.parameters()]
    once = torch.autograd.grad(loss, wanted, retain_graph=True)
    for x, expected in zip(wanted, once, strict=True):
        [alone] = torch.autograd.grad(loss, [x], retain_graph=True)
        assert torch.equal(alone, expected)
    again = torch.autograd.grad(loss, wanted)
    assert all(torch.equal(a, b) for a, b in zip(again, once, strict=True))


def test_a_gradient_of_the_weights_alone() -> None:
    layer = make_layer("additive")
    queries, keys, values = make_inputs(layer)
    layer(queries, layer.memory(keys, values))
    assert layer.attention_weights is not None
    d = torch.autograd.grad(layer.attention_weights.square().sum(), [queries, keys])
    layer(queries, keys, values)
    expected = torch.autograd.grad(layer.attention_weights.square().sum(), [queries, keys])
    assert_close(list(d), list(expected))


@every_kind
def test_padding_is_not_read(kind: str) -> None:
    layer = make_layer(kind)
    queries, keys, values = (x.detach() for x in make_inputs(layer))
    results = []
    for padding in (0.0, torch.nan):
        keys[:, 4:], values[:, 4:] = padding, padding
        k, v = (x.clone().requires_grad_() for x in (keys, values))
        memory = layer.memory(k, v, 4)
        output = layer(queries, memory)
        results.append([output, *torch.autograd.grad(output.sum(), [k, v, *layer.parameters()])])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b) and not a.isnan().any()


def test_dropout_is_that_of_the_call_without() -> None:
    layer = make_layer("additive", 0.5)
    queries, keys, values = make_inputs(layer)
    memory = layer.memory(keys, values)
    outputs = []
    for given in ((keys, values), (memory,)):
        torch.manual_seed(5)
        outputs.append(layer(queries, *given))
    assert torch.equal(*outputs)
    assert not torch.equal(layer(queries, memory), outputs[0])
    assert_close(gradients(outputs[1], layer, keys), gradients(outputs[0], layer, keys))
    layer.dropout.p = 0.9  # as it is at the call
    for given in ((keys, values), (memory,)):
        torch.manual_seed(5)
        outputs.append(layer(queries, *given))
    assert torch.equal(*outputs[2:])
    layer.eval()
    assert torch.equal(layer(queries, memory), layer(queries, keys, values))


def test_without_gradients() -> None:
    layer = make_layer("additive")
    queries, keys, values = make_inputs(layer)
    with torch.no_grad():
        memory = layer.memory(keys, values)
        assert not layer(queries, memory).requires_grad
    output = layer(queries, memory)  # made without a graph: nothing flows to keys and values
    d = torch.autograd.grad(output.sum(), [queries, layer.W_q.weight, keys], allow_unused=True)
    assert d[0] is not None and d[1] is not None and d[2] is None


def test_layers_that_are_more_than_their_weights() -> None:
    layer = make_layer("additive")
    layer.W_k.register_forward_hook(lambda *args: args[-1].tanh())
    layer.W_q = nn.Linear(3, 9)
    queries, keys, values = make_inputs(layer)
    got, expected = layer(queries, layer.memory(keys, values)), layer(queries, keys, values)
    assert torch.equal(got, expected)
    inputs = queries, keys, values
    used = [p for p in layer.parameters()]
    assert len(used) == 4
    assert_close(gradients(got, layer, *inputs), gradients(expected, layer, *inputs))


def test_a_projection_of_several_layers() -> None:
    layer = make_layer("additive")
    layer.W_k, layer.W_q = (
        nn.Sequential(nn.Linear(size, 6), nn.Tanh(), nn.Linear(6, 9)) for size in (DK, 3)
    )
    queries, keys, values = make_inputs(layer)
    got, expected = layer(queries, layer.memory(keys, values)), layer(queries, keys, values)
    assert_alike(got, expected, layer, keys)


# ---- calls in the middle of calls ----------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("outer", ["call", "append", "backward"])
def test_a_call_in_the_middle_of_another(kind: str, outer: str) -> None:
    """As a finaliser or a signal handler makes it. A thread that waits for itself waits for ever:
    so it is one of its own here."""
    layer = make_layer(kind)
    queries, keys, values = make_inputs(layer)
    expected = layer(queries, keys, values)
    expected_d = torch.autograd.grad(expected.sum(), [queries, keys, values])
    done: list[int] = []

    @torch.enable_grad()
    def call_and_append() -> None:
        memory = memories[-1]
        output = layer(queries[:, :1], memory)
        memory.append(keys[:, :1], values[:, :1])
        torch.autograd.grad(output.sum(), queries)

    def work() -> None:
        for when in range(6):
            memory = layer.memory(keys, values, N)  # what is appended takes no part
            memories.append(memory)
            with in_allocations(*[nothing] * when, call_and_append):
                if outer == "append":
                    memory.append(keys, values)
                output = layer(queries, memory)
                if outer != "backward":
                    ACTIONS.clear()
                d = torch.autograd.grad(output.sum(), [queries, keys, values])
                done.append(when)
            assert torch.equal(output, expected)
            assert_close(list(d), list(expected_d))

    memories: list[Any] = []
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(120)
    assert done == [*range(6)]


def nothing() -> None:
    pass


class Rows:
    """An attnext.Memory that runs actions right before and right after keys are appended."""

    def __init__(self, memory: attnext.Memory, actions: dict[str, Callable[[], None]]) -> None:
        self.memory, self.actions = memory, actions

    def append(self, *args: Any, **named: Any) -> None:
        self.actions.pop("before", nothing)()
        self.memory.append(*args, **named)
        self.actions.pop("after", nothing)()

    def __len__(self) -> int:
        return len(self.memory)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)


@pytest.fixture
def actions(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], None]]:
    """Actions "before" and "after", each run once, in the middle of an append."""
    of, run = attnext._core.Memory._of, dict[str, Callable[[], None]]()
    core = SimpleNamespace(Memory=SimpleNamespace(_of=lambda *args: Rows(of(*args), run)))
    monkeypatch.setattr(sys.modules[ours.Memory.__module__], "_core", core)
    return run


def directly(action: Callable[[], None]) -> None:
    action()


def in_a_thread(action: Callable[[], None]) -> None:
    in_threads(action)


@every_kind
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("run", [directly, in_a_thread])
def test_a_call_in_the_middle_of_an_append(
    kind: str,
    moment: str,
    run: Callable[[Callable[[], None]], None],
    actions: dict[str, Callable[[], None]],
) -> None:
    """The call uses the keys from before the append, and so do its gradients."""
    layer = make_layer(kind)
    queries, keys, values = make_inputs(layer)
    memory, outputs = layer.memory(keys, values), list[Tensor]()

    def call() -> None:
        with torch.enable_grad():
            assert len(memory) == N
            outputs.append(layer(queries, memory))

    actions[moment] = lambda: run(call)
    memory.append(keys, values)
    assert not actions and len(memory) == 2 * N
    assert_alike(outputs[0], layer(queries, keys, values), layer, queries, keys, values)


@every_kind
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("run", [directly, in_a_thread])
@pytest.mark.parametrize("masked", [False, True])
def test_an_append_in_the_middle_of_an_append(
    kind: str,
    moment: str,
    run: Callable[[Callable[[], None]], None],
    masked: bool,
    actions: dict[str, Callable[[], None]],
) -> None:
    """Both count, the one that ended first stands first, and gradients belong to their keys."""
    layer = make_layer(kind)
    queries, keys, values = make_inputs(layer)
    of_outer, of_inner = make_inputs(layer, 2)[1:], make_inputs(layer, 3)[1:]
    lens = torch.tensor([N + 4, N - 2]) if masked else None
    masks = [torch.rand(B, 1, n) < 0.7 if masked else None for n in (N, 3, 2)]
    memory = layer.memory(keys, values, lens, mask=masks[0])

    def append() -> None:
        with torch.enable_grad():
            memory.append(*of_inner, masks[1])

    actions[moment] = lambda: run(append)
    memory.append(*of_outer, masks[2])
    assert not actions and len(memory) == N + 5
    k, v = (torch.cat(x, dim=1) for x in zip((keys, values), of_inner, of_outer, strict=True))
    mask = torch.cat(masks, dim=-1).reshape(*entries(kind), 1, -1) if masked else None
    expected = layer(queries, k, v, lens, mask=mask)
    inputs = queries, keys, values, *of_inner, *of_outer
    assert_alike(layer(queries, memory), expected, layer, *inputs)


@every_kind
def test_every_append_of_every_thread_counts(kind: str) -> None:
    """Threads append and step at the same time; each key's gradient is that of its own value."""
    layer = make_layer(kind)
    queries, keys, values = make_inputs(layer)
    memory = layer.memory(keys, values)
    blocks = [[make_inputs(layer, 2)[1:] for _ in range(6)] for _ in range(3)]

    def append(mine: list[tuple[Tensor, ...]]) -> None:
        for block in mine:
            memory.append(*block)

    def step() -> None:
        for _ in range(6):
            torch.autograd.grad(layer(queries, memory).sum(), queries)

    in_threads(*(partial(append, mine) for mine in blocks), step)
    given = torch.from_numpy(memory._given_to(layer)[0])
    assert given.shape[1] == N + 3 * 6 * 2
    found = sorted(
        (block for mine in blocks for block in mine),
        key=lambda block: int((given == block[0][:, :1]).all(-1).all(0).nonzero()),
    )
    for mine in blocks:  # the blocks of one thread in their order
        places = [next(i for i, b in enumerate(found) if b is block) for block in mine]
        assert places == sorted(places)
    k, v = (torch.cat(x, dim=1) for x in zip((keys, values), *found, strict=True))
    inputs = queries, keys, values, *(x for block in found for x in block)
    assert_alike(layer(queries, memory), layer(queries, k, v), layer, *inputs)


def test_an_append_that_fails_leaves_the_memory_as_it_was() -> None:
    layer = make_layer("additive")
    queries, keys, values = make_inputs(layer)
    memory = layer.memory(keys, values)
    for _ in range(2):
        with pytest.raises(ValueError, match="^values has shape"):
            memory.append(keys, values[:, 1:])
    assert len(memory) == N
    memory.append(keys, values)
    k, v = torch.cat([keys, keys], dim=1), torch.cat([values, values], dim=1)
    assert_alike(layer(queries, memory), layer(queries, k, v), layer, queries, keys, values)


@every_kind
@pytest.mark.parametrize("small", [0, 2**16])
def test_keys_that_change_after_an_append(
    kind: str, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory has a copy. Where the projection's backward needs the keys, autograd says so."""
    layer = make_layer(kind)
    monkeypatch.setattr(memory_graph, "_SMALL", small)
    queries, keys, values = make_inputs(layer)
    more, of_more = (x * 1.0 for x in (keys, values))
    memory = layer.memory(keys, values)
    memory.append(more, of_more)
    k, v = torch.cat([keys, more], dim=1), torch.cat([values, of_more], dim=1)
    expected = layer(queries, k, v)
    d = torch.autograd.grad(expected.sum(), [queries, keys, values], retain_graph=True)
    with torch.no_grad():
        more.mul_(3), of_more.mul_(5)
    output = layer(queries, memory)
    assert torch.equal(output, expected)
    if kind.startswith("dot"):
        assert_close(list(torch.autograd.grad(output.sum(), [queries, keys, values])), list(d))
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(output.sum(), [queries, keys, values])


# ---- training ------------------------------------------------------------------------------------


def losses(with_memory: bool) -> Iterator[float]:
    """Of a decoder that attends to the same keys at every step, and learns."""
    torch.manual_seed(3)
    layer, cell = AdditiveAttention(DK, 8, 16, 0.1), nn.GRUCell(DV, 8)
    parameters = [*layer.parameters(), *cell.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    keys, values, target = torch.randn(4, 9, DK), torch.randn(4, 9, DV), torch.randn(4, 5, DV)
    lens = torch.tensor([9, 4, 6, 2])
    for _ in range(5):
        given: tuple[Any, ...] = (keys, values, lens)
        if with_memory:
            given = (layer.memory(*given),)
        state, loss = torch.zeros(4, 8), torch.zeros(())
        for t in range(5):
            context = layer(state[:, None], *given)[:, 0]
            state = cell(context, state)
            loss = loss + (context - target[:, t]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def test_a_decoder_trains_to_the_same_losses() -> None:
    with_memory, without = list(losses(True)), list(losses(False))
    assert with_memory[-1] < with_memory[0]
    assert with_memory == pytest.approx(without, rel=1e-5)


# ---- what is refused -----------------------------------------------------------------------------


def test_a_step_of_the_optimizer_ends_a_memory() -> None:
    layer = make_layer("additive")
    queries, keys, values = make_inputs(layer)
    memory = layer.memory(keys, values)
    output = layer(queries, memory)
    with torch.no_grad():
        layer.W_k.weight += 1
    stale = "W_k has changed since the memory projected its keys: create a new memory"
    for action in (lambda: layer(queries, memory), lambda: memory.append(keys, values)):
        with pytest.raises(RuntimeError, match=stale):
            action()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
    with torch.no_grad():  # the others are read as they are
        layer.W_k.weight -= 1
        layer.W_k.weight.copy_(torch.from_numpy(memory._made_with["W_k"]))
        layer.w_v.weight *= 2
    assert torch.equal(layer(queries, memory), layer(queries, keys, values))


def _set(layer: Any, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    weight = getattr(layer, name).weight
    weight.data = change(weight.data)


def _one_row_of_a_view(layer: Any) -> None:
    layer.W_k.weight.detach().numpy()[1] += 1


def _one_column_past_the_count(layer: Any) -> None:
    layer.W_k.weight.data[:, 1] += 1


def _a_step(layer: Any) -> None:
    layer.W_k.weight.grad = torch.ones_like(layer.W_k.weight)
    torch.optim.SGD([layer.W_k.weight], 0.1).step()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "one number in place": lambda layer: layer.W_k.weight.detach()[0, 1].add_(1),
    "an optimizer": _a_step,
    "a state dict": lambda layer: layer.load_state_dict(
        {name: x + 1 for name, x in layer.state_dict().items()}
    ),
    "another parameter": lambda layer: setattr(
        layer.W_k, "weight", torch.nn.Parameter(layer.W_k.weight + 1)
    ),
    "other data": lambda layer: _set(layer, "W_k", lambda x: x + 1),
    "other data, twice": lambda layer: [_set(layer, "W_k", lambda x: x + 1) for _ in range(2)],
    "its transpose": lambda layer: _set(layer, "W_k", lambda x: x.flip(0).T.contiguous().T),
    "data, all of it": lambda layer: layer.W_k.weight.data.mul_(2),
    "data, a column": _one_column_past_the_count,
    "an array, a row": _one_row_of_a_view,
    "another layer": lambda layer: setattr(
        layer, "W_k", torch.nn.Linear(*layer.W_k.weight.shape[::-1], bias=False)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["additive", "multi_head"])
def test_a_change_of_what_projected_the_keys_is_noticed(kind: str, change: str) -> None:
    layer = make_layer(kind)
    queries, keys, values = make_inputs(layer)
    memory = layer.memory(keys, values)
    before = layer(queries, memory), layer(queries, memory)
    assert torch.equal(*before)
    with torch.no_grad():
        CHANGES[change](layer)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="^W_k has changed since the memory projected"):
            layer(queries, memory)


def test_parameters_with_the_same_numbers_are_the_same() -> None:
    """Wherever they are, and whatever became of them between."""
    layer = make_layer("multi_head")
    queries, keys, values = make_inputs(layer)
    with torch.no_grad():
        layer.W_k.weight[0, 0] = torch.nan
    for change in (
        lambda x: x,
        lambda x: x.clone(),
        lambda x: x.T.contiguous().T,
    ):
        memory = layer.memory(keys, values)
        expected = layer(queries, memory)
        _set(layer, "W_k", change)
        for _ in range(2):
            torch.testing.assert_close(layer(queries, memory), expected, equal_nan=True)
    with torch.inference_mode():
        inferred = make_layer("additive")
        memory = inferred.memory(keys := torch.randn(2, 7, 4), keys)
        queries = torch.randn(2, 3, 3)
        inferred(queries, memory)
        inferred.W_k.weight[0, 1] += 1
        with pytest.raises(RuntimeError, match="W_k has changed"):
            inferred(queries, memory)


def test_a_parameter_that_is_still_the_same_is_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But once after each change that torch counts."""
    layer = make_layer("multi_head")
    queries, keys, values = make_inputs(layer)
    memory = layer.memory(keys, values)
    compared = []
    check = attnext.torch.memory._check_same

    def counted(name: str, *arrays: Any) -> None:
        compared.append(name)
        check(name, *arrays)

    monkeypatch.setattr(attnext.torch.memory, "_check_same", counted)
    for _ in range(3):
        layer(queries, memory)
    with torch.no_grad():
        layer.W_v.weight.mul_(1)
    for _ in range(3):
        layer(queries, memory)
    assert compared == ["W_k", "W_v", "W_v"]


def cases() -> dict[str, tuple[Callable[[], Any], type[Exception], str]]:
    layer, other = make_layer("additive"), make_layer("additive")
    queries, keys, values = make_inputs(layer)
    memory = layer.memory(keys, values)
    lazy = AdditiveAttention(num_hiddens=8)
    return {
        "of another layer": (
            lambda: other(queries, memory), ValueError, "the memory belongs to another layer"),
        "values beside it": (
            lambda: layer(queries, memory, values), TypeError,
            "values and a memory are both given"),
        "lengths beside it": (
            lambda: layer(queries, memory, valid_lens=3), TypeError,
            "valid_lens and a memory are both given"),
        "an unknown option": (
            lambda: layer(queries, memory, seed=3), TypeError, "unexpected keyword argument"),
        "sizes": (lambda: layer.memory(keys[..., :3], values), ValueError,
                  "keys has shape (2, 7, 3), expected (..., N, 4) because key_size is 4"),
        "float64": (lambda: layer.memory(keys.double(), values), TypeError,
                    "keys has dtype torch.float64, expected torch.float32"),
        "values of other rows": (lambda: layer.memory(keys, values[:, 1:]), ValueError,
                                 "values has shape (2, 6, 5), expected (2, 7, Dv)"),
        "appended shapes": (lambda: memory.append(keys[:1], values[:1]), ValueError,
                            "keys has shape (1, 7, 4), expected (2, N, 4)"),
        "queries": (lambda: layer(queries[:1], memory), ValueError, "queries has shape"),
        "no sizes yet": (lambda: lazy.memory(keys, values), RuntimeError, "no sizes yet"),
        "a constructor": (attnext.torch.Memory, TypeError, "cannot be created directly"),
        "a copy": (lambda: copy.copy(memory), TypeError, "a Memory cannot be copied or pickled"),
        "a pickle": (lambda: pickle.dumps(memory), TypeError, "a Memory cannot be copied"),
        "second derivatives": (
            lambda: torch.autograd.grad(
                layer(queries, memory).sum(), keys, create_graph=True)[0].sum().backward(),
            RuntimeError, "no second derivatives"),
    }  # fmt: skip


@pytest.mark.parametrize("name", cases())
def test_wrong(name: str) -> None:
    action, error, message = cases()[name]
    with pytest.raises(error, match=re.escape(message)):
        action()


def test_a_layer_with_a_memory_has_copies() -> None:
    layer = make_layer("additive")
    queries, keys, values = make_inputs(layer)
    layer(queries, layer.memory(keys, values))
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(queries, keys, values), layer(queries, keys, values))
