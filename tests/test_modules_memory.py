"""Memories: keys and values that stay. The bits of direct calls, and gradients added up.

What a direct call computes is tested elsewhere; here it is what a memory is held against.
"""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import (
    EMPTY_ROWS,
    SHARED,
    SLACK,
    Problem,
    assert_all_accurate,
    assert_same_bits,
    exact_gradients,
    lost_blocks,
    random_masks,
    random_modifiers,
    textbook,
)
from layered import KINDS, Layer, asked, make_layer, problem_of, run, taken
from numpy.typing import NDArray
from wrong_calls import Call, Wrong, each, raised_by

import attnext
from attnext import AdditiveAttention, DotProductAttention, Memory

Array = NDArray[Any]
both = pytest.mark.parametrize("kind", KINDS[::3])  # dot, additive with bias


def memory_of(layer: Layer, problem: Problem, **own: Any) -> Memory:
    return layer.memory(problem.inputs["keys"], problem.inputs["values"], **own)


def run_with(layer: Layer, problem: Problem, memory: Memory) -> dict[str, Array]:
    """What `run` gives, from a memory that has the keys and values."""
    output = layer(problem.inputs["queries"], memory, **taken(layer, problem)).copy()
    result = {"output": output, "weights": layer.attention_weights}
    layer.zero_grad()
    more = asked(problem)
    d = layer.backward(**problem.grads, **more)
    names = ("queries", *(name.removeprefix("return_grad_") for name in more))
    result |= {f"d_{name}": x for name, x in zip(names, d if more else [d], strict=True)}
    result["d_keys"], result["d_values"] = memory.backward()
    return result | {f"d_{name}": grad.copy() for name, grad in layer.grads.items()}


def head_mask(mask: Array, group: int) -> Array:
    """The mask of a memory's heads for the query heads that share them."""
    return mask if mask.ndim < 3 or mask.shape[-3] == 1 else np.repeat(mask, group, axis=-3)


