"""Check the inputs, with errors that say what to do instead; convert inputs under autocast."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from attnext._options import OPTIONS, type_name
from attnext.reference.band import OFFSET

if TYPE_CHECKING:
    from torch.nn.attention.bias import CausalBias

# Of torch.func, and private: where a later torch lacks them, its own messages have to do.
_functorch: Any = getattr(torch._C, "_functorch", None)
_tracing = torch._C._get_tracing_state
_transforms: Callable[[], bool] = torch._C._are_functorch_transforms_active
_innermost = getattr(_functorch, "peek_interpreter_stack", lambda: None)
_is_functorch = getattr(_functorch, "is_functorch_wrapped_tensor", lambda tensor: False)
_unwrap = getattr(_functorch, "get_unwrapped", lambda tensor: tensor)
_cleared: Callable[[], AbstractContextManager[Any]] = nullcontext
with suppress(ImportError):
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as _cleared
_HERE = nullcontext()

_NUMPY_DTYPES = frozenset(
    getattr(torch, name)
    for name in ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
    + ("float16", "float32", "float64", "complex64", "complex128")
)
_INTEGERS = {"valid_lens", "valid_len"} | {
    name for name, option in OPTIONS.items() if "array_like of integers" in option.type
}
_LOW_PRECISION = (torch.float16, torch.bfloat16)

NO_SECOND_DERIVATIVES = "a Memory has no second derivatives, only first ones"


# ---- inputs --------------------------------------------------------------------------------------


def check_input(name: str, value: object) -> Tensor:
    """Return `value` if it is a dense tensor of floats, on the CPU or without values (meta)."""
    return check_inputs({name: value})[0][name]


def check_inputs(inputs: Mapping[str, Any]) -> tuple[dict[str, Tensor], bool]:
    """Do what `check_input` does for several tensors; also return True if they are of float64."""
    checked, single = {}, True
    for name, value in inputs.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} is of type {type_name(value)}, expected a torch.Tensor")
        if not value.is_cpu or value.layout is not torch.strided or value.is_nested:
            meta = all(isinstance(x, Tensor) and x.is_meta for x in inputs.values())
            _check_place(name, value, meta)
        if type(value) is not Tensor:
            refuse_causal_bias(name, value)
        checked[name] = value
        if value.dtype is not torch.float32:
            checked[name], single = _as_real(name, value), False
    return checked, not single and check_dtypes(checked)


def check_dtypes(inputs: Mapping[str, Tensor]) -> bool:
    """Return True if all inputs are float64; raise TypeError if only some are."""
    dtypes = [x.dtype for x in inputs.values()]
    if torch.float64 not in dtypes:
        return False
    first, *_ = inputs
    for name, x in inputs.items():
        if x.dtype is not dtypes[0]:
            raise TypeError(
                f"{name} has dtype {x.dtype} and {first} has {dtypes[0]}, expected the same dtype "
                "for all inputs: convert tensors and modules with .float() or .double()"
            )
    return True


def check_option(name: str, value: Tensor, meta: bool = False) -> Tensor:
    """Return a tensor that no gradient flows to, such as lengths or a mask, if it may be one.

    C checks its dtype, where NumPy has that dtype. meta: the inputs are on device meta.
    """
    if not value.is_cpu or value.layout is not torch.strided or value.is_nested:
        _check_place(name, value, meta)
    if type(value) is not Tensor:
        refuse_causal_bias(name, value)
    if value.requires_grad:
        raise TypeError(
            f"{name} is a tensor that requires grad, but attnext computes no gradient of it: "
            f"pass {name}.detach()"
        )
    if name in _INTEGERS and value.is_floating_point():
        hint = f"expected integers: if they are whole numbers, pass {name}.long()"
        if name == "valid_lens":  # other libraries have a mask at this position
            hint += "; to add floats to the scores, use the argument bias of an attention function"
        raise TypeError(f"{name} has dtype {value.dtype}, {hint}")
    if name == "valid_lens" and value.dtype is torch.bool:
        hint = "expected integers: to choose keys by bools, use the argument mask"
        raise TypeError(f"{name} has dtype {value.dtype}, {hint}")
    if value.dtype not in _NUMPY_DTYPES:
        raise TypeError(f"{name} has dtype {value.dtype}, expected a dtype that NumPy has")
    return value


def _check_place(name: str, tensor: Tensor, meta: bool) -> None:
    if tensor.is_nested:
        raise TypeError(f"{name} is a nested tensor, expected a tensor that is not nested")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} has layout {tensor.layout}, expected torch.strided")
    if not (tensor.is_cpu or (meta and tensor.is_meta)):
        raise TypeError(f"{name} is on device {tensor.device}, expected cpu")


# ---- subclasses ----------------------------------------------------------------------------------


def is_causal_bias(x: object) -> TypeGuard[CausalBias]:
    """True for torch's CausalBias, which describes a rule; the values in its memory are random.

    Its module is not imported here, because it imports torch.compile, which takes a second.
    """
    if type(x) in (Tensor, Parameter):
        return False
    bias = sys.modules.get("torch.nn.attention.bias")
    return bias is not None and isinstance(x, bias.CausalBias)


def refuse_causal_bias(name: str, x: object) -> None:
    """Raise TypeError for a CausalBias as an argument that needs values."""
    if is_causal_bias(x):
        raise TypeError(
            f"{name} is a torch.nn.attention.bias.CausalBias, expected a tensor: pass causal=True, "
            f"with {OFFSET}=N - M for a lower-right bias, or call scaled_dot_product_attention, "
            "whose attn_mask may be a CausalBias"
        )


def is_dispatched(x: object) -> bool:
    """True if only torch's dispatcher knows what an operator does to a tensor.

    Such a tensor has no values (meta), or its class has a __torch_dispatch__ (FakeTensor, DTensor).
    """
    if type(x) in (Tensor, Parameter) or not isinstance(x, Tensor):
        return isinstance(x, Tensor) and x.is_meta
    return x.is_meta or type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__


def check_values(name: str, x: Tensor) -> None:
    """Raise TypeError for a tensor without values in memory."""
    if x.is_meta:
        raise TypeError(f"{name} is on device meta, expected cpu")
    if is_dispatched(x):
        raise TypeError(
            f"{name} is a {type_name(x)}, expected a plain tensor because attnext needs its values"
        )


def _as_real(name: str, value: Tensor) -> Tensor:
    """Return float64 unchanged, and 16-bit floats as float32 under autocast, or raise TypeError."""
    if value.dtype is torch.float64:
        return value
    if value.dtype in _LOW_PRECISION and _is_autocast():
        return value.float()
    hint = ""
    if name == "bias" and value.dtype == torch.bool:
        hint = ": use the argument mask for a bool mask"
    elif value.dtype in _LOW_PRECISION:
        hint = ": convert tensors and modules with .float()"
    raise TypeError(f"{name} has dtype {value.dtype}, expected torch.float32{hint}")


def _is_autocast() -> bool:
    return torch.is_autocast_enabled("cpu")


def check_order(function: str, X: object, lens: object, name: str) -> None:
    """Raise C's TypeError if X and the lengths seem to be swapped."""
    if (
        isinstance(X, Tensor)
        and isinstance(lens, Tensor)
        and lens.is_floating_point()
        and not (X.is_floating_point() or X.is_complex() or X.dtype == torch.bool)
        and lens.dim() > X.dim()
    ):
        raise TypeError(
            f"X contains integers and {name} floats, expected the opposite order: "
            f"{function}(X, {name})"
        )


