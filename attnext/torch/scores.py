"""The scores alone, on tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from attnext import _core

from .attention import of_numbers, run_score
from .calls import RULES, Arrays, Flow, Rule, Shape

_Softcap: TypeAlias = float | np.floating[Any] | np.integer[Any] | None


def dot_product_scores(
    queries: Tensor,
    keys: Tensor,
    *,
    scale: Tensor | ArrayLike | None = None,
    softcap: _Softcap = None,
) -> Tensor:
    """Scaled dot product of every query with every key.

    Parameters
    ----------
    queries : Tensor, float32, shape (..., M, D)
        M queries; any leading axes (batch, heads), or none.
    keys : Tensor, float32, shape (..., N, D)
        The keys; leading axes as those of `queries`.
    scale : float or Tensor, optional
        What the dot products are multiplied by, finite; ``1 / sqrt(D)`` by default. A float32
        tensor that broadcasts to ``queries.shape[:-2]`` has a gradient.
    softcap : float, optional
        A bound on the size of scores, > 0: each becomes ``softcap * tanh(score / softcap)``.

    Returns
    -------
    scores : Tensor, float32, shape (..., M, N)
        ``scale * queries @ keys^T``.

    Raises
    ------
    TypeError
        An input is no dense float32 tensor on the CPU, or a number is none.
    ValueError
        An argument has the wrong shape or an impossible value.

    See Also
    --------
    attnext.dot_product_scores : The same on arrays.
    masked_softmax : From scores to attention weights.

    Notes
    -----
    Gradients flow to `queries`, `keys` and `scale`.

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
    own = {"scale": scale, "softcap": softcap}
    return _scores("dot_product_scores", {"queries": queries, "keys": keys}, own)


def cosine_scores(
    queries: Tensor,
    keys: Tensor,
    *,
    scale: Tensor | ArrayLike = 1.0,
    eps: float = 1e-8,
    softcap: _Softcap = None,
) -> Tensor:
    """Scaled cosine between every query and every key.

    Parameters
    ----------
    queries, keys : Tensor, float32
        Of shapes (..., M, D) and (..., N, D), as in `dot_product_scores`.
    scale : float or Tensor, optional
        What the cosines are multiplied by, finite; as in `dot_product_scores`.
    eps : float, optional
        A norm counts as at least this, > 0.
    softcap : float, optional
        As in `dot_product_scores`.

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
    Gradients flow to `queries`, `keys` and `scale`.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import cosine_scores
    >>> cosine_scores(torch.tensor([[3.0, 4]]), torch.tensor([[1.0, 0], [-6, -8], [0, 0]]))
    tensor([[ 0.6000, -1.0000,  0.0000]])
    """
    own = {"scale": scale, "eps": eps, "softcap": softcap}
    return _scores("cosine_scores", {"queries": queries, "keys": keys}, own)


def additive_scores(
    queries: Tensor,
    keys: Tensor,
    W_q: Tensor,
    W_k: Tensor,
    w_v: Tensor,
    *,
    b_h: Tensor | None = None,
    softcap: _Softcap = None,
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
    softcap : float, optional
        As in `dot_product_scores`.

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
    return _scores("additive_scores", inputs, {"softcap": softcap})


def gaussian_scores(
    queries: Tensor,
    keys: Tensor,
    *,
    w: Tensor | float | None = None,
    sigma: Tensor | float | None = None,
    softcap: _Softcap = None,
) -> Tensor:
    """Logarithm of a Gaussian kernel of the distance of every query to every key.

    Parameters
    ----------
    queries, keys : Tensor, float32
        Of shapes (..., M, D) and (..., N, D), as in `dot_product_scores`.
    w, sigma : Tensor or float, optional
        The bandwidth, as in `gaussian_attention`.
    softcap : float, optional
        As in `dot_product_scores`.

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
    own = {"w": w, "sigma": sigma, "softcap": softcap}
    return _scores("gaussian_scores", {"queries": queries, "keys": keys}, own)


def _scores(function: str, inputs: dict[str, Any], own: dict[str, Any]) -> Tensor:
    scores: Tensor = run_score(function, inputs, own, ("scores",))
    return scores


# ---- backward ------------------------------------------------------------------------------------


def _gradients(
    function: str, saved: Arrays, options: Mapping[str, Any], flow: Flow, wanted: Sequence[str]
) -> Arrays:
    scale = [name for name in wanted if name == "scale"]
    asked = {f"return_grad_{name}": True for name in scale}
    d = getattr(_core, f"{function}_backward")(flow["scores"], **saved, **options, **asked)
    names = ("queries", "keys", *(scale or ["w"]))
    named = d._asdict() if hasattr(d, "_asdict") else zip(names, d, strict=False)
    return of_numbers(dict(named), saved)


def _shapes(x: dict[str, Any]) -> dict[str, Shape]:
    return {"scores": (*x["queries"].shape[:-1], x["keys"].shape[-2])}


for _score in _core.SCORES:
    RULES[f"{_score}_scores"] = Rule(gradients=_gradients, shapes=_shapes, drops=("scores",))
