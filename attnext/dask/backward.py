"""The gradients of the attentions, on Dask arrays: one function for each score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from numpy.typing import ArrayLike

from attnext import AdditiveGradients
from attnext._gradients import SHARED, names_of
from attnext._options import Taken

from .arguments import (
    BACKWARD,
    SCALED_BACKWARD,
    Backward,
    DaskArray,
    ScaledBackward,
    incoming,
    make_problem,
)
from .graph import gradients


@SCALED_BACKWARD.spelled_out
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

    Parameters
    ----------
    grad_output : dask.array.Array or array_like, shape (..., M, Dv)
        Gradient of the loss with respect to the output.
    queries, keys, values : dask.array.Array or array_like
        As in the forward, like everything up to `empty_rows`.
    valid_lens : None, int or array_like of integers, optional
        As in the forward.
    scale : float or array_like, optional
        As in the forward.
    **options : optional
        As in `attnext.dot_product_attention`.

    Returns
    -------
    dq, dk, dv : dask.array.Array, float32
        Gradients with respect to `queries`, `keys` and `values`, in their shapes. Those of the
        queries are sums over the blocks of keys, the others over the blocks of queries.
    dbias, dsink, dscale : dask.array.Array, float32, shape of `bias`, `sink`, `scale`
        Only with `return_grad_bias`, `return_grad_sink`, `return_grad_scale`: gradients with
        respect to them; None without a bias or a sink.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    See Also
    --------
    attnext.dot_product_attention_backward : The same for arrays in memory.

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
    inputs = {"queries": queries, "keys": keys, "values": values}
    own = {"valid_lens": valid_lens, "scale": scale}
    return _gradients(
        "dot_product_attention", grad_output, inputs, own, options, taken=SCALED_BACKWARD
    )


@SCALED_BACKWARD.spelled_out
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

    Parameters
    ----------
    grad_output : dask.array.Array or array_like, shape (..., M, Dv)
        Gradient of the loss with respect to the output.
    queries, keys, values : dask.array.Array or array_like
        As in the forward, like everything up to `empty_rows`.
    valid_lens : None, int or array_like of integers, optional
        As in the forward.
    scale, eps : optional
        As in the forward.
    **options : optional
        As in `attnext.dot_product_attention`.

    Returns
    -------
    dq, dk, dv : dask.array.Array, float32
        As from `dot_product_attention_backward`.
    dbias, dsink, dscale : dask.array.Array, float32
        Only if asked for, likewise.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    See Also
    --------
    attnext.cosine_attention_backward : The same for arrays in memory.

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
    inputs = {"queries": queries, "keys": keys, "values": values}
    own = {"valid_lens": valid_lens, "scale": scale, "eps": eps}
    return _gradients("cosine_attention", grad_output, inputs, own, options, taken=SCALED_BACKWARD)


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

    Parameters
    ----------
    grad_output : dask.array.Array or array_like, shape (..., M, Dv)
        Gradient of the loss with respect to the output.
    queries, keys, values : dask.array.Array or array_like
        As in the forward, like everything up to `empty_rows`.
    valid_lens : None, int or array_like of integers, optional
        As in the forward.
    w, sigma : float, optional
        As in the forward.
    **options : optional
        As in `attnext.dot_product_attention`.

    Returns
    -------
    dq, dk, dv : dask.array.Array, float32
        As from `dot_product_attention_backward`.
    dw : dask.array.Array, float32, shape ()
        Gradient with respect to ``w = 1 / sigma``, whichever of the two was given.
    dbias, dsink : dask.array.Array, float32
        Only if asked for, as from `dot_product_attention_backward`.

    Raises
    ------
    TypeError, ValueError
        As in `gaussian_attention`.

    See Also
    --------
    attnext.gaussian_attention_backward : The same for arrays in memory.

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
    inputs = {"queries": queries, "keys": keys, "values": values}
    own = {"valid_lens": valid_lens, "w": w, "sigma": sigma}
    return _gradients("gaussian_attention", grad_output, inputs, own, options)


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

    Parameters
    ----------
    grad_output : dask.array.Array or array_like, shape (..., M, Dv)
        Gradient of the loss with respect to the output.
    queries, keys, values : dask.array.Array or array_like
        As in the forward, like everything up to `empty_rows`.
    W_q, W_k, w_v : array_like, shapes (H, Dq), (H, Dk) and (H,) or (1, H)
        As in the forward.
    valid_lens : None, int or array_like of integers, optional
        As in the forward.
    b_h : array_like, shape (H,), optional
        As in the forward.
    **options : optional
        As in `attnext.dot_product_attention`.

    Returns
    -------
    gradients : attnext.AdditiveGradients of dask.array.Array, float32
        A named tuple of seven: queries, keys, values, W_q, W_k, w_v, b_h, each in the shape of what
        it belongs to; b_h is None if no `b_h` was given.
    dbias, dsink : dask.array.Array, float32
        Only if asked for, as from `dot_product_attention_backward`: what is returned is
        then a tuple of the two.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

    See Also
    --------
    attnext.additive_attention_backward : The same for arrays in memory.

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
    parameters = {"W_q": W_q, "W_k": W_k, "w_v": w_v}
    if b_h is not None:
        parameters["b_h"] = b_h
    inputs = {"queries": queries, "keys": keys, "values": values}
    own = {"valid_lens": valid_lens}
    d = _gradients("additive_attention", grad_output, inputs, own, options, parameters)
    fields = len(AdditiveGradients._fields)
    named = AdditiveGradients._make(d[:fields])
    return (named, *d[fields:]) if d[fields:] else named


def _gradients(
    function: str,
    grad_output: Any,
    inputs: Mapping[str, Any],
    own: Mapping[str, Any],
    options: Backward | ScaledBackward,
    parameters: Mapping[str, ArrayLike] | None = None,
    taken: Taken = BACKWARD,
) -> tuple[DaskArray | None, ...]:
    """In the order in which attnext returns them; None where there is nothing they belong to."""
    taken.check(f"{function}_backward", options)
    rest = {**own, **taken.defaults, **options}
    grad_lse = rest.pop("grad_lse")
    shared = [name for name in SHARED if rest.pop(f"return_grad_{name}", False)]
    problem = make_problem(function, inputs, rest, parameters)
    d = gradients(problem, incoming(problem, grad_output, grad_lse), shared)
    return tuple(d.get(name) for name in names_of(function, False, *shared))
