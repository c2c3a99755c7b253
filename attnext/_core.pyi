"""Types of the compiled module. Shapes, formulas and errors: the docstrings, help(attnext)."""

from collections.abc import Callable, Mapping, Sequence
from typing import (
    Any,
    Literal,
    NamedTuple,
    Self,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    Unpack,
    final,
    overload,
    type_check_only,
)

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import disjoint_base

from attnext._options import (
    Additive,
    AdditiveForward,
    AdditiveScores,
    Cosine,
    CosineForward,
    CosineScores,
    DotProduct,
    DotProductForward,
    DotProductScores,
    Dropout,
    Gaussian,
    GaussianForward,
    GaussianScores,
    HeadsLayer,
    Layer,
    Masks,
    MultiHead,
    MultiHeadForward,
    Pairs,
    Saved,
    Scores,
    Sink,
)

_Array: TypeAlias = NDArray[np.float32]
_Lens: TypeAlias = ArrayLike | None
_Number: TypeAlias = float | np.floating[Any] | np.integer[Any]
_EmptyRows: TypeAlias = Literal["uniform", "zero", "nan"]
_Parts: TypeAlias = Sequence[ArrayLike] | ArrayLike
_Row: TypeAlias = tuple[
    tuple[str, ...], tuple[str, ...], dict[str, Any], tuple[tuple[str, str, bool, str], ...]
]

# ---- masked softmax ------------------------------------------------------------------------

def masked_softmax(
    X: ArrayLike,
    valid_lens: _Lens = None,
    *,
    mask: ArrayLike | None = None,
    empty_rows: _EmptyRows = "uniform",
    out: _Array | None = None,
) -> _Array: ...
def masked_softmax_backward(
    grad_output: ArrayLike,
    weights: ArrayLike,
    valid_lens: _Lens = None,
    *,
    mask: ArrayLike | None = None,
    empty_rows: _EmptyRows = "uniform",
) -> _Array: ...
def sequence_mask(X: ArrayLike, valid_len: ArrayLike, value: _Number = 0.0) -> _Array: ...

# ---- attention ----------------------------------------------------------------------------

# What the functions below share: each option stands once, in attnext/_options.py. Overloads tell
# what is returned, so they write out the flags that ask for it.
class _Out(TypedDict, total=False):
    out: _Array | None

class _Backward(Scores, Masks, Sink, Dropout, Saved, total=False): ...
class _DotProductForward(DotProductForward, _Out, total=False): ...
class _CosineForward(CosineForward, _Out, total=False): ...
class _GaussianForward(GaussianForward, _Out, total=False): ...
class _AdditiveForward(AdditiveForward, _Out, total=False): ...
class _MultiHeadForward(MultiHeadForward, _Out, total=False): ...
class _DotProductBackward(DotProduct, _Backward, total=False): ...
class _CosineBackward(Cosine, _Backward, total=False): ...
class _GaussianBackward(Gaussian, _Backward, total=False): ...
class _AdditiveBackward(Additive, _Backward, total=False): ...
class _MultiHeadBackward(MultiHead, Scores, Pairs, Sink, Dropout, Saved, total=False): ...

# default, takers; names of parameters and of gradients, own keywords with their defaults, and
# of each parameter: name, letters of its shape, is it optional?, letter of its fan-in
OPTIONS: dict[str, tuple[Any, tuple[str, ...]]]
SCORES: dict[str, _Row]
ATTENTIONS: dict[str, _Row]  # and multi-head

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
def dot_product_scores(
    queries: ArrayLike,
    keys: ArrayLike,
    **options: Unpack[DotProductScores],
) -> _Array: ...
@overload
def dot_product_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    return_grad_scale: Literal[False] = False,
    **options: Unpack[DotProductScores],
) -> tuple[_Array, _Array]: ...
@overload
def dot_product_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    return_grad_scale: bool,
    **options: Unpack[DotProductScores],
) -> tuple[_Array, _Array, *tuple[_Array | np.float32, ...]]: ...

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
def cosine_scores(
    queries: ArrayLike,
    keys: ArrayLike,
    **options: Unpack[CosineScores],
) -> _Array: ...
@overload
def cosine_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    return_grad_scale: Literal[False] = False,
    **options: Unpack[CosineScores],
) -> tuple[_Array, _Array]: ...
@overload
def cosine_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    return_grad_scale: bool,
    **options: Unpack[CosineScores],
) -> tuple[_Array, _Array, *tuple[_Array | np.float32, ...]]: ...

# ---- additive attention ---------------------------------------------------------------

