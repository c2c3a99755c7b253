"""masked_softmax and sequence_mask on tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor

from attnext import _core

from .autograd import run
from .calls import RULES, Arrays, Flow, Rule
from .rules import check_order
from .tensors import zeros_unless


def masked_softmax(
    X: Tensor,
    valid_lens: Tensor | ArrayLike | None = None,
    *,
    mask: Tensor | ArrayLike | None = None,
    empty_rows: str = "uniform",
) -> Tensor:
    """Softmax over the last axis, of which only some keys take part.

    Parameters
    ----------
    X : Tensor, float32, shape (..., M, N)
        Scores of M queries against N keys; one axis, (N,), is a single row.
    valid_lens : Tensor or array_like of integers, optional
        How many keys of a row take part: one int for all rows, one for each entry of the first
        axis, or one for each row. None: all keys.
    mask : Tensor or array_like of bool, optional
        True where a key takes part, of any shape that broadcasts to that of `X`.
    empty_rows : {'uniform', 'zero', 'nan'}, optional
        What a row becomes to which no key is left.

    Returns
    -------
    weights : Tensor, float32, shape (..., M, N)
        Rows sum to 1; exactly 0 for keys that take no part.

    Raises
    ------
    TypeError
        `X` is no dense float32 tensor on the CPU, or an argument is of the wrong kind or dtype.
    ValueError
        An argument has the wrong shape or an impossible value.

    See Also
    --------
    attnext.masked_softmax : The same on arrays, with the options in full.

    Notes
    -----
    ``weights[j] = exp(X[j]) / sum_i exp(X[i])``, j and i over the keys that take part: what
    ``masked_softmax`` of *Dive into Deep Learning* (1.0 (en) 11.3, 2nd ed. (zh) 10.3) means.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import masked_softmax
    >>> X = torch.tensor([[[1.0, 1, 2, 4], [1, 3, 5, 7]]]).log()
    >>> masked_softmax(X, torch.tensor([2]))
    tensor([[[0.5000, 0.5000, 0.0000, 0.0000],
             [0.2500, 0.7500, 0.0000, 0.0000]]])
    """
    check_order("masked_softmax", X, valid_lens, "valid_lens")
    options = {"valid_lens": valid_lens, "mask": mask, "empty_rows": empty_rows}
    weights: Tensor = run("masked_softmax", {"X": X}, options, ("weights",))
    return weights


def sequence_mask(X: Tensor, valid_len: Tensor | ArrayLike, value: float = 0.0) -> Tensor:
    """Copy a batch of sequences, overwriting the steps beyond each one's length.

    Parameters
    ----------
    X : Tensor, float32, shape (B, T, ...)
        B sequences of T steps, two axes or more. It stays as it is.
    valid_len : int, Tensor or array_like of integers, shape (B,)
        How many steps of each sequence are kept; above T means T.
    value : float, optional
        What the others become.

    Returns
    -------
    copy : Tensor, float32, shape (B, T, ...)
        `X`, but `value` at ``[i, t]`` where ``t >= valid_len[i]``; no gradient flows from there.

    Raises
    ------
    TypeError
        `X` is no dense float32 tensor on the CPU, or an argument is of the wrong kind or dtype.
    ValueError
        An argument has the wrong shape, or a length is negative.

    See Also
    --------
    attnext.sequence_mask : The same on arrays.

    Notes
    -----
    What ``sequence_mask`` of *Dive into Deep Learning* (1.0 (en) 11.3, 2nd ed. (zh) 10.3) means,
    for any number of axes; that one writes into `X`.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import sequence_mask
    >>> sequence_mask(torch.tensor([[1.0, 2, 3], [4, 5, 6]]), torch.tensor([1, 2]), value=-1)
    tensor([[ 1., -1., -1.],
            [ 4.,  5., -1.]])
    """
    check_order("sequence_mask", X, valid_len, "valid_len")
    options = {"valid_len": valid_len, "value": value}
    copy: Tensor = run("sequence_mask", {"X": X}, options, ("copy",))
    return copy


# ---- backward ------------------------------------------------------------------------------------


def _softmax_gradients(
    function: str, saved: Arrays, options: Mapping[str, Any], flow: Flow, wanted: Sequence[str]
) -> Arrays:
    # forward was: weights = softmax(X), whose gradient needs the weights alone
    grad = zeros_unless(flow["weights"], saved["weights"].shape)
    return {"X": _core.masked_softmax_backward(grad, **saved, **options)}


def _mask_gradients(
    function: str, saved: Arrays, options: Mapping[str, Any], flow: Flow, wanted: Sequence[str]
) -> Arrays:
    # forward was: copy = X, and value beyond the lengths; so now: the gradient, and 0 there
    grad = flow["copy"]
    assert grad is not None  # or nothing would have come here
    return {"X": _core.sequence_mask(grad, **saved, **{**options, "value": 0.0})}


RULES["masked_softmax"] = Rule(
    gradients=_softmax_gradients,
    shapes=lambda x: {"weights": x["X"].shape},
    drops=("X",),
)
RULES["sequence_mask"] = Rule(
    gradients=_mask_gradients,
    shapes=lambda x: {"copy": x["X"].shape},
    drops=("X", "copy"),
)
