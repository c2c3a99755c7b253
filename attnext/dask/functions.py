"""The attention functions on Dask arrays, and their backward functions."""

from __future__ import annotations

from typing import Any, TypeAlias, Unpack

from numpy.typing import ArrayLike

from attnext import AdditiveGradients
from attnext._gradients import SHARED, names_of

from .arguments import (
    BACKWARD,
    FORWARD,
    Backward,
    DaskArray,
    Forward,
    ScaledBackward,
    incoming,
    make_problem,
)
from .graph import attention, gradients

# A Dask array, or a tuple of the output and the requested extra results.
Attended: TypeAlias = Any


@FORWARD.spelled_out
def dot_product_attention(
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
    **options: Unpack[Forward],
) -> Attended:
    """Compute dot-product attention with the keys in blocks.

    Parameters
    ----------
    keys : dask.array.Array or array_like, shape (..., N, D)
        The keys, with the same leading axes as `queries`. Each block of keys along N is processed
        by a separate task.

    See Also
    --------
    attnext.dot_product_attention : The same function for arrays in memory.
    attnext.merge_attention : Merges the results of the blocks.

    Notes
    -----
    ``output = softmax(scale * queries @ keys^T) @ values`` (Vaswani et al. 2017, equation 1). Each
    block of keys is computed separately, then the results are merged: see `attnext.dask`. The
    output has the blocks of the queries. The weights have blocks along M and N; if they are large,
    compute only a part of them. Each level of the merge tree adds a relative error of about
    ``|lse| * 6e-8``, the rounding of a log-sum-exp. ``dask.config.set(split_every=...)`` sets the
    number of parts that are merged at a time.

    Examples
    --------
    >>> import dask.array as da
    >>> from attnext.dask import dot_product_attention
    >>> keys = da.ones((2, 10, 2), chunks=(1, 5, 2))
    >>> values = da.arange(40, chunks=20).reshape(1, 10, 4).repeat(2, axis=0)
    >>> output = dot_product_attention(da.ones((2, 1, 2)), keys, values, [2, 6])
    >>> output[:, 0].compute().round(3)
    array([[ 2.,  3.,  4.,  5.],
           [10., 11., 12., 13.]], dtype=float32)
    """
    return _attend("dot_product_attention", **locals())


@BACKWARD.spelled_out
def dot_product_attention_backward(
    grad_output: Any,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
    **options: Unpack[ScaledBackward],
) -> tuple[DaskArray | None, ...]:
    """Compute the gradients of `dot_product_attention` with the keys in blocks.

    Notes
    -----
    Let o_r and l_r be the output and log-sum-exp of block r, o and l the output and log-sum-exp
    over all keys, and g = `grad_output`. The backward pass of the merge gives ``do_r = exp(l_r - l)
    g`` and ``dl_r = exp(l_r - l) (g . (o_r - o) + grad_lse)``. They are the `grad_output` and
    `grad_lse` for the backward pass of block r, which needs no other block. Each block computes its
    attention again to get o_r and l_r, so these arrays are not stored. The memory therefore does
    not grow with the number of queries times the number of blocks.

    The gradients need the output over all keys. To compute this output only once, compute output
    and gradients in the same ``dask.compute`` call.

    Examples
    --------
    >>> import dask.array as da
    >>> from attnext.dask import dot_product_attention_backward
    >>> keys = da.ones((2, 2), chunks=(1, 2))
    >>> values = da.from_array([[1.0, 2.0], [3.0, 4.0]], chunks=(1, 2))
    >>> dq, dk, dv = dot_product_attention_backward([[1, 0]], [[1, 1]], keys, values, scale=1.0)
    >>> dk.compute()
    array([[-0.5, -0.5],
           [ 0.5,  0.5]], dtype=float32)
    """
    return _gradients("dot_product_attention", **locals())


@FORWARD.spelled_out
def cosine_attention(
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike = 1.0,
    eps: float = 1e-8,
    **options: Unpack[Forward],
) -> Attended:
    """Compute cosine attention with the keys in blocks.

    Notes
    -----
    ``score(q, k) = scale * q.k / (max(|q|, eps) max(|k|, eps))`` (Graves et al. 2014, "Neural
    Turing machines", equation 6).

    Examples
    --------
    >>> import dask.array as da
    >>> from attnext.dask import cosine_attention
    >>> keys = da.from_array([[3.0, 0.0], [0.0, 2.0]], chunks=(1, 2))
    >>> cosine_attention([[5.0, 0.0]], keys, [[1.0], [0.0]], scale=2.0).compute().round(3)
    array([[0.881]], dtype=float32)
    """
    return _attend("cosine_attention", **locals())


@BACKWARD.spelled_out
def cosine_attention_backward(
    grad_output: Any,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike = 1.0,
    eps: float = 1e-8,
    **options: Unpack[ScaledBackward],
) -> tuple[DaskArray | None, ...]:
    """Compute the gradients of `cosine_attention` with the keys in blocks.

    Notes
    -----
    The method is the same as in `dot_product_attention_backward`.

    Examples
    --------
    >>> import dask.array as da
    >>> from attnext.dask import cosine_attention_backward
    >>> keys = da.eye(2, chunks=1)
    >>> dq, dk, dv = cosine_attention_backward([[1.0]], [[2.0, 2.0]], keys, [[0.0], [4.0]])
    >>> dv.compute()
    array([[0.5],
           [0.5]], dtype=float32)
    """
    return _gradients("cosine_attention", **locals())


