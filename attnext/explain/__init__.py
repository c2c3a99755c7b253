"""A computation step by step: what every intermediate is, its shape, its numbers, a sentence.

Each function here is called as its fast twin in ``attnext``, and returns a `Trace`. Printed it is
text, in Jupyter it shows itself as HTML, with the weights as a heat map; ``lang="zh"`` is Chinese.

>>> import numpy as np
>>> from attnext import explain
>>> q, k, v = np.array([[1.0, 0.0]]), np.eye(2), np.array([[10.0], [20.0]])
>>> trace = explain.dot_product_attention(q, k, v, scale=1)
>>> print(trace["weights"])
Attention weights  (1, 2)
   weights = softmax(scores)
   exp(score) over the sum of those in its row, so that each row sums to 1.
<BLANKLINE>
   query\\key       0       1
           0  0.7311  0.2689
>>> trace.output.round(3)
array([[12.689]], dtype=float32)

The steps are computed in float64, by the textbook formulas, from the numbers that the fast function
sees. Weights, output and gradients are the fast function's own, bit for bit, and held against the
steps: if they were further apart than the rounding of float32 allows, it would be a RuntimeError.
A pair that takes no part is shown as ``·`` or hatched, whatever lies there: it is never read.

The files, from the inside out:

    words_steps.py  what is said of each step, in both languages; words.py, every other word
    trace.py        Step and Trace
    tables.py       which part of an array is shown, and how its numbers are written
    text.py         a trace as text of 80 columns
    html.py         a trace as HTML
    accuracy.py     how far float32 may be from float64
    steps.py        collects steps, and makes a trace of them
    scores.py       the steps of each scoring function
    attention.py    the steps that all attentions share
    functions.py    the four attentions
    backward.py     dot_product_attention_backward
    softmax.py      masked_softmax, masked_softmax_backward
    multi_head.py   multi_head_attention
    positions.py    positional_encoding
    layers.py       layer: objects; memories.py, a call with a Memory
"""

from attnext.explain.backward import dot_product_attention_backward
from attnext.explain.functions import (
    additive_attention,
    cosine_attention,
    dot_product_attention,
    gaussian_attention,
)
from attnext.explain.layers import layer
from attnext.explain.multi_head import multi_head_attention
from attnext.explain.positions import positional_encoding
from attnext.explain.softmax import masked_softmax, masked_softmax_backward
from attnext.explain.trace import Step, Trace

__all__ = [
    "Step",
    "Trace",
    "additive_attention",
    "cosine_attention",
    "dot_product_attention",
    "dot_product_attention_backward",
    "gaussian_attention",
    "layer",
    "masked_softmax",
    "masked_softmax_backward",
    "multi_head_attention",
    "positional_encoding",
]


def __dir__() -> list[str]:
    """What completion offers: not the files that this is made of."""
    return __all__
