"""attnext in Hugging Face's transformers: any model that asks its AttentionInterface.

``import attnext.torch.transformers`` registers the name "attnext" there, with the masks that belong
to it. ``attn_implementation="attnext"`` in ``from_pretrained`` or ``from_config``, or
``model.set_attn_implementation("attnext")``, then has the model's attention computed by attnext,
forward and backward: the numbers of "eager" but for rounding, on the CPU, in float32.

- What a mask says by its rule is handed on as that: causal and sliding windows as a band, padding
  as lengths or as one row for each sequence. No mask of (M, N) is formed for them. For any other
  rule the mask of "sdpa" is.
- Heads that share keys, softcap (Gemma 2), sinks (gpt-oss), position biases (T5), caches, training
  with dropout, and, where ``output_attentions=True`` asks for them, weights, from before dropout.
- A query without any key gives the mean of the values, as "eager" does. It has no gradient for its
  scores, which eager has, because there rounding makes them equal; it matters to no query that is
  real.
- Paged caches (continuous batching) are refused.

Examples
--------
>>> import torch
>>> import attnext.torch.transformers
>>> from transformers import BertConfig, BertModel
>>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
>>> config = BertConfig(vocab_size=30, num_hidden_layers=1, **sizes)
>>> model = BertModel._from_config(config, attn_implementation="attnext").eval()
>>> tokens, real = torch.randint(30, (2, 5)), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
>>> model(tokens, attention_mask=real).last_hidden_state.shape
torch.Size([2, 5, 16])
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

try:
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
    from transformers.utils import output_capturing
except ImportError:
    raise ImportError(
        "attnext.torch.transformers needs Hugging Face's transformers: pip install transformers"
    ) from None

from attnext.reference.band import OFFSET

from .nn import lengths_of
from .sdpa import by_kind, dropped, run_as_torch

NAME = "attnext"

_Rule: TypeAlias = Callable[..., Any]  # (entry, head, query, key) of indices: is it in?
_Band: TypeAlias = tuple[int, int]  # keys before and behind the query's own place; -1: no bound


# ---- masks ---------------------------------------------------------------------------------------


class _Mask(Tensor):
    """A mask (B, 1, M, N) that is only formed if something else than attnext looks into it.

    Its own numbers say that nobody attends to anything, so whoever got past the conversion, which
    is made for every operator, would notice.
    """

    options: dict[str, Any]  # what it says, in attnext's words
    whole: Callable[[], Tensor]

    @classmethod
    def of(
        cls, shape: tuple[int, ...], options: dict[str, Any], whole: Callable[[], Tensor]
    ) -> _Mask:
        self = torch.zeros((), dtype=torch.bool).expand(shape).as_subclass(cls)
        self.options, self.whole = options, whole
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func not in _ABOUT_ITSELF:
                args, kwargs = tree_map(_formed, (args, kwargs or {}))
            return func(*args, **(kwargs or {}))


def _formed(x: Any) -> Any:
    return x.whole() if isinstance(x, _Mask) else x


# What tells nothing of the numbers.
_ABOUT_ITSELF = {
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "layout", "is_nested", "requires_grad")
} | {Tensor.size, Tensor.dim, Tensor.is_floating_point, Tensor.__len__}


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: _Rule = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    **more: Any,
) -> Tensor | None:
    """What a model's layers get as attention_mask; attention_mask here: (B, all keys) of bools."""
    more |= {"allow_is_causal_skip": False, "use_vmap": use_vmap}
    more |= {"mask_function": mask_function, "attention_mask": attention_mask}
    whole: Callable[..., Any] = partial(
        masking_utils.sdpa_mask, batch_size, q_length, kv_length, q_offset, kv_offset, **more
    )
    band = None if use_vmap or torch.compiler.is_compiling() else _band_of(mask_function)
    if band is None:
        mask: Tensor | None = whole(allow_is_bidirectional_skip=allow_is_bidirectional_skip)
        return mask
    options = _padding(attention_mask, kv_offset, kv_length)
    if band != (-1, -1):
        options |= {"window": band, OFFSET: int(q_offset) - kv_offset}
    if not options and allow_is_bidirectional_skip:
        return None
    return _Mask.of((batch_size, 1, q_length, kv_length), options, whole)


