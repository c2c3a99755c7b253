"""What a layer's linear layers are to the functions: inputs, and weights to project them by."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

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
    name: str, x: Tensor, rows: str, layer: nn.Module, size_name: str, takes_bias: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """What the function takes for layer(x): an input, and weight and bias to project it by.

    A layer that is more than these is called, and what it gives is projected by the identity:
    hooks run, and LoRA and the pre-hooks of weight_norm or of pruning have their effect. So has a
    bias where the function takes none.
    """
    check_input(name, x)
    if is_its_weight(layer, takes_bias):
        W: Tensor = part(layer, "weight")
        size = W.shape[-1]
        # Else the message would blame the parameter. (To torch.jit.trace sizes are no numbers.)
        if x.dim() >= 2 and torch._C._get_tracing_state() is None and x.shape[-1] != size:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}, expected (..., {rows}, {size}): "
                f"{size_name} is {size}"
            )
        return x, W, part(layer, "bias")
    outputs = layer(x)
    return outputs, identity(outputs.shape[-1], outputs.dtype, outputs.device), None


def weight(layer: nn.Module, outputs: int) -> Tensor:
    """What `projected` says, without an input: the layer's weight, or that of its outputs."""
    return layer.weight if is_its_weight(layer) else identity(outputs)


def identity(
    features: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Tensor:
    return torch.eye(features, dtype=dtype, device=device)


def weight_of_score(layer: nn.Module) -> Tensor:
    """w_v (1, H). A bias of it adds one number to all scores, which softmax does not see."""
    if not _is_linear(layer):
        raise TypeError(f"w_v is a {type(layer).__name__}, expected a torch.nn.Linear")
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
    if not _is_linear(layer) or _has_hooks(layer):
        return False
    return and_bias or part(layer, "bias") is None


def _is_linear(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """An nn.Linear, parametrized or not, but no class that computes something else."""
    return isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward


def _has_hooks(layer: nn.Module) -> bool:
    return bool(
        layer._forward_pre_hooks
        or layer._forward_hooks
        or layer._backward_pre_hooks
        or layer._backward_hooks
    )
