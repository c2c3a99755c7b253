"""Attention on Dask arrays, for keys that do not fit into the memory of one machine.

The keys are divided into blocks. For each block r, a worker computes attention over the keys of
this block only. It returns the output o_r and the log-sum-exp l_r = log sum_j exp(s_j) of the
scores. Then

    l = log sum_r exp(l_r),    o = sum_r exp(l_r - l) o_r

are the output and the log-sum-exp over all keys, because exp(l_r - l) is the fraction of the total
weight that block r has. Results of blocks are merged in a tree, a few at a time, so no worker needs
more than one block of keys. This is the formula of the online softmax (Milakov & Gimelshein 2018,
"Online normalizer calculation for softmax"), which Rabe & Staats (2021, "Self-attention does not
need O(n^2) memory") use for attention. `attnext.merge_attention` computes it.

The functions have the same names and keywords as in attnext. `queries`, `keys`, `values`, `mask`,
`bias` and gradients are Dask arrays or arrays in memory. An array in memory becomes one block. All
other arguments must be in memory. The results are lazy float32 Dask arrays with a known shape.
Blocks along leading axes (batch, heads) and queries are independent. The feature axis is not
divided. Lengths, masks, causal masks and windows refer to positions in the whole array, not in a
block. A sink is merged like a block with the output 0. The result does not depend on the number of
workers. It differs from the result of `attnext` only by rounding.

Dropout and `out` are not supported.

attnext computes each block with `attnext.get_num_threads()` threads. If a worker runs several tasks
at the same time, set this number to 1: ``client.run(attnext.set_num_threads, 1)``.

Examples
--------
A thousand keys in four blocks, which could be on four machines:

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
    """Return the public names, so that completion does not offer the modules of the package."""
    return __all__
