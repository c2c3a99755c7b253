"""Keys and values that stay while queries come step by step, in autograd's graph.

A layer has an object of attnext beside it, which does the work (`Engine`). The keys, once they are
in its memory, stand in the graph as what is projected of them: two tensors without numbers, to
which each call's gradient flows. Autograd adds these up, and the node that made the two takes the
sum through the projection: once, however many calls there were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.autograd import Function

from attnext._gradients import SHARED

from .autograd import first_derivatives
from .rules import check_input, check_transforms
from .tensors import snapshot, split_options, to_array, to_tensor

Arrays = dict[str, NDArray[Any]]


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
    after an optimizer's
    step, make another. It has no copies, and breaks a graph of torch.compile.

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
    _engine: Engine
    _rows: Any  # the attnext.Memory
    _made_with: Arrays  # the parameters that projected the keys, as they were
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
        self._layer, self._engine = layer, layer._engine()
        self._tokens = None
        options = _arrays(valid_lens=valid_lens, mask=mask)
        self._made_with = self._take(lambda rows: self._start(**rows, **options), keys, values)
        return self

    def _start(self, **arrays: Any) -> None:
        self._rows = self._engine.layer.memory(**arrays)

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
        self._take(lambda rows: self._rows.append(**rows, **options), keys, values)

    def _take(self, into_memory: Callable[[Arrays], None], keys: Any, values: Any) -> Arrays:
        """Put new keys and values into the memory and the graph; the parameters they met there."""
        inputs = _checked(keys=keys, values=values)
        keys, values, parameters = self._layer._projected_keys(**inputs)
        arrays = {name: to_array(x) for name, x in parameters.items()}
        with self._engine.lock:
            self._engine.load(arrays)
            into_memory({"keys": to_array(keys), "values": to_array(values)})
        self._follow(keys, values, parameters)
        return {name: x.copy() for name, x in arrays.items()}

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
        if layer.dropout.p != self._engine.layer.dropout:
            raise RuntimeError("dropout.p has changed since the memory was made: make a new memory")

    def _given_to(self, layer: Any) -> tuple[NDArray[Any] | None, ...]:
        """What the attnext.Memory answers, for attnext.explain."""
        self._check_layer(layer)
        with self._engine.lock:
            self._engine.load({name: to_array(x) for name, x in layer._weights_of_keys().items()})
            given: tuple[NDArray[Any] | None, ...] = self._rows._given_to(self._engine.layer)
        return given

    def _attend(
        self, layer: Any, queries: Tensor, options: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        """Output and weights of a call of the layer."""
        self._check_layer(layer)
        shared = {n: options[n] for n in ("bias", "sink") if options.get(n) is not None}
        if isinstance(options.get("scale"), Tensor):
            shared["scale"] = options["scale"]
        inputs = _checked(queries=queries, **shared)
        inputs["queries"], parameters = layer._projected_queries(inputs["queries"])
        masks, rest = split_options({n: x for n, x in options.items() if n not in shared})
        of_keys = {name: to_array(x) for name, x in layer._weights_of_keys().items()}
        step = _Step(self, (tuple(inputs), tuple(parameters), tuple(masks)), of_keys, rest)
        tensors = (*inputs.values(), *parameters.values(), *masks.values())
        tokens = self._tokens or (None, None)
        if not _is_recorded([x for x in (*tensors, *tokens) if x is not None]):
            return step.forward(tensors)[0]
        step.options = snapshot(rest)
        output, weights = _Call.apply(step, *tokens, *tensors)  # type: ignore[no-untyped-call]
        return output, weights


class Engine:
    """The object of attnext that computes for a memory, with the layer's parameters."""

    def __init__(self, make: Callable[..., Any], **arguments: Any) -> None:
        self.lock = Lock()  # from loading the parameters to the end of what uses them
        self.layer = make(**arguments, rng=_Seeds())

    def load(self, parameters: Mapping[str, NDArray[Any]]) -> None:
        own = self.layer.parameters()
        for name, array in parameters.items():
            if own[name].size != array.size:
                raise RuntimeError(
                    f"{name} has another shape than when the memory was made: make a new memory"
                )
            np.copyto(own[name], array.reshape(own[name].shape))


class _Seeds(np.random.Generator):
    """Where an engine's dropout draws its seeds: from torch's own generator, as the layers do."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def integers(self, *_: Any, **__: Any) -> Any:
        return int(torch.randint(2**63 - 1, ()))

    def uniform(self, *bounds_and_shape: Any, **__: Any) -> Any:
        """No initial numbers are drawn: the layer's own take their place."""
        return np.zeros(bounds_and_shape[-1])


