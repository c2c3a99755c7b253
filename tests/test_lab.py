"""attnext.lab: what is right passes, what is wrong fails, and misconceptions are known by name."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from lab_answers import ANSWERS

import attnext
from attnext import lab
from attnext._width import columns
from attnext.lab import recognise
from attnext.lab.book import Book
from attnext.lab.misconceptions import words_for
from attnext.lab.tasks import TASKS
from attnext.lab.timing import BUDGET, steady_times
from attnext.lab.words import CASES, FAULTS, PHRASES


@pytest.fixture(autouse=True)
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long things take is not what these tests are about."""
    monkeypatch.setattr("attnext.lab.checking.beside_attnext", lambda student: None)


def wrong(function: Callable[..., Any], name: str | None = None, lang: str = "en") -> lab.Wrong:
    with pytest.raises(lab.Wrong) as caught:
        lab.check(function, name, lang=lang)
    return caught.value


# ---- what is right -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", lab.NAMES)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_what_students_write_passes(kind: str, name: str) -> None:
    report = lab.check(vars(ANSWERS)[kind][name], name)
    asked_of_arrays_alone = any(case.numpy_only for case in TASKS[name].cases)
    assert bool(report.left_out) == (kind == "torch" and asked_of_arrays_alone)


@pytest.mark.parametrize("name", lab.NAMES)
def test_the_chapter_in_steps_is_the_reference(name: str) -> None:
    lab.check(getattr(Book(), name))


@pytest.mark.parametrize("name", [name for name in lab.NAMES if hasattr(attnext, name)])
def test_attnext_passes(name: str) -> None:
    """float32, from float64: within the tolerance."""
    fast = getattr(attnext, name)
    lab.check(lambda *arrays: _only(fast(*arrays), len(TASKS[name].returns)), name)


def _only(result: Any, count: int) -> Any:
    """Without the gradient of a bias that there is not."""
    if not isinstance(result, tuple):
        return result
    return [part for part in result if part is not None][:count]


def test_a_row_without_a_key_may_be_zero_as_well() -> None:
    for forward in ("masked_softmax", "dot_product_attention", "dot_product_attention_backward"):
        function = getattr(attnext, forward)
        inputs = {"masked_softmax": 1}.get(forward, 3 + forward.endswith("_backward"))
        lab.check(lambda *a, f=function, n=inputs: f(*a[:n], a[n], empty_rows="zero"), forward)


def test_the_name_is_the_functions_own() -> None:
    def my_leave_one_out(x: Any, y: Any) -> Any:
        return ANSWERS.numpy["leave_one_out"](x, y)

    assert lab.check(my_leave_one_out).name == "leave_one_out"
    assert lab.check("leave_one_out", my_leave_one_out).name == "leave_one_out"


def test_what_cannot_be_checked() -> None:
    with pytest.raises(ValueError, match="name is 'softmax', expected one of: sequence_mask, "):
        lab.check(np.exp, "softmax")
    with pytest.raises(TypeError, match="function is of type list, expected a callable"):
        lab.check([], "masked_softmax")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lang is 'de', expected 'en' or 'zh'"):
        lab.check(np.exp, "masked_softmax", lang="de")


@pytest.mark.parametrize("name", lab.NAMES)
def test_a_thousandth_off_is_wrong(name: str) -> None:
    """And nothing that is known."""
    answer = ANSWERS.numpy[name]

    def off(*arguments: Any) -> Any:
        result = answer(*arguments)
        parts = tuple(result) if len(TASKS[name].returns) > 1 else (result,)
        return tuple(1.001 * np.asarray(part) + 1e-3 for part in parts)

    found = wrong(off, name)
    assert found.misconception is None
    assert f"None of the {len(lab.MISCONCEPTIONS)} mistakes that attnext knows" in str(found)


# ---- misconceptions ------------------------------------------------------------------------------


