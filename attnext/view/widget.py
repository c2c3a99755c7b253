"""The view as a widget: the kernel's half. static/widget.js is the front end's."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import anywidget
import traitlets

from attnext.explain.trace import Trace
from attnext.view.html import page_part
from attnext.view.module import module
from attnext.view.packing import Packed, pack_array, pack_trace, unpack_array
from attnext.view.picture import Picture

REST = 0.5  # seconds without a change, before what is saved with the notebook follows


class View(anywidget.AnyWidget):
    """A computation that moves: what `show` returns, and a notebook displays.

    The sliders ask the kernel, which computes with attnext. Beside the living picture a cell keeps
    one that needs no kernel, which a saved notebook and pages made of it show.

    Parameters
    ----------
    picture : Picture
        What is shown; `show` makes it of a call.

    Examples
    --------
    >>> from attnext import view
    >>> shown = view.show("masked_softmax", [[0.9, 0.8, 0.3, 0.4]], [3])
    >>> shown.trace["softmax"].values.round(4)
    array([[0.4076, 0.3688, 0.2237, 0.    ]], dtype=float32)
    """

    _esm = module()
    _picture = traitlets.Dict().tag(sync=True)
    _request = traitlets.Dict().tag(sync=True)
    _result = traitlets.Dict().tag(sync=True)
    _at = traitlets.Dict().tag(sync=True)
    _twin = traitlets.Unicode().tag(sync=True)

    def __init__(self, picture: Picture) -> None:
        self._shows = picture
        self._trace = picture.trace()
        self._options: dict[str, Any] = {}  # in the place of those of the picture
        self._lang = picture.lang
        self._twins: list[Any] = []  # handles of what is saved, wherever it is displayed
        self._later: asyncio.TimerHandle | None = None
        super().__init__(
            _picture=self._shown(),
            _result={"number": 0, **pack_trace(self._trace)},
            _twin=f"attnext-{uuid.uuid4().hex}",
        )

    @property
    def trace(self) -> Trace:
        """The steps of what is shown now, as attnext.explain has them."""
        return self._trace

    def with_labels(
        self, *, queries: Sequence[str] | None = None, keys: Sequence[str] | None = None
    ) -> View:
        """Call queries and keys by names, tokens for instance, in place of their indices.

        Parameters
        ----------
        queries : sequence of M str, optional
            What each query is called; the same in every entry of the batch and every head.
        keys : sequence of N str, optional
            What each key is called.

        Returns
        -------
        view : View
            Another view of the same call.

        Raises
        ------
        TypeError, ValueError
            As from `attnext.explain.Trace.with_labels`.
        """
        return View(self._shows.with_labels(queries, keys))

    # ---- what crosses over -----------------------------------------------------------------------

    def _shown(self) -> Packed:
        """What stays as it is while sliders move."""
        p = self._shows
        arrays = {name: pack_array(x) for name, x in p.arrays.items()}
        return {
            "request": {
                "function": p.function,
                "arrays": arrays,
                "options": p.options,
                "lang": p.lang,
            },
            "labels": {"queries": list(p.queries) or None, "keys": list(p.keys) or None},
            "controls": p.controls,
        }

    @traitlets.observe("_request")
    def _on_request(self, change: Any) -> None:
        """Compute what the page asks for; what is wrong with it becomes a sentence there."""
        asked = change.new
        known = {name: x for name, x in asked["options"].items() if x is not None}
        given = set(self._shows.arguments)
        options = {n: None for n in asked["options"] if n in given and n not in known} | known
        if options.get("causal") is None:
            options.pop("causal", None)
        options |= {name: unpack_array(x) for name, x in asked.get("arrays", {}).items()}
        try:
            trace = self._shows.trace(options, asked["lang"])
        except (TypeError, ValueError, RuntimeError, MemoryError) as error:
            self._result = {"number": asked["number"], "error": str(error)}
            return
        self._trace, self._options, self._lang = trace, options, asked["lang"]
        self._result = {"number": asked["number"], **pack_trace(trace)}

    # ---- what stays in a saved notebook ----------------------------------------------------------

    def _saved(self) -> str:
        """The picture as it is now, as HTML."""
        shown = dict(self._shown())
        request = dict(shown["request"])
        shown["given"] = request["options"]
        changed = {n: pack_array(x) for n, x in self._options.items() if n in request["arrays"]}
        options = {n: x for n, x in self._options.items() if n not in request["arrays"]}
        request["arrays"] = request["arrays"] | changed
        request["options"] = request["options"] | options
        request["lang"] = self._lang
        return page_part(self._twin, self._trace, {**shown, "request": request, "at": self._at})

    def _ipython_display_(self) -> None:
        """The living picture, and below it what is saved, which it hides while it lives."""
        from IPython.display import display

        data = super()._repr_mimebundle_()
        living, metadata = data if isinstance(data, tuple) else (data, {})
        if living:
            display({**living, "text/plain": ""}, metadata=metadata, raw=True)  # type: ignore[no-untyped-call]
        saved = {"text/html": self._saved(), "text/plain": repr(self)}
        handle = display(saved, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        self._twins.append(handle)

    @traitlets.observe("_result", "_at")
    def _on_change(self, _change: Any) -> None:
        """What is saved follows, once nothing has moved for a while."""
        if self._later is not None:
            self._later.cancel()
        if self._twins:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                self._follow()
            else:
                self._later = loop.call_later(REST, self._follow)

    def _follow(self) -> None:
        saved = {"text/html": self._saved(), "text/plain": repr(self)}
        for twin in self._twins:
            twin.update(saved, raw=True)

    def __repr__(self) -> str:
        return f"<View of {self._trace.call}>"