class AdditiveGradients(NamedTuple):
    queries: _Array
    keys: _Array
    values: _Array | Any  # None only from additive_scores_backward
    W_q: _Array
    W_k: _Array
    w_v: _Array
    b_h: _Array | None

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
def additive_scores(
    queries: ArrayLike,
    keys: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    **options: Unpack[AdditiveScores],
) -> _Array: ...
def additive_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    **options: Unpack[AdditiveScores],
) -> AdditiveGradients: ...

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
def gaussian_scores(
    queries: ArrayLike,
    keys: ArrayLike,
    **options: Unpack[GaussianScores],
) -> _Array: ...
def gaussian_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    **options: Unpack[GaussianScores],
) -> tuple[_Array, _Array, np.float32]: ...

# ---- multi-head attention -------------------------------------------------------------

class MultiHeadGradients(NamedTuple):
    queries: _Array
    keys: _Array
    values: _Array
    W_q: _Array
    W_k: _Array
    W_v: _Array
    W_o: _Array
    b_q: _Array | None
    b_k: _Array | None
    b_v: _Array | None
    b_o: _Array | None

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

# ---- merging attentions over disjoint keys ------------------------------------------------

def merge_attention(outputs: _Parts, lses: _Parts) -> tuple[_Array, _Array]: ...
def merge_attention_backward(
    grad_output: ArrayLike,
    outputs: _Parts,
    lses: _Parts,
    *,
    grad_lse: ArrayLike | None = None,
) -> tuple[_Array, _Array]: ...

# ---- threads and configuration ------------------------------------------------------------

class _InstructionSet(TypedDict):
    chosen: str
    available: list[str]

class _Threads(TypedDict):
    chosen: int
    cpus: int

class _Memory(TypedDict):
    kept: int
    limit: int

class _Build(TypedDict):
    compiler: str
    python: str

class _Config(TypedDict):
    version: str
    instruction_set: _InstructionSet
    threads: _Threads
    memory: _Memory
    build: _Build

def set_num_threads(n: SupportsIndex) -> None: ...
def get_num_threads() -> int: ...
def empty_cache() -> None: ...
@overload
def show_config(mode: Literal["stdout"] = "stdout") -> None: ...
@overload
def show_config(mode: Literal["dicts"]) -> _Config: ...

# ---- objects ------------------------------------------------------------------------------

_Rng: TypeAlias = (
    int
    | Sequence[int]
    | NDArray[np.integer[Any]]
    | np.random.SeedSequence
    | np.random.BitGenerator
    | np.random.Generator
    | None
)

@final
class Context:
    @property
    def dropout_p(self) -> float: ...
    @property
    def seed(self) -> int | None: ...

@final
class Memory:
    def __len__(self) -> int: ...
    def append(self, keys: ArrayLike, values: ArrayLike, mask: ArrayLike | None = None) -> None: ...
    def backward(self) -> tuple[_Array, _Array]: ...
    def _given_to(
        self, layer: object, /
    ) -> tuple[_Array, _Array, _Array | None, _Array | None]: ...
    @classmethod
    def _of(
        cls,
        score: str,
        sizes: tuple[int, ...],
        parameters: dict[str, _Array],
        keys: ArrayLike,
        values: ArrayLike,
        valid_lens: ArrayLike | None,
        mask: ArrayLike | None,
        /,
    ) -> Memory: ...
    def _check(self, parameters: dict[str, _Array] | None, /) -> None: ...
    def _now(self) -> Memory: ...

@type_check_only
class _Layer:
    # None before the first call, and after one with need_weights=False
    @property
    def attention_weights(self) -> _Array | Any: ...
    @property
    def context(self) -> Context | None: ...
    @property
    def dropout(self) -> float: ...
    @property
    def grads(self) -> dict[str, _Array]: ...
    @property
    def training(self) -> bool: ...
    # What is asked for comes behind; of a call with a Memory, dq alone comes before it.
    def backward(
        self,
        grad_output: ArrayLike,
        *,
        grad_weights: ArrayLike | None = None,
        return_grad_bias: bool = False,
        return_grad_sink: bool = False,
        context: Context | None = None,
    ) -> tuple[_Array, _Array, _Array] | Any: ...
    def memory(
        self,
        keys: ArrayLike,
        values: ArrayLike,
        valid_lens: _Lens = None,
        *,
        mask: ArrayLike | None = None,
    ) -> Memory: ...
    def parameters(self) -> dict[str, _Array]: ...
    def zero_grad(self) -> None: ...
    def load_state_dict(self, state_dict: Mapping[str, ArrayLike], /) -> None: ...
    def train(self, mode: bool = True) -> Self: ...
    def eval(self) -> Self: ...
    @staticmethod
    def _read(value: ArrayLike, name: str, shape: tuple[int, ...], /) -> _Array: ...

