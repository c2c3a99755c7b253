"""multi_head_attention and its backward: against plain NumPy and torch in float64, bit for bit.

What the layer adds to them: test_multi_head_layer.py.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    EMPTY_ROWS,
    Array,
    assert_all_accurate,
    assert_same_bits,
    random_masks,
    run_python,
)
from multi_headed import HeadsProblem, make_heads, of_pairs, textbook_heads, with_nan

import attnext
from attnext import MultiHeadGradients, multi_head_attention, multi_head_attention_backward


def check(problem: HeadsProblem) -> dict[str, Array]:
    got = problem.run(attnext)
    assert_all_accurate(got, textbook_heads(problem, np.float64), problem, textbook_heads)
    return got


def random_options(
    rng: np.random.Generator, lead: tuple[int, ...], heads: int, M: int, N: int
) -> Any:
    """Masks and modifiers of any shape that broadcasts to those of the heads."""
    options = random_masks(rng, (*lead, heads), M, N)
    if "valid_lens" in options:
        shapes: list[tuple[int, ...]] = [(), (*lead, M)]
        shapes += [lead[:1], (*lead[:1], M)] if lead else []
        options["valid_lens"] = rng.integers(0, N + 3, size=shapes[rng.integers(len(shapes))])
    if "causal_offset" in options:
        options["causal_offset"] = rng.integers(-2, N, size=lead[:1] if rng.integers(2) else ())
    modifiers: dict[str, Any] = {
        "softcap": 2.0,
        "scale": [0.3, rng.uniform(0.2, 1, size=heads), rng.uniform(0.2, 1, size=(*lead, 1))][
            rng.integers(3)
        ],
        "sink": np.where(rng.random((heads, 1)) < 0.3, -np.inf, rng.normal(size=(heads, 1))),
        "dropout_mask": rng.random((heads, M, N)) < 0.7,
    }
    options |= {name: given for name, given in modifiers.items() if rng.random() < 0.3}
    for name in {"mask", "bias", "dropout_mask"} & options.keys():
        options[name] = of_pairs(options[name], lead)
    return options


# ---- what they compute ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", range(48))
def test_any_sizes_masks_and_modifiers(case: int, rng: np.random.Generator) -> None:
    lead = [(2,), (), (3, 2)][case % 3]
    heads, kv_heads = [(3, None), (4, 2), (1, None), (6, 1)][case % 4]
    M, N = [(3, 5), (1, 9), (17, 140), (70, 33), (2, 1)][case % 5]
    sizes = {"Dq": 1 + case % 7, "Dk": 1 + case % 11, "Dv": 1 + case % 5, "d": 1 + case % 6}
    options = random_options(rng, lead, heads, M, N) | {"empty_rows": EMPTY_ROWS[case // 3 % 3]}
    problem = make_heads(
        rng,
        lead=lead,
        M=M,
        N=N,
        heads=heads,
        kv_heads=kv_heads,
        bias_terms=case % 2 == 0,
        **sizes,
        **options,
    )
    got = check(problem)
    assert_same_bits(with_nan(problem, rng).run(), got)


def test_large_in_several_groups_of_queries(rng: np.random.Generator) -> None:
    """The shares of the groups are added into rows of heads."""
    lens = rng.integers(0, 190, size=2)
    problem = make_heads(
        rng, M=600, N=180, Dq=33, Dk=70, Dv=17, d=9, heads=4, kv_heads=2, valid_lens=lens
    )
    check(problem.but(bias=rng.standard_normal((1, 4, 1, 180), dtype=np.float32)))


@pytest.mark.parametrize("axis", ["lead", "M", "N", "Dq", "Dk", "Dv", "d"])
def test_no_elements(axis: str, rng: np.random.Generator) -> None:
    sizes: dict[str, Any] = {axis: (0,) if axis == "lead" else 0}
    problem = make_heads(rng, **sizes, valid_lens=2)
    check(problem)
    if axis in ("lead", "M", "N"):  # nothing is read, and nothing flows
        nan = {name: np.full_like(problem.inputs[name], np.nan) for name in ("queries", "keys")}
        got = HeadsProblem(
            "multi_head", problem.inputs | nan, problem.options, problem.grads
        ).backward()
        assert not np.any(got["d_W_q"]) and not np.any(got["d_W_k"])


def test_the_gradients_are_a_named_tuple(rng: np.random.Generator) -> None:
    problem = make_heads(rng, bias_terms=False)
    d = multi_head_attention_backward(**problem.grads, **problem.inputs, num_heads=3)
    assert type(d) is MultiHeadGradients
    assert d._fields == (
        "queries",
        "keys",
        "values",
        "W_q",
        "W_k",
        "W_v",
        "W_o",
        "b_q",
        "b_k",
        "b_v",
        "b_o",
    )
    assert d[7:] == (None,) * 4
    for name, x in problem.inputs.items():
        assert getattr(d, name).shape == x.shape


@pytest.mark.parametrize("kdim", [8, 6])
def test_the_numbers_of_torch(kdim: int, rng: np.random.Generator) -> None:
    """torch.nn.MultiheadAttention in float64, with a causal mask and padding."""
    module = torch.nn.MultiheadAttention(8, 4, kdim=kdim, vdim=kdim, batch_first=True).double()
    layer = attnext.MultiHeadAttention(kdim, 8, kdim, 8, 4, bias=True)
    for bias in (module.in_proj_bias, module.out_proj.bias):
        torch.nn.init.normal_(bias)
    layer.load_state_dict(module.state_dict())
    shapes = {"queries": (3, 5, 8), "keys": (3, 5, kdim), "values": (3, 5, kdim)}
    inputs = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    tensors = {name: torch.tensor(x, requires_grad=True) for name, x in inputs.items()}
    lens = np.array([5, 2, 4])
    output, weights = module(
        *tensors.values(),
        key_padding_mask=torch.tensor(np.arange(5) >= lens[:, None]),
        attn_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
        average_attn_weights=False,
    )
    got, w = multi_head_attention(
        **inputs,
        **layer.parameters(),
        num_heads=4,
        valid_lens=lens,
        causal=True,
        return_weights=True,
    )
    np.testing.assert_allclose(got, output.detach(), rtol=0, atol=2e-6)
    np.testing.assert_allclose(w, weights.detach(), rtol=0, atol=1e-6)
    g, g_w = rng.normal(size=got.shape), rng.normal(size=w.shape)
    torch.autograd.backward([output, weights], [torch.tensor(g), torch.tensor(g_w)])
    d = multi_head_attention_backward(
        g,
        **inputs,
        **layer.parameters(),
        num_heads=4,
        valid_lens=lens,
        causal=True,
        grad_weights=g_w,
    )
    for name, tensor in tensors.items():
        np.testing.assert_allclose(getattr(d, name), tensor.grad, rtol=0, atol=1e-5)
    expected = attnext.MultiHeadAttention(kdim, 8, kdim, 8, 4, bias=True)
    expected.load_state_dict({name: p.grad for name, p in module.named_parameters()})
    for name, x in expected.parameters().items():
        np.testing.assert_allclose(getattr(d, name), x, rtol=0, atol=2e-5, err_msg=name)


# ---- the same bits -------------------------------------------------------------------------------


def test_one_head_has_the_bits_of_the_dot_product(rng: np.random.Generator) -> None:
    """With identities for layers."""
    q, k, v = (rng.standard_normal((2, n, 8), dtype=np.float32) for n in (70, 90, 90))
    eye = np.eye(8, dtype=np.float32)
    got = multi_head_attention(q, k, v, eye, eye, eye, eye, [33, 90], num_heads=1)
    np.testing.assert_array_equal(got, attnext.dot_product_attention(q, k, v, [33, 90]))


def test_what_is_asked_for_besides_changes_nothing(rng: np.random.Generator) -> None:
    problem = make_heads(rng, M=40, N=60, valid_lens=[33, 0])
    output, weights, lse = problem.forward(return_weights=True, return_lse=True)
    out = np.full_like(output, np.nan)
    assert problem.forward(out=out) is out
    np.testing.assert_array_equal(out, output)
    d = problem.backward()
    assert_same_bits(problem.backward(lse=lse, output=output), d)
    for name, x in problem.backward(weights=weights).items():
        np.testing.assert_allclose(x, d[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_neither_threads_nor_place_in_the_batch(rng: np.random.Generator, threads: None) -> None:
    lens = rng.integers(0, 200, size=5)
    problem = make_heads(
        rng, lead=(5,), M=130, N=190, Dq=40, Dk=40, Dv=40, d=12, heads=4, valid_lens=lens
    )
    attnext.set_num_threads(1)
    one = problem.run()
    for n in (2, 3, 7):
        attnext.set_num_threads(n)
        assert_same_bits(problem.run(), one)
    inputs = {name: x[3:4] if x.ndim == 3 else x for name, x in problem.inputs.items()}
    alone = HeadsProblem("multi_head", inputs, {**problem.options, "valid_lens": lens[3]})
    np.testing.assert_array_equal(alone.forward(), one["output"][3:4])


def test_padding_changes_no_bit(rng: np.random.Generator) -> None:
    """More keys behind the valid ones: not even of the parameters' gradients."""
    problem = make_heads(rng, M=20, N=70, extra_grads=False, valid_lens=[70, 31])
    got = problem.run()
    longer = {
        name: np.concatenate(
            [problem.inputs[name], np.full((2, 80, n), np.nan, np.float32)], axis=1
        )
        for name, n in (("keys", 5), ("values", 3))
    }
    padded = HeadsProblem(
        "multi_head", problem.inputs | longer, problem.options, problem.grads
    ).run()
    for name in ("weights", "d_keys", "d_values"):
        axis = -1 if name == "weights" else -2
        padded[name], behind = np.split(padded[name], [70], axis=axis)
        assert not np.any(behind)
    assert_same_bits(padded, got)


