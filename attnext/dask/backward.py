"""The gradients of the attentions, on Dask arrays: one function for each score."""

from __future__ import annotations

from typing import Any, Unpack

from numpy.typing import ArrayLike

from attnext import AdditiveGradients
from attnext._gradients import SHARED, names_of

from .arguments import (
    BACKWARD,
    Backward,
    DaskArray,
    ScaledBackward,
    incoming,
    make_problem,
)
from .graph import gradients


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
