"""positional_encoding, which is computed with NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # importing it would take a seventh of the time of `import attnext`
    from numpy.typing import NDArray


def positional_encoding(num_steps: int, num_hiddens: int) -> NDArray[np.float32]:
    """Sines and cosines of each position, with frequencies from high to low.

    Add them to the features of a sequence. Otherwise attention has no information about the order
    of the sequence.

    Parameters
    ----------
    num_steps : int
        Number of positions. The first position is 0.
    num_hiddens : int
        Number of features per position, the same as in the sequence.

    Returns
    -------
    encoding : ndarray of float32, shape (num_steps, num_hiddens)
        Even columns are sines. Each odd column is the cosine of the angle of the column before it.

    Raises
    ------
    TypeError
        A size is not an int.
    ValueError
        A size is negative, or too large for any memory.

    See Also
    --------
    attnext.torch.positional_encoding : The same as a tensor.
    attnext.explain.positional_encoding : Explains each step of the computation.
    attnext.plot.plot_positional_encoding : Plots some of the columns as curves.

    Notes
    -----
    ``encoding[t, 2 j] = sin(t / 10000**(2 j / num_hiddens))``, and ``encoding[t, 2 j + 1]`` is the
    cosine of the same angle (Vaswani et al. 2017, "Attention is all you need", section 3.5; *Dive
    into Deep Learning*, 11.6.3 in English, 10.6.3 in Chinese). The values are computed in float64
    and rounded to float32. The class in *Dive into Deep Learning* computes the angles in float32,
    which is less accurate for large t.

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
