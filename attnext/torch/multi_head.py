"""MultiHeadAttention of *Dive into Deep Learning* as a torch module that computes in C."""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from attnext._layouts import is_torch
from attnext._options import as_flag
from attnext.reference.arguments import as_size

from .attention import TAKEN_BY_HEADS_LAYERS, HeadsLayerOptions
from .editions import Editions
from .layer import Layer
from .layouts import check_torch, from_torch, to_torch
from .memory import Memory
from .modules import DotProductAttention
from .projections import called, identity, is_its_weight, materialize, part, projected
from .rules import check_dtypes, check_input

_EDITIONS = Editions(
    "MultiHeadAttention",
    "key_size query_size value_size num_hiddens num_heads dropout bias",
    "num_hiddens num_heads dropout bias",
    "num_kv_heads",
)
# Of each input: the letter of what projects it, its rows, and what has its features.
_PROJECTED = {
    "queries": ("q", "M", "query_size"),
    "keys": ("k", "N", "key_size"),
    "values": ("v", "N", "value_size"),
}


class MultiHeadAttention(Layer):
    """Multi-head attention: the layer of d2l, with the parameters and the call of d2l's.

    ``MultiHeadAttention(key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias)``
    is that of the Chinese edition (2nd), ``MultiHeadAttention(num_hiddens, num_heads, dropout,
    bias)`` that of the English one (1.0), which learns the three sizes from its first call.

    Parameters
    ----------
    key_size : int
        Features of a key, Dk. All three sizes, or none.
    query_size : int
        Features of a query, Dq.
    value_size : int
        Features of a value, Dv.
    num_hiddens : int
        Features of all heads together, a multiple of `num_heads`, and of the output.
    num_heads : int
        How many heads.
    dropout : float, optional
        Probability, 0 <= dropout < 1, that a weight is left out of the pooling, in training.
    bias : bool, optional
        Give the four linear layers biases.
    num_kv_heads : int, optional
        How many heads keys and values have, a divisor of `num_heads`, which is the default: fewer
        are shared by groups of neighbouring heads of queries.

    Attributes
    ----------
    W_q, W_k, W_v, W_o : torch.nn.Linear
        The projections of queries, keys, values and of what the heads pooled. Without sizes each
        is a torch.nn.LazyLinear until the first call.
    attention : DotProductAttention
        Holds the dropout and, for d2l's code, the last weights: ``attention.attention_weights`` is
        of shape (B * num_heads, M, N), as there.
    attention_weights : Tensor, shape (..., num_heads, M, N), or None
        The weights of the last call, before dropout; part of its graph, so a loss may use them.

    See Also
    --------
    attnext.torch.multi_head_attention : The function it calls.
    attnext.MultiHeadAttention : The same on arrays.

    Notes
    -----
    The names, the shapes and, for a given seed of torch, the initial numbers of the parameters are
    those of the class of that edition of *Dive into Deep Learning* (1.0 (en) 11.5, 2nd ed. (zh)
    10.5): state dicts load either way. One of torch.nn.MultiheadAttention loads too, and
    ``state_dict(layout="torch")`` is one.

    Without sizes the numbers are drawn in the first call, unless a state dict was loaded before,
    as in `AdditiveAttention`. What is said there of state dicts and dropout holds here.

    With gradients, what the projections made is kept for the backward, as d2l's code does.

    The linear layers are not called: their weights are read, parametrizations included. A module
    that does more than multiply by its weight and add its bias is called: a linear layer with
    hooks, LoRA's, a quantised one.

    ``torch.jit.script`` cannot compile the layer, since it computes in C. Use ``torch.jit.trace``,
    ``torch.compile`` or ``torch.export``.

    Examples
    --------
    Self-attention of the book: queries, keys and values are the same.

    >>> import torch
    >>> from attnext.torch import MultiHeadAttention
    >>> attention = MultiHeadAttention(100, 100, 100, 100, num_heads=5, dropout=0.5)
    >>> X, valid_lens = torch.ones(2, 4, 100), torch.tensor([3, 2])
    >>> attention(X, X, X, valid_lens).shape
    torch.Size([2, 4, 100])
    >>> attention.attention_weights.shape
    torch.Size([2, 5, 4, 4])
    >>> list(attention.state_dict())
    ['W_q.weight', 'W_k.weight', 'W_v.weight', 'W_o.weight']
    """

    _taken = TAKEN_BY_HEADS_LAYERS
    attention: DotProductAttention
    W_q: nn.Linear
    W_k: nn.Linear
    W_v: nn.Linear
    W_o: nn.Linear

    @overload
    def __init__(
        self,
        key_size: int,
        query_size: int,
        value_size: int,
        num_hiddens: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = False,
        *,
        num_kv_heads: int | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        num_hiddens: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = False,
        *,
        num_kv_heads: int | None = None,
    ) -> None: ...

    @_EDITIONS.showing_sizes
    def __init__(self, *sizes: Any, num_kv_heads: int | None = None, **named: Any) -> None:
        super().__init__()
        x = _EDITIONS.arguments_of(sizes, named)
        self.num_hiddens = num_hiddens = as_size("num_hiddens", x["num_hiddens"], 1)
        self.num_heads, self.num_kv_heads = _heads(num_hiddens, x["num_heads"], num_kv_heads)
        bias = as_flag("bias", x["bias"])
        of_keys = num_hiddens // self.num_heads * self.num_kv_heads

        def linear(size: str, outputs: int) -> nn.Linear:
            if x[size] is None:
                return nn.LazyLinear(outputs, bias)
            return nn.Linear(as_size(size, x[size]), outputs, bias)

        self.attention = DotProductAttention(x["dropout"])
        # In the order of d2l's class, in which they draw from torch's generator.
        self.W_q = linear("query_size", num_hiddens)
        self.W_k = linear("key_size", of_keys)
        self.W_v = linear("value_size", of_keys)
        x["pooled"] = None if x["key_size"] is None else num_hiddens
        self.W_o = linear("pooled", num_hiddens)

    @property
    def dropout(self) -> nn.Dropout:  # type: ignore[override]
        """That of the attention, where d2l's class has it."""
        return self.attention.dropout

    @TAKEN_BY_HEADS_LAYERS.spelled_out
    def forward(
        self,
        queries: Tensor,
        keys: Tensor | Memory,
        values: Tensor | None = None,
        valid_lens: Tensor | ArrayLike | None = None,
        *,
        scale: Tensor | ArrayLike | None = None,
        need_weights: bool = True,
        **options: Unpack[HeadsLayerOptions],
    ) -> Tensor:
        """Attend with each head, and project what they pooled.

        Parameters
        ----------
        need_weights : bool, optional
            False leaves `attention_weights` None and saves forming a tensor of
            (..., num_heads, M, N).

        Returns
        -------
        output : Tensor, float32, shape (..., M, num_hiddens)
            For each query, what its heads pooled, projected.
        """
        given = queries, keys, values, valid_lens
        own: dict[str, Any] = {"scale": scale, "num_heads": self.num_heads}
        own["num_kv_heads"] = self.num_kv_heads
        output = self._call("multi_head_attention", given, own, need_weights, options)
        weights = self.attention_weights
        self.attention.attention_weights = None if weights is None else _as_d2l(weights)
        if is_its_weight(part(self, "W_o"), and_bias=True):
            return output
        return called(self, "W_o", output, self.num_hiddens)

    def _projected_queries(self, queries: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """What the function takes for them, and the parameters apart from those of keys."""
        queries, parameters = self._projected("queries", queries)
        return queries, {**parameters, **self._weights_of("o", parameters["W_q"].dtype)}

    def _projected_keys(self, keys: Tensor, values: Any) -> tuple[Tensor, Any, dict[str, Tensor]]:
        """What the function takes for them, and the parameters that project them."""
        keys, of_keys = self._projected("keys", keys)
        values, of_values = self._projected("values", values)
        return keys, values, {**of_keys, **of_values}

    def _projected(self, name: str, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        letter, rows, size = _PROJECTED[name]
        width = self._width(letter)
        x, W, b = projected(self, f"W_{letter}", name, x, rows, size, width, takes_bias=True)
        return x, _named(letter, W, b)

    def _width(self, letter: str) -> int:
        """Return the number of outputs of W_q, W_k, W_v or W_o."""
        heads = self.num_kv_heads if letter in "kv" else self.num_heads
        return self.num_hiddens // self.num_heads * heads

    def _weights_of_keys(self) -> dict[str, Tensor]:
        return {**self._weights_of("k"), **self._weights_of("v")}

    def _weights_of(self, letter: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Return the parameters that `_projected` returns, without an input."""
        linear = part(self, f"W_{letter}")
        if is_its_weight(linear, and_bias=True):
            return _named(letter, part(linear, "weight"), part(linear, "bias"))
        return _named(letter, identity(self._width(letter), dtype), None)

    def _score_and_sizes(self) -> tuple[str, tuple[int, ...]]:
        if isinstance(self.W_o, LazyModuleMixin):
            raise RuntimeError(
                "the layer has no sizes yet: call it with queries, keys and values before memory()"
            )
        widths = [W.shape[1] for name, W in self._weights_of_keys().items() if name[0] == "W"]
        return "multi_head", (self.num_hiddens, *widths, self.num_heads, self.num_kv_heads)

    def _take_sizes(self, queries: Tensor, keys: Tensor, values: Any) -> None:
        """Lazy projections become linear layers, and draw their numbers in the order of d2l's."""
        if not isinstance(part(self, "W_o"), LazyModuleMixin):
            return
        inputs = {"queries": queries, "keys": keys, "values": values}
        tensors = [check_input(name, x) for name, x in inputs.items()]
        for name, x in zip(inputs, tensors, strict=True):
            if x.dim() < 2:
                shape = f"{name} has shape {tuple(x.shape)}"
                raise ValueError(f"{shape}, expected two axes or more: (..., rows, features)")
        check_dtypes({**dict(zip(inputs, tensors, strict=True)), "W_q": self.W_q.weight})
        for layer, x in zip((self.W_q, self.W_k, self.W_v), tensors, strict=True):
            materialize(layer, x.shape[-1])
        materialize(self.W_o, self.W_q.out_features)

    def state_dict(
        self,
        *args: Any,
        destination: Any = None,
        prefix: str = "",
        keep_vars: bool = False,
        layout: Literal["d2l", "torch"] = "d2l",
    ) -> Any:
        """
        Give the parameters by name, as every module does, or as torch's own class has them.

        Parameters
        ----------
        *args, destination, prefix, keep_vars : optional
            As in torch.nn.Module.state_dict.
        layout : {'d2l', 'torch'}, optional
            Whose names and shapes: those of the MultiHeadAttention of *Dive into Deep Learning*,
            or those of torch.nn.MultiheadAttention. The state dict of a model that has the layer
            as a part is in the former; `load_state_dict` reads both.

        Returns
        -------
        state_dict : dict
            'd2l': ``W_q.weight``, ``W_k.weight``, ``W_v.weight``, ``W_o.weight`` and, with a bias,
            ``W_q.bias`` and so on. 'torch': ``in_proj_weight`` (3 H, H), or ``q_proj_weight``,
            ``k_proj_weight`` and ``v_proj_weight`` if the sizes of queries, keys and values
            differ, ``out_proj.weight`` and, with a bias, ``in_proj_bias`` and ``out_proj.bias``.
            Where parts are joined to one, they are copied.

        Raises
        ------
        ValueError
            torch's class has no such layer: heads share keys, or `query_size` is not
            `num_hiddens`, or the layer has no sizes yet, or a projection is more than linear.

        Examples
        --------
        >>> import torch
        >>> from attnext.torch import MultiHeadAttention
        >>> attention = MultiHeadAttention(8, 8, 8, 8, num_heads=2)
        >>> theirs = torch.nn.MultiheadAttention(8, 2, bias=False)
        >>> theirs.load_state_dict(attention.state_dict(layout="torch"))
        <All keys matched successfully>
        """
        torch_names = is_torch(layout)
        if torch_names:
            check_torch(self)
        state = super().state_dict(
            *args, destination=destination, prefix=prefix, keep_vars=keep_vars
        )
        if torch_names:
            to_torch(state, prefix or "".join(args[1:2]))  # an older torch's callers: by position
        return state

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Also that of a torch.nn.MultiheadAttention: its names become ours."""
        from_torch(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        """
        What `repr` says beside the submodules.

        Returns
        -------
        str
            The number of heads, and that of keys and values if it is another.
        """
        shared = self.num_kv_heads != self.num_heads
        return f"num_heads={self.num_heads}" + f", num_kv_heads={self.num_kv_heads}" * shared


def _heads(num_hiddens: int, num_heads: Any, num_kv_heads: Any) -> tuple[int, int]:
    """Their numbers, checked; as many of keys as of queries by default."""
    heads = as_size("num_heads", num_heads, 1)
    if num_hiddens % heads:
        expected = f"a multiple of num_heads ({heads})"
        raise ValueError(f"num_hiddens is {num_hiddens}, expected {expected}")
    shared = heads if num_kv_heads is None else as_size("num_kv_heads", num_kv_heads, 1)
    if heads % shared:
        expected = f"a divisor of num_heads ({heads})"
        raise ValueError(f"num_kv_heads is {shared}, expected {expected}")
    return heads, shared


def _named(letter: str, W: Tensor, b: Tensor | None) -> dict[str, Tensor]:
    return {f"W_{letter}": W} if b is None else {f"W_{letter}": W, f"b_{letter}": b}


def _as_d2l(weights: Tensor) -> Tensor:
    """(..., heads, M, N) as (B * heads, M, N)."""
    return weights if weights.dim() == 3 else weights.flatten(0, -3)
