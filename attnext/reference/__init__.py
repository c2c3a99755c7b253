"""The functions of attnext as plain NumPy code in float64, written to be read.

Every function here has the name, the arguments and the meaning of its fast twin in ``attnext``,
and differs from it in three ways: it computes and returns float64, it takes its time, and it can
be checked by eye against a textbook. The tests hold the fast functions against these, and these
against central differences.

All attention here is one line::

    output = softmax(score(query, keys)) @ values,

worked out for one query at a time. The files, from the inside out::

    softmax.py      the softmax of one row; masked_softmax
    score.py        what a score is, and one with a scale
    attention.py    the walk over all queries: score, softmax, pool
    softcap.py      a cap on scores
    masks.py        who takes part, told from lengths, masks and the diagonal; sequence_mask
    band.py         which keys are near it: causal, its offset and window
    sharing.py      numbers that serve several pairs: heads of keys in groups, a bias
    dropout.py      what dropout keeps, told from the seed by the random numbers of Philox
    options.py      what all attentions take beside their inputs
    dot_product.py, cosine.py, additive.py, gaussian.py
                    a scoring function, and the functions to call, one kind of attention to a file
    multi_head.py   several heads at once, between linear layers
    merge.py        attentions over parts of the keys, merged to the one over all of them
    positions.py    positional_encoding
    arguments.py    the checking of arguments, used by all the others

A backward stands next to its forward and quotes the lines that it reverses. The imports in here
are relative, so that the folder also loads by its path, with NumPy alone and nothing compiled.

Letters: M queries, N keys (= values), n <= N of which take part for the query at hand, D features
(Dq of a query, Dk of a key, Dv of a value), H hidden units. ``d_x`` is the gradient of x.
"""

from attnext._hints import suggest_names as _suggest_names

from .additive import (
    AdditiveGradients,
    additive_attention,
    additive_attention_backward,
    additive_scores,
    additive_scores_backward,
)
from .cosine import (
    cosine_attention,
    cosine_attention_backward,
    cosine_scores,
    cosine_scores_backward,
)
from .dot_product import (
    dot_product_attention,
    dot_product_attention_backward,
    dot_product_scores,
    dot_product_scores_backward,
)
from .gaussian import (
    gaussian_attention,
    gaussian_attention_backward,
    gaussian_scores,
    gaussian_scores_backward,
)
from .masks import sequence_mask
from .merge import merge_attention, merge_attention_backward
from .multi_head import (
    MultiHeadGradients,
    multi_head_attention,
    multi_head_attention_backward,
)
from .positions import positional_encoding
from .softmax import masked_softmax, masked_softmax_backward

__all__ = [
    "AdditiveGradients",
    "MultiHeadGradients",
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
