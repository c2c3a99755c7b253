"""attnext in Hugging Face's transformers, for any model that uses their AttentionInterface.

``import attnext.torch.transformers`` registers the name "attnext" there, with a mask function. Pass
``attn_implementation="attnext"`` to ``from_pretrained`` or ``from_config``, or call
``model.set_attn_implementation("attnext")``. attnext then computes the model's attention, forward
and backward, in float32 on the CPU. The results equal those of "eager" up to rounding.

- attnext computes causal masks, sliding windows and padding without a mask of shape (M, N). All
  other rules become a mask of bools.
- A model that does arithmetic with its mask gets the float mask of "eager": 0, or the smallest
  float for a masked pair. A model that negates the mask, as if it held bools, raises TypeError.
- Without a mask, every query attends to every key, as in eager, unless the call has
  ``is_causal=True``. The module's attribute ``is_causal`` is not read.
- Supported: grouped-query attention, softcap (Gemma 2), sinks (gpt-oss), position biases (T5), keys
  selected by an indexer (DeepSeek V3.2), caches, and training with dropout. With
  ``output_attentions=True`` a model returns the weights before dropout.
- A query whose keys are all masked gets the mean of the values, as in eager. Its scores have no
  gradient; in eager they have one. Only padding is affected.
- Not supported: paged caches (continuous batching), and arguments that change the result but that
  attnext does not read, such as MiniMax M3's block_indices. They raise TypeError.

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
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

try:
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
    from transformers.utils import output_capturing
except ImportError:
    raise ImportError(
        "attnext.torch.transformers needs Hugging Face's transformers: pip install transformers"
    ) from None

from attnext._options import type_name
from attnext.reference.band import OFFSET

from .nn import lengths_of
from .sdpa import by_kind, dropped, run_as_torch

NAME = "attnext"

_Rule: TypeAlias = Callable[..., Any]  # of indices (batch, head, query, key): True if attended to
_Band: TypeAlias = tuple[int, int]  # keys before and after the query's own position; -1: no bound


# ---- masks ---------------------------------------------------------------------------------------


class _Mask(Tensor):
    """A mask (B, 1, M, N) that attnext reads as options, and every other code as eager's floats.

    Eager's mask is added to the scores: 0 for a pair that is attended to, the smallest float for
    one that is masked. Models compute with it (``1 - mask``, ``torch.finfo(mask.dtype)``), so any
    operation on this object forms that tensor first. An operation may also change the tensor in
    place; from then on attnext reads the tensor instead of the options. The object's own memory is
    one NaN, so code that bypasses ``__torch_function__`` cannot go unnoticed.
    """

    rule: dict[str, Any]
    form: Callable[[], Tensor]
    formed: Tensor | None
    model: str  # the class of its configuration, for messages

    @classmethod
    def of(
        cls,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        rule: dict[str, Any],
        form: Callable[[], Tensor],
        model: str,
    ) -> _Mask:
        self = torch.full((), torch.nan, dtype=dtype, device="cpu").expand(shape).as_subclass(cls)
        self.rule, self.form, self.formed, self.model = rule, form, None, model
        return self

    def whole(self) -> Tensor:
        """Return eager's mask, the same tensor each time."""
        if self.formed is None:
            self.formed = self.form()
        return self.formed

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _METADATA:
            parent: Any = super()
            return parent.__torch_function__(func, types, args, kwargs or {})
        if func in _OF_BOOLS and isinstance(args[0], cls):
            raise TypeError(
                f"attention_mask is negated by the model of {args[0].model} as if it had bools, "
                "expected a model that computes with eager's floats. "
                "Use attn_implementation='sdpa', because 'eager' gives this model the same floats"
            )
        return func(*_formed(args), **_formed(kwargs or {}))


def _formed(x: Any) -> Any:
    """Replace every _Mask in nested tuples, lists and dicts by the tensor that it stands for."""
    if isinstance(x, _Mask):
        return x.whole()
    if type(x) in (tuple, list):
        return type(x)(map(_formed, x))
    return {name: _formed(each) for name, each in x.items()} if type(x) is dict else x


