"""Positional encoding: sines and cosines of a position, added to the features of a token."""

from __future__ import annotations

import numpy as np

from .arguments import Array, as_size
from .options import OTHER


@OTHER.spelled_out
def positional_encoding(num_steps: int, num_hiddens: int) -> Array:
    """Sines and cosines of each position, with frequencies from high to low.

    Notes
    -----
    ``encoding[t, 2 j] = sin(t / 10000**(2 j / num_hiddens))``, and ``encoding[t, 2 j + 1]`` is the
    cosine of the same angle (Vaswani et al. 2017, "Attention is all you need", section 3.5). A
    shift by k positions rotates each pair of columns by an angle that depends on k only.

    Examples
    --------
    >>> from attnext import reference
    >>> reference.positional_encoding(3, 4).round(2)
    array([[ 0.  ,  1.  ,  0.  ,  1.  ],
           [ 0.84,  0.54,  0.01,  1.  ],
           [ 0.91, -0.42,  0.02,  1.  ]])
    """
    num_steps, num_hiddens = as_size("num_steps", num_steps), as_size("num_hiddens", num_hiddens)
    if max(num_steps, 1) * max(num_hiddens, 1) >= 2**60:
        sizes = f"num_steps is {num_steps} and num_hiddens {num_hiddens}"
        raise ValueError(f"{sizes}, expected fewer than 2**60 numbers")
    encoding = np.zeros((num_steps, num_hiddens))
    even = np.arange(0, num_hiddens, 2)
    angles = np.arange(num_steps)[:, None] / 10000 ** (even / max(num_hiddens, 1))
    encoding[:, 0::2] = np.sin(angles)
    encoding[:, 1::2] = np.cos(angles[:, : num_hiddens // 2])  # an odd last column is a sine
    return encoding
