"""Types of the attentions of the compiled module, forward.

Overloads tell what is returned, so they write out the flags that ask for it; what else they take
stands once, in attnext/_options.py. stubtest sees too little of them, and nothing of what _core.pyi
has from another file: tests/test_signatures.py holds each to the signature at run time.
"""

from typing import Literal, SupportsIndex, TypedDict, Unpack, overload

from numpy.typing import ArrayLike

from attnext._core import _Array, _Lens
from attnext._options import (
    AdditiveForward,
    CosineForward,
    DotProductForward,
    GaussianForward,
    MultiHeadForward,
)

class _Out(TypedDict, total=False):
    out: _Array | None

class _DotProductForward(DotProductForward, _Out, total=False): ...
class _CosineForward(CosineForward, _Out, total=False): ...
class _GaussianForward(GaussianForward, _Out, total=False): ...
class _AdditiveForward(AdditiveForward, _Out, total=False): ...
class _MultiHeadForward(MultiHeadForward, _Out, total=False): ...

# ---- dot-product attention ------------------------------------------------------------

@overload
def dot_product_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[False] = False,
    return_lse: Literal[False] = False,
    **options: Unpack[_DotProductForward],
) -> _Array: ...
@overload
def dot_product_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[True],
    return_lse: Literal[False] = False,
    **options: Unpack[_DotProductForward],
) -> tuple[_Array, _Array]: ...
@overload
def dot_product_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[False] = False,
    return_lse: Literal[True],
    **options: Unpack[_DotProductForward],
) -> tuple[_Array, _Array]: ...
@overload
def dot_product_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[True],
    return_lse: Literal[True],
    **options: Unpack[_DotProductForward],
) -> tuple[_Array, _Array, _Array]: ...
@overload
def dot_product_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: bool = False,
    return_lse: bool = False,
    **options: Unpack[_DotProductForward],
) -> _Array | tuple[_Array, _Array] | tuple[_Array, _Array, _Array]: ...

# ---- cosine attention -----------------------------------------------------------------

@overload
def cosine_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[False] = False,
    return_lse: Literal[False] = False,
    **options: Unpack[_CosineForward],
) -> _Array: ...
@overload
def cosine_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[True],
    return_lse: Literal[False] = False,
    **options: Unpack[_CosineForward],
) -> tuple[_Array, _Array]: ...
@overload
def cosine_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[False] = False,
    return_lse: Literal[True],
    **options: Unpack[_CosineForward],
) -> tuple[_Array, _Array]: ...
@overload
def cosine_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[True],
    return_lse: Literal[True],
    **options: Unpack[_CosineForward],
) -> tuple[_Array, _Array, _Array]: ...
@overload
def cosine_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: bool = False,
    return_lse: bool = False,
    **options: Unpack[_CosineForward],
) -> _Array | tuple[_Array, _Array] | tuple[_Array, _Array, _Array]: ...

# ---- Gaussian attention ---------------------------------------------------------------

@overload
def gaussian_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[False] = False,
    return_lse: Literal[False] = False,
    **options: Unpack[_GaussianForward],
) -> _Array: ...
@overload
def gaussian_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[True],
    return_lse: Literal[False] = False,
    **options: Unpack[_GaussianForward],
) -> tuple[_Array, _Array]: ...
@overload
def gaussian_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[False] = False,
    return_lse: Literal[True],
    **options: Unpack[_GaussianForward],
) -> tuple[_Array, _Array]: ...
@overload
def gaussian_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[True],
    return_lse: Literal[True],
    **options: Unpack[_GaussianForward],
) -> tuple[_Array, _Array, _Array]: ...
@overload
def gaussian_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: bool = False,
    return_lse: bool = False,
    **options: Unpack[_GaussianForward],
) -> _Array | tuple[_Array, _Array] | tuple[_Array, _Array, _Array]: ...

# ---- additive attention ---------------------------------------------------------------

@overload
def additive_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[False] = False,
    return_lse: Literal[False] = False,
    **options: Unpack[_AdditiveForward],
) -> _Array: ...
@overload
def additive_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[True],
    return_lse: Literal[False] = False,
    **options: Unpack[_AdditiveForward],
) -> tuple[_Array, _Array]: ...
@overload
def additive_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[False] = False,
    return_lse: Literal[True],
    **options: Unpack[_AdditiveForward],
) -> tuple[_Array, _Array]: ...
@overload
def additive_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: Literal[True],
    return_lse: Literal[True],
    **options: Unpack[_AdditiveForward],
) -> tuple[_Array, _Array, _Array]: ...
@overload
def additive_attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: _Lens = None,
    *,
    return_weights: bool = False,
    return_lse: bool = False,
    **options: Unpack[_AdditiveForward],
) -> _Array | tuple[_Array, _Array] | tuple[_Array, _Array, _Array]: ...

# ---- multi-head attention -------------------------------------------------------------

@overload
def multi_head_attention(
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
    return_weights: Literal[False] = False,
    return_lse: Literal[False] = False,
    **options: Unpack[_MultiHeadForward],
) -> _Array: ...
@overload
def multi_head_attention(
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
    return_weights: Literal[True],
    return_lse: Literal[False] = False,
    **options: Unpack[_MultiHeadForward],
) -> tuple[_Array, _Array]: ...
@overload
def multi_head_attention(
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
    return_weights: Literal[False] = False,
    return_lse: Literal[True],
    **options: Unpack[_MultiHeadForward],
) -> tuple[_Array, _Array]: ...
@overload
def multi_head_attention(
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
    return_weights: Literal[True],
    return_lse: Literal[True],
    **options: Unpack[_MultiHeadForward],
) -> tuple[_Array, _Array, _Array]: ...
@overload
def multi_head_attention(
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
    return_weights: bool = False,
    return_lse: bool = False,
    **options: Unpack[_MultiHeadForward],
) -> _Array | tuple[_Array, _Array] | tuple[_Array, _Array, _Array]: ...
