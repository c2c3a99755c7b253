"""dot_product_attention_backward, step by step in the order of the chain rule.

weights, d_weights, d_scores (..., M, N)   grad_output (..., M, Dv)
"""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnext import _core, reference
from attnext._options import Backward, Taken
from attnext.explain.accuracy import TINY, Array, gamma, in_range, relative_error, rounded
from attnext.explain.attention import Problem, add_empty_rows, is_dropped, pool, read_problem
from attnext.explain.scores import dot_product, dot_product_scale, number, transposed
from attnext.explain.steps import Arguments, Compared, Steps, as_float64, check_size
from attnext.explain.trace import Trace
from attnext.reference.sharing import broadcast_backward, share_heads_backward

BACKWARD = Taken(Backward.__annotations__, behind=("lang",))


@BACKWARD.spelled_out
def dot_product_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    scale: float | None = None,
    lang: str = "en",
    **options: Unpack[Backward],
) -> Trace:
    """Explain `attnext.dot_product_attention_backward`, in the order of the chain rule.

    Parameters
    ----------
    grad_output, queries, keys, values, valid_lens, scale : optional
        As in `attnext.dot_product_attention_backward`.
    **options : optional
        As in `attnext.dot_product_attention_backward`.
    lang : {'en', 'zh'}, optional
        Language of the explanation: English or Chinese.

    Returns
    -------
    trace : Trace
        The steps; its `output` is the tuple that `attnext.dot_product_attention_backward`
        returns, bit for bit, and its last steps are these gradients.

    Raises
    ------
    TypeError, ValueError
        As in `dot_product_attention`.

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
    return _explain(**locals())


class _Gradient(NamedTuple):
    """The gradient of every pair (..., M, N), and how far that in float32 may be from it."""

    values: Array
    size: Array  # of the terms that it is made of, all taken as positive
    error: Array  # the bound of its error

    @property
    def T(self) -> _Gradient:
        """The same with keys before queries, (..., N, M)."""
        return _Gradient(transposed(self.values), transposed(self.size), transposed(self.error))


def _explain(*, lang: str, options: Backward, **arguments: Any) -> Trace:
    BACKWARD.check("dot_product_attention_backward", options)
    arguments |= {**BACKWARD.defaults, **options}
    steps = Steps("dot_product_attention_backward", lang)
    results: Any = _core.dot_product_attention_backward(**arguments)  # its checks are the ones
    with np.errstate(all="ignore"):
        p = read_problem(arguments)
        check_size(p.inputs.live.shape)
        weights, relative, slope = _forward(p, arguments)
        add_empty_rows(steps, p.inputs.live, p.inputs.pairs[:-1], p.pairs.empty_rows)
        masked = ~p.inputs.live & ~p.empty[..., None]
        steps.add("again", weights, p.inputs.pairs, masked)
        d_scores = _scores_steps(p, weights, relative, arguments, steps)
        d_raw = _softcap_step(p, d_scores, slope, arguments, steps)
        compared = [
            _queries_step(p, d_raw, arguments, steps, results[0]),
            _keys_step(p, d_raw, arguments, steps, results[1]),
            _values_step(p, weights, relative, arguments, steps, results[2]),
        ]
        if arguments["return_grad_bias"] and arguments["bias"] is not None:
            compared.append(_bias_step(p, d_scores, arguments, steps, results[3]))
        return steps.trace(arguments, results, weights, compared)


class _Slope(NamedTuple):
    """The slope of the cap at every score (..., M, N), 1 without one."""

    values: Array
    relative: Array  # the relative error of that in float32


def _forward(p: Problem, arguments: Arguments) -> tuple[Array, Array, _Slope]:
    """The weights (..., M, N), the relative error (..., M, 1) of those in float32, the slopes."""
    x, forward = p.inputs, Steps("dot_product_attention", "en")  # whose trace is another one
    scores, error = dot_product(x, forward, arguments)
    slope = _Slope(np.ones(scores.shape), np.zeros(scores.shape))
    if arguments["softcap"] is not None:
        cap = number(arguments["softcap"])
        at = scores / cap
        # another score, by delta, changes the slope by a factor of exp(2 * delta / cap) at most
        relative = np.expm1(2 * (error / cap + gamma(1) * np.abs(at))) + gamma(1)
        slope = _Slope(1 / np.cosh(at) ** 2, relative)
        scores = cap * np.tanh(at)
        error = error + gamma(1) * np.abs(scores)  # tanh is nowhere steeper than 1
    error = error + gamma(1) * (np.abs(scores) + np.abs(p.pairs.bias))
    scores = scores + p.pairs.bias
    weights = reference.masked_softmax(scores, mask=x.live, empty_rows=p.pairs.empty_rows)
    return weights, relative_error(scores, error, x.live), slope


def _scores_steps(
    p: Problem, weights: Array, relative: Array, arguments: Arguments, steps: Steps
) -> _Gradient:
    """From the gradient of the output to that of the scores."""
    live, keep = p.inputs.live, p.pairs.keep
    rows, values = live.shape[:-1], p.values
    g = as_float64(arguments["grad_output"])
    d_lse = _or_zeros(arguments["grad_lse"], rows)[..., None]
    extra = _or_zeros(arguments["grad_weights"], live.shape)

    # forward was: output = (weights * keep) @ values
    d_weights = p.inputs.of_pairs((g @ transposed(values)) * keep + extra)
    more = " * keep" if is_dropped(arguments) else ""
    more += " + grad_weights" if arguments["grad_weights"] is not None else ""
    steps.add("d_weights", d_weights, p.inputs.pairs, ~live, more=more)
    # forward was: weights = softmax(scores), lse = log(sum(exp(scores)))
    mean = np.sum(np.where(live, weights * d_weights, 0.0), axis=-1)
    steps.add("mean", mean, p.inputs.pairs[:-1], p.empty)
    d_scores = np.where(live, weights * (d_weights - mean[..., None] + d_lse), 0.0)
    more = " + weights * grad_lse" if arguments["grad_lse"] is not None else ""
    steps.add("d_scores", d_scores, p.inputs.pairs, ~live, name="d_scores", more=more)

    products = in_range(np.abs(g) @ transposed(np.abs(values)))
    size = in_range(np.where(np.isinf(products), np.inf, products * keep) + np.abs(extra))
    mean_size = np.sum(np.where(live, weights * size, 0.0), axis=-1, keepdims=True)
    terms = np.where(live, in_range(size + mean_size + np.abs(d_lse)), 0.0)
    size = np.where(live, weights * terms, 0.0)
    # a weight, and another in the mean; the sums of d_weights and of the mean, the difference
    sums = gamma(live.shape[-1] + values.shape[-1])
    error = ((1 + relative) ** 2 * (1 + sums) ** 3 - 1) * size
    error = error + TINY * (1 + terms)  # a weight below TINY may be 0
    return _Gradient(d_scores, size, np.where(live, error, 0.0))


def _softcap_step(
    p: Problem, d: _Gradient, slope: _Slope, arguments: Arguments, steps: Steps
) -> _Gradient:
    """From the gradient of the scores under the cap to that of the scores, if there is a cap."""
    if arguments["softcap"] is None:
        return d
    # forward was: scores = cap * tanh(scores / cap)
    live = p.inputs.live
    d_scores, size = (np.where(live, x * slope.values, 0.0) for x in (d.values, d.size))
    error = (d.error + slope.relative * (d.size + d.error)) * slope.values + 8 * TINY * d.size
    steps.add("d_softcap", d_scores, p.inputs.pairs, ~live, cap=number(arguments["softcap"]))
    return _Gradient(d_scores, size, np.where(live, error, 0.0))


def _queries_step(
    p: Problem, d_scores: _Gradient, arguments: Arguments, steps: Steps, result: Any
) -> Compared:
    # forward was: scores = scale * queries @ keys^T
    x = p.inputs
    scale = dot_product_scale(arguments, x.queries.shape[-1])
    d_queries, bound = _pooled(d_scores, x.keys, x.live, result.shape, x.live.shape[-1])
    d_queries = scale * d_queries
    if p.pairs.empty_rows == "nan" and x.live.shape[-1] > 0:
        d_queries[p.empty] = np.nan
    steps.add("d_queries", result, (*x.lead, "query", "feature"), scale=scale)
    return "dq", result, d_queries, abs(scale) * bound + TINY


def _keys_step(
    p: Problem, d_scores: _Gradient, arguments: Arguments, steps: Steps, result: Any
) -> Compared:
    # forward was: scores = scale * queries @ keys^T
    x = p.inputs
    scale = dot_product_scale(arguments, x.queries.shape[-1])
    live, terms = x.live.swapaxes(-1, -2), x.live.shape[-2] * p.group
    d_keys, bound = _pooled(d_scores.T, x.queries, live, result.shape, terms)
    steps.add("d_keys", result, (*x.lead, "key", "feature"), scale=scale)
    return "dk", result, scale * d_keys, abs(scale) * bound + TINY


def _values_step(
    p: Problem, weights: Array, relative: Array, arguments: Arguments, steps: Steps, result: Any
) -> Compared:
    # forward was: output = (weights * keep) @ values
    live, keep = p.inputs.live, p.pairs.keep
    if p.pairs.empty_rows == "uniform":
        live = live | p.empty[..., None]
    kept = np.where(live, weights * keep, 0.0)
    error = np.where(live, (weights * relative + TINY) * keep, 0.0)
    g, terms = as_float64(arguments["grad_output"]), live.shape[-2] * p.group
    kept_T = _Gradient(kept, kept, error).T
    d_values, bound = _pooled(kept_T, g, live.swapaxes(-1, -2), result.shape, terms)
    shown = "kept" if is_dropped(arguments) else "weights"
    steps.add("d_values", result, (*p.inputs.lead, "key", "feature"), weights=shown)
    return "dv", result, d_values, bound


def _bias_step(
    p: Problem, d_scores: _Gradient, arguments: Arguments, steps: Steps, result: Any
) -> Compared:
    # forward was: scores + bias, broadcast to (..., M, N)
    shape = result.shape
    axes = p.inputs.pairs[len(p.inputs.pairs) - len(shape) :]
    steps.add("d_bias", np.atleast_1d(result), axes or ("axis",), to=shape)
    d_bias, sizes, errors = (broadcast_backward(x, shape) for x in d_scores)
    return "dbias", result, d_bias, errors + rounded(sizes, p.inputs.live.size)


def _pooled(
    d: _Gradient, x: Array, live: NDArray[np.bool_], shape: tuple[int, ...], terms: int
) -> tuple[Array, Array]:
    """sum_j d[i, j] * x[j] over the pairs that take part, and the bound of its error.

    Heads that share a head of the result, which has this shape, are summed: so many terms in all.
    """
    parts = [(d.values, x), (d.size, np.abs(x)), (d.error, np.abs(x))]
    exact, sizes, errors = (share_heads_backward(pool(a, b, live), shape) for a, b in parts)
    return exact, errors + rounded(sizes, terms)


def _or_zeros(x: Any, shape: tuple[int, ...]) -> Array:
    """What flows back into weights or lse; nothing if they were not used."""
    return np.zeros(shape) if x is None else as_float64(x)
