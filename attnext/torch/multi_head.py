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
# For each input: the letter of its projection, the letter of its rows, and the name of its size.
_PROJECTED = {
    "queries": ("q", "M", "query_size"),
    "keys": ("k", "N", "key_size"),
    "values": ("v", "N", "value_size"),
}


class MultiHeadAttention(Layer):
    """Multi-head attention, with the parameters and the call of d2l's layer.

    Both signatures of d2l work: ``MultiHeadAttention(key_size, query_size, value_size, num_hiddens,
    num_heads, dropout, bias)`` of the Chinese edition (2nd), and ``MultiHeadAttention(num_hiddens,
    num_heads, dropout, bias)`` of the English edition (1.0), which takes the three sizes from its
    first call.

    Parameters
    ----------
    key_size : int
        Number of features of a key, Dk. Give all three sizes or none.
    query_size : int
        Number of features of a query, Dq.
    value_size : int
        Number of features of a value, Dv.
    num_hiddens : int
        Number of features of all heads together and of the output, a multiple of `num_heads`.
    num_heads : int
        Number of heads.
    dropout : float, optional
        Probability, 0 <= dropout < 1, that dropout zeroes a weight in training.
    bias : bool, optional
        Add biases to the four linear layers.
    num_kv_heads : int, optional
        Number of heads of keys and values, a divisor of `num_heads`; `num_heads` by default. If it
        is smaller, groups of neighbouring query heads share one key head.

    Attributes
    ----------
    W_q, W_k, W_v, W_o : torch.nn.Linear
        The projections of queries, keys, values and of the joined heads. Without sizes they are
        torch.nn.LazyLinear until the first call.
    attention : DotProductAttention
        Has the dropout layer. Its ``attention_weights`` are the last weights in d2l's shape,
        (B * num_heads, M, N).
    attention_weights : Tensor, shape (..., num_heads, M, N), or None
        The weights of the last call, before dropout. They have gradients, so a loss may use them.

    See Also
    --------
    attnext.torch.multi_head_attention : The function that the layer calls.
    attnext.MultiHeadAttention : The same layer for arrays.

    Notes
    -----
    The parameters have the names and shapes of the same class in *Dive into Deep Learning* (1.0
    (en) 11.5, 2nd ed. (zh) 10.5). With the same torch seed they also have the same initial values.
    State dicts can be exchanged in both directions. A state dict of torch.nn.MultiheadAttention can
    be loaded, and ``state_dict(layout="torch")`` returns one.

    Without sizes, the first call draws the initial values, unless a state dict was loaded before.
    The notes of `AdditiveAttention` about state dicts and dropout also apply to this layer.

    If gradients are needed, the projected queries, keys and values are stored for the backward
    pass, as in d2l's code.

    The linear layers are not called: their weights are read, parametrizations included. A module
    that does more than multiply by its weight and add its bias is called: a linear layer with
    hooks, LoRA's, a quantised one.

    ``torch.jit.script`` cannot compile the layer, since it computes in C. Use ``torch.jit.trace``,
    ``torch.compile`` or ``torch.export``.

    Examples
    --------
    Self-attention, as in d2l: queries, keys and values are the same.

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
        # In the order of d2l's class, so torch's generator draws the same initial values.
        self.W_q = linear("query_size", num_hiddens)
        self.W_k = linear("key_size", of_keys)
        self.W_v = linear("value_size", of_keys)
        x["pooled"] = None if x["key_size"] is None else num_hiddens
        self.W_o = linear("pooled", num_hiddens)

    @property
    def dropout(self) -> nn.Dropout:  # type: ignore[override]
        """The dropout layer of `attention`, where d2l's class has it."""
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
        """Attend with each head, and project the joined results.

        Parameters
        ----------
        need_weights : bool, optional
            If False, `attention_weights` is None, and no tensor of shape (..., num_heads, M, N) is
            formed.

        Returns
        -------
        output : Tensor, float32, shape (..., M, num_hiddens)
            The projected results of the heads for each query.
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
        """Return the queries for the function, and the parameters of queries and outputs."""
        queries, parameters = self._projected("queries", queries)
        return queries, {**parameters, **self._weights_of("o", parameters["W_q"].dtype)}

    def _projected_keys(self, keys: Tensor, values: Any) -> tuple[Tensor, Any, dict[str, Tensor]]:
        """Return keys and values for the function, and the parameters that project them."""
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
        """Turn lazy projections into linear layers, drawing initial values in d2l's order."""
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
        Return the parameters by name, in d2l's layout or that of torch.nn.MultiheadAttention.

        Parameters
        ----------
        *args, destination, prefix, keep_vars : optional
            As in torch.nn.Module.state_dict.
        layout : {'d2l', 'torch'}, optional
            Names and shapes as in the MultiHeadAttention of *Dive into Deep Learning*, or as in
            torch.nn.MultiheadAttention. The state dict of a model that contains the layer has d2l's
            layout. `load_state_dict` reads both layouts.

        Returns
        -------
        state_dict : dict
            'd2l': ``W_q.weight``, ``W_k.weight``, ``W_v.weight``, ``W_o.weight`` and, with a bias,
            ``W_q.bias`` and so on. 'torch': ``in_proj_weight`` (3 H, H), or ``q_proj_weight``,
            ``k_proj_weight`` and ``v_proj_weight`` if the sizes of queries, keys and values
            differ, ``out_proj.weight`` and, with a bias, ``in_proj_bias`` and ``out_proj.bias``.
            Parameters that are joined are copied.

        Raises
        ------
        ValueError
            torch.nn.MultiheadAttention cannot represent the layer: heads share keys, `query_size`
            is not `num_hiddens`, the layer has no sizes yet, or a projection is not a plain Linear.

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
        """Load a state dict, also one of torch.nn.MultiheadAttention, whose names are converted."""
        from_torch(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        """
        Return the text that `repr` shows before the submodules.

        Returns
        -------
        str
            The number of heads, and the number of key heads if it is different.
        """
        shared = self.num_kv_heads != self.num_heads
        return f"num_heads={self.num_heads}" + f", num_kv_heads={self.num_kv_heads}" * shared


def _heads(num_hiddens: int, num_heads: Any, num_kv_heads: Any) -> tuple[int, int]:
    """Return the numbers of query heads and key heads; they are equal by default."""
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
    """Return weights (..., heads, M, N) as (B * heads, M, N)."""
    return weights if weights.dim() == 3 else weights.flatten(0, -3)
