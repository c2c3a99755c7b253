"""Attention functions and layers for NumPy arrays, computed in C.

attnext has masked softmax and dot-product, cosine, additive, Gaussian and multi-head attention,
each with its backward pass. They compute in float32. The functions and classes are in the compiled
module ``attnext._core``. The other modules are loaded when they are first used:

    attnext.reference           the same functions as NumPy code that is easy to read
    attnext.explain             shows every step of a computation, as text or in a notebook
    attnext.lab                 checks your own code and names the mistake
    attnext.view                an interactive picture of a computation; needs anywidget
    attnext.kernel_regression   Nadaraya-Watson kernel regression
    attnext.testing             checks your own backward pass
    attnext.plot                heat maps and curves; needs matplotlib
    attnext.torch               the functions and layers for tensors, with autograd; needs PyTorch
    attnext.dask                attention over keys on several machines; needs Dask
"""

from types import ModuleType
from typing import TYPE_CHECKING

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from attnext import dask as dask
    from attnext import explain as explain
    from attnext import kernel_regression as kernel_regression
    from attnext import lab as lab
    from attnext import plot as plot
    from attnext import reference as reference
    from attnext import testing as testing
    from attnext import torch as torch
    from attnext import view as view

try:
    from attnext._core import (
        AdditiveAttention,
        AdditiveGradients,
        DotProductAttention,
        Memory,
        MultiHeadAttention,
        MultiHeadGradients,
        additive_attention,
        additive_attention_backward,
        additive_scores,
        additive_scores_backward,
        cosine_attention,
        cosine_attention_backward,
        cosine_scores,
        cosine_scores_backward,
        dot_product_attention,
        dot_product_attention_backward,
        dot_product_scores,
        dot_product_scores_backward,
        empty_cache,
        gaussian_attention,
        gaussian_attention_backward,
        gaussian_scores,
        gaussian_scores_backward,
        get_num_threads,
        masked_softmax,
        masked_softmax_backward,
        merge_attention,
        merge_attention_backward,
        multi_head_attention,
        multi_head_attention_backward,
        sequence_mask,
        set_num_threads,
        show_config,
    )
except ModuleNotFoundError as error:
    if error.name != "attnext._core":
        raise
    raise ImportError(
        "attnext is being imported from a source folder in which it is not compiled. Either run "
        "`pip install -e .` in that folder, which compiles it there, or run `pip install .` and "
        "start Python in another folder."
    ) from None

from attnext._positions import positional_encoding

__all__ = [
    "AdditiveAttention",
    "AdditiveGradients",
    "DotProductAttention",
    "Memory",
    "MultiHeadAttention",
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
    "empty_cache",
    "gaussian_attention",
    "gaussian_attention_backward",
    "gaussian_scores",
    "gaussian_scores_backward",
    "get_num_threads",
    "masked_softmax",
    "masked_softmax_backward",
    "merge_attention",
    "merge_attention_backward",
    "multi_head_attention",
    "multi_head_attention_backward",
    "positional_encoding",
    "sequence_mask",
    "set_num_threads",
    "show_config",
]

# The submodules, and the package that each needs in addition to NumPy.
_SUBMODULES = {
    "dask": "dask",
    "explain": None,
    "kernel_regression": None,
    "lab": None,
    "plot": "matplotlib",
    "reference": None,
    "testing": None,
    "torch": "torch",
    "view": "anywidget",
}


def __getattr__(name: str) -> ModuleType:
    """Load a submodule when it is first used, so that ``import attnext`` loads only NumPy."""
    from importlib import import_module

    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    from attnext._hints import no_attribute

    raise no_attribute(__name__, name, {*__all__, *_SUBMODULES})


def __dir__() -> list[str]:
    """Return the names for completion, with the submodules whose packages are installed."""
    from importlib.util import find_spec

    own = {name for name in globals() if name.startswith("__")}
    found = {name for name, needs in _SUBMODULES.items() if needs is None or find_spec(needs)}
    return sorted({*__all__, *own, *found})
