"""The tour: what attnext does, shown and checked in a terminal in a few seconds.

    page.py        what is written: headings, prose, lines with a mark, the score of the checks
    canvas.py      points and a curve, drawn in characters
    peer.py        the same attention in PyTorch, where it is installed
    lessons.py     parts 1 to 6: the book's small examples, and the backward pass
    motorcycle.py  part 7: kernel regression on real measurements
    timings.py     part 8: how long it takes

A part is a function of the `Tour`: it computes, writes, and has every number checked.
"""

from __future__ import annotations

import time
from typing import TextIO

import attnext
from attnext._tour import lessons, motorcycle, timings
from attnext._tour.page import Page, Tour
from attnext._tour.peer import load_peer

PARTS = (
    lessons.masked_softmax,
    lessons.sequence_mask,
    lessons.additive_attention,
    lessons.dot_product_attention,
    lessons.scaling,
    lessons.backward,
    motorcycle.kernel_regression,
    timings.timings,
)


def run(stream: TextIO) -> int:
    """Write the whole tour to `stream`; return 0, or 1 if a known answer was missed."""
    started = time.perf_counter()
    tour = Tour(Page(stream), load_peer())
    _opening(tour)
    for number, part in enumerate(PARTS, start=1):
        tour.begin(number)
        try:
            part(tour)
        except BrokenPipeError:
            raise  # nobody reads on
        except Exception as error:  # what a part trips over is a miss, not the end of the tour
            tour.stopped(error)
    _verdict(tour, time.perf_counter() - started)
    stream.flush()
    return 1 if tour.missed else 0


def _opening(tour: Tour) -> None:
    page = tour.page
    name = f"attnext {attnext.__version__}"
    page.line()
    motto = "attention, written in C, for Python".rjust(76 - len(name))
    page.line("  " + page.style(name, "bold") + page.style(motto, "dim"))
    page.rule()
    page.say(
        f"A tour in {len(PARTS)} parts and a few seconds. Every number is computed now, on this "
        f"machine, and held against what it must be: {page.tick} found, {page.cross} missed."
    )
    if tour.peer is None:
        page.say("PyTorch is not installed: nothing is compared with it, all the rest runs.")
    else:
        page.say(f"{tour.peer.name} is installed: what it computes stands beside our numbers.")


def _verdict(tour: Tour, seconds: float) -> None:
    page = tour.page
    page.line()
    page.rule()
    took = f"{seconds:.1f} seconds"
    if not tour.missed:
        text = f"  {page.tick} all {tour.checked} checks found the known answer"
        page.line(page.style(text, "green", "bold") + took.rjust(78 - len(text)))
    else:
        text = f"  {page.cross} MISSED {len(tour.missed)} of {tour.checked} checks"
        page.line(page.style(text, "red", "bold") + took.rjust(78 - len(text)))
        for missed in tour.missed:
            page.missed(missed)
    page.line("      next, in Python: import attnext; help(attnext.AdditiveAttention)")
    page.line()