@disjoint_base
class AdditiveAttention(_Layer):
    def __init__(
        self,
        key_size: SupportsIndex,
        query_size: SupportsIndex,
        num_hiddens: SupportsIndex,
        dropout: _Number = 0.0,
        *,
        bias: bool = False,
        rng: _Rng = None,
    ) -> None: ...
    @property
    def key_size(self) -> int: ...
    @property
    def query_size(self) -> int: ...
    @property
    def num_hiddens(self) -> int: ...
    def state_dict(self) -> dict[str, _Array]: ...
    def __call__(
        self,
        queries: ArrayLike,
        keys: ArrayLike | Memory,
        values: ArrayLike | None = None,
        valid_lens: _Lens = None,
        *,
        need_weights: bool = True,
        **options: Unpack[Layer],
    ) -> _Array: ...
    @property
    def W_q(self) -> _Array: ...
    @W_q.setter
    def W_q(self, value: ArrayLike) -> None: ...
    @property
    def W_k(self) -> _Array: ...
    @W_k.setter
    def W_k(self, value: ArrayLike) -> None: ...
    @property
    def w_v(self) -> _Array: ...
    @w_v.setter
    def w_v(self, value: ArrayLike) -> None: ...
    @property
    def b_h(self) -> _Array | None: ...
    @b_h.setter
    def b_h(self, value: ArrayLike) -> None: ...

@disjoint_base
class DotProductAttention(_Layer):
    def __init__(
        self,
        dropout: _Number = 0.0,
        *,
        scale: _Number | None = None,
        rng: _Rng = None,
    ) -> None: ...
    @property
    def scale(self) -> float | None: ...
    def state_dict(self) -> dict[str, _Array]: ...
    def __call__(
        self,
        queries: ArrayLike,
        keys: ArrayLike | Memory,
        values: ArrayLike | None = None,
        valid_lens: _Lens = None,
        *,
        scale: ArrayLike | None = None,
        need_weights: bool = True,
        **options: Unpack[Layer],
    ) -> _Array: ...
    def backward(
        self,
        grad_output: ArrayLike,
        *,
        grad_weights: ArrayLike | None = None,
        return_grad_bias: bool = False,
        return_grad_sink: bool = False,
        return_grad_scale: bool = False,
        context: Context | None = None,
    ) -> tuple[_Array, _Array, _Array] | Any: ...

@disjoint_base
class MultiHeadAttention(_Layer):
    def __init__(
        self,
        key_size: SupportsIndex,
        query_size: SupportsIndex,
        value_size: SupportsIndex,
        num_hiddens: SupportsIndex,
        num_heads: SupportsIndex,
        dropout: _Number = 0.0,
        *,
        bias: bool = False,
        num_kv_heads: SupportsIndex | None = None,
        rng: _Rng = None,
    ) -> None: ...
    @property
    def key_size(self) -> int: ...
    @property
    def query_size(self) -> int: ...
    @property
    def value_size(self) -> int: ...
    @property
    def num_hiddens(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def W_q(self) -> _Array: ...
    @W_q.setter
    def W_q(self, value: ArrayLike) -> None: ...
    @property
    def W_k(self) -> _Array: ...
    @W_k.setter
    def W_k(self, value: ArrayLike) -> None: ...
    @property
    def W_v(self) -> _Array: ...
    @W_v.setter
    def W_v(self, value: ArrayLike) -> None: ...
    @property
    def W_o(self) -> _Array: ...
    @W_o.setter
    def W_o(self, value: ArrayLike) -> None: ...
    @property
    def b_q(self) -> _Array | None: ...
    @b_q.setter
    def b_q(self, value: ArrayLike) -> None: ...
    @property
    def b_k(self) -> _Array | None: ...
    @b_k.setter
    def b_k(self, value: ArrayLike) -> None: ...
    @property
    def b_v(self) -> _Array | None: ...
    @b_v.setter
    def b_v(self, value: ArrayLike) -> None: ...
    @property
    def b_o(self) -> _Array | None: ...
    @b_o.setter
    def b_o(self, value: ArrayLike) -> None: ...
    def state_dict(self, layout: Literal["d2l", "torch"] = "d2l") -> dict[str, _Array]: ...
    def __call__(
        self,
        queries: ArrayLike,
        keys: ArrayLike | Memory,
        values: ArrayLike | None = None,
        valid_lens: _Lens = None,
        *,
        scale: ArrayLike | None = None,
        need_weights: bool = True,
        **options: Unpack[HeadsLayer],
    ) -> _Array: ...
    def backward(
        self,
        grad_output: ArrayLike,
        *,
        grad_weights: ArrayLike | None = None,
        return_grad_bias: bool = False,
        return_grad_sink: bool = False,
        return_grad_scale: bool = False,
        context: Context | None = None,
    ) -> tuple[_Array, _Array, _Array] | Any: ...

# ---- for attnext.torch alone ---------------------------------------------------------------

_on_tensors: Callable[..., Any]
_at_once: Callable[..., Any]
_go_back: Callable[..., Any]
_exchange_tensors: Callable[..., None]
