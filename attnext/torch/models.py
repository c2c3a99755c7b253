"""Convert models with torch.nn.MultiheadAttention to attnext, and revert them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from attnext._options import type_name

from .nn import MultiheadAttention, allow_fused_path, keep_off_fused_path

_Model = TypeVar("_Model", bound=nn.Module)


def _is_a(module: nn.Module, cls: type) -> bool:
    """True if this is the module's class, or was before importlib.reload replaced it."""
    own = type(module)
    return (own.__module__, own.__qualname__) == (cls.__module__, cls.__qualname__)


def _exchange(model: _Model, old: type, new: type, finish: Callable[[nn.Module], None]) -> _Model:
    """Make each module of the class `old` one of `new`, and finish it."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is of type {type_name(model)}, expected a torch.nn.Module")
    for module in model.modules():
        if _is_a(module, old):
            object.__setattr__(module, "__class__", new)
            finish(module)
    return model


def convert(model: _Model) -> _Model:
    """Make every torch.nn.MultiheadAttention of a model compute with attnext.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place. Parameters, buffers and the state dict stay what they are, and an
        optimizer that has the parameters keeps them. A forward pre-hook that changes nothing is
        added, so that torch.nn.TransformerEncoderLayer calls the module. Classes derived from
        torch.nn.MultiheadAttention are left alone.

    Returns
    -------
    model : torch.nn.Module
        The model itself.

    Raises
    ------
    TypeError
        `model` is not a torch.nn.Module.

    See Also
    --------
    revert : Undo the conversion.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import convert
    >>> layer = torch.nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, batch_first=True)
    >>> encoder = convert(torch.nn.TransformerEncoder(layer, num_layers=2))
    >>> encoder(torch.randn(4, 5, 8)).shape
    torch.Size([4, 5, 8])
    """
    return _exchange(model, nn.MultiheadAttention, MultiheadAttention, keep_off_fused_path)


def revert(model: _Model) -> _Model:
    """Undo `convert`: make every converted module a torch.nn.MultiheadAttention again.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place, as by `convert`.

    Returns
    -------
    model : torch.nn.Module
        The model itself.

    Raises
    ------
    TypeError
        `model` is not a torch.nn.Module.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import convert, revert
    >>> attention = convert(torch.nn.MultiheadAttention(8, 2))
    >>> type(revert(attention)) is torch.nn.MultiheadAttention
    True
    """
    return _exchange(model, MultiheadAttention, nn.MultiheadAttention, allow_fused_path)
