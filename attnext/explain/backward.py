"""dot_product_attention_backward, step by step in the order of the chain rule.

weights, d_weights, d_scores (..., M, N)   grad_output (..., M, Dv)
"""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnext import _core
from attnext._options import Backward, Scaled, Taken
from attnext.explain.accuracy import TINY, Array, gamma, in_range, rounded
from attnext.explain.attention import Problem, add_empty_rows, is_dropped, pool, read_problem
from attnext.explain.scores import dot_product, dot_product_scale, number, scale_text, transposed
from attnext.explain.steps import Arguments, Compared, Steps, as_float64, check_size
from attnext.explain.trace import Trace
from attnext.reference.sharing import broadcast_backward, share_heads_backward


class Options(Backward, Scaled, total=False):
    """The options of the backward."""


BACKWARD = Taken(Options.__annotations__, behind=("lang",))


@BACKWARD.spelled_out
def dot_product_attention_backward(
    grad_output: ArrayLike,
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    scale: ArrayLike | None = None,
    lang: str = "en",
    **options: Unpack[Options],
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

    def times(self, scale: Array) -> _Gradient:
        """The same, multiplied."""
        return _Gradient(scale * self.values, np.abs(scale) * self.size, np.abs(scale) * self.error)

    @property
    def T(self) -> _Gradient:
        """The same with keys before queries, (..., N, M)."""
        return _Gradient(transposed(self.values), transposed(self.size), transposed(self.error))


def _explain(*, lang: str, options: Options, **arguments: Any) -> Trace:
    BACKWARD.check("dot_product_attention_backward", options)
    arguments |= {**BACKWARD.defaults, **options}
    steps = Steps("dot_product_attention_backward", lang)
    results: Any = _core.dot_product_attention_backward(**arguments)  # its checks are the ones
    with np.errstate(all="ignore"):
        p = read_problem(arguments)
        check_size(p.inputs.live.shape)
        weights, of_sink, relative, slope = _forward(p, arguments)
        rows = p.inputs.pairs[:-1]
        add_empty_rows(steps, p.empty, p.inputs.live.shape[-1], rows, p.pairs.empty_rows)
        masked = ~p.inputs.live & ~p.empty[..., None]
        steps.add("again", weights, p.inputs.pairs, masked)
        d_scores, d_sink = _scores_steps(p, weights, of_sink, relative, arguments, steps)
        d_raw = _softcap_step(p, d_scores, slope, arguments, steps)
        compared = [
            _queries_step(p, d_raw, arguments, steps, results[0]),
            _keys_step(p, d_raw, arguments, steps, results[1]),
            _values_step(p, weights, relative, arguments, steps, results[2]),
        ]
        more = " + weight_of_sink * grad_lse" if arguments["grad_lse"] is not None else ""
        shared = iter(results[3:])
        for name, d, axes in [
            ("bias", d_scores, p.inputs.pairs),
            ("sink", d_sink, rows),
            ("scale", _of_scale(p, d_raw), p.inputs.lead),
        ]:
            result = next(shared) if arguments[f"return_grad_{name}"] else None
            if result is not None:
                compared.append(_shared_step(name, d, axes, more, steps, result))
        return steps.trace(arguments, results, weights, compared)


class _Slope(NamedTuple):
    """The slope of the cap at every score (..., M, N), 1 without one."""

    values: Array
    relative: Array  # the relative error of that in float32


def _forward(p: Problem, arguments: Arguments) -> tuple[Array, Array, Array, _Slope]:
    """What `Problem.softmax` makes of the scores, and the slopes."""
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
    return *p.softmax(scores + p.pairs.bias, error), slope


def _scores_steps(
    p: Problem,
    weights: Array,
    of_sink: Array,
    relative: Array,
    arguments: Arguments,
    steps: Steps,
) -> tuple[_Gradient, _Gradient]:
    """From the gradient of the output to that of the scores, and of the sink of each row."""
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
    # the sink is a score whose weight nobody used
    of_sink, terms = of_sink[..., None], mean_size + np.abs(d_lse)
    d_sink = np.where(of_sink == 0, 0.0, of_sink * (d_lse - mean[..., None]))
    sink_error = ((1 + relative) ** 2 * (1 + sums) ** 3 - 1) * of_sink * terms + TINY * (1 + terms)
    of_rows = (x[..., 0] for x in (d_sink, of_sink * terms, sink_error))
    return _Gradient(d_scores, size, np.where(live, error, 0.0)), _Gradient(*of_rows)


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
    D = x.queries.shape[-1]
    scaled = d_scores.times(dot_product_scale(arguments, D))
    d_queries, bound = _pooled(scaled, x.keys, x.live, result.shape, x.live.shape[-1])
    if p.pairs.empty_rows == "nan" and x.live.shape[-1] > 0:
        d_queries[p.empty] = np.nan
    axes = (*x.lead, "query", "feature")
    steps.add("d_queries", result, axes, scale=scale_text(arguments, D))
    return "dq", result, d_queries, bound + TINY


def _keys_step(
    p: Problem, d_scores: _Gradient, arguments: Arguments, steps: Steps, result: Any
) -> Compared:
    # forward was: scores = scale * queries @ keys^T
    x = p.inputs
    D = x.queries.shape[-1]
    scaled = d_scores.times(dot_product_scale(arguments, D))
    live, terms = x.live.swapaxes(-1, -2), x.live.shape[-2] * p.group
    d_keys, bound = _pooled(scaled.T, x.queries, live, result.shape, terms)
    steps.add("d_keys", result, (*x.lead, "key", "feature"), scale=scale_text(arguments, D))
    return "dk", result, d_keys, bound + TINY


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


def _of_scale(p: Problem, d_scores: _Gradient) -> _Gradient:
    """The gradient of the scale of every entry, (...)."""
    # forward was: scores = scale * products, products = queries @ keys^T
    q, k, live = p.inputs.queries, p.inputs.keys, p.inputs.live
    products, size = q @ transposed(k), np.abs(q) @ transposed(np.abs(k))
    terms = live.shape[-2] * live.shape[-1] + q.shape[-1]
    parts = [(d_scores.values, products), (d_scores.size, size), (d_scores.error, size)]
    d, sizes, errors = (np.where(live, a * b, 0.0).sum(axis=(-1, -2)) for a, b in parts)
    return _Gradient(d, sizes, errors + rounded(sizes, terms))


def _shared_step(
    name: str, d: _Gradient, axes: tuple[str, ...], more: str, steps: Steps, result: Any
) -> Compared:
    # forward was: bias, broadcast to (..., M, N); sink, to (..., M); scale, to (...)
    shape = result.shape
    axes = axes[len(axes) - len(shape) :] or ("axis",)
    steps.add(f"d_{name}", np.atleast_1d(result), axes, to=shape, more=more)
    exact, sizes, errors = (broadcast_backward(x, shape) for x in d)
    return f"d{name}", result, exact, errors + rounded(sizes, d.values.size)


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
