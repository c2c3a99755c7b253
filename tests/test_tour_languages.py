"""The tour in Chinese: the same numbers and checks, every sentence, 80 columns of a terminal."""

from __future__ import annotations

import io
import re
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from touring import (
    Recorded,
    check_layout,
    columns,
    recorded,
    run,
    spoiled,
    without,
    without_training,
)

import attnext
from attnext import _tour
from attnext import _width as width
from attnext.__main__ import main
from attnext._tour import gradients, masks, motorcycle, scores
from attnext._tour.page import Page
from attnext._tour.tour import Check

CHINESE = re.compile(r"[\u4e00-\u9fff]")
PUNCTUATION = "。，、；：！？）》"
TITLES = [
    "掩蔽softmax操作",
    "序列掩蔽",
    "加性注意力",
    "点积注意力",
    "为什么是1/sqrt(d)",
    "反向传播",
    "真实数据",
    "用时",
]
# What is called the same in either language: code, formulas, units and names.
SAME_IN_BOTH = """
    AdditiveAttention BLAS DIR DotProductAttention NWKernelRegression NaN NumPy Python PyTorch
    Silverman additive_attention attention_weights attnext avx avx2 avx512 backward code dropout
    error fill float32 float64 generic grad_output grads help import keys key_size
    lab lang layer leave_one_out loss masked_softmax masked_softmax_backward net num_hiddens output
    png queries query_size scalar scoring_functions sequence_mask softmax sqrt sse2 sum tanh torch
    valid_len valid_lens value values w_v weights W_k W_q zh
""".split()


@pytest.fixture
def english() -> Recorded:
    return recorded("en")


@pytest.fixture
def chinese() -> Recorded:
    return recorded("zh")


# ---- the whole tour ----------------------------------------------------------------------------


def test_the_whole_tour(chinese: Recorded) -> None:
    assert chinese.code == 0
    check_layout(chinese.text)
    headings = [line for line in chinese.text.splitlines() if line.startswith("── ")]
    assert [
        re.sub(r"^── \d ", "", line)[: len(title)]
        for line, title in zip(headings, TITLES, strict=True)
    ] == TITLES
    assert all(columns(line) == 80 for line in headings)
    assert re.search(rf"✓ 全部{len(chinese.checks)}项检验都已通过", chinese.text)
    assert re.search(r"已安装PyTorch \d+\.\d+\.\d+", chinese.text)


def test_the_checks_are_the_same(english: Recorded, chinese: Recorded) -> None:
    """In the same order; also what is got, down to the bit."""
    assert len(english.checks) == len(chinese.checks) > 70
    for ours, theirs in zip(english.checks, chinese.checks, strict=True):
        assert (ours.what, ours.tolerance) == (theirs.what, theirs.tolerance)
        np.testing.assert_array_equal(ours.got, theirs.got)
        np.testing.assert_array_equal(ours.known, theirs.known)


def test_the_marks_are_on_the_same_lines(english: Recorded, chinese: Recorded) -> None:
    marks = [re.findall(r"^  [✓✗]  ", run.text, re.MULTILINE) for run in (english, chinese)]
    assert marks[0] == marks[1] and len(marks[0]) > 40


def test_every_sentence_has_its_twin(english: Recorded, chinese: Recorded) -> None:
    assert len(english.words) == len(chinese.words) > 80
    for en, zh in english.words:
        assert CHINESE.search(zh), zh
        assert en.strip() and not CHINESE.search(en), en


def test_twins_tell_the_same_numbers_and_names(english: Recorded) -> None:
    for en, zh in english.words:
        for pattern in (r"\d+(?:[.,]\d+)*(?:e-\d+)?", r"\w*_\w+"):
            numbers = [sorted(re.findall(pattern, text, re.ASCII)) for text in (en, zh)]
            assert numbers[0] == numbers[1], (en, zh)


def test_no_english_is_left(chinese: Recorded) -> None:
    text = chinese.text.replace(attnext.__version__, "")
    words = set(re.findall(r"[A-Za-z][A-Za-z_]+[A-Za-z0-9_]*", text))
    assert words - set(SAME_IN_BOTH) == set()


def test_no_line_begins_with_punctuation_or_ends_with_an_open_bracket(chinese: Recorded) -> None:
    for line in chinese.text.splitlines():
        assert not line.strip().startswith(tuple(PUNCTUATION)), line
        assert not line.endswith(("（", "《")), line


