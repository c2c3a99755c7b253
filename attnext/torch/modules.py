"""The attention layers of *Dive into Deep Learning* as torch modules that compute in C."""

from __future__ import annotations

from typing import Any, Unpack, overload

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from attnext import _core
from attnext._options import as_flag
from attnext.reference.arguments import as_size

from .attention import TAKEN_BY_LAYERS, LayerOptions
from .editions import Editions, checked_dropout
from .layer import Layer
from .memory import Memory, is_memory
from .projections import (
    called,
    is_linear,
    is_undrawn,
    materialize,
    part,
    projected,
    weight,
    weight_of_score,
)
from .rules import check_dtypes, check_input

_EDITIONS = Editions(
    "AdditiveAttention", "key_size query_size num_hiddens dropout", "num_hiddens dropout", "bias"
)


class AdditiveAttention(Layer):
    """Additive (Bahdanau) attention, with the parameters and the call of d2l's layer.

    Both signatures of d2l work: ``AdditiveAttention(key_size, query_size, num_hiddens, dropout)``
    of the Chinese edition (2nd), and ``AdditiveAttention(num_hiddens, dropout)`` of the English
    edition (1.0), which takes the two sizes from its first call.

    Parameters
    ----------
    key_size : int
        Number of features of a key, Dk. Give both sizes or neither.
    query_size : int
        Number of features of a query, Dq.
    num_hiddens : int
        Number of hidden units of the score, H.
    dropout : float, optional
        Probability, 0 <= dropout < 1, that dropout zeroes a weight in training.
    bias : bool, optional
        Add a bias to the hidden units: the parameter `b_h` of shape (H,).

    Attributes
    ----------
    W_q, W_k, w_v : torch.nn.Linear
        The projections. Their weights have the shapes (H, Dq), (H, Dk) and (1, H). Without sizes
        they are torch.nn.LazyLinear until the first call.
    b_h : torch.nn.Parameter or None
        The bias of the hidden units.
    attention_weights : Tensor, shape (..., M, N), or None
        The weights of the last call, before dropout. They have gradients, so a loss may use them.

    See Also
    --------
    attnext.torch.additive_attention : The function that the layer calls.
    attnext.AdditiveAttention : The same layer for arrays.

    Notes
    -----
    ``score(q, k) = w_v . tanh(W_q q + W_k k + b_h)``. The parameters have the names and shapes of
    the same class in *Dive into Deep Learning* (1.0 (en) 11.3, 2nd ed. (zh) 10.3). With the same
    torch seed they also have the same initial values. State dicts can be exchanged in both
    directions, and those of `attnext.AdditiveAttention` can be loaded as tensors. `b_h` is
    initialized like the bias of an nn.Linear with `query_size` features.

    Without sizes, the first call draws the initial values, first those of `W_q`, unless a state
    dict was loaded before. Before the first call, the layer can be copied, moved and pickled, but
    its parameters have no shape. Create an optimizer, or compile with ``fullgraph=True``, after the
    first call, as with every lazy layer of torch.

    Load a saved state dict with ``torch.load(file, weights_only=True)``. A pickled layer needs
    ``weights_only=False``, and attnext must be installed.

    In training, dropout uses a seed drawn from torch's default generator. It zeroes other weights
    than nn.Dropout does with the same generator.

    `W_q`, `W_k` and `w_v` are not called: their weights are read, parametrizations included. A
    module that does more than multiply by its weight is called: a linear layer with hooks or a
    bias, LoRA's, a quantised one. For a `w_v` of another class than torch.nn.Linear the hidden
    units are formed, a tensor of (..., M, N, H), and there is no memory.

    ``torch.jit.script`` cannot compile the layer, since it computes in C. Use ``torch.jit.trace``,
    ``torch.compile`` or ``torch.export``.

    Examples
    --------
    The small example of d2l: all keys are equal, so the output is the mean of the valid values for
    any parameters.

    >>> import torch
    >>> from attnext.torch import AdditiveAttention
    >>> attention = AdditiveAttention(key_size=2, query_size=20, num_hiddens=8, dropout=0.1)
    >>> _ = attention.eval()
    >>> queries, keys = torch.randn(2, 1, 20), torch.ones(2, 10, 2)
    >>> values = torch.arange(40.0).reshape(1, 10, 4).repeat(2, 1, 1)
    >>> attention(queries, keys, values, torch.tensor([2, 6])).detach().round(decimals=3)
    tensor([[[ 2.,  3.,  4.,  5.]],
    <BLANKLINE>
            [[10., 11., 12., 13.]]])
    >>> attention.attention_weights.shape
    torch.Size([2, 1, 10])
    >>> list(attention.state_dict())
    ['W_k.weight', 'W_q.weight', 'w_v.weight']
    """

    W_k: nn.Linear
    W_q: nn.Linear
    w_v: nn.Linear
    b_h: nn.Parameter | None

    @overload
    def __init__(
        self,
        key_size: int,
        query_size: int,
        num_hiddens: int,
        dropout: float = 0.0,
        *,
        bias: bool = False,
    ) -> None: ...

    @overload
    def __init__(self, num_hiddens: int, dropout: float = 0.0, *, bias: bool = False) -> None: ...

    @_EDITIONS.showing_sizes
    def __init__(self, *sizes: Any, bias: bool = False, **named: Any) -> None:
        super().__init__()
        x = _EDITIONS.arguments_of(sizes, named)
        key_size, num_hiddens = x["key_size"], as_size("num_hiddens", x["num_hiddens"], 1)
        # In the order of d2l's class, so torch's generator draws the same initial values.
        if key_size is None:
            self.W_k = nn.LazyLinear(num_hiddens, bias=False)
            self.W_q = nn.LazyLinear(num_hiddens, bias=False)
            self.w_v = nn.LazyLinear(1, bias=False)
        else:
            self.W_k = nn.Linear(as_size("key_size", key_size), num_hiddens, bias=False)
            self.W_q = nn.Linear(as_size("query_size", x["query_size"]), num_hiddens, bias=False)
            self.w_v = nn.Linear(num_hiddens, 1, bias=False)
        self.dropout = nn.Dropout(checked_dropout(x["dropout"]))
        b_h = nn.Parameter(torch.zeros(num_hiddens)) if as_flag("bias", bias) else None
        self.register_parameter("b_h", b_h)
        if key_size is not None:
            self._draw_bias()

    def _draw_bias(self) -> None:
        if self.b_h is not None:
            bound = max(self.W_q.in_features, 1) ** -0.5
            nn.init.uniform_(self.b_h, -bound, bound)

    def _take_sizes(self, queries: Tensor, keys: Tensor, values: Any) -> None:
        """Turn lazy projections into linear layers, drawing initial values in d2l's order."""
        if not isinstance(part(self, "w_v"), LazyModuleMixin):
            return
        queries, keys = check_input("queries", queries), check_input("keys", keys)
        for name, x, axes in (("queries", queries, "M, Dq"), ("keys", keys, "N, Dk")):
            if x.dim() < 2:
                raise ValueError(
                    f"{name} has shape {tuple(x.shape)}, expected two axes or more: (..., {axes})"
                )
        check_dtypes({"queries": queries, "keys": keys, "W_q": self.W_q.weight})
        undrawn = is_undrawn(self.W_q)
        materialize(self.W_q, queries.shape[-1])
        materialize(self.W_k, keys.shape[-1])
        materialize(self.w_v, self.W_q.out_features)
        if undrawn:
            self._draw_bias()

    @TAKEN_BY_LAYERS.spelled_out
    def forward(
        self,
        queries: Tensor,
        keys: Tensor | Memory,
        values: Tensor | None = None,
        valid_lens: Tensor | ArrayLike | None = None,
        *,
        need_weights: bool = True,
        **options: Unpack[LayerOptions],
    ) -> Tensor:
        """Return the weighted average of the values for each query."""
        given = queries, keys, values, valid_lens
        w_v = part(self, "w_v")
        if not (is_memory(keys) or is_linear(w_v) or isinstance(w_v, LazyModuleMixin)):
            return self._call_scoring(given, need_weights, options)
        return self._call("additive_attention", given, {}, need_weights, options)

    def _call_scoring(
        self, given: tuple[Tensor, Any, Any, Any], need_weights: bool, options: LayerOptions
    ) -> Tensor:
        """Compute as d2l's class does, by calling w_v: its scores are the bias of no features."""
        self._taken.check("forward", options)
        queries, keys, values, valid_lens = given
        self._take_sizes(queries, keys, values)
        q, W_q, _ = projected(self, "W_q", "queries", queries, "M", "query_size", None)
        k, W_k, _ = projected(self, "W_k", "keys", keys, "N", "key_size", None)
        q, k = q @ W_q.mT, k @ W_k.mT
        if self.b_h is not None:
            q = q + self.b_h
        if options.get("enable_gqa") and k.dim() > 2:
            k = k.repeat_interleave(q.shape[-3] // max(k.shape[-3], 1), dim=-3)
        # (..., M, 1, H) and (..., 1, N, H)
        scores = called(self, "w_v", torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3)), 1).squeeze(-1)
        softcap, bias = options.get("softcap"), options.get("bias")
        if isinstance(softcap, (int, float)) and softcap > 0:
            scores = softcap * torch.tanh(scores / softcap)
        if bias is not None:
            scores = scores + check_input("bias", bias)
        inputs = {"queries": queries[..., :0], "keys": keys[..., :0], "values": values}
        own = {"scale": 1.0, "valid_lens": valid_lens}
        with_scores: LayerOptions = {**options, "bias": scores}
        return self._attend("dot_product_attention", inputs, own, need_weights, with_scores)

    def _projected_queries(self, queries: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the queries for the function, and all parameters except those of keys."""
        w_v = weight_of_score(self)
        H = w_v.shape[-1]
        queries, W_q, _ = projected(self, "W_q", "queries", queries, "M", "query_size", H)
        parameters = {"W_q": W_q, "w_v": w_v}
        b_h = part(self, "b_h")
        return queries, parameters if b_h is None else {**parameters, "b_h": b_h}

    def _projected_keys(self, keys: Tensor, values: Any) -> tuple[Tensor, Any, dict[str, Tensor]]:
        """Return keys and values for the function, and the parameters that project them."""
        H = getattr(part(self, "w_v"), "in_features", None)
        keys, W_k, _ = projected(self, "W_k", "keys", keys, "N", "key_size", H)
        return keys, values, {"W_k": W_k}

    def _weights_of_keys(self) -> dict[str, Tensor]:
        return {"W_k": weight(self.W_k, self.w_v.in_features)}

    def _score_and_sizes(self) -> tuple[str, tuple[int, ...]]:
        if isinstance(self.w_v, LazyModuleMixin):
            raise RuntimeError(
                "the layer has no sizes yet: call it with queries and keys before memory()"
            )
        H = weight_of_score(self).shape[-1]
        return "additive", (H, weight(self.W_k, H).shape[1], 0, 0, 0)

    def extra_repr(self) -> str:
        """
        Return the text that `repr` shows before the submodules.

        Returns
        -------
        str
            ``bias=True`` if the layer has a bias, otherwise an empty string.
        """
        return "" if self.b_h is None else "bias=True"


class DotProductAttention(Layer):
    """Scaled dot-product attention, with the call of d2l's layer.

    Parameters
    ----------
    dropout : float, optional
        Probability, 0 <= dropout < 1, that dropout zeroes a weight in training.
    scale : float, optional
        The dot products are multiplied by it; ``1 / sqrt(D)`` by default.

    Attributes
    ----------
    scale : float or None
        The scale that was given.
    attention_weights : Tensor, shape (..., M, N), or None
        The weights of the last call, before dropout. They have gradients, so a loss may use them.

    See Also
    --------
    attnext.torch.dot_product_attention : The function that the layer calls.
    attnext.DotProductAttention : The same layer for arrays.

    Notes
    -----
    ``softmax(scale * queries @ keys^T) @ values`` (Vaswani et al. 2017; *Dive into Deep Learning*:
    1.0 (en) 11.3, 2nd ed. (zh) 10.3). In training, dropout uses a seed drawn from torch's default
    generator. It zeroes other weights than nn.Dropout does with the same generator.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import DotProductAttention
    >>> attention = DotProductAttention(dropout=0.5).eval()
    >>> values = torch.arange(8.0).reshape(1, 4, 2)
    >>> attention(torch.eye(2)[None], torch.zeros(1, 4, 2), values, torch.tensor([[1, 3]]))
    tensor([[[0., 1.],
             [2., 3.]]])
    >>> attention.attention_weights
    tensor([[[1.0000, 0.0000, 0.0000, 0.0000],
             [0.3333, 0.3333, 0.3333, 0.0000]]])
    """

    def __init__(self, dropout: float = 0.0, *, scale: float | None = None) -> None:
        super().__init__()
        self.dropout = nn.Dropout(checked_dropout(dropout))
        self.scale = _core.DotProductAttention(scale=scale).scale

    @TAKEN_BY_LAYERS.spelled_out
    def forward(
        self,
        queries: Tensor,
        keys: Tensor | Memory,
        values: Tensor | None = None,
        valid_lens: Tensor | ArrayLike | None = None,
        *,
        scale: Tensor | ArrayLike | None = None,
        need_weights: bool = True,
        **options: Unpack[LayerOptions],
    ) -> Tensor:
        """Return the weighted average of the values for each query."""
        own: dict[str, Any] = {"scale": self.scale if scale is None else scale}
        if is_memory(keys):
            given = queries, keys, values, valid_lens
            return self._call("dot_product_attention", given, own, need_weights, options)
        # the same as _call, but a microsecond faster because nothing is projected
        inputs = {"queries": queries, "keys": keys, "values": values}
        own["valid_lens"] = valid_lens
        return self._attend("dot_product_attention", inputs, own, need_weights, options)

    def _score_and_sizes(self) -> tuple[str, tuple[int, ...]]:
        return "dot_product", (0, 0, 0, 0, 0)

    def extra_repr(self) -> str:
        """
        Return the text that `repr` shows before the submodules.

        Returns
        -------
        str
            The scale, or an empty string if none was given.
        """
        return "" if self.scale is None else f"scale={self.scale}"
