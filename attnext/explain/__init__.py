"""A computation step by step: what every intermediate is, its shape, its numbers, a sentence.

Each function here is called as its fast twin in ``attnext``, and returns a `Trace`. Printed it is
text, in Jupyter it shows itself as HTML, every matrix in colours; ``lang="zh"`` is Chinese.

>>> import numpy as np
>>> from attnext import explain
>>> q, k, v = np.array([[1.0, 0.0]]), np.eye(2), np.array([[10.0], [20.0]])
>>> trace = explain.dot_product_attention(q, k, v, scale=1)
>>> print(trace["weights"])
Attention weights  (1, 2)
   weights = softmax(scores)
   Each weight is exp(score) divided by the sum of exp(score) over the row, so
   each row sums to 1.
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

    words.py        what is said, of each step too, in both languages: texts/
    options.py      what all functions take, and what help() says of them
    trace.py        Step and Trace
    tables.py       which part of an array is shown, and how its numbers are written
    text.py         a trace as text of 80 columns
    html.py         a trace as HTML
    accuracy.py     how far float32 may be from float64
    steps.py        collects steps, and makes a trace of them
    scores.py       the steps of each scoring function
    attention.py    the steps that all attentions share
    gradients.py    how each scoring function passes gradients back
    chain.py        the backward of softmax and pooling
    backward.py     the steps of every backward
    scores_alone.py the scores alone, and their backwards
    parts.py        sequence_mask; merge_attention, merge_attention_backward
    softmax.py      masked_softmax, masked_softmax_backward
    multi_head.py   the steps of several heads; multi_head_backward.py, of their backward
    functions.py    the attentions and their backwards
    positions.py    positional_encoding
    layers.py       layer: objects; memories.py, a call with a Memory
"""

from attnext._hints import suggest_names as _suggest_names
from attnext.explain.functions import (
    additive_attention,
    additive_attention_backward,
    cosine_attention,
    cosine_attention_backward,
    dot_product_attention,
    dot_product_attention_backward,
    gaussian_attention,
    gaussian_attention_backward,
    multi_head_attention,
    multi_head_attention_backward,
)
from attnext.explain.layers import layer
from attnext.explain.parts import merge_attention, merge_attention_backward, sequence_mask
from attnext.explain.positions import positional_encoding
from attnext.explain.scores_alone import (
    additive_scores,
    additive_scores_backward,
    cosine_scores,
    cosine_scores_backward,
    dot_product_scores,
    dot_product_scores_backward,
    gaussian_scores,
    gaussian_scores_backward,
)
from attnext.explain.softmax import masked_softmax, masked_softmax_backward
from attnext.explain.trace import Step, Trace

__all__ = [
    "Step",
    "Trace",
    "additive_attention",
    "additive_attention_backward",
    "additive_scores",
    "additive_scores_backward",
    "cosine_attention",
    "cosine_attention_backward",
    "cosine_scores",
    "cosine_scores_backward",
    "dot_product_attention",
    "dot_product_attention_backward",
    "dot_product_scores",
    "dot_product_scores_backward",
    "gaussian_attention",
    "gaussian_attention_backward",
    "gaussian_scores",
    "gaussian_scores_backward",
    "layer",
    "masked_softmax",
    "masked_softmax_backward",
    "merge_attention",
    "merge_attention_backward",
    "multi_head_attention",
    "multi_head_attention_backward",
    "positional_encoding",
    "sequence_mask",
]

_suggest_names(__name__, __all__)


def __dir__() -> list[str]:
    """What completion offers: not the files that this is made of."""
    return __all__
