"""Show a computation step by step: formula, shape, numbers and a sentence for every array.

Each function here takes the arguments of the function of the same name in ``attnext`` and returns
a `Trace`. ``print(trace)`` prints text; Jupyter shows a trace as HTML with coloured matrices.
``lang="zh"`` selects Chinese.

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

The steps are computed in float64 with the textbook formulas, from inputs rounded to float32. The
weights, output and gradients that a trace shows are those of the fast function, bit for bit. They
are compared with the steps: a difference larger than float32 rounding allows raises RuntimeError.
Masked pairs are shown as ``·`` or hatched, because their values are never read.

The files, from the inside out:

    words.py        the texts of all steps in both languages, read from texts/
    options.py      the options that all functions take, and their help() texts
    trace.py        Step and Trace
    tables.py       choose the part of an array to show, and format its numbers
    text.py         a trace as text of 80 columns
    html.py         a trace as HTML
    accuracy.py     error bounds of float32 results
    steps.py        collect steps into a trace
    scores.py       the steps of each scoring function
    attention.py    the steps that all attentions share
    gradients.py    the backward pass of each scoring function
    chain.py        the backward pass of softmax and pooling
    backward.py     the steps of the backward pass of each attention
    scores_alone.py the scores without attention, and their backward pass
    parts.py        sequence_mask; merge_attention, merge_attention_backward
    softmax.py      masked_softmax, masked_softmax_backward
    multi_head.py   multi-head attention; multi_head_backward.py: its backward pass
    functions.py    the public attention functions and their backward functions
    positions.py    positional_encoding
    layers.py       layer: calls of layer objects; memories.py: calls with a Memory
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
    """Return the public names, so that completion does not offer the modules of the package."""
    return __all__
