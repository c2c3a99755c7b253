"""Trace and Step: the steps of an explanation in order, and the result of the fast function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attnext._labels import as_labels
from attnext.explain import html, text
from attnext.explain.words import AXES


@dataclass(frozen=True)
class Summary:
    """Count, minimum, sum and maximum of the unmasked numbers of a step.

    Parameters
    ----------
    count : int
        Number of unmasked numbers.
    least, total, largest : float
        Their minimum, sum and maximum.
    """

    count: int
    least: float
    total: float
    largest: float

    @property
    def mean(self) -> float:
        """Return the mean of the numbers; NaN if there are no numbers."""
        return self.total / self.count if self.count else float("nan")


def summarise(numbers: NDArray[Any]) -> Summary:
    """Return the summary of an array. An empty array has the range inf to -inf."""
    x = np.asarray(numbers, np.float64)
    with np.errstate(all="ignore"):  # a mean may overflow, and inf - inf is NaN
        return Summary(
            x.size,
            float(np.min(x, initial=np.inf)),
            float(np.sum(x)),
            float(np.max(x, initial=-np.inf)),
        )


def joined(a: Summary, b: Summary) -> Summary:
    """Return the summary of two arrays together."""
    return Summary(
        a.count + b.count,
        float(np.minimum(a.least, b.least)),  # np.minimum propagates NaN
        a.total + b.total,
        float(np.maximum(a.largest, b.largest)),
    )


@dataclass(frozen=True, eq=False, repr=False)
class Step:
    """One step of a computation: an array, its formula and a sentence that explains it.

    ``print(step)`` prints text; a notebook shows a step as HTML.

    Parameters
    ----------
    key : str
        Name of the step in `Trace`, the same in every language.
    name, formula, note : str
        The title of the step, its formula in code notation, and a sentence that explains it.
    shape : tuple of int
        Shape of the array that the step computes.
    values : ndarray
        The array. If a broadcast sum is too large to keep, only the numbers of the first query are
        kept. Masked positions contain NaN, 0 or -inf.
    axes : tuple of str
        Name of each axis, for example "query" or "key".
    masked : ndarray of bool or None
        True at masked positions, in the shape of `values`. None if nothing is masked.
    summary : Summary
        Count, minimum, sum and maximum of the unmasked numbers.
    lang : {'en', 'zh'}
        Language of the texts.
    labels : tuple of tuple of str
        For each axis, the labels that replace its indices. Empty for an axis without labels.
        `Trace.with_labels` sets them.

    Examples
    --------
    >>> from attnext import explain
    >>> step = explain.masked_softmax([1.0, 2.0])["softmax"]
    >>> step.name, step.shape, step.formula
    ('Weights', (2,), 'weights = (e / total).reshape(X.shape)')
    >>> step.values.round(4)
    array([0.2689, 0.7311], dtype=float32)
    """

    key: str
    name: str
    formula: str
    note: str
    shape: tuple[int, ...]
    values: NDArray[Any]
    axes: tuple[str, ...]
    masked: NDArray[np.bool_] | None
    summary: Summary
    lang: str
    labels: tuple[tuple[str, ...], ...] = ()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values, dtype) if copy else np.asarray(self.values, dtype)

    def __repr__(self) -> str:
        return f"<Step {self.key}, shape {self.shape}>"

    def __str__(self) -> str:
        return text.step_text(self)

    def _repr_html_(self) -> str:
        return html.step_html(self)


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The steps of a computation in order. The last step is the result of the fast function.

    ``print(trace)`` prints text of 80 columns; a notebook shows a trace as HTML. ``trace["raw"]``
    returns the step with the key "raw". ``trace["scores"]`` returns the last step whose formula
    assigns to ``scores``. NumPy functions accept a step as an array. `with_labels` names queries
    and keys.

    Parameters
    ----------
    title : str
        Name of the computation.
    call : str
        The call, with the shapes of its arrays.
    steps : tuple of Step
        The steps in order.
    output : ndarray or tuple
        The result of the fast function, bit for bit. A tuple if it returns several gradients.
    weights : ndarray
        The attention weights before dropout.
    difference : float
        The largest difference between the float32 results and the float64 steps.
    agreement : str
        A sentence that states this difference.
    lang : {'en', 'zh'}
        Language of the texts.

    Examples
    --------
    >>> from attnext import explain
    >>> trace = explain.masked_softmax([1.0, 2.0], lang="zh")
    >>> trace
    <Trace of 4 steps: X, exp, total, softmax>
    >>> [step.name for step in trace.steps]
    ['评分', '指数', '各行之和', '注意力权重']
    """

    title: str
    call: str
    steps: tuple[Step, ...]
    output: Any
    weights: NDArray[Any]
    difference: float
    agreement: str
    lang: str

    def __getitem__(self, key: str) -> Step:
        for step in self.steps:
            if step.key == key:
                return step
        for step in reversed(self.steps):
            if step.formula.partition(" = ")[0] == key:
                return step
        keys = ", ".join(step.key for step in self.steps)
        raise KeyError(f"there is no step {key!r}, expected one of: {keys}")

    def with_labels(
        self, *, queries: Sequence[str] | None = None, keys: Sequence[str] | None = None
    ) -> Trace:
        """Return the trace with labels, for example tokens, instead of indices.

        Parameters
        ----------
        queries : sequence of M str, optional
            One label for each query. All batch elements and heads use the same labels.
        keys : sequence of N str, optional
            One label for each key.

        Returns
        -------
        trace : Trace
            The same steps, with labels on the rows and columns of queries and keys.

        Raises
        ------
        TypeError
            If the labels are not a sequence of strings.
        ValueError
            If the number of labels differs from the number of queries or keys.

        Examples
        --------
        >>> import numpy as np
        >>> from attnext import explain
        >>> q, k, v = np.array([[1.0, 0.0]]), np.eye(2), np.array([[10.0], [20.0]])
        >>> trace = explain.dot_product_attention(q, k, v, scale=1)
        >>> print(trace.with_labels(queries=["chat"], keys=["cat", "dog"])["weights"])
        Attention weights  (1, 2)
           weights = softmax(scores)
           Each weight is exp(score) divided by the sum of exp(score) over the row, so
           each row sums to 1.
        <BLANKLINE>
           query\\key     cat     dog
                chat  0.7311  0.2689
        """
        M, N = (1, *self.weights.shape)[-2:]
        rows = as_labels("queries", queries, M, "query")
        named = {"query": rows, "key": as_labels("keys", keys, N, "key"), "row": rows}
        named["position"], named["part"] = rows, named["key"]
        names = {AXES[axis][self.lang]: labels for axis, labels in named.items()}

        def labels(step: Step) -> tuple[tuple[str, ...], ...]:
            """Return the labels of each axis of a step. Rows use the labels of the queries."""
            found = (
                (names.get(axis, []), size)
                for axis, size in zip(step.axes, step.shape, strict=True)
            )
            return tuple(
                tuple(labels * (size // len(labels))) if labels and size % len(labels) == 0 else ()
                for labels, size in found
            )

        return replace(self, steps=tuple(replace(s, labels=labels(s)) for s in self.steps))

    def __repr__(self) -> str:
        return f"<Trace of {len(self.steps)} steps: {', '.join(s.key for s in self.steps)}>"

    def __str__(self) -> str:
        return text.trace_text(self)

    def _repr_html_(self) -> str:
        return html.trace_html(self)