@cache
def steps_of(task: str) -> set[str]:
    """The steps of the chapter that this function takes."""
    taken: set[str] = set()

    class Watched(Book):
        def __getattribute__(self, name: str) -> Any:
            taken.add(name)
            return super().__getattribute__(name)

    lab.check(getattr(Watched(), task), task)
    return taken


_answer = recognise._answer
_answers: dict[Any, Any] = {}  # what misconceptions give, each case once


def remembered(task: Any, book: Any, case: Any) -> Any:
    key = (task.name, book, case.key)
    if key not in _answers:
        _answers[key] = _answer(task, book, case)
    return _answers[key]


@pytest.mark.parametrize("name", lab.MISCONCEPTIONS)
def test_a_misconception_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each way to have it, by the first function that it makes a difference to."""
    monkeypatch.setattr(recognise, "_answer", remembered)
    misconception = lab.MISCONCEPTIONS[name]
    for i, (way, book) in enumerate(zip(misconception.ways, misconception.books, strict=True)):
        for task in lab.NAMES:
            if not way.keys() & steps_of(task):
                continue
            try:
                lab.check(getattr(book, task), task)
            except lab.Wrong as found:
                if found.got is None:  # it raises here, and says so
                    continue
                assert found.misconception == name, (i, task, found.misconception, str(found))
                assert found.sentences[0] == words_for(misconception, task, "en")
                break
        else:
            pytest.fail(f"way {i} makes no difference to any function")


def test_there_are_many() -> None:
    assert len(lab.MISCONCEPTIONS) >= 40


# The same as students write them, which know nothing of our steps.


def kept(X: Any, valid_lens: Any) -> Any:
    if valid_lens is None:
        return np.ones(X.shape, bool)
    lens = np.asarray(valid_lens)
    lens = lens[:, None, None] if lens.ndim == 1 else lens[..., None]
    return np.broadcast_to(np.arange(X.shape[-1]) < lens, X.shape)


def tiled(X: Any, valid_lens: Any) -> Any:
    if valid_lens is None:
        return torch.softmax(X, -1)
    shape = X.shape
    lens = valid_lens.repeat(shape[1]) if valid_lens.dim() == 1 else valid_lens.reshape(-1)
    X = ANSWERS.torch["sequence_mask"](X.reshape(-1, shape[-1]), lens, -1e6)
    return torch.softmax(X.reshape(shape), -1)


def dim_one(X: Any, valid_lens: Any) -> Any:
    return torch.nn.functional.softmax(
        X.masked_fill(~torch.tensor(kept(X, valid_lens)), -1e6), dim=1
    )


def small_sentinel(X: Any, valid_lens: Any) -> Any:
    keep = kept(X, valid_lens)
    E = np.exp(np.where(keep, X, -100) - np.where(keep, X, -100).max(-1, keepdims=True))
    return E / E.sum(-1, keepdims=True)


def overflowing(X: Any, valid_lens: Any) -> Any:
    keep = kept(X, valid_lens)
    E = np.where(keep, np.exp(X), 1e-30)
    return E / E.sum(-1, keepdims=True)


def minus_infinity_everywhere(X: Any, valid_lens: Any) -> Any:
    if valid_lens is None:
        return torch.softmax(X, -1)
    lens = valid_lens[:, None, None] if valid_lens.dim() == 1 else valid_lens[..., None]
    outside = torch.arange(X.shape[-1]) >= lens
    return torch.softmax(X.masked_fill(outside, -torch.inf), -1)


def added(X: Any, valid_lens: Any) -> Any:
    keep = kept(X, valid_lens)
    S = X + -1e9 * ~keep
    E = np.exp(S - S.max(-1, keepdims=True))
    return E / E.sum(-1, keepdims=True)


def multiplied(X: Any, valid_len: Any, value: float = 0) -> Any:
    mask = np.arange(X.shape[1]) < valid_len[:, None]
    mask = mask.reshape(*mask.shape, *[1] * (X.ndim - 2))
    return X * mask + value * (1 - mask)


def unscaled(queries: Any, keys: Any, values: Any, valid_lens: Any = None) -> Any:
    return ANSWERS.torch["masked_softmax"](torch.bmm(queries, keys.mT), valid_lens) @ values


def viewed_keys(queries: Any, keys: Any) -> Any:
    return torch.bmm(queries, keys.reshape(len(keys), keys.shape[2], -1)) / queries.shape[-1] ** 0.5


def forgetful(grad_output: Any, queries: Any, keys: Any, values: Any, lens: Any = None) -> Any:
    c = queries.shape[-1] ** -0.5
    P = ANSWERS.numpy["masked_softmax"](c * queries @ keys.swapaxes(1, 2), lens)
    dS = P * (grad_output @ values.swapaxes(1, 2))
    return c * dS @ keys, c * dS.swapaxes(1, 2) @ queries, P.swapaxes(1, 2) @ grad_output


def linear(queries: Any, keys: Any, W_q: Any, W_k: Any, w_v: Any) -> Any:
    return ((queries @ W_q.T)[:, :, None] + (keys @ W_k.T)[:, None]) @ w_v


def exchanged(queries: Any, keys: Any, W_q: Any, W_k: Any, w_v: Any) -> Any:
    return torch.tanh((queries @ W_k.T)[:, :, None] + (keys @ W_q.T)[:, None]) @ w_v


def one_reshape(X: Any, num_heads: int) -> Any:
    return X.reshape(X.shape[0] * num_heads, X.shape[1], X.shape[2] // num_heads)


def halves(num_steps: int, num_hiddens: int) -> Any:
    angles = np.arange(num_steps)[:, None] / 10000 ** (
        np.arange(num_hiddens // 2) * 2 / num_hiddens
    )
    return np.hstack([np.sin(angles), np.cos(angles)])


def wide(queries: Any, keys: Any, sigma: float) -> Any:
    K = np.exp(-((queries[:, None] - keys) ** 2).sum(-1) / (2 * sigma))
    return K / K.sum(-1, keepdims=True)


def without_maximum(padding: float, tiny: float = 0.0) -> Any:
    def masked_softmax(X: Any, valid_lens: Any) -> Any:
        E = np.exp(np.where(kept(X, valid_lens), X, padding))
        return E / (E.sum(-1, keepdims=True) + tiny)

    return masked_softmax


def masked_exponentials(tiny: float, maximum: Any = lambda X: 0) -> Any:
    def masked_softmax(X: Any, valid_lens: Any) -> Any:
        E = np.exp(X - maximum(X)) * kept(X, valid_lens)
        return E / (E.sum(-1, keepdims=True) + tiny)

    return masked_softmax


def maximum_of_all(padding: float) -> Any:
    def masked_softmax(X: Any, valid_lens: Any) -> Any:
        S = np.where(kept(X, valid_lens), X, padding)
        E = np.exp(S - S.max())
        return E / E.sum(axis=-1, keepdims=True)

    return masked_softmax


def torch_without_maximum(X: Any, valid_lens: Any) -> Any:
    if valid_lens is not None:
        X = X.masked_fill(~torch.tensor(kept(X, valid_lens)), float("-inf"))
    E = torch.exp(X)
    return E / E.sum(-1, keepdim=True)


def masked(change: Any, finish: Any = lambda S: torch.softmax(S, -1)) -> Any:
    """A masked softmax in PyTorch: change(X, keep), then finish."""
    return lambda X, valid_lens: finish(change(X, torch.tensor(kept(X, valid_lens))))


def filled(value: float) -> Any:
    return lambda X, keep: X.masked_fill(~keep, value)


def kernel(exponent: Any) -> Any:
    def gaussian_kernel(queries: Any, keys: Any, sigma: float) -> Any:
        K = np.exp(exponent((queries[:, None] - keys) ** 2, sigma))
        return K / K.sum(-1, keepdims=True)

    return gaussian_kernel


def sum_without_keepdims(queries: Any, keys: Any, sigma: float) -> Any:
    K = np.exp(-((queries[:, None] - keys) ** 2).sum(-1) / (2 * sigma**2))
    return K / K.sum(axis=1)


def repeated(x: Any, x_train: Any, y_train: Any, sigma: float) -> Any:
    X = x.repeat(len(x_train)).reshape((-1, len(x_train)))
    return torch.softmax(-((X - x_train) ** 2) / (2 * sigma**2), dim=1) @ y_train


def encoding(frequency: Any) -> Any:
    def positional_encoding(num_steps: int, num_hiddens: int) -> Any:
        even = torch.arange(0, num_hiddens, 2).float()
        angles = torch.arange(num_steps).float()[:, None] * frequency(even, num_hiddens)
        P = torch.zeros(num_steps, num_hiddens)
        P[:, 0::2], P[:, 1::2] = torch.sin(angles), torch.cos(angles)
        return P

    return positional_encoding


def growing(even: Any, n: int) -> Any:
    """The book's exp(-log(10000) ...) with the minus forgotten."""
    return torch.exp(even * math.log(10000.0) / n)


