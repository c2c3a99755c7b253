"""positional_encoding, step by step."""

from __future__ import annotations

import numpy as np

import attnext
from attnext import reference
from attnext.explain.accuracy import TINY, U
from attnext.explain.options import OTHER
from attnext.explain.steps import Steps, check_size
from attnext.explain.trace import Trace


@OTHER.spelled_out
def positional_encoding(num_steps: int, num_hiddens: int, *, lang: str = "en") -> Trace:
    """Explain `attnext.positional_encoding`: positions, frequencies, angles, sines and cosines.

    Notes
    -----
    This is the encoding of Vaswani et al. (2017), section 3.5, as in Dive into Deep Learning (1.0
    (en) 11.6.3, 2nd ed. (zh) 10.6.3). The `queries` argument of `Trace.with_labels` labels the
    positions.

    Examples
    --------
    >>> from attnext import explain
    >>> trace = explain.positional_encoding(4, 6)
    >>> for step in trace.steps:
    ...     print(step.name, step.shape, "", step.formula)
    Positions (4,)  t = arange(4)
    Frequencies (3,)  frequency[j] = 10000^(-2 j / 6)
    Angles (4, 3)  angle[t, j] = t * frequency[j]
    Positional encoding (4, 6)  P[t, 2 j] = sin(angle[t, j]), P[t, 2 j + 1] = cos(angle[t, j])
    """
    arguments = {"num_steps": num_steps, "num_hiddens": num_hiddens}
    steps = Steps("positional_encoding", lang)
    encoding = attnext.positional_encoding(**arguments)
    check_size(encoding.shape)
    t, j = np.arange(num_steps), np.arange((num_hiddens + 1) // 2)
    frequencies = 10000.0 ** (-2 * j / max(num_hiddens, 1))
    steps.add("positions", t, ("position",), num_steps=num_steps)
    steps.add("frequencies", frequencies, ("wave",), num_hiddens=num_hiddens)
    steps.add("angles", np.outer(t, frequencies), ("position", "wave"))
    steps.add("encoding", encoding, ("position", "feature"))
    exact = reference.positional_encoding(**arguments)
    bound = 2 * U * np.abs(exact) + TINY
    return steps.trace(arguments, encoding, encoding, [("encoding", encoding, exact, bound)])
