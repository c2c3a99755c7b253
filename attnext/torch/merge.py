"""merge_attention on tensors: how attentions over parts of the keys become one, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd import Function

from attnext import _core
from attnext._options import type_name

from .tensors import (
    apply,
    check_input,
    first_derivatives,
    to_array,
    to_tensor,
    zeros_unless,
)


def merge_attention(
    outputs: Tensor | Sequence[Tensor], lses: Tensor | Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Merge attentions over disjoint sets of keys into the attention over all of them.

    Parameters
    ----------
    outputs : list or tuple of Tensor, float32, each of shape (..., M, Dv)
        The output of each part; or one tensor that stacks them along its first axis.
    lses : list or tuple of Tensor, float32, each of shape (..., M)
        The log-sum-exp of each part's scores, as `return_lse` gives it; or one tensor.

    Returns
    -------
    output : Tensor, float32, shape (..., M, Dv)
        The output of the attention over the keys of all parts.
    lse : Tensor, float32, shape (..., M)
        Its log-sum-exp, with which it can be merged again.

    Raises
    ------
    TypeError
        An argument, or one of its parts, is no dense float32 tensor on the CPU.
    ValueError
        The parts differ in their number or shapes, or there are none.

    See Also
    --------
    attnext.merge_attention : The same on arrays.

    Notes
    -----
    ``lse = log(sum_i exp(lses[i]))`` and ``output = sum_i exp(lses[i] - lse) * outputs[i]`` (Dao
    et al. 2022, "FlashAttention", section 3.1). Gradients flow through both to every part, and on
    through the attention that made it.

    Examples
    --------
    Six keys at once, and in two parts:

    >>> import torch
    >>> from attnext.torch import dot_product_attention, merge_attention
    >>> q, k, v = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    >>> parts = [dot_product_attention(q, k[i : i + 3], v[i : i + 3], return_lse=True)
    ...          for i in (0, 3)]
    >>> output, lse = merge_attention(*zip(*parts))
    >>> torch.allclose(output, dot_product_attention(q, k, v), atol=1e-6)
    True
    """
    o, o_layout = _read_parts("outputs", outputs)
    s, s_layout = _read_parts("lses", lses)
    merged: tuple[Tensor, Tensor] = apply(_Merge, o_layout, s_layout, *o, *s)
    return merged


class _Layout(NamedTuple):
    """How parts were given."""

    tensors: int
    stacked: bool  # in one tensor

    def pack(self, arrays: list[Any]) -> Any:
        return arrays[0] if self.stacked else arrays

    def unpack(self, gradient: Any) -> Any:
        """A gradient, which always comes stacked, as one for each tensor."""
        return [gradient] if self.stacked else gradient


def _read_parts(name: str, parts: Any) -> tuple[list[Tensor], _Layout]:
    if isinstance(parts, Tensor):
        return [check_input(name, parts)], _Layout(1, True)
    if not isinstance(parts, list | tuple):
        raise TypeError(
            f"{name} is of type {type_name(parts)}, expected a torch.Tensor, or a list or tuple "
            "of them"
        )
    tensors = [check_input(f"{name}[{i}]", part) for i, part in enumerate(parts)]
    return tensors, _Layout(len(tensors), False)


class _Merge(Function):
    @staticmethod
    def forward(ctx: Any, o: _Layout, s: _Layout, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        arrays = [to_array(x) for x in tensors]
        output, lse = _core.merge_attention(
            o.pack(arrays[: o.tensors]), s.pack(arrays[o.tensors :])
        )
        ctx.set_materialize_grads(False)
        ctx.layouts, ctx.shape = (o, s), output.shape
        ctx.save_for_backward(*tensors)
        return to_tensor(output), to_tensor(lse)

    @staticmethod
    def backward(
        ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        o, s = ctx.layouts
        # forward was: output, lse = merge(outputs, lses)
        arrays = [to_array(x) for x in ctx.saved_tensors]
        d_outputs, d_lses = _core.merge_attention_backward(
            zeros_unless(grad_output, ctx.shape),
            o.pack(arrays[: o.tensors]),
            s.pack(arrays[o.tensors :]),
            grad_lse=None if grad_lse is None else to_array(grad_lse),
        )
        gradients = map(to_tensor, chain(o.unpack(d_outputs), s.unpack(d_lses)))
        return None, None, *first_derivatives(gradients)
