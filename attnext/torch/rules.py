"""What is refused, and what to do instead; and what autocast makes of inputs."""

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
    """Are they of float64? One is only if all are."""
    dtypes = [x.dtype for x in inputs.values()]
    if torch.float64 not in dtypes:
        return False
    first, *_ = inputs
    for name, x in inputs.items():
        if x.dtype is not dtypes[0]:
            raise TypeError(
                f"{name} has dtype {x.dtype} and {first} {dtypes[0]}, expected one for all: "
                ".float() or .double() converts tensors and modules"
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
            f"{name} is a tensor that requires grad, but no gradient flows to it: "
            f"pass {name}.detach()"
        )
    if name in _INTEGERS and value.is_floating_point():
        hint = "expected integers: .long(), if these are whole numbers"
        if name == "valid_lens":  # where other functions have a mask
            hint += "; floats to be added to the scores are an attention's argument bias"
        raise TypeError(f"{name} has dtype {value.dtype}, {hint}")
    if name == "valid_lens" and value.dtype is torch.bool:
        hint = "expected integers, how many keys take part: which, says the argument mask"
        raise TypeError(f"{name} has dtype {value.dtype}, {hint}")
    if value.dtype not in _NUMPY_DTYPES:
        raise TypeError(f"{name} has dtype {value.dtype}, which NumPy does not know")
    return value


def _check_place(name: str, tensor: Tensor, meta: bool) -> None:
    if tensor.is_nested:
        raise TypeError(f"{name} is a nested tensor, expected one of a single shape")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} has layout {tensor.layout}, expected torch.strided")
    if not (tensor.is_cpu or (meta and tensor.is_meta)):
        raise TypeError(f"{name} is on device {tensor.device}, expected cpu")


# ---- subclasses ----------------------------------------------------------------------------------


def is_causal_bias(x: object) -> TypeGuard[CausalBias]:
    """True for torch's CausalBias, which stands for a rule: the values in its memory are random.

    Its module is not imported here, because it imports torch.compile, which takes a second.
    """
    if type(x) in (Tensor, Parameter):
        return False
    bias = sys.modules.get("torch.nn.attention.bias")
    return bias is not None and isinstance(x, bias.CausalBias)


def refuse_causal_bias(name: str, x: object) -> None:
    """Raise TypeError for a CausalBias where no argument stands for its rule."""
    if is_causal_bias(x):
        raise TypeError(
            f"{name} is a torch.nn.attention.bias.CausalBias, which has no values of its own, "
            f"expected a tensor: causal=True is its rule, with {OFFSET}=N - M for lower right; "
            "scaled_dot_product_attention takes a CausalBias as attn_mask"
        )


def is_dispatched(x: object) -> bool:
    """True if only torch's dispatcher knows what an operator does to a tensor.

    Such a tensor has no values (meta), or its class has a __torch_dispatch__ (FakeTensor, DTensor).
    """
    if type(x) in (Tensor, Parameter) or not isinstance(x, Tensor):
        return isinstance(x, Tensor) and x.is_meta
    return x.is_meta or type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__


def check_values(name: str, x: Tensor) -> None:
    """TypeError for a tensor without values in memory, where these are needed at once."""
    if x.is_meta:
        raise TypeError(f"{name} is on device meta, expected cpu")
    if is_dispatched(x):
        raise TypeError(
            f"{name} is a {type_name(x)}, expected a plain tensor: attnext needs values"
        )


def _as_real(name: str, value: Tensor) -> Tensor:
    """float64 as it is; lower ones in float32 if autocast is on, and outside of it a TypeError."""
    if value.dtype is torch.float64:
        return value
    if value.dtype in _LOW_PRECISION and _is_autocast():
        return value.float()
    hint = ""
    if name == "bias" and value.dtype == torch.bool:
        hint = ": a bool mask is the argument mask"
    elif value.dtype in _LOW_PRECISION:
        hint = ": .float() converts tensors and modules"
    raise TypeError(f"{name} has dtype {value.dtype}, expected torch.float32{hint}")


def _is_autocast() -> bool:
    return torch.is_autocast_enabled("cpu")


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


is_wrapped: Callable[[Tensor], bool] = _is_functorch  # by torch.func: a batch of tensors, say


def is_batch(x: Tensor) -> bool:
    """Does it stand for several, by torch.func.vmap or by the older one within torch.autograd?"""
    return is_wrapped(x) or not torch._C._has_storage(x)


def unwrapped(x: Tensor) -> Tensor:
    """The tensor that has the numbers."""
    while is_wrapped(x):
        x = _unwrap(x)
    return x


def outside_transforms() -> AbstractContextManager[Any]:
    """Where constants have their numbers: within torch.func.grad no tensor has."""
    return _cleared() if in_transform() else _HERE


def in_transform() -> bool:
    """Is this code within a transform of torch.func, whatever its tensors are?"""
    return _innermost() is not None


def stand_for_more(tensors: Iterable[Tensor]) -> bool:
    """Are there tensors that are more than their numbers: of torch.func, or of forward mode?"""
    if in_transform() and any(map(is_wrapped, tensors)):
        return True
    level = getattr(forward_ad, "_current_level", -1)
    return level >= 0 and any(_is_dual(x, level) for x in tensors)


def may_stand_for_more() -> bool:
    """Is there anything of which they could be, or does torch.jit.trace look on?"""
    level: int = forward_ad._current_level
    return level >= 0 or _transforms() or _tracing() is not None


def _is_dual(tensor: Tensor, level: int) -> bool:
    dual = forward_ad.unpack_dual(tensor, level=level)  # type: ignore[no-untyped-call]
    return dual.tangent is not None
