"""Attention over keys that do not fit one machine, on Dask arrays.

The softmax looks as if it needed all the scores of a query at once, for it divides by their sum.
It does not. Let every worker attend to its own share of the keys, and hand over the output o_r and
the log-sum-exp l_r = log sum_j exp(s_j) of the scores it saw. Then

    l = log sum_r exp(l_r),    o = sum_r exp(l_r - l) o_r

are the output and the log-sum-exp over all keys: exp(l_r - l) is the part of the total weight that
share r has. So parts can be merged, two or four at a time, in a tree, and no worker ever holds more
than a block of the keys. The formula is that of the online softmax (Milakov & Gimelshein 2018,
"Online normalizer calculation for softmax"), used for attention by Rabe & Staats (2021,
"Self-attention does not need O(n^2) memory"); `attnext.merge_attention` computes it.

The functions have the names and keywords of attnext's own. `queries`, `keys`, `values`, `mask`,
`bias` and gradients are Dask arrays, or arrays in memory, which become one block; everything else
is in memory. What comes back is lazy: float32 Dask arrays of known shape, computed by whichever
scheduler runs. Leading axes (batch, heads) and queries are cut as the arguments are, and every
block of them is independent; the features are never cut. Masks mean what they mean for the whole:
lengths, diagonals and windows go across blocks, and a sink is one more part in the merge, whose
output is 0. The result does not depend on the number of
workers; from that of `attnext` it differs by rounding alone.

What is left out: dropout, whose pattern counts pairs across the whole array, and `out`.

attnext computes each block with as many threads as `attnext.get_num_threads` says. On workers that
run several tasks at a time, set that to 1 (`client.run(attnext.set_num_threads, 1)`).

Examples
--------
A thousand keys in four blocks, as if each were another machine's:

>>> import dask.array as da
>>> import numpy as np
>>> import attnext.dask
>>> rng = np.random.default_rng(0)
>>> queries, keys = rng.normal(size=(10, 8)), rng.normal(size=(1000, 8))
>>> values = rng.normal(size=(1000, 3))
>>> K, V = da.from_array(keys, chunks=(250, 8)), da.from_array(values, chunks=(250, 3))
>>> output = attnext.dask.dot_product_attention(queries, K, V)
>>> output.shape, output.dtype
((10, 3), dtype('float32'))
>>> whole = attnext.dot_product_attention(queries, keys, values)
>>> bool(np.allclose(output.compute(), whole, atol=1e-6))
True
"""

from __future__ import annotations

from attnext._hints import suggest_names as _suggest_names
from attnext._needed import needed

with needed(
    "attnext.dask needs Dask, which is not installed: pip install 'dask[array]' distributed",
    "dask",
    "dask.array",
):
    import dask.array  # noqa: F401

from .functions import (
    additive_attention,
    additive_attention_backward,
    cosine_attention,
    cosine_attention_backward,
    dot_product_attention,
    dot_product_attention_backward,
    gaussian_attention,
    gaussian_attention_backward,
)

__all__ = [
    "additive_attention",
    "additive_attention_backward",
    "cosine_attention",
    "cosine_attention_backward",
    "dot_product_attention",
    "dot_product_attention_backward",
    "gaussian_attention",
    "gaussian_attention_backward",
]

_suggest_names(__name__, __all__)


def __dir__() -> list[str]:
    """What completion offers: not the files that this is made of."""
    return __all__