# ---- the same bits -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_as_direct_calls(kind: str, rng: np.random.Generator) -> None:
    """Masks of its own and of the call, modifiers, grouped heads, every rule; gradients too."""
    for i in range(36):
        layer = make_layer(kind, rng=5, dropout=0.3 * (i % 2))
        lead = [(), (3,), (2, 4)][i % 3]
        M, N = [(3, 5), (1, 9), (20, 140), (1, 300)][i // 3 % 4]
        heads = {"kv_heads": 2} if i % 6 == 2 else {}
        problem = problem_of(layer, rng, lead=lead, M=M, N=N, **heads)
        options = random_masks(rng, lead, M, N) | {"empty_rows": EMPTY_ROWS[i % 3]}
        options |= random_modifiers(problem.score, rng, lead, M)
        own: dict[str, Any] = {}
        if options.pop("valid_lens", None) is not None:
            own["valid_lens"] = rng.integers(0, N + 3, size=lead[:1] if i % 2 else ())
        if i % 4 < 2:
            own["mask"] = rng.random((*problem.inputs["keys"].shape[:-2], 1, N)) < 0.8
        got = run_with(layer, problem.but(**options), memory_of(layer, problem, **own))

        if "mask" in own:
            mask = head_mask(own["mask"], lead[-1] // 2 if heads else 1)
            options["mask"] = mask & options.get("mask", True)
        if {"causal", "window"} & options.keys():
            options.setdefault("causal_offset", N - M)
        direct = problem.but(**options, valid_lens=own.get("valid_lens"))
        assert_same_bits(got, run(make_layer(kind, rng=5, dropout=0.3 * (i % 2)), direct))


@both
def test_append_in_every_split(kind: str, rng: np.random.Generator) -> None:
    """Some keys at first, or none, and the rest in pieces: as if all had been there."""
    layer = make_layer(kind)
    problem = problem_of(layer, rng, lead=(2, 3), M=2, N=6).but(valid_lens=[4, 9])
    mask = rng.random((2, 3, 1, 6)) < 0.7
    x = problem.inputs
    for split in range(2**5):
        ends = [i + 1 for i in range(5) if split >> i & 1]
        pieces = list(zip([0, *ends], [*ends, 6], strict=True))
        masked = split % 3 > 0  # from the start, or once something is appended
        first = pieces.pop(0) if split % 2 else (0, 0)
        pieces = pieces if split % 2 else [(0, pieces[0][1]), *pieces[1:]]
        part = slice(*first)
        at_once = {"mask": mask[..., part]} if split % 3 == 1 else {}
        memory = layer.memory(x["keys"][..., part, :], x["values"][..., part, :], [4, 9], **at_once)
        seen = np.ones((2, 3, 1, 6), bool)
        seen[..., part] = mask[..., part] if at_once else True
        for first, end in pieces:
            part = slice(first, end)
            given = (mask[..., part],) if masked else ()
            seen[..., part] = mask[..., part] if masked else True
            memory.append(x["keys"][..., part, :], x["values"][..., part, :], *given)
            assert len(memory) == end
            so_far = {"valid_lens": [4, 9], "mask": seen[..., :end]}
            keys, values = x["keys"][..., :end, :], x["values"][..., :end, :]
            np.testing.assert_array_equal(
                layer(x["queries"], memory), layer(x["queries"], keys, values, **so_far)
            )
        plain = problem.but(valid_lens=None)
        assert_same_bits(run_with(layer, plain, memory), run(layer, problem.but(mask=seen)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoding_loop_is_one_causal_call(kind: str, rng: np.random.Generator) -> None:
    """Each step appends its key and asks with its query, which counts as the last one."""
    T = 20
    layer = make_layer(kind)
    problem = problem_of(layer, rng, lead=(2, 4), M=T, N=T, kv_heads=2, extra_grads=False)
    x, g = problem.inputs, problem.grads["grad_output"]
    late = {"causal": True, "causal_offset": -2, "empty_rows": "zero"}
    capped = {"causal": True, "softcap": 0.7, "sink": rng.standard_normal((4, 1))}
    if kind.startswith("dot"):
        capped["scale"] = rng.standard_normal(4)
    for options in ({"causal": True}, {"window": (3, 0)}, late, capped):
        whole = problem.but(**options)
        memory = layer.memory(x["keys"][..., :0, :], x["values"][..., :0, :])
        outputs, contexts = [], []
        for t in range(T):
            q, k, v = (x[name][..., t : t + 1, :] for name in ("queries", "keys", "values"))
            memory.append(k, v)
            moved = {"causal_offset": t - 2} if options is late else {}
            outputs.append(layer(q, memory, **taken(layer, whole) | moved))
            contexts.append(layer.context)
        layer.zero_grad()
        dq = np.zeros_like(x["queries"])
        shared = {f"d_{name}": np.zeros(4 if name == "scale" else (4, 1)) for name in SHARED[1:]}
        for t in rng.permutation(T):  # contexts stay valid, whatever was appended since
            d = layer.backward(g[..., t : t + 1, :], context=contexts[t], **asked(whole))
            dq[..., t : t + 1, :], *more = d if asked(whole) else (d,)
            for name, part in zip(shared, more, strict=False):
                shared[name] += part
        got = {"output": np.concatenate(outputs, axis=-2), "d_queries": dq}
        got["d_keys"], got["d_values"] = memory.backward()
        got |= {f"d_{name}": grad.copy() for name, grad in layer.grads.items()}
        got |= {name: sums for name, sums in shared.items() if whole.shares(name[2:])}
        exact = textbook(whole, np.float64)
        assert_all_accurate(got, {name: exact[name] for name in got}, whole)
        np.testing.assert_array_equal(got["output"], run(layer, whole)["output"])


@both
def test_every_thread_count(kind: str, threads: None, rng: np.random.Generator) -> None:
    """Large enough for several threads: one projection of all keys and of one appended block."""
    layer = make_layer(kind)
    problem = problem_of(layer, rng, lead=(8,), M=70, N=700).but(valid_lens=[*range(0, 800, 100)])
    x, results = problem.inputs, []
    for n in (1, 4):
        attnext.set_num_threads(n)
        results.append(run(layer, problem))
        memory = layer.memory(x["keys"][:, :300], x["values"][:, :300], [*range(0, 800, 100)])
        memory.append(x["keys"][:, 300:], x["values"][:, 300:])
        plain = problem.but(valid_lens=None)
        results.append(run_with(layer, plain, memory))
    for result in results[1:]:
        assert_same_bits(result, results[0])


def test_several_threads_add_up(threads: None, rng: np.random.Generator) -> None:
    layer = DotProductAttention()
    x = rng.standard_normal((16, 100, 64), dtype=np.float32)
    sums = []
    for n, times in ((1, 1), (1, 3), (4, 3)):
        attnext.set_num_threads(n)
        memory = layer.memory(x, x)
        layer(x[:, :1], memory)
        for _ in range(times):
            layer.backward(x[:, 1:2])
        sums.append(memory.backward())
    for once, alone, together in zip(*sums, strict=True):
        np.testing.assert_array_equal(together, alone)
        np.testing.assert_allclose(together, 3 * once, rtol=1e-6)


def test_w_v_is_read_live(rng: np.random.Generator) -> None:
    """Also where it is so large that pairs are computed in another way than before."""
    layer = make_layer("additive")
    assert isinstance(layer, AdditiveAttention)
    problem = problem_of(layer, rng, M=3, N=40)
    memory = memory_of(layer, problem)
    summed = {name: np.zeros_like(problem.inputs[name]) for name in ("keys", "values")}
    w_v = layer.w_v.copy()
    for scale in (1, -2, 1e-3, 1e12, 1):
        layer.w_v = scale * w_v
        direct = run(layer, problem)
        assert_same_bits(run_with(layer, problem, memory), direct, of=scale)
    for scale in (1, -2):
        layer.w_v = scale * w_v
        d = run(layer, problem)
        summed = {name: summed[name] + d[f"d_{name}"] for name in summed}
        layer(problem.inputs["queries"], memory)
        layer.backward(**problem.grads)
    layer.w_v = 0 * w_v  # what was added up is not changed by it
    for got, expected in zip(memory.backward(), summed.values(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@both
def test_what_takes_no_part_may_be_anything(kind: str, rng: np.random.Generator) -> None:
    """NaN in padding and behind a mask reaches nothing, the gradient of W_k included."""
    layer = make_layer(kind)
    problem = problem_of(layer, rng, N=9)
    x = problem.inputs
    mask = np.arange(9) != 2
    memory = memory_of(layer, problem, valid_lens=[5, 7], mask=mask)
    expected = run_with(layer, problem, memory)
    for name in ("keys", "values"):
        x[name][0, 5:] = x[name][1, 7:] = x[name][:, 2] = np.nan
    assert_same_bits(
        run_with(layer, problem, memory_of(layer, problem, valid_lens=[5, 7], mask=mask)), expected
    )
    late = layer.memory(x["keys"][:, :6], x["values"][:, :6], [5, 7], mask=mask[:6])
    late.append(x["keys"][:, 6:], x["values"][:, 6:], mask[6:])
    assert_same_bits(run_with(layer, problem, late), expected)


# ---- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_many_steps(kind: str, rng: np.random.Generator) -> None:
    """Rows without any key among them: their values get gradients, their keys none."""
    layer = make_layer(kind)
    problem = problem_of(layer, rng, lead=(3,), M=6, N=20, extra_grads=False)
    problem = problem.but(valid_lens=[0, 7, 99])
    memory = memory_of(layer, problem, valid_lens=[0, 7, 99])
    x, g = problem.inputs, problem.grads["grad_output"]
    contexts = []
    for t in range(6):
        layer(x["queries"][:, t : t + 1], memory, need_weights=False)
        contexts.append(layer.context)
    layer.zero_grad()
    dq = [layer.backward(g[:, t : t + 1], context=contexts[t]) for t in range(6)]
    if isinstance(layer, AdditiveAttention):
        assert not layer.grads["W_k"].any()  # before the memory's
    dk, dv = memory.backward()
    got = {"d_queries": np.concatenate(dq, axis=1), "d_keys": dk, "d_values": dv}
    got |= {f"d_{name}": grad for name, grad in layer.grads.items()}
    assert_all_accurate(got, exact_gradients(problem), problem)


@both
def test_what_was_added_up_is_handed_out_once(kind: str, rng: np.random.Generator) -> None:
    layer = make_layer(kind)
    problem = problem_of(layer, rng)
    memory = memory_of(layer, problem)
    zeros = memory.backward()  # before any call
    assert [d.shape for d in zeros] == [problem.inputs[n].shape for n in ("keys", "values")]
    assert not any(d.any() for d in zeros)
    layer(problem.inputs["queries"], memory)
    layer.zero_grad()
    layer.backward(**problem.grads)
    once = memory.backward()
    grads = copy.deepcopy(layer.grads)
    assert not any(d.any() for d in memory.backward())
    assert_same_bits(layer.grads, grads)
    for d in once:
        assert d.flags.owndata and d.flags.writeable and d.flags.c_contiguous
    layer.backward(**problem.grads)
    layer.backward(**problem.grads)  # a second backward adds again
    once[0][:] = once[1][:] = np.nan  # what was handed out is the caller's
    x, y = memory.backward()
    layer(problem.inputs["queries"], memory)
    layer.backward(**problem.grads)
    for twice, d in zip((x, y), memory.backward(), strict=True):
        np.testing.assert_allclose(twice, 2 * d, rtol=1e-6)


def test_an_appended_key_has_a_gradient_of_its_own(rng: np.random.Generator) -> None:
    """Sums of fewer keys, of more, and of fewer again; then of keys that no call has met."""
    layer = make_layer("additive")
    x = problem_of(layer, rng, lead=(2,), M=1, N=4).inputs
    g = rng.standard_normal((2, 1, 3), dtype=np.float32)
    memory = layer.memory(x["keys"][:, :2], x["values"][:, :2])
    expected = {name: np.zeros_like(x[name]) for name in ("keys", "values")}
    contexts = {}
    for N in (2, 3):
        if N == 3:
            memory.append(x["keys"][:, 2:3], x["values"][:, 2:3])
        layer(x["queries"], memory)
        contexts[N] = layer.context
    for N in (2, 3, 2):
        layer(x["queries"], x["keys"][:, :N], x["values"][:, :N])
        _, dk, dv = layer.backward(g)
        expected["keys"][:, :N] += dk
        expected["values"][:, :N] += dv
        layer.backward(g, context=contexts[N])
    memory.append(x["keys"][:, 3:], x["values"][:, 3:])
    for d, sum_of in zip(memory.backward(), expected.values(), strict=True):
        np.testing.assert_allclose(d, sum_of, rtol=1e-5, atol=1e-6)
        assert not d[:, 3].any()


# ---- what it is ----------------------------------------------------------------------------------


@both
def test_it_has_copies(kind: str, rng: np.random.Generator) -> None:
    layer = make_layer(kind)
    problem = problem_of(layer, rng)
    lens, mask = np.array([3, 4]), np.ones(5, bool)
    memory = memory_of(layer, problem, valid_lens=lens, mask=mask)
    expected = run_with(layer, problem, memory)
    for x in (problem.inputs["keys"], problem.inputs["values"], lens):
        x += 1
    mask[:] = False
    assert_same_bits(run_with(layer, problem, memory), expected)


@both
def test_lists_and_other_dtypes(kind: str, rng: np.random.Generator) -> None:
    layer = make_layer(kind)
    problem = problem_of(layer, rng)
    expected = run(layer, problem)
    x = problem.inputs
    for keys, values in (
        (x["keys"].tolist(), x["values"].tolist()),
        (x["keys"].astype(np.float64), np.asfortranarray(x["values"])),
    ):
        memory = layer.memory(keys[:1], values[:1])
        assert len(memory) == 5
        memory = layer.memory(keys, values)
        assert_same_bits(run_with(layer, problem, memory), expected)


def test_repr_and_length(rng: np.random.Generator) -> None:
    layer = make_layer("dot")
    memory = layer.memory(np.ones((2, 0, 4)), np.ones((2, 0, 3)))
    assert len(memory) == 0 and repr(memory) == "<Memory: keys (2, 0, 4), values (2, 0, 3)>"
    assert layer(np.ones((2, 1, 4)), memory).shape == (2, 1, 3)
    memory.append(np.ones((2, 5, 4)), np.ones((2, 5, 3)))
    assert len(memory) == 5 and repr(memory) == "<Memory: keys (2, 5, 4), values (2, 5, 3)>"
    layer(np.ones((2, 1, 4)), memory)
    assert repr(layer.context) == "<Context: queries (2, 1, 4), memory of 5 keys>"


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0, 0)], ids=str)
@both
def test_arrays_without_elements(kind: str, shape: tuple[int, int]) -> None:
    layer = make_layer(kind)
    B, N = shape
    Dk = 5 if kind.startswith("additive") else 4
    memory = layer.memory(np.ones((B, N, Dk)), np.ones((B, N, 0)), np.ones(B, int))
    memory.append(np.ones((B, 0, Dk)), np.ones((B, 0, 0)))
    output = layer(np.ones((B, 1, 4)), memory)
    assert output.shape == (B, 1, 0)
    assert layer.backward(output).shape == (B, 1, 4)
    dk, dv = memory.backward()
    assert dk.shape == (B, N, Dk) and dv.shape == (B, N, 0)


# ---- what is refused -----------------------------------------------------------------------------

Q, K, V = np.ones((2, 1, 4)), np.ones((2, 5, 4)), np.ones((2, 5, 3))
DOT = DotProductAttention()
M = DOT.memory(K, V)
OTHER = AdditiveAttention(4, 4, 6)
HEADS = DOT.memory(np.ones((2, 3, 5, 4)), np.ones((2, 3, 5, 3)))
MESSAGES: list[Wrong] = [
    (lambda: DOT(Q, M, V), TypeError,
     "values and a memory are both given: leave out values, which the memory already contains"),
    (lambda: DOT(Q, M, valid_lens=3), TypeError,
     "valid_lens and a memory are both given: leave out valid_lens, which the memory already "
     "contains"),
    (lambda: OTHER(Q, M), ValueError,
     "the memory belongs to another layer, expected a memory that this layer created"),
    (lambda: DOT(Q[:1], M), ValueError,
     "queries has shape (1, 1, 4), expected (2, M, 4) because the memory has keys of "
     "shape (2, 5, 4)"),
    (lambda: DOT(Q[..., :3], M), ValueError,
     "queries has shape (2, 1, 3), expected (2, M, 4) because the memory has keys of "
     "shape (2, 5, 4)"),
    (lambda: DOT(np.ones((2, 4, 1, 4)), HEADS, enable_gqa=True), ValueError,
     "queries has shape (2, 4, 1, 4), expected (2, heads, M, 4) because the memory has keys of "
     "shape "
     "(2, 3, 5, 4)"),
    (lambda: DOT(np.ones((2, 6, 1, 4)), HEADS), ValueError,
     "queries has shape (2, 6, 1, 4), expected (2, 3, M, 4) because the memory has keys of shape "
     "(2, 3, 5, 4); if several query heads share one key head, pass enable_gqa=True"),
    (lambda: DOT(Q, M, mask=np.ones(4, bool)), ValueError,
     "mask has shape (4,), expected a shape that broadcasts to (2, 1, 5)"),
    (lambda: DOT.memory(K, V[:, :4]), ValueError,
     "values has shape (2, 4, 3), expected (2, 5, Dv)"),
    (lambda: DOT.memory(K[0, 0], V), ValueError, "keys has shape (4,), expected two axes or more"),
    (lambda: DOT.memory(K, V, [[1], [2]]), ValueError,
     "valid_lens has shape (2, 1), expected (2,)"),
    (lambda: DOT.memory(K[0], V[0], [1]), ValueError, "valid_lens has shape (1,), expected an int"),
    (lambda: DOT.memory(K, V, -1), ValueError, "valid_lens is -1, expected a length of 0 or more"),
    (lambda: DOT.memory(K, V, 1.5), TypeError, "valid_lens has dtype float64, expected integers"),
    (lambda: DOT.memory(K, V, mask=np.ones((2, 2, 5), bool)), ValueError,
     "mask has shape (2, 2, 5), expected a shape that broadcasts to (2, 1, 5)"),
    (lambda: OTHER.memory(V, V), ValueError,
     "keys has shape (2, 5, 3), expected (..., N, 4) because key_size is 4"),
    (lambda: M.append(K[:1], V), ValueError, "keys has shape (1, 5, 4), expected (2, N, 4)"),
    (lambda: M.append(K, K), ValueError, "values has shape (2, 5, 4), expected (2, 5, 3)"),
    (lambda: M.append(K, V[:, :1]), ValueError, "values has shape (2, 1, 3), expected (2, 5, 3)"),
    (lambda: M.append(K, V, K > 0), ValueError, "mask has shape (2, 5, 4), expected a shape that"),
    (lambda: M.append(K, V, [1] * 5), TypeError, "mask has dtype int64, expected bools"),
    (lambda: M.append(K), TypeError, "append() missing required argument 'values' (position 2)"),
    (lambda: Memory(), TypeError, "a Memory cannot be created directly: call layer.memory("),
    (lambda: pickle.dumps(M), TypeError,
     "a Memory cannot be copied or pickled because it belongs"),
    (lambda: copy.deepcopy(M), TypeError, "a Memory cannot be copied or pickled"),
    (lambda: attnext.dot_product_attention(Q, M, V), TypeError, "keys "),
]  # fmt: skip


@each(MESSAGES)
def test_messages(call: Call, error: type[Exception], message: str) -> None:
    context = DOT.context
    assert raised_by(call, error).startswith(message)
    assert len(M) == 5 and DOT.context is context


def test_stale_parameters(rng: np.random.Generator) -> None:
    """Other bits of W_k: nothing goes on; the old ones again: everything does."""
    layer = make_layer("additive")
    assert isinstance(layer, AdditiveAttention)
    problem = problem_of(layer, rng)
    x = problem.inputs
    memory = memory_of(layer, problem)
    expected = run_with(layer, problem, memory)
    layer(x["queries"], memory)
    layer.backward(**problem.grads)
    before = layer.W_k.copy()
    for changed in (np.nextafter(before, np.float32(9)), -before):
        layer.W_k = changed
        for action in (
            lambda: layer(x["queries"], memory),
            lambda: memory.append(x["keys"], x["values"]),
            memory.backward,
        ):
            with pytest.raises(RuntimeError, match="W_k has changed since the memory projected"):
                action()
    layer.W_k = before
    layer.W_q += 1  # is read live
    layer(x["queries"], memory)
    layer.W_q -= 1
    layer.W_q = problem.inputs["W_q"]
    dk, dv = memory.backward()
    assert_same_bits(
        {"d_keys": dk, "d_values": dv}, {name: expected[name] for name in ("d_keys", "d_values")}
    )


def test_another_life_of_the_object(rng: np.random.Generator) -> None:
    layer = make_layer("additive")
    problem = problem_of(layer, rng)
    memory = memory_of(layer, problem)
    layer.__init__(5, 4, 6, rng=0)  # type: ignore[misc]
    with pytest.raises(ValueError, match="the memory belongs to another layer"):
        layer(problem.inputs["queries"], memory)
    with pytest.raises(ValueError, match="the memory belongs to another layer"):
        memory.backward()
    del layer
    with pytest.raises(RuntimeError, match="the layer that created this memory was deleted"):
        memory.backward()


class Meddler:
    """Values that do something else while they are read."""

    def __init__(self, values: Array, action: Callable[[], Any]) -> None:
        self.values, self.action = values, action

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        self.action()
        return self.values


def test_arguments_that_change_others(rng: np.random.Generator) -> None:
    """Keys of another shape, another W_k, more keys: seen before anything is read by them."""
    keys = K.astype(np.float32)

    def reshape() -> None:
        keys.resize((2, 2, 10), refcheck=False)

    memory = DOT.memory(K, V)
    for action in (DOT.memory, memory.append):
        keys = K.astype(np.float32)
        with pytest.raises(ValueError, match=r"keys has shape \(2, 2, 10\)|values has shape"):
            action(keys, Meddler(V, reshape))
    layer = make_layer("additive")
    assert isinstance(layer, AdditiveAttention)
    x = problem_of(layer, rng).inputs
    theirs = layer.memory(x["keys"], x["values"])
    with pytest.raises(RuntimeError, match="W_k has changed"):
        theirs.append(x["keys"], Meddler(x["values"], lambda: layer.W_k.__imul__(2)))
    assert len(theirs) == len(memory) == 5
    memory.append(K, Meddler(V, lambda: memory.append(K[:, :1], V[:, :1])))
    assert len(memory) == 11
    expected = DOT(Q, memory, sink=np.zeros(1))
    more_keys = Meddler(np.zeros(1), lambda: memory.append(K, V))
    np.testing.assert_array_equal(DOT(Q, memory, sink=more_keys), expected)  # those of its start
    dq = DOT.backward(np.ones_like(expected))
    assert dq.shape == Q.shape and memory.backward()[0].shape[-2] == len(memory) == 16


# ---- life ----------------------------------------------------------------------------------------


@both
def test_it_dies_with_its_last_reference(kind: str, rng: np.random.Generator) -> None:
    """Without the collector: nothing leads from a memory back to its layer."""
    layer = make_layer(kind)
    problem = problem_of(layer, rng)
    gc.disable()
    try:
        memory = memory_of(layer, problem)
        layer(problem.inputs["queries"], memory)
        layer.backward(**problem.grads)
        seen, seen_layer = weakref.ref(memory), weakref.ref(layer)
        del memory
        assert seen() is not None  # the context has it
        del layer
        assert seen() is None and seen_layer() is None
    finally:
        gc.enable()


@both
def test_no_memory_is_lost(kind: str, rng: np.random.Generator) -> None:
    layer = make_layer(kind)
    problem = problem_of(layer, rng)
    x = problem.inputs

    def everything() -> None:
        memory = layer.memory(x["keys"], x["values"], [2, 9], mask=np.arange(5) > 0)
        layer(x["queries"], memory, mask=np.ones((3, 5), bool), bias=np.zeros(5), sink=[0.5] * 3)
        context = layer.context
        memory.append(x["keys"], x["values"], [True] * 5)
        layer(x["queries"], memory)
        asked = {"return_grad_bias": True, "return_grad_sink": True}
        layer.backward(**problem.grads, context=context, **asked)
        layer.backward(problem.grads["grad_output"])
        memory.backward()
        repr(memory), repr(layer.context)
        for wrong in (
            lambda: memory.append(x["keys"], x["keys"]),
            lambda: memory.append(x["keys"], x["values"], [1]),
            lambda: layer(x["queries"], memory, mask=np.ones(3, bool)),
            lambda: layer(x["queries"], memory, sink=np.ones((2, 2))),
            lambda: layer.memory(x["keys"], x["values"], -1),
            lambda: layer.memory(x["keys"], x["values"], mask=[2]),
            lambda: layer(x["queries"][:1], memory),
        ):
            with pytest.raises((TypeError, ValueError)):
                wrong()

    assert lost_blocks(everything, 100) < SLACK


@both
def test_every_allocation_may_fail(kind: str, rng: np.random.Generator) -> None:
    """The first, the second, ...: each time a MemoryError, and nothing has changed."""
    fail = pytest.importorskip("_testcapi")  # CPython's own tool for it
    layer = make_layer(kind)
    problem = problem_of(layer, rng)
    x = problem.inputs
    memory = memory_of(layer, problem)
    layer(x["queries"], memory, softcap=2, sink=[1, 2, 3])
    context = layer.context
    memory.append(x["keys"], x["values"])
    layer(x["queries"], memory)

    def append() -> None:
        memory.append(x["keys"], x["values"], np.ones(5, bool))

    def attend() -> None:
        layer(x["queries"], memory, need_weights=False, sink=[1, 2, 3])

    def back() -> None:
        layer.backward(problem.grads["grad_output"], context=context, return_grad_sink=True)

    for action in (append, attend, back, memory.backward, lambda: memory_of(layer, problem)):
        action()
        memory.backward()
        nth = failed = last_failed = 0
        while nth < last_failed + 10:
            memory.backward()
            layer.zero_grad()
            if action == memory.backward:
                back()
            length, grads = len(memory), copy.deepcopy(layer.grads)
            fail.set_nomemory(nth, nth + 1)
            try:
                action()
            except MemoryError:
                fail.remove_mem_hooks()
                failed, last_failed = failed + 1, nth
                assert len(memory) == length
                assert_same_bits(layer.grads, grads)
                left = memory.backward()
                assert any(d.any() for d in left) == (action == memory.backward)
            finally:
                fail.remove_mem_hooks()
            nth += 1
        assert failed > 0


@both
def test_threads_that_share_a_memory(kind: str, rng: np.random.Generator) -> None:
    """Calls, backwards and appends at once: each call has the keys of one moment."""
    layer = make_layer(kind)
    problem = problem_of(layer, rng, lead=(8,), M=20, N=30, extra_grads=False)
    x, g = problem.inputs, problem.grads["grad_output"]
    memory = layer.memory(x["keys"], x["values"], 30)  # what is appended takes no part
    expected = layer(x["queries"], memory)
    dq = layer.backward(g)
    dk, dv = memory.backward()
    layer.zero_grad()
    errors: list[BaseException] = []

    def work(append: bool) -> None:
        try:
            for i in range(40):
                if append:
                    memory.append(x["keys"][:, :3], x["values"][:, :3])
                output = layer(x["queries"], memory, need_weights=i % 2 == 0)
                np.testing.assert_array_equal(output, expected)
                np.testing.assert_array_equal(layer.backward(g), dq)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(i > 0,)) for i in range(3)]
    for worker in workers:
        worker.start()
    handed = [memory.backward() for _ in range(5)]
    for worker in workers:
        worker.join()
    assert not errors, errors[0]
    handed.append(memory.backward())
    assert len(memory) == 30 + 2 * 40 * 3
    for i, d in enumerate((dk, dv)):
        total = sum(np.pad(h[i], ((0, 0), (0, 270 - h[i].shape[1]), (0, 0))) for h in handed)
        np.testing.assert_allclose(total[:, :30], 120 * d, rtol=1e-4, atol=1e-4)
        assert not total[:, 30:].any()
