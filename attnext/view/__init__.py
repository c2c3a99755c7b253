"""A computation that moves: sliders, hover, lines between tokens, every head; in a notebook.

`show` takes what `attnext.explain` takes, and a notebook displays what it returns. Needs anywidget.

>>> import numpy as np
>>> from attnext import view
>>> rng = np.random.default_rng(0)
>>> queries, keys, values = rng.standard_normal((3, 1, 4, 8))
>>> shown = view.show("dot_product_attention", queries, keys, values)
>>> shown.with_labels(keys=["the", "cat", "sat", "down"], queries=["a", "b", "c", "d"])
<View of dot_product_attention(queries (1, 4, 8), keys (1, 4, 8), values (1, 4, 8))>

The files, from the inside out:

    static/       what draws: ES modules without dependencies; view.js says what an engine is
    picture.py    a call that can be computed again with other options
    packing.py    traces and arrays for a page
    messages.py   what a page sends, checked
    module.py     the files of static/ as one module
    html.py       what a saved notebook shows
    widget.py     View, the kernel's half
"""

from __future__ import annotations

from typing import Any

from attnext._hints import suggest_names as _suggest_names
from attnext._needed import needed
from attnext.view.picture import picture

with needed(
    "attnext.view is a widget of anywidget, which is not installed: pip install anywidget",
    "anywidget",
    "traitlets",
):
    from attnext.view.widget import View

__all__ = ["View", "show"]

_suggest_names(__name__, __all__)


def show(function: Any, *args: Any, lang: str = "en", **arguments: Any) -> View:
    """Show a call as a picture that moves, in a notebook.

    Parameters
    ----------
    function : function, layer or str
        What is called: a function of `attnext.explain`, its fast twin in attnext, or the name of
        either; `attnext.kernel_regression.nadaraya_watson`; or a layer, as `attnext.explain.layer`
        takes it.
    *args : optional
        Its arguments, in their order.
    lang : {'en', 'zh'}, optional
        Language of the picture: English or Chinese. A button changes it.
    **arguments : optional
        Its arguments by name.

    Returns
    -------
    view : View
        The picture, which shows itself where it is the last line of a cell. Its method
        `with_labels` gives names, such as tokens, to queries and keys:
        ``view.show(...).with_labels(queries=tokens, keys=tokens)``.

    Raises
    ------
    TypeError, ValueError
        As from the function of `attnext.explain`; ValueError also if there is none of that name.

    Notes
    -----
    The row shows scores, masked scores, weights and output. A weight under the pointer, or under
    the focus of the keyboard, shows its query, its key and their product. The sliders are those
    options that the function takes: temperature (of the scale), bandwidth, length, window, softcap,
    dropout; each asks the kernel. The points of `attnext.kernel_regression.nadaraya_watson` can be
    dragged. In a saved notebook, and in HTML made of it, the last state stays.

    Examples
    --------
    >>> from attnext import view
    >>> x_train, y_train = [0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 1.0, 3.0]
    >>> shown = view.show("nadaraya_watson", [0.5, 2.0], x_train, y_train, sigma=0.5)
    >>> shown.trace.output.round(3)
    array([[1.   ],
           [1.319]], dtype=float32)
    """
    return View(picture(function, args, arguments, lang))


def __dir__() -> list[str]:
    """What completion offers: not the files that this is made of."""
    return __all__
