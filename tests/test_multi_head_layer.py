"""MultiHeadAttention: what it computes, keeps, exchanges and refuses, and its memories.

That it computes the same as the functions is tested bit for bit; these have their own tests.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import EMPTY_ROWS, SLACK, Array, assert_same_bits, lost_blocks
from multi_headed import HeadsProblem, make_heads, of_pairs

import attnext
from attnext import Memory, MultiHeadAttention

SIZES = {"key_size": 5, "query_size": 4, "value_size": 3}  # as make_heads has them


def make_layer(kv_heads: int | None = None, bias: bool = True, **more: Any) -> MultiHeadAttention:
    """Four heads of two features."""
    more = {"rng": 0, **more}
    return MultiHeadAttention(
        **SIZES, num_hiddens=8, num_heads=4, num_kv_heads=kv_heads, bias=bias, **more
    )


def problem_of(layer: MultiHeadAttention, rng: np.random.Generator, **sizes: Any) -> HeadsProblem:
    """A random problem with the layer's parameters."""
    problem = make_heads(rng, heads=4, bias_terms=False, **sizes)
    problem.grads.pop("grad_lse", None)  # layers return no lse
    if layer.num_kv_heads != 4:
        problem.options["num_kv_heads"] = layer.num_kv_heads
    problem.inputs |= layer.parameters()
    return problem


def taken(problem: HeadsProblem) -> dict[str, Any]:
    """What the call takes of the options."""
    own = ("num_heads", "num_kv_heads", "dropout_p", "seed")
    return {name: given for name, given in problem.options.items() if name not in own}


def asked(problem: HeadsProblem) -> dict[str, bool]:
    return {
        f"return_grad_{name}": True for name in ("bias", "sink", "scale") if problem.shares(name)
    }


def run(layer: MultiHeadAttention, problem: HeadsProblem, memory: Memory | None = None) -> Any:
    """Output, weights and every gradient, under the names that Problem.run gives them."""
    q, k, v = (problem.inputs[name] for name in ("queries", "keys", "values"))
    options = taken(problem)
    if memory is not None:
        options.pop("valid_lens", None)
        output = layer(q, memory, **options)
    else:
        output = layer(q, k, v, **options)
    result = {"output": output.copy(), "weights": layer.attention_weights}
    layer.zero_grad()
    more = asked(problem)
    d = layer.backward(**problem.grads, **more)
    names = [name.removeprefix("return_grad_") for name in more]
    if memory is not None:
        first, *rest = d if more else (d,)
        d = (first, *memory.backward(), *rest)
    found = dict(zip(["queries", "keys", "values", *names], d, strict=True))
    return result | {f"d_{name}": x.copy() for name, x in (found | layer.grads).items()}


def of_functions(problem: HeadsProblem) -> dict[str, Array]:
    result = problem.run()
    del result["lse"]
    return result