def by_base(base: float) -> Any:
    return lambda even, n: 1 / base ** (even / n)


def one_length(of: Any) -> Any:
    def sequence_mask(X: Any, valid_len: Any, value: float = 0) -> Any:
        X = X.copy()
        X[:, of(valid_len) :] = value
        return X

    return sequence_mask


def scores(scale: Any) -> Any:
    return lambda queries, keys: torch.bmm(queries, keys.mT) * scale(queries.shape[-1])


def gradients(order: Any) -> Any:
    def backward(*arguments: Any) -> Any:
        result = ANSWERS.torch["dot_product_attention_backward"](*arguments)
        return tuple(result[i] for i in order)

    return backward


def ignoring(task: str) -> Any:
    return lambda gradient, *rest: ANSWERS.torch[task](torch.ones_like(gradient), *rest)


def half_scaled(grad_output: Any, queries: Any, keys: Any) -> Any:
    """The scale is forgotten for the keys."""
    dq = grad_output @ keys / queries.shape[-1] ** 0.5
    return dq, grad_output.swapaxes(1, 2) @ queries


@pytest.mark.parametrize(
    ("function", "task", "misconception"),
    [
        (tiled, "masked_softmax", "lengths-tiled"),
        (dim_one, "masked_softmax", "softmax-over-queries"),
        (small_sentinel, "masked_softmax", "mask-too-small"),
        (overflowing, "masked_softmax", "no-maximum"),
        (minus_infinity_everywhere, "masked_softmax", "empty-row-nan"),
        (added, "masked_softmax", "mask-added"),
        (multiplied, "sequence_mask", "mask-multiplied"),
        (unscaled, "dot_product_attention", "no-scale"),
        (viewed_keys, "dot_product_scores", "keys-reshaped"),
        (forgetful, "dot_product_attention_backward", "no-row-dot"),
        (linear, "additive_scores", "no-tanh"),
        (exchanged, "additive_scores", "matrices-swapped"),
        (one_reshape, "transpose_qkv", "heads-not-moved"),
        (halves, "positional_encoding", "sines-then-cosines"),
        (wide, "gaussian_kernel", "sigma-not-squared"),
        (without_maximum(-1e6), "masked_softmax", "no-maximum"),
        (without_maximum(-np.inf), "masked_softmax", "no-maximum"),
        (without_maximum(-1e9, 1e-9), "masked_softmax", "no-maximum"),
        (torch_without_maximum, "masked_softmax", "no-maximum"),
        (masked_exponentials(0.0), "masked_softmax", "no-maximum"),
        (masked_exponentials(1e-9), "masked_softmax", "no-maximum"),
        (masked_exponentials(0.0, np.max), "masked_softmax", "maximum-of-all"),
        (maximum_of_all(-1e6), "masked_softmax", "maximum-of-all"),
        (maximum_of_all(-np.inf), "masked_softmax", "maximum-of-all"),
        (masked(filled(1e9)), "masked_softmax", "mask-positive"),
        (masked(filled(-1e6), lambda S: torch.log_softmax(S, -1)), "masked_softmax", "log-softmax"),
        (masked(filled(-1e6), torch.sigmoid), "masked_softmax", "sigmoid-for-softmax"),
        (masked(lambda X, keep: X + -10000.0 * ~keep), "masked_softmax", "mask-added"),
        (masked(lambda X, keep: filled(-1e6)(X, keep.tril())), "masked_softmax", "always-causal"),
        (
            kernel(lambda s, sigma: -s.sum(-1) / (2 * sigma) ** 2),
            "gaussian_kernel",
            "factor-inside-the-square",
        ),
        (
            kernel(lambda s, sigma: -s.mean(-1) / (2 * sigma**2)),
            "gaussian_kernel",
            "squares-averaged",
        ),
        (sum_without_keepdims, "gaussian_kernel", "no-keepdims"),
        (repeated, "nadaraya_watson", "queries-tiled"),
        (encoding(growing), "positional_encoding", "frequency-inside-out"),
        (encoding(by_base(500000.0)), "positional_encoding", "another-base"),
        (one_length(lambda lens: lens[0]), "sequence_mask", "first-length-for-all"),
        (one_length(max), "sequence_mask", "longest-length-for-all"),
        (scores(lambda d: 1 / d**1 / 2), "dot_product_scores", "square-root-last"),
        (
            lambda q, k: torch.softmax(scores(lambda d: d**-0.5)(q, k), -1),
            "dot_product_scores",
            "softmax-in-scores",
        ),
        (gradients((2, 1, 0)), "dot_product_attention_backward", "wrong-order"),
        (
            ignoring("dot_product_attention_backward"),
            "dot_product_attention_backward",
            "grad-output-ignored",
        ),
        (ignoring("additive_scores_backward"), "additive_scores_backward", "grad-output-ignored"),
        (half_scaled, "dot_product_scores_backward", "scale-not-gone-through"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_in_a_students_own_words(function: Any, task: str, misconception: str) -> None:
    found = wrong(function, task)
    assert found.misconception == misconception, str(found)


def test_a_module_is_given_tensors() -> None:
    class Attention(torch.nn.Module):
        def forward(self, queries: Any, keys: Any, values: Any, valid_lens: Any = None) -> Any:
            scores = queries.bmm(keys.mT) / queries.shape[-1] ** 0.5
            return ANSWERS.torch["masked_softmax"](scores, valid_lens).bmm(values)

    assert lab.check(Attention(), "dot_product_attention").left_out


# ---- what is shown -------------------------------------------------------------------------------


def test_an_error_as_any_test_expects_it() -> None:
    found = wrong(unscaled, "dot_product_attention")
    assert isinstance(found, AssertionError)
    assert found.name == "dot_product_attention" and list(found.case)[0] == "queries"
    assert found.got is not None and found.got[0].shape == found.expected[0].shape
    again = pickle.loads(pickle.dumps(found))
    assert str(again) == str(found) == found.args[0]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_it_fits_a_terminal(lang: str) -> None:
    for name in ("no-maximum", "no-scale", "matrices-of-each-entry", "sines-then-cosines"):
        for task in lab.NAMES:
            try:
                report = lab.check(
                    getattr(lab.MISCONCEPTIONS[name].books[0], task), task, lang=lang
                )
                text = str(report)
            except lab.Wrong as found:
                text = str(found)
            assert max(map(columns, text.split("\n"))) <= 80, text
            assert "\x1b" not in text


def test_the_case_that_failed_is_shown() -> None:
    text = str(wrong(tiled, "masked_softmax"))
    assert text.startswith(
        "✗ masked_softmax: wrong in case 4 of 12, one valid length for each sample\n"
    )
    assert "valid_lens = [2, 3]" in text
    assert "weights [0]" in text and "expected" in text and "difference" in text
    assert "█" in text


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    found = wrong(tiled, "masked_softmax")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31;1m✗" in str(found) and "48;5;203" in str(found)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in str(found)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_html(lang: str) -> None:
    found = wrong(tiled, "masked_softmax", lang=lang)
    html = found._repr_html_()
    assert html.count("<table") == 3 and html.count("<div") == html.count("</div")
    assert "j < length" not in html  # escaped, where a sentence has it
    assert "background:#e24a33" in html and "<script" not in html and "http" not in html
    report = lab.check(ANSWERS.numpy["leave_one_out"], "leave_one_out", lang=lang)
    assert "✓ leave_one_out" in report._repr_html_()


def test_a_notebook_shows_it_as_html(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython.display

    shown: list[Any] = []
    kernel = type("Shell", (), {"kernel": None})
    monkeypatch.setattr("IPython.get_ipython", lambda: kernel())
    monkeypatch.setattr(IPython.display, "display", shown.append)
    found = wrong(tiled, "masked_softmax")
    assert shown == [found]
    assert found._render_traceback_()[0].startswith("Wrong: ")


def test_every_word_is_there_in_both_languages() -> None:
    keys = {case.key for task in TASKS.values() for case in task.cases}
    assert keys == set(CASES)
    for table in (CASES, FAULTS, PHRASES):
        for en, zh in map(dict[str, str].values, table.values()):
            assert en and zh and not any("一" <= c <= "鿿" for c in en)
            assert en.count("{") == zh.count("{")
    for misconception in lab.MISCONCEPTIONS.values():
        assert misconception.en.endswith((".", ")", "...")), misconception.name
        assert any("一" <= c <= "鿿" for c in misconception.zh)


def test_keys_of_cases_are_unique() -> None:
    for task in TASKS.values():
        assert len(task.judged) == len(task.cases), task.name


# ---- how long it takes ---------------------------------------------------------------------------


class Clock:
    """Time as these two functions make it pass."""

    def __init__(self, first: Iterator[float], second: Iterator[float]) -> None:
        self.now, self.takes = 0.0, (first, second)

    def __call__(self) -> float:
        return self.now

    def run(self, i: int) -> None:
        self.now += next(self.takes[i])


def timed(first: Iterator[float], second: Iterator[float]) -> tuple[float, float] | None:
    clock = Clock(first, second)
    return steady_times(lambda: clock.run(0), lambda: clock.run(1), clock)


def forever(*values: float) -> Iterator[float]:
    while True:
        yield from values


def test_the_best_of_several_in_turn() -> None:
    assert timed(forever(0.01, 0.02), forever(0.001)) == pytest.approx((0.01, 0.001))


def test_a_busy_machine_is_not_quoted() -> None:
    growing = (0.001 * 1.2**i for i in range(1000))
    assert timed(growing, forever(0.001)) is None
    assert timed(forever(BUDGET), forever(BUDGET)) is None


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_both_compute_the_same_when_timed(kind: str) -> None:
    """The large arguments are those of a call; how long it took is not asked."""
    from attnext.lab.cases import large
    from attnext.lab.student import Student

    for name, task in TASKS.items():
        if task.fast is not None:
            arguments = large(name)
            yours = Student(vars(ANSWERS)[kind][name], task).bound(arguments)()
            ours = task.fast(*arguments.values())
            for a, b in zip(_parts(yours, task), _parts(ours, task), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3, err_msg=name)


def _parts(result: Any, task: Any) -> list[Any]:
    parts = _only(result, len(task.returns))
    return [np.asarray(part) for part in (parts if len(task.returns) > 1 else [parts])]


def test_a_report_says_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    times = "(8, 64, 64)", 0.002, 0.0005
    monkeypatch.setattr("attnext.lab.checking.beside_attnext", lambda student: times)
    text = str(lab.check(ANSWERS.numpy["masked_softmax"], "masked_softmax"))
    assert "yours 2 ms, attnext 0.5 ms; yours takes 4.0 times as long." in " ".join(text.split())
