"""masked_softmax and sequence_mask on tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from attnext import _core

from .attention import OTHER
from .autograd import run
from .calls import RULES, Back, Flow, Rule, Saved
from .rules import check_order
from .tensors import on_tensors, zeros_unless

_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@OTHER.spelled_out
def masked_softmax(
    X: Tensor,
    valid_lens: Tensor | ArrayLike | None = None,
    *,
    mask: Tensor | ArrayLike | None = None,
    empty_rows: str = "uniform",
) -> Tensor:
    """Return the softmax over the last axis, with some keys masked.

    Notes
    -----
    ``weights[j] = exp(X[j]) / sum_i exp(X[i])`` for all keys that are not masked; i runs over these
    keys. ``masked_softmax`` of *Dive into Deep Learning* (1.0 (en) 11.3, 2nd ed. (zh) 10.3)
    computes the same.

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


@OTHER.spelled_out
def sequence_mask(X: Tensor, valid_len: Tensor | ArrayLike, value: float = 0.0) -> Tensor:
    """Copy a batch of sequences and overwrite the steps after each sequence's length.

    Notes
    -----
    Like ``sequence_mask`` of *Dive into Deep Learning* (1.0 (en) 11.3, 2nd ed. (zh) 10.3), but for
    any number of axes, and without writing into `X`. Integers and bools are converted to float32,
    so the result is float32; d2l's function keeps the dtype of `X`.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import sequence_mask
    >>> sequence_mask(torch.tensor([[1.0, 2, 3], [4, 5, 6]]), torch.tensor([1, 2]), value=-1)
    tensor([[ 1., -1., -1.],
            [ 4.,  5., -1.]])
    """
    check_order("sequence_mask", X, valid_len, "valid_len")
    if getattr(X, "dtype", None) in _INTEGERS:
        X = X.float()
    options = {"valid_len": valid_len, "value": value}
    copy: Tensor = run("sequence_mask", {"X": X}, options, ("copy",))
    return copy


# ---- backward ------------------------------------------------------------------------------------


def _softmax_gradients(
    function: str, saved: Saved, options: Mapping[str, Any], flow: Flow, wanted: Sequence[str]
) -> Saved:
    # forward was: weights = softmax(X), whose gradient needs the weights alone
    grad = zeros_unless(flow["weights"], saved["weights"].shape)
    arguments = {"grad_output": grad, **saved, **options}
    return {"X": on_tensors(_core.masked_softmax_backward, arguments)}


def _mask_gradients(
    function: str, saved: Saved, options: Mapping[str, Any], flow: Flow, wanted: Sequence[str]
) -> Saved:
    # forward was: copy = X, and value beyond the lengths; so now: the gradient, and 0 there
    arguments = {"X": flow["copy"], **saved, **options, "value": 0.0}
    return {"X": on_tensors(_core.sequence_mask, arguments)}


RULES["masked_softmax"] = Rule(
    gradients=_softmax_gradients,
    shapes=lambda x: {"weights": x["X"].shape},
    drops=("X",),
    back=lambda function, wanted: Back("masked_softmax_backward", {}, ("X",)),
)
RULES["sequence_mask"] = Rule(
    gradients=_mask_gradients,
    shapes=lambda x: {"copy": x["X"].shape},
    drops=("X", "copy"),
)