def random_options(rng: np.random.Generator, lead: tuple[int, ...], M: int, N: int) -> Any:
    options: dict[str, Any] = {
        "valid_lens": rng.integers(0, N + 3, size=lead[:1]),
        "mask": of_pairs(rng.random((4, M, N)) < 0.8, lead),
        "bias": rng.standard_normal((*lead, 1, 1, N), dtype=np.float32),
        "causal": True,
        "window": (N // 2, -1),
        "softcap": 1.5,
        "sink": rng.normal(size=(4, 1)),
        "scale": rng.uniform(0.3, 1, size=4),
    }
    return {name: given for name, given in options.items() if rng.random() < 0.4}


# ---- what it computes ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", range(12))
def test_same_bits_as_the_functions(case: int, rng: np.random.Generator) -> None:
    lead = [(2,), (), (3, 2)][case % 3]
    M, N = [(3, 5), (70, 140), (1, 9)][case // 2 % 3]
    layer = make_layer([None, 2, 1][case // 4], case % 2 == 0, dropout=0.3 * (case % 4 > 1))
    options = random_options(rng, lead, M, N) | {"empty_rows": EMPTY_ROWS[case % 3]}
    problem = problem_of(layer, rng, lead=lead, M=M, N=N, kv_heads=layer.num_kv_heads, **options)
    problem.inputs |= layer.parameters()
    got = run(layer, problem)
    assert layer.context is not None
    if layer.dropout:
        problem = problem.but(dropout_p=0.3, seed=layer.context.seed)  # type: ignore[assignment]
    direct = of_functions(problem)
    assert got.keys() == direct.keys()
    np.testing.assert_array_equal(got["output"], direct["output"])
    np.testing.assert_array_equal(got["weights"], direct["weights"])
    assert_same_bits(got, direct)


def test_backward_adds_and_takes_any_context(rng: np.random.Generator) -> None:
    layer = make_layer()
    problems = [problem_of(layer, rng, M=M) for M in (2, 7)]
    alone = [run(layer, problem) for problem in problems]
    layer.zero_grad()
    contexts = []
    for problem in problems:
        output = layer(*(problem.inputs[name] for name in ("queries", "keys", "values")))
        output[...] = np.nan  # the caller's own
        contexts.append(layer.context)
    for problem, context, expected in zip(problems, contexts, alone, strict=True):
        d = layer.backward(**problem.grads, context=context)
        for name, x in zip(("queries", "keys", "values"), d, strict=True):
            np.testing.assert_array_equal(x, expected[f"d_{name}"])
    for name, grad in layer.grads.items():
        np.testing.assert_array_equal(grad, alone[0][f"d_{name}"] + alone[1][f"d_{name}"])


def test_need_weights() -> None:
    layer = make_layer()
    x = np.ones((2, 3, 4)), np.ones((2, 5, 5)), np.ones((2, 5, 3))
    assert layer.attention_weights is None
    output = layer(*x)
    assert layer.attention_weights is not None and layer.attention_weights.shape == (2, 4, 3, 5)
    np.testing.assert_array_equal(layer(*x, need_weights=False), output)
    assert layer.attention_weights is None


# ---- parameters and state dicts ------------------------------------------------------------------


def test_initial_parameters_are_drawn_as_documented() -> None:
    layer = make_layer(kv_heads=2, rng=7)
    rng = np.random.default_rng(7)
    shapes = {"W_q": (8, 4), "W_k": (4, 5), "W_v": (4, 3), "W_o": (8, 8)}
    shapes |= {"b_q": (8,), "b_k": (4,), "b_v": (4,), "b_o": (8,)}
    fan_in = dict(zip(shapes, [4, 5, 3, 8] * 2, strict=True))
    assert layer.parameters().keys() == shapes.keys() == layer.grads.keys()
    for name, shape in shapes.items():
        bound = fan_in[name] ** -0.5
        np.testing.assert_array_equal(
            getattr(layer, name), rng.uniform(-bound, bound, shape).astype(np.float32)
        )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [8, 6])
def test_state_dicts_of_both_layouts(size: int, bias: bool) -> None:
    sizes = {"key_size": size, "query_size": 8, "value_size": size}
    make: Callable[..., Any] = MultiHeadAttention
    layer = make(**sizes, num_hiddens=8, num_heads=2, bias=bias, rng=1)
    module = torch.nn.MultiheadAttention(8, 2, bias=bias, kdim=size, vdim=size)
    state = layer.state_dict(layout="torch")
    assert {name: x.shape for name, x in state.items()} == {
        name: tuple(x.shape) for name, x in module.state_dict().items()
    }
    module.load_state_dict({name: torch.from_numpy(x) for name, x in state.items()})
    twins = [make(**sizes, num_hiddens=8, num_heads=2, bias=bias, rng=2) for _ in range(3)]
    twins[0].load_state_dict(module.state_dict())
    twins[1].load_state_dict(layer.state_dict())
    separate = {f"{name}_proj_weight": getattr(layer, f"W_{name}") for name in "qkv"}
    rest = {name: x for name, x in state.items() if "proj_weight" not in name}
    twins[2].load_state_dict(separate | rest)
    for twin in twins:
        assert_same_bits(twin.parameters(), layer.parameters())
    d2l = {f"{name}.{kind}" for name in ("W_q", "W_k", "W_v", "W_o") for kind in ("weight", "bias")}
    assert layer.state_dict().keys() == {n for n in d2l if bias or n.endswith("weight")}
    state["out_proj.weight"][:] = 0  # copies
    assert layer.W_o.any()


def test_state_dicts_that_do_not_fit() -> None:
    layer = MultiHeadAttention(8, 8, 8, 8, 2, bias=True, rng=0)
    own, theirs = layer.state_dict(), layer.state_dict("torch")
    before = copy.deepcopy(layer.parameters())
    cases: list[tuple[Any, type[Exception], str]] = [
        ({**own, "in_proj_bias": own["W_q.bias"]}, KeyError, "unexpected ['W_q.weight',"),
        ({**own, "W_x.weight": 1}, KeyError, "unexpected ['W_x.weight']"),
        ({**theirs, "bias_k": np.ones(8)}, KeyError, "unexpected ['bias_k']"),
        ({k: x for k, x in theirs.items() if k != "in_proj_bias"}, KeyError, "['in_proj_bias']"),
        ({k: x for k, x in own.items() if k != "W_v.bias"}, KeyError, "missing ['W_v.bias']"),
        ({**theirs, "in_proj_weight": own["W_q.weight"]}, ValueError, "(8, 8), expected (24, 8)"),
        ({**own, "W_o.weight": np.ones((8, 7))}, ValueError, "state_dict['W_o.weight'] has shape"),
        ([1], TypeError, "state_dict must be a mapping"),
    ]
    for state, error, text in cases:
        with pytest.raises(error, match=re.escape(text)):
            layer.load_state_dict(state)
        assert_same_bits(layer.parameters(), before)
    grouped = MultiHeadAttention(8, 8, 8, 8, 2, num_kv_heads=1, bias=True)
    wide = MultiHeadAttention(8, 6, 8, 8, 2, bias=True)
    for other, reason in (
        (grouped, r"num_kv_heads \(1\) is not"),
        (wide, r"query_size \(6\) is not"),
    ):
        with pytest.raises(
            ValueError, match=f"^layout is 'torch', expected 'd2l' because {reason}"
        ):
            other.state_dict("torch")
        with pytest.raises(ValueError, match="^layout is 'torch', expected 'd2l'"):
            other.load_state_dict(theirs)
    with pytest.raises(ValueError, match="^layout is 'keras', expected 'd2l' or 'torch'"):
        layer.state_dict("keras")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="^layout must be 'd2l' or 'torch', got int"):
        layer.state_dict(layout=3)  # type: ignore[arg-type]


# ---- its life ------------------------------------------------------------------------------------


def test_repr_and_sizes() -> None:
    text = "MultiHeadAttention(key_size=5, query_size=4, value_size=3, num_hiddens=8, num_heads=4, "
    assert repr(make_layer(dropout=0.1)) == text + "dropout=0.1, bias=True)"
    layer = make_layer(2, bias=False)
    assert repr(layer) == text + "dropout=0.0, bias=False, num_kv_heads=2)"
    sizes = (layer.key_size, layer.query_size, layer.value_size, layer.num_hiddens)
    assert (*sizes, layer.num_heads, layer.num_kv_heads) == (5, 4, 3, 8, 4, 2)
    assert layer.b_q is None
    with pytest.raises(AttributeError, match="bias=False"):
        layer.b_q = 1


def test_no_memory_is_lost(rng: np.random.Generator) -> None:
    layer = make_layer(kv_heads=2, dropout=0.5)
    problem = problem_of(layer, rng, kv_heads=2, valid_lens=[3, 4])
    x = [problem.inputs[name] for name in ("keys", "values")]
    states = layer.state_dict(), MultiHeadAttention(4, 4, 4, 4, 1).state_dict("torch")

    def everything() -> None:
        run(layer, problem)
        memory = layer.memory(*x, [3, 4], mask=np.ones(5, bool))
        memory.append(*x)
        run(layer, problem.but(mask=np.ones((3, 10), bool)), memory)  # type: ignore[arg-type]
        layer.load_state_dict(states[0])
        MultiHeadAttention(4, 4, 4, 4, 1).load_state_dict(states[1])
        for wrong in (lambda: layer(*x, x[1]), lambda: layer.state_dict("torch")):
            with pytest.raises(ValueError):
                wrong()

    problem.grads.pop("grad_weights")
    everything()
    assert lost_blocks(everything) < SLACK


def test_bad_input() -> None:
    good: dict[str, Any] = {**SIZES, "num_hiddens": 8, "num_heads": 4}
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"num_heads": 3}, ValueError, "num_heads is 3, expected a divisor of num_hiddens (8)"),
        ({"num_heads": 0}, ValueError, "num_heads is 0, expected num_heads >= 1"),
        ({"num_heads": 2.0}, TypeError, "num_heads must be an int"),
        ({"num_kv_heads": 3}, ValueError, "num_kv_heads is 3, expected a divisor of num_heads (4)"),
        ({"num_kv_heads": "2"}, TypeError, "num_kv_heads must be an int"),
        ({"value_size": -1}, ValueError, "value_size is -1, expected value_size >= 0"),
        (
            {"value_size": 2**61},
            ValueError,
            "value_size is 2305843009213693952 and num_hiddens is 8",
        ),
        ({"bias": 1}, TypeError, "bias must be"),
        ({"dropout": 1}, ValueError, "dropout is 1"),
    ]
    for change, error, text in cases:
        with pytest.raises(error, match="^" + re.escape(text)):
            MultiHeadAttention(**(good | change))
    layer = make_layer()
    q, k, v = np.ones((2, 3, 4)), np.ones((2, 5, 5)), np.ones((2, 5, 3))
    calls: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: layer(k, k, v), ValueError, "queries has shape (2, 5, 5), expected (..., M, 4)"),
        (lambda: layer(q, q, v), ValueError, "keys has shape (2, 3, 4), expected (..., N, 5)"),
        (lambda: layer(q, k, k), ValueError, "values has shape (2, 5, 5), expected (..., N, 3)"),
        (lambda: layer(q, k), TypeError, "__call__() missing required argument 'values'"),
        (lambda: layer(q, k, v, num_heads=4), TypeError, "__call__() got an unexpected keyword"),
        (lambda: layer.backward(q), RuntimeError, "backward() needs a forward pass"),
        (
            lambda: layer.memory(k, k),
            ValueError,
            "values has shape (2, 5, 5), expected (..., N, 3)",
        ),
        (lambda: layer.memory(k, v[:1]), ValueError, "values has shape (1, 5, 3), expected (2, 5,"),
    ]
    for call, error, text in calls:
        with pytest.raises(error, match="^" + re.escape(text)):
            call()


