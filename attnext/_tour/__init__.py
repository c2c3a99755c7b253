"""The tour: what attnext does, shown and checked in a terminal.

    page.py        what is written: headings, prose, lines with a mark, the score of the checks
    canvas.py      points and a curve, drawn in characters
    figures.py     the figures of --plots
    peer.py        the same attention in PyTorch, where it is installed
    masks.py       parts 1 and 2: leaving padding out
    scores.py      parts 3 and 4: the book's two scoring functions
    gradients.py   parts 5 and 6: why the dot product is scaled, and the backward pass
    motorcycle.py  part 7: kernel regression on real measurements
    timings.py     part 8: how long it takes

A part is a function of the `Tour`: it computes, writes, and has every number checked. What it says
stands there in English and in Chinese, side by side; the numbers and the checks are the same.
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
    """Write the whole tour to `stream`; return 0, or 1 if a known answer was missed.

    Figures go to the folder `plots`, if there is one.
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
        raise  # nobody reads on
    except Exception as error:  # what a part trips over is a miss, not the end of the tour
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
        page.line(f"  No Chinese: this output is encoded in {page.encoding}, which cannot hold it.")
    page.say(
        en=f"A tour in {parts} parts. Every number is computed now, on this machine, and compared "
        f"with the known answer: {page.tick} means equal, {page.cross} means missed.",
        zh=f"导览共{parts}个部分。每个数都是此刻在这台机器上算出来的，并与应有的答案核对："
        f"{page.tick}表示相符，{page.cross}表示不符。",
    )
    if tour.peer is None:
        page.say(
            en="PyTorch is not installed: nothing is compared with it, all the rest runs.",
            zh="没有安装PyTorch：不与它比较，其余照常运行。",
        )
    else:
        page.say(
            en=f"{tour.peer.name} is installed: what it computes stands beside our numbers.",
            zh=f"已安装{tour.peer.name}：它算出的结果列在attnext的旁边。",
        )


def _verdict(tour: Tour, seconds: float) -> None:
    page, missed = tour.page, tour.missed
    page.line()
    page.rule()
    if not missed:
        mark, style = page.tick, "green"
        text = page.text(
            en=f"all {tour.checked} checks found the known answer",
            zh=f"全部{tour.checked}项检验都得到了已知的答案",
        )
    else:
        mark, style = page.cross, "red"
        text = page.text(
            en=f"MISSED {len(missed)} of {tour.checked} checks",
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
    text = page.text(en="next, in Python: ", zh="下一步，在Python中：")
    page.indented(f"{text}import attnext; help(attnext.AdditiveAttention)")
    page.indented(
        page.text(
            en="then the notebooks of the clone: examples/01_scoring_functions.ipynb and on",
            zh="然后是克隆目录中的笔记本：从examples/01_scoring_functions.ipynb开始",
        )
    )
    page.line()
