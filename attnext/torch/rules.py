"""What is refused, and what to do instead; and what autocast makes of inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attnext._options import OPTIONS, type_name

# Of torch.func; where a torch lacks them, its own messages have to do.
_functorch: Any = getattr(torch._C, "_functorch", None)
_innermost = getattr(_functorch, "peek_interpreter_stack", lambda: None)
_is_wrapped = getattr(_functorch, "is_functorch_wrapped_tensor", lambda tensor: False)

_NUMPY_DTYPES = frozenset(
    getattr(torch, name)
    for name in ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
    + ("float16", "float32", "float64", "complex64", "complex128")
    if hasattr(torch, name)
)
_INTEGERS = {"valid_lens", "valid_len"} | {
    name for name, option in OPTIONS.items() if "array_like of integers" in option.type
}
_LOW_PRECISION = (torch.float16, torch.bfloat16)

NO_SECOND_DERIVATIVES = "attnext.torch has no second derivatives, only first ones"
NO_TRANSFORMS = (
    "attnext.torch does not work under torch.func (vmap, grad, jvp, ...): leading axes are the "
    "batch, and gradients are those of backward() and torch.autograd.grad"
)
NO_FORWARD_MODE = (
    "attnext.torch has no forward-mode derivatives (jvp, dual numbers): gradients are those of "
    "backward() and torch.autograd.grad"
)


# ---- inputs --------------------------------------------------------------------------------------


def check_input(name: str, value: object) -> Tensor:
    """`value` if it is a tensor that can be read as it lies and have a gradient."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is of type {type_name(value)}, expected a torch.Tensor")
    if not value.is_cpu or value.layout is not torch.strided or value.is_nested:
        _refuse_place(name, value)
    return value if value.dtype is torch.float32 else _as_float32(name, value)


def check_option(name: str, value: Tensor) -> Tensor:
    """A tensor that no gradient flows to: lengths, masks. C judges its dtype, if there is one."""
    if not value.is_cpu or value.layout is not torch.strided or value.is_nested:
        _refuse_place(name, value)
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


def _refuse_place(name: str, tensor: Tensor) -> None:
    if not tensor.is_cpu:
        raise TypeError(f"{name} is on device {tensor.device}, expected cpu")
    if tensor.is_nested:
        raise TypeError(f"{name} is a nested tensor, expected one of a single shape")
    raise TypeError(f"{name} has layout {tensor.layout}, expected torch.strided")


def _as_float32(name: str, value: Tensor) -> Tensor:
    """As autocast has it for what is computed in float32; outside of it a TypeError."""
    if value.dtype in _LOW_PRECISION and _is_autocast():
        return value.float()
    hint = ""
    if name == "bias" and value.dtype == torch.bool:
        hint = ": a bool mask is the argument mask"
    elif value.dtype in _LOW_PRECISION:
        hint = ": .float() converts tensors and modules"
    elif value.dtype == torch.float64:
        hint = ": .float() converts tensors and modules; attnext.reference computes in float64"
    raise TypeError(f"{name} has dtype {value.dtype}, expected torch.float32{hint}")


def _is_autocast() -> bool:
    try:
        return torch.is_autocast_enabled("cpu")
    except TypeError:  # before torch 2.4
        return torch.is_autocast_cpu_enabled()


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


# ---- transforms ----------------------------------------------------------------------------------


def check_transforms(tensors: Iterable[Tensor]) -> None:
    """Refuse tensors that stand for something else than their numbers."""
    if _innermost() is not None and any(map(_is_wrapped, tensors)):
        raise RuntimeError(NO_TRANSFORMS)
    level = getattr(forward_ad, "_current_level", -1)
    if level >= 0 and any(_is_dual(x, level) for x in tensors):
        raise RuntimeError(NO_FORWARD_MODE)


def are_active() -> bool:
    """Is this code within a transform, whatever its tensors are?"""
    return _innermost() is not None or getattr(forward_ad, "_current_level", -1) >= 0


def _is_dual(tensor: Tensor, level: int) -> bool:
    dual = forward_ad.unpack_dual(tensor, level=level)  # type: ignore[no-untyped-call]
    return dual.tangent is not None