# ---- transforms ----------------------------------------------------------------------------------


is_wrapped: Callable[[Tensor], bool] = _is_functorch  # by torch.func: a batch of tensors, say


def is_batch(x: Tensor) -> bool:
    """True if the tensor is a batch of torch.func.vmap or of the older vmap in torch.autograd."""
    return is_wrapped(x) or not torch._C._has_storage(x)


def unwrapped(x: Tensor) -> Tensor:
    """Return the tensor that has the values."""
    while is_wrapped(x):
        x = _unwrap(x)
    return x


def outside_transforms() -> AbstractContextManager[Any]:
    """Return a context in which constants have values; within torch.func.grad no tensor has."""
    return _cleared() if in_transform() else _HERE


def in_transform() -> bool:
    """True within a transform of torch.func."""
    return _innermost() is not None


def stand_for_more(tensors: Iterable[Tensor]) -> bool:
    """True if a tensor also carries a transform of torch.func or a tangent of forward mode."""
    if in_transform() and any(map(is_wrapped, tensors)):
        return True
    level = getattr(forward_ad, "_current_level", -1)
    return level >= 0 and any(_is_dual(x, level) for x in tensors)


def may_stand_for_more() -> bool:
    """True if a transform, forward mode or torch.jit.trace is active."""
    level: int = forward_ad._current_level
    return level >= 0 or _transforms() or _tracing() is not None


def _is_dual(tensor: Tensor, level: int) -> bool:
    dual = forward_ad.unpack_dual(tensor, level=level)  # type: ignore[no-untyped-call]
    return dual.tangent is not None
