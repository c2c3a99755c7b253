"""The two attention layers of Dive into Deep Learning, section 11.3, transcribed to plain torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def masked_softmax(X: Tensor, valid_lens: Tensor | None) -> Tensor:
    if valid_lens is None:
        return torch.softmax(X, -1)
    lens = valid_lens[:, None] if valid_lens.dim() == 1 else valid_lens
    return torch.softmax(X.masked_fill(torch.arange(X.shape[-1]) >= lens[..., None], -1e6), -1)


class AdditiveAttention(nn.Module):
    """With the bias b_h of attnext's, where asked for."""

    def __init__(
        self, key_size: int, query_size: int, num_hiddens: int, dropout: float, bias: bool = False
    ) -> None:
        super().__init__()
        self.W_k = nn.Linear(key_size, num_hiddens, bias=False)
        self.W_q = nn.Linear(query_size, num_hiddens, bias=False)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)
        self.dropout = nn.Dropout(dropout)
        b_h = nn.Parameter(torch.linspace(-1, 1, num_hiddens)) if bias else None
        self.register_parameter("b_h", b_h)

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
