"""Show a computation in a notebook as an interactive view with sliders.

`show` takes the arguments of a function of `attnext.explain` and returns a widget that the notebook
displays. It needs the package anywidget.

>>> import numpy as np
>>> from attnext import view
>>> rng = np.random.default_rng(0)
>>> queries, keys, values = rng.standard_normal((3, 1, 4, 8))
>>> shown = view.show("dot_product_attention", queries, keys, values)
>>> shown.with_labels(keys=["the", "cat", "sat", "down"], queries=["a", "b", "c", "d"])
<View of dot_product_attention(queries (1, 4, 8), keys (1, 4, 8), values (1, 4, 8))>

The files, from the inside out:

    static/       the front end: ES modules without dependencies; view.js describes the interface
    picture.py    a call that can be computed again with other options
    packing.py    convert traces and arrays for the page
    messages.py   check the messages that a page sends
    module.py     join the files of static/ into one module
    html.py       the HTML that a saved notebook shows
    widget.py     View, the widget that runs in the kernel
"""

from __future__ import annotations

from typing import Any

from attnext._hints import suggest_names as _suggest_names
from attnext._needed import needed
from attnext.view.picture import picture

with needed(
    "attnext.view needs anywidget, which is not installed: pip install anywidget",
    "anywidget",
    "traitlets",
):
    from attnext.view.widget import View

__all__ = ["View", "show"]

_suggest_names(__name__, __all__)


def show(function: Any, *args: Any, lang: str = "en", **arguments: Any) -> View:
    """Show a call as an interactive view in a notebook.

    Parameters
    ----------
    function : function, layer or str
        The function to call: a function of `attnext.explain`, the function of the same name in
        attnext, `attnext.kernel_regression.nadaraya_watson`, or the name of one of these. A layer
        that `attnext.explain.layer` accepts works too.
    *args : optional
        Positional arguments of the function.
    lang : {'en', 'zh'}, optional
        Language of the view: English or Chinese. A button in the view changes it.
    **arguments : optional
        Keyword arguments of the function.

    Returns
    -------
    view : View
        The view. A notebook displays it if it is the last line of a cell. To show tokens instead of
        indices, call ``view.show(...).with_labels(queries=tokens, keys=tokens)``.

    Raises
    ------
    TypeError, ValueError
        The same errors as the function of `attnext.explain`. Also ValueError if no function has the
        given name.

    Notes
    -----
    The view shows scores, masked scores, weights and output in a row. Point at a weight, or move
    the keyboard focus to it, to see its query, its key and their product. There is a slider for
    each of these options that the function has: temperature (scale), bandwidth, valid length,
    window, softcap, dropout. The kernel computes the result again when a slider moves. The points
    of `attnext.kernel_regression.nadaraya_watson` can be dragged. A saved notebook, and its HTML
    export, show the last state.

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
    """Return the public names, so that completion does not offer the modules of the package."""
    return __all__
