"""Types of the attentions of the compiled module, backward: see _core_attention.pyi."""

from typing import Literal, SupportsIndex, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike

from attnext._core import AdditiveGradients, MultiHeadGradients, _Array, _Lens
from attnext._options import (
    Additive,
    Cosine,
    DotProduct,
    Dropout,
    Gaussian,
    Masks,
    MultiHead,
    Pairs,
    Saved,
    Scores,
    Sink,
)

class _Backward(Scores, Masks, Sink, Dropout, Saved, total=False): ...
class _DotProductBackward(DotProduct, _Backward, total=False): ...
class _CosineBackward(Cosine, _Backward, total=False): ...
class _GaussianBackward(Gaussian, _Backward, total=False): ...
class _AdditiveBackward(Additive, _Backward, total=False): ...
class _MultiHeadBackward(MultiHead, Scores, Pairs, Sink, Dropout, Saved, total=False): ...

# ---- dot-product attention ------------------------------------------------------------

@overload
def dot_product_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    bias: ArrayLike | None = None,
    return_grad_bias: Literal[False] = False,
    return_grad_sink: Literal[False] = False,
    return_grad_scale: Literal[False] = False,
    **options: Unpack[_DotProductBackward],
) -> tuple[_Array, _Array, _Array]: ...
@overload
def dot_product_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    bias: ArrayLike,
    return_grad_bias: Literal[True],
    return_grad_sink: Literal[False] = False,
    return_grad_scale: Literal[False] = False,
    **options: Unpack[_DotProductBackward],
) -> tuple[_Array, _Array, _Array, _Array]: ...
@overload
def dot_product_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    bias: ArrayLike | None = None,
    return_grad_bias: bool = False,
    return_grad_sink: bool = False,
    return_grad_scale: bool = False,
    **options: Unpack[_DotProductBackward],
) -> tuple[_Array, _Array, _Array, *tuple[_Array | np.float32 | None, ...]]: ...

# ---- cosine attention -----------------------------------------------------------------

@overload
def cosine_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    bias: ArrayLike | None = None,
    return_grad_bias: Literal[False] = False,
    return_grad_sink: Literal[False] = False,
    return_grad_scale: Literal[False] = False,
    **options: Unpack[_CosineBackward],
) -> tuple[_Array, _Array, _Array]: ...
@overload
def cosine_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    bias: ArrayLike,
    return_grad_bias: Literal[True],
    return_grad_sink: Literal[False] = False,
    return_grad_scale: Literal[False] = False,
    **options: Unpack[_CosineBackward],
) -> tuple[_Array, _Array, _Array, _Array]: ...
@overload
def cosine_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    bias: ArrayLike | None = None,
    return_grad_bias: bool = False,
    return_grad_sink: bool = False,
    return_grad_scale: bool = False,
    **options: Unpack[_CosineBackward],
) -> tuple[_Array, _Array, _Array, *tuple[_Array | np.float32 | None, ...]]: ...

# ---- Gaussian attention ---------------------------------------------------------------

@overload
def gaussian_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    bias: ArrayLike | None = None,
    return_grad_bias: Literal[False] = False,
    return_grad_sink: Literal[False] = False,
    **options: Unpack[_GaussianBackward],
) -> tuple[_Array, _Array, _Array, np.float32]: ...
@overload
def gaussian_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    bias: ArrayLike,
    return_grad_bias: Literal[True],
    return_grad_sink: Literal[False] = False,
    **options: Unpack[_GaussianBackward],
) -> tuple[_Array, _Array, _Array, np.float32, _Array]: ...
@overload
def gaussian_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    bias: ArrayLike | None = None,
    return_grad_bias: bool = False,
    return_grad_sink: bool = False,
    **options: Unpack[_GaussianBackward],
) -> tuple[_Array, _Array, _Array, np.float32, *tuple[_Array | None, ...]]: ...

# ---- additive attention ---------------------------------------------------------------

@overload
def additive_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: _Lens = None,
    *,
    bias: ArrayLike | None = None,
    return_grad_bias: Literal[False] = False,
    return_grad_sink: Literal[False] = False,
    **options: Unpack[_AdditiveBackward],
) -> AdditiveGradients: ...
@overload
def additive_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: _Lens = None,
    *,
    bias: ArrayLike,
    return_grad_bias: Literal[True],
    return_grad_sink: Literal[False] = False,
    **options: Unpack[_AdditiveBackward],
) -> tuple[AdditiveGradients, _Array]: ...
@overload
def additive_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: _Lens = None,
    *,
    bias: ArrayLike | None = None,
    return_grad_bias: bool = False,
    return_grad_sink: bool = False,
    **options: Unpack[_AdditiveBackward],
) -> AdditiveGradients | tuple[AdditiveGradients, *tuple[_Array | None, ...]]: ...

# ---- multi-head attention -------------------------------------------------------------

@overload
def multi_head_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    W_v: ArrayLike,
    W_o: ArrayLike,
    valid_lens: _Lens = None,
    *,
    num_heads: SupportsIndex,
    bias: ArrayLike | None = None,
    return_grad_bias: Literal[False] = False,
    return_grad_sink: Literal[False] = False,
    return_grad_scale: Literal[False] = False,
    **options: Unpack[_MultiHeadBackward],
) -> MultiHeadGradients: ...
@overload
def multi_head_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    W_v: ArrayLike,
    W_o: ArrayLike,
    valid_lens: _Lens = None,
    *,
    num_heads: SupportsIndex,
    bias: ArrayLike,
    return_grad_bias: Literal[True],
    return_grad_sink: Literal[False] = False,
    return_grad_scale: Literal[False] = False,
    **options: Unpack[_MultiHeadBackward],
) -> tuple[MultiHeadGradients, _Array]: ...
@overload
def multi_head_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    W_v: ArrayLike,
    W_o: ArrayLike,
    valid_lens: _Lens = None,
    *,
    num_heads: SupportsIndex,
    bias: ArrayLike | None = None,
    return_grad_bias: bool = False,
    return_grad_sink: bool = False,
    return_grad_scale: bool = False,
    **options: Unpack[_MultiHeadBackward],
) -> MultiHeadGradients | tuple[MultiHeadGradients, *tuple[_Array | np.float32 | None, ...]]: ...
