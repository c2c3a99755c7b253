"""The backward of each attention, step by step in the order of the chain rule."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from attnext import _core
from attnext._gradients import asked_for, by_name
from attnext._options import AdditiveBackward, CosineBackward, DotProductBackward, GaussianBackward
from attnext.explain.attention import is_dropped, read_problem
from attnext.explain.chain import (
    Incoming,
    forward,
    multiplied,
    of_scale,
    of_values,
    shared_steps,
    softcap_backward,
    softmax_steps,
)
from attnext.explain.gradients import BACKWARDS
from attnext.explain.options import BACKWARD
from attnext.explain.scores import SCORES
from attnext.explain.steps import Steps, as_float64, check_size
from attnext.explain.trace import Trace


@BACKWARD.spelled_out
def dot_product_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    lang: str = "en",
    **options: Unpack[DotProductBackward],
) -> Trace:
    """Explain `attnext.dot_product_attention_backward`, in the order of the chain rule.

    Notes
    -----
    With weights P and g = `grad_output`: ``dP = g v^T``, ``dS = P * (dP - rowsum(P * dP))``,
    ``dq = scale * dS k``, ``dk = scale * dS^T q``, ``dv = P^T g``.

    Examples
    --------
    >>> from attnext import explain
    >>> q, k, v = [[1, 1]], [[1, 1], [1, 1]], [[1, 2], [3, 4]]
    >>> trace = explain.dot_product_attention_backward([[1, 0]], q, k, v, scale=1)
    >>> trace["d_scores"].values
    array([[-0.5,  0.5]])
    >>> dq, dk, dv = trace.output
    >>> dk
    array([[-0.5, -0.5],
           [ 0.5,  0.5]], dtype=float32)
    """
    return _explain("dot_product_attention", **locals())


@BACKWARD.spelled_out
def additive_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    lang: str = "en",
    **options: Unpack[AdditiveBackward],
) -> Trace:
    """Explain `attnext.additive_attention_backward`: through softmax, tanh and projections.

    Notes
    -----
    ``d_features[i, j] = dS[i, j] * w_v * (1 - tanh^2)`` is of shape (..., M, N, H): if it holds
    more than 2**21 numbers, its step keeps those of the first query.

    Examples
    --------
    >>> from attnext import explain
    >>> q, k, v = [[0.0]], [[0.0], [0.0]], [[1.0], [3.0]]
    >>> trace = explain.additive_attention_backward([[1.0]], q, k, v, [[1.0]], [[1.0]], [2.0])
    >>> [step.key for step in trace.steps][3:]
    ['d_scores', 'd_features', 'd_hidden_q', 'd_hidden_k', 'd_queries', 'd_keys', 'd_W_q', \
'd_W_k', 'd_w_v', 'd_values']
    """
    return _explain("additive_attention", **locals())


@BACKWARD.spelled_out
def gaussian_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    lang: str = "en",
    **options: Unpack[GaussianBackward],
) -> Trace:
    """Explain `attnext.gaussian_attention_backward`, to the gradient of the bandwidth.

    Notes
    -----
    With dS the gradient of the scores: ``dw = -w * sum dS * distance**2``, which descends to the
    bandwidth that fits.

    Examples
    --------
    >>> from attnext import explain
    >>> x, y = [[-1.0], [1.0]], [[0.0], [4.0]]
    >>> trace = explain.gaussian_attention_backward([[1.0]], [[0.0]], x, y, w=0.5)
    >>> trace["d_queries"].values
    array([[0.5]], dtype=float32)
    """
    return _explain("gaussian_attention", **locals())


@BACKWARD.spelled_out
def cosine_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    lang: str = "en",
    **options: Unpack[CosineBackward],
) -> Trace:
    """Explain `attnext.cosine_attention_backward`: only what lies across a vector turns it.

    Notes
    -----
    With u for a query over its length: ``dq = (du - (u . du) u) / |q|``.

    Examples
    --------
    >>> from attnext import explain
    >>> q, k, v = [[2.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[0.0], [4.0]]
    >>> trace = explain.cosine_attention_backward([[1.0]], q, k, v)
    >>> trace["d_unit_q"].values.round(3), trace["d_queries"].values.round(3)
    (array([[-0.786,  0.786]]), array([[0.   , 0.393]], dtype=float32))
    """
    return _explain("cosine_attention", **locals())


def _explain(function: str, *, lang: str, options: Any, **arguments: Any) -> Trace:
    name = f"{function}_backward"
    arguments |= BACKWARD.completed(name, options)
    steps = Steps(name, lang)
    returned: Any = getattr(_core, name)(**arguments)  # its checks are the ones
    results = by_name(function, returned, False, *asked_for(arguments))
    with np.errstate(all="ignore"):
        p = read_problem(arguments)
        check_size(p.inputs.live.shape)
        # the steps of the forward are those of another trace
        scores = SCORES[function](p.inputs, Steps(function, "en"), arguments)
        of, g = forward(p, *scores, arguments), Incoming(as_float64(arguments["grad_output"]))
        d_scores, d_sink = softmax_steps(p, of, g, arguments, steps)
        d_raw = softcap_backward(p, d_scores, of.slope, arguments, steps)
        compared = BACKWARDS[function](p, d_raw, arguments, steps, results)
        shown = "kept" if is_dropped(arguments) else "weights"
        axes = (*p.inputs.lead, "key", "feature")
        steps.add("d_values", results["values"], axes, weights=shown, g=g.name)
        d_values = of_values(p, of, g).shared(results["values"].shape)
        compared.append(d_values.compared("v", results["values"]))
        of_shared = {"bias": d_scores, "sink": d_sink}
        products, *vectors = multiplied(function.removesuffix("_attention"), p, arguments)
        if "scale" in arguments:
            of_shared["scale"] = of_scale(p, d_raw, *vectors)
        compared += shared_steps(p, of_shared, products, arguments, steps, results)
        return steps.trace(arguments, returned, of.weights, compared)
