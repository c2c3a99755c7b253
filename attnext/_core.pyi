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

from attnext._core_attention import *  # noqa: F403
from attnext._core_backward import *  # noqa: F403
from attnext._options import (
    AdditiveScores,
    CosineScores,
    DotProductScores,
    GaussianScores,
    HeadsLayer,
    Layer,
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

# ---- scores, and gradients by name; attentions are in files of their own ------------------------

# default, takers; names of parameters and of gradients, own keywords with their defaults, and
# of each parameter: name, letters of its shape, is it optional?, letter of its fan-in
OPTIONS: dict[str, tuple[Any, tuple[str, ...]]]
SCORES: dict[str, _Row]
ATTENTIONS: dict[str, _Row]  # and multi-head

class AdditiveGradients(NamedTuple):
    queries: _Array
    keys: _Array
    values: _Array | Any  # None only from additive_scores_backward
    W_q: _Array
    W_k: _Array
    w_v: _Array
    b_h: _Array | None

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

def dot_product_scores(
    queries: ArrayLike, keys: ArrayLike, **options: Unpack[DotProductScores]
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
def cosine_scores(
    queries: ArrayLike, keys: ArrayLike, **options: Unpack[CosineScores]
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
def gaussian_scores(
    queries: ArrayLike, keys: ArrayLike, **options: Unpack[GaussianScores]
) -> _Array: ...
def gaussian_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    **options: Unpack[GaussianScores],
) -> tuple[_Array, _Array, np.float32]: ...

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

@type_check_only
class _ScaledLayer(_Layer):
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

@type_check_only
class _Parameter:
    def __get__(self, layer: _Layer, kind: type[_Layer], /) -> _Array: ...
    def __set__(self, layer: _Layer, value: ArrayLike, /) -> None: ...

@type_check_only
class _OptionalParameter:  # None of a layer without biases
    def __get__(self, layer: _Layer, kind: type[_Layer], /) -> _Array | None: ...
    def __set__(self, layer: _Layer, value: ArrayLike, /) -> None: ...

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
    W_q: _Parameter
    W_k: _Parameter
    w_v: _Parameter
    b_h: _OptionalParameter

@disjoint_base
class DotProductAttention(_ScaledLayer):
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

@disjoint_base
class MultiHeadAttention(_ScaledLayer):
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
    W_q: _Parameter
    W_k: _Parameter
    W_v: _Parameter
    W_o: _Parameter
    b_q: _OptionalParameter
    b_k: _OptionalParameter
    b_v: _OptionalParameter
    b_o: _OptionalParameter
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

# ---- for attnext.torch alone ---------------------------------------------------------------

_on_tensors: Callable[..., Any]
_at_once: Callable[..., Any]
_go_back: Callable[..., Any]
_exchange_tensors: Callable[..., None]
