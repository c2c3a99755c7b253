"""Dot-product, cosine, additive, Gaussian and multi-head attention on tensors."""

from __future__ import annotations

from typing import Unpack

from numpy.typing import ArrayLike
from torch import Tensor

from .attention import TAKEN, TAKEN_BY_HEADS, Attended, HeadsOptions, Options, attend


@TAKEN.spelled_out
def dot_product_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    valid_lens: Tensor | ArrayLike | None = None,
    *,
    scale: Tensor | ArrayLike | None = None,
    **options: Unpack[Options],
) -> Attended:
    """Pool values by the softmax of scaled dot products of queries and keys.

    Notes
    -----
    ``output = softmax(scale * queries @ keys^T + bias) @ values`` (Vaswani et al. 2017, "Attention
    is all you need", equation 1). Gradients flow to `queries`, `keys`, `values`, `bias`,
    `sink` and `scale`.

    Examples
    --------
    The small example of *Dive into Deep Learning* (1.0 (en) 11.3, 2nd ed. (zh) 10.3): all keys are
    equal, so the output is the mean of the valid values for any query.

    >>> import torch
    >>> from attnext.torch import dot_product_attention
    >>> queries = torch.randn(2, 1, 2, requires_grad=True)
    >>> values = torch.arange(40.0).reshape(1, 10, 4).repeat(2, 1, 1)
    >>> output = dot_product_attention(queries, torch.ones(2, 10, 2), values, torch.tensor([2, 6]))
    >>> output[:, 0].detach().round(decimals=3)
    tensor([[ 2.,  3.,  4.,  5.],
            [10., 11., 12., 13.]])
    >>> output.sum().backward()
    >>> queries.grad.shape
    torch.Size([2, 1, 2])
    """
    inputs = {"queries": queries, "keys": keys, "values": values}
    own = {"valid_lens": valid_lens, "scale": scale}
    return attend("dot_product_attention", inputs, own, options)


@TAKEN.spelled_out
def cosine_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    valid_lens: Tensor | ArrayLike | None = None,
    *,
    scale: Tensor | ArrayLike = 1.0,
    eps: float = 1e-8,
    **options: Unpack[Options],
) -> Attended:
    """Pool values by the softmax of cosine similarities of queries and keys.

    Notes
    -----
    ``score(q, k) = scale * q . k / (max(|q|, eps) * max(|k|, eps))`` (Graves, Wayne and Danihelka
    2014, "Neural Turing Machines", equation 6), as ``torch.nn.functional.cosine_similarity``.
    Gradients flow to `queries`, `keys`, `values`, `bias`, `sink` and `scale`.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import cosine_attention
    >>> keys, values = torch.tensor([[3.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0], [5.0]])
    >>> cosine_attention(torch.tensor([[7.0, 0.0]]), keys, values, scale=10)
    tensor([[1.0002]])
    """
    inputs = {"queries": queries, "keys": keys, "values": values}
    own = {"valid_lens": valid_lens, "scale": scale, "eps": eps}
    return attend("cosine_attention", inputs, own, options)


@TAKEN.spelled_out
def additive_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    W_q: Tensor,
    W_k: Tensor,
    w_v: Tensor,
    valid_lens: Tensor | ArrayLike | None = None,
    *,
    b_h: Tensor | None = None,
    **options: Unpack[Options],
) -> Attended:
    """Pool values by the softmax of additive (Bahdanau) scores of queries and keys.

    Notes
    -----
    ``score(q, k) = w_v . tanh(W_q q + W_k k + b_h)`` (Bahdanau, Cho and Bengio 2015, appendix
    A.1.2). Neither pass forms a tensor of shape (M, N, H). Gradients flow to
    `queries`, `keys`, `values`, the four parameters, `bias` and `sink`.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import additive_attention
    >>> queries, keys, values = torch.randn(2, 1, 20), torch.randn(2, 10, 2), torch.randn(2, 10, 4)
    >>> W_q, W_k, w_v = torch.randn(8, 20), torch.randn(8, 2), torch.randn(8, requires_grad=True)
    >>> output = additive_attention(queries, keys, values, W_q, W_k, w_v, torch.tensor([2, 6]))
    >>> output.square().mean().backward()
    >>> output.shape, w_v.grad.shape
    (torch.Size([2, 1, 4]), torch.Size([8]))
    """
    inputs = {"queries": queries, "keys": keys, "values": values}
    inputs |= {"W_q": W_q, "W_k": W_k, "w_v": w_v}
    if b_h is not None:
        inputs["b_h"] = b_h
    return attend("additive_attention", inputs, {"valid_lens": valid_lens}, options)


