"""attnext.torch.nn.MultiheadAttention beside torch.nn's, and torch's Transformer computed with it.

The cases are those that PyTorch tests its own with (test/nn/test_multihead_attention.py,
test/test_transformers.py): sizes, layouts, masks of both kinds, keys that are added, sequences
without a batch, nested tensors, wrong shapes.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnext.torch as ours
from attnext.torch import convert, revert
from attnext.torch.nn import MultiheadAttention

B, L, S, E, HEADS = 3, 4, 6, 8, 2

MODULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "without biases": {"bias": False},
    "other sizes": {"kdim": 5, "vdim": 7},
    "kdim alone, without biases": {"kdim": 5, "bias": False},
    "a learned key": {"add_bias_kv": True},
    "a key of zeros": {"add_zero_attn": True},
    "both": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 5},
}


def padding(*lens: int, size: int = S) -> Tensor:
    return torch.arange(size) >= torch.tensor(lens)[:, None]


def floats(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf)


_generator = torch.Generator().manual_seed(5)
_pairs = torch.rand(L, S, generator=_generator) < 0.4
_pairs[:, 0] = False
_of_heads = torch.rand(B * HEADS, L, S, generator=_generator) < 0.4
_of_heads[..., 0] = False
_holes = torch.rand(B, S, generator=_generator) < 0.5
_holes[:, 0] = False
_bias = torch.randn(B * HEADS, L, S, generator=_generator)
_later = torch.ones(L, S, dtype=torch.bool).triu(1)

MASKS: dict[str, dict[str, Any]] = {
    "no mask": {},
    "lengths": {"key_padding_mask": padding(2, 6, 5)},
    "lengths, floats": {"key_padding_mask": floats(padding(2, 6, 5))},
    "padding anywhere": {"key_padding_mask": _holes},
    "padding of floats": {"key_padding_mask": torch.randn(B, S, generator=_generator)},
    "pairs": {"attn_mask": _pairs},
    "pairs, floats": {"attn_mask": floats(_pairs)},
    "pairs of heads": {"attn_mask": _of_heads},
    "a bias of heads": {"attn_mask": _bias},
    "pairs and lengths": {"attn_mask": _pairs, "key_padding_mask": padding(2, 6, 5)},
    "pairs and padding": {"attn_mask": _of_heads, "key_padding_mask": _holes},
    "biases and padding": {"attn_mask": _bias, "key_padding_mask": floats(_holes)},
    "causal, promised": {"attn_mask": _later, "is_causal": True},
    "causal, and lengths": {
        "attn_mask": floats(_later), "is_causal": True, "key_padding_mask": floats(padding(2, 6, 5))
    },
}  # fmt: skip
LAYOUTS = ["batch first", "batch second", "no batch"]


def pair(**options: Any) -> tuple[nn.MultiheadAttention, nn.MultiheadAttention]:
    """torch's, with biases that are not 0, and ours with its parameters."""
    theirs = nn.MultiheadAttention(E, HEADS, **options)
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.5)
    converted = convert(copy.deepcopy(theirs))
    assert type(converted) is MultiheadAttention
    return theirs, converted


def inputs_of(options: dict[str, Any], layout: str) -> list[Tensor]:
    x = [torch.randn(B, L, E), torch.randn(B, S, options.get("kdim", E)),
         torch.randn(B, S, options.get("vdim", E))]  # fmt: skip
    if layout == "no batch":
        return [each[0] for each in x]
    return x if layout == "batch first" else [each.transpose(0, 1).contiguous() for each in x]


