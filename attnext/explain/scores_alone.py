"""The scores without softmax and pooling, and their backward pass, step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from attnext import _core
from attnext._options import (
    AdditiveScores,
    CosineScores,
    CosineScoresBackward,
    DotProductScores,
    DotProductScoresBackward,
    GaussianScores,
)
from attnext.explain.accuracy import gamma
from attnext.explain.attention import Problem, softcap_step
from attnext.explain.chain import forward, multiplied, of_scale, shared_steps, softcap_backward
from attnext.explain.gradients import Gradient, score_backward
from attnext.explain.options import SCORES, SCORES_BACKWARD, UNSCALED_SCORES_BACKWARD
from attnext.explain.scores import SCORES as STEPS_OF
from attnext.explain.scores import Inputs
from attnext.explain.steps import Arguments, Steps, as_float64, check_size, leading_axes
from attnext.explain.trace import Trace
from attnext.reference.attention import all_pairs
from attnext.reference.options import Options


@SCORES.spelled_out
def dot_product_scores(
    queries: ArrayLike, keys: ArrayLike, *, lang: str = "en", **options: Unpack[DotProductScores]
) -> Trace:
    """Explain `attnext.dot_product_scores`: dot products, scale.

    Examples
    --------
    >>> from attnext import explain
    >>> explain.dot_product_scores([[1, 2]], [[3, 4]], scale=2)["scores"].values
    array([[22.]], dtype=float32)
    """
    return _explain("dot_product", **locals())


@SCORES.spelled_out
def cosine_scores(
    queries: ArrayLike, keys: ArrayLike, *, lang: str = "en", **options: Unpack[CosineScores]
) -> Trace:
    """Explain `attnext.cosine_scores`: unit-length vectors, cosines.

    Examples
    --------
    >>> from attnext import explain
    >>> explain.cosine_scores([[3, 4]], [[6, 8]])["unit_k"].values
    array([[0.6, 0.8]])
    """
    return _explain("cosine", **locals())


@SCORES.spelled_out
def gaussian_scores(
    queries: ArrayLike, keys: ArrayLike, *, lang: str = "en", **options: Unpack[GaussianScores]
) -> Trace:
    """Explain `attnext.gaussian_scores`: distances, logarithm of the kernel.

    Examples
    --------
    >>> from attnext import explain
    >>> explain.gaussian_scores([[0, 0]], [[3, 4]])["distance"].values
    array([[5.]])
    """
    return _explain("gaussian", **locals())


@SCORES.spelled_out
def additive_scores(
    queries: ArrayLike,
    keys: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    *,
    lang: str = "en",
    **options: Unpack[AdditiveScores],
) -> Trace:
    """Explain `attnext.additive_scores`: projections, broadcast sum, tanh, scores.

    Examples
    --------
    >>> from attnext import explain
    >>> trace = explain.additive_scores([[1.0]], [[-1.0], [0.0]], [[0.5]], [[0.5]], [2.0])
    >>> trace["features"].values[..., 0]
    array([[0. , 0.5]])
    """
    return _explain("additive", **locals())


@SCORES_BACKWARD.spelled_out
def dot_product_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    lang: str = "en",
    **options: Unpack[DotProductScoresBackward],
) -> Trace:
    """Explain `attnext.dot_product_scores_backward`, in the order of the chain rule.

    Examples
    --------
    >>> from attnext import explain
    >>> trace = explain.dot_product_scores_backward([[1, -1]], [[1, 2]], [[3, 4], [5, 7]], scale=2)
    >>> trace["d_queries"].values
    array([[-4., -6.]], dtype=float32)
    """
    return _explain_backward("dot_product", **locals())


@SCORES_BACKWARD.spelled_out
def cosine_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    lang: str = "en",
    **options: Unpack[CosineScoresBackward],
) -> Trace:
    """Explain `attnext.cosine_scores_backward`, in the order of the chain rule.

    Examples
    --------
    >>> from attnext import explain
    >>> trace = explain.cosine_scores_backward([[1.0]], [[2.0, 0.0]], [[3.0, 4.0]])
    >>> trace["d_unit_q"].values
    array([[0.6, 0.8]])
    """
    return _explain_backward("cosine", **locals())


@UNSCALED_SCORES_BACKWARD.spelled_out
def gaussian_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    *,
    lang: str = "en",
    **options: Unpack[GaussianScores],
) -> Trace:
    """Explain `attnext.gaussian_scores_backward`, in the order of the chain rule.

    Examples
    --------
    >>> from attnext import explain
    >>> explain.gaussian_scores_backward([[1]], [[0, 0]], [[3, 4]], w=2)["d_w"].values
    array([-50.], dtype=float32)
    """
    return _explain_backward("gaussian", **locals())


@UNSCALED_SCORES_BACKWARD.spelled_out
def additive_scores_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    w_v: ArrayLike,
    *,
    lang: str = "en",
    **options: Unpack[AdditiveScores],
) -> Trace:
    """Explain `attnext.additive_scores_backward`, in the order of the chain rule.

    Examples
    --------
    >>> from attnext import explain
    >>> q, k = [[1.0]], [[-1.0], [1.0]]
    >>> trace = explain.additive_scores_backward([[1.0, 1.0]], q, k, [[0.5]], [[0.5]], [2.0])
    >>> trace["d_features"].values.round(2)[..., 0]
    array([[2.  , 0.84]])
    """
    return _explain_backward("additive", **locals())


def _explain(score: str, *, lang: str, options: Any, **arguments: Any) -> Trace:
    name = f"{score}_scores"
    arguments |= SCORES.completed(name, options)
    steps = Steps(name, lang)
    result = getattr(_core, name)(**arguments)  # its checks are the ones for these arguments
    check_size(result.shape)
    with np.errstate(all="ignore"):
        p = _problem(arguments)
        exact, bound = STEPS_OF[f"{score}_attention"](p.inputs, steps, arguments)
        exact, bound = softcap_step(p.inputs, exact, bound, arguments, steps)
        bound = bound + gamma(1) * np.abs(exact)
        steps.steps[-1] = replace(steps.steps[-1], values=result)
        return steps.trace(arguments, result, result, [("scores", result, exact, bound)])


def _explain_backward(score: str, *, lang: str, options: Any, **arguments: Any) -> Trace:
    name = f"{score}_scores_backward"
    arguments |= SCORES_BACKWARD.completed(name, options)
    steps = Steps(name, lang)
    returned: Any = getattr(_core, name)(**arguments)
    names = ("queries", "keys", *(("w",) if score == "gaussian" else ("scale",)))
    named = hasattr(returned, "_asdict")
    results = returned._asdict() if named else dict(zip(names, returned, strict=False))
    with np.errstate(all="ignore"):
        p = _problem(arguments)
        check_size(p.inputs.live.shape)
        # discard the steps of the forward pass
        scores = STEPS_OF[f"{score}_attention"](p.inputs, Steps(name, "en"), arguments)
        before = forward(p, *scores, arguments)
        grad = as_float64(arguments["grad_output"])
        steps.add("grad_scores", grad, p.inputs.pairs)
        d = Gradient(grad, np.abs(grad), np.zeros(grad.shape))
        d = softcap_backward(p, d, before.slope, arguments, steps)
        compared = score_backward(f"{score}_attention", p, d, arguments, steps, results)
        if arguments.get("return_grad_scale"):
            products, *vectors = multiplied(score, p, arguments)
            of = {"scale": of_scale(p, d, *vectors)}
            without_lse = {**arguments, "grad_lse": None}
            compared += shared_steps(p, of, products, without_lse, steps, results)
        return steps.trace(arguments, returned, grad, compared)


def _problem(arguments: Arguments) -> Problem:
    """Return a problem without masks and without values."""
    q, k = (as_float64(arguments[name]) for name in ("queries", "keys"))
    pairs = all_pairs(q, k, Options())
    inputs = Inputs(q, k, pairs.takes_part, leading_axes(q.ndim - 2))
    return Problem(inputs, np.zeros((*k.shape[:-1], 0)), pairs, 1)
