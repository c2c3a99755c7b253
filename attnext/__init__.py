"""attnext: attention, written in C, for Python.

Masked softmax, dot-product, cosine, additive and Gaussian attention, forward and backward, on
float32 NumPy arrays. The functions and the two classes live in the compiled module
``attnext._core``; ``attnext.reference`` holds the same functions as plain NumPy code to read.
"""

__version__ = "0.1.0"

try:
    from attnext._core import (
        AdditiveAttention,
        AdditiveGradients,
        DotProductAttention,
        additive_attention,
        additive_attention_backward,
        additive_scores,
        cosine_attention,
        cosine_attention_backward,
        cosine_scores,
        dot_product_attention,
        dot_product_attention_backward,
        dot_product_scores,
        gaussian_attention,
        gaussian_attention_backward,
        gaussian_scores,
        get_num_threads,
        masked_softmax,
        masked_softmax_backward,
        merge_attention,
        merge_attention_backward,
        sequence_mask,
        set_num_threads,
        show_config,
    )
except ModuleNotFoundError as error:
    if error.name != "attnext._core":
        raise
    raise ImportError(
        "attnext is being imported from a source folder in which it is not compiled. Install it "
        "with `pip install .` there; then start Python in another folder, or use the `attnext` "
        "command."
    ) from None

__all__ = [
    "AdditiveAttention",
    "AdditiveGradients",
    "DotProductAttention",
    "additive_attention",
    "additive_attention_backward",
    "additive_scores",
    "cosine_attention",
    "cosine_attention_backward",
    "cosine_scores",
    "dot_product_attention",
    "dot_product_attention_backward",
    "dot_product_scores",
    "gaussian_attention",
    "gaussian_attention_backward",
    "gaussian_scores",
    "get_num_threads",
    "masked_softmax",
    "masked_softmax_backward",
    "merge_attention",
    "merge_attention_backward",
    "sequence_mask",
    "set_num_threads",
    "show_config",
]
