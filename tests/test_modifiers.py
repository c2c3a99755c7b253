"""What happens to scores before the softmax, one table: each modifier answers the same questions.

    softcap   s becomes c tanh(s / c)                   a number
    bias      s becomes s + b, and -inf masks           of pairs
    sink      one more score, whose value is nothing    of rows
    scale     s becomes a s: of dot products, cosines   of heads

What is to be asked of one alone: test_softcap.py, test_bias.py, test_sink.py, test_scale.py. The
reference: test_reference_masks.py; formulas under PyTorch's autograd: test_torch_masks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import pytest
import torch
from helpers import (
    EMPTY_ROWS,
    FUNCTION,
    PART_KEYS,
    SCORES,
    SCORES_FUNCTION,
    SHARED,
    Array,
    Problem,
    assert_all_accurate,
    assert_same_bits,
    bits,
    check,
    error_of,
    make_problem,
    over_broadcast,
    random_masks,
    random_modifiers,
    repr_id,
    textbook,
)
from sampling import cases

import attnext
import attnext.dask
import attnext.torch
from attnext import explain, reference

nan, inf = np.nan, np.inf
LARGEST = float(np.finfo(np.float32).max)


class Modifier(NamedTuple):
    """shapes: those that it may come in, by their axes of (B, H, M, N); the last serves most tests.
    draw: from normal numbers to its own. nothing: with these all is as without it."""

    shapes: list[str]
    draw: Callable[[Array], Any]
    nothing: list[Any]
    scores: tuple[str, ...] = SCORES


def some_infinite(x: Array) -> Array:
    """One in ten is -inf."""
    return np.where(np.sin(1e4 * x) < -0.95, -np.float32(inf), x)


ALL_AXES = ["".join(each) for each in product("B1", "H1", "M1", "N1")]
MODIFIERS = {
    "softcap": Modifier([""], lambda x: float(abs(x)) + 0.3, [1e30, LARGEST]),
    "bias": Modifier(
        [*ALL_AXES, "", "1", "N", "MN", "H11", "M1"],
        some_infinite,
        [np.zeros(()), np.zeros(140), np.zeros((20, 1)), np.zeros((2, 3, 20, 140))],
    ),
    "sink": Modifier(
        ["", "1", "M", "B11", "BHM", "H1"], some_infinite, [-inf, np.full((3, 1), -inf)]
    ),
    "scale": Modifier(
        ["1", "B1", "1H", "BH", "H"], lambda x: 2 * x, [np.full(3, 0.5)], ("dot", "cosine")
    ),
}
PAIRS = [(name, score) for name, modifier in MODIFIERS.items() for score in modifier.scores]
every = pytest.mark.parametrize(("name", "score"), PAIRS)
every_with_gradient = pytest.mark.parametrize(
    ("name", "score"), [pair for pair in PAIRS if pair[0] in SHARED]
)


def drawn(name: str, rng: np.random.Generator, problem: Problem, axes: str | None = None) -> Any:
    """One for this problem of queries (B, H, M, D), in the shape of these axes."""
    *dims, _ = problem.inputs["queries"].shape
    size = dict(zip("BHMN1", (*dims, problem.inputs["keys"].shape[-2], 1), strict=True))
    axes = MODIFIERS[name].shapes[-1] if axes is None else axes
    x = rng.standard_normal([size[axis] for axis in axes], dtype=np.float32)
    return MODIFIERS[name].draw(x)


def modified(
    name: str, score: str, rng: np.random.Generator, axes: str | None = None, **sizes: Any
) -> Problem:
    """A problem with the modifier, in six heads."""
    problem = make_problem(score, rng, **{"lead": (2, 3), **sizes})
    return problem.but(**{name: drawn(name, rng, problem, axes)})


def asked(*names: str) -> dict[str, Any]:
    return {f"return_grad_{name}": True for name in names}


# ---- against formulas in float64 -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "axes"), [(name, axes) for name in MODIFIERS for axes in MODIFIERS[name].shapes]
)
def test_every_shape(name: str, axes: str, rng: np.random.Generator) -> None:
    """Its gradient has its shape, and is the sum of those that it has written out in full."""
    scores, place = MODIFIERS[name].scores, MODIFIERS[name].shapes.index(axes)
    for i, score in enumerate(scores):
        sizes: dict[str, Any] = {"lead": (2, 4), "M": (1, 6, 35)[(place + i) % 3], "N": 140}
        problem = modified(name, score, rng, axes, kv_heads=2, D=3, Dv=2, H=3, **sizes)
        problem = problem.but(valid_lens=rng.integers(1, 141, size=(2, sizes["M"])))
        got = check(problem)
        if name == "softcap":
            continue
        given = problem.options[name]
        full = (2, 4, sizes["M"], 140)[: {"bias": 4, "sink": 3, "scale": 2}[name]]
        shape = tuple(1 if axis == "1" else n for axis, n in zip(axes[::-1], full[::-1]))  # noqa: B905
        assert got[f"d_{name}"].shape == given.shape == shape[::-1]
        whole = problem.but(**{name: np.broadcast_to(given, full)}).run()
        d, d_full = got.pop(f"d_{name}"), whole.pop(f"d_{name}").astype(np.float64)
        assert_same_bits(got, whole)
        rounding = 1e-6 * over_broadcast(np.sum, np.abs(d_full), given.shape)
        assert np.all(np.abs(d - over_broadcast(np.sum, d_full, given.shape)) <= rounding)


@pytest.mark.parametrize("case", cases(72, of=216))
def test_any_composition(case: int) -> None:
    """With each other and masks of every kind, empty rows, shared heads, dropout; a query, a few,
    several blocks."""
    rng = np.random.default_rng([25, case])
    score, lead = SCORES[case % 4], (2, 4)
    M, N = [(1, 300), (2, 7), (5, 130), (20, 140), (35, 140), (70, 20)][case % 6]
    options = random_masks(rng, lead, M, N) | random_modifiers(score, rng, lead, M)
    if case % 5 == 0:
        options |= {"dropout_p": 0.3, "seed": case}
    if case % 5 == 1:
        options |= {"dropout_p": 0.3, "dropout_mask": rng.random((2, 1, M, N)) < 0.7}
    sizes: dict[str, Any] = {"M": M, "N": N, "D": (3, 1, 40)[case // 2 % 3], "H": 5}
    sizes |= {"kv_heads": (None, 1, 2)[case % 3], "empty_rows": EMPTY_ROWS[case // 4 % 3]}
    check(make_problem(score, rng, lead=lead, **sizes, **options))


@every_with_gradient
def test_the_gradient_flows_through_every_output(
    name: str, score: str, rng: np.random.Generator
) -> None:
    problem = modified(name, score, rng, M=20, N=140, valid_lens=[100, 140])
    grads = problem.grads
    for output in ("output", "weights", "lse"):
        problem.grads = {"grad_output": np.zeros_like(grads["grad_output"])}
        problem.grads[f"grad_{output}"] = grads[f"grad_{output}"]
        assert np.any(check(problem)[f"d_{name}"])


@pytest.mark.parametrize(("M", "N"), [(1, 20), (1, 300), (20, 100), (70, 300)])
@every
def test_what_the_forward_returned_saves_computing_it(
    name: str, score: str, M: int, N: int, rng: np.random.Generator
) -> None:
    """Weights say little of a large sink beside them, nothing of the slope under a cap."""
    sizes: dict[str, Any] = {"M": M, "N": N, "D": 5, "extra_grads": False}
    problem = modified(name, score, rng, **sizes, valid_lens=[N, N // 3])
    if name == "sink":
        problem = problem.but(sink=np.float32([[-9], [0], [9]]))
    problem.grads["grad_lse"] = rng.standard_normal((2, 3, M), dtype=np.float32)
    more = asked(name) if name in SHARED else {}
    output, weights, lse = problem.forward(return_weights=True, return_lse=True)
    exact = textbook(problem, np.float64)
    for saved in ({"weights": weights}, {"lse": lse}, {"output": output, "lse": lse},
                  {"weights": weights, "lse": lse, "output": output}):  # fmt: skip
        for d, x in problem.backward(**more, **saved).items():
            assert error_of(x, exact[d]) <= 1e-4 * np.abs(exact[d]).max(), (d, *saved)


@every_with_gradient
def test_asked_for_or_not(name: str, score: str, rng: np.random.Generator) -> None:
    """Beside additive's seven fields, behind those of the others; None where there is nothing."""
    problem = modified(name, score, rng, M=35, N=140, kv_heads=1)
    plain = problem.backward()
    assert_same_bits(problem.backward(**{f"return_grad_{name}": False}), plain)
    both = problem.but(bias=drawn("bias", rng, problem)).backward(**asked("bias", name))
    assert list(both) == [*plain, *dict.fromkeys(["d_bias", f"d_{name}"])]
    d = problem.backward(**asked(name))
    own = d.pop(f"d_{name}")
    assert_same_bits(d, plain)
    assert type(own) is np.ndarray and own.dtype == np.float32
    assert own.flags.c_contiguous and own.flags.writeable and own.flags.owndata
    without = make_problem(score, rng, lead=(2, 3))
    for module in (attnext, reference):
        function = getattr(module, FUNCTION[score] + "_backward")
        found = function(**without.grads, **without.inputs, **without.options, **asked(name))[-1]
        assert found is None if name != "scale" else np.shape(found) == ()