def _padding(real: Tensor | None, first: int, N: int) -> dict[str, Any]:
    """Of (B, keys), True for a real one, what it says of N keys from the first on."""
    if real is None:
        return {}
    if (missing := first + N - real.shape[-1]) > 0:
        real = torch.nn.functional.pad(real, (0, missing))
    real = real[:, first : first + N]
    lens = lengths_of(~real)
    if lens is None:
        return {"mask": real[:, None, None, :]}
    return {} if bool((lens == N).all()) else {"valid_lens": lens}


# ---- rules ---------------------------------------------------------------------------------------


def _band_of(rule: Any) -> _Band | None:
    """The band that a rule of transformers is, if it is one."""
    code = getattr(rule, "__code__", None)
    if code is _AND:
        bands = [_band_of(each) for each in rule.__closure__[0].cell_contents]
        known = [band for band in bands if band is not None]
        return _both(known) if len(known) == len(bands) else None
    if code not in _BANDS:
        return None
    return _BANDS[code](*(cell.cell_contents for cell in rule.__closure__ or ()))


def _both(bands: list[_Band]) -> _Band:
    """The band of the pairs that are in all of them."""
    sides = ([bound for bound in side if bound >= 0] for side in zip(*bands, strict=True))
    left, right = (min(bounds, default=-1) for bounds in sides)
    return left, right


def _is_band(rule: _Rule, band: _Band) -> bool:
    """Is it, for all of a few pairs?"""
    query, key = torch.arange(9)[:, None], torch.arange(9)[None]
    left, right = (9 if bound < 0 else bound for bound in band)
    zero = torch.zeros(1, 1, dtype=torch.int64)
    expected = (key - query >= -left) & (key - query <= right)
    return bool((rule(zero, zero, query, key) == expected).all())


# The rules that are bands, by their code, each tried: another release may mean something else.
_AND = masking_utils.and_masks(masking_utils.causal_mask_function).__code__
_RULES: list[tuple[_Rule, Callable[..., _Band], tuple[int, ...]]] = [
    (masking_utils.causal_mask_function, lambda: (-1, 0), ()),
    (masking_utils.bidirectional_mask_function, lambda: (-1, -1), ()),
    (masking_utils.sliding_window_overlay(3), lambda n: (n - 1, -1), (3,)),
    (masking_utils.sliding_window_bidirectional_overlay(3), lambda n: (n, n), (3,)),
]
_BANDS: dict[Any, Callable[..., _Band]] = {
    rule.__code__: band for rule, band, example in _RULES if _is_band(rule, band(*example))
}


# ---- attention -----------------------------------------------------------------------------------


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool | None = None,
    cache: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Of heads (B, heads, M, D): (B, M, heads, D), and the weights if they are asked for."""
    if NAME not in AttentionMaskInterface._global_mapping:
        raise RuntimeError(
            f"AttentionMaskInterface has no {NAME!r}, without which transformers leaves out masks: "
            "expected what attnext.torch.transformers has registered"
        )
    if cache is not None:
        raise TypeError(f"cache is of type {type(cache).__name__}, expected none: no paged caches")
    options = {"scale": scaling, "softcap": softcap, **dropped(dropout)}
    options["enable_gqa"] = query.shape[1] != key.shape[1]
    pairs = (query.shape[0], 1, query.shape[2], key.shape[2])
    if isinstance(attention_mask, _Mask) and attention_mask.shape == pairs:
        options |= attention_mask.options
    elif attention_mask is not None:  # if it was made for other inputs, let it broadcast or not
        options |= by_kind("attention_mask", _formed(attention_mask))
    else:  # as with "sdpa"
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        options["causal"] = bool(causal) and query.shape[2] > 1
    if position_bias is not None:
        options["bias"] = options["bias"] + position_bias if "bias" in options else position_bias
    if s_aux is not None:
        options["sink"] = s_aux.reshape(-1, 1)
    inputs = {"queries": query, "keys": key, "values": value}
    need_weights = output_attentions or _are_weights_collected()
    returned = ("output", "weights") if need_weights else ("output",)
    made = run_as_torch("dot_product_attention", inputs, options, returned)
    output, weights = made if need_weights else (made, None)
    return output.transpose(1, 2).contiguous(), weights


def _are_weights_collected() -> bool:
    """Some models keep to themselves that they were asked for weights, and have hooks for them."""
    collector: Any = getattr(output_capturing, "_active_collector", None)
    collected = None if collector is None else collector.get()
    return any(name.endswith("attentions") for name in collected or ())


if "q_offset" not in inspect.signature(masking_utils.sdpa_mask).parameters:
    raise ImportError("attnext.torch.transformers needs transformers 5.23 or later")
AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