def check(theirs: nn.Module, mine: nn.Module, x: list[Tensor], **options: Any) -> Any:
    """Output and weights, and the gradients of inputs, parameters and masks of floats."""
    found = []
    for module in (mine, theirs):
        leaves = [each.detach().clone().requires_grad_() for each in x]
        more = dict(options)
        for name in ("attn_mask", "key_padding_mask"):
            if name in more and more[name].isfinite().all() and more[name].is_floating_point():
                more[name] = more[name].clone().requires_grad_()
                leaves.append(more[name])
        output, weights = module(*leaves[:3], **more)
        loss = (output * torch.linspace(-1, 1, output.numel()).reshape(output.shape)).sum()
        if weights is not None:
            loss = loss + (weights * torch.linspace(1, 2, weights.numel()).reshape(weights.shape)
                           ).sum()  # fmt: skip
        d = torch.autograd.grad(loss, [*leaves, *module.parameters()])
        found.append([output, weights, *d])
    for got, expected in zip(*found, strict=True):
        if expected is None:
            assert got is None
        else:
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)
    return found[0][:2]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        for said in ("Support for mismatched", "The PyTorch API of nested tensors",
                     "`torch.jit", "torch.ao.quantization", "torch.quantize_per"):  # fmt: skip
            warnings.filterwarnings("ignore", said)
        yield


# ---- the module ----------------------------------------------------------------------------------


WEIGHTS: list[dict[str, Any]] = [{}, {"average_attn_weights": False}, {"need_weights": False}]


@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str) -> None:
    """In every module, with weights asked for in every way."""
    for module, options in MODULES.items():
        theirs, mine = pair(batch_first=True, **options)
        x = inputs_of(options, "batch first")
        given = dict(MASKS[mask])
        if given.get("is_causal") and module in ("a learned key", "a key of zeros", "both"):
            # torch gives two answers here: without weights the key that is added is later than
            # others
            promised = mine(*x, **given, need_weights=False)[0]
            del given["is_causal"]
            assert torch.equal(promised, mine(*x, **given, need_weights=False)[0])
        for more in WEIGHTS:
            check(theirs, mine, x, **given, **more)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(module: str, layout: str) -> None:
    options = MODULES[module]
    for batch_first in (True, False) if layout == "no batch" else (layout == "batch first",):
        theirs, mine = pair(batch_first=batch_first, **options)
        masks = [{}, {"attn_mask": _pairs, "key_padding_mask": padding(2, 6, 5)}]
        if layout == "no batch":
            masks = [{}, {"attn_mask": _of_heads[:HEADS], "key_padding_mask": padding(4)[0]}]
        x = inputs_of(options, layout)
        for given in masks:
            for more in WEIGHTS:
                output, weights = check(theirs, mine, x, **given, **more)
                assert output.shape == x[0].shape
                assert (weights is None) == ("need_weights" in more)


@pytest.mark.parametrize("training", [True, False])
def test_a_query_without_a_key(training: bool) -> None:
    """Its heads pool 0. PyTorch's class gives NaN if it returns weights, and NaN gradients too."""
    theirs, mine = pair(batch_first=True)
    x = torch.randn(B, S, E)
    given = {"key_padding_mask": padding(0, 6, 3)}
    for need_weights in (True, False):
        for module in (theirs, mine):
            module.train(training)
            module.zero_grad()
            output, weights = module(x, x, x, **given, need_weights=need_weights)
            output[1:].sum().backward()  # the loss leaves that query out
            nan = module is theirs and need_weights
            assert bool(module.in_proj_weight.grad.isnan().any()) == nan
            assert output[1:].isfinite().all()
            if nan:
                assert output[0].isnan().all() and weights[0].isnan().all()
                continue
            assert (output[0] == module.out_proj.bias).all()
            if weights is not None:
                assert (weights[0] == 0).all() and weights[1:].isfinite().all()