# Operations that do not depend on the mask's elements.
_METADATA = {
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "layout", "is_nested", "requires_grad")
} | {Tensor.size, Tensor.dim, Tensor.is_floating_point, Tensor.__len__}

# Of floats, the opposite of what a model that expects sdpa's bools means (Nemotron's streaming
# encoder, for which eager gives NaN). Other operations of bools, such as ~ and &, raise.
_OF_BOOLS = {torch.logical_not, Tensor.logical_not}


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: _Rule = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    **more: Any,
) -> Tensor | None:
    """Return the attention_mask of a model's layers; attention_mask here: bools (B, all keys).

    None means that every query attends to every key, exactly where eager's mask is None.
    """
    more |= {"allow_is_causal_skip": False, "use_vmap": use_vmap}
    more |= {"mask_function": mask_function, "attention_mask": attention_mask}
    pairs: Callable[..., Any] = partial(
        masking_utils.sdpa_mask, batch_size, q_length, kv_length, q_offset, kv_offset, **more
    )
    model = type(more.get("config")).__name__
    compiling = torch.compiler.is_compiling()
    band = None if use_vmap or compiling else _band_of(mask_function)
    if band is None:
        mask: Tensor | None = pairs(allow_is_bidirectional_skip=allow_is_bidirectional_skip)
        if mask is None:
            return None
        if compiling:
            return _additive(mask, dtype)
        form: Callable[[], Tensor] = partial(_additive, mask, dtype)
        return _Mask.of(tuple(mask.shape), dtype, {"mask": mask}, form, model)
    options = _padding(attention_mask, kv_offset, kv_length)
    if band != (-1, -1):
        options |= {"window": band, OFFSET: int(q_offset) - kv_offset}
    if not options and allow_is_bidirectional_skip:
        return None
    shape = (batch_size, 1, q_length, kv_length)
    return _Mask.of(shape, dtype, options, lambda: _additive(pairs().expand(shape), dtype), model)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return eager's mask for one of bools (True: attended to)."""
    return torch.where(
        mask, torch.zeros((), dtype=dtype, device=mask.device), torch.finfo(dtype).min
    )


def _padding(real: Tensor | None, first: int, N: int) -> dict[str, Any]:
    """Return the options for N keys from `first` on; `real` (B, keys) is True for a real key."""
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
    """Return the band that a rule of transformers stands for, or None."""
    code = getattr(rule, "__code__", None)
    if code is _AND:
        bands = [_band_of(each) for each in rule.__closure__[0].cell_contents]
        known = [band for band in bands if band is not None]
        return _both(known) if len(known) == len(bands) else None
    if code not in _BANDS:
        return None
    return _BANDS[code](*(cell.cell_contents for cell in rule.__closure__ or ()))


def _both(bands: list[_Band]) -> _Band:
    """Return the intersection of bands."""
    sides = ([bound for bound in side if bound >= 0] for side in zip(*bands, strict=True))
    left, right = (min(bounds, default=-1) for bounds in sides)
    return left, right


def _is_band(rule: _Rule, band: _Band) -> bool:
    """True if the rule is this band for 9 queries and 9 keys."""
    positions = torch.arange(9, device="cpu")
    query, key = positions[:, None], positions[None]
    left, right = (9 if bound < 0 else bound for bound in band)
    zero = torch.zeros(1, 1, dtype=torch.int64, device="cpu")
    expected = (key - query >= -left) & (key - query <= right)
    return bool((rule(zero, zero, query, key) == expected).all())


