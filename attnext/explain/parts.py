"""sequence_mask and merge_attention, forward and backward, step by step.

outputs (P, ..., M, Dv)   lses (P, ..., M), of P parts of the keys
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attnext import _core, reference
from attnext.explain.accuracy import TINY, Array, U, gamma, relative_error, rounded
from attnext.explain.options import OTHER
from attnext.explain.scores import number
from attnext.explain.steps import Steps, as_float64, check_size, leading_axes
from attnext.explain.trace import Trace


@OTHER.spelled_out
def sequence_mask(
    X: ArrayLike, valid_len: ArrayLike, value: float = 0.0, *, lang: str = "en"
) -> Trace:
    """Explain `attnext.sequence_mask`: lengths, mask, masked copy.

    Notes
    -----
    The `queries` argument of `Trace.with_labels` labels the steps of the sequences.

    Examples
    --------
    >>> from attnext import explain
    >>> trace = explain.sequence_mask([[1, 2, 3], [4, 5, 6]], [1, 2], value=-1)
    >>> trace["kept"].values.astype(int)
    array([[1, 0, 0],
           [1, 1, 0]])
    """
    arguments: dict[str, Any] = {"X": X, "valid_len": valid_len, "value": value}
    steps = Steps("sequence_mask", lang)
    copy = _core.sequence_mask(**arguments)  # its checks are the ones for these arguments
    check_size(copy.shape)
    B, T, *rest = copy.shape
    axes = ("batch", "position", *("axis",) * (len(rest) - 1), *("feature",) * bool(rest))
    x = as_float64(X)
    lens = np.broadcast_to(np.minimum(np.asarray(valid_len, dtype=object), T), B).astype(np.int64)
    kept = np.arange(T) < lens[:, None]
    steps.add("sequences", x, axes, B=B, T=T)
    steps.add("of_sequences", lens, ("batch",), T=T)
    steps.add(
        "kept", kept, axes[:2], ~kept, words="steps_kept", live=int(kept.sum()), pairs=kept.size
    )
    whole = kept.reshape(B, T, *[1] * len(rest))
    fill = number(value)
    steps.add("copy", copy, axes, value=f"{fill:g}")
    exact = np.where(whole, x, fill)
    weights = kept[..., None].astype(np.float32)
    return steps.trace(arguments, copy, weights, [("copy", copy, exact, np.zeros(exact.shape))])


@OTHER.spelled_out
def merge_attention(outputs: ArrayLike, lses: ArrayLike, *, lang: str = "en") -> Trace:
    """Explain `attnext.merge_attention`: the share of each part, and the merged output.

    Notes
    -----
    Merging is an attention over the parts: the scores are the log-sum-exps, and the values are the
    outputs of the parts. The `keys` argument of `Trace.with_labels` labels the parts.

    Examples
    --------
    >>> from attnext import explain
    >>> trace = explain.merge_attention([[[1.0]], [[5.0]]], [[0.0], [0.0]])
    >>> trace["share"].values, trace.output[0]
    (array([[0.5, 0.5]]), array([[3.]], dtype=float32))
    """
    steps = Steps("merge_attention", lang)
    output, lse = _core.merge_attention(outputs, lses)
    with np.errstate(all="ignore"):
        o, s, share, relative = _parts(outputs, lses, steps)
        exact = np.einsum("...p,p...d->...d", share, o)
        sizes = np.einsum("...p,p...d->...d", share, np.abs(o))
        steps.add("merged", output, (*_rows(lse.ndim), "feature"))
        steps.add("merged_lse", np.atleast_1d(lse), _rows(lse.ndim) or ("axis",))
        largest = np.max(s, axis=-1, initial=-np.inf)
        total = np.sum(np.exp(np.where(share > 0, s - largest[..., None], -np.inf)), axis=-1)
        exact_lse = np.where(np.isinf(largest), largest, largest + np.log(total))
        bound = relative * sizes + rounded(sizes, len(o))
        bound_lse = 2 * relative[..., 0] + 16 * U * (1 + np.abs(exact_lse))
        compared = [
            ("output", output, exact, bound + TINY),
            ("lse", lse, exact_lse, np.where(np.isnan(bound_lse), 0.0, bound_lse)),
        ]
        return steps.trace({"outputs": outputs, "lses": lses}, (output, lse), share, compared)


@OTHER.spelled_out
def merge_attention_backward(
    grad_output: ArrayLike,
    outputs: ArrayLike,
    lses: ArrayLike,
    *,
    grad_lse: ArrayLike | None = None,
    lang: str = "en",
) -> Trace:
    """Explain `attnext.merge_attention_backward`, in the order of the chain rule.

    Notes
    -----
    Merging is an attention over the parts, and this is its backward pass, with g = `grad_output`:
    ``d_lses[p] = share[p] * (g . (outputs[p] - output) + grad_lse)``.

    Examples
    --------
    >>> from attnext import explain
    >>> trace = explain.merge_attention_backward([[1.0]], [[[1.0]], [[5.0]]], [[0.0], [0.0]])
    >>> trace["d_lses"].values
    array([[-1.,  1.]], dtype=float32)
    """
    steps = Steps("merge_attention_backward", lang)
    arguments: dict[str, Any] = {
        "grad_output": grad_output,
        "outputs": outputs,
        "lses": lses,
        "grad_lse": grad_lse,
    }
    returned: Any = _core.merge_attention_backward(**arguments)
    d_outputs, d_lses = (np.stack(list(parts)) for parts in returned)
    with np.errstate(all="ignore"):
        o, _, share, relative = _parts(outputs, lses, steps)
        g = as_float64(grad_output)
        d_lse = 0.0 if grad_lse is None else as_float64(grad_lse)[..., None]
        d_share = np.where(share > 0, np.einsum("p...d,...d->...p", o, g), 0.0)
        size = np.einsum("p...d,...d->...p", np.abs(o), np.abs(g))
        rows = _rows(d_lses.ndim - 1)
        steps.add("d_shares", d_share, (*rows, "part"))
        steps.add("d_outputs", d_outputs, ("part", *rows, "feature"))
        mean, of_mean = (np.sum(share * x, axis=-1, keepdims=True) for x in (d_share, size))
        more = "" if grad_lse is None else " + share * grad_lse"
        steps.add("d_lses", np.moveaxis(d_lses, 0, -1), (*rows, "part"), more=more)
        exact = np.moveaxis(share * (d_share - mean + d_lse), -1, 0)
        terms = size + of_mean + np.abs(d_lse)
        factor = (1 + relative) ** 2 * (1 + gamma(len(o) + g.shape[-1])) ** 3 - 1
        bound = np.moveaxis(factor * share * terms + TINY * (1 + terms), -1, 0)
        by_share = np.moveaxis(share, -1, 0)[..., None]
        of_outputs = np.abs(by_share * g) * (np.moveaxis(relative, -1, 0)[..., None] + gamma(1))
        compared = [
            ("d_outputs", d_outputs, by_share * g, of_outputs + TINY * (1 + np.abs(g))),
            ("d_lses", d_lses, exact, bound),
        ]
        return steps.trace(arguments, returned, share, compared)


def _parts(outputs: Any, lses: Any, steps: Steps) -> tuple[Array, Array, Array, Array]:
    """Return outputs, lses, shares and their relative error. Outputs of unused parts are 0."""
    o, s = (np.stack([as_float64(part) for part in parts]) for parts in (outputs, lses))
    s = np.moveaxis(s, 0, -1)  # (..., M, P)
    check_size(s.shape)
    live = s != -np.inf
    axes = (*_rows(s.ndim - 1), "part")
    steps.add("lses", s, axes, ~live, P=len(o))
    share = reference.masked_softmax(s, mask=live, empty_rows="zero")
    steps.add("share", share, axes, ~live)
    relative = relative_error(s, np.zeros(s.shape), live)
    return np.where(np.moveaxis(live, -1, 0)[..., None], o, 0.0), s, share, relative


def _rows(ndim: int) -> tuple[str, ...]:
    return (*leading_axes(ndim - 1), "query")[max(0, 1 - ndim) :] if ndim else ()
