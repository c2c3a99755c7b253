"""Tensor subclasses, modes and tensors without values in attnext.torch.

PyTorch has two protocols. ``__torch_function__`` of an argument or of a mode takes over a function,
of PyTorch or of attnext.torch. ``__torch_dispatch__`` of a class, and device meta, get operators to
run; attnext has one. Memory whose values mean nothing is never read.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

import attnext
import attnext.torch as ours
from attnext.torch.nn import MultiheadAttention

X, LENS, MASK = torch.randn(2, 3, 4), torch.tensor([1, 3]), torch.rand(3, 3) < 0.6
W = torch.randn(4, 4, 4)
ARGUMENTS: dict[str, Any] = {
    **dict.fromkeys(("queries", "keys", "values", "query", "key", "value", "X"), X),
    **{"W_q": W[0], "W_k": W[1], "W_v": W[2], "W_o": W[3], "w_v": W[0, 0], "b_h": W[1, 0]},
    **{"b_q": W[0, 0], "b_k": W[1, 0], "b_v": W[2, 0], "b_o": W[3, 0]},
    **{"valid_lens": LENS, "valid_len": LENS, "mask": MASK, "attn_mask": MASK, "num_heads": 2},
    **{"bias": torch.randn(3), "sink": torch.zeros(()), "scale": torch.tensor(0.5)},
    **{"w": torch.tensor(0.5), "outputs": torch.stack([X, X]), "lses": X[..., 0].expand(2, 2, 3)},
    **{"dropout_mask": MASK, "causal_offset": torch.tensor([0, 1])},
}
FUNCTIONS = [
    name for name in ours.__all__
    if inspect.isfunction(getattr(ours, name))
    and name not in ("convert", "revert", "positional_encoding")
]  # fmt: skip


def arguments_of(name: str) -> dict[str, Any]:
    """A call with as many tensors as the function takes together."""
    takes = inspect.signature(getattr(ours, name)).parameters
    given = {n: x for n, x in ARGUMENTS.items() if n in takes}
    if name == "scaled_dot_product_attention":
        del given["scale"]  # which is a number in PyTorch
    if name == "sequence_mask":
        del given["value"]  # a number too
    if name == "masked_softmax":
        given["X"] = X[..., :3]
    return given


CALLS = [(name, n) for name in FUNCTIONS for n in arguments_of(name) if n != "num_heads"]


def run(name: str, **given: Any) -> Any:
    return getattr(ours, name)(**given)


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, tuple):
        return all(map(same, found, expected))
    return torch.equal(found, expected)


# ---- __torch_function__ --------------------------------------------------------------------------


class Plain(Tensor):
    """An ordinary subclass, whose memory has its values."""


class Logs(Tensor):
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if inspect.isfunction(func):
            cls.calls.append((func, args, kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})


class Stands:
    """No tensor, but something that stands for one."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert cls in types
        return func