@TAKEN.spelled_out
def gaussian_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    valid_lens: Tensor | ArrayLike | None = None,
    *,
    w: Tensor | float | None = None,
    sigma: Tensor | float | None = None,
    **options: Unpack[Options],
) -> Attended:
    """Pool values by a Gaussian kernel of the distance between queries and keys.

    Notes
    -----
    ``score(q, k) = -(w * |q - k|)**2 / 2``: the regression of Nadaraya (1964) and Watson (1964)
    with a Gaussian kernel. Gradients flow to `queries`, `keys`, `values`, `w` or `sigma`,
    `bias` and `sink`.

    Examples
    --------
    Compute the gradient of a bandwidth, with observations (x, y) at 0, 1 and 2:

    >>> import torch
    >>> from attnext.torch import gaussian_attention
    >>> x, y = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[5.0], [2.0], [4.0]])
    >>> w = torch.tensor(2.0, requires_grad=True)
    >>> y_hat = gaussian_attention(torch.tensor([[1.5]]), x, y, w=w)
    >>> y_hat.detach().round(decimals=3)
    tensor([[3.0180]])
    >>> y_hat.sum().backward()
    >>> bool(w.grad < 0)
    True
    """
    inputs = {"queries": queries, "keys": keys, "values": values}
    own = {"valid_lens": valid_lens, "w": w, "sigma": sigma}
    return attend("gaussian_attention", inputs, own, options)


@TAKEN_BY_HEADS.spelled_out
def multi_head_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    W_q: Tensor,
    W_k: Tensor,
    W_v: Tensor,
    W_o: Tensor,
    valid_lens: Tensor | ArrayLike | None = None,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    scale: Tensor | ArrayLike | None = None,
    b_q: Tensor | None = None,
    b_k: Tensor | None = None,
    b_v: Tensor | None = None,
    b_o: Tensor | None = None,
    **options: Unpack[HeadsOptions],
) -> Attended:
    """Project queries, keys and values, attend with each head, and project the joined results.

    Notes
    -----
    Vaswani et al. (2017), section 3.2.2; *Dive into Deep Learning* (1.0 (en) 11.5, 2nd ed. (zh)
    10.5). Gradients flow to inputs, weights and biases, `bias`, `sink` and `scale`.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import multi_head_attention
    >>> X, W = torch.randn(2, 5, 12), torch.randn(4, 12, 12, requires_grad=True)
    >>> output = multi_head_attention(X, X, X, *W, torch.tensor([3, 5]), num_heads=4)
    >>> output.square().mean().backward()
    >>> output.shape, W.grad.shape
    (torch.Size([2, 5, 12]), torch.Size([4, 12, 12]))
    """
    inputs = {"queries": queries, "keys": keys, "values": values}
    inputs |= {"W_q": W_q, "W_k": W_k, "W_v": W_v, "W_o": W_o}
    biases = {"b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o}
    inputs |= {name: b for name, b in biases.items() if b is not None}
    own = {"valid_lens": valid_lens, "scale": scale}
    own |= {"num_heads": num_heads, "num_kv_heads": num_kv_heads}
    return attend("multi_head_attention", inputs, own, options, TAKEN_BY_HEADS)