# ---- the same bits -------------------------------------------------------------------------------


@pytest.mark.parametrize("M", [1, 20])
@every
def test_nothing_changes_no_bit(name: str, score: str, M: int, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, lead=(2, 3), M=M, N=140, valid_lens=[0, 100])
    for nothing in MODIFIERS[name].nothing:
        given = nothing if np.ndim(nothing) < 2 or M == 20 else nothing[..., :M, :]
        given = given if name != "scale" or score == "dot" else 2 * given
        expected, got = problem.run(), problem.but(**{name: given}).run()
        assert name != "sink" or not np.any(got["d_sink"])
        got.pop(f"d_{name}", None)
        if "d_w" in got and name != "sink":  # whose sum starts at the nearest key only without them
            np.testing.assert_allclose(got.pop("d_w"), expected.pop("d_w"), rtol=1e-5)
        assert_same_bits(got, expected)


@pytest.mark.parametrize("N", [77, 300, PART_KEYS, 2 * PART_KEYS + 9])
@every
def test_a_query_alone_has_the_bits_that_it_has_among_others(
    name: str, score: str, N: int, rng: np.random.Generator
) -> None:
    """Over keys in one part or several, of which a sink enters none or one."""
    axes = {"bias": "N", "sink": "H1"}.get(name)
    sizes: dict[str, Any] = {"lead": (1, 3), "M": 19, "N": N, "D": 3, "Dv": 2, "H": 3}
    many = modified(name, score, rng, axes, **sizes, extra_grads=False)
    if N > PART_KEYS:
        problem = Problem(score, many.inputs, many.options, many.grads)
        assert_all_accurate(problem.run(), textbook(problem, np.float64), problem)
    inputs = {**many.inputs, "queries": many.inputs["queries"][..., 7:8, :]}
    grads = {"grad_output": many.grads["grad_output"][..., 7:8, :]}
    few = Problem(score, inputs, many.options, grads)
    extras = {"return_weights": True, "return_lse": True}
    for one, all_of_them in zip(few.forward(**extras), many.forward(**extras), strict=True):
        np.testing.assert_array_equal(one, all_of_them[:, :, 7:8])
    d_queries = many.backward()["d_queries"][..., 7:8, :]
    np.testing.assert_array_equal(few.backward()["d_queries"], d_queries)


