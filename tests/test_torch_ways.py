"""Models of torch's own classes after `convert`, in all that torch does with a model.

A way takes a model and inputs and gives tensors; with attnext's attention in the model they are
what they are with torch's own, whose math backend alone knows all of these ways.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from attnext.torch import convert, revert

pytestmark = [  # torch's own, of torch.jit
    pytest.mark.filterwarnings("ignore:.*deprecated"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

B, S, L, E, HEADS = 3, 6, 4, 8, 2
LENGTHS = torch.tensor([2, 6, 5])
PADDING = torch.arange(S) >= LENGTHS[:, None]
CAUSAL = nn.Transformer.generate_square_subsequent_mask(L)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(E, HEADS, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def decoder() -> nn.Module:
    layer = nn.TransformerDecoderLayer(E, HEADS, 16, dropout=0.0, batch_first=True)
    return nn.TransformerDecoder(layer, 1)  # with two attentions


# By name: a model, its tensors, its options, whose first axes are all the batch.
Model = tuple[Callable[[], nn.Module], list[tuple[int, ...]], dict[str, Tensor], dict[str, Any]]
MODELS: dict[str, Model] = {
    "encoder": (encoder, [(B, S, E)], {"src_key_padding_mask": PADDING}, {}),
    "decoder": (
        decoder,
        [(B, L, E), (B, S, E)],
        {"memory_key_padding_mask": PADDING},
        {"tgt_mask": CAUSAL, "tgt_is_causal": True},
    ),
}


# ---- the ways ------------------------------------------------------------------------------------

Way = Callable[[nn.Module, list[Tensor], Mapping[str, Any]], Any]


def with_gradients(model: nn.Module, x: list[Tensor], options: Mapping[str, Any]) -> list[Tensor]:
    output = model(*x, **options)
    parameters = list(model.parameters())
    grads = torch.autograd.grad(output.square().sum(), [*x, *parameters], allow_unused=True)
    return [output, *(g for g in grads if g is not None)]


def pickled(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


def functional(model: nn.Module, x: list[Tensor], options: Mapping[str, Any]) -> Any:
    doubled = {name: 2 * p for name, p in model.named_parameters()}
    return functional_call(model, doubled, tuple(x), dict(options))


def of_each_sample(model: nn.Module, x: list[Tensor], options: Mapping[str, Any]) -> Any:
    """Gradients of parameters, one for each entry of the batch."""
    batched = {name: t for name, t in options.items() if name.endswith("padding_mask")}
    rest = {name: t for name, t in options.items() if name not in batched}

    def loss(parameters: Any, inputs: Any, given: Any) -> Tensor:
        args = tuple(t[None] for t in inputs)
        given = {name: t[None] for name, t in given.items()}
        made: Tensor = functional_call(model, parameters, args, {**given, **rest})
        return made.square().sum()

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    inputs = tuple(t.detach() for t in x)
    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(
        parameters, inputs, batched
    )
    return list(found.values())


def ensemble(model: nn.Module, x: list[Tensor], options: Mapping[str, Any]) -> Any:
    """Two models at once."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.5)
    parameters, buffers = stack_module_state([model, other])  # type: ignore[list-item]

    def one(parameters: Any, buffers: Any) -> Any:
        return functional_call(model, (parameters, buffers), tuple(x), dict(options))

    return torch.func.vmap(one)(parameters, buffers)


def penalty(model: nn.Module, x: list[Tensor], options: Mapping[str, Any]) -> list[Tensor]:
    (first,) = torch.autograd.grad(model(*x, **options).square().sum(), x[:1], create_graph=True)
    return list(torch.autograd.grad(first.square().sum(), x))


def forward_mode(model: nn.Module, x: list[Tensor], options: Mapping[str, Any]) -> Any:
    def call(*x: Tensor) -> Any:
        return model(*x, **options)

    return torch.func.jvp(call, tuple(x), tuple(torch.ones_like(t) for t in x))


def autocast(model: nn.Module, x: list[Tensor], options: Mapping[str, Any]) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(*x, **options).float()


class Padded(nn.Module):
    """Padding first, for torch.jit.trace, which has no names."""

    def __init__(self, model: nn.Module, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.options = model, dict(options)
        ((self.name, _),) = [item for item in options.items() if item[0].endswith("padding_mask")]

    def forward(self, padding: Tensor, *x: Tensor) -> Any:
        return self.model(*x, **{**self.options, self.name: padding})


def traced(model: nn.Module, x: list[Tensor], options: Mapping[str, Any]) -> Any:
    """Not what was there while it was traced: with another padding."""
    padded = Padded(model, options)
    x = [t.detach() for t in x]
    made = torch.jit.trace(padded, (torch.zeros_like(PADDING), *x), check_trace=False)
    return made(PADDING, *x)


def doubles(model: nn.Module, x: list[Tensor], options: Mapping[str, Any]) -> list[Tensor]:
    given = {n: t.double() if t.is_floating_point() else t for n, t in _tensors(options).items()}
    return with_gradients(
        copy.deepcopy(model).double(),
        [t.detach().double().requires_grad_() for t in x],
        {**options, **given},
    )


def compiled(model: nn.Module, x: list[Tensor], options: Mapping[str, Any]) -> list[Tensor]:
    torch._dynamo.reset()
    whole: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    return with_gradients(whole, x, options)


def _tensors(options: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: t for name, t in options.items() if isinstance(t, Tensor)}


WAYS: dict[str, Way] = {
    "training": with_gradients,
    "evaluation": lambda model, x, options: with_gradients(model.eval(), x, options),
    "deepcopy": lambda model, x, options: with_gradients(copy.deepcopy(model), x, options),
    "pickle": lambda model, x, options: with_gradients(pickled(model), x, options),
    "functional_call": functional,
    "gradients of each sample": of_each_sample,
    "ensemble": ensemble,
    "gradient penalty": penalty,
    "jvp": forward_mode,
    "double": doubles,
    "autocast": autocast,
    "checkpoint": lambda model, x, options: checkpoint(model, *x, use_reentrant=False, **options),
    "DataParallel": lambda model, x, options: with_gradients(nn.DataParallel(model), x, options),
    "compile": compiled,
    "trace": traced,
    "inference mode": torch.inference_mode()(lambda model, x, options: model(*x, **options)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model(name: str, way: str) -> None:
    make, shapes, batched, options = MODELS[name]
    model = make()
    x = [torch.randn(shape, requires_grad=True) for shape in shapes]
    theirs = "training" if way == "compile" else way  # torch compiles its own as it is
    with sdpa_kernel(SDPBackend.MATH):
        expected = WAYS[theirs](revert(copy.deepcopy(model)), x, {**batched, **options})
    got = WAYS[way](convert(copy.deepcopy(model)), x, {**batched, **options})
    rough = {"rtol": 0.05, "atol": 0.05} if way == "autocast" else {"rtol": 2e-4, "atol": 2e-5}
    torch.testing.assert_close(got, expected, **rough)
