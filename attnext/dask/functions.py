"""The attentions and their gradients, on Dask arrays: two functions for each score."""

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

# A Dask array, or a tuple of the output and the extras asked for.
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
    """Pool values by the softmax of scaled dot products, the keys in blocks.

    Parameters
    ----------
    keys : dask.array.Array or array_like, shape (..., N, D)
        The keys; leading axes as those of `queries`. How they are cut along N says who attends
        to which of them.

    See Also
    --------
    attnext.dot_product_attention : The same for arrays in memory.
    attnext.merge_attention : How the blocks become one result.

    Notes
    -----
    ``output = softmax(scale * queries @ keys^T) @ values`` (Vaswani et al. 2017, equation 1), each
    block of keys on its own, then merged: see `attnext.dask`. The output is in the blocks of the
    queries, the weights in blocks along M and N: compute a part of them. What the merge adds to the
    error is the rounding of each log-sum-exp, about ``|lse| * 6e-8`` relative to the output for
    each level of the tree; ``dask.config.set(split_every=...)`` says how many parts are merged at a
    time.

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
    """Gradients of `dot_product_attention`, the keys in blocks.

    Notes
    -----
    With the output o_r and the log-sum-exp l_r of a block of keys, o and l those of the whole and
    g = `grad_output`, the merge passes back ``do_r = exp(l_r - l) g`` and ``dl_r = exp(l_r - l) (g
    . (o_r - o) + grad_lse)``. These are the `grad_output` and `grad_lse` of the block's own
    backward, which needs no other block. The block attends again to get o_r and l_r, so that none
    of them is kept: memory grows with the keys, not with queries times blocks of keys.

    The gradients need the output over all keys first. If it is computed in the same
    ``dask.compute``, it is computed once for both.

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
    """Pool values by the softmax of cosine similarities, the keys in blocks.

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
    """Gradients of `cosine_attention`, the keys in blocks.

    Notes
    -----
    As in `dot_product_attention_backward`.

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
    """Pool values by a Gaussian kernel of the distance, the keys in blocks.

    Notes
    -----
    ``score(q, k) = -(w * |q - k|)**2 / 2``: kernel regression (Nadaraya 1964, Watson 1964) on more
    training data than one machine holds.

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
    """Gradients of `gaussian_attention`, the keys in blocks.

    Notes
    -----
    As in `dot_product_attention_backward`; dw is the sum over all pairs of blocks.

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
    """Pool values by the softmax of additive scores, the keys in blocks.

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
    """Gradients of `additive_attention`, the keys in blocks.

    Notes
    -----
    As in `dot_product_attention_backward`; the gradients of the parameters are sums over all pairs
    of blocks.

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
    """In the order in which attnext returns them; None where there is nothing they belong to."""
    BACKWARD.check(f"{function}_backward", options)
    rest = {**arguments, **BACKWARD.defaults, **options}
    gradient, of_lse = rest.pop("grad_output"), rest.pop("grad_lse")
    shared = [name for name in SHARED if rest.pop(f"return_grad_{name}", False)]
    problem = make_problem(function, rest)
    d = gradients(problem, incoming(problem, gradient, of_lse), shared)
    return tuple(d.get(name) for name in names_of(function, False, *shared))