class Declines(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if inspect.isfunction(func):
            return NotImplemented
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize(("name", "argument"), CALLS)
def test_every_argument_of_every_function_is_asked(name: str, argument: str) -> None:
    given = arguments_of(name)
    expected = run(name, **given)
    for kind in (Plain, Logs):
        Logs.calls.clear()
        x = given[argument].as_subclass(kind)
        made = run(name, **{**given, argument: x})
        assert same(made, expected)
        assert {type(y) for y in (made if isinstance(made, tuple) else [made])} == {kind}
        if kind is Logs:
            ((func, args, kwargs),) = Logs.calls
            assert func is getattr(ours, name)
            named = dict(zip(inspect.signature(func).parameters, args, strict=False))
            assert {**named, **kwargs}[argument] is x
    assert run(name, **{**given, argument: Stands()}) is getattr(ours, name)
    declined = given[argument].as_subclass(Declines)
    with pytest.raises(TypeError, match=f"no implementation found for 'attnext.torch.*{name}'"):
        run(name, **{**given, argument: declined})


def test_items_of_a_list_are_asked() -> None:
    outputs, lses = [X, X.as_subclass(Logs)], [X[..., 0], X[..., 1]]
    Logs.calls.clear()
    made = ours.merge_attention(outputs, lses)
    assert type(made[0]) is Logs and Logs.calls[0][1][0] == outputs
    assert same(made, ours.merge_attention([X, X], lses))


def test_gradients_flow_through_subclasses() -> None:
    x, y = (X.clone().requires_grad_() for _ in range(2))
    given = x.as_subclass(Plain)
    ours.dot_product_attention(given, given, given, LENS).square().sum().backward()
    ours.dot_product_attention(y, y, y, LENS).square().sum().backward()
    assert x.grad is not None and y.grad is not None and torch.equal(x.grad, y.grad)


def test_parameters_and_buffers_are_plain() -> None:
    for x in (torch.nn.Parameter(X), torch.nn.Buffer(X)):
        assert type(ours.dot_product_attention(x, x, x)) is Tensor


def test_layers_of_subclasses() -> None:
    for layer in (
        ours.AdditiveAttention(4, 4, 6, bias=True),
        ours.DotProductAttention(),
        ours.MultiHeadAttention(4, 4, 4, 4, 2),
    ):
        expected = layer(X, X, X, LENS)
        made = layer(X.as_subclass(Plain), X, X, LENS)
        assert type(made) is Plain and torch.equal(made, expected)
        memory: Any = layer.memory(X.as_subclass(Plain), X, LENS)  # type: ignore[operator]
        assert torch.equal(layer(X, memory), expected)
    layer = MultiheadAttention(4, 2, batch_first=True)
    assert type(layer(X.as_subclass(Plain), X, X)[0]) is Plain


class Sees(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_mode_sees_the_function(name: str) -> None:
    given = arguments_of(name)
    expected = run(name, **given)
    with Sees() as mode:
        assert same(run(name, **given), expected)
    assert [func for func in mode.seen if inspect.isfunction(func)] == [getattr(ours, name)]


# ---- CausalBias ----------------------------------------------------------------------------------

BIASES = pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
HEADS = torch.randn(2, 2, 5, 8)


@BIASES
@pytest.mark.parametrize("sizes", [(3, 5), (5, 5), (1, 4)])
@pytest.mark.parametrize("heads", [1, 2])
def test_a_causal_bias_is_its_rule(make: Any, sizes: tuple[int, int], heads: int) -> None:
    L, S = sizes
    given = [HEADS[:, :heads, :n].clone().requires_grad_() for n in (L, S, S)]
    output = ours.scaled_dot_product_attention(*given, attn_mask=make(L, S))
    mask = make(L, S)._materialize()
    expected = torch.nn.functional.scaled_dot_product_attention(*given, attn_mask=mask)
    assert type(output) is Tensor
    torch.testing.assert_close(output, expected)
    found = torch.autograd.grad(output.square().sum(), given)
    for x, y in zip(found, torch.autograd.grad(expected.square().sum(), given), strict=True):
        torch.testing.assert_close(x, y)
    with pytest.raises(ValueError, match=r"^attn_mask is a CausalBias and is_causal is True"):
        ours.scaled_dot_product_attention(*given, make(L, S), is_causal=True)
    wrong = rf"^attn_mask is a CausalBias for lengths \({L}, {S + 1}\), expected"
    with pytest.raises(ValueError, match=wrong):
        ours.scaled_dot_product_attention(*given, attn_mask=make(L, S + 1))


@BIASES
@pytest.mark.parametrize(("name", "argument"), CALLS)
def test_a_causal_bias_is_refused_elsewhere(make: Any, name: str, argument: str) -> None:
    if (name, argument) == ("scaled_dot_product_attention", "attn_mask"):
        return
    with pytest.raises(TypeError, match=rf"^{argument} is a torch.nn.attention.bias.CausalBias, "):
        run(name, **{**arguments_of(name), argument: make(3, 3)})


@BIASES
def test_a_causal_bias_in_layers_and_numpy_functions(make: Any) -> None:
    bias, layer = make(3, 3), MultiheadAttention(4, 2, batch_first=True)
    with pytest.raises(TypeError, match="^attn_mask is a torch.nn.attention.bias.CausalBias, "):
        layer(X, X, X, attn_mask=bias)
    with pytest.raises(TypeError, match="^key_padding_mask is a torch.nn.attention.bias.Causal"):
        layer(X, X, X, key_padding_mask=bias)
    with pytest.raises(TypeError, match="^bias is a torch.nn.attention.bias.CausalBias, "):
        ours.DotProductAttention()(X, X, X, bias=bias)
    for argument in ("queries", "keys", "values", "bias", "mask", "valid_lens"):
        given = {"queries": X, "keys": X, "values": X, argument: bias}
        with pytest.raises(TypeError, match=rf"^{argument} is a CausalBias, expected an array"):
            attnext.dot_product_attention(**given)


# ---- __torch_dispatch__ --------------------------------------------------------------------------


class Wraps(Tensor):
    """Holds a tensor; has no memory of its own."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, x: Tensor) -> Any:
        sizes = {"strides": x.stride(), "dtype": x.dtype, "device": x.device}
        return Tensor._make_wrapper_subclass(cls, x.shape, **sizes)  # type: ignore[attr-defined]

    def __init__(self, x: Tensor) -> None:
        self.held = x

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(_held, (args, kwargs or {}))
        return tree_map(lambda x: Wraps(x) if isinstance(x, Tensor) else x, func(*args, **kwargs))


def _held(x: Any) -> Any:
    return x.held if isinstance(x, Wraps) else x


@pytest.mark.parametrize(("name", "argument"), CALLS)
def test_a_class_that_dispatches_gets_the_operator(name: str, argument: str) -> None:
    given = arguments_of(name)
    expected = run(name, **given)
    if name == "scaled_dot_product_attention" and argument == "attn_mask":
        given["attn_mask"] = Wraps(given["attn_mask"])
    else:
        given[argument] = Wraps(given[argument])
    made = run(name, **given)
    assert same(tree_map(_held, made), expected)
    assert {type(x) for x in (made if isinstance(made, tuple) else [made])} == {Wraps}


def test_gradients_of_a_class_that_dispatches() -> None:
    x, y = Wraps(X.clone()).requires_grad_(), X.clone().requires_grad_()
    ours.dot_product_attention(x, x, x, LENS).square().sum().backward()
    ours.dot_product_attention(y, y, y, LENS).square().sum().backward()
    assert x.grad is not None and torch.equal(_held(x.grad), y.grad)


def test_float64_of_a_class_that_dispatches() -> None:
    x = Wraps(X.double()).requires_grad_()
    output = ours.dot_product_attention(x, x, x, LENS)
    expected = ours.dot_product_attention(*[X.double()] * 3, LENS)
    assert _held(output).dtype is torch.float64 and torch.equal(_held(output), expected)
    with pytest.raises(TypeError, match="float64 tensors of a class with a __torch_dispatch__"):
        output.sum().backward()


@pytest.mark.filterwarnings("ignore")
def test_a_class_that_refuses_operators_is_named() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        masked = torch.masked.masked_tensor(X, X > 0)
        with pytest.raises(
            TypeError, match="Multiple dispatch failed for 'torch._ops.attnext"
        ) as e:
            ours.dot_product_attention(X, masked, X)
    assert "dot_product_attention was called with keys, a torch.masked" in e.value.__notes__[0]
    with pytest.raises(RuntimeError, match="^keys cannot be read as an array: .numpy"):
        attnext.dot_product_attention(X, masked, X)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused(layout: torch.layout) -> None:
    nested = torch.nested.as_nested_tensor([X[0], X[1, :2]], layout=layout)
    for name in ("queries", "keys", "values"):
        given = {"queries": X, "keys": X, "values": X, name: nested}
        with pytest.raises(TypeError, match=f"^{name} is a nested tensor, expected"):
            ours.dot_product_attention(**given)
        with pytest.raises(RuntimeError, match=f"^{name} cannot be read as an array"):
            attnext.dot_product_attention(**given)


# ---- tensors without values ----------------------------------------------------------------------


class Empty:
    """Tensors without values: of a FakeTensorMode, which is on at a call, or on device meta."""

    def __init__(self, kind: str) -> None:
        self.fake = FakeTensorMode() if kind == "fake" else None

    def of(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.to("meta") if self.fake is None else self.fake.from_tensor(x)

    def mode(self) -> Any:
        return nullcontext() if self.fake is None else self.fake


@pytest.fixture(params=["fake", "meta"])
def empty(request: pytest.FixtureRequest) -> Empty:
    return Empty(request.param)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_shapes_without_values(name: str, dtype: torch.dtype, empty: Empty) -> None:
    given = arguments_of(name)
    optional = {"return_weights": True, "return_lse": True, "dropout_p": 0.5}
    takes = inspect.signature(getattr(ours, name)).parameters
    options = {n: x for n, x in optional.items() if n in takes}
    given = {
        n: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
        for n, x in given.items()
    }
    expected = run(name, **given, **options)
    without = {n: empty.of(x) for n, x in given.items()}
    with empty.mode():
        made = run(name, **without, **options)
    made, expected = (x if isinstance(x, tuple) else (x,) for x in (made, expected))
    assert [(x.shape, x.dtype) for x in made] == [(x.shape, x.dtype) for x in expected]
    device = next(x for x in without.values() if isinstance(x, Tensor)).device
    assert {x.device for x in made} == {device}


def test_gradients_without_values(empty: Empty) -> None:
    x, W_q, W_k, w_v = (empty.of(x) for x in (X, W[0], W[1], W[2, 0]))
    with empty.mode():
        x.requires_grad_()
        w_v.requires_grad_()
        output = ours.additive_attention(x, x, x, W_q, W_k, w_v, [1, 3], dropout_p=0.5)
        output.square().sum().backward()
    assert x.grad is not None and x.grad.shape == X.shape
    assert w_v.grad is not None and w_v.grad.shape == (4,)


LAYERS: dict[str, Callable[[], Any]] = {
    "additive": lambda: ours.AdditiveAttention(4, 4, 6, 0.5, bias=True),
    "dot": lambda: ours.DotProductAttention(0.5),
    "heads": lambda: ours.MultiHeadAttention(4, 4, 4, 4, 2, 0.5, True),
    "nn": lambda: MultiheadAttention(4, 2, 0.5, batch_first=True),
    "nn more keys": lambda: MultiheadAttention(
        4, 2, 0.5, add_bias_kv=True, add_zero_attn=True, batch_first=True
    ),
}


@pytest.mark.parametrize("where", ["fake", "meta"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_without_values(name: str, where: str) -> None:
    plain = LAYERS[name]()
    with FakeTensorMode() if where == "fake" else torch.device("meta"):
        layer, x = LAYERS[name](), torch.randn(2, 3, 4, requires_grad=True)
        more: Any = {"valid_lens": torch.tensor([1, 2])}
        if name[:2] == "nn":
            more = {"key_padding_mask": torch.zeros(2, 3, dtype=torch.bool)}
        made = layer(x, x, x, **more)
        output = made[0] if isinstance(made, tuple) else made
        weights = made[1] if isinstance(made, tuple) else layer.attention_weights
        output.sum().backward()
        for parameter in layer.parameters():
            assert parameter.grad is not None and parameter.grad.shape == parameter.shape
    made = plain(X, X, X)
    expected = made if isinstance(made, tuple) else (made, plain.attention_weights)
    assert output.shape == expected[0].shape and weights.shape == expected[1].shape
    assert output.is_meta == (where == "meta")


WRONG = [
    ({"queries": X[0, 0]}, "queries"),
    ({"keys": X[..., :3]}, "keys"),
    ({"keys": X[:1]}, "keys"),
    ({"values": X[:, :2]}, "values"),
    ({"enable_gqa": True, "keys": X[:1], "queries": X[[0, 0, 0]]}, "values"),
    ({"W_q": W[0, :, :3]}, "W_q"),
    ({"W_k": W[0, :, :3]}, "W_k"),
]


@pytest.mark.parametrize(("given", "word"), WRONG)
def test_wrong_shapes_without_values(given: dict[str, Any], word: str, empty: Empty) -> None:
    """The words are C's."""
    inputs = {"queries": X, "keys": X, "values": X}
    name = "dot_product_attention"
    if word[0] == "W":
        inputs |= {"W_q": W[0], "W_k": W[1], "w_v": W[0, 0]}
        name = "additive_attention"
    given = {**inputs, **given}
    with pytest.raises(ValueError, match=f"^{word} ") as said:
        run(name, **given)
    given = {n: empty.of(x) for n, x in given.items()}
    with empty.mode(), pytest.raises(ValueError, match=f"^{word} ") as found:
        run(name, **given)
    assert str(found.value) == str(said.value)


def test_what_needs_values_is_refused(empty: Empty) -> None:
    x, layer = empty.of(X), ours.DotProductAttention()
    with (
        empty.mode(),
        pytest.raises(
            TypeError, match="^keys is (a .*FakeTensor, expected a plain|on device meta)"
        ),
    ):
        layer.memory(x, x)
    with pytest.raises((RuntimeError, TypeError, NotImplementedError)) as error:
        attnext.dot_product_attention(x, x, x)
    assert "queries" in "".join([str(error.value), *getattr(error.value, "__notes__", [])])


@pytest.mark.parametrize("name", ["queries", "values", "valid_lens", "mask"])
def test_meta_beside_values_is_refused(name: str) -> None:
    given = {"queries": X, "keys": X, "values": X, "valid_lens": LENS, "mask": MASK}
    with pytest.raises(TypeError, match=f"^{name} is on device meta, expected cpu$"):
        ours.dot_product_attention(**{**given, name: given[name].to("meta")})


def test_positions_under_a_fake_mode() -> None:
    with FakeTensorMode():
        x = torch.randn(3, 8)
        assert (x + ours.positional_encoding(3, 8)).shape == (3, 8)
    assert np.array_equal(ours.positional_encoding(3, 8), attnext.positional_encoding(3, 8))
