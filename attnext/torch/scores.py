"""The score functions on tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from sys import intern
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from attnext import _core
from attnext._gradients import names_of

from .attention import OTHER, check_shapes, of_numbers
from .autograd import run
from .calls import RULES, Flow, Rule, Saved, Shape
from .tensors import on_tensors

_Softcap: TypeAlias = float | np.floating[Any] | np.integer[Any] | None


@OTHER.spelled_out
def dot_product_scores(
    queries: Tensor,
    keys: Tensor,
    *,
    scale: Tensor | ArrayLike | None = None,
    softcap: _Softcap = None,
) -> Tensor:
    """Return the scaled dot product of every query with every key.

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


@OTHER.spelled_out
def cosine_scores(
    queries: Tensor,
    keys: Tensor,
    *,
    scale: Tensor | ArrayLike = 1.0,
    eps: float = 1e-8,
    softcap: _Softcap = None,
) -> Tensor:
    """Return the scaled cosine between every query and every key.

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


@OTHER.spelled_out
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

    Notes
    -----
    Gradients flow to all tensors. Neither pass forms a tensor of shape (M, N, H).

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


@OTHER.spelled_out
def gaussian_scores(
    queries: Tensor,
    keys: Tensor,
    *,
    w: Tensor | float | None = None,
    sigma: Tensor | float | None = None,
    softcap: _Softcap = None,
) -> Tensor:
    """Return the logarithm of a Gaussian kernel of the distance from every query to every key.

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
    scores: Tensor = run(function, inputs, own, ("scores",))
    return scores


# ---- backward ------------------------------------------------------------------------------------


def _gradients(
    function: str, saved: Saved, options: Mapping[str, Any], flow: Flow, wanted: Sequence[str]
) -> Saved:
    more = [name for name in wanted if name == "scale"]
    asked = {intern(f"return_grad_{name}"): True for name in more}
    arguments = {"grad_output": flow["scores"], **saved, **options, **asked}
    d = on_tensors(getattr(_core, f"{function}_backward"), arguments)
    names = names_of(function.removesuffix("_scores"), False, *more)
    if len(d) < len(names):  # a named tuple has values all the same, None
        names = tuple(name for name in names if name != "values")
    return of_numbers(dict(zip(names, d, strict=True)), saved)


def _shapes(x: dict[str, Any]) -> dict[str, Shape]:
    return {"scores": (*x["queries"].shape[:-1], x["keys"].shape[-2])}


for _score in _core.SCORES:
    RULES[f"{_score}_scores"] = Rule(
        gradients=_gradients, shapes=_shapes, check=check_shapes, drops=("scores",)
    )
