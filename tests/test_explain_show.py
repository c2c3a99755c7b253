"""How attnext.explain shows itself: text of 80 columns, HTML for notebooks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from helpers import SCORES, make_problem

import attnext
from attnext import explain
from attnext.explain import Step, Trace
from attnext.explain.steps import summarise
from attnext.explain.tables import Limits, tables
from attnext.explain.text import WIDTH, width, wrap

X = np.array([[[0.8, 0.2, 0.9, 0.4], [0.1, 0.7, 0.3, 0.5]], [[0.6, 0.2, 0.7, 0.1], [1, 2, 3, 4]]])


def make_step(values: Any, masked: Any = None, key: str = "raw", lang: str = "en") -> Step:
    array = np.asarray(values)
    axes = ("batch", "head", "query", "key")[-array.ndim :]
    return Step(
        key, "Name", "x = y", "A note.", array.shape, array, axes, masked, summarise(array), lang
    )


def some_traces() -> Iterator[Trace]:
    """Of every function, in both languages, small and large, narrow and wide."""
    rng = np.random.default_rng(0)
    for lang in ("en", "zh"):
        yield explain.masked_softmax(X, [0, 3], lang=lang)
        yield explain.masked_softmax_backward(X, X, [0, 3], lang=lang)
        for score in SCORES:
            for sizes in ({}, {"N": 10, "H": 12}, {"lead": (3, 2), "M": 20, "N": 30, "D": 40}):
                options = {"valid_lens": 4, "dropout_p": 0.5, "seed": 2**63, "causal": True}
                problem = make_problem(score, rng, **sizes, **options)  # type: ignore[arg-type]
                problem.inputs["values"] *= np.float32(-1e20)
                function = getattr(
                    explain, f"{'dot_product' if score == 'dot' else score}_attention"
                )
                yield function(**problem.inputs, **problem.options, lang=lang)
        problem = make_problem("dot", rng, lead=(2, 2), M=5, N=9)
        bias = np.ones((2, 1, 1, 9), np.float32)
        yield explain.dot_product_attention_backward(
            **problem.grads, **problem.inputs, bias=bias, return_grad_bias=True, lang=lang
        )


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    return list(some_traces())


# ---- text ----------------------------------------------------------------------------------------


def test_text_has_80_columns_and_every_step(traces: list[Trace]) -> None:
    for trace in traces:
        text = str(trace)
        lines = text.splitlines()
        assert len(lines) > 20
        for line in lines:
            assert width(line) <= WIDTH, line
            assert line == line.rstrip(), line
        squeezed = re.sub(r"\s", "", text)
        for number, step in enumerate(trace.steps, 1):
            assert f"\n{number}. {step.name}  {step.shape}\n" in text
            for words in (step.formula, step.note):
                assert re.sub(r"\s", "", words) in squeezed
        assert text.startswith(trace.title) and text.count("\n\n\n") == 0


def toy(lang: str) -> Trace:
    """Dive into Deep Learning's toy example: equal keys, of which 2 and 6 are valid."""
    attn = attnext.AdditiveAttention(key_size=2, query_size=20, num_hiddens=8, rng=0)
    values = np.arange(40).reshape(1, 10, 4).repeat(2, axis=0)
    queries, keys = np.ones((2, 1, 20)), np.ones((2, 10, 2))
    return explain.layer(attn, queries, keys, values, [2, 6], lang=lang)


def test_the_text_of_the_book() -> None:
    text = """\
Attention weights  (2, 1, 10)
   weights = softmax(scores)
   Each weight is exp(score) divided by the sum of exp(score) over the row, so
   each row sums to 1.

   batch 0
   query\\key     0     1     2     3     4     5     6     7     8     9
           0 0.500 0.500     ·     ·     ·     ·     ·     ·     ·     ·

   batch 1
   query\\key     0     1     2     3     4     5     6     7     8     9
           0 0.167 0.167 0.167 0.167 0.167 0.167     ·     ·     ·     ·"""
    assert str(toy("en")["weights"]) == text


def test_the_text_of_the_book_in_chinese() -> None:
    text = """\
输出  (2, 1, 4)
   output = weights @ values
   对每个查询，用该行的权重对值加权求和。

   样本 0
   查询\\特征   0   1   2   3
           0   2   3   4   5

   样本 1
   查询\\特征   0   1   2   3
           0  10  11  12  13"""
    assert str(toy("zh")["output"]) == text


@pytest.mark.parametrize(
    ("numbers", "texts"),
    [
        ([1.0, -2.0, 0.0], ["1", "-2", "0"]),
        ([0.5, 1e-9, 0.0], ["0.5000", "0.0000", "0"]),
        ([0.5, -1e-9, -0.0], ["0.5000", "0.0000", "0"]),
        ([np.nan, np.inf, -np.inf], ["nan", "inf", "-inf"]),
        ([12.5, -3.0, np.nan], ["12.500", "-3.000", "nan"]),
        ([12345.5, 1.0, 2.0], ["12345.5", "1.0", "2.0"]),
        ([1.5e8, 1.0, 0.0], ["1.50e+08", "1.00e+00", "0"]),
        ([1.5e-8, -1e-9, 0.0], ["1.50e-08", "-1.00e-09", "0"]),
    ],
)
def test_numbers_of_a_table_share_a_format(numbers: list[float], texts: list[str]) -> None:
    (table,) = tables(make_step(numbers), Limits())
    assert table.cells == [texts]
    (table,) = tables(make_step(np.float32(numbers)), Limits())
    assert table.cells == [texts]