BITS = """
import hashlib, numpy as np
from helpers import bits, random_masks
from multi_headed import make_heads
from attnext import multi_head_attention
digest = hashlib.sha256()
for seed, (M, N, d, heads, kv_heads) in enumerate(
    [(3, 5, 2, 3, 1), (70, 140, 9, 4, 2), (1, 300, 17, 2, 2), (300, 70, 4, 4, 4)]
):
    rng = np.random.default_rng(seed)
    masks = random_masks(rng, (2, heads), M, N)
    masks["valid_lens"] = rng.integers(0, N + 1, size=(2, M))
    options = {"d": d, "heads": heads, "kv_heads": kv_heads, "dropout_p": 0.2, "seed": 7}
    problem = make_heads(rng, M=M, N=N, Dq=33, Dk=20, Dv=7, **options, **masks)
    for name, x in sorted(problem.run().items()):
        digest.update(bits(x).tobytes())
for rows in (1, 2):  # one row goes another way
    x = make_heads(np.random.default_rng(1), lead=(), M=40, N=9, Dq=300, d=17).inputs
    few = multi_head_attention(**x | {"queries": x["queries"][:rows]}, num_heads=3)
    assert np.array_equal(few, multi_head_attention(**x, num_heads=3)[:rows])
print(digest.hexdigest())
"""


