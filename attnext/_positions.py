"""Positions as features: the one function of attnext that is a formula of NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # importing it would take a seventh of the time of `import attnext`
    from numpy.typing import NDArray


def positional_encoding(num_steps: int, num_hiddens: int) -> NDArray[np.float32]:
    """Sines and cosines of each position, from fast waves to slow ones.

    Added to the features of a sequence, they tell attention, which does not see it otherwise,
    where each of them stands.

    Parameters
    ----------
    num_steps : int
        How many positions, from 0 on.
    num_hiddens : int
        Features of each: as many as those they are added to.

    Returns
    -------
    encoding : ndarray of float32, shape (num_steps, num_hiddens)
        A sine in each even column, the cosine of the same angle in the next one; an odd last
        column is a sine.

    Raises
    ------
    TypeError
        A size is not an int.
    ValueError
        A size is negative, or too large for any memory.

    See Also
    --------
    attnext.torch.positional_encoding : The same as a tensor.
    attnext.explain.positional_encoding : The same, step by step.
    attnext.plot.plot_positional_encoding : Some of its columns as curves.

    Notes
    -----
    ``encoding[t, 2 j] = sin(t / 10000**(2 j / num_hiddens))`` and ``encoding[t, 2 j + 1]`` its
    cosine (Vaswani et al. 2017, "Attention is all you need", section 3.5; *Dive into Deep
    Learning*: 1.0 (en) 11.6.3, 2nd ed. (zh) 10.6.3), computed in float64 and rounded. The book's
    class computes the angles in float32, which costs digits where t is large.

    Examples
    --------
    >>> import attnext
    >>> attnext.positional_encoding(3, 4).round(2)
    array([[ 0.  ,  1.  ,  0.  ,  1.  ],
           [ 0.84,  0.54,  0.01,  1.  ],
           [ 0.91, -0.42,  0.02,  1.  ]], dtype=float32)
    """
    from attnext import reference

    return reference.positional_encoding(num_steps, num_hiddens).astype(np.float32)