def test_bools_and_integers() -> None:
    (table,) = tables(make_step([True, False]), Limits())
    assert table.cells == [["1", "0"]]
    (table,) = tables(make_step(np.array([10, 200])), Limits())
    assert table.cells == [["10", "200"]]


def test_masked_numbers_are_dots_whatever_they_are() -> None:
    masked = np.array([True, True, False, True])
    (table,) = tables(make_step([np.nan, 7.0, 2.5, -np.inf], masked), Limits())
    assert table.cells == [["·", "·", "2.5000", "-inf"]]  # -inf is what masking makes of a score


@pytest.mark.parametrize(
    ("shape", "corner", "count"),
    [
        ((3, 12), (3, 12), 1),
        ((3, 13), (3, 6), 1),
        ((20, 10), (20, 10), 1),
        ((21, 10), (6, 6), 1),
        ((2, 5, 4), (2, 5, 4), 2),
        ((30, 5, 4), (1, 5, 4), 1),
        ((2, 30, 5, 4), (1, 1, 5, 4), 1),
        ((201,), (6,), 1),
    ],
)
def test_large_arrays_are_cut(shape: tuple[int, ...], corner: tuple[int, ...], count: int) -> None:
    step = make_step(np.random.default_rng(0).normal(size=shape))
    assert Limits().corner(step) == corner
    drawn = list(tables(step, Limits()))
    assert len(drawn) == count
    size = step.values.size
    assert (f"{size} numbers: min {step.values.min():.4g}, mean " in step._repr_html_()) == (
        shape != corner
    )
    if shape != corner and len(shape) > 1:
        assert drawn[0].label == str([0] * (len(shape) - 2) + ["a", "b"]).replace(
            "'a', 'b'", f":{corner[-2]}, :{corner[-1]}"
        )


def test_labels_tell_where_a_table_is() -> None:
    labels = [table.label for table in tables(make_step(np.zeros((2, 2, 1, 3))), Limits())]
    assert labels == [f"batch {b}, head {h}" for b in (0, 1) for h in (0, 1)]
    trace = explain.masked_softmax(np.zeros((1, 1, 2, 2, 3)), 2)
    assert trace["X"].axes == ("batch", "group", "head", "query", "key")


def test_wide_letters_count_twice() -> None:
    assert width("ab") == 2 and width("查询") == 4 and width("（，") == 4
    text = "查询与键的方向越一致，点积越大。" * 12
    lines = wrap(text, "   ")
    assert "".join(line.strip() for line in lines) == text
    assert all(width(line) <= WIDTH for line in lines)
    assert min(width(line) for line in lines[:-1]) >= WIDTH - 4  # filled to the edge
    assert not any(line.strip()[0] in "，。" for line in lines)


def test_words_are_wrapped_between_words() -> None:
    lines = wrap("word " * 40, "  ")
    assert " ".join(line.strip() for line in lines) == ("word " * 40).strip()
    assert all(line.startswith("  word") and width(line) <= WIDTH for line in lines)


# ---- HTML ----------------------------------------------------------------------------------------

VOID = {"br"}
FOLDS = {"details", "summary"}