@pytest.mark.parametrize("M", [1, 33])
@every
def test_padding(name: str, score: str, M: int, rng: np.random.Generator) -> None:
    """Behind the lengths, and above them, by whatever is there: no bit of any result."""
    N, lens = 130, rng.integers(0, 131, size=(2, M))
    problem = modified(name, score, rng, M=M, N=N, D=3, valid_lens=lens, empty_rows="zero")
    expected = problem.run()
    for padding, filling in [(1, nan), (16, inf), (300, 3e38), (9000, 0.0)]:
        padded = Problem(score, dict(problem.inputs), problem.options, dict(problem.grads))
        behind = [(0, 0), (0, 0), (0, padding), (0, 0)]
        for each in ("keys", "values"):
            padded.inputs[each] = np.pad(problem.inputs[each], behind, constant_values=filling)
        grad = problem.grads["grad_weights"]
        padded.grads["grad_weights"] = np.pad(grad, behind[:2] + behind[1:3], constant_values=0.5)
        got = padded.run()
        got["weights"] = got["weights"][..., :N]
        got["d_keys"], got["d_values"] = got["d_keys"][..., :N, :], got["d_values"][..., :N, :]
        assert_same_bits(got, expected, padding)


@every
def test_threads(name: str, score: str, rng: np.random.Generator, threads: None) -> None:
    shapes = {"bias": ["N", "M1"], "sink": ["H1", "", "M"], "scale": ["H", "B1", "1"]}
    for i, axes in enumerate(shapes.get(name, [""])):
        sizes = ({"M": 300, "N": 140}, {"M": 1, "N": 3 * PART_KEYS})[i % 2 or name == "softcap"]
        problem = modified(name, score, rng, axes, kv_heads=1, H=4, **sizes)
        attnext.set_num_threads(1)
        expected = problem.run()
        for n in (2, 5):
            attnext.set_num_threads(n)
            assert_same_bits(problem.run(), expected)


