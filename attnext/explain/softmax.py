"""masked_softmax and masked_softmax_backward, step by step.

X, weights, grad_output (..., M, N)   as rows (R, N), with R = B * M
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnext import _core, reference
from attnext.explain.accuracy import TINY, Array, relative_error, rounded
from attnext.explain.attention import add_empty_rows
from attnext.explain.options import OTHER
from attnext.explain.scores import without
from attnext.explain.steps import Arguments, Steps, as_float64, check_size, leading_axes
from attnext.explain.trace import Trace
from attnext.reference.masks import pairs_that_take_part
from attnext.reference.options import Options

_ROWS = ("row", "key")


@OTHER.spelled_out
def masked_softmax(
    X: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    mask: ArrayLike | None = None,
    empty_rows: str = "uniform",
    lang: str = "en",
) -> Trace:
    """Explain `attnext.masked_softmax`: expanded lengths, flattened scores, mask, weights.

    Notes
    -----
    The steps follow the code of Dive into Deep Learning (Zhang et al.: 1.0 (en) 11.3, 2nd ed. (zh)
    10.3), with -inf instead of -1e6.

    Examples
    --------
    >>> from attnext import explain
    >>> trace = explain.masked_softmax([[[0.9, 0.8, 0.3, 0.4]]], [3])
    >>> [step.key for step in trace.steps]
    ['X', 'lens', 'flat', 'takes_part', 'masked', 'exp', 'total', 'softmax']
    >>> print(trace["masked"])
    Masked scores  (1, 4)
       scores = where(takes_part, scores, -inf)
       Masked scores are set to -inf, because exp(-inf) is exactly 0. The code of
       d2l uses -1e6 instead.
    <BLANKLINE>
       row\\key       0       1       2       3
             0  0.9000  0.8000  0.3000    -inf
    """
    arguments = locals()
    return _explain(arguments, arguments.pop("lang"))


@OTHER.spelled_out
def masked_softmax_backward(
    grad_output: ArrayLike,
    weights: ArrayLike,
    valid_lens: ArrayLike | None = None,
    *,
    mask: ArrayLike | None = None,
    empty_rows: str = "uniform",
    lang: str = "en",
) -> Trace:
    """Explain `attnext.masked_softmax_backward`, in the order of the chain rule.

    Notes
    -----
    ``dX = weights * (d_weights - sum(weights * d_weights))``.

    Examples
    --------
    >>> from attnext import explain
    >>> trace = explain.masked_softmax_backward([1, 2, 3], [0.25, 0.75, 0], 2)
    >>> trace["mean"].values
    array([1.75])
    >>> trace.output
    array([-0.1875,  0.1875,  0.    ], dtype=float32)
    """
    arguments = locals()
    return _explain_backward(arguments, arguments.pop("lang"))


def _explain(arguments: Arguments, lang: str) -> Trace:
    """Return the steps from scores to weights."""
    steps = Steps("masked_softmax", lang)
    weights = _core.masked_softmax(**arguments)  # its checks are the ones for these arguments
    check_size(weights.shape)
    with np.errstate(all="ignore"):
        X = as_float64(arguments["X"])
        live = _takes_part(X.shape, arguments)
        axes = _axes(X.ndim)
        steps.add("X", X, axes)
        x, rows = X.reshape(_flat(X.shape)), live.reshape(_flat(X.shape))
        if masked := _mask_steps(steps, X, rows, arguments):
            steps.add("masked", np.where(rows, x, -np.inf), _ROWS, ~rows)
        add_empty_rows(steps, without(rows, -1), rows.shape[-1], ("row",), arguments["empty_rows"])

        e, total = np.zeros(x.shape), np.zeros(len(x))
        for i, row in enumerate(rows):
            e[i][row] = np.exp(x[i][row] - np.max(x[i][row], initial=-np.inf))
            total[i] = np.sum(e[i])
        steps.add("exp", e, _ROWS, ~rows)
        steps.add("total", total, ("row",), without(rows, -1))
        exact = reference.masked_softmax(
            X, mask=live if masked else None, empty_rows=arguments["empty_rows"]
        )
        shown = ~live & ~without(live, -1)[..., None]
        steps.add("softmax", weights, axes, shown)
        bound = exact * relative_error(X, np.zeros(X.shape), live) + TINY
        return steps.trace(arguments, weights, weights, [("weights", weights, exact, bound)])


def _explain_backward(arguments: Arguments, lang: str) -> Trace:
    """Return the steps from the gradient of the weights to the gradient of the scores."""
    steps = Steps("masked_softmax_backward", lang)
    dX = _core.masked_softmax_backward(**arguments)
    check_size(dX.shape)
    with np.errstate(all="ignore"):
        w, d_w = as_float64(arguments["weights"]), as_float64(arguments["grad_output"])
        live = _takes_part(w.shape, arguments)
        axes = _axes(w.ndim)
        rows, empty = axes[:-1] or ("row",), np.atleast_1d(without(live, -1))
        add_empty_rows(steps, empty, live.shape[-1], rows, arguments["empty_rows"])
        steps.add("given", w, axes, ~live)
        steps.add("grad_output", d_w, axes, ~live)
        mean = np.sum(np.where(live, w * d_w, 0.0), axis=-1)
        steps.add("mean", np.atleast_1d(mean), rows, empty)
        exact = np.where(live, w * (d_w - mean[..., None]), 0.0)
        if arguments["empty_rows"] == "nan":
            exact[without(live, -1)] = np.nan
        steps.add("d_scores", dX, axes, ~live, left="dX", more="")
        sizes = np.where(live, np.abs(w * d_w), 0.0).sum(axis=-1, keepdims=True)
        factor = rounded(np.abs(d_w) + sizes, w.shape[-1])  # of d_w - mean
        bound = np.where(live, np.abs(w) * factor, 0.0) + TINY
        return steps.trace(arguments, dX, w, [("dX", dX, exact, bound)])


def _mask_steps(steps: Steps, X: Array, rows: NDArray[np.bool_], arguments: Arguments) -> bool:
    """Add lengths, flattened scores and mask (R, N), as in d2l. Return False without a mask."""
    R, N = rows.shape
    rules = []
    if arguments["valid_lens"] is not None:
        lengths = Options(arguments["valid_lens"])
        lens = np.sum(pairs_that_take_part(X.shape[:-1], N, lengths), axis=-1).reshape(R)
        expanded = _expanded(np.shape(arguments["valid_lens"]), X.shape[:-1])
        steps.add("lens", lens, ("row",), expanded=expanded, rows=R, N=N)
        rules.append("j < lens[i]")
    if arguments["mask"] is not None:
        rules.append("mask[i, j]")
    if not rules:
        return False
    if X.ndim != 2:
        steps.add("flat", X.reshape(rows.shape), _ROWS, N=N)
    live, rule = int(rows.sum()), " and ".join(rules)
    steps.add("takes_part", rows, _ROWS, ~rows, conditions=rule, live=live, pairs=rows.size)
    return True


def _expanded(lens: tuple[int, ...], rows: tuple[int, ...]) -> str:
    """Return the code that computes one length per row from lengths of this shape."""
    R = math.prod(rows)
    if lens == ():
        return f"full({R}, valid_lens)"
    if lens == rows:
        return "valid_lens.reshape(-1)"
    if len(lens) == 1:
        return f"repeat(valid_lens, {R // max(lens[0], 1)})"
    between = R // max(math.prod(lens), 1)  # (B, M), shared by the axes between
    return f"repeat(valid_lens, {between}, axis=0).reshape(-1)"


def _takes_part(shape: tuple[int, ...], arguments: Arguments) -> NDArray[np.bool_]:
    """Return a mask (..., M, N), True where a key is not masked."""
    options = Options(arguments["valid_lens"], mask=arguments["mask"])
    return pairs_that_take_part(shape[:-1], shape[-1], options)


def _flat(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the shape (rows, N). reshape(-1, N) could not infer the rows if N is 0."""
    return math.prod(shape[:-1]), shape[-1]


def _axes(ndim: int) -> tuple[str, ...]:
    """Return the names of the axes of the scores."""
    return ("key",) if ndim == 1 else (*leading_axes(ndim - 2), "query", "key")
