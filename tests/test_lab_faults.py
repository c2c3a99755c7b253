"""attnext.lab.check ends with a verdict, whatever the student's code does, and restores all."""

from __future__ import annotations

import functools
import math
import random
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lab_answers import ANSWERS

from attnext import lab
from attnext.lab.misconceptions import Misconception
from attnext.lab.student import Student
from attnext.lab.tasks import TASKS
from attnext.lab.time_limit import TimeUp, run_limited
from attnext.lab.timing import beside_attnext
from attnext.lab.words import MISCONCEPTIONS

SHORT = 0.2  # seconds, only for functions that never end, on a machine of any speed


@pytest.fixture(autouse=True)
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnext.lab.checking.beside_attnext", lambda student: None)


def wrong(function: Callable[..., Any], name: str = "masked_softmax", **options: Any) -> lab.Wrong:
    with pytest.raises(lab.Wrong) as caught:
        lab.check(function, name, **options)
    return caught.value


def said(found: lab.Wrong) -> str:
    return " ".join(found.sentences)


# ---- exceptions ----------------------------------------------------------------------------------


class Odd(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Leaving(Exception):
    def __str__(self) -> str:
        sys.exit()


class Endless(Exception):
    def __str__(self) -> str:
        while True:
            pass


def raising(error: Any) -> Callable[..., Any]:
    def masked_softmax(X: Any, valid_lens: Any) -> Any:
        raise error

    return masked_softmax


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            SystemExit("done"),
            "called exit() or sys.exit(), which ends the program (SystemExit: done).",
        ),
        (SystemExit(), "which ends the program (SystemExit). Return the result instead."),
        (GeneratorExit(), "Your function raised GeneratorExit"),
        (Odd("odd"), "Your function raised Odd: odd"),
        (Mute(), "Your function raised Mute"),
        (Leaving(), "Your function raised Leaving"),
        (Endless(), "Your function raised Endless"),
        (ValueError("first\nsecond"), "Your function raised ValueError: first"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_exception_is_a_verdict(
    error: Any, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnext.lab.student.MESSAGE", SHORT if type(error) is Endless else 1e6)
    found = wrong(raising(error))
    assert sentence in said(found) and found.got is None
    assert found.sentences[-1] == "in the line: raise error"
    assert sentence.split(":")[0] in found._repr_html_()


def test_exit_leaves_stdin_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """exit() of an interactive Python closes sys.stdin before it raises."""

    class Stdin:
        closed = False

        def close(self) -> None:
            self.closed = True

    def masked_softmax(X: Any, valid_lens: Any) -> Any:
        sys.stdin.close()
        raise SystemExit

    stdin = Stdin()
    monkeypatch.setattr(sys, "stdin", stdin)
    wrong(masked_softmax)
    assert sys.stdin is stdin and not stdin.closed


def test_keyboard_interrupt_goes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        lab.check(raising(KeyboardInterrupt()), "masked_softmax")
    lab.check(ANSWERS.numpy["masked_softmax"], "masked_softmax")


def test_what_was_raised_is_the_cause() -> None:
    error = ValueError("two\nlines")
    assert wrong(raising(error)).__cause__ is error


@pytest.mark.parametrize("text", ["\x1b[31mred\x1b]0;title\x07", "x" * 10**6, "\udc80", "‮"])
def test_a_message_is_short_and_printable(text: str) -> None:
    """In the text, in the HTML, and in the traceback, which would print the cause as it is."""
    found = wrong(raising(ValueError(text)))
    assert found.__cause__ is None
    assert all(len(sentence) < 400 and sentence.isprintable() for sentence in found.sentences)
    for shown in (str(found), found._repr_html_()):
        assert len(shown) < 10_000 and shown.encode()
        assert "\x1b" not in shown and "\x07" not in shown and "‮" not in shown
    if len(text) < 100:
        assert text.encode("unicode_escape").decode() in said(found)


def test_other_texts_of_a_student_are_printable() -> None:
    named = type("x\x1b[31m" * 100, (), {})
    assert "\x1b" not in str(wrong(lambda X, valid_lens: named()))
    strange = lambda X, valid_lens, *, table: X  # noqa: E731
    assert "(X, valid_lens, table)" in said(wrong(strange))


def test_a_name_defined_later() -> None:
    def outer() -> Any:
        def masked_softmax(X: Any, valid_lens: Any) -> Any:
            return helper(X)

        if not outer:
            helper = None
        return masked_softmax

    found = wrong(outer())
    assert "raised NameError: " in said(found) and "free variable" in said(found)
    assert found.sentences[-1] == "in the line: return helper(X)"


def test_a_function_that_cannot_be_looked_into() -> None:
    class Closed:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("closed")

        def __call__(self, X: Any, valid_lens: Any) -> Any:
            return ANSWERS.numpy["masked_softmax"](X, valid_lens)

    lab.check(Closed(), "masked_softmax")


# ---- time ----------------------------------------------------------------------------------------


def endless(X: Any, valid_lens: Any) -> Any:
    i = 0
    while i < len(X):
        pass


def catching(X: Any, valid_lens: Any) -> Any:
    while True:
        try:
            while True:
                X = X + 0
        except Exception:
            pass


def swallowing(X: Any, valid_lens: Any) -> Any:
    try:
        while True:
            pass
    except BaseException:
        return X


@pytest.mark.parametrize(
    ("function", "lines"),
    [
        (endless, ["while i < len(X):", "pass"]),
        (catching, ["while True:", "X = X + 0", "pass", "try:"]),
        (swallowing, ["while True:", "pass", "try:"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_endless_loop_ends(function: Any, lines: list[str]) -> None:
    found = wrong(function, seconds=SHORT)
    assert "had not returned after 0.2 s" in said(found) and "seconds=1.2 to check" in said(found)
    assert found.sentences[1] in [f"in the line: {line}" for line in lines]
    assert threading.active_count() == 1 or not any(
        "_Watch" in repr(getattr(t, "_target", "")) for t in threading.enumerate()
    )


def test_in_another_thread_too() -> None:
    found: list[lab.Wrong] = []
    thread = threading.Thread(target=lambda: found.append(wrong(endless, seconds=SHORT)))
    thread.start()
    thread.join()
    assert "had not returned" in said(found[0])


def test_an_interrupt_during_a_call_is_not_the_time() -> None:
    def call() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_limited(call, 1e6)


def test_no_exception_is_left_behind() -> None:
    """Also if the call catches the exception, and returns at the moment it is raised again."""
    for _ in range(20):
        with pytest.raises(TimeUp):
            run_limited(lambda: swallowing(1, 2), 1e-4)
        assert run_limited(lambda: 1, 1e6) == 1


def test_without_a_limit_and_with_a_wrong_one() -> None:
    right = ANSWERS.numpy["leave_one_out"]
    lab.check(right, "leave_one_out", seconds=float("inf"))
    for seconds in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="seconds is .*, expected a number above 0"):
            lab.check(right, "leave_one_out", seconds=seconds)
    with pytest.raises(TypeError, match="seconds is of type str, expected a float"):
        lab.check(right, "leave_one_out", seconds="10")  # type: ignore[arg-type]


def test_the_timing_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is endless on the large input alone is right, and its time is not said."""
    monkeypatch.setattr("attnext.lab.timing.LIMIT", SHORT)

    def masked_softmax(X: Any, valid_lens: Any) -> Any:
        while X.size > 1000:
            pass
        return ANSWERS.numpy["masked_softmax"](X, valid_lens)

    assert beside_attnext(Student(masked_softmax, TASKS["masked_softmax"])) is None


# ---- what comes back -----------------------------------------------------------------------------


def integers(X: Any, valid_lens: Any) -> Any:
    out = np.zeros_like(X)
    out[...] = ANSWERS.numpy["masked_softmax"](X, valid_lens)
    return out


async def coroutine(X: Any, valid_lens: Any) -> Any:
    return X


def generator(X: Any, valid_lens: Any) -> Any:
    yield X


def viewing(X: Any, valid_lens: Any) -> Any:
    return ANSWERS.torch["masked_softmax"](X.view(-1).view(X.shape), valid_lens)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda X, valid_lens: X @ np.ones(17), "Your function raised ValueError: matmul: "),
        (lambda X, valid_lens: None, "Your function returned None: is a return missing?"),
        (lambda X, valid_lens: (X, X), "Your function returned 2 arrays, expected 1: weights."),
        (lambda X, valid_lens: "weights", "weights has dtype <U7, expected floats."),
        (lambda X, valid_lens: X > 0, "weights has dtype bool, expected floats."),
        (lambda X, valid_lens: X * 1j, "weights has dtype complex128, expected floats."),
        (lambda X, valid_lens: {"P": X}, "weights is of type dict, expected an array or a tensor."),
        (lambda X, valid_lens: X.sum, "weights is of type builtin_function_or_method, expected"),
        (lambda X, valid_lens: [[1.0], [1.0, 2.0]], "weights is a list that is not an array of"),
        (coroutine, "declared with async def, so a call returns a coroutine, not an array."),
        (generator, "returned a generator: it has a yield where a return should be."),
        (lambda X, valid_lens: X[0], "weights has shape (1, 4), expected (1, 1, 4)."),
        (lambda: 0, "attnext calls your function as f(X, valid_lens), but its parameters are ()."),
        (integers, "weights has dtype int64, so everything after the decimal point is cut off."),
        (viewing, "Your function raised RuntimeError: view size is not compatible"),
    ],
)
def test_a_fault_is_one_clear_sentence(function: Any, sentence: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that was never awaited
        found = wrong(function)
    assert sentence in said(found)
    assert found.misconception is None
    assert "None of the" not in said(found)  # no word of numbers, where there are none
    assert not any("\n" in sentence for sentence in found.sentences)


def test_faults_of_several_results() -> None:
    backward = "dot_product_scores_backward"
    assert "dkeys is None." in said(wrong(lambda g, q, k: (g, None), backward))
    for result in (1.0, torch.tensor(1.0)):  # a tensor without axes has __len__
        found = wrong(lambda g, q, k, result=result: result, backward)
        assert "Your function returned one array, expected 2: dqueries, dkeys." in said(found)
    assert "returned 3 arrays, expected 2: keys, values" in said(
        wrong(lambda x, y: x, "leave_one_out")
    )


def test_lists_and_stacks_of_tensors_are_answers() -> None:
    def stacked(x: Any, y: Any) -> Any:
        return torch.stack(ANSWERS.torch["leave_one_out"](x, y))

    def listed(x: Any, x_train: Any, y_train: Any, sigma: Any) -> Any:
        answer = ANSWERS.torch["nadaraya_watson"](x, x_train, y_train, sigma)
        return [number.requires_grad_() for number in answer]

    lab.check(stacked, "leave_one_out")
    lab.check(listed, "nadaraya_watson")


def right_in(dtype: torch.dtype) -> Callable[..., Any]:
    return lambda X, valid_lens: ANSWERS.torch["masked_softmax"](X, valid_lens).to(dtype)


def test_a_coarse_dtype_is_named() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        found = wrong(right_in(dtype))
        name = str(dtype).removeprefix("torch.")
        assert f"weights has dtype {name}, which has too few digits" in said(found)
    lab.check(right_in(torch.float64), "masked_softmax")
    found = wrong(lambda X, valid_lens: torch.softmax(X, -2).bfloat16())
    assert found.misconception == "softmax-over-queries" and "digits" not in said(found)


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        (lambda s: (4, *s[1:]), "Axis 0 has size 4, expected 3."),
        (lambda s: s[:2], "Axis 2, of size 5, is missing."),
        (lambda s: (7, *s), "Axis 0, of size 7, is one too many."),
        (lambda s: s[::-1], "The axes are in the wrong order."),
        (lambda s: (s[0] * s[1] * s[2],), ""),
    ],
)
def test_the_axis_of_a_wrong_shape_is_named(shape: Any, sentence: str) -> None:
    def masked_softmax(X: Any, valid_lens: Any) -> Any:
        if X.shape == (3, 2, 5):
            return np.zeros(shape(X.shape))
        return ANSWERS.numpy["masked_softmax"](X, valid_lens)

    found = wrong(masked_softmax)
    assert len(found.sentences) == 1
    assert found.sentences[0].startswith("weights has shape (")
    assert found.sentences[0].endswith(sentence or "expected (3, 2, 5).")


# ---- random numbers, and state -------------------------------------------------------------------


def dropping(queries: Any, keys: Any, values: Any, valid_lens: Any = None) -> Any:
    scores = torch.nn.functional.dropout(queries @ keys.mT / queries.shape[-1] ** 0.5, 0.5)
    return ANSWERS.torch["masked_softmax"](scores, valid_lens) @ values


def noisy(queries: Any, keys: Any, values: Any, valid_lens: Any = None) -> Any:
    output = ANSWERS.numpy["dot_product_attention"](queries, keys, values, valid_lens)
    return output + np.random.normal(size=output.shape)  # noqa: NPY002


def counting(queries: Any, keys: Any, values: Any, valid_lens: Any = None, seen: Any = []) -> Any:  # noqa: B006
    seen.append(queries)
    return ANSWERS.numpy["dot_product_attention"](queries, keys, values, valid_lens) + len(seen)


@pytest.mark.parametrize("function", [dropping, noisy, counting])
def test_different_numbers_for_the_same_inputs(function: Any) -> None:
    found = wrong(function, "dot_product_attention")
    assert "returned different numbers for the same inputs" in said(found)
    assert found.misconception is None and "expected" not in str(found)


# ---- inputs that are written into ----------------------------------------------------------------


def d2l_sequence_mask(X: Any, valid_len: Any, value: float = 0) -> Any:
    """d2l's: it writes into X."""
    mask = torch.arange(X.size(1), dtype=torch.float32)[None, :] < valid_len[:, None]
    X[~mask] = value
    return X


def d2l_masked_softmax(X: Any, valid_lens: Any) -> Any:
    """That of d2l and of the notes that readers have: it writes into X through reshape."""
    if valid_lens is None:
        return torch.nn.functional.softmax(X, dim=-1)
    shape = X.shape
    if valid_lens.dim() == 1:
        valid_lens = torch.repeat_interleave(valid_lens, shape[1])
    else:
        valid_lens = valid_lens.reshape(-1)
    X = d2l_sequence_mask(X.reshape(-1, shape[-1]), valid_lens, value=-1e6)
    return torch.nn.functional.softmax(X.reshape(shape), dim=-1)


class DotProductAttention(torch.nn.Module):
    """That of d2l and of the notes, in training mode, which keeps its weights."""

    def __init__(self, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, queries: Any, keys: Any, values: Any, valid_lens: Any = None) -> Any:
        d = queries.shape[-1]
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(d)
        self.attention_weights = d2l_masked_softmax(scores, valid_lens)
        return torch.bmm(self.dropout(self.attention_weights), values)


def test_the_notes_attention_in_training_mode() -> None:
    attention = DotProductAttention(dropout=0.5)
    assert not lab.check(attention, "dot_product_attention").remarks
    assert attention.training


def numpy_in_place(X: Any, valid_len: Any, value: float = 0) -> Any:
    X[np.arange(X.shape[1]) >= valid_len[:, None]] = value
    return X


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (d2l_sequence_mask, "sequence_mask"),
        (numpy_in_place, "sequence_mask"),
        (d2l_masked_softmax, "masked_softmax"),
    ],
)
def test_writing_into_an_input_is_right_with_a_remark(function: Any, name: str) -> None:
    report = lab.check(function, name)
    assert len(report.remarks) == 1
    assert report.remarks[0].startswith("Remark: your function writes into its input X, as d2l")
    assert "writes into its input X" in " ".join(str(report).split())
    assert "你的函数写入了输入X" in lab.check(function, name, lang="zh")._repr_html_()
    assert not lab.check(ANSWERS.torch[name], name).remarks


# ---- names and parameters ------------------------------------------------------------------------


def test_the_english_editions_parameters() -> None:
    """d2l 1.0 has nadaraya_watson(x_train, y_train, x_val, kernel)."""

    def nadaraya_watson(x_train: Any, y_train: Any, x_val: Any, kernel: Any) -> Any:
        k = kernel(x_train.reshape((-1, 1)) - x_val.reshape((1, -1)))
        return y_train @ (k / k.sum(0)), k

    words = said(wrong(nadaraya_watson, "nadaraya_watson"))
    assert "TypeError: 'float' object is not callable" in words
    assert "calls your function as f(x, x_train, y_train, sigma), and its parameters are" in words

    def dot_product_attention(queries: Any, values: Any, keys: Any, valid_lens: Any = None) -> Any:
        return ANSWERS.numpy["dot_product_attention"](queries, keys, values, valid_lens)

    found = wrong(dot_product_attention, "dot_product_attention")
    assert found.sentences[0].startswith("The parameters are in another order here: ")
    assert "(queries, values, keys, valid_lens)" in found.sentences[0]


def test_a_name_that_is_a_letter_off() -> None:
    for name in ("masked_softmx", "maskedsoftmax", "MaskedSoftmax", "Masked_softmax"):
        with pytest.raises(ValueError, match=f"name is '{name}', .*did you mean 'masked_softmax'"):
            lab.check(np.exp, name)
    with pytest.raises(ValueError, match="name是'masked_softmx'，.*你是不是想写'masked_softmax'"):
        lab.check(np.exp, "masked_softmx", lang="zh")
    with pytest.raises(ValueError, match="name是'softly'，应为下列之一：sequence_mask, "):
        lab.check(np.exp, "softly", lang="zh")
    with pytest.raises(ValueError) as caught:
        lab.check(np.exp, "\x1b" * 10**6)
    assert len(str(caught.value)) < 600 and "\x1b" not in str(caught.value)


# ---- what is put back ----------------------------------------------------------------------------


class Attention(torch.nn.Module):
    """Right, in eval mode; super().__init__() is there."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(0.5)
        self.frozen = torch.nn.Dropout(0.5).eval()

    def forward(self, queries: Any, keys: Any, values: Any, valid_lens: Any = None) -> Any:
        scores = queries @ keys.mT / queries.shape[-1] ** 0.5
        return self.dropout(ANSWERS.torch["masked_softmax"](scores, valid_lens)) @ values


class Holder:
    def __init__(self, attention: Any) -> None:
        self.attention = attention

    def attend(self, queries: Any, keys: Any, values: Any, valid_lens: Any = None) -> Any:
        return self.attention(queries, keys, values, valid_lens)

    __call__ = attend


GLOBAL = Attention()


def through_a_global(queries: Any, keys: Any, values: Any, valid_lens: Any = None) -> Any:
    return GLOBAL(queries, keys, values, valid_lens)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a,
        lambda a: a.forward,
        lambda a: lambda *arguments: a(*arguments),
        lambda a: functools.partial(a),
        lambda a: Holder(a),
        lambda a: Holder(a).attend,
        lambda a: through_a_global,
    ],
    ids=["module", "forward", "closure", "partial", "object", "method", "global"],
)
@pytest.mark.parametrize("right", [True, False])
def test_a_module_is_checked_in_eval_mode(function: Any, right: bool) -> None:
    attention = GLOBAL
    if right:
        assert lab.check(function(attention), "dot_product_attention").left_out  # integers
    else:
        wrong(function(attention), "additive_scores")
    assert attention.training and attention.dropout.training and not attention.frozen.training


def test_a_module_without_its_super_init() -> None:
    class Bare(torch.nn.Module):
        def __init__(self) -> None:
            self.scale = 1.0

        def forward(self, queries: Any, keys: Any) -> Any:
            return queries @ keys.mT

    assert "raised AttributeError: " in said(wrong(Bare(), "dot_product_scores"))


def changing(x: Any, y: Any) -> Any:
    np.random.seed(3)  # noqa: NPY002
    np.random.normal(size=3)  # noqa: NPY002
    random.random()
    torch.manual_seed(3)
    torch.rand(3)
    np.seterr(all="raise")
    np.seterrcall(print)
    np.set_printoptions(precision=1)
    torch.set_printoptions(precision=1)
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    return ANSWERS.numpy["leave_one_out"](x, y)


def state() -> list[Any]:
    return [
        repr(np.random.get_state()),  # noqa: NPY002
        random.getstate(),
        torch.get_rng_state().tolist(),
        np.geterr(),
        np.geterrcall(),
        np.get_printoptions(),
        repr(torch.tensor(1 / 3)),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        sys.stdin,
    ]


@pytest.mark.parametrize("end", ["right", "wrong", "interrupt"])
def test_generators_and_options_are_as_before(end: str) -> None:
    def leave_one_out(x: Any, y: Any) -> Any:
        result = changing(x, y)
        if end == "interrupt":
            raise KeyboardInterrupt
        return result if end == "right" else None

    before = state()
    try:
        lab.check(leave_one_out)
    except (lab.Wrong, KeyboardInterrupt):
        assert end != "right"
    assert state() == before


# ---- words ---------------------------------------------------------------------------------------


def test_the_words_of_a_task_belong_to_a_misconception_and_a_task() -> None:
    for key, words in MISCONCEPTIONS.items():
        name, _, task = key.partition("/")
        assert isinstance(lab.MISCONCEPTIONS[name], Misconception)
        assert not task or task in lab.NAMES, key
        assert words["en"].endswith(".") and words["zh"].endswith("。"), key


@pytest.mark.parametrize(
    ("function", "name", "words"),
    [
        (
            lambda X, h: X.reshape(len(X) // h, X.shape[1], -1),
            "transpose_output",
            "transpose to (B, n, heads, d), then reshape to (B, n, heads * d)",
        ),
        (
            lambda q, k, a, b, w: np.tanh((q @ a.T)[:, None] + (k @ b.T)[:, :, None]) @ w,
            "additive_scores",
            "q[:, :, None] and k[:, None]",
        ),
        (
            lambda g, q, k: (g @ k, g.swapaxes(1, 2) @ q),
            "dot_product_scores_backward",
            "missing in the backward pass",
        ),
        (
            lambda g, q, k: (g @ k / q.shape[-1], g.swapaxes(1, 2) @ q / q.shape[-1]),
            "dot_product_scores_backward",
            "In the backward pass you multiply by the scale twice",
        ),
        (lambda X, valid_len, value=0: X.copy(), "sequence_mask", "Use valid_len."),
        (
            lambda q, k, s: (lambda K: K / K.sum(1, keepdims=True))(
                np.exp(-((k[:, None] - q) ** 2).sum(-1) / (2 * s**2))
            ),
            "gaussian_kernel",
            "queries[:, None] - keys[None]",
        ),
    ],
)
def test_the_words_are_those_of_the_function(function: Any, name: str, words: str) -> None:
    assert words in wrong(function, name).sentences[0]