def test_a_converted_encoder_has_finite_gradients_with_a_fully_padded_sequence() -> None:
    """The claim of README's first screen."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.MultiheadAttention(E, HEADS, batch_first=True))
    convert(encoder)
    x = torch.randn(B, S, E, requires_grad=True)
    output, _ = encoder[0](x, x, x, key_padding_mask=padding(0, 6, 3))
    output.sum().backward()
    gradients = [p.grad for p in encoder.parameters()] + [x.grad]
    assert all(g is not None and g.isfinite().all() for g in gradients)


def test_dropout() -> None:
    """The weights that are returned are those that pool; without them it is repeatable as well."""
    _, mine = pair(batch_first=True, dropout=0.5)
    x = inputs_of({}, "batch first")
    torch.manual_seed(1)
    output, weights = mine(*x, average_attn_weights=False)
    assert 0.2 < (weights == 0).float().mean() < 0.8
    values = nn.functional.linear(x[2], mine.in_proj_weight[2 * E :], mine.in_proj_bias[2 * E :])
    pooled = weights @ values.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    torch.testing.assert_close(mine.out_proj(pooled.transpose(1, 2).flatten(2)), output)
    torch.manual_seed(1)
    assert torch.equal(mine(*x, average_attn_weights=False)[0], output)
    first, other = (mine(*x, need_weights=False)[0] for _ in range(2))
    assert not torch.equal(first, other)
    mine.eval()
    assert torch.equal(mine(*x)[0], mine(*x, need_weights=False)[0])
    mine.train().dropout = 1.0
    for need in (True, False):
        assert (mine(*x, need_weights=need)[0] == mine.out_proj.bias).all()


def test_it_is_torchs_module_but_for_its_computation() -> None:
    theirs, mine = nn.MultiheadAttention, MultiheadAttention
    assert issubclass(mine, theirs)
    for method in ("__init__", "forward"):
        a, b = (inspect.signature(getattr(c, method)).parameters for c in (theirs, mine))
        assert [(p.name, p.default) for p in a.values()] == [
            (p.name, p.default) for p in b.values()
        ]
    for options in MODULES.values():
        made = []
        for c in (theirs, mine):
            torch.manual_seed(2)
            made.append(c(E, HEADS, **options))
        a, b = (m.state_dict() for m in made)
        assert list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)
        assert made[1].load_state_dict(a) and repr(made[0]) == repr(made[1])
        made[1]._reset_parameters()
        again = pickle.loads(pickle.dumps(made[1]))
        assert type(again) is mine and type(copy.deepcopy(again)) is mine
        assert made[0].__dict__.keys() == again.__dict__.keys()


def test_compiled() -> None:
    _, mine = pair(batch_first=True)
    x = inputs_of({}, "batch first")
    compiled = torch.compile(mine, backend="eager", fullgraph=True)
    for given in ({}, MASKS["pairs and padding"], MASKS["lengths, floats"]):
        torch.testing.assert_close(compiled(*x, **given), mine(*x, **given))


def test_padding_is_not_read() -> None:
    _, mine = pair(batch_first=True)
    q, k, v = inputs_of({}, "batch first")
    given = {"key_padding_mask": padding(2, 6, 5), "need_weights": False}
    clean, _ = mine(q, k, v, **given)
    k[0, 2:], v[0, 2:] = torch.nan, torch.inf
    assert torch.equal(mine(q, k, v, **given)[0], clean)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("module", MODULES)
def test_nested_tensors(layout: torch.layout, module: str) -> None:
    options = MODULES[module]
    theirs, mine = pair(batch_first=True, **options)
    lists = [[torch.randn(n, size) for n in lens] for lens, size in (
        ((2, 4, 1), E), ((3, 5, 1), options.get("kdim", E)), ((3, 5, 1), options.get("vdim", E))
    )]  # fmt: skip
    nested = [torch.nested.nested_tensor(rows, layout=layout) for rows in lists]
    output, weights = mine(*nested, need_weights=False)
    assert weights is None and output.is_nested and output.layout == layout
    found, per_head = (mine(*nested, average_attn_weights=x)[1] for x in (True, False))
    added = sum(
        module in names for names in (("a learned key", "both"), ("a key of zeros", "both"))
    )
    assert found.shape == (3, 4, 5 + added) and per_head.shape == (3, HEADS, 4, 5 + added)
    for i, (got, *x) in enumerate(zip(output.unbind(), *lists, strict=True)):
        expected, expected_weights = theirs(*x)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        M, N = len(x[0]), len(x[1])
        real = [*range(N), *range(5, found.shape[-1])]  # keys that are added stand at the end
        torch.testing.assert_close(found[i, :M, real], expected_weights, rtol=1e-4, atol=1e-5)
        assert not found[i, M:].any() and not found[i, :, N:5].any()
    torch.testing.assert_close(per_head.mean(dim=1), found)
    (nested[0] + output).to_padded_tensor(0.0).sum().backward()
    assert mine.out_proj.weight.grad is not None


@pytest.mark.parametrize("options", WEIGHTS, ids=str)
def test_nested_tensors_in_evaluation_are_as_torchs(options: dict[str, Any]) -> None:
    """There alone torch's class takes them: one tensor three times, without gradients."""
    theirs, mine = pair(batch_first=True)
    x = torch.nested.nested_tensor([torch.randn(n, E) for n in (4, 2, 0, 3)])
    with torch.no_grad():
        expected = theirs.eval()(x, x, x, **options)
        got = mine.eval()(x, x, x, **options)
    for a, b in zip(got[0].unbind(), expected[0].unbind(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert (got[1] is None) == (expected[1] is None)
    if got[1] is not None:
        torch.testing.assert_close(got[1], expected[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("module", MODULES)
def test_inputs_without_elements(module: str, sizes: tuple[int, int, int]) -> None:
    """No sequence, no query, no key: shapes, values and gradients are torch's."""
    options = MODULES[module]
    b, m, n = sizes
    theirs, mine = pair(batch_first=True, **options)
    x = [torch.randn(b, m, E), torch.randn(b, n, options.get("kdim", E)),
         torch.randn(b, n, options.get("vdim", E))]  # fmt: skip
    masks: list[dict[str, Any]] = [
        {}, {"key_padding_mask": torch.zeros(b, n, dtype=torch.bool)},
        {"attn_mask": torch.zeros(b * HEADS, m, n)},
    ]  # fmt: skip
    for more in WEIGHTS:
        for given in masks:
            for training in (True, False):
                if given and "need_weights" in more:  # torch's own reshapes fail here
                    assert mine(*x, **more, **given)[0].shape == (b, m, E)
                    continue
                got, expected = (
                    layer.train(training)(*x, **more, **given) for layer in (mine, theirs)
                )
                for a, c in zip(got, expected, strict=True):
                    assert (a is None) == (c is None)
                    if a is not None:
                        torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-5, equal_nan=True)
    mine(*x)[0].sum().backward()
    assert mine.out_proj.weight.grad is not None


ones = torch.ones
ERRORS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"query": np.ones((B, L, E))}, TypeError,
     "query is of type numpy.ndarray, expected a torch.Tensor"),
    ({"query": ones(E)}, ValueError,
     "query has shape (8,), expected (L, E), or three axes with a batch"),
    ({"query": ones(B, L, 5)}, ValueError, "query has shape (3, 4, 5), expected (3, 4, 8)"),
    ({"key": ones(S, E)}, ValueError, "key has shape (6, 8), expected (3, 6, 8)"),
    ({"key": ones(2, S, E)}, ValueError, "key has shape (2, 6, 8), expected (3, 6, 8)"),
    ({"value": ones(B, 5, E)}, ValueError, "value has shape (3, 5, 8), expected (3, 6, 8)"),
    ({"query": ones(L, E)}, ValueError, "key has shape (3, 6, 8), expected (3, 8)"),
    ({"value": ones(B, S, E, dtype=torch.int64)}, TypeError,
     "value has dtype torch.int64, expected torch.float32"),
    ({"key_padding_mask": ones(S) > 0}, ValueError,
     "key_padding_mask has shape (6,), expected (3, 6)"),
    ({"key_padding_mask": ones(B, S, dtype=torch.int64)}, TypeError,
     "key_padding_mask has dtype torch.int64, expected bools or floats"),
    ({"attn_mask": ones(S) > 0}, ValueError,
     "attn_mask has shape (6,), expected (4, 6) or (6, 4, 6)"),
    ({"attn_mask": ones(B, L, S) > 0}, ValueError,
     "attn_mask has shape (3, 4, 6), expected (4, 6) or (6, 4, 6)"),
    ({"is_causal": True}, ValueError,
     "attn_mask is None, expected the causal mask as is_causal is True"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "error", "message"), ERRORS, ids=lambda x: str(x)[:40])
