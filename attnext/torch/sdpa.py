"""scaled_dot_product_attention with the arguments of torch.nn.functional's function."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from attnext._options import type_name
from attnext.reference.band import OFFSET

from .autograd import compute, recorded_results
from .rules import is_causal_bias, refuse_causal_bias
from .tensors import drawn_seed

if TYPE_CHECKING:
    from torch.nn.attention.bias import CausalBias

# The names of attnext's arguments in torch's signature.
_THEIRS = {"queries": "query", "keys": "key", "values": "value", "mask": "attn_mask"}
_THEIRS |= {"bias": "attn_mask", "causal": "is_causal"}
_NAMED = re.compile(rf"^({'|'.join(_THEIRS)})\b")
# The error of C for unequal leading axes.
_UNEQUAL = re.compile("^(keys|values) has shape ")


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Pool values by the softmax of scaled dot products, with torch.nn.functional's arguments.

    Parameters
    ----------
    query : Tensor, float32, shape (..., L, E)
        L queries. The leading axes (batch, heads) of query, key and value are broadcast.
    key : Tensor, float32, shape (..., S, E)
        The keys.
    value : Tensor, float32, shape (..., S, Ev)
        The values, one per key.
    attn_mask : Tensor of bool or float32, optional
        A tensor whose shape broadcasts to (..., L, S). Bools: True where a query attends to a key.
        Floats: added to the scores; they have a gradient. A torch.nn.attention.bias.CausalBias is
        allowed, too. It cannot be combined with `is_causal`.
    dropout_p : float, optional
        Probability, 0 <= dropout_p <= 1, that dropout zeroes a weight, in training and in
        evaluation. torch's generator draws the seed, so `torch.manual_seed` makes it repeatable.
    is_causal : bool, optional
        Query i attends to keys 0 to i, for any numbers of queries and keys.
    scale : float, optional
        The dot products are multiplied by it; ``1 / sqrt(E)`` by default.
    enable_gqa : bool, optional
        `key` and `value` may have fewer heads (axis -3), which groups of query heads share.

    Returns
    -------
    output : Tensor, float32, shape (..., L, Ev)
        The weighted average of the values for each query; 0 if all its keys are masked, as in
        torch 2.5 and later.

    Raises
    ------
    TypeError
        An input is not a dense float32 tensor on the CPU, or an argument has the wrong type.
    ValueError
        Shapes do not fit, a value is impossible, or both `attn_mask` and `is_causal` are given.

    See Also
    --------
    dot_product_attention : The same attention with all options of attnext.

    Notes
    -----
    ``output = softmax(scale * query @ key^T + attn_mask) @ value``. Masked keys and values are
    never read, so NaN in padding has no effect; in torch it has. For the same seed, dropout zeroes
    other weights than in torch.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import scaled_dot_product_attention  # was: from torch.nn.functional ...
    >>> query, key, value = torch.randn(3, 2, 4, 5, 8).unbind()
    >>> output = scaled_dot_product_attention(query, key, value, is_causal=True)
    >>> theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    >>> torch.allclose(output, theirs, atol=1e-6)
    True
    """
    if is_causal_bias(attn_mask):
        options = _of_causal_bias(attn_mask, query, key, is_causal)
    elif has_torch_function((query, key, value, attn_mask)):
        given = query, key, value, attn_mask
        overridden: Tensor = handle_torch_function(
            scaled_dot_product_attention, given, *given,
            dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip
        return overridden
    elif attn_mask is not None:
        if is_causal:
            raise ValueError("attn_mask and is_causal=True are both given, expected only one")
        options = by_kind("attn_mask", attn_mask)
    else:
        options = {} if is_causal is False else {"causal": is_causal}
    options["empty_rows"] = "zero"
    if scale is not None:
        options["scale"] = scale
    if enable_gqa is not False:
        options["enable_gqa"] = enable_gqa
    if dropout_p != 0:
        options |= dropped(dropout_p)
    inputs = {"queries": query, "keys": key, "values": value}
    axes = 3 if enable_gqa else 2
    output: Tensor = run_as_torch("dot_product_attention", inputs, options, ("output",), axes)
    return output


def run_as_torch(
    function: str,
    inputs: dict[str, Any],
    options: dict[str, Any],
    returned: tuple[str, ...],
    broadcast_axes: int | None = None,
) -> Any:
    """Run attnext's function; an error about an argument names the argument as torch does.

    broadcast_axes: broadcast the axes of the inputs before this many last ones.
    """

    def broadcast(inputs: dict[str, Any]) -> dict[str, Any]:
        return inputs if broadcast_axes is None else _broadcast(inputs, broadcast_axes)

    try:
        made = compute(function, inputs, options, returned, broadcast)
    except (TypeError, ValueError) as error:
        message = str(error)
        equal = inputs
        if type(error) is ValueError and _UNEQUAL.match(message):
            equal = broadcast(inputs)
        if equal is inputs:  # else C has refused the shapes, before any computation
            theirs = _NAMED.sub(lambda name: _THEIRS[name[0]], message)
            if theirs == message or type(error) not in (TypeError, ValueError):
                raise
            raise type(error)(theirs) from None
        return run_as_torch(function, equal, options, returned)
    return recorded_results(made, returned)


# ---- masks ---------------------------------------------------------------------------------------


def _of_causal_bias(bias: CausalBias, query: Any, key: Any, is_causal: bool) -> dict[str, Any]:
    """Return the rule that torch's CausalBias stands for. Its own values mean nothing."""
    if is_causal:
        raise ValueError("attn_mask is a CausalBias and is_causal is True, expected only one")
    for name, x in (("query", query), ("key", key)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is of type {type_name(x)}, expected a torch.Tensor")
    L, S = query.shape[-2], key.shape[-2]
    sizes = bias.seq_len_q, bias.seq_len_kv
    if sizes != (L, S):
        raise ValueError(
            f"attn_mask is a CausalBias for lengths {sizes}, expected {(L, S)}, the lengths of "
            "query and key"
        )
    lower_right = bias.variant.name == "LOWER_RIGHT"
    return {"causal": True, OFFSET: S - L if lower_right else 0}


def by_kind(name: str, x: Any) -> dict[str, Any]:
    """Return a mask of bools or floats as the argument that attnext has for it."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is of type {type_name(x)}, expected a torch.Tensor")
    refuse_causal_bias(name, x)
    if x.dtype == torch.bool:
        return {"mask": x}
    if not x.is_floating_point():
        raise TypeError(f"{name} has dtype {x.dtype}, expected bools or floats")
    return {"bias": x}


def dropped(p: Any) -> dict[str, Any]:
    """Return the options of dropout, with a seed drawn from torch's generator."""
    if p == 0:
        return {}
    if isinstance(p, (int, float)) and not 0 <= p <= 1:
        raise ValueError(f"dropout_p is {p}, expected 0 <= dropout_p <= 1")
    if p == 1:
        return {"dropout_mask": torch.zeros((), dtype=torch.bool, device="cpu")}
    return {"dropout_p": p, "seed": drawn_seed()}


def _broadcast(inputs: dict[str, Any], axes: int) -> dict[str, Any]:
    """Broadcast the axes before the last `axes` ones. What is no tensor is refused later."""
    for name, x in inputs.items():
        refuse_causal_bias(name, x)  # which becomes a plain tensor here
    given = [x for x in inputs.values() if isinstance(x, Tensor)]
    leads = [x.shape[:-axes] for x in given]
    if len(given) < len(inputs) or leads[0] == leads[1] == leads[2]:
        return inputs
    try:
        lead = torch.broadcast_shapes(*leads)  # type: ignore[no-untyped-call]
    except RuntimeError:
        shapes = ", ".join(str(tuple(x.shape)) for x in given)
        raise ValueError(
            f"query, key and value have shapes {shapes}, expected leading axes that broadcast"
        ) from None
    return {name: x.expand(*lead, *x.shape[-axes:]) for name, x in inputs.items()}
