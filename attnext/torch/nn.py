"""MultiheadAttention with the interface of torch.nn.MultiheadAttention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnext._options import type_name

from .operators import are_wanted
from .rules import is_dispatched, is_wrapped, refuse_causal_bias
from .scripting import refuse_script
from .sdpa import by_kind, dropped, run_as_torch

__all__ = ["MultiheadAttention"]


def __dir__() -> list[str]:
    """Return the names for completion."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


class MultiheadAttention(nn.MultiheadAttention):
    """Replace torch.nn.MultiheadAttention, and compute with attnext.

    The constructor, the parameters and their initial values, the state dict, the arguments of a
    call and the results are the same as for torch.nn.MultiheadAttention.

    Parameters
    ----------
    embed_dim : int
        Number of features of a query, of all heads together, and of the output.
    num_heads : int
        Number of heads, a divisor of `embed_dim`.
    dropout : float, optional
        Probability, 0 <= dropout <= 1, that dropout zeroes a weight in training.
    bias : bool, optional
        Add biases to the projections.
    add_bias_kv : bool, optional
        Append a learned key and value to the keys and values.
    add_zero_attn : bool, optional
        Append a key and a value of zeros to the keys and values.
    kdim, vdim : int, optional
        Numbers of features of a key and of a value; `embed_dim` by default.
    batch_first : bool, optional
        If True, inputs and output have the shape (B, L, E), otherwise (L, B, E).
    device, dtype : optional
        The device and dtype of the parameters. attnext computes in float32 on the CPU.

    See Also
    --------
    attnext.torch.convert : Replaces torch's class by this class in a model.
    attnext.torch.MultiHeadAttention : The layer of *Dive into Deep Learning*.

    Notes
    -----
    torch's Transformer layers use attnext in evaluation mode, too. A forward pre-hook that changes
    nothing keeps them from the fast path that bypasses `self_attn`. If all keys of a query are
    masked, its heads pool 0 and its weights are 0, so no gradient becomes NaN. PyTorch's class does
    this only with ``need_weights=False``; otherwise it returns NaN. For the same seed, dropout
    zeroes other weights than in PyTorch.

    Nested tensors may have any layout, in training and in evaluation. The weights are those of the
    padded tensors, as in PyTorch's class in evaluation: 0 after the end of a sequence.

    ``torch.jit.script`` cannot compile the class, because it computes in C. Use
    ``torch.jit.trace``, ``torch.compile`` or ``torch.export``.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch.nn import MultiheadAttention  # was: from torch.nn import ...
    >>> attention = MultiheadAttention(8, num_heads=2, batch_first=True)
    >>> X, padding = torch.randn(2, 3, 8), torch.tensor([[False] * 3, [False, False, True]])
    >>> output, weights = attention(X, X, X, key_padding_mask=padding)
    >>> output.shape, weights.shape
    (torch.Size([2, 3, 8]), torch.Size([2, 3, 3]))
    >>> bool((weights[1, :, 2] == 0).all())
    True
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if num_heads > 0 and embed_dim % num_heads:
            raise ValueError(f"num_heads is {num_heads}, expected a divisor of {embed_dim}")
        sizes = {"kdim": kdim, "vdim": vdim, "batch_first": batch_first}
        more = {"add_bias_kv": add_bias_kv, "add_zero_attn": add_zero_attn}
        super().__init__(
            embed_dim, num_heads, dropout, bias, **more, **sizes, device=device, dtype=dtype
        )
        keep_off_fused_path(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        keep_off_fused_path(self)

    def __prepare_scriptable__(self) -> NoReturn:
        refuse_script("attnext.torch.nn.MultiheadAttention")

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend with each head, and project the joined results.

        Parameters
        ----------
        query : Tensor, float32, shape (L, E), (L, B, E), or (B, L, E) if `batch_first`
            The queries. They may be a nested tensor of B sequences; then key and value must be
            nested tensors, too.
        key, value : Tensor, float32, shapes (S, kdim) and (S, vdim), and so on
            The keys and their values.
        key_padding_mask : Tensor of bool or float32, shape (B, S) or (S,), optional
            Bools: True for a key that is masked. Floats are added to the scores of the key.
        need_weights : bool, optional
            Return the weights. A call without weights takes less time and memory.
        attn_mask : Tensor of bool or float32, shape (L, S) or (B * num_heads, L, S), optional
            Bools: True where a pair is masked. Floats are added to the scores.
        average_attn_weights : bool, optional
            Return the mean of the weights over the heads, instead of the weights of each head.
        is_causal : bool, optional
            A promise that `attn_mask` is the causal mask. Then `attn_mask` is not read.

        Returns
        -------
        output : Tensor, float32, in the layout of `query`
            The projected results of the heads for each query.
        weights : Tensor, float32, shape (B, L, S) or (B, num_heads, L, S), or None
            The weights after dropout, as in torch; without the axis B if there is no batch.

        Raises
        ------
        TypeError
            An argument or a parameter is not a float32 tensor on the CPU, or has the wrong type.
        ValueError
            An argument has the wrong shape, or `is_causal` is given without `attn_mask`.
        """
        inputs = {"query": query, "key": key, "value": value}
        if any(getattr(x, "is_nested", False) for x in inputs.values()):
            masks = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
            return self._nested(inputs, masks, is_causal, need_weights, average_attn_weights)
        self._check(inputs, key_padding_mask, attn_mask, is_causal)
        batched = query.dim() == 3
        if not batched:
            q, k, v = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            q, k, v = (x.transpose(0, 1) for x in (query, key, value))
        else:
            q, k, v = query, key, value
        output, weights = self._attend(
            q, k, v, key_padding_mask, need_weights, attn_mask, is_causal
        )
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        need_weights: bool,
        attn_mask: Tensor | None,
        is_causal: bool,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Of inputs (B, rows, features): the output and the weights of each head."""
        B, M, N = *query.shape[:2], key.shape[1]
        more_keys = [] if self.bias_k is None else [(self.bias_k, self.bias_v)]
        if self.add_zero_attn:
            more_keys.append((zeros := query.new_zeros(1, 1, self.embed_dim), zeros))
        if is_causal and not more_keys:
            options["causal"] = True
        elif attn_mask is not None:
            shape = attn_mask.shape if attn_mask.dim() == 2 else (B, self.num_heads, M, N)
            _restrict(options, "attn_mask", attn_mask.reshape(shape))
        if padding is not None:
            lens = None if more_keys else lengths_of(padding)
            if lens is None:
                _restrict(options, "key_padding_mask", padding[:, None, None, :])
            else:
                options["valid_lens"] = lens
        options["empty_rows"] = "zero"
        keep, p = None, self.dropout if self.training else 0.0
        if p > 0 and need_weights:  # the weights are returned after it
            shape = B, self.num_heads, M, N + len(more_keys)
            keep = torch.rand(shape, dtype=torch.float32, device=query.device) >= p
            options |= {"dropout_mask": keep, "dropout_p": p if p < 1 else 0.0}
        else:
            options |= dropped(p)
        returned = ("output", "weights") if need_weights else ("output",)
        call = self._with_more_keys if more_keys else self._as_it_is
        made = call([query, key, value], options, returned, *more_keys)
        output, weights = made if need_weights else (made, None)
        if weights is not None and keep is not None:
            weights = weights * keep / (1 - p if p < 1 else 1)
        return output, weights

    def _projections(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of each input."""
        W: Any = self.in_proj_weight
        b: Any = self.in_proj_bias
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = apart if W is None else W.chunk(3)
        return list(zip(weights, [None] * 3 if b is None else b.chunk(3), strict=True))

    def _as_it_is(self, x: list[Tensor], options: dict[str, Any], returned: tuple[str, ...]) -> Any:
        inputs = dict(zip(("queries", "keys", "values"), x, strict=True))
        projections = [*self._projections(), (self.out_proj.weight, self.out_proj.bias)]
        for letter, (W, b) in zip("qkvo", projections, strict=True):
            inputs |= {f"W_{letter}": W} if b is None else {f"W_{letter}": W, f"b_{letter}": b}
        own = {"num_heads": self.num_heads, "num_kv_heads": None}
        return run_as_torch("multi_head_attention", inputs, {**own, **options}, returned)

    def _with_more_keys(
        self,
        x: list[Tensor],
        options: dict[str, Any],
        returned: tuple[str, ...],
        *more: tuple[Any, Any],
    ) -> Any:
        """Keys and values that are no projections of inputs stand behind the others, for all."""
        q, k, v = (functional.linear(*given) for given in _zipped(x, self._projections()))
        B, M, H = q.shape
        k, v = (
            torch.cat([projected, *(pair[i].expand(B, 1, H) for pair in more)], dim=1)
            for i, projected in enumerate((k, v))
        )
        for name, taken in (("mask", True), ("bias", 0.0)):
            if name in options:
                options[name] = functional.pad(options[name], (0, len(more)), value=taken)
        shape = self.num_heads, self.head_dim
        heads = (y.reshape(*y.shape[:2], *shape).transpose(1, 2) for y in (q, k, v))
        inputs = dict(zip(("queries", "keys", "values"), heads, strict=True))
        made = run_as_torch("dot_product_attention", inputs, options, returned)
        pooled, *rest = made if len(returned) > 1 else (made,)
        joined = pooled.transpose(1, 2).reshape(B, M, H)
        output = functional.linear(joined, self.out_proj.weight, self.out_proj.bias)
        return (output, *rest) if rest else output

    def _nested(
        self,
        inputs: dict[str, Any],
        masks: dict[str, Tensor | None],
        is_causal: bool,
        need_weights: bool,
        average_attn_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend within each sequence: inputs are padded, and the padding is not read.

        The weights are (B, L, S) or (B, num_heads, L, S), as torch has them: L and S are those of
        the longest sequence, and the weights of padding are 0.
        """
        for name, x in inputs.items():
            if not getattr(x, "is_nested", False):
                raise TypeError(f"{name} is not nested, expected three nested tensors or none")
        for name, given in masks.items():
            if given is not None:
                raise TypeError(f"{name} is given, expected None with nested tensors")
        if is_causal:
            raise TypeError("is_causal is True, expected False with nested tensors")
        query = inputs["query"]
        rows, keys = ([len(x) for x in inputs[name].unbind()] for name in ("query", "key"))
        q, k, v = (x.to_padded_tensor(0.0) for x in inputs.values())
        options: dict[str, Any] = {}
        ends = None
        if self.bias_k is None and not self.add_zero_attn:
            options["valid_lens"] = keys
        else:
            ends = torch.tensor(keys, device=k.device)[:, None] <= torch.arange(
                k.shape[1], device=k.device
            )
        output, weights = self._attend(q, k, v, ends, need_weights, None, False, **options)
        if weights is not None:
            positions = torch.arange(q.shape[1], device=q.device)
            real = positions < torch.tensor(rows, device=q.device)[:, None]
            weights = torch.where(real[:, None, :, None], weights, 0.0)
            weights = weights.mean(dim=1) if average_attn_weights else weights
        cut = [y[:n] for y, n in zip(output, rows, strict=True)]
        if query.layout == torch.jagged:  # with the structure that sums ask for
            jagged: Tensor = torch.nested.nested_tensor_from_jagged(torch.cat(cut), query.offsets())
            return jagged, weights
        return torch.nested.as_nested_tensor(cut), weights

    def _check(
        self,
        inputs: dict[str, Any],
        padding: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> None:
        """Shapes, in the layout in which they came."""
        for name, x in inputs.items():
            if not isinstance(x, Tensor):
                raise TypeError(f"{name} is of type {type_name(x)}, expected a torch.Tensor")
        refuse_causal_bias("key_padding_mask", padding)
        refuse_causal_bias("attn_mask", attn_mask)
        if torch._C._get_tracing_state() is not None:
            return  # to torch.jit.trace sizes are tensors, and comparing these is a warning
        query, key = inputs["query"], inputs["key"]
        if query.dim() not in (2, 3):
            _refuse("query", query, "(L, E), or three axes with a batch")
        batch_axis = 0 if self.batch_first else 1
        lead = [[], [query.shape[batch_axis]]][query.dim() - 2]
        M = query.shape[1 - batch_axis] if lead else query.shape[0]
        N = key.shape[1 - batch_axis] if lead and key.dim() == 3 else key.shape[0]
        for name, x, rows, size in (
            ("query", query, M, self.embed_dim),
            ("key", key, N, self.kdim),
            ("value", inputs["value"], N, self.vdim),
        ):
            expected = [*lead, rows] if self.batch_first else [rows, *lead]
            if list(x.shape) != [*expected, size]:
                _refuse(name, x, str((*expected, size)))
        if is_causal and attn_mask is None:
            raise ValueError("attn_mask is None, expected the causal mask as is_causal is True")
        heads = self.num_heads * (lead[0] if lead else 1)
        if padding is not None and list(padding.shape) != [*lead, N]:
            _refuse("key_padding_mask", padding, str((*lead, N)))
        if attn_mask is not None and attn_mask.shape not in ((M, N), (heads, M, N)):
            _refuse("attn_mask", attn_mask, f"{(M, N)} or {(heads, M, N)}")


# ---- masks ---------------------------------------------------------------------------------------


def lengths_of(padding: Tensor) -> Tensor | None:
    """Of a mask (B, S), True or -inf where a key is left out: how many are in, if the first ones.

    None if others are, or if the values of a mask are not known: in a graph, in a batch of vmap's,
    on device meta or under FakeTensorMode.
    """
    if are_wanted() or padding.requires_grad or is_wrapped(padding) or is_dispatched(padding):
        return None
    if padding.dtype == torch.bool:
        left_out = padding
    elif padding.is_floating_point():
        left_out = padding == -torch.inf
        if not (left_out | (padding == 0)).all():
            return None
    else:
        return None
    lens = (~left_out).sum(dim=-1)
    behind = torch.arange(padding.shape[-1], device=padding.device) >= lens[:, None]
    return lens if torch.equal(behind, left_out) else None


def _restrict(options: dict[str, Any], name: str, x: Tensor) -> None:
    """Add a mask of torch.nn to the options: of bools, True for what is left out, or of floats."""
    for kind, given in by_kind(name, x).items():
        if kind == "mask":
            options[kind] = options[kind] & ~given if kind in options else ~given
        else:
            options[kind] = options[kind] + given if kind in options else given


def _refuse(name: str, x: Tensor, expected: str) -> None:
    raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {expected}")


def _zipped(x: list[Tensor], parameters: list[tuple[Any, Any]]) -> Iterator[tuple[Any, Any, Any]]:
    for each, (W, b) in zip(x, parameters, strict=True):
        yield each, W, b


# ---- the fused path of torch's Transformer -------------------------------------------------------

_HOOK = "attnext"  # a key that no RemovableHandle has


def _no_change(module: nn.Module, args: Any) -> None:
    """Change nothing: this hook only has to be there."""


def keep_off_fused_path(module: nn.Module) -> None:
    """Register a hook, so that torch calls the module.

    In evaluation torch.nn.TransformerEncoderLayer computes its attention in a fused function of
    torch, without a call of self_attn, unless one of its modules has a forward hook.
    """
    hooks: Any = module._forward_pre_hooks
    hooks[_HOOK] = _no_change


def allow_fused_path(module: nn.Module) -> None:
    """Remove the hook of keep_off_fused_path."""
    hooks: Any = module._forward_pre_hooks
    hooks.pop(_HOOK, None)
