"""Keys and values that stay while queries come step by step, in autograd's graph.

The numbers are in an `attnext.Memory` of no object, which the layer's function takes as it is at a
call. In the graph stands what is projected of the keys: two tensors without numbers, to which each
call's gradient flows. Autograd adds these up, and the node that made the two takes the sum through
the projection: once, however many calls there were. A call changes nothing of the memory and waits
for nobody, so finalisers, signal handlers and threads may call in the middle of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import compress
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.autograd import Function

from attnext import _core, _wrong

from .autograd import first_derivatives
from .calls import RULES, Call, call_of, forward, keep, recorded, take_learned
from .rules import check_input, check_values, stand_for_more
from .tensors import by_argument, snapshot, split_options, to_array, zeros_unless

Arrays = dict[str, NDArray[Any]]
_FIRST_DERIVATIVES = (
    "a Memory does not work under torch.func (vmap, grad, jvp, ...) or in forward mode: its "
    "derivatives are those of backward() and torch.autograd.grad, and first ones"
)


class Memory:
    """Keys and values that stay while queries come step by step.

    ``layer.memory(keys, values, valid_lens)`` makes one. It goes in the place of keys, values and
    valid lengths of the layer's call, as often as wanted, and ``len(memory)`` is how many keys it
    has.

    See Also
    --------
    attnext.Memory : The same on arrays.

    Notes
    -----
    Gradients flow to the keys, the values and the layer's parameters as in calls with the keys
    themselves, but through the projection of the keys once for all calls. What a call computes is,
    bit for bit, what it computes from the keys and values; only queries count as the last of the
    keys where their place matters: `causal` moves by N - M.

    A memory belongs to the layer that made it, and to the numbers that project keys and values:
    after an optimizer's step, make another, or a call is a RuntimeError. Whatever torch itself
    counts as a change is noticed. What is written past its count, through ``.data`` or a NumPy
    array of the same memory, is if it changes a whole row or column. It has no copies, and breaks a
    graph of torch.compile.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import AdditiveAttention
    >>> attention = AdditiveAttention(key_size=4, query_size=3, num_hiddens=8, dropout=0.1)
    >>> keys, queries = torch.randn(2, 7, 4, requires_grad=True), torch.randn(2, 5, 3)
    >>> memory = attention.memory(keys, keys, torch.tensor([7, 2]))
    >>> steps = [attention(queries[:, t : t + 1], memory) for t in range(5)]
    >>> torch.cat(steps, dim=1).sum().backward()
    >>> keys.grad.shape, attention.W_k.weight.grad.shape
    (torch.Size([2, 7, 4]), torch.Size([8, 4]))
    """

    _layer: Any
    _rows: Any  # the attnext.Memory
    _made_with: Arrays  # the parameters that projected the keys, as they were
    _seen: dict[str, _Seen]  # the layer's own, when they were last compared with these
    _tokens: tuple[Tensor, Tensor] | None  # what stands for keys and values in the graph

    def __init__(self) -> None:
        raise TypeError(
            "a Memory is made by a layer that reads it: layer.memory(keys, values, valid_lens)"
        )

    @classmethod
    def _of(
        cls,
        layer: Any,
        keys: Tensor,
        values: Tensor,
        valid_lens: Tensor | ArrayLike | None,
        mask: Tensor | ArrayLike | None,
    ) -> Memory:
        """What `memory` of a layer makes."""
        self = cls.__new__(cls)
        self._layer, self._seen, self._tokens = layer, {}, None
        score, sizes = layer._score_and_sizes()
        options = _arrays(valid_lens=valid_lens, mask=mask)
        keys, values, parameters = self._projected(keys, values)
        self._made_with = {name: to_array(x).copy() for name, x in parameters.items()}
        arrays = to_array(keys), to_array(values)
        self._rows = _core.Memory._of(score, sizes, self._made_with, *arrays, *options.values())
        self._follow(keys, values, parameters)
        return self

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return repr(self._rows)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Memory cannot be copied or pickled, because it belongs to the layer that made it: "
            "make another from the keys and values"
        )

    def append(self, keys: Tensor, values: Tensor, mask: Tensor | ArrayLike | None = None) -> None:
        """Add keys and values behind those that the memory has.

        Parameters
        ----------
        keys : Tensor, float32, shape (..., n, Dk)
            More keys; leading axes as those of the memory.
        values : Tensor, float32, shape (..., n, Dv)
            The values, one for each key.
        mask : Tensor or array_like of bool, optional
            True where queries may attend to a key, of any shape that broadcasts to (..., 1, n).

        Raises
        ------
        TypeError
            An argument is no dense float32 tensor on the CPU, or of the wrong kind.
        ValueError
            An argument has the wrong shape; the memory is as it was.
        RuntimeError
            The parameters that project the keys are no longer those of the memory.

        Examples
        --------
        >>> import torch
        >>> from attnext.torch import DotProductAttention
        >>> attention = DotProductAttention()
        >>> memory = attention.memory(torch.ones(1, 2), torch.tensor([[5.0]]))
        >>> memory.append(torch.ones(2, 2), torch.tensor([[6.0], [7.0]]))
        >>> attention(torch.ones(1, 2), memory)
        tensor([[6.]])
        """
        options = _arrays(mask=mask)
        keys, values, parameters = self._projected(keys, values)
        self._check(parameters)
        self._rows.append(to_array(keys), to_array(values), **options)
        self._follow(keys, values, parameters)

    def _projected(self, keys: Any, values: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Keys and values as they go into the memory, and the parameters that they meet there."""
        projected: tuple[Tensor, Tensor, dict[str, Tensor]]
        projected = self._layer._projected_keys(**_checked(keys=keys, values=values))
        return projected

    def _check(self, parameters: Mapping[str, Tensor]) -> None:
        """RuntimeError unless they have the numbers of those that projected the keys."""
        seen = self._seen
        maybe = {
            name: x
            for name, x in parameters.items()
            if name not in seen or not seen[name].is_still(x)
        }
        if maybe:
            seen_now = {name: _Seen(x) for name, x in maybe.items()}  # before they are compared
            for name, x in maybe.items():
                _check_same(name, self._made_with[name], to_array(x))
            self._seen = seen | seen_now

    def _follow(self, keys: Tensor, values: Tensor, parameters: Mapping[str, Tensor]) -> None:
        tokens = self._tokens
        if tokens is None:
            if not _is_recorded([keys, values, *parameters.values()]):
                return
            old = len(self) - keys.shape[-2]  # keys that no gradient flows to
            widths = [
                parameters[W].shape[0] if W in parameters else x.shape[-1]
                for W, x in (("W_k", keys), ("W_v", values))
            ]
            tokens = _token(keys, old, widths[0]), _token(values, old, widths[1])
        inputs = (keys, values, *tokens, *parameters.values())
        self._tokens = _Keys.apply(tuple(parameters), *inputs)  # type: ignore[no-untyped-call]

    def _check_layer(self, layer: Any) -> None:
        if layer is not self._layer:
            raise ValueError(
                "the memory was made by another object, expected one that memory() of this object "
                "returned"
            )
        self._check(layer._weights_of_keys())

    def _given_to(self, layer: Any) -> tuple[NDArray[Any] | None, ...]:
        """What the attnext.Memory answers, for attnext.explain."""
        self._check_layer(layer)
        given: tuple[NDArray[Any] | None, ...] = self._rows._given_to(None)
        return given

    def _attend(
        self,
        function: str,
        inputs: dict[str, Any],
        options: dict[str, Any],
        returned: tuple[str, ...],
    ) -> Any:
        """What `run` does, with the memory in the place of keys, values and lengths."""
        take_learned(inputs, options)
        inputs = _checked(**inputs)
        more, rest = split_options(options)
        tensors = (*inputs.values(), *more.values())
        tokens = self._tokens or (None, None)
        made = returned
        watched = _is_recorded([x for x in (*inputs.values(), *tokens) if x is not None])
        if watched:
            made = recorded(function, returned)
            rest = snapshot(rest)
        rest |= {"keys": self._rows._now(), "values": None, **self._made_with}
        call = call_of(function, (*inputs, *more), rest, made, len(returned))
        if watched:
            results = _Call.apply(call, *tokens, *tensors)  # type: ignore[no-untyped-call]
        else:
            results = forward(call, tensors)
        return results[0] if len(returned) == 1 else results