def test_errors(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    x = dict(zip(("query", "key", "value"), inputs_of({}, "batch first"), strict=True))
    with pytest.raises(error) as refused:
        MultiheadAttention(E, HEADS, batch_first=True)(**x | changed)
    assert str(refused.value) == message


def test_what_cannot_be_served_says_so() -> None:
    mine = MultiheadAttention(E, HEADS, batch_first=True)
    nested = torch.nested.nested_tensor([torch.randn(n, E) for n in (2, 3)])
    x = torch.randn(2, 3, E)
    calls: dict[str, Callable[[], Any]] = {
        "key is not nested, expected three nested tensors or none": lambda: mine(nested, x, x),
        "is_causal is True, expected False with nested tensors": lambda: mine(
            *[nested] * 3, is_causal=True
        ),
        "attn_mask is given, expected None with nested tensors": lambda: mine(
            *[nested] * 3, need_weights=False, attn_mask=_pairs
        ),
    }
    for message, call in calls.items():
        with pytest.raises(TypeError, match=f"^{message}$"):
            call()
    with pytest.raises(ValueError, match="^num_heads is 3, expected a divisor of 8$"):
        MultiheadAttention(8, 3)


# ---- other libraries -----------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_qkv_same_embed_dim_is_true_to_the_sizes(module: str) -> None:
    """PyTorch and other libraries read it to know which parameters there are."""
    options = MODULES[module]
    theirs, converted = pair(**options)
    own = MultiheadAttention(E, HEADS, **options)
    for layer in (own, converted, copy.deepcopy(own), pickle.loads(pickle.dumps(own)),
                  revert(copy.deepcopy(own))):  # fmt: skip
        assert layer._qkv_same_embed_dim is theirs._qkv_same_embed_dim is ("kdim" not in options)
        assert (layer.in_proj_weight is None) == ("kdim" in options)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(E, HEADS, batch_first=True)
        self.head = nn.Linear(E, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.attention(x, x, x)[0])
        return result


def test_lora_of_a_converted_model() -> None:
    """peft gives what it gives of torch's class: in training, in evaluation, merged, taken off."""
    peft = pytest.importorskip("peft")
    base, x = Net(), torch.randn(B, L, E)
    found = []
    for exchange in (lambda model: model, convert):
        torch.manual_seed(1)
        config = peft.LoraConfig(target_modules=["attention"], init_lora_weights=False, r=4)
        model = peft.get_peft_model(exchange(copy.deepcopy(base)), config)
        results = [model(x)]
        results[0].square().sum().backward()
        results += [p.grad for p in model.parameters() if p.grad is not None]
        with torch.no_grad():
            results.append(model.eval()(x))
            with model.disable_adapter():
                results.append(model(x))
            results.append(model.merge_and_unload()(x))
        found.append(results)
    assert len(found[0]) == len(found[1]) > 6
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found[0][0], base(x), atol=1e-3)


