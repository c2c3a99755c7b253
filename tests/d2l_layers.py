"""The attention layers of Dive into Deep Learning, typed anew: 10.3 and 10.5 of the Chinese edition
(2nd), and with the names Lazy..., 11.3 and 11.5 of the English one (1.0)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def masked_softmax(X: Tensor, valid_lens: Tensor | None) -> Tensor:
    if valid_lens is None:
        return torch.softmax(X, -1)
    lens = valid_lens[:, None] if valid_lens.dim() == 1 else valid_lens
    return torch.softmax(X.masked_fill(torch.arange(X.shape[-1]) >= lens[..., None], -1e6), -1)


class Additive(nn.Module):
    """What the two editions have in common; b_h as in attnext."""

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("b_h", None)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> Tensor:
        queries, keys = self.W_q(queries), self.W_k(keys)
        if self.b_h is not None:
            queries = queries + self.b_h
        features = torch.tanh(queries.unsqueeze(2) + keys.unsqueeze(1))
        scores = self.w_v(features).squeeze(-1)
        self.attention_weights = masked_softmax(scores, valid_lens)
        return torch.bmm(self.dropout(self.attention_weights), values)


class AdditiveAttention(Additive):
    def __init__(
        self, key_size: int, query_size: int, num_hiddens: int, dropout: float, bias: bool = False
    ) -> None:
        super().__init__()
        self.W_k = nn.Linear(key_size, num_hiddens, bias=False)
        self.W_q = nn.Linear(query_size, num_hiddens, bias=False)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)
        self.dropout = nn.Dropout(dropout)
        if bias:
            self.b_h = nn.Parameter(torch.linspace(-1, 1, num_hiddens))


class LazyAdditiveAttention(Additive):
    def __init__(self, num_hiddens: int, dropout: float) -> None:
        super().__init__()
        self.W_k = nn.LazyLinear(num_hiddens, bias=False)
        self.W_q = nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = nn.LazyLinear(1, bias=False)
        self.dropout = nn.Dropout(dropout)


class DotProductAttention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> Tensor:
        scores = torch.bmm(queries, keys.transpose(1, 2)) / queries.shape[-1] ** 0.5
        self.attention_weights = masked_softmax(scores, valid_lens)
        return torch.bmm(self.dropout(self.attention_weights), values)


class MultiHead(nn.Module):
    """What the two editions have in common; `transpose_qkv` and `transpose_output` in two lines."""

    num_heads: int

    def split(self, X: Tensor) -> Tensor:
        return X.reshape(*X.shape[:2], self.num_heads, -1).permute(0, 2, 1, 3).flatten(0, 1)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> Tensor:
        q, k = self.split(self.W_q(queries)), self.split(self.W_k(keys))
        v = self.split(self.W_v(values))
        scores = torch.bmm(q, k.transpose(1, 2)) / q.shape[-1] ** 0.5
        if valid_lens is not None:
            valid_lens = torch.repeat_interleave(valid_lens, repeats=self.num_heads, dim=0)
        self.attention_weights = masked_softmax(scores, valid_lens)
        pooled = torch.bmm(self.dropout(self.attention_weights), v)
        pooled = pooled.unflatten(0, (-1, self.num_heads)).permute(0, 2, 1, 3).flatten(2)
        return self.W_o(pooled)


class MultiHeadAttention(MultiHead):
    def __init__(
        self,
        key_size: int,
        query_size: int,
        value_size: int,
        num_hiddens: int,
        num_heads: int,
        dropout: float,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = nn.Dropout(dropout)
        self.W_q = nn.Linear(query_size, num_hiddens, bias=bias)
        self.W_k = nn.Linear(key_size, num_hiddens, bias=bias)
        self.W_v = nn.Linear(value_size, num_hiddens, bias=bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)


class LazyMultiHeadAttention(MultiHead):
    def __init__(
        self, num_hiddens: int, num_heads: int, dropout: float, bias: bool = False
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = nn.Dropout(dropout)
        self.W_q = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_k = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_v = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_o = nn.LazyLinear(num_hiddens, bias=bias)
