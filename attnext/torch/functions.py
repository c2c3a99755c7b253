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

    Parameters
    ----------
    queries : Tensor, float32, shape (..., M, D)
        M queries; any leading axes (batch, heads), or none.
    keys : Tensor, float32, shape (..., N, D)
        The keys; leading axes as those of `queries`.
    values : Tensor, float32, shape (..., N, Dv)
        The values, one for each key.
    valid_lens : Tensor or array_like of integers, optional
        How many keys take part, the first ones: an int, (B,), (B, M) or ``queries.shape[:-1]``.
    scale : float or Tensor, optional
        What the dot products are multiplied by, finite; ``1 / sqrt(D)`` by default. A float32
        tensor that broadcasts to ``queries.shape[:-2]`` has a gradient.
    **options : optional
        As in `attnext.dot_product_attention`.

    Returns
    -------
    output : Tensor, float32, shape (..., M, Dv)
        The values, averaged with the attention weights.
    weights : Tensor, float32, shape (..., M, N)
        Only with `return_weights`: the weights before dropout.
    lse : Tensor, float32, shape (..., M)
        Only with `return_lse`: the log-sum-exp of the scores, -inf where no key takes part.

    Raises
    ------
    TypeError
        An input is no dense float32 tensor on the CPU, an option is a tensor that requires grad,
        or an argument is of the wrong kind or dtype.
    ValueError
        An argument has the wrong shape or an impossible value.

    See Also
    --------
    attnext.dot_product_attention : The same on arrays, with the options in full.

    Notes
    -----
    ``output = softmax(scale * queries @ keys^T + bias) @ values`` (Vaswani et al. 2017, "Attention
    is all you need", equation 1). Gradients flow to `queries`, `keys`, `values`, `bias`,
    `sink` and `scale`.

    Examples
    --------
    The toy example of *Dive into Deep Learning* (1.0 (en) 11.3, 2nd ed. (zh) 10.3): all keys are
    equal, so the output is the mean of the valid values, whatever the queries.

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

    Parameters
    ----------
    queries, keys, values : Tensor, float32
        Of shapes (..., M, D), (..., N, D) and (..., N, Dv), as in `dot_product_attention`.
    valid_lens : Tensor or array_like of integers, optional
        As in `dot_product_attention`.
    scale : float or Tensor, optional
        What the similarities are multiplied by, finite: an inverse temperature; as in
        `dot_product_attention`.
    eps : float, optional
        A norm counts as at least this, > 0.
    **options : optional
        As in `attnext.dot_product_attention`.

    Returns
    -------
    output, weights, lse : Tensor, float32
        As from `dot_product_attention`.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    See Also
    --------
    attnext.cosine_attention : The same on arrays, with the options in full.

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

    Parameters
    ----------
    queries, keys, values : Tensor, float32
        Of shapes (..., M, Dq), (..., N, Dk) and (..., N, Dv), as in `dot_product_attention`; Dq and
        Dk may differ.
    W_q : Tensor, float32, shape (H, Dq)
        Projection of the queries to H hidden units: the weight of a torch.nn.Linear.
    W_k : Tensor, float32, shape (H, Dk)
        Projection of the keys, likewise.
    w_v : Tensor, float32, shape (H,) or (1, H)
        Weight of each hidden unit in the score.
    valid_lens : Tensor or array_like of integers, optional
        As in `dot_product_attention`.
    b_h : Tensor, float32, shape (H,), optional
        Bias of the hidden units.
    **options : optional
        As in `attnext.dot_product_attention`.

    Returns
    -------
    output, weights, lse : Tensor, float32
        As from `dot_product_attention`.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    See Also
    --------
    attnext.additive_attention : The same on arrays, with the options in full.

    Notes
    -----
    ``score(q, k) = w_v . tanh(W_q q + W_k k + b_h)`` (Bahdanau, Cho and Bengio 2015, appendix
    A.1.2). No tensor of shape (M, N, H) is ever formed, in the backward neither. Gradients flow to
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

    Parameters
    ----------
    queries, keys, values : Tensor, float32
        Of shapes (..., M, D), (..., N, D) and (..., N, Dv), as in `dot_product_attention`.
    valid_lens : Tensor or array_like of integers, optional
        As in `dot_product_attention`.
    w : Tensor or float, optional
        Inverse of the bandwidth, finite, a number or a float32 tensor of one element, to which
        its gradient flows; 1 by default.
    sigma : Tensor or float, optional
        The bandwidth itself, ``w = 1 / sigma``, greater than 0; instead of `w`, and likewise.
    **options : optional
        As in `attnext.dot_product_attention`.

    Returns
    -------
    output, weights, lse : Tensor, float32
        As from `dot_product_attention`.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    See Also
    --------
    attnext.gaussian_attention : The same on arrays, with the options in full.

    Notes
    -----
    ``score(q, k) = -(w * |q - k|)**2 / 2``: the regression of Nadaraya (1964) and Watson (1964)
    with a Gaussian kernel. Gradients flow to `queries`, `keys`, `values`, `w` or `sigma`,
    `bias` and `sink`.

    Examples
    --------
    A bandwidth that is learned, from observations (x, y) at 0, 1 and 2:

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
    """Project queries, keys and values, attend with several heads, project what they pooled.

    Parameters
    ----------
    queries, keys, values : Tensor, float32
        Of shapes (..., M, Dq), (..., N, Dk) and (..., N, Dv), with the same leading axes.
    W_q : Tensor, float32, shape (H, Dq)
        Projection of the queries, d = H / num_heads features for each head: the weight of a
        torch.nn.Linear.
    W_k, W_v : Tensor, float32, shapes (Hk, Dk) and (Hk, Dv)
        Projections of keys and values, likewise; Hk = num_kv_heads * d.
    W_o : Tensor, float32, shape (H, H)
        Projection of what the heads pooled, side by side.
    valid_lens : Tensor or array_like of integers, optional
        As in `dot_product_attention`, the same for all heads.
    num_heads : int
        How many heads.
    num_kv_heads : int, optional
        How many heads keys and values have, a divisor of `num_heads`, which is the default.
    scale : float or Tensor, optional
        As in `dot_product_attention`; it broadcasts to (..., num_heads).
    b_q, b_k, b_v, b_o : Tensor, float32, optional
        Biases of the projections, a number for each row of their weights.
    **options : optional
        As in `attnext.dot_product_attention`, for queries of shape ``(..., num_heads, M, d)``.

    Returns
    -------
    output : Tensor, float32, shape (..., M, H)
        For each query, what its heads pooled, projected.
    weights : Tensor, float32, shape (..., num_heads, M, N)
        Only with `return_weights`: those of each head, before dropout.
    lse : Tensor, float32, shape (..., num_heads, M)
        Only with `return_lse`.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    See Also
    --------
    attnext.multi_head_attention : The same on arrays, with the options in full.

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