def test_weights_that_are_no_parameters() -> None:
    """As LoRA merges them: it deletes the parameter and sets a tensor, on out_proj's base, too."""
    theirs, mine = pair(batch_first=True)
    x = torch.randn(B, L, E)
    for layer in (theirs, mine):
        for owner, name in ((layer, "in_proj_weight"), (layer.out_proj, "weight")):
            merged = getattr(owner, name).detach() * 0.5
            delattr(owner, name)
            setattr(owner, name, merged)
    torch.testing.assert_close(mine(x, x, x), theirs(x, x, x), rtol=1e-4, atol=1e-5)


def test_quantize_dynamic_of_a_converted_model() -> None:
    model, x = Net().eval(), torch.randn(B, L, E)
    expected, got = (
        torch.ao.quantization.quantize_dynamic(exchange(copy.deepcopy(model)), {nn.Linear})(x)
        for exchange in (lambda model: model, convert)
    )
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)


def test_torch_jit_script_says_what_to_use_instead() -> None:
    x = torch.randn(B, S, E)
    encoder = convert(nn.TransformerEncoderLayer(E, HEADS, 16, 0.0, batch_first=True)).eval()
    layer = MultiheadAttention(E, HEADS, batch_first=True)
    of = "attnext.torch.nn.MultiheadAttention"
    scripts: dict[str, Any] = {
        of: layer,
        f"{of} ": encoder,
        "attnext.torch.AdditiveAttention": ours.AdditiveAttention(E, E, 4),
        "attnext.torch.DotProductAttention": nn.Sequential(ours.DotProductAttention()),
        "attnext.torch.MultiHeadAttention": ours.MultiHeadAttention(E, E, E, E, HEADS),
    }
    for name, module in scripts.items():
        with pytest.raises(RuntimeError) as refused:
            torch.jit.script(module)
        assert str(refused.value) == (
            f"torch.jit.script cannot compile {name.strip()}, which computes in C: use "
            "torch.jit.trace, torch.compile or torch.export instead"
        )

    def calls(x: Tensor) -> Any:
        return ours.masked_softmax(x)

    for function, name in ((calls, "masked_softmax"), (ours.sequence_mask, "sequence_mask")):
        with pytest.raises(RuntimeError, match=f"cannot compile attnext.torch.{name}, which"):
            torch.jit.script(function)
    for module, inputs in ((layer, (x, x, x)), (encoder, (x,))):
        with torch.no_grad():
            expected = module(*inputs)
            for other in (
                torch.jit.trace(module, inputs),
                torch.compile(module, backend="eager", fullgraph=True),
                torch.export.export(module, inputs).module(),
            ):
                torch.testing.assert_close(other(*inputs), expected)


