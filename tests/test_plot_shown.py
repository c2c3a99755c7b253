"""Who shows the pictures of attnext.plot: pyplot where it is in use, or else a notebook; once."""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from attnext._tour import masks
from attnext._tour.figures import Figures
from attnext._tour.page import Page
from attnext.plot import plot_kernel_regression, plot_loss, show_heatmaps

X = np.arange(3.0)


@pytest.fixture
def plt() -> Iterator[Any]:
    """pyplot, in use until the end of the test."""
    name = "matplotlib.pyplot"
    assert name not in sys.modules
    yield importlib.import_module(name)
    sys.modules.pop(name).close("all")


# ---- a script -----------------------------------------------------------------------------------


def test_where_pyplot_is_in_use_it_has_the_figures(plt: Any) -> None:
    """``plt.show()``, ``plt.savefig`` and the like find them, in the order they were drawn."""
    for draw in (
        lambda: show_heatmaps(np.eye(3), "Keys", "Queries"),
        lambda: plot_kernel_regression(X, X, X, X, X),
        lambda: plot_loss([2.0, 1.0]),
    ):
        assert draw() is plt.gcf()
    assert plt.get_fignums() == [1, 2, 3]


def test_where_the_caller_says_where_to_draw_pyplot_has_nothing_new(plt: Any) -> None:
    show_heatmaps(np.eye(3), "Keys", "Queries", fig=Figure())
    plot_loss([1.0], ax=Figure().add_subplot())
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: show_heatmaps([1.0], "Keys", "Queries"),
        lambda: show_heatmaps(np.eye(3), "Keys", "Queries", ["a", "b"]),
        lambda: show_heatmaps(np.eye(3), "Keys", "Queries", cmap="no such map"),
        lambda: show_heatmaps(np.eye(3), "Keys", "Queries", vmin=2),
        lambda: show_heatmaps(np.eye(3), "Keys", "Queries", figsize=(1, 2, 3)),
        lambda: plot_loss([]),
        lambda: plot_kernel_regression(X, X, X, X, [1.0]),
    ],
)
def test_what_is_refused_leaves_no_empty_picture(wrong: Callable[[], Figure], plt: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        wrong()
    assert plt.get_fignums() == []


def test_the_tour_draws_files_only(plt: Any, tmp_path: Path) -> None:
    """Its figures do not appear in the notebook that has it draw them."""
    figures = Figures(Page(io.StringIO()), tmp_path)
    figures.masked_softmax(masks.X, [masks.PER_ENTRY])
    assert figures.written == ["1-masked-softmax.png"]
    assert plt.get_fignums() == []


# ---- a notebook ---------------------------------------------------------------------------------

INLINE = "module://matplotlib_inline.backend_inline"  # what a kernel sets MPLBACKEND to

DRAW = """
import numpy as np
from attnext.plot import plot_kernel_regression, plot_loss, show_heatmaps
x = np.arange(3.0)
draw = [
    lambda: show_heatmaps(np.eye(3), "Keys", "Queries"),
    lambda: plot_kernel_regression(x, x, x, x, x),
    lambda: plot_loss([2.0, 1.0]),
];
"""

# What a kernel does with a cell: outputs are collected, and hooks run when the cell has ended.
KERNEL = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell

shell, shown = InteractiveShell.instance(), []
shell.display_formatter.active_types = shell.display_formatter.format_types
shell.display_pub.publish = lambda data, *args, **kwargs: shown.append(data)
shell.displayhook.write_format_data = lambda data, *args: shown.append(data)

def outputs_of(cell):
    shown.clear()
    shell.run_cell(cell, store_history=True).raise_error()
    return [sorted(data)[0].split("/")[1] for data in shown]  # image before text

print(json.dumps([outputs_of(cell) for cell in json.loads(sys.argv[1])]))
"""


def outputs_of(*cells: str) -> list[list[str]]:
    """Of each cell of a notebook, what it shows: "png", or "plain" for any text."""
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", KERNEL, json.dumps([DRAW, *cells])],
        env=os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    first, *shown = json.loads(done.stdout[done.stdout.index("[[") :])
    assert first == []
    return shown


def test_a_notebook_shows_every_picture_once() -> None:
    """Without pyplot its last line, and nothing of it is kept for when pyplot is imported; with it
    as d2l's notebooks have it: calls in the middle of a cell."""
    without = [f"draw[{i}](){rest}" for i in range(3) for rest in ("", "\n1")]
    shown = outputs_of(
        *without,
        "import matplotlib.pyplot as plt",
        *(f"draw[{i}]()" for i in range(3)),
        "draw[1]();",
        "draw[2]()\n1",
        "figure = [function() for function in draw][-1]",
        "figure",  # again, as it is asked for
        "from IPython.display import display\nfigure = draw[0]()\ndisplay(figure)\nx = 1",
        "figure, axes = plt.subplots()\ndraw[0]();",  # one of their own beside ours
        "plt.get_fignums()",
    )
    assert shown == [
        *3 * [["png"], ["plain"]],
        [],
        *4 * [["png"]],
        ["plain", "png"],
        3 * ["png"],
        ["png"],
        ["png"],
        2 * ["png"],
        ["plain"],
    ]


def test_a_notebook_whose_first_picture_comes_with_pyplot() -> None:
    assert outputs_of("import matplotlib.pyplot as plt\ndraw[0]()") == [["png"]]
