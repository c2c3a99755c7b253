"""The scores alone, on tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from attnext import _core

from .attention import of_bandwidth
from .autograd import run
from .calls import RULES, Arrays, Flow, Rule, Shape


def dot_product_scores(queries: Tensor, keys: Tensor, *, scale: float | None = None) -> Tensor:
    """Scaled dot product of every query with every key.

    Parameters
    ----------
    queries : Tensor, float32, shape (..., M, D)
        M queries; any leading axes (batch, heads), or none.
    keys : Tensor, float32, shape (..., N, D)
        The keys; leading axes as those of `queries`.
    scale : float, optional
        What the dot products are multiplied by, finite; ``1 / sqrt(D)`` by default.

    Returns
    -------
    scores : Tensor, float32, shape (..., M, N)
        ``scale * queries @ keys^T``.

    Raises
    ------
    TypeError
        An input is no dense float32 tensor on the CPU, or `scale` is no number.
    ValueError
        An argument has the wrong shape or an impossible value.

    See Also
    --------
    attnext.dot_product_scores : The same on arrays.
    masked_softmax : From scores to attention weights.

    Notes
    -----
    Gradients flow to `queries` and `keys`.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import dot_product_scores
    >>> queries = torch.tensor([[1.0, 2, 3, 4]], requires_grad=True)
    >>> scores = dot_product_scores(queries, torch.tensor([[1.0, 1, 1, 1], [2, 0, 2, 0]]))
    >>> scores.detach()
    tensor([[5., 4.]])
    >>> scores.sum().backward()
    >>> queries.grad
    tensor([[1.5000, 0.5000, 1.5000, 0.5000]])
    """
    return _scores("dot_product_scores", {"queries": queries, "keys": keys}, {"scale": scale})


def cosine_scores(
    queries: Tensor, keys: Tensor, *, scale: float = 1.0, eps: float = 1e-8
) -> Tensor:
    """Scaled cosine between every query and every key.

    Parameters
    ----------
    queries, keys : Tensor, float32
        Of shapes (..., M, D) and (..., N, D), as in `dot_product_scores`.
    scale : float, optional
        What the cosines are multiplied by, finite.
    eps : float, optional
        A norm counts as at least this, > 0.

    Returns
    -------
    scores : Tensor, float32, shape (..., M, N)
        ``scale * q.k / (max(|q|, eps) * max(|k|, eps))`` of every pair.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_scores`.

    See Also
    --------
    attnext.cosine_scores : The same on arrays.

    Notes
    -----
    Gradients flow to `queries` and `keys`.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import cosine_scores
    >>> cosine_scores(torch.tensor([[3.0, 4]]), torch.tensor([[1.0, 0], [-6, -8], [0, 0]]))
    tensor([[ 0.6000, -1.0000,  0.0000]])
    """
    own = {"scale": scale, "eps": eps}
    return _scores("cosine_scores", {"queries": queries, "keys": keys}, own)


def additive_scores(
    queries: Tensor,
    keys: Tensor,
    W_q: Tensor,
    W_k: Tensor,
    w_v: Tensor,
    *,
    b_h: Tensor | None = None,
) -> Tensor:
    """Additive (Bahdanau) score of every query with every key.

    Parameters
    ----------
    queries, keys : Tensor, float32
        Of shapes (..., M, Dq) and (..., N, Dk), with the same leading axes.
    W_q, W_k, w_v : Tensor, float32
        Of shapes (H, Dq), (H, Dk) and (H,) or (1, H), as in `additive_attention`.
    b_h : Tensor, float32, shape (H,), optional
        Bias of the hidden units.

    Returns
    -------
    scores : Tensor, float32, shape (..., M, N)
        ``w_v . tanh(W_q q + W_k k + b_h)`` of every pair.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_scores`.

    See Also
    --------
    attnext.additive_scores : The same on arrays.

    Notes
    -----
    Gradients flow to all of these tensors. No tensor of shape (M, N, H) is ever formed, in the
    backward neither.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import additive_scores
    >>> half = torch.tensor([[0.5]])
    >>> additive_scores(torch.ones(1, 1), torch.tensor([[-1.0], [0]]), half, half, torch.ones(1))
    tensor([[0.0000, 0.4621]])
    """
    inputs = {"queries": queries, "keys": keys, "W_q": W_q, "W_k": W_k, "w_v": w_v}
    if b_h is not None:
        inputs["b_h"] = b_h
    return _scores("additive_scores", inputs, {})


def gaussian_scores(
    queries: Tensor,
    keys: Tensor,
    *,
    w: Tensor | float | None = None,
    sigma: Tensor | float | None = None,
) -> Tensor:
    """Logarithm of a Gaussian kernel of the distance of every query to every key.

    Parameters
    ----------
    queries, keys : Tensor, float32
        Of shapes (..., M, D) and (..., N, D), as in `dot_product_scores`.
    w, sigma : Tensor or float, optional
        The bandwidth, as in `gaussian_attention`.

    Returns
    -------
    scores : Tensor, float32, shape (..., M, N)
        ``-(w * |q - k|)**2 / 2`` of every pair.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_scores`.

    See Also
    --------
    attnext.gaussian_scores : The same on arrays.

    Notes
    -----
    Gradients flow to `queries`, `keys`, and `w` or `sigma`.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import gaussian_scores
    >>> gaussian_scores(torch.zeros(1, 2), torch.tensor([[0.0, 2], [3, 4]]))
    tensor([[ -2.0000, -12.5000]])
    """
    inputs: dict[str, Any] = {"queries": queries, "keys": keys}
    own: dict[str, Any] = {}
    for name, x in (("w", w), ("sigma", sigma)):  # a tensor is learned
        (inputs if isinstance(x, Tensor) else own)[name] = x
    return _scores("gaussian_scores", inputs, own)


def _scores(function: str, inputs: dict[str, Any], own: dict[str, Any]) -> Tensor:
    scores: Tensor = run(function, inputs, own, ("scores",))
    return scores


# ---- backward ------------------------------------------------------------------------------------


def _gradients(
    function: str, saved: Arrays, options: Mapping[str, Any], flow: Flow, wanted: Sequence[str]
) -> Arrays:
    d = getattr(_core, f"{function}_backward")(flow["scores"], **saved, **options)
    named = d._asdict() if hasattr(d, "_asdict") else zip(("queries", "keys", "w"), d, strict=False)
    return of_bandwidth(dict(named), saved)


def _shapes(x: dict[str, Any]) -> dict[str, Shape]:
    return {"scores": (*x["queries"].shape[:-1], x["keys"].shape[-2])}


for _score in _core.SCORES:
    RULES[f"{_score}_scores"] = Rule(gradients=_gradients, shapes=_shapes, drops=("scores",))