def spread_out(x: Array) -> Array:
    large = np.full([2 * n for n in x.shape], nan, dtype=np.float32)
    every_second = tuple(slice(None, None, 2) for _ in x.shape)
    large[every_second] = x
    return large[every_second]


FORMS: dict[str, Callable[[Array], Any]] = {
    "float16": lambda x: x.astype(np.float16),
    "float64": lambda x: x.astype(np.float64),
    "longdouble": lambda x: x.astype(np.longdouble),
    "other byte order": lambda x: x.astype(">f4"),
    "spread out": spread_out,
    "backwards": lambda x: np.flip(np.flip(x).copy()),
    "Fortran": np.asfortranarray,
    "lists": np.ndarray.tolist,
    "tensor": torch.tensor,
}


@pytest.mark.parametrize("form", FORMS)
@every_with_gradient
def test_forms(name: str, score: str, form: str, rng: np.random.Generator) -> None:
    problem = make_problem(score, rng, lead=(2, 3), M=17, N=130)
    for axes in {"bias": ["BHMN", "H1N", "M1", "N"]}.get(name, MODIFIERS[name].shapes[1:]):
        given = np.round(drawn(name, rng, problem, axes.replace("H1N", "1H1N")) * 8) / 8
        before = given.copy()  # numbers that float16 has too
        expected = problem.but(**{name: given}).run()
        assert_same_bits(problem.but(**{name: FORMS[form](given)}).run(), expected)
        np.testing.assert_array_equal(given, before)


@pytest.mark.parametrize("number", [2, np.float64(0.5), np.int16(3), np.array(0.5)], ids=repr)
@pytest.mark.parametrize("name", ["softcap", "sink", "scale"])
def test_any_number(name: str, number: Any, rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, D=5)
    expected = problem.but(**{name: float(number)}).run()
    assert_same_bits(problem.but(**{name: number}).run(), expected)
    assert_same_bits(problem.but(**{name: None}).run(), problem.run())
    assert not np.array_equal(problem.forward(), expected["output"])


# ---- what is refused -----------------------------------------------------------------------------