# ---- torch's Transformer -------------------------------------------------------------------------


class NotOnTheFastPath:
    """torch's own ways past a self_attn, which must not be taken."""

    def __enter__(self) -> None:
        self.patches = [
            mock.patch(f"torch.{name}", side_effect=AssertionError("attnext is bypassed"))
            for name in ("_transformer_encoder_layer_fwd", "_native_multi_head_attention")
        ]
        for patch in self.patches:
            patch.start()

    def __exit__(self, *_: object) -> None:
        for patch in self.patches:
            patch.stop()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_encoder(training: bool, norm_first: bool, batch_first: bool) -> None:
    """In evaluation torch's layers bypass their self_attn, and make nested tensors of padding."""
    layer = nn.TransformerEncoderLayer(
        E, HEADS, 16, dropout=0.0, norm_first=norm_first, batch_first=batch_first
    )
    made = nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first and not norm_first)
    made.train(training)
    x = torch.randn(B, S, E)
    causal = nn.Transformer.generate_square_subsequent_mask(S)
    for options in (
        {},
        {"src_key_padding_mask": padding(2, 6, 5)},
        {"mask": causal, "is_causal": True},
        {"mask": causal, "src_key_padding_mask": floats(padding(2, 6, 5))},
    ):
        given = x if batch_first else x.transpose(0, 1)
        with torch.set_grad_enabled(training):
            expected = revert(made)(given, **options)
            with NotOnTheFastPath():
                got = convert(made)(given, **options)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["assigned", "copied", "pickled", "of an older release"])