def test_chinese_has_its_own_punctuation(english: Recorded) -> None:
    for _, zh in english.words:
        assert not re.search(r"[\u4e00-\u9fff][,.;:!?]|[,;:!?][\u4e00-\u9fff]", zh), zh
        assert not re.search(r"[\u4e00-\u9fff] +[\u4e00-\u9fff]", zh), zh


def test_tables_are_as_wide_as_in_english(english: Recorded, chinese: Recorded) -> None:
    """Under heads in Chinese the columns of numbers stay where they are."""
    for row in (r"^  ✓ .*queries ", r"^  ✓ .*1024 "):
        lines = [re.search(row + ".*", run.text, re.MULTILINE) for run in (english, chinese)]
        assert lines[0] and lines[1] and lines[0][0] == lines[1][0]
    (head,) = [line for line in chinese.text.splitlines() if "与数值梯度相差" in line]
    (row,) = [line for line in chinese.text.splitlines() if line.startswith("  ✓   W_k ")]
    end = columns(head[: head.index("与数值梯度相差") + len("与数值梯度相差")])
    assert row[end - 1].isdigit() and row[end] == " "


# ---- which language ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "chinese"), [([], False), (["--lang", "en"], False), (["--lang", "zh"], True)]
)
def test_the_language_is_chosen_by_the_argument_alone(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    chinese: bool,
) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    monkeypatch.setattr(_tour, "PARTS", (masks.sequence_mask,))
    assert main(arguments) == 0
    assert bool(CHINESE.search(capsys.readouterr().out)) is chinese


