"""attnext for PyTorch: the same attention on tensors, with autograd, and the layers of d2l.

The functions have the names, the arguments and the meaning of those in ``attnext``, but take and
return tensors: float32, on the CPU. Gradients flow through everything they return: the output, the
weights, the log-sum-exp. The layers are those of *Dive into Deep Learning* (d2l), with its names,
parameters and calls, so that a notebook changes one import and loads its old state dicts.

A contiguous tensor is not copied on its way into C, and what comes back lies in the memory that C
wrote. A forward is one call into C, a backward another one.

- ``torch.compile(..., fullgraph=True)`` takes a call into its graph as an operator, sizes left
  open. Results and gradients have the bits of eager.
  ``torch.jit.trace`` records it likewise; who loads what it saved imports ``attnext.torch`` first.
  ``torch.jit.script`` cannot compile a call into C: it raises an error that says so.
- Under ``torch.autocast`` inputs of bfloat16 and float16 are computed in float32; elsewhere they
  are a TypeError.
- Derivatives of every order, forward mode and torch.func (vmap, grad, jvp, hessian) work, and so
  does float64, all inputs and ``layer.double()``. C computes float32, forward and first backward;
  the rest is left to torch's own operators, takes about as long as torch's own attention does of
  them, longer where something is masked, and forms the weights, in additive and Gaussian attention
  also (..., M, N, H) or (..., M, N, D). A `Memory` has float32 and first derivatives only.

- What a call makes inside has the dtype and the device of its inputs, whatever
  ``torch.set_default_dtype`` and ``torch.set_default_device`` say.
- ``__torch_function__`` of an argument or of a mode takes over a function, as it does one of
  PyTorch's. A class with a ``__torch_dispatch__`` gets attnext's operator to run. FakeTensors
  and tensors on device meta give the shapes of the results.
- An exception of the caller's code (hooks, modes, signal handlers) reaches the caller.

The files::

    rules.py        what is refused, and what autocast makes of inputs
    tensors.py      tensors to arrays and back
    calls.py        a call of a function, forward and backward
    autograd.py     a call as a node of autograd's graph, or without one
    operators.py    a call as an operator: in a graph of torch.compile or torch.jit.trace, for
                    subclasses with a __torch_dispatch__, and on device meta
    graphs.py       what torch.compile leaves alone
    composite.py    every function of torch's operators: second derivatives, transforms, float64;
                    pairs.py, which pairs take part in them
    functions.py    every attention on tensors; attention.py behind them
    scores.py       their scores alone
    softmax.py      masked_softmax, sequence_mask
    merge.py        merge_attention
    positions.py    positional_encoding
    sdpa.py         scaled_dot_product_attention with torch's own signature
    nn.py           MultiheadAttention with torch's own
    models.py       convert, revert: models of torch's own classes
    transformers.py Hugging Face's models: registers with their AttentionInterface when imported
    memory.py       keys and values that stay: Memory; memory_graph.py, their gradients
    scripting.py    what torch.jit.script is told
    modules.py      AdditiveAttention, DotProductAttention; layer.py, what layers share;
                    editions.py, what d2l calls them with; projections.py, what their linear
                    layers are to the functions
    multi_head.py   MultiHeadAttention; layouts.py, its state dict under torch's own names

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
    """What completion offers."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
