"""positional_encoding as a tensor."""

from __future__ import annotations

from operator import index

from torch import Tensor

from attnext import _positions

from .attention import OTHER
from .graphs import constant
from .operators import is_compiling
from .tensors import to_tensor


@constant
def _encoding(num_steps: int, num_hiddens: int) -> Tensor:
    return to_tensor(_positions.positional_encoding(num_steps, num_hiddens))


@OTHER.spelled_out
def positional_encoding(num_steps: int, num_hiddens: int) -> Tensor:
    """Return sines and cosines of each position, with decreasing frequencies.

    Notes
    -----
    The result is ``P[0]`` of ``PositionalEncoding`` in *Dive into Deep Learning* (1.0 (en) 11.6.3,
    2nd ed. (zh) 10.6.3). It has no gradient and contains no random numbers.

    Examples
    --------
    >>> import torch
    >>> from attnext.torch import positional_encoding
    >>> X = torch.zeros(2, 3, 4)
    >>> (X + positional_encoding(3, 4))[0]
    tensor([[ 0.0000,  1.0000,  0.0000,  1.0000],
            [ 0.8415,  0.5403,  0.0100,  0.9999],
            [ 0.9093, -0.4161,  0.0200,  0.9998]])
    """
    if is_compiling():  # a graph for each size, where it could leave them open
        num_steps, num_hiddens = index(num_steps), index(num_hiddens)
    return _encoding(num_steps, num_hiddens)
