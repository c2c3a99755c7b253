"""merge_attention on tensors: merge attentions over parts of the keys, with gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import has_torch_function

from attnext import _core
from attnext._options import type_name

from .attention import OTHER
from .autograd import run
from .calls import RULES, Flow, Rule, Saved, Shape
from .tensors import on_tensors, zeros_unless


@OTHER.spelled_out
def merge_attention(
    outputs: Tensor | Sequence[Tensor], lses: Tensor | Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Merge attentions over disjoint sets of keys into the attention over all of them.

    Notes
    -----
    ``lse = log(sum_i exp(lses[i]))`` and ``output = sum_i exp(lses[i] - lse) * outputs[i]`` (Dao
    et al. 2022, "FlashAttention", section 3.1). Gradients flow from both results to every part,
    and through the attention that computed the part.

    Examples
    --------
    Attend to six keys in one call and in two parts:

    >>> import torch
    >>> from attnext.torch import dot_product_attention, merge_attention
    >>> q, k, v = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    >>> parts = [dot_product_attention(q, k[i : i + 3], v[i : i + 3], return_lse=True)
    ...          for i in (0, 3)]
    >>> output, lse = merge_attention(*zip(*parts))
    >>> torch.allclose(output, dot_product_attention(q, k, v), atol=1e-6)
    True
    """
    inputs = _parts("outputs", outputs) | _parts("lses", lses)
    if not inputs:
        raise ValueError("outputs is empty, expected at least one part")
    merged: tuple[Tensor, Tensor] = run("merge_attention", inputs, {}, ("output", "lse"))
    return merged


def _parts(name: str, parts: Any) -> dict[str, Any]:
    """Return one tensor, or those of a list, by name."""
    if isinstance(parts, list | tuple):
        return {f"{name}[{i}]": part for i, part in enumerate(parts)}
    if not isinstance(parts, Tensor) and not has_torch_function((parts,)):
        raise TypeError(
            f"{name} is of type {type_name(parts)}, expected a torch.Tensor, or a list or tuple "
            "of them"
        )
    return {name: parts}


# ---- backward ------------------------------------------------------------------------------------


def _gradients(
    function: str, saved: Saved, options: Mapping[str, Any], flow: Flow, wanted: Sequence[str]
) -> Saved:
    # forward was: output, lse = merge(outputs, lses)
    grad_output = zeros_unless(flow["output"], _shapes(saved)["output"])
    arguments = {"grad_output": grad_output, **saved, "grad_lse": flow["lse"]}
    d = on_tensors(_core.merge_attention_backward, arguments)
    gradients: Saved = {}
    for name, of_parts in zip(("outputs", "lses"), d, strict=True):
        gradients[name] = of_parts  # of one tensor, or of a list of them
        own = {f"{name}[{i}]": part for i, part in enumerate(of_parts)}
        gradients |= {part: x.clone() for part, x in own.items() if part in wanted}
    return gradients


def _shapes(x: dict[str, Any]) -> dict[str, Shape]:
    output, lse = (
        parts[0].shape if isinstance(parts, list) else parts.shape[1:]
        for parts in (x["outputs"], x["lses"])
    )
    return {"output": output, "lse": lse}


RULES["merge_attention"] = Rule(
    gradients=_gradients,
    shapes=_shapes,
    drops=("output", "lse"),
)
