"""What an explanation is made of: steps, in order, and what the fast function returned."""

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
    """The range of the numbers of a step, in which masked places do not count.

    Parameters
    ----------
    count : int
        How many numbers there are.
    least, total, largest : float
        The smallest of them, their sum, the largest.
    """

    count: int
    least: float
    total: float
    largest: float

    @property
    def mean(self) -> float:
        """The mean of the numbers; NaN if there are none."""
        return self.total / self.count if self.count else float("nan")


def summarise(numbers: NDArray[Any]) -> Summary:
    """The range of an array; that of no numbers is from inf to -inf."""
    x = np.asarray(numbers, np.float64)
    with np.errstate(all="ignore"):  # a mean may overflow, and inf - inf is NaN
        return Summary(
            x.size,
            float(np.min(x, initial=np.inf)),
            float(np.sum(x)),
            float(np.max(x, initial=-np.inf)),
        )


def joined(a: Summary, b: Summary) -> Summary:
    """The range of two arrays together."""
    return Summary(
        a.count + b.count,
        float(np.minimum(a.least, b.least)),  # NumPy's keep a NaN
        a.total + b.total,
        float(np.maximum(a.largest, b.largest)),
    )


@dataclass(frozen=True, eq=False, repr=False)
class Step:
    """One step of a computation, with its numbers and what to say about them.

    Printed it is text; in a notebook it shows itself as HTML.

    Parameters
    ----------
    key : str
        What the step is called in `Trace`, the same in every language.
    name, formula, note : str
        Its title; what is computed, in the notation of code; a sentence about it.
    shape : tuple of int
        The shape of the array that the step makes.
    values : ndarray
        That array; of a broadcast sum too large to keep, the numbers of the first query. Masked
        places hold NaN, 0 or -inf, whatever lay there before.
    axes : tuple of str
        What each axis runs over.
    masked : ndarray of bool or None
        Which places take no part, in the shape of `values`; None where there are none.
    summary : Summary
        The range of the numbers that take part.
    lang : {'en', 'zh'}
        The language of the words.
    labels : tuple of tuple of str
        By axis, what each place along it is called in place of its index; empty where it has no
        names. `Trace.with_labels` gives them.

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
    """A computation, step by step; the last step is what the fast function returned.

    ``print(trace)`` is text of 80 columns; in a notebook a trace shows itself as HTML.
    ``trace["raw"]`` is the step of that key, and ``trace["scores"]`` the last one that makes what
    its formula calls so; NumPy takes a step as its array. `with_labels` names queries and keys.

    Parameters
    ----------
    title : str
        What is computed.
    call : str
        The call, with the shapes of its arrays.
    steps : tuple of Step
        The steps, in order.
    output : ndarray or tuple
        What the fast function returned, bit for bit: the last step, or the last few if it
        returned several gradients.
    weights : ndarray
        The attention weights, before dropout.
    difference : float
        How far, at most, the fast function's float32 lies from the same steps in float64.
    agreement : str
        The same as a sentence.
    lang : {'en', 'zh'}
        The language of the words.

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
        """Call queries and keys by names, tokens for instance, in place of their indices.

        Parameters
        ----------
        queries : sequence of M str, optional
            What each query is called; the same in every entry of the batch and every head.
        keys : sequence of N str, optional
            What each key is called.

        Returns
        -------
        trace : Trace
            The same explanation, in which the rows and columns of queries and keys have names.

        Raises
        ------
        TypeError
            If the labels are no sequence of strings.
        ValueError
            If there are more or fewer labels than queries or keys.

        Examples
        --------
        >>> import numpy as np
        >>> from attnext import explain
        >>> q, k, v = np.array([[1.0, 0.0]]), np.eye(2), np.array([[10.0], [20.0]])
        >>> trace = explain.dot_product_attention(q, k, v, scale=1)
        >>> print(trace.with_labels(queries=["chat"], keys=["cat", "dog"])["weights"])
        Attention weights  (1, 2)
           weights = softmax(scores)
           Each weight is exp(score) divided by the sum of exp(score) over the
           row, so each row sums to 1.
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
            """A row is one of the queries; an axis that is broadcast has no names."""
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
