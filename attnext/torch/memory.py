"""Keys and values that stay while queries come step by step, in autograd's graph.

An `attnext.Memory` that belongs to no layer has the values; the layer's function reads it. The
projected keys and values are in the graph as two tokens (memory_graph.py). Autograd adds the
gradients of all calls up at the tokens, and from there the sum goes through the projection once.

A memory is a chain of states, and its value is the last one. A state does not change, except that
an append adds the next state to it. A call reads one state, so its keys and its tokens belong
together. There is no lock: threads, signal handlers and finalisers may call and append while
another call or append runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import compress
from math import prod
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.autograd import Function

from attnext import _core, _wrong

from .autograd import first_derivatives
from .calls import RULES, Call, call_of, forward, keep, recorded, take_learned
from .memory_graph import Parts, Tokens, is_recorded, joined, tokens_of
from .rules import check_input, check_values, stand_for_more
from .tensors import by_argument, snapshot, split_options, to_array, zeros_unless

Arrays = dict[str, NDArray[Any]]
_NO_TOKENS = None, None
_FIRST_DERIVATIVES = (
    "a Memory does not work under torch.func (vmap, grad, jvp, ...) or in forward mode: use "
    "backward() or torch.autograd.grad, for first derivatives"
)


class _State(NamedTuple):
    """A memory between two appends."""

    rows: Any  # the attnext.Memory; the append that claims this state may add keys to it
    now: Any  # the attnext.Memory as it was when this state was created
    parts: Parts
    # "rows": the append that adds to rows; "next": the state that follows; "tokens": those of all
    # parts. Each is set once, by dict.setdefault, which is atomic: of two threads one sets it.
    claims: dict[str, Any]


def _parts_after(state: _State, rows: int, tokens: Tokens) -> Parts:
    """Return the parts of a state that follows: those of `state`, and these rows."""
    before = state.parts
    if (joined_tokens := state.claims.get("tokens")) is not None:
        before = Parts(None, len(state.now), joined_tokens)
    if before.before is None and all(x is None for x in (*before.tokens, *tokens)):
        return Parts(None, before.rows + rows, tokens)
    return Parts(before, rows, tokens)


def _tokens(state: _State) -> Tokens:
    """Return the tokens of all keys and values of a state, the same ones for every call."""
    tokens: Tokens | None = state.claims.get("tokens")
    if tokens is None:
        tokens = state.claims.setdefault("tokens", joined(state.parts))
    return tokens


class Memory:
    """Keys and values, projected once and stored for many calls of a layer.

    ``layer.memory(keys, values, valid_lens)`` creates a memory. Call ``layer(queries, memory)`` as
    often as needed. ``len(memory)`` is the number of its keys.

    See Also
    --------
    attnext.Memory : The same class for arrays.

    Notes
    -----
    A call with a memory returns bit for bit the same output as a call with the keys and values.
    There is one difference: the M queries have the positions of the last M keys, so the diagonal of
    `causal` is shifted by N - M. Gradients flow to the keys, the values and the layer's parameters.
    The backward pass goes through the projection of the keys only once for all calls.

    A memory belongs to one layer and to the parameters that projected its keys. Create a new memory
    after an optimizer's step, because a call with the old one raises RuntimeError. attnext notices
    every change that torch's version counter counts. It notices a write through ``.data`` or a
    NumPy array only if the write changes a whole row or column. A memory cannot be copied or
    pickled, and it breaks a graph of torch.compile.

    Threads may call and append at the same time, and so may a signal handler or a finaliser that
    interrupts an append. No append is lost: its keys follow those of the appends that ended
    before. A call uses the keys of all appends that ended before it began. An append that meets
    another one at work copies and projects the keys again: it takes O(N) time.

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
    _sizes: tuple[str, tuple[int, ...]]  # the score, and the sizes of its layer
    _made_with: Arrays  # copies of the parameters that projected the keys
    _seen: dict[str, _Seen]  # the layer's parameters when they were last compared with the copies
    _state: _State  # the last state, or one before it: read it through _last()

    def __init__(self) -> None:
        raise TypeError(
            "a Memory cannot be created directly: call layer.memory(keys, values, valid_lens)"
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
        """Create the memory that ``layer.memory(...)`` returns."""
        self = cls.__new__(cls)
        self._layer, self._seen, self._sizes = layer, {}, layer._score_and_sizes()
        options = _arrays(valid_lens=valid_lens, mask=mask)
        keys, values, parameters = self._projected(keys, values)
        self._made_with = {name: to_array(x).copy() for name, x in parameters.items()}
        rows = self._new_rows(to_array(keys), to_array(values), *options.values())
        parts = Parts(None, len(rows), tokens_of(keys, values, parameters))
        self._state = _State(rows, rows._now(), parts, {})
        return self

    def _new_rows(self, keys: Any, values: Any, valid_lens: Any, mask: Any) -> Any:
        """Return an attnext.Memory with these keys, which belongs to no layer."""
        return _core.Memory._of(*self._sizes, self._made_with, keys, values, valid_lens, mask)

    def _last(self) -> _State:
        """Return the last state."""
        state = self._state
        while (after := state.claims.get("next")) is not None:
            state = after
        return state

    def __len__(self) -> int:
        return len(self._last().now)

    def __repr__(self) -> str:
        return repr(self._last().now)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Memory cannot be copied or pickled because it belongs to one layer: create another "
            "with layer.memory(keys, values)"
        )

    def append(self, keys: Tensor, values: Tensor, mask: Tensor | ArrayLike | None = None) -> None:
        """Append keys and values to the memory.

        Parameters
        ----------
        keys : Tensor, float32, shape (..., n, Dk)
            The new keys, with the leading axes of the memory.
        values : Tensor, float32, shape (..., n, Dv)
            The new values, one per key.
        mask : Tensor or array_like of bool, optional
            True where queries attend to a key. Its shape broadcasts to (..., 1, n).

        Raises
        ------
        TypeError
            An argument is not a dense float32 tensor on the CPU, or has the wrong type.
        ValueError
            An argument has the wrong shape. The memory is unchanged.
        RuntimeError
            The layer's parameters have changed since the memory was created.

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
        arrays = {"keys": to_array(keys), "values": to_array(values), **options}
        tokens = tokens_of(keys, values, parameters)
        while True:
            state = self._last()
            rows = self._rows_after(state, arrays)
            parts = _parts_after(state, keys.shape[-2], tokens)
            after = _State(rows, rows._now(), parts, {})
            if state.claims.setdefault("next", after) is after:
                break  # else another append was first, and this one follows it
        self._state = after

    def _rows_after(self, state: _State, arrays: dict[str, Any]) -> Any:
        """Return the attnext.Memory of the state with these rows behind its own.

        One append may add to the state's own attnext.Memory. Any other append to the same state
        adds to a copy, because the first may still be at work, or have failed.
        """
        claim = object()
        if state.claims.setdefault("rows", claim) is claim:
            rows = state.rows
        else:
            keys, values, lens, mask = state.now._given_to(None)
            mask = None if mask is None else mask.swapaxes(-1, -2)
            rows = self._new_rows(keys, values, lens, mask)
        rows.append(**arrays)
        return rows

    def _projected(self, keys: Any, values: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Keys and values as they go into the memory, and the parameters that they meet there."""
        projected: tuple[Tensor, Tensor, dict[str, Tensor]]
        projected = self._layer._projected_keys(**_checked(keys=keys, values=values))
        return projected

    def _check(self, parameters: Mapping[str, Tensor]) -> None:
        """Raise RuntimeError unless the parameters equal those that projected the keys."""
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

    def _check_layer(self, layer: Any) -> None:
        if layer is not self._layer:
            raise ValueError(
                "the memory belongs to another layer, expected a memory that this layer created"
            )
        self._check(layer._weights_of_keys())

    def _given_to(self, layer: Any) -> tuple[NDArray[Any] | None, ...]:
        """Return copies of keys, values, valid_lens and mask, for attnext.explain."""
        self._check_layer(layer)
        given: tuple[NDArray[Any] | None, ...] = self._last().now._given_to(None)
        return given

    def _attend(
        self,
        function: str,
        inputs: dict[str, Any],
        options: dict[str, Any],
        returned: tuple[str, ...],
    ) -> Any:
        """Run the function as `run` does, with the memory as keys, values and valid_lens."""
        take_learned(inputs, options)
        inputs = _checked(**inputs)
        more, rest = split_options(options)
        tensors = (*inputs.values(), *more.values())
        state = self._last()
        tokens = _tokens(state) if torch.is_grad_enabled() else _NO_TOKENS
        made = returned
        watched = is_recorded([x for x in (*inputs.values(), *tokens) if x is not None])
        if watched:
            made = recorded(function, returned)
            rest = snapshot(rest)
        rest |= {"keys": state.now, "values": None, **self._made_with}
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
        if key_token is not None and "keys" in d:  # C pads the hidden units to a multiple of 4
            d["keys"] = d["keys"][..., : key_token.shape[-1]]
        gradients = [d[name] if name in wanted else None for name in names]
        return None, *first_derivatives(gradients, *saved, *grads)


def is_memory(x: object) -> TypeGuard[Memory]:
    """True for a Memory, also for one from before importlib.reload replaced the class."""
    cls = type(x)
    return cls is Memory or (cls.__module__ == __name__ and cls.__qualname__ == "Memory")


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
    """Return flat indices, at least one in each row and each column."""
    i = np.arange(max(shape) if prod(shape) else 0)
    return np.ravel_multi_index(tuple(i % n for n in shape), shape) if len(i) else i


# ---- what is given -------------------------------------------------------------------------------


def _check_same(name: str, before: NDArray[Any], now: NDArray[Any]) -> None:
    """Raise RuntimeError unless all bits are equal, so NaN equals the same NaN."""
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
            hint = "a Memory has no other dtype"
            raise TypeError(f"{name} has dtype {x.dtype}, expected torch.float32: {hint}")
    return tensors


def _arrays(**options: Any) -> dict[str, Any]:
    """Options that no gradient flows to, as C takes them, in their order."""
    tensors, rest = split_options(options)
    arrays = {**rest, **{name: to_array(x) for name, x in tensors.items()}}
    return {name: arrays[name] for name in options}