WRONG: list[tuple[str, Any, type[Exception], str]] = [
    ("softcap", -1.0, ValueError, "softcap is -1.0, expected softcap > 0"),
    ("softcap", 0, ValueError, "softcap is 0, expected softcap > 0"),
    ("softcap", 1e-60, ValueError, "softcap is 1e-60, expected softcap > 0 in float32"),
    ("softcap", inf, ValueError, "softcap is inf, expected a finite float32 number"),
    ("softcap", 1e39, ValueError, "softcap is 1e+39, expected a finite float32 number"),
    ("softcap", nan, ValueError, "softcap is nan, expected a finite float32 number"),
    ("softcap", [1.0], ValueError, "softcap has shape (1,), expected a number"),
    ("softcap", True, TypeError, "softcap must be a number, got bool"),
    ("softcap", "1", TypeError, "softcap must be a number, got str"),
    ("softcap", 1j, TypeError, "softcap must be a number, got complex"),
    ("sink", np.ones(3), ValueError, "sink has shape (3,), expected a shape that broadcasts to (2"),
    ("sink", np.ones((2, 5, 1)), ValueError, "sink has shape (2, 5, 1), expected a shape that"),
    ("sink", np.ones((4, 2, 5)), ValueError, "sink has shape (4, 2, 5), expected a shape that"),
    ("sink", nan, ValueError, "sink contains nan, expected finite ... or -inf"),
    (
        "sink",
        [0, inf, 0, 0, 0],
        ValueError,
        "sink contains inf, expected finite ... or -inf",
    ),
    ("sink", True, TypeError, "sink has dtype bool, expected real numbers"),
    ("sink", [True] * 5, TypeError, "sink has dtype bool, expected real numbers"),
    ("sink", 1j, TypeError, "sink has dtype complex128, expected real numbers"),
    ("sink", "0", TypeError, "sink has dtype"),
    ("sink", np.ma.ones(5), TypeError, "sink is a "),
    ("sink", torch.ones(5, requires_grad=True), TypeError, "sink is a tensor that requires grad"),
    ("scale", np.ones(3), ValueError, "scale has shape (3,), expected a shape that broadcasts to"),
    ("scale", np.ones((2, 1)), ValueError, "scale has shape (2, 1), expected a shape that broad"),
    ("scale", [1, nan], ValueError, "scale contains nan, expected finite"),
    ("scale", [1, inf], ValueError, "scale contains inf, expected finite"),
    ("scale", [1, -inf], ValueError, "scale contains -inf, expected finite"),
    ("scale", [True, False], TypeError, "scale has dtype bool, expected real numbers"),
    ("scale", [1j, 1], TypeError, "scale has dtype complex128, expected real numbers"),
    ("scale", torch.ones(2, requires_grad=True), TypeError, "scale is a tensor that requires grad"),
]


@pytest.mark.parametrize(("name", "value", "error", "message"), WRONG, ids=repr_id)
def test_wrong(
    name: str, value: Any, error: type[Exception], message: str, rng: np.random.Generator
) -> None:
    """In the words of all modules; of functions of the scores alone too."""
    for score in MODIFIERS[name].scores:
        problem = make_problem(score, rng, M=5, **{name: value})
        x = {each: a for each, a in problem.inputs.items() if each != "values"}
        calls: list[Callable[[], Any]] = []
        for module in (attnext,) if name == "softcap" else (attnext, reference):
            calls += [partial(problem.forward, module), partial(problem.backward, module)]
            if name == "sink":
                continue
            scores = getattr(module, SCORES_FUNCTION[score])
            back = getattr(module, SCORES_FUNCTION[score] + "_backward")
            calls += [partial(scores, **x, **problem.options)]
            calls += [partial(back, np.zeros((2, 5, 5)), **x, **problem.options)]
        if name == "softcap":
            t = {each: torch.tensor(a) for each, a in problem.inputs.items()}
            lazy = dict(problem.inputs)
            lazy |= {each: da.from_array(lazy[each]) for each in ("queries", "keys", "values")}
            calls += [
                partial(getattr(attnext.torch, FUNCTION[score]), **t, softcap=value),
                partial(getattr(attnext.dask, FUNCTION[score]), **lazy, softcap=value),
                partial(getattr(explain, FUNCTION[score]), **problem.inputs, softcap=value),
            ]
        for call in calls:
            with pytest.raises(error) as caught:
                call()
            begin, _, end = message.partition(" ... ")
            assert str(caught.value).startswith(begin) and end in str(caught.value)


def test_what_float32_cannot_hold(rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng)
    for name, given in (("sink", 1e39), ("scale", [1e39, 1])):
        with pytest.raises(ValueError, match=f"{name} contains inf, expected finite float32"):
            problem.but(**{name: given}).forward()


def test_only_where_they_mean_something(rng: np.random.Generator) -> None:
    for module, score in product((attnext, reference), SCORES):
        problem = make_problem(score, rng)
        if score in ("additive", "gaussian"):
            for call, argument in (
                (partial(problem.but(scale=np.ones(2)).forward, module), "scale"),
                (partial(problem.backward, module, return_grad_scale=True), "return_grad_scale"),
            ):
                with pytest.raises(TypeError, match=f"unexpected keyword argument '{argument}'"):
                    call()
        with pytest.raises(TypeError, match="unexpected keyword argument 'return_grad_sink'"):
            problem.forward(module, return_grad_sink=True)
        with pytest.raises(TypeError, match="unexpected keyword argument 'sink'"):
            operands = {name: x for name, x in problem.inputs.items() if name != "values"}
            getattr(module, SCORES_FUNCTION[score])(**operands, sink=0.0)


