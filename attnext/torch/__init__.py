"""attnext for PyTorch: attention on tensors with autograd, and the layers of d2l.

The functions have the same names, arguments and meaning as those in ``attnext``. They take and
return float32 tensors on the CPU. All results have gradients: the output, the weights and the
log-sum-exp. The layers have the names, parameters and calls of *Dive into Deep Learning* (d2l). A
d2l notebook needs only another import, and its state dicts can be loaded.

Contiguous tensors are passed to C and returned without a copy. The forward pass is one call into C,
and the backward pass is another.

- ``torch.compile(..., fullgraph=True)`` puts a call into its graph as one operator with dynamic
  sizes. Results and gradients are bit for bit those of eager mode.
- ``torch.jit.trace`` also records a call as an operator. Import ``attnext.torch`` before you load
  the saved trace.
- ``torch.jit.script`` raises an error, because it cannot compile a call into C.
- Under ``torch.autocast``, bfloat16 and float16 inputs are converted to float32. Without autocast
  they raise TypeError.
- Higher derivatives, forward mode and torch.func (vmap, grad, jvp, hessian) work. float64 works if
  all inputs are float64 (``layer.double()``). C computes only float32 forward passes and first
  derivatives; PyTorch's operators compute the rest. That takes about as long as PyTorch's own
  attention, and longer with a mask. It stores the weights, and for additive and Gaussian attention
  also a tensor of shape (..., M, N, H) or (..., M, N, D). A `Memory` has only float32 and first
  derivatives.
- Temporary tensors have the dtype and device of the inputs. ``torch.set_default_dtype`` and
  ``torch.set_default_device`` have no influence.
- The ``__torch_function__`` of an argument or a mode overrides the functions, as for PyTorch's own.
  A class with a ``__torch_dispatch__`` receives attnext's operator. FakeTensors and meta tensors
  give the shapes of the results.
- An exception of the caller's code (hooks, modes, signal handlers) reaches the caller.

The files::

    rules.py        checks of the inputs, and autocast
    tensors.py      converts tensors to arrays and back
    calls.py        a call of a function, forward and backward
    autograd.py     a call with or without a node in autograd's graph
    operators.py    a call as an operator: in a graph of torch.compile or torch.jit.trace, for
                    subclasses with a __torch_dispatch__, and on device meta
    graphs.py       functions that torch.compile does not trace
    composite.py    the functions in PyTorch's operators: second derivatives, transforms, float64;
                    pairs.py, their masks
    functions.py    the attention functions; attention.py, the code they share
    scores.py       the score functions
    softmax.py      masked_softmax, sequence_mask
    merge.py        merge_attention
    positions.py    positional_encoding
    sdpa.py         scaled_dot_product_attention with torch's own signature
    nn.py           MultiheadAttention with torch's own signature
    models.py       convert and revert, for models with torch.nn.MultiheadAttention
    transformers.py Hugging Face's models: importing it registers attnext there
    memory.py       Memory, for keys and values of many calls; memory_graph.py, their gradients
    scripting.py    the error of torch.jit.script
    modules.py      AdditiveAttention, DotProductAttention; layer.py, what layers share;
                    editions.py, the constructors of both d2l editions; projections.py, their
                    linear layers as arguments of the functions
    multi_head.py   MultiHeadAttention; layouts.py, its state dict with torch's own names

Examples
--------
>>> import torch
>>> from attnext.torch import DotProductAttention  # was: from d2l.torch import ...
>>> attention = DotProductAttention(dropout=0.5).eval()
>>> queries, keys = torch.zeros(2, 1, 3), torch.randn(2, 10, 3, requires_grad=True)
>>> values = torch.arange(40.0).reshape(1, 10, 4).repeat(2, 1, 1)
>>> output = attention(queries, keys, values, torch.tensor([2, 6]))
>>> output[:, 0].detach().round(decimals=3)
tensor([[ 2.,  3.,  4.,  5.],
        [10., 11., 12., 13.]])
>>> output.sum().backward()
>>> keys.grad.shape
torch.Size([2, 10, 3])
"""

from __future__ import annotations

from attnext._hints import suggest_names as _suggest_names
from attnext._needed import needed as _needed

with _needed("attnext.torch needs PyTorch, which is not installed: pip install torch", "torch"):
    import torch as _torch  # noqa: F401

from . import nn
from .functions import (
    additive_attention,
    cosine_attention,
    dot_product_attention,
    gaussian_attention,
    multi_head_attention,
)
from .memory import Memory
from .merge import merge_attention
from .models import convert, revert
from .modules import AdditiveAttention, DotProductAttention
from .multi_head import MultiHeadAttention
from .positions import positional_encoding
from .scores import additive_scores, cosine_scores, dot_product_scores, gaussian_scores
from .scripting import refuse_scripts_of
from .sdpa import scaled_dot_product_attention
from .softmax import masked_softmax, sequence_mask

__all__ = [
    "AdditiveAttention",
    "DotProductAttention",
    "Memory",
    "MultiHeadAttention",
    "additive_attention",
    "additive_scores",
    "convert",
    "cosine_attention",
    "cosine_scores",
    "dot_product_attention",
    "dot_product_scores",
    "gaussian_attention",
    "gaussian_scores",
    "masked_softmax",
    "merge_attention",
    "multi_head_attention",
    "nn",
    "positional_encoding",
    "revert",
    "scaled_dot_product_attention",
    "sequence_mask",
]

_suggest_names(__name__, __all__)
for _name in __all__:
    refuse_scripts_of(globals()[_name], f"{__name__}.{_name}")


def __dir__() -> list[str]:
    """Return the names for completion."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