# ---- a call --------------------------------------------------------------------------------------


class _Step:
    """A call with a memory: what it takes, and how it goes forward and back."""

    def __init__(
        self,
        memory: Memory,
        names: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
        of_keys: Arrays,
        options: dict[str, Any],
    ) -> None:
        self.engine, self.rows = memory._engine, memory._rows
        self.inputs, self.parameters, self.masks = names  # of the tensors, in their order
        self.of_keys, self.options = of_keys, options
        self.made_with = memory._made_with
        self.training = bool(memory._layer.dropout.training)

    def _named(self, tensors: Iterable[Tensor]) -> tuple[Arrays, Arrays]:
        """Arguments of the call, and parameters."""
        arrays = [to_array(x) for x in tensors]
        named = dict(zip((*self.inputs, *self.parameters, *self.masks), arrays, strict=True))
        return named, {name: named.pop(name) for name in self.parameters}

    def forward(self, tensors: tuple[Tensor, ...]) -> tuple[tuple[Tensor, Tensor | None], Any]:
        """(output, weights), and what the backward goes by."""
        arguments, parameters = self._named(tensors)
        layer = self.engine.layer
        with self.engine.lock:
            self.engine.load({**parameters, **self.of_keys})
            layer.train(self.training)
            output = layer(arguments.pop("queries"), self.rows, **arguments, **self.options)
            weights, context = layer.attention_weights, layer.context
        return (to_tensor(output), None if weights is None else to_tensor(weights)), context

    def backward(
        self, tensors: Iterable[Tensor], d_output: Tensor, d_weights: Tensor | None, context: Any
    ) -> tuple[Arrays, tuple[NDArray[Any], NDArray[Any]]]:
        """Gradients by the names of the tensors; those of projected keys and of values."""
        arguments, parameters = self._named(tensors)
        shared = [name for name in SHARED if name in arguments]
        more: dict[str, Any] = {f"return_grad_{name}": True for name in shared}
        if d_weights is not None:
            more["grad_weights"] = to_array(d_weights)
        layer = self.engine.layer
        with self.engine.lock:
            self.engine.load({**parameters, **self.made_with})
            layer.zero_grad()
            d = layer.backward(to_array(d_output), context=context, **more)
            taken = self.rows._take_sums()
            found = dict(zip(("queries", *shared), d if shared else (d,), strict=True))
            for name, x in parameters.items():
                found[name] = layer.grads[name].reshape(x.shape).copy()
        return found, taken


class _Call(Function):
    @staticmethod
    def forward(ctx: Any, step: _Step, key_token: Any, value_token: Any, *tensors: Tensor) -> Any:
        (output, weights), context = step.forward(tensors)
        ctx.set_materialize_grads(False)
        ctx.step, ctx.context = step, context
        ctx.shape = output.shape
        ctx.save_for_backward(key_token, value_token, *tensors)
        return output, weights

    @staticmethod
    def backward(ctx: Any, d_output: Tensor | None, d_weights: Tensor | None) -> Any:
        step: _Step = ctx.step
        if d_output is None:
            d_output = torch.zeros(ctx.shape)
        key_token, _, *tensors = saved = ctx.saved_tensors
        d, (d_keys, d_values) = step.backward(tensors, d_output, d_weights, ctx.context)
        arrays = [d.get(name) for name in (*step.inputs, *step.parameters, *step.masks)]
        needed = ctx.needs_input_grad[1:]
        if needed[0]:  # C has made the hidden units a multiple of 4
            arrays = [d_keys[..., : key_token.shape[-1]], d_values, *arrays]
        else:
            arrays = [None, None, *arrays]
        wanted = zip(arrays, needed, strict=True)
        gradients = [to_tensor(x) if need and x is not None else None for x, need in wanted]
        return None, *first_derivatives(gradients, *saved, d_output, d_weights)


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
    return torch.zeros(()).expand(*like.shape[:-2], rows, width)


# ---- what is given -------------------------------------------------------------------------------


def _checked(**inputs: Any) -> dict[str, Tensor]:
    tensors = {name: check_input(name, x) for name, x in inputs.items()}
    check_transforms(tensors.values())
    return tensors


def _is_recorded(tensors: Iterable[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _arrays(**options: Any) -> dict[str, Any]:
    """Options that no gradient flows to, as C takes them."""
    tensors, rest = split_options(options)
    return {**rest, **{name: to_array(x) for name, x in tensors.items()}}
