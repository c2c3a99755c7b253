"""Tensors as the arrays that the C functions read, and back: the same memory, no copy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function

from attnext._options import type_name

# What a caller cannot change behind our back; anything else is copied for the backward.
_CONSTANTS = (int, float, str, type(None))

_INTEGERS = ("valid_lens", "valid_len", "causal_offset")

_NUMPY_DTYPES = frozenset(
    [torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
    + [torch.int8, torch.int16, torch.int32, torch.int64]
    + [torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128]
)


# ---- what is refused -----------------------------------------------------------------------------


def check_input(name: str, value: object) -> Tensor:
    """`value` if it is a tensor that can be read as it lies and have a gradient."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is of type {type_name(value)}, expected a torch.Tensor")
    _check_place(name, value)
    if value.dtype != torch.float32:
        taken_for_mask = name == "bias" and value.dtype == torch.bool
        hint = ": a bool mask is the argument mask" if taken_for_mask else ""
        raise TypeError(f"{name} has dtype {value.dtype}, expected torch.float32{hint}")
    return value


def check_option(name: str, value: Tensor) -> Tensor:
    """A tensor that no gradient flows to: lengths, masks. C judges its dtype, if there is one."""
    _check_place(name, value)
    if value.requires_grad:
        raise TypeError(
            f"{name} is a tensor that requires grad, but no gradient flows to it: "
            f"pass {name}.detach()"
        )
    if name in _INTEGERS and value.is_floating_point():
        hint = "expected integers: .long(), if these are whole numbers"
        raise TypeError(f"{name} has dtype {value.dtype}, {hint}")
    if value.dtype not in _NUMPY_DTYPES:
        raise TypeError(f"{name} has dtype {value.dtype}, which NumPy does not know")
    return value


def check_order(function: str, X: object, lens: object, name: str) -> None:
    """Refuse lengths as X and numbers as lengths, in the words of C."""
    if (
        isinstance(X, Tensor)
        and isinstance(lens, Tensor)
        and lens.is_floating_point()
        and not (X.is_floating_point() or X.is_complex() or X.dtype == torch.bool)
        and lens.dim() > X.dim()
    ):
        raise TypeError(
            f"X holds integers and {name} floats, as if they were swapped: expected "
            f"{function}(X, {name})"
        )


def _check_place(name: str, tensor: Tensor) -> None:
    if not tensor.is_cpu:
        raise TypeError(f"{name} is on device {tensor.device}, expected cpu")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} has layout {tensor.layout}, expected torch.strided")
    if tensor.is_nested:
        raise TypeError(f"{name} is a nested tensor, expected one of a single shape")


# ---- there and back ------------------------------------------------------------------------------


def to_array(tensor: Tensor) -> NDArray[Any]:
    """The tensor's own memory. (force: without its graph; a pending minus sign is carried out.)"""
    return tensor.numpy(force=True)


def to_tensor(array: NDArray[Any]) -> Tensor:
    """The array's own memory."""
    return torch.from_numpy(array)


def to_arrays(names: Iterable[str], tensors: Iterable[Tensor]) -> dict[str, Any]:
    """Keyword arguments for C."""
    return dict(zip(names, map(to_array, tensors), strict=True))


# ---- options -------------------------------------------------------------------------------------


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Those that are tensors, checked, and the others.

    Tensors are saved as the inputs are, so that autograd notices if one is changed in place.
    """
    tensors = {name: check_option(name, x) for name, x in options.items() if isinstance(x, Tensor)}
    return tensors, {name: x for name, x in options.items() if name not in tensors}


def snapshot(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as they are now, whatever becomes of a list or an array before the backward."""
    return {name: x if isinstance(x, _CONSTANTS) else deepcopy(x) for name, x in options.items()}


# ---- autograd ------------------------------------------------------------------------------------


def apply(node: type[Function], *arguments: Any) -> Any:
    """``node.apply(...)``, which torch leaves untyped."""
    return node.apply(*arguments)  # type: ignore[no-untyped-call]


def is_recorded(inputs: Iterable[Tensor]) -> bool:
    """May a backward follow?"""
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


def zeros_unless(gradient: Tensor | None, like: tuple[int, ...]) -> NDArray[Any]:
    """The gradient of an output as C wants it: always there."""
    return np.zeros(like, np.float32) if gradient is None else to_array(gradient)


class _FirstDerivatives(Function):
    """Gradients, unchanged; to differentiate them again is an error."""

    @staticmethod
    def forward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients

    @staticmethod
    def backward(ctx: Any, *grad_gradients: Tensor) -> Any:
        raise RuntimeError("attnext.torch has no second derivatives, only first ones")


def first_derivatives(gradients: Iterable[Tensor | None]) -> tuple[Tensor | None, ...]:
    """What a backward returns: gradients which, under create_graph=True, say that they have none.

    Without this they would be constants to autograd, and a loss made of them quietly wrong.
    (once_differentiable of torch leaves them constants if the gradient of the output is one.)
    """
    gradients = tuple(gradients)
    if not torch.is_grad_enabled():
        return gradients
    present = [x.requires_grad_() for x in gradients if x is not None]
    guarded = iter(apply(_FirstDerivatives, *present))
    return tuple(None if x is None else next(guarded) for x in gradients)