# ---- memories ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", range(12))
def test_a_memory_has_the_bits_of_direct_calls(case: int, rng: np.random.Generator) -> None:
    lead = [(2,), (), (3, 2)][case % 3]
    M, N = [(3, 5), (20, 140), (1, 300)][case // 2 % 3]
    layer = make_layer([None, 2, 1][case // 4], case % 2 == 0)
    options = random_options(rng, lead, M, N) | {"empty_rows": EMPTY_ROWS[case % 3]}
    if {"causal", "window"} & options.keys():
        options["causal_offset"] = N - M  # as a memory has it
    problem = problem_of(layer, rng, lead=lead, M=M, N=N, kv_heads=layer.num_kv_heads, **options)
    problem.inputs |= layer.parameters()
    own: dict[str, Any] = {"valid_lens": options.get("valid_lens")}
    direct = run(layer, problem)
    keys, values = problem.inputs["keys"], problem.inputs["values"]
    split = N // 2 if case % 2 else 0
    memory = layer.memory(keys[..., :split, :], values[..., :split, :], **own)
    memory.append(keys[..., split:, :], values[..., split:, :])
    assert len(memory) == N
    assert_same_bits(run(layer, problem, memory), direct)
    if case % 3:
        mask = rng.random((*lead, 1, N)) < 0.7
        memory = layer.memory(keys, values, **own, mask=mask)
        both = mask[..., None, :, :] & options.get("mask", True)
        direct = run(layer, problem.but(mask=both))  # type: ignore[arg-type]
        assert_same_bits(run(layer, problem, memory), direct)


def test_decoding_step_by_step(rng: np.random.Generator) -> None:
    """Each step has the bits of its row of the full causal call; the gradients add up to its."""
    layer = MultiHeadAttention(8, 8, 8, 8, 4, num_kv_heads=2, bias=True, rng=0)
    x, g = rng.standard_normal((2, 2, 9, 8), dtype=np.float32)
    full = layer(x, x, x, causal=True).copy()
    expected = layer.backward(g)
    grads = copy.deepcopy(layer.grads)
    layer.zero_grad()
    memory, contexts, outputs = layer.memory(x[:, :0], x[:, :0]), [], []
    for t in range(9):
        memory.append(x[:, t : t + 1], x[:, t : t + 1])
        outputs.append(layer(x[:, t : t + 1], memory, causal=True))
        contexts.append(layer.context)
    np.testing.assert_array_equal(np.concatenate(outputs, axis=1), full)
    dq = [layer.backward(g[:, t : t + 1], context=contexts[t]) for t in reversed(range(9))]
    d = (np.concatenate(dq[::-1], axis=1), *memory.backward())
    for got, exact in zip(d, expected, strict=True):
        np.testing.assert_allclose(got, exact, rtol=0, atol=1e-5)
    for name, grad in layer.grads.items():
        np.testing.assert_allclose(grad, grads[name], rtol=0, atol=2e-5, err_msg=name)


def test_a_value_that_only_empty_rows_pool(rng: np.random.Generator) -> None:
    """Its key is never read, in a memory as without one: NaN there reaches no gradient."""
    layer = make_layer()
    problem = problem_of(layer, rng, N=5, valid_lens=[0, 3])
    direct = run(layer, problem)
    problem.inputs["keys"][0] = problem.inputs["keys"][1, 3:] = np.nan
    memory = layer.memory(problem.inputs["keys"], problem.inputs["values"], [0, 3])
    assert_same_bits(run(layer, problem), direct)
    assert_same_bits(run(layer, problem, memory), direct)


@pytest.mark.parametrize("name", ["W_k", "W_v", "b_k", "b_v"])
def test_a_memory_belongs_to_the_numbers_that_projected_it(name: str) -> None:
    layer = make_layer()
    memory = layer.memory(np.ones((2, 5)), np.ones((2, 3)))
    layer.W_q += 1
    layer.b_o = np.ones(8)
    layer(np.ones((1, 4)), memory)
    getattr(layer, name)[0] += 1
    for use in (
        lambda: layer(np.ones((1, 4)), memory),
        lambda: memory.append(np.ones((2, 5)), np.ones((2, 3))),
        lambda: memory.backward(),
    ):
        with pytest.raises(RuntimeError, match=f"^{name} has changed since the memory"):
            use()
    other = make_layer()
    with pytest.raises(ValueError, match="^the memory belongs to another layer"):
        other(np.ones((1, 4)), memory)
    assert attnext.Memory is type(memory)