# Rules that are bands, by their code. Each is checked when this module is imported, because another
# release of transformers may change what a rule means.
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
    sinks: Tensor | None = None,
    position_bias: Tensor | None = None,
    indices: Tensor | None = None,
    sliding_window: int | None = None,
    output_attentions: bool | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """Of heads (B, heads, M, D), return (B, M, heads, D) and, if requested, the weights.

    `s_aux` (heads) and `sinks` (B, heads, M, 1) are one more score of each row; `indices`
    (B, M, n) are the n keys that an indexer has selected for each query. The mask contains the
    sliding window.

    Without a mask, every query attends to every key unless this call says is_causal=True. The
    module's own `is_causal` is not read, as in eager: modules for which it is True (Phi-4's vision
    model) or that lack it (CLAP's and ALIGN's text) attend both ways when they get no mask, and
    _mask never returns None for a causal rule.
    """
    if NAME not in masking_utils.ALL_MASK_ATTENTION_FUNCTIONS:
        raise RuntimeError(
            f"AttentionMaskInterface has no {NAME!r}, so transformers would omit the masks: keep "
            "the mask function that attnext.torch.transformers has registered"
        )
    _refuse(module, more)
    options = {"scale": scaling, "softcap": softcap, **dropped(dropout)}
    options["enable_gqa"] = query.shape[1] != key.shape[1]
    pairs = (query.shape[0], 1, query.shape[2], key.shape[2])
    if attention_mask is not None:
        options |= _read_mask(attention_mask, pairs)
    elif is_causal and query.shape[2] > 1:
        options["causal"] = True
    if indices is not None:
        selected = torch.zeros(pairs, dtype=torch.bool, device=query.device)
        _select(options, selected.scatter(-1, indices.long().unsqueeze(1), True))
    if position_bias is not None:
        options["bias"] = options["bias"] + position_bias if "bias" in options else position_bias
    if s_aux is not None:
        options["sink"] = s_aux.reshape(-1, 1)
    if sinks is not None:
        options["sink"] = sinks.squeeze(-1)
    inputs = {"queries": query, "keys": key, "values": value}
    need_weights = output_attentions or _are_weights_collected()
    returned = ("output", "weights") if need_weights else ("output",)
    made = run_as_torch("dot_product_attention", inputs, options, returned)
    output, weights = made if need_weights else (made, None)
    return output.transpose(1, 2).contiguous(), weights


def _read_mask(mask: Any, pairs: tuple[int, ...]) -> dict[str, Any]:
    """Return the options for a mask of a call with `pairs` = (B, 1, M, N)."""
    if isinstance(mask, _Mask) and mask.formed is None and mask.shape == pairs:
        return mask.rule
    return by_kind("attention_mask", _formed(mask))  # the mask of other inputs may broadcast


def _select(options: dict[str, Any], selected: Tensor) -> None:
    """Mask every key that is not selected (B, 1, M, N), as eager does."""
    if "bias" in options:
        bias = options["bias"]
        options["bias"] = bias.masked_fill(~selected, torch.finfo(bias.dtype).min)
    else:
        options["mask"] = options["mask"] & selected if "mask" in options else selected


def _refuse(module: torch.nn.Module, more: dict[str, Any]) -> None:
    """Refuse arguments that change the result and that attnext does not read.

    Most arguments are for other parts of a model. Those that select keys, and those that the
    model's own eager function reads, are not.
    """
    for name in ("cache", "block_indices", *_read_by_eager(type(module).__module__)):
        if more.get(name) is not None:
            instead = "paged|eager" if name == "cache" else "eager"
            raise TypeError(
                f"{name} is of type {type_name(more[name])}, expected None: attnext does not read "
                f"this argument of {type(module).__name__}. Use attn_implementation={instead!r}"
            )


def _read_by_eager(file: str) -> tuple[str, ...]:
    """Return the arguments of a model file's eager function that _attention does not have."""
    if file not in _unread:
        eager = getattr(sys.modules.get(file), "eager_attention_forward", None)
        theirs = inspect.signature(eager).parameters.values() if callable(eager) else ()
        ours = inspect.signature(_attention).parameters
        names = (p.name for p in theirs if p.kind is not p.VAR_KEYWORD and p.name not in ours)
        _unread[file] = tuple(names)
    return _unread[file]


_unread: dict[str, tuple[str, ...]] = {}  # by file; torch.compile warns about functools.cache


def _are_weights_collected() -> bool:
    """True if transformers' hooks collect weights in this call.

    Some models request weights by these hooks alone, without output_attentions. transformers has
    no public name for the active request, so this function reads the private one.
    """
    collector: Any = getattr(output_capturing, "_active_collector", None)
    collected = None if collector is None else collector.get()
    return any(name.endswith("attentions") for name in collected or ())


if "q_offset" not in inspect.signature(masking_utils.sdpa_mask).parameters:
    raise ImportError("attnext.torch.transformers needs transformers 5.23 or later")
AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
