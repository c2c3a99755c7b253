"""What a layer's linear layers are to the functions: inputs, and weights to project them by."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from attnext._options import type_name

from .rules import check_input

# ---- lazy layers ---------------------------------------------------------------------------------


def is_undrawn(layer: nn.Module) -> bool:
    return isinstance(layer, LazyModuleMixin) and layer.has_uninitialized_params()


def materialize(layer: nn.Module, features: int) -> None:
    """What a call of the layer does to it, on no rows."""
    if isinstance(layer, LazyModuleMixin):
        weight = part(layer, "weight")
        with torch.no_grad():
            layer(torch.empty(0, features, dtype=weight.dtype, device=weight.device))


# ---- projections ---------------------------------------------------------------------------------


def part(module: nn.Module, name: str) -> Any:
    """module.name of a parameter or a submodule; nn.Module's own search takes a microsecond."""
    for parts in (module._parameters, module._modules):
        if name in parts:
            return parts[name]
    return getattr(module, name)  # made by a parametrization or a hook


def projected(
    owner: nn.Module,
    part_name: str,
    name: str,
    x: Tensor,
    rows: str,
    size_name: str,
    outputs: int | None,
    takes_bias: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the input that the function takes, and weight and bias to project it by.

    x: (..., rows, features), the argument `name`. Where the owner's part of this name only
    multiplies by its weight (and adds its bias, if `takes_bias`) these are x, weight and bias. Any
    other part is called, and its result (..., rows, outputs) is projected by the identity: hooks,
    LoRA, quantised layers, the pre-hooks of weight_norm or of pruning have their effect.
    """
    check_input(name, x)
    layer = part(owner, part_name)
    if is_its_weight(layer, takes_bias):
        W: Tensor = part(layer, "weight")
        size = W.shape[-1]
        # Else the message would blame the parameter. (To torch.jit.trace sizes are no numbers.)
        if x.dim() >= 2 and torch._C._get_tracing_state() is None and x.shape[-1] != size:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}, expected (..., {rows}, {size}) because "
                f"{size_name} is {size}"
            )
        return x, W, part(layer, "bias")
    result = called(owner, part_name, x, outputs)
    return result, identity(result.shape[-1], result.dtype, result.device), None


def called(owner: nn.Module, part_name: str, x: Tensor, outputs: int | None) -> Tensor:
    """Call the owner's part of this name, and check its result: (..., outputs), or None for any."""
    layer = part(owner, part_name)
    result = layer(x)
    what = f"{type(owner).__name__}.{part_name}, a {type_name(layer)}, returned"
    if not isinstance(result, Tensor):
        raise TypeError(f"{what} an object of type {type_name(result)}, expected a torch.Tensor")
    size = "features" if outputs is None else outputs
    given, expected = tuple(result.shape), (*x.shape[:-1], size)
    if given[:-1] != expected[:-1] or (outputs is not None and given[-1] != outputs):
        shape = ", ".join(map(str, expected))
        raise ValueError(f"{what} a tensor of shape {given}, expected ({shape})")
    return result


def weight(layer: nn.Module, outputs: int) -> Tensor:
    """What `projected` says, without an input: the layer's weight, or that of its outputs."""
    return layer.weight if is_its_weight(layer) else identity(outputs)


def identity(
    features: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Tensor:
    return torch.eye(features, dtype=dtype, device=device)


def weight_of_score(owner: nn.Module) -> Tensor:
    """Return w_v (1, H) of a layer. Its bias adds one number to all scores, which has no effect."""
    layer = part(owner, "w_v")
    if not is_linear(layer):
        raise TypeError(
            f"{type(owner).__name__}.w_v is a {type_name(layer)}, expected a torch.nn.Linear with "
            "a memory: pass keys and values to each call instead"
        )
    if not _has_hooks(layer):
        W: Tensor = part(layer, "weight")
        return W
    # Hooks may have changed the weight, or what is made of it: (H, 1), the score of each unit.
    W = layer.weight
    scores: Tensor = layer(identity(layer.in_features, W.dtype, W.device))
    bias = part(layer, "bias")
    return (scores if bias is None else scores - bias).T


def is_its_weight(layer: nn.Module, and_bias: bool = False) -> TypeGuard[nn.Linear]:
    """Is this an nn.Linear that does no more than multiply, and add its bias if that counts?"""
    if not is_linear(layer) or _has_hooks(layer):
        return False
    return and_bias or part(layer, "bias") is None


def is_linear(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """True for a torch.nn.Linear, parametrized or not; False for a class with another forward."""
    return isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward


def _has_hooks(layer: nn.Module) -> bool:
    return bool(
        layer._forward_pre_hooks
        or layer._forward_hooks
        or layer._backward_pre_hooks
        or layer._backward_hooks
    )
