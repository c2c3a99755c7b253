"""Every derivative of attnext.torch: of any order, forward mode, torch.func, float64.

What C has no formula for is computed by torch's operators, in float64 throughout. That is held
against attnext.reference, its derivatives against differences of itself (torch's gradcheck), and
float32, of which C computes the first ones, against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers import EMPTY_ROWS, FUNCTION, SCORES, make_problem
from sampling import any_attention, cases
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import attnext.torch as ours
from attnext import reference
from attnext._gradients import SHARED

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated")  # torch's own, of torch.jit

LEARNED = ("b_h", "w", *SHARED)
hessian: Any = torch.autograd.functional.hessian
jacobian: Any = torch.autograd.functional.jacobian


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors as small as these only wait for a second one
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


# ---- float64 is the reference --------------------------------------------------------------------


@pytest.mark.parametrize("case", cases(24, of=200))
def test_float64_is_the_reference(case: int) -> None:
    """Results and all gradients, with every option."""
    rng = np.random.default_rng([26, case])
    score = SCORES[case % 4]
    problem = any_attention(rng, score, 7)
    *lead, M, _ = problem.inputs["queries"].shape
    options: dict[str, Any] = {"empty_rows": EMPTY_ROWS[rng.integers(3)]}
    if score in ("dot", "cosine") and rng.integers(2):
        options["scale"] = rng.uniform(0.2, 2, size=lead)
    if rng.integers(2):
        options["softcap"] = float(rng.uniform(0.5, 2))
    if rng.integers(2):
        options["sink"] = np.where(rng.random(M) < 0.3, -np.inf, rng.standard_normal(M))
    problem = problem.but(**options)

    arrays = {**problem.inputs, **{n: problem.options[n] for n in LEARNED if n in problem.options}}
    x = {n: torch.tensor(a, dtype=torch.float64, requires_grad=True) for n, a in arrays.items()}
    rest = {n: o for n, o in problem.options.items() if n not in x}
    made = getattr(ours, FUNCTION[score])(**x, **rest, return_weights=True, return_lse=True)
    named = dict(zip(("output", "weights", "lse"), made, strict=True))
    flow = [torch.tensor(problem.grads[f"grad_{n}"], dtype=torch.float64) for n in named]
    torch.autograd.backward(made, flow)
    got = {**named, **{f"d_{n}": t.grad for n, t in x.items()}}
    for name, expected in problem.run(reference).items():
        actual = got[name].detach().numpy().reshape(np.shape(expected))
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9, err_msg=name)


def test_float64_of_heads_is_the_reference(rng: np.random.Generator) -> None:
    shapes = (2, 3, 4), (2, 5, 3), (2, 5, 6), (8, 4), (4, 3), (4, 6), (8, 8)
    x = [rng.standard_normal(shape) for shape in shapes]
    options: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "causal": True, "window": (2, 0)}
    options |= {"causal_offset": [1, 2], "b_q": x[3][:, 0], "b_o": x[6][0]}
    options |= {"mask": rng.random((2, 1, 3, 5)) < 0.7, "scale": rng.uniform(0.5, 2, (2, 4))}
    expected = reference.multi_head_attention(*x, [5, 2], **options, return_weights=True)
    tensors = {n: torch.from_numpy(options[n]) for n in ("b_q", "b_o", "scale")}
    inputs = [torch.from_numpy(a) for a in x]
    got = ours.multi_head_attention(*inputs, [5, 2], **options | tensors, return_weights=True)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("empty_rows", EMPTY_ROWS)
def test_float64_of_the_others_is_the_reference(empty_rows: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 4))
    lens = np.array([[1, 2, 0], [4, 9, 3]])
    mask = rng.random((3, 4)) < 0.7
    options: dict[str, Any] = {"mask": mask, "empty_rows": empty_rows}
    X = torch.tensor(x, requires_grad=True)
    weights = ours.masked_softmax(X, lens, **options)
    w = reference.masked_softmax(x, lens, **options)
    np.testing.assert_allclose(weights.detach(), w, rtol=1e-12)
    weights.backward(torch.from_numpy(x))
    dX = reference.masked_softmax_backward(x, w, lens, **options)
    np.testing.assert_allclose(X.grad, dX, rtol=1e-9, atol=1e-12)
    copy = ours.sequence_mask(torch.from_numpy(x), [1, 2], -0.1)
    np.testing.assert_array_equal(copy, reference.sequence_mask(x, [1, 2], -0.1))
    lses = np.where(rng.random((2, 3)) < 0.4, -np.inf, x[..., 0])
    merged = ours.merge_attention(torch.from_numpy(x), torch.from_numpy(lses))
    for a, b in zip(merged, reference.merge_attention(x, lses), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    for score in SCORES:
        problem = make_problem(score, rng)
        arrays = [a for n, a in problem.inputs.items() if n != "values"]
        name = FUNCTION[score].replace("attention", "scores")
        got = getattr(ours, name)(*[torch.from_numpy(a).double() for a in arrays], softcap=2.0)
        expected = getattr(reference, name)(*arrays, softcap=2.0)
        np.testing.assert_allclose(got, expected, rtol=1e-12)


# ---- of any order, in any mode -------------------------------------------------------------------

LENS = torch.tensor([2, 0])
MASK = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0]]) > 0
QKV = (2, 3, 3), (2, 4, 3), (2, 4, 2)
W = (4, 3), (4, 3), (4,)

# Functions of tensors of these shapes.
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "dot": (
        lambda *x: ours.dot_product_attention(*x, LENS, return_weights=True),
        QKV,
    ),
    "every option": (
        lambda q, k, v, bias, sink, scale: ours.dot_product_attention(
            q, k, v, mask=MASK, bias=bias, sink=sink, scale=scale, softcap=1.5, causal=True,
            causal_offset=[1, 2], window=(2, 1), dropout_p=0.3, seed=4,
            return_weights=True, return_lse=True,
        ),
        (*QKV, (3, 4), (2, 1), (2,)),
    ),
    "cosine": (lambda *x: ours.cosine_attention(*x[:3], [3, 4], scale=x[3]), (*QKV, ())),
    "gaussian": (
        lambda *x: ours.gaussian_attention(*x[:3], [3, 4], sigma=x[3].exp(), return_lse=True),
        (*QKV, (1,)),
    ),
    "additive": (
        lambda *x: ours.additive_attention(*x[:6], [3, 0], b_h=x[6], empty_rows="zero"),
        (*QKV, *W, (4,)),
    ),
    "heads": (
        lambda *x: ours.multi_head_attention(
            *x[:7], [[3, 2, 1], [4, 4, 4]], num_heads=2, num_kv_heads=1, b_q=x[7], b_v=x[8],
            sink=x[9], return_weights=True, return_lse=True,
        ),
        (*QKV, (4, 3), (2, 3), (2, 2), (4, 4), (4,), (2,), (2, 1)),
    ),
    "masked_softmax": (lambda x: ours.masked_softmax(x, [[2, 3], [0, 1]]), ((2, 2, 3),)),
    "sequence_mask": (lambda x: ours.sequence_mask(x, [2, 1], 3.0) ** 2, ((2, 2, 3),)),
    "merge": (
        lambda a, b, c, d: ours.merge_attention([a, b], [c, d]),
        ((3, 2), (3, 2), (3,), (3,)),
    ),
    "dot scores": (lambda *x: ours.dot_product_scores(*x, softcap=2.0), QKV[:2]),
    "cosine scores": (lambda q, k: ours.cosine_scores(q, k), QKV[:2]),
    "additive scores": (lambda *x: ours.additive_scores(*x), (*QKV[:2], *W)),
    "gaussian scores": (lambda q, k, w: ours.gaussian_scores(q, k, w=w), (*QKV[:2], ())),
}  # fmt: skip
every_function = pytest.mark.parametrize("name", FUNCTIONS)


@every_function
def test_first_and_second_derivatives_in_every_mode(name: str) -> None:
    """Backward, forward, forward over backward, and batches of them by vmap."""
    function, shapes = FUNCTIONS[name]
    x = [randn(*shape) for shape in shapes]
    how: dict[str, Any] = {"fast_mode": True, "check_batched_grad": True}
    assert gradcheck(function, x, check_forward_ad=True, check_batched_forward_grad=True, **how)
    assert gradgradcheck(function, x, check_fwd_over_rev=True, check_rev_over_rev=True, **how)


def derivatives(function: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor | None]:
    """First, second and third ones, of a loss in which no term is linear."""
    x = [t.detach().clone().requires_grad_() for t in inputs]
    made = function(*x)
    loss = torch.zeros(())
    for y in made if isinstance(made, tuple) else (made,):
        factor = torch.linspace(0.5, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
        finite = torch.isfinite(y)
        loss = loss + (y[finite].cos() * factor[finite]).sum()
    found: list[Tensor | None] = []
    for _ in range(3):
        d = torch.autograd.grad(loss, x, create_graph=True, allow_unused=True)
        found.extend(d)
        loss = torch.stack([t.square().sum() for t in d if t is not None]).sum()
    return found


@every_function
def test_float32_has_the_derivatives_of_float64(name: str) -> None:
    """Of the first C computes, of the others torch what is behind C's node."""
    function, shapes = FUNCTIONS[name]
    x = [randn(*shape) / 2 for shape in shapes]
    exact, got = derivatives(function, x), derivatives(function, [t.float() for t in x])
    for a, b in zip(got, exact, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert a.dtype == torch.float32
            assert (a - b).abs().max() <= 1e-4 * b.abs().max() + 1e-5


@every_function
def test_first_derivatives_are_cs_whether_others_follow_or_not(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    x = [randn(*shape).detach().float().requires_grad_() for shape in shapes]
    made = function(*x)
    made = made[0] if isinstance(made, tuple) else made
    more: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    d = [torch.autograd.grad(made.sum(), x, create_graph=b, **more) for b in (False, True)]
    for a, b in zip(*d, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


def test_a_gradient_penalty_on_the_way_to_parameters() -> None:
    """The way of autograd from the penalty to W leads through the gradient alone."""
    q, k, v = (randn(*shape).detach().float() for shape in QKV)
    of_both = []
    for function in (ours.dot_product_attention, nn.functional.scaled_dot_product_attention):
        W = torch.eye(3, requires_grad=True)
        x = q @ W
        output = function(x, k, v).sum()
        (d,) = torch.autograd.grad(output, x, create_graph=True)
        (d_W,) = torch.autograd.grad(output + 10 * d.square().sum(), W)
        of_both.append(d_W)
    torch.testing.assert_close(*of_both)


def test_training_with_a_gradient_penalty() -> None:
    """As of WGAN-GP: the same steps in float32 as in float64."""
    losses = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(3)
        layer: Any = ours.MultiHeadAttention(4, 4, 4, 8, 2).to(dtype)
        x = torch.randn(2, 3, 4).to(dtype).requires_grad_()
        sgd = torch.optim.SGD(layer.parameters(), lr=0.02)
        steps = []
        for _ in range(5):
            output = layer(x, x, x, torch.tensor([3, 2])).square().sum()
            (d,) = torch.autograd.grad(output, x, create_graph=True)
            loss = output + (d.norm() - 1).square()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            steps.append(loss.item())
        losses.append(steps)
    assert losses[1][-1] < losses[1][0]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)


# ---- torch.func ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transforms(dtype: torch.dtype) -> None:
    """They agree with each other, and vmap with the batch."""
    q, k, v = (randn(*shape).detach().to(dtype) for shape in QKV)
    attend = ours.dot_product_attention

    def function(q: Tensor) -> Tensor:
        output: Tensor = attend(q, k, v, LENS)
        return output

    def to_sum(q: Tensor) -> Tensor:
        return function(q).square().sum()

    close = torch.testing.assert_close
    mask = MASK.expand(2, 3, 4)
    close(torch.func.vmap(attend)(q, k, v, LENS), attend(q, k, v, LENS))
    close(
        torch.func.vmap(lambda q, k, v, m: attend(q, k, v, mask=m))(q, k, v, mask),
        attend(q, k, v, mask=mask),
    )
    close(
        torch.func.vmap(lambda q, k, v, o: attend(q, k, v, causal=True, causal_offset=o))(
            q, k, v, LENS
        ),
        attend(q, k, v, causal=True, causal_offset=LENS),
    )
    x = q.clone().requires_grad_()
    to_sum(x).backward()  # type: ignore[no-untyped-call]
    close(torch.func.grad(to_sum)(q), x.grad)
    all_ways = [
        torch.func.jacrev(function)(q),
        torch.func.jacfwd(function)(q),
        jacobian(function, q),
        jacobian(function, q, vectorize=True),
        jacobian(function, q, vectorize=True, strategy="forward-mode"),
    ]
    for one in all_ways:
        close(one, all_ways[0])
    second = torch.func.hessian(to_sum)(q)
    close(hessian(to_sum, q), second)
    assert second.abs().max() > 0.1
    _, tangent = torch.func.jvp(to_sum, (q,), (q,))
    assert x.grad is not None
    close(tangent, (x.grad * q).sum())
    with forward_ad.dual_level():
        dual = to_sum(forward_ad.make_dual(q, q))  # type: ignore[no-untyped-call]
        close(forward_ad.unpack_dual(dual).tangent, tangent)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("kind", ["additive", "heads"])
def test_gradients_of_each_sample(kind: str) -> None:
    layer: Any = ours.AdditiveAttention(3, 3, 4, bias=True)
    if kind == "heads":
        layer = ours.MultiHeadAttention(3, 3, 2, 4, 2, bias=True)
    q, k, v = (randn(*shape).detach().float() for shape in QKV)
    lens = torch.tensor([2, 4])
    parameters = {name: x.detach() for name, x in layer.named_parameters()}

    def loss(parameters: Any, *x: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(layer, parameters, x)
        return output.square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0, 0, 0))(parameters, q, k, v, lens)
    for i in range(2):
        layer.zero_grad()
        layer(*[x[i : i + 1] for x in (q, k, v, lens)]).square().sum().backward()
        for name, x in layer.named_parameters():
            torch.testing.assert_close(each[name][i], x.grad)


def test_a_transform_in_training_with_dropout() -> None:
    layer = ours.DotProductAttention(0.5)
    q, k, v = (randn(*shape).detach() for shape in QKV)
    torch.manual_seed(1)
    _, tangent = torch.func.jvp(lambda v: layer(q, k, v), (v,), (v,))
    torch.manual_seed(1)
    torch.testing.assert_close(tangent, layer(q, k, v))  # linear in v, one pattern


# ---- float64 in layers ---------------------------------------------------------------------------


def hooked(layer: Any) -> Any:
    """Its projections are called."""
    for name in ("W_q", "W_k", "W_o", "w_v"):
        if hasattr(layer, name):
            getattr(layer, name).register_forward_hook(lambda module, args, output: 2 * output)
    return layer


LAYERS: dict[str, Callable[[], Any]] = {
    "dot": lambda: ours.DotProductAttention(scale=0.3),
    "additive": lambda: ours.AdditiveAttention(3, 3, 4, bias=True),
    "additive, lazy": lambda: ours.AdditiveAttention(4),
    "additive, hooked": lambda: hooked(ours.AdditiveAttention(3, 3, 4)),
    "heads": lambda: ours.MultiHeadAttention(3, 3, 2, 4, 2, bias=True),
    "heads, lazy": lambda: ours.MultiHeadAttention(4, 2),
    "heads, hooked": lambda: hooked(ours.MultiHeadAttention(3, 3, 2, 4, 2)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_of_doubles(kind: str) -> None:
    torch.manual_seed(5)
    layer = LAYERS[kind]().double()
    x = [randn(*shape) for shape in QKV]
    double = layer(*x, LENS)
    assert double.dtype == layer.attention_weights.dtype == torch.float64
    single = layer.float()(*[t.float() for t in x], LENS)
    torch.testing.assert_close(single, double.float())
    layer.double()
    names, parameters = zip(*layer.named_parameters(), strict=True) if "dot" != kind else ((), ())

    def function(*tensors: Tensor) -> Tensor:
        given = dict(zip(names, tensors[3:], strict=True))
        output: Tensor = torch.func.functional_call(layer, given, (*tensors[:3], LENS))
        return output

    assert gradcheck(function, (*x, *parameters), fast_mode=True)


# ---- what takes no part --------------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES)
def test_padding_reaches_no_derivative(score: str) -> None:
    """Where all is finite, what is masked is added and not chosen: sums in another order."""

    def run(fill: float, dtype: torch.dtype) -> list[Tensor]:
        torch.manual_seed(2)
        x = [torch.randn(shape).to(dtype) for shape in QKV]
        x[1][0, 2:], x[2][0, 2:], x[0][1] = fill, fill, fill  # keys, values; queries of no key
        more = [torch.randn(shape).to(dtype) for shape in W] if score == "additive" else []
        found = derivatives(
            lambda *t: getattr(ours, FUNCTION[score])(*t, LENS, return_weights=True), [*x, *more]
        )
        return [d.detach() for d in found if d is not None]

    exact = run(0.0, torch.float64)
    for clean, dirty in zip(exact, run(torch.nan, torch.float64), strict=True):
        torch.testing.assert_close(dirty, clean)
    clean32, dirty32 = run(0.0, torch.float32), run(torch.nan, torch.float32)
    for true, clean, dirty in zip(exact, clean32, dirty32, strict=True):
        error, usual = (float((x - true).abs().max()) for x in (dirty, clean))
        assert error <= 2 * usual + 2e-6 * float(true.abs().max())


@pytest.mark.parametrize("score", SCORES)
def test_a_pair_is_apart_from_the_other_pairs_of_its_key(score: str) -> None:
    """The last query sees a key of NaN, and is NaN; the others do not, and are not."""

    def run(fill: float) -> list[Tensor]:
        torch.manual_seed(2)
        q, k, v = (torch.randn(2, 3, 3, dtype=torch.float64) for _ in range(3))
        k[:, 2] = v[:, 2] = fill
        more = [torch.randn(shape).double() for shape in W] if score == "additive" else []
        q.requires_grad_()
        output = getattr(ours, FUNCTION[score])(q, k, v, *more, causal=True)
        (d,) = torch.autograd.grad(output.square().sum(), q)
        return [output, d]

    for clean, dirty in zip(run(0.0), run(torch.nan), strict=True):
        torch.testing.assert_close(clean[:, :2], dirty[:, :2])
        assert dirty[:, 2].isnan().all()


# ---- errors --------------------------------------------------------------------------------------


def test_errors_are_those_of_c() -> None:
    q, k, v = (randn(*shape).detach() for shape in QKV)
    with pytest.raises(ValueError, match=r"^keys has shape \(4, 2\), expected \(N, 3\)$"):
        torch.func.vmap(ours.dot_product_attention)(q, k[..., :2], v)
    with pytest.raises(ValueError, match=r"^valid_lens has shape \(3,\), expected \(2,\) or"):
        ours.dot_product_attention(q, k, v, [1, 2, 3])
    with pytest.raises(ValueError, match="^sink contains inf, expected finite float32 numbers"):
        ours.dot_product_attention(q, k, v, sink=torch.tensor(torch.inf, dtype=torch.float64))
    with pytest.raises(ValueError, match="^dropout_p is 2"):
        torch.func.jvp(lambda q: ours.dot_product_attention(q, k, v, dropout_p=2), (q,), (q,))
