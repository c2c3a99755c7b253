"""Tensors as the arrays that the C functions read, and back: the same memory, no copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from operator import methodcaller
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from attnext import _core

from .rules import check_option

# What a caller cannot change behind our back; anything else is copied for the backward.
_CONSTANTS = (int, float, str, type(None))


# ---- there and back ------------------------------------------------------------------------------


# Each is of the other's own memory. (force: without its graph, and a pending minus sign is carried
# out.)
_to_array: Callable[[Tensor], NDArray[Any]] = methodcaller("numpy", force=True)
to_tensor: Callable[[NDArray[Any]], Tensor] = torch.from_numpy

# From 2.10 on torch has functions by which C reads a tensor and makes one; only those types have
# none of their own meaning.
_core._exchange_tensors(
    (Tensor, Parameter), getattr(Tensor, "__dlpack_c_exchange_api__", None), torch.is_grad_enabled
)


def on_tensors(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """A function of C, called with tensors, single ones or in lists: its arrays as tensors."""
    made = _core._on_tensors(function, arguments)
    if made is not NotImplemented:
        return made
    return _as_tensors(function(**{name: _as_array(x, name) for name, x in arguments.items()}))


def _as_array(x: Any, name: str) -> Any:
    if isinstance(x, Tensor):
        return to_array(x, name)
    if isinstance(x, list) and x and isinstance(x[0], Tensor):
        return [to_array(part, f"{name}[{i}]") for i, part in enumerate(x)]
    return x


def _as_tensors(made: Any) -> Any:
    if isinstance(made, np.ndarray):
        return to_tensor(made)
    return tuple(map(_as_tensors, made)) if isinstance(made, tuple) else made


def to_array(x: Tensor, name: str = "a tensor") -> NDArray[Any]:
    """The numbers of a tensor, if it has them: of a storage given back NumPy would make some up."""
    if (
        x.untyped_storage().nbytes() < x.numel() * x.element_size()
        or x.storage_offset()  # else, and in one piece, it is all there
        or not x.is_contiguous()
    ):
        _check_storage(x, name)
    return _to_array(x)


def _check_storage(x: Tensor, name: str) -> None:
    held = x.untyped_storage().nbytes()
    last = x.storage_offset() + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    needed = (last + 1) * x.element_size() if x.numel() else 0
    if held < needed:
        raise RuntimeError(
            f"{name} has a storage of {held} bytes, expected {needed}: it was resized, or given "
            "back"
        )


def by_argument(names: Sequence[str], values: Iterable[Any]) -> dict[str, Any]:
    """Keyword arguments; values with the names "x[0]", "x[1]" and so on are a list x."""
    arguments = dict(zip(names, values, strict=True))
    for name in _of_lists(tuple(names)):
        arguments.setdefault(name[: name.index("[")], []).append(arguments.pop(name))
    return arguments


@cache
def _of_lists(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name[-1] == "]")


# Tensors are made with an explicit dtype and device, here and everywhere in attnext.torch: those
# of the inputs, never those that torch.set_default_dtype and torch.set_default_device say.


def zeros_unless(gradient: Tensor | None, like: Sequence[int]) -> Tensor:
    """Return the gradient of an output, which C requires; zeros if no gradient flows into it."""
    if gradient is not None:
        return gradient
    return torch.zeros(tuple(like), dtype=torch.float32, device="cpu")


def drawn_seed() -> Tensor:
    """Draw a seed for dropout from torch's default generator: torch.manual_seed repeats it."""
    return torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu")


# ---- options -------------------------------------------------------------------------------------


def split_options(
    options: Mapping[str, Any], meta: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the options that are tensors, checked, and the others.

    meta: the inputs are on device meta.
    Tensors are saved as the inputs are, so that autograd notices if one is changed in place.
    """
    tensors, others = {}, {}
    for name, value in options.items():
        if value is not None and isinstance(value, Tensor):  # which takes its time to say no
            tensors[name] = check_option(name, value, meta)
        else:
            others[name] = value
    return tensors, others


def snapshot(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as they are now, whatever becomes of a list or an array before the backward."""
    return {name: x if isinstance(x, _CONSTANTS) else deepcopy(x) for name, x in options.items()}
