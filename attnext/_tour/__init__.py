"""The tour: what attnext does, shown and checked in a terminal.

    page.py        the output: headings, prose, tables
    tour.py        lines of results with a mark, the checks and their number
    canvas.py      points and a curve, drawn in characters
    figures.py     the figures of --plots
    peer.py        the same attention in PyTorch, if it is installed
    masks.py       parts 1 and 2: masking the padding
    scores.py      parts 3 and 4: the two scoring functions of d2l
    gradients.py   parts 5 and 6: why the dot product is scaled, and the backward pass
    motorcycle.py  part 7: kernel regression on real measurements
    timings.py     part 8: how long it takes

A part is a function that takes the `Tour`. It computes, writes, and passes every number to a check.
Each sentence is written in English and in Chinese; the numbers and checks are the same in both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TextIO

import attnext
from attnext._tour import gradients, masks, motorcycle, scores, timings
from attnext._tour.page import Language, Page
from attnext._tour.peer import load_peer
from attnext._tour.tour import Tour
from attnext._width import columns, rjust

PARTS = (
    masks.masked_softmax,
    masks.sequence_mask,
    scores.additive_attention,
    scores.dot_product_attention,
    gradients.scaling,
    gradients.backward,
    motorcycle.kernel_regression,
    timings.timings,
)


def run(stream: TextIO, language: Language = "en", plots: Path | None = None) -> int:
    """Write the whole tour to `stream`; return 0, or 1 if a check failed.

    Figures are written into the folder `plots`, unless it is None.
    """
    started = time.perf_counter()
    page = Page(stream, language)
    tour = Tour(page, load_peer())
    fonts: AbstractContextManager[None] = nullcontext()
    if plots is not None:
        from attnext._tour.figures import Figures  # and matplotlib, only now

        tour.figures = Figures(page, plots)
        fonts = tour.figures.fonts()
    _opening(tour, language)
    with fonts:
        for number, part in enumerate(PARTS, start=1):
            _go_through(tour, number, part)
    _verdict(tour, time.perf_counter() - started)
    stream.flush()
    return 1 if tour.missed else 0


def _go_through(tour: Tour, number: int, part: Callable[[Tour], None]) -> None:
    tour.begin(number)
    try:
        part(tour)
    except BrokenPipeError:
        raise  # the reader of the output has left
    except Exception as error:  # counts as a failed check; the tour goes on with the next part
        tour.stopped(error)


def _opening(tour: Tour, wanted: Language) -> None:
    page, parts = tour.page, len(PARTS)
    name = f"attnext {attnext.__version__}"
    motto = page.text(
        en="attention, written in C, for Python", zh="注意力机制，用C语言编写，供Python使用"
    )
    page.line()
    page.line(
        "  "
        + page.style(name, "bold")
        + page.style(rjust(motto, page.width - 4 - columns(name)), "dim")
    )
    page.rule()
    if page.language != wanted:
        page.line(f"  In English: the encoding of this output, {page.encoding}, has no Chinese.")
    page.say(
        en=f"A tour in {parts} parts. The tour computes every number now, on this machine, and "
        f"compares it with the known answer. If they agree, the line is marked {page.tick}, "
        f"otherwise {page.cross}.",
        zh=f"导览共{parts}个部分。每个数都在这台机器上现场算出，并与已知的答案比较，"
        f"相符的标{page.tick}，不符的标{page.cross}。",
    )
    if tour.peer is None:
        page.say(
            en="PyTorch is not installed, so the tour skips the comparison with it.",
            zh="没有安装PyTorch，因此略去与它的比较。",
        )
    else:
        page.say(
            en=f"{tour.peer.name} is installed. Its results are shown next to those of attnext.",
            zh=f"已安装{tour.peer.name}：它的结果列在attnext的结果旁边。",
        )


def _verdict(tour: Tour, seconds: float) -> None:
    page, missed = tour.page, tour.missed
    page.line()
    page.rule()
    if not missed:
        mark, style = page.tick, "green"
        text = page.text(
            en=f"all {tour.checked} checks passed",
            zh=f"全部{tour.checked}项检验都已通过",
        )
    else:
        mark, style = page.cross, "red"
        text = page.text(
            en=f"FAILED {len(missed)} of {tour.checked} checks",
            zh=f"{tour.checked}项检验中有{len(missed)}项未通过",
        )
    verdict = f"  {mark} {text}"
    took = page.text(en=f"{seconds:.1f} seconds", zh=f"{seconds:.1f}秒")
    page.line(page.style(verdict, style, "bold") + rjust(took, page.width - 2 - columns(verdict)))
    for story in missed:
        page.missed(story)
    if tour.figures:
        drawn, folder = len(tour.figures.written), tour.figures.folder
        text = page.text(en=f"{drawn} figures are in {folder}", zh=f"{drawn}张图，保存在 {folder}")
        page.line(f"      {text}")
        if page.language == "zh" and not tour.figures.font:
            page.indented("没有找到含中文字符的字体：图中的文字为英文。")
    text = page.text(en="Next, in Python: ", zh="下一步，在Python中：")
    page.indented(f"{text}import attnext; help(attnext.AdditiveAttention)")
    page.indented(
        page.text(
            en="Then read the notebooks: `attnext lab DIR` writes them into a folder.",
            zh="然后读笔记本：`attnext lab DIR --lang zh`把它们写入一个目录。",
        )
    )
    page.line()