@pytest.mark.parametrize("name", SHARED)
def test_out_must_not_be_one(name: str, rng: np.random.Generator) -> None:
    problem = make_problem("dot", rng, lead=(2, 3), M=4, N=3)
    out = np.ones((2, 3, 4, 3), np.float32)
    given = {"bias": out[:, :, :1], "sink": out[0, :, :1, 0], "scale": out[:, :, 0, 0]}[name]
    with pytest.raises(ValueError, match=f"out shares memory with {name}"):
        problem.but(**{name: given}).forward(out=out)


# ---- the other modules ---------------------------------------------------------------------------


@every
def test_tensors(name: str, score: str, rng: np.random.Generator) -> None:
    """One that is an array is an input, to which a gradient flows, in its own shape."""
    problem = make_problem(score, rng, lead=(2, 3), M=4, N=7, extra_grads=False)
    function = getattr(attnext.torch, FUNCTION[score])
    for axes in MODIFIERS[name].shapes[-2:]:
        given = drawn(name, rng, problem, axes)
        expected = problem.but(**{name: given})
        x = {each: torch.tensor(a, requires_grad=True) for each, a in problem.inputs.items()}
        own = given if name == "softcap" else torch.tensor(given, requires_grad=True)
        output = function(**x, **{**problem.options, name: own})
        output.backward(torch.tensor(problem.grads["grad_output"]))
        ours, lse = expected.forward(return_lse=True)  # lse: kept for the backward there
        np.testing.assert_array_equal(bits(output.detach().numpy()), bits(ours))
        leaves = x if name == "softcap" else {**x, name: own}
        more = {} if name == "softcap" else asked(name)
        d = expected.backward(lse=lse, output=ours, **more)
        for each, leaf in leaves.items():
            assert leaf.grad is not None and leaf.grad.shape == leaf.shape
            np.testing.assert_array_equal(leaf.grad.numpy(), d[f"d_{each}"])
    if name != "softcap":
        wrong = own.double()
        with pytest.raises(TypeError, match=f"{name} has dtype torch.float64 and queries"):
            function(**x, **{**problem.options, name: wrong})


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("which", range(12))
def test_explained(which: int, lang: str) -> None:
    """Steps of their own, in both languages, with the bits of the fast function."""
    rng = np.random.default_rng(which)
    score = SCORES[which % 4]
    options = random_masks(rng, (2, 2), 4, 5) | random_modifiers(score, rng, (2, 2), 4, share=1.0)
    mode = EMPTY_ROWS[which % 3]
    sizes: dict[str, Any] = {"lead": (2, 2), "M": 4, "N": 5, "kv_heads": 1}
    problem = make_problem(score, rng, **sizes, **options, empty_rows=mode)
    trace = getattr(explain, FUNCTION[score])(**problem.inputs, **problem.options, lang=lang)
    output, weights = problem.forward(return_weights=True)
    np.testing.assert_array_equal(bits(trace.output), bits(output))
    np.testing.assert_array_equal(bits(trace["weights"].values), bits(weights))
    sink = np.broadcast_to(problem.options["sink"], (2, 2, 4))
    np.testing.assert_array_equal(trace["sink"].values, sink.astype(np.float32))
    assert ("sink" if lang == "zh" else "Sink") in str(trace)
    cap = problem.options["softcap"]
    assert trace["softcap"].formula == f"scores = {cap:.6g} * tanh(scores / {cap:.6g})"
    assert ("cap" if lang == "en" else "软上限") in trace["softcap"].name
    keys = [step.key for step in trace.steps]
    assert "bias" not in options or keys.index("softcap") + 1 == keys.index("bias")
    if score == "dot":
        arguments = {**problem.grads, **problem.inputs, **problem.options, **asked(*SHARED)}
        back = explain.dot_product_attention_backward(**arguments, lang=lang)
        d = problem.backward(**asked(*SHARED))
        for name in ("d_sink", "d_scale"):
            np.testing.assert_array_equal(bits(back[name].values), bits(d[name]), name)
        live = problem.takes_part()
        slopes = np.abs(back["d_softcap"].values[live]) <= np.abs(back["d_scores"].values[live])
        assert slopes.all()