class _Call(Function):
    """A call with a memory. The tokens stand for its keys and values."""

    @staticmethod
    def forward(ctx: Any, call: Call, key_token: Any, value_token: Any, *tensors: Tensor) -> Any:
        made = forward(call, tensors)
        ctx.set_materialize_grads(False)
        ctx.call, ctx.shape = call, made[0].shape
        ctx.save_for_backward(key_token, value_token, *keep(call, tensors, made))
        return made[: call.returned]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        call: Call = ctx.call
        key_token, _, *tensors = saved = ctx.saved_tensors
        names, needed = ("keys", "values", *call.names), ctx.needs_input_grad[1:]
        flow = dict(zip(call.made, grads, strict=False))
        flow["output"] = zeros_unless(flow["output"], ctx.shape)
        wanted = tuple(compress(names, needed))
        d = RULES[call.function].gradients(
            call.function, by_argument(call.kind.kept, tensors), call.options, flow, wanted
        )
        if key_token is not None:  # C has made the hidden units a multiple of 4
            d["keys"] = d["keys"][..., : key_token.shape[-1]]
        gradients = [d[name] if name in wanted else None for name in names]
        return None, *first_derivatives(gradients, *saved, *grads)


# ---- keys and values -----------------------------------------------------------------------------


class _Keys(Function):
    """New keys and values behind others, as what stands for them: both as they are projected."""

    @staticmethod
    def forward(
        ctx: Any,
        names: tuple[str, ...],
        keys: Tensor,
        values: Tensor,
        d_k: Tensor,
        d_v: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.old, ctx.names = d_k.shape[-2], names
        ctx.save_for_backward(*([keys, values, *parameters] if names else []))
        rows = ctx.old + keys.shape[-2]
        return _token(keys, rows, d_k.shape[-1]), _token(values, rows, d_v.shape[-1])

    @staticmethod
    def backward(ctx: Any, d_keys: Tensor | None, d_values: Tensor | None) -> Any:
        found: dict[str, Tensor] = {}
        if d_keys is not None and d_values is not None:
            d = {"keys": d_keys, "values": d_values}
            found = {name: x[..., ctx.old :, :] for name, x in d.items()}
            found |= {f"old {name}": x[..., : ctx.old, :] for name, x in d.items()}
            saved = dict(zip(("keys", "values", *ctx.names), ctx.saved_tensors, strict=False))
            for name, letter in (("keys", "k"), ("values", "v")):
                if f"W_{letter}" in saved:
                    found |= _projection_backward(found[name], name, letter, saved)
        order = ("keys", "values", "old keys", "old values", *ctx.names)
        needed = zip(order, ctx.needs_input_grad[1:], strict=True)
        gradients = [found.get(name) if need else None for name, need in needed]
        return None, *first_derivatives(gradients, *ctx.saved_tensors, d_keys, d_values)


def _projection_backward(
    d: Tensor, name: str, letter: str, saved: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Of keys, W_k and b_k, say; a key that no query was scored against, maybe NaN, is not read."""
    with torch.no_grad():
        x, W = saved[name], saved[f"W_{letter}"]
        used = (d != 0).any(-1)  # NaN is not 0
        rows = d[used]
        d_x = torch.zeros_like(x)
        # forward was: projected = x @ W.T + b
        d_x[used] = rows @ W
        return {name: d_x, f"W_{letter}": rows.T @ x[used], f"b_{letter}": rows.sum(0)}


def _token(like: Tensor, rows: int, width: int) -> Tensor:
    """(..., rows, width), without memory."""
    return like.new_zeros(()).expand(*like.shape[:-2], rows, width)


# ---- what projected the keys ---------------------------------------------------------------------


class _Seen:
    """A parameter when its numbers were compared, of which torch counts the changes.

    What is written past that count is looked for in one number of each row and column.
    """

    def __init__(self, x: Tensor) -> None:
        counted = x.is_contiguous() and not x.is_inference()
        self._tensor, self._version = x, x._version if counted else None
        self._alias = x.detach()  # has the storage: no other gets its address
        self._address, self._stride = x.data_ptr(), x.stride()
        self._numbers, self._places = to_array(x).reshape(-1), _diagonal(x.shape)
        self._sample = self._numbers.take(self._places).tobytes()

    def is_still(self, x: Tensor) -> bool:
        """False: maybe not."""
        return (
            x is self._tensor
            and self._version is not None
            and x._version == self._version
            and x.data_ptr() == self._address
            and x.shape == self._alias.shape
            and x.stride() == self._stride
            and self._numbers.take(self._places).tobytes() == self._sample
        )


@cache
def _diagonal(shape: tuple[int, ...]) -> NDArray[np.intp]:
    """Places in the flat array, one in each row and each column."""
    i = np.arange(max(shape) if prod(shape) else 0)
    return np.ravel_multi_index(tuple(i % n for n in shape), shape) if len(i) else i


# ---- what is given -------------------------------------------------------------------------------


def _check_same(name: str, before: NDArray[Any], now: NDArray[Any]) -> None:
    """Bit by bit: what was NaN and still is has not changed."""
    same_size = now.shape == before.shape
    if not same_size or now.tobytes() != before.tobytes():
        raise _wrong.changed(name, same_size)


def _checked(**inputs: Any) -> dict[str, Tensor]:
    tensors = {name: check_input(name, x) for name, x in inputs.items()}
    for name, x in tensors.items():
        check_values(name, x)
    if stand_for_more(tensors.values()):
        raise RuntimeError(_FIRST_DERIVATIVES)
    for name, x in tensors.items():
        if x.dtype is not torch.float32:
            hint = "a Memory computes in it alone"
            raise TypeError(f"{name} has dtype {x.dtype}, expected torch.float32: {hint}")
    return tensors


def _is_recorded(tensors: Iterable[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _arrays(**options: Any) -> dict[str, Any]:
    """Options that no gradient flows to, as C takes them, in their order."""
    tensors, rest = split_options(options)
    arrays = {**rest, **{name: to_array(x) for name, x in tensors.items()}}
    return {name: arrays[name] for name in options}