def test_an_encoder_calls_a_module_that_was(how: str) -> None:
    """Whichever way the module came there, evaluation does not bypass it."""
    layer = nn.TransformerEncoderLayer(E, HEADS, 16, 0.0, batch_first=True).eval()
    theirs = layer.self_attn
    layer.self_attn = MultiheadAttention(E, HEADS, batch_first=True).eval()
    layer.self_attn.load_state_dict(theirs.state_dict())
    if how == "copied":
        layer = copy.deepcopy(layer)
    if how == "pickled":
        layer = pickle.loads(pickle.dumps(layer))
    if how == "of an older release":  # which registered no hook
        state = {**layer.self_attn.__dict__, "_forward_pre_hooks": OrderedDict()}
        layer.self_attn = MultiheadAttention.__new__(MultiheadAttention)
        layer.self_attn.__setstate__(state)
    x = torch.randn(B, S, E)
    with torch.no_grad():
        with NotOnTheFastPath():
            got = layer(x)
            encoder = nn.TransformerEncoder(layer, 2)
            encoder(x, src_key_padding_mask=padding(2, 6, 5))
        torch.testing.assert_close(revert(layer)(x), got, rtol=1e-4, atol=1e-5)
        with pytest.raises(AssertionError), NotOnTheFastPath():
            layer(x)


@pytest.mark.parametrize("training", [True, False])
def test_transformer(training: bool) -> None:
    """Encoder and decoder with every mask; parameters shared, gradients the same."""
    model = nn.Transformer(E, HEADS, 2, 2, 16, dropout=0.0, batch_first=True).train(training)
    assert sum(type(m) is nn.MultiheadAttention for m in model.modules()) == 6
    src, tgt = torch.randn(B, S, E), torch.randn(B, L, E)
    options = {
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(L), "tgt_is_causal": True,
        "src_key_padding_mask": floats(padding(2, 6, 5)),
        "memory_key_padding_mask": floats(padding(2, 6, 5)),
        "tgt_key_padding_mask": floats(padding(2, 4, 1, size=L)),
    }  # fmt: skip
    found = []
    parameters = dict(model.named_parameters())
    for exchange in (revert, convert):
        assert exchange(model) is model
        output = model(src, tgt, **options)
        output.square().sum().backward()
        found.append({"output": output, **{n: p.grad for n, p in parameters.items()}})
        model.zero_grad()
    for name, expected in found[0].items():
        torch.testing.assert_close(found[1][name], expected, rtol=2e-4, atol=2e-5)
    assert dict(model.named_parameters()) == parameters


def test_exchange() -> None:
    class Derived(nn.MultiheadAttention):
        pass

    model = nn.ModuleDict({"a": nn.MultiheadAttention(E, HEADS), "b": Derived(E, HEADS)})
    before = {name: (x.data_ptr(), x.clone()) for name, x in model.state_dict().items()}
    called: list[Any] = []
    model["a"].register_forward_hook(lambda *_: called.append(1))
    x = torch.randn(L, E)
    expected = model["a"](x, x, x)[0]
    assert convert(model) is model
    assert type(model["a"]) is MultiheadAttention and type(model["b"]) is Derived
    torch.testing.assert_close(model["a"](x, x, x)[0], expected)
    assert len(called) == 2
    revert(model)
    assert type(model["a"]) is nn.MultiheadAttention
    assert torch.equal(model["a"](x, x, x)[0], expected)
    for name, after in model.state_dict().items():
        assert after.data_ptr() == before[name][0] and torch.equal(after, before[name][1])
    root = nn.MultiheadAttention(E, HEADS)
    assert type(convert(root)) is MultiheadAttention and revert(root)._qkv_same_embed_dim
    for exchange in (convert, revert):
        with pytest.raises(TypeError, match="^model is of type list, expected a torch.nn.Module$"):
            exchange([])  # type: ignore[type-var]


def test_completion_of_the_module() -> None:
    assert [word for word in dir(ours.nn) if not word.startswith("__")] == ["MultiheadAttention"]