def test_the_same_bits_on_every_instruction_set() -> None:
    available = attnext.show_config("dicts")["instruction_set"]["available"]
    found = {name: run_python("-c", BITS, ATTNEXT_CPU=name).stdout for name in available}
    found.pop("generic", None)  # there it ran, which is what it asserts of few rows
    assert len(set(found.values())) == 1


# ---- what they refuse ----------------------------------------------------------------------------


def test_bad_input(rng: np.random.Generator) -> None:
    problem = make_heads(rng, heads=4, extra_grads=False)
    x, eight = problem.inputs, np.ones(8)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        (
            {"num_heads": 3},
            ValueError,
            "num_heads is 3, expected a divisor of the number of rows of W_q (8)",
        ),
        ({"num_heads": 0}, ValueError, "num_heads is 0, expected num_heads >= 1"),
        ({"num_heads": True}, TypeError, "num_heads must be an int"),
        ({"num_heads": 2.0}, TypeError, "num_heads must be an int"),
        ({"num_heads": None}, TypeError, "num_heads must be an int"),
        ({"num_kv_heads": 3}, ValueError, "num_kv_heads is 3, expected a divisor of num_heads (4)"),
        ({"num_kv_heads": -1}, ValueError, "num_kv_heads is -1, expected num_kv_heads >= 1"),
        ({"num_kv_heads": 2}, ValueError, "W_k has shape (8, 5), expected (4, 5)"),
        ({"W_q": x["W_q"][:, 1:]}, ValueError, "W_q has shape (8, 3), expected (H, 4)"),
        ({"W_v": x["W_k"]}, ValueError, "W_v has shape (8, 5), expected (8, 3)"),
        ({"W_o": x["W_q"]}, ValueError, "W_o has shape (8, 4), expected (8, 8)"),
        ({"b_k": eight[1:]}, ValueError, "b_k has shape (7,), expected (8,)"),
        ({"keys": x["keys"][:1]}, ValueError, "keys has shape (1, 5, 5), expected (2, N, Dk)"),
        ({"mask": np.ones((2, 3, 5), bool)}, ValueError, "mask has shape (2, 3, 5), expected a "),
        ({"sink": np.ones(4)}, ValueError, "sink has shape (4,), expected a shape that broadc"),
        ({"scale": np.ones(3)}, ValueError, "scale has shape (3,), expected a shape that broad"),
        ({"valid_lens": np.ones((2, 4), int)}, ValueError, "valid_lens has shape (2, 4), expected"),
        ({"out": np.zeros((2, 3, 5), "f")}, ValueError, "out has shape (2, 3, 5), expected (2, 3"),
        ({"enable_gqa": True}, TypeError, "unexpected keyword argument 'enable_gqa'"),
    ]
    for change, error, text in cases:
        with pytest.raises(error, match=re.escape(text)):
            multi_head_attention(**(x | problem.options | change))
        if "out" not in change:
            with pytest.raises(error, match=re.escape(text)):
                multi_head_attention_backward(**(problem.grads | x | problem.options | change))
    for wrong, text in (
        ({"grad_output": eight}, "grad_output has shape (8,), expected (2, 3, 8)"),
        ({"weights": np.ones((2, 3, 5))}, "weights has shape (2, 3, 5), expected (2, 4, 3, 5)"),
        ({"lse": np.ones((2, 3))}, "lse has shape (2, 3), expected (2, 4, 3)"),
        ({"output": np.ones((2, 3))}, "output has shape (2, 3), expected (2, 3, 8)"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            multi_head_attention_backward(**(problem.grads | x | problem.options | wrong))
    with pytest.raises(TypeError, match="missing required keyword-only argument 'num_heads'"):
        multi_head_attention(**x)  # type: ignore[call-overload]


# ---- what a mask's axes are ----------------------------------------------------------------------


def of_shape(name: str, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(len(shape))
    return rng.normal(size=shape) if name == "bias" else rng.random(shape) < 0.7


@pytest.mark.parametrize("name", ["mask", "bias", "dropout_mask"])
def test_a_mask_of_three_axes_is_not_guessed(name: str) -> None:
    """One for each entry or one for each head? As many of both or not, it is asked for."""
    for lead, heads in (((3,), 3), ((3,), 2)):
        x = make_heads(np.random.default_rng(0), lead=lead, heads=heads, M=4, N=5).inputs
        more: dict[str, Any] = {"num_heads": heads}
        more |= {"dropout_p": 0.5} if name == "dropout_mask" else {}
        layer = attnext.MultiHeadAttention(5, 4, 3, 2 * heads, heads)
        module = attnext.torch.MultiHeadAttention(5, 4, 3, 2 * heads, heads)
        rows = [x["queries"], x["keys"], x["values"]]
        calls = [
            lambda given, x=x, more=more: multi_head_attention(**x, **more, **{name: given}),
            lambda given, x=x, more=more: attnext.reference.multi_head_attention(
                **x, **more, **{name: given}
            ),
            lambda given, x=x, more=more: attnext.torch.multi_head_attention(
                **{n: torch.tensor(a) for n, a in x.items()}, **more,
                **{name: torch.tensor(given, dtype=None if name != "bias" else torch.float32)},
            ),
            lambda given, x=x, more=more: attnext.explain.multi_head_attention(
                **x, **more, **{name: given}
            ),
        ]  # fmt: skip
        if name != "dropout_mask":
            memory = layer.memory(*rows[1:])
            calls += [
                lambda given, f=layer, rows=rows: f(*rows, **{name: given}),
                lambda given, f=layer, rows=rows, memory=memory: f(
                    rows[0], memory, **{name: given}
                ),
                lambda given, f=module, rows=rows: f(
                    *map(torch.tensor, rows),
                    **{name: torch.tensor(given, dtype=None if name == "mask" else torch.float32)},
                ),
            ]
        for call in calls:
            for shape in ((3, 4, 5), (3, 1, 5), (heads, 4, 5), (heads, 1, 1)):
                message = (
                    f"{name} has shape {shape}, expected a shape that broadcasts to (4, 5), or a "
                    f"shape with 4 axes that broadcasts to {(3, heads, 4, 5)}; pass {name}[:, "
                    f"None] if it "
                    f"has one {name} per batch element, or {name}[None] if it has one {name} per "
                    f"head"
                )
                with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                    call(of_shape(name, shape))
            for shape in ((4, 5), (5,), (1, 4, 5), (3, 1, 4, 5), (1, heads, 1, 5)):
                call(of_shape(name, shape))


def test_a_mask_where_all_axes_are_there_or_none_is_in_between() -> None:
    """Without a batch (heads, M, N) is all there is; with two leading axes more is between."""
    x = make_heads(np.random.default_rng(0), lead=(), heads=3, M=4, N=5).inputs
    weights = multi_head_attention(
        **x, num_heads=3, mask=of_shape("mask", (3, 4, 5)), return_weights=True, empty_rows="zero"
    )[1]
    assert not weights[~of_shape("mask", (3, 4, 5))].any()
    x = make_heads(np.random.default_rng(0), lead=(2, 3), heads=3, M=4, N=5).inputs
    for call in (multi_head_attention, attnext.reference.multi_head_attention):
        for shape in ((3, 4, 5), (2, 3, 4, 5), (3, 1, 4, 5)):
            message = (
                f"mask has shape {shape}, expected a shape that broadcasts to (4, 5), or a shape "
                "with 5 axes that broadcasts to (2, 3, 3, 4, 5)"
            )
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                call(**x, num_heads=3, mask=np.ones(shape, bool))  # type: ignore[operator]