@FORWARD.spelled_out
def gaussian_attention(
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: ArrayLike | None = None,
    *,
    w: ArrayLike | None = None,
    sigma: ArrayLike | None = None,
    **options: Unpack[Forward],
) -> Attended:
    """Compute attention with a Gaussian kernel, with the keys in blocks.

    Notes
    -----
    ``score(q, k) = -(w * |q - k|)**2 / 2``. This is kernel regression (Nadaraya 1964, Watson 1964)
    for training data that do not fit into the memory of one machine.

    Examples
    --------
    >>> import dask.array as da
    >>> from attnext.dask import gaussian_attention
    >>> x = da.from_array([[0.0], [1.0], [2.0]], chunks=(2, 1))
    >>> gaussian_attention([[1.5]], x, [[5.0], [2.0], [4.0]], sigma=0.5).compute().round(3)
    array([[3.018]], dtype=float32)
    """
    return _attend("gaussian_attention", **locals())


@BACKWARD.spelled_out
def gaussian_attention_backward(
    grad_output: Any,
    queries: Any,
    keys: Any,
    values: Any,
    valid_lens: ArrayLike | None = None,
    *,
    w: ArrayLike | None = None,
    sigma: ArrayLike | None = None,
    **options: Unpack[Backward],
) -> tuple[DaskArray | None, ...]:
    """Compute the gradients of `gaussian_attention` with the keys in blocks.

    Notes
    -----
    The method is the same as in `dot_product_attention_backward`. dw is summed over all blocks.

    Examples
    --------
    >>> import dask.array as da
    >>> from attnext.dask import gaussian_attention_backward
    >>> x = da.from_array([[-1.0], [1.0]], chunks=(1, 1))
    >>> d = gaussian_attention_backward([[1.0]], [[0.0]], x, [[0.0], [4.0]], w=0.5)
    >>> dq, dk, dv, dw = d
    >>> dq.compute()
    array([[0.5]], dtype=float32)
    """
    return _gradients("gaussian_attention", **locals())


@FORWARD.spelled_out
def additive_attention(
    queries: Any,
    keys: Any,
    values: Any,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    b_h: ArrayLike | None = None,
    **options: Unpack[Forward],
) -> Attended:
    """Compute additive attention with the keys in blocks.

    Notes
    -----
    ``score(q, k) = w_v . tanh(W_q q + W_k k + b_h)`` (Bahdanau et al. 2015, "Neural machine
    translation by jointly learning to align and translate").

    Examples
    --------
    >>> import dask.array as da
    >>> from attnext.dask import additive_attention
    >>> keys = da.from_array([[1.0], [2.0], [3.0]], chunks=(1, 1))
    >>> W_q, W_k, w_v = [[0.5, 0.0]], [[1.0]], [2.0]
    >>> output = additive_attention([[1.0, 0.0]], keys, keys, W_q, W_k, w_v, 2)
    >>> output.compute().round(3)
    array([[1.541]], dtype=float32)
    """
    return _attend("additive_attention", **locals())


@BACKWARD.spelled_out
def additive_attention_backward(
    grad_output: Any,
    queries: Any,
    keys: Any,
    values: Any,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    b_h: ArrayLike | None = None,
    **options: Unpack[Backward],
) -> Any:
    """Compute the gradients of `additive_attention` with the keys in blocks.

    Notes
    -----
    The method is the same as in `dot_product_attention_backward`. The gradients of the parameters
    are summed over all blocks.

    Examples
    --------
    >>> import dask.array as da
    >>> from attnext.dask import additive_attention_backward
    >>> keys = da.from_array([[1.0], [1.0], [3.0]], chunks=(1, 1))
    >>> W_q, W_k, w_v = [[0.5, 0.0]], [[1.0]], [2.0]
    >>> d = additive_attention_backward([[1.0]], [[1.0, 0.0]], keys, keys, W_q, W_k, w_v, 2)
    >>> d.values.compute()
    array([[0.5],
           [0.5],
           [0. ]], dtype=float32)
    """
    d = _gradients("additive_attention", **locals())
    fields = len(AdditiveGradients._fields)
    named = AdditiveGradients._make(d[:fields])
    return (named, *d[fields:]) if d[fields:] else named


def _attend(function: str, *, options: Forward, **arguments: Any) -> Attended:
    FORWARD.check(function, options)
    rest = {**arguments, **FORWARD.defaults, **options}
    extras = rest.pop("return_weights"), rest.pop("return_lse")
    return attention(make_problem(function, rest), *extras)


def _gradients(
    function: str, *, options: Backward | ScaledBackward, **arguments: Any
) -> tuple[DaskArray | None, ...]:
    """Return the gradients in the order of attnext. None stands for an argument that is None."""
    BACKWARD.check(f"{function}_backward", options)
    rest = {**arguments, **BACKWARD.defaults, **options}
    gradient, of_lse = rest.pop("grad_output"), rest.pop("grad_lse")
    shared = [name for name in SHARED if rest.pop(f"return_grad_{name}", False)]
    problem = make_problem(function, rest)
    d = gradients(problem, incoming(problem, gradient, of_lse), shared)
    return tuple(d.get(name) for name in names_of(function, False, *shared))