class Checker(HTMLParser):
    """Tags in balance, of the expected kinds; text and cells collected."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.cells: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"div", "style", "span", "code", "table", "tr", "td", "th", *FOLDS, *VOID}, (
            tag
        )
        assert {name for name, _ in attrs} <= {"class", "style", "title", "open"}
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append(dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)


def parse(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    return checker


def test_html_is_well_formed_and_self_contained(traces: list[Trace]) -> None:
    for trace in traces:
        html = trace._repr_html_()
        text = "\n".join(parse(html).text)
        for words in (trace.title, trace.call, trace.agreement):
            assert words in text
        for number, step in enumerate(trace.steps, 1):
            assert f"{number}. {step.name}" in text
            assert step.formula in text and step.note in text and str(step.shape) in text
        assert not re.search(r"https?:|url\(|@import|<script|\bon\w+=", html)
        assert len(html) < 400_000


def test_a_step_shows_itself_alone(traces: list[Trace]) -> None:
    for step in (step for trace in traces for step in trace.steps):
        html = step._repr_html_()
        assert html.count('<details class="step" open>') == 1 and step.formula in "\n".join(
            parse(html).text
        )
        assert str(step).startswith(f"{step.name}  {step.shape}\n")


def test_html_escapes_everything() -> None:
    bad = "<script>alert(1)</script>&\"'"
    step = replace(make_step([[[1.0, 2.0]]]), name=bad, formula=bad, note=bad, axes=(bad, bad, bad))
    trace = Trace(bad, bad, (step,), step.values, step.values, 0.0, bad, "en")
    html = trace._repr_html_()
    text = "".join(parse(html).text)  # which refuses a script
    assert text.count(bad) == 9  # title, call, agreement; name, formula, note; label, corner twice
    assert "<script" not in html


def test_html_marks_masked_cells() -> None:
    trace = explain.masked_softmax(X, [0, 3])
    for key in ("takes_part", "masked", "exp", "softmax"):
        masked = trace[key].masked
        assert masked is not None
        classes = [cell.get("class") for cell in parse(trace[key]._repr_html_()).cells]
        assert [kind == "masked" for kind in classes] == masked.ravel().tolist(), key
        assert '"swatch masked"></span>masked</div>' in trace[key]._repr_html_()
    assert '"swatch masked"' not in trace["X"]._repr_html_()
    assert trace["softmax"].masked is not None and not trace["softmax"].masked[0].any()  # 1/4 each


def shade(cell: dict[str, str | None]) -> int:
    """How strong the colour of a cell is, from -20 for blue to 20 for red."""
    found = re.fullmatch(r"([pn])(\d+)", cell.get("class") or "")
    return int(found[2]) * (1 if found[1] == "p" else -1) if found else 0


def test_the_heat_map_is_darker_where_the_weight_is_larger() -> None:
    weights = np.array([[0.1, 0.7, 0.0, 0.2], [1.0, 0.0, 0.0, np.nan]])
    cells = parse(make_step(weights, key="weights")._repr_html_()).cells
    strengths = [shade(cell) for cell in cells]
    assert strengths[2] == strengths[5] == strengths[6] == strengths[7] == 0
    assert 0 < strengths[0] < strengths[3] < strengths[1] < strengths[4] == 20


def test_every_matrix_is_coloured_blue_below_zero() -> None:
    scores = np.array([[-4.0, 2.0], [0.0, -0.1]])
    html = make_step(scores, key="raw")._repr_html_()
    assert list(map(shade, parse(html).cells)) == [-20, 10, 0, -1]
    assert ">-4 <span" in html and ">4</div>" in html  # the legend
    every = explain.dot_product_attention(*[np.eye(3)] * 3, 2, causal=True)
    for step in every.steps:
        assert any(map(shade, parse(step._repr_html_()).cells)), step.key


def test_columns_are_as_wide_however_many_are_masked() -> None:
    """As wide as the widest number, in all tables of a step; a heading that is longer is cut."""
    step = replace(make_step([[[1.0, -2.5]], [[3.0, 4.0]]]), labels=((), (), ("a", "b" * 30)))
    html = step._repr_html_()
    assert html.count("--w:10ch") == 1 and f'<th title="{"b" * 30}">' in html
    masked = np.ones((1, 2), bool)
    few = replace(make_step([[-123.25, 0.5]]), masked=masked)
    assert "--w:2ch" in few._repr_html_()
    assert "--w:7ch" in make_step([[-123.25, 0.5]])._repr_html_()


def test_a_step_folds_and_the_column_under_the_pointer_is_named() -> None:
    html = explain.masked_softmax(X)._repr_html_()
    assert html.count("<details") == html.count("<summary>") == 4
    assert "table:has(td:nth-child(2):hover) tr:first-child th:nth-child(2)" in html


def test_a_large_heat_map_has_no_numbers() -> None:
    rng = np.random.default_rng(0)
    problem = make_problem("dot", rng, lead=(2, 2), M=20, N=40, valid_lens=[10, 40])
    step = explain.dot_product_attention(**problem.inputs, valid_lens=[10, 40])["weights"]
    page = parse(step._repr_html_())
    assert len(page.cells) == 4 * 20 * 32
    assert "[1, 1, :20, :32], query\\key" in page.text
    shown = step.values[..., :32].ravel()
    strengths = np.array([shade(cell) for cell in page.cells])
    masked = np.array([cell.get("class") == "masked" for cell in page.cells])
    assert (masked == (shown == 0)).all() and (strengths[masked] == 0).all()
    order = np.argsort(shown[~masked], kind="stable")
    assert (np.diff(strengths[~masked][order]) >= 0).all()
    assert strengths.max() > 12  # the largest of all is among those shown, or nearly so


def test_colours_of_letters_are_left_to_the_notebook() -> None:
    """On light and on dark: no colour but transparent ones."""
    html = explain.masked_softmax(X, [2, 3])._repr_html_()
    assert set(re.findall(r"(?<![-\w])color: ([^;]+);", html)) == {"inherit", "inherit !important"}
    for colour in re.findall(r"#[0-9a-f]+", html):
        assert len(colour) == 9 and colour[-2:] < "d0", colour
    assert set(re.findall(r"rgb\(|rgba\(\d+,\d+,\d+,[.\d]+\)", html)) <= {
        f"rgba(128,128,128,{a})" for a in (".35", ".15", ".3", ".12", ".6")
    }
