"""The table of the functions that can be checked: parameters, cases, right answers, tolerances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

import attnext
from attnext import kernel_regression, reference
from attnext.lab import cases
from attnext.lab.book import Array, Book
from attnext.lab.cases import Case
from attnext.lab.compare import ROUNDING, ROUNDINGS, Answer

MOVES = 8  # how often the inputs are changed, to see how much the answer changes
STEP = 2.0**-20  # the relative change: far above float64's rounding, and still small


class Judged(NamedTuple):
    """The right answers of a case."""

    answers: list[Answer]  # the book's first, then others that are right too
    tolerance: list[float]  # how far each array of one may be off


@dataclass(frozen=True)
class Task:
    """A function that a student writes, with what it is compared with."""

    name: str
    parameters: str  # as in the signature
    makes_cases: Callable[[], Iterator[Case]]
    right: Callable[..., Any]  # in float64
    returns: tuple[str, ...]
    fast: Callable[..., Any] | None = None  # the function of attnext
    also_right: tuple[dict[str, Any], ...] = ()  # options of `right` with which it is right too
    keeps_integers: bool = False  # it only moves numbers, so integers may stay integers

    @cached_property
    def cases(self) -> list[Case]:
        return list(self.makes_cases())

    @cached_property
    def judged(self) -> dict[str, Judged]:
        """The right answers, by the key of a case."""
        return {c.key: Judged(self._answers(c), self._tolerance(c)) for c in self.cases}

    def _answers(self, case: Case) -> list[Answer]:
        with np.errstate(all="ignore"):
            arguments = case.arguments.values()
            return [as_answer(self.right(*arguments, **o)) for o in ({}, *self.also_right)]

    def _tolerance(self, case: Case) -> list[float]:
        """Return how far each array of a right answer may be off.

        That is 64 times the sum of two things: the change of the right answer if every input is
        changed by one float32 rounding, the largest of some random changes; and one rounding of
        the largest number of the answer.
        """
        rng = np.random.default_rng(0)
        answer = self._answers(case)[0]
        moved = [0.0] * len(answer)
        if "num_steps" in case.arguments:  # the largest angle, in radians
            moved = [case.arguments["num_steps"] * ROUNDING]
        for _ in range(MOVES):
            arguments = {
                name: x * (1 + STEP * rng.choice([-1, 1], x.shape)) if is_data(name, x) else x
                for name, x in case.arguments.items()
            }
            other = self._answers(Case(case.key, arguments))[0]
            for i, (a, b) in enumerate(zip(answer, other, strict=True)):
                off = float(np.max(np.abs(a - b), initial=0.0, where=np.isfinite(a)))
                moved[i] = max(moved[i], off * ROUNDING / STEP)
        return [
            ROUNDINGS * (m + ROUNDING * float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a))))
            for m, a in zip(moved, answer, strict=True)
        ]


def is_data(name: str, x: object) -> bool:
    """True if an argument has numbers to compute with, not lengths or sizes."""
    return isinstance(x, np.ndarray) and not name.startswith("valid_len")


def as_answer(result: Any) -> Answer:
    """Return one array or several as a tuple of float64 arrays."""
    parts = result if isinstance(result, tuple) else (result,)
    return tuple(np.asarray(part, np.float64) for part in parts if part is not None)


def _gaussian_kernel(queries: Array, keys: Array, sigma: float) -> Array:
    return reference.masked_softmax(reference.gaussian_scores(queries, keys, sigma=sigma))


def _nadaraya_watson(x: Array, x_train: Array, y_train: Array, sigma: float) -> Array:
    return _gaussian_kernel(x[:, None], x_train[:, None], sigma) @ y_train


def _leave_one_out(x: Array, y: Array) -> tuple[Array, ...]:
    return tuple(a.astype(np.float64) for a in Book().leave_one_out(x, y))


EMPTY_AS_ZERO: dict[str, Any] = {"empty_rows": "zero"}


def _attends(score: str, *parameters: str) -> Iterator[Task]:
    """Yield the tasks of scores and attention, each with its backward."""
    for verb, values, returned in ("scores", (), "scores"), ("attention", ("values",), "output"):
        arrays = ("queries", "keys", *values, *parameters)
        gradients = tuple(f"d{name}" for name in arrays)
        for back, given, returns in (
            ("", (), (returned,)),
            ("_backward", ("grad_output",), gradients),
        ):
            name = f"{score}_{verb}{back}"
            yield Task(
                name,
                ", ".join([*given, *arrays, *["valid_lens=None"] * len(values)]),
                partial(getattr(cases, verb + back), additive=bool(parameters)),
                getattr(reference, name),
                returns,
                getattr(attnext, name),
                also_right=(EMPTY_AS_ZERO,) * len(values),
            )


_TASKS = [
    Task(
        "sequence_mask",
        "X, valid_len, value=0",
        cases.sequences,
        reference.sequence_mask,
        ("X",),
        attnext.sequence_mask,
        keeps_integers=True,
    ),
    Task(
        "masked_softmax",
        "X, valid_lens",
        cases.softmax,
        reference.masked_softmax,
        ("weights",),
        attnext.masked_softmax,
        also_right=(EMPTY_AS_ZERO,),
    ),
    Task(
        "masked_softmax_backward",
        "dweights, weights",
        cases.softmax_backward,
        reference.masked_softmax_backward,
        ("dX",),
        attnext.masked_softmax_backward,
    ),
    *_attends("dot_product"),
    *_attends("additive", "W_q", "W_k", "w_v"),
    Task("gaussian_kernel", "queries, keys, sigma", cases.kernel, _gaussian_kernel, ("weights",)),
    Task(
        "nadaraya_watson",
        "x, x_train, y_train, sigma",
        cases.regression,
        _nadaraya_watson,
        ("y",),
        kernel_regression.nadaraya_watson,
    ),
    Task(
        "leave_one_out",
        "x, y",
        cases.examples,
        _leave_one_out,
        ("keys", "values"),
        kernel_regression.leave_one_out,
        keeps_integers=True,
    ),
    *(
        Task(
            right.__name__,
            "X, num_heads",
            partial(cases.heads, backward=backward),
            right,
            ("X",),
            keeps_integers=True,
        )
        for right, backward in ((Book().transpose_qkv, False), (Book().transpose_output, True))
    ),
    Task(
        "positional_encoding",
        "num_steps, num_hiddens",
        cases.positions,
        reference.positional_encoding,
        ("encoding",),
        attnext.positional_encoding,
    ),
]
TASKS = {task.name: task for task in _TASKS}
