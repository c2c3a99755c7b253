"""The functions of attnext as simple NumPy code in float64, written to be read.

Every function here has the same name, arguments and meaning as the fast function in ``attnext``.
It differs in two ways: it computes and returns float64, and it is slow but short enough to compare
with a textbook. The tests compare the fast functions with these functions, and the gradients of
these functions with central differences.

Every attention here computes one line, for one query at a time::

    output = softmax(score(query, keys)) @ values

The files, starting with the innermost function::

    softmax.py      the softmax of one row; masked_softmax
    score.py        the interface of a score; scores with a scale
    attention.py    the loop over all queries: score, softmax, pooling
    softcap.py      a bound on the scores
    masks.py        the unmasked pairs, computed from lengths, masks and the band; sequence_mask
    band.py         the band of keys around a query: causal and window, with their offset
    sharing.py      arrays that several pairs share: grouped heads, a broadcast bias
    dropout.py      the weights that dropout keeps, computed from the seed with Philox
    options.py      the options that all attentions have
    dot_product.py, cosine.py, additive.py, gaussian.py
                    one score per file, with the public functions for it
    multi_head.py   several heads, with linear layers before and after them
    merge.py        merges attentions over parts of the keys into the attention over all keys
    positions.py    positional_encoding
    arguments.py    checks and converts arguments; used by all other files

Each backward function is next to its forward function and quotes the lines whose gradients it
computes. The imports are relative, so the folder can also be loaded by its path, with NumPy only
and without the compiled module.

Letters: M queries, N keys and values, n <= N unmasked keys of one query, D features (Dq of a query,
Dk of a key, Dv of a value), H hidden units. ``d_x`` is the gradient of the loss with respect to x.
"""

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

try:
    from .._hints import suggest_names as _suggest_names
except ImportError:  # the folder is used without attnext
    pass
else:
    _suggest_names(__name__, __all__)


def __dir__() -> list[str]:
    """Return the public names only, so that completion does not list the files."""
    return __all__