@pytest.mark.parametrize("words", [["--lang", "zh", "--help"], ["lab", "-h", "--lang=zh"]])
def test_help_in_chinese(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Every sentence of it, in lines that fit: a Chinese character takes two columns."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setenv("COLUMNS", "80")
        main(words)
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("用法：attnext") and "显示本帮助并退出" in text
    assert not re.search("[a-z]+ [a-z]+ [a-z]+", text)  # no English sentence
    assert max(map(columns, text.splitlines())) <= 80


def test_help_where_the_output_has_no_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(SystemExit):
        main(["--lang", "zh", "--help"])
    stream.seek(0)
    assert stream.read().startswith("usage: attnext")


def test_another_language(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--lang", "fr"])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "argument --lang: invalid choice: 'fr'" in error and "zh" in error


@pytest.mark.parametrize("encoding", ["gb2312", "gbk", "gb18030", "utf-8", "utf-16"])
def test_encodings_with_chinese(encoding: str) -> None:
    """Also where the marks and pictures are ASCII."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    code, text = run(masks.masked_softmax, scores.additive_attention, stream=stream, language="zh")
    assert code == 0 and "掩蔽softmax操作" in text and "\\u" not in text
    check_layout(text)


def test_the_smallest_chinese_encoding_has_every_word(english: Recorded) -> None:
    for _, zh in english.words:
        re.sub("[✓✗∘╌]", "", zh).encode("gb2312")


def test_without_torch_one_line_says_so_in_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    without("torch", monkeypatch)
    without_training(monkeypatch)
    parts = masks.masked_softmax, gradients.backward, motorcycle.kernel_regression
    code, text = run(*parts, language="zh")
    assert code == 0
    check_layout(text)
    assert text.count("没有安装PyTorch") == 1 and "torch" not in text.replace("PyTorch", "")


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("ascii", "ascii"),
        ("latin-1", "iso8859-1"),
        ("cp1252", "cp1252"),
        ("big5", "big5"),
        ("shift_jis", "shift_jis"),
        ("euc_kr", "euc_kr"),
    ],
)
def test_encodings_without_chinese(encoding: str, name: str) -> None:
    def tour(language: str) -> list[str]:
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
        code, text = run(
            masks.masked_softmax, scores.additive_attention, stream=stream, language=language
        )  # type: ignore[arg-type]
        assert code == 0
        check_layout(text)
        return [line for line in text.splitlines() if "seconds" not in line]

    notice = f"  In English: the encoding of this output, {name}, has no Chinese."
    english, fallen_back = tour("en"), tour("zh")
    assert notice not in english
    assert [line for line in fallen_back if line != notice] == english
    assert fallen_back.count(notice) == 1


# ---- what is missed ----------------------------------------------------------------------------


def test_a_missed_check_in_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attnext, "sequence_mask", spoiled(attnext.sequence_mask))
    code, text = run(masks.sequence_mask, language="zh")
    assert code == 1
    assert "      未通过 row 0：得到[1.001 0 0]，应为[1 0 0]" in text
    assert re.search(r"✗ \d+项检验中有\d+项未通过", text)
    assert "未通过 第1部分，row 0：得到" in text.split("项未通过")[-1]
    check_layout(text)


def test_a_stopped_part_in_chinese() -> None:
    def stuck(tour: object) -> None:
        raise ZeroDivisionError("division by zero")

    code, text = run(stuck, language="zh")
    assert code == 1 and "未通过 因ZeroDivisionError中断：division by zero" in text


def test_an_array_in_chinese() -> None:
    story = Check("it", np.ones((3, 4)), 0).story(Page(io.StringIO(), "zh"))
    assert story == "it：得到形状为(3, 4)的数组，应为0"


def test_what_the_stream_cannot_encode_is_escaped() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    Page(stream).line("图 \udce4 é")
    stream.seek(0)
    assert stream.read() == "\\u56fe \\udce4 é\n"


# ---- columns -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("softmax", 7),
        ("注意力", 6),
        ("掩蔽softmax操作：", 17),
        ("─│✓∘█⣀·", 7),  # drawn in one column each by terminals that follow Unicode
        ("e\u0301", 1),
        ("Ａ", 2),
    ],
)
def test_columns(text: str, expected: int) -> None:
    assert width.columns(text) == expected
    assert width.ljust(text, 20) == text + " " * (20 - expected)
    assert width.rjust(text, 20) == " " * (20 - expected) + text
    assert width.ljust(text, 0) == width.rjust(text, 0) == text


@pytest.mark.parametrize(
    ("text", "limit", "lines"),
    [
        ("", 10, []),
        ("查询和键的维度", 8, ["查询和键", "的维度"]),
        ("查询和键的维度", 9, ["查询和键", "的维度"]),
        ("查询和键，的维度", 8, ["查询和", "键，的维", "度"]),  # the comma stays with its word
        ("查询和（键）的", 8, ["查询和", "（键）的"]),  # the bracket goes with its word
        ("用softmax操作", 8, ["用", "softmax", "操作"]),
        ("用softmax操作", 9, ["用softmax", "操作"]),
        ("w = 1 / 带宽。", 9, ["w = 1 /", "带宽。"]),
        ("w = 1 / 带宽。", 10, ["w = 1 / 带", "宽。"]),
        ("a much-longer-word b", 6, ["a", "much-longer-word", "b"]),
        ("  spaces   become one ", 80, ["spaces become one"]),
    ],
)
def test_wrap(text: str, limit: int, lines: list[str]) -> None:
    assert width.wrap(text, limit) == lines


@given(st.lists(st.text("abc.-_1", min_size=1), max_size=30), st.integers(1, 30))
def test_wrap_of_words_is_that_of_the_standard_library(words: list[str], limit: int) -> None:
    text = " ".join(words)
    assert width.wrap(text, limit) == textwrap.wrap(
        text, limit, break_long_words=False, break_on_hyphens=False
    )


@given(st.text("查询键值ab 1，。：（）"), st.integers(8, 40))
def test_wrap_keeps_every_character_in_order(text: str, limit: int) -> None:
    lines = width.wrap(text, limit)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(line == line.strip() and line for line in lines)


@given(
    st.lists(st.sampled_from(["查", "询", "键", "值，", "（w）", "和。", "w_v", " "])),
    st.integers(6, 40),
)
def test_wrap_of_prose(words: list[str], limit: int) -> None:
    for line in width.wrap("".join(words), limit):
        assert not line.startswith(tuple(PUNCTUATION)) and not line.endswith("（")
        longest_word = max(map(len, re.findall("[a-z_]+", line)), default=0)
        assert columns(line) <= max(limit, longest_word)


def test_the_picture_is_the_same_in_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    without_training(monkeypatch)
    pictures = []
    for language in ("en", "zh"):
        _, text = run(motorcycle.kernel_regression, language=language)  # type: ignore[arg-type]
        pictures.append([line for line in text.splitlines() if re.match(r"^.{8}[│┤└]", line)])
    assert pictures[0] == pictures[1] and len(pictures[0]) == 23
