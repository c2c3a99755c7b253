"""View: the part of the widget that runs in the kernel. The front end is static/widget.js."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import anywidget
import traitlets

from attnext.explain.trace import Trace
from attnext.view.html import page_part
from attnext.view.messages import (
    check_envelope,
    check_place,
    check_state,
    number_of,
    read_request,
    short,
)
from attnext.view.module import module
from attnext.view.packing import Packed, pack_array, pack_trace
from attnext.view.picture import Picture

REST = 0.5  # seconds without a change before the saved view is updated


class Message(traitlets.Any):  # type: ignore[type-arg,unused-ignore]
    """A trait that a page sets. Every message counts as a change, even an equal one."""

    def set(self, obj: Any, value: Any) -> None:
        """Store the message and notify the observers."""
        before = obj._trait_values.get(self.name)
        obj._trait_values[self.name] = value
        obj._notify_trait(self.name, before, value)


class View(anywidget.AnyWidget):
    """An interactive view of a computation, as returned by `show`.

    When a slider moves, the kernel computes the result again with attnext. The cell also stores a
    static copy of the view, which a saved notebook and its HTML export show without a kernel.

    Parameters
    ----------
    picture : Picture
        The call to show; `show` creates it.

    Examples
    --------
    >>> from attnext import view
    >>> shown = view.show("masked_softmax", [[0.9, 0.8, 0.3, 0.4]], [3])
    >>> shown.trace["softmax"].values.round(4)
    array([[0.4076, 0.3688, 0.2237, 0.    ]], dtype=float32)
    """

    _esm = module()
    _picture = traitlets.Dict().tag(sync=True)
    _request = Message().tag(sync=True)
    _result = traitlets.Dict().tag(sync=True)
    _at = Message().tag(sync=True)
    _twin = traitlets.Unicode().tag(sync=True)

    def __init__(self, picture: Picture) -> None:
        self._shows = picture
        self._trace = picture.trace()
        self._options: dict[str, Any] = {}  # override the options of the picture
        self._lang = picture.lang
        self._twins: list[Any] = []  # display handles of the static copies
        self._later: asyncio.TimerHandle | None = None
        first = {"number": 0, "options": picture.options, "lang": picture.lang}
        self._good: dict[str, Any] = {"_request": first, "_at": {}}  # the last valid messages
        self._answers = 0
        super().__init__(
            _picture=self._shown(),
            _result={"number": 0, "answer": 0, **pack_trace(self._trace)},
            _twin=f"attnext-{uuid.uuid4().hex}",
            **self._good,
        )

    @property
    def trace(self) -> Trace:
        """The `attnext.explain.Trace` of the current state of the view."""
        return self._trace

    def with_labels(
        self, *, queries: Sequence[str] | None = None, keys: Sequence[str] | None = None
    ) -> View:
        """Return a view with labels, for example tokens, instead of indices.

        Parameters
        ----------
        queries : sequence of M str, optional
            One label for each query. All batch elements and heads use the same labels.
        keys : sequence of N str, optional
            One label for each key.

        Returns
        -------
        view : View
            A new view of the same call.

        Raises
        ------
        TypeError, ValueError
            The same errors as `attnext.explain.Trace.with_labels`.
        """
        return View(self._shows.with_labels(queries, keys))

    # ---- messages --------------------------------------------------------------------------------

    def _shown(self) -> Packed:
        """Return the part of the state that does not change when sliders move."""
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

    def _handle_msg(self, msg: Any) -> None:
        """Handle a message of the page. Answer with an error if ipywidgets cannot read it."""
        try:
            check_envelope(msg)
        except (TypeError, ValueError) as error:
            self._answer(None, {"error": str(error)})
        else:
            super()._handle_msg(msg)

    def set_state(self, sync_data: Any) -> None:
        """Set the traits that a page may set; only the kernel sets the others.

        Parameters
        ----------
        sync_data : dict
            Values by trait name. For anything else, the page receives an error message.
        """
        try:
            check_state(sync_data)
        except (TypeError, ValueError) as error:
            self._answer(None, {"error": str(error)})
        else:
            super().set_state(sync_data)

    @traitlets.observe("_request")
    def _on_request(self, change: Any) -> None:
        """Compute the result that the page requests. If this fails, answer with the error."""
        if change.new is self._good["_request"]:
            return
        try:
            request = read_request(change.new, self._shows.arrays)
            options = self._replaced(request.options) | request.arrays
            trace = self._shows.trace(options, request.lang)
            result = pack_trace(trace)
        except Exception as error:  # a layer can raise any exception; the page shows it
            self._refuse("_request", error, number_of(change.new))
            return
        self._good["_request"] = change.new
        self._trace, self._options, self._lang = trace, options, request.lang
        self._answer(request.number, result)

    @traitlets.observe("_at")
    def _on_at(self, change: Any) -> None:
        """Remember the selected cell for the saved view."""
        if change.new is self._good["_at"]:
            return
        try:
            check_place(change.new)
        except (TypeError, ValueError) as error:
            self._refuse("_at", error)
        else:
            self._good["_at"] = change.new

    def _replaced(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that these options replace. None stands for the default."""
        known = {name: x for name, x in asked.items() if x is not None}
        given = {*self._shows.arguments} - {"causal"}  # the default of causal is not None
        return {name: None for name in asked if name in given and name not in known} | known

    def _refuse(self, trait: str, error: Exception, number: int | None = None) -> None:
        """Answer with the error, and restore the last valid message."""
        known = isinstance(error, TypeError | ValueError | RuntimeError | MemoryError) and str(
            error
        )
        text = str(error) if known else f"{type(error).__name__}: {error}"
        self._answer(number, {"error": short(text)})
        setattr(self, trait, self._good[trait])

    def _answer(self, number: int | None, result: Packed) -> None:
        """Send a result. The number "answer" makes every result a change, even an equal one."""
        self._answers += 1
        self._result = {"number": number, "answer": self._answers, **result}

    # ---- the static copy in a saved notebook -----------------------------------------------------

    def _saved(self) -> str:
        """Return the current state of the view as HTML."""
        shown = dict(self._shown())
        request = dict(shown["request"])
        shown["given"] = request["options"]
        changed = {n: pack_array(x) for n, x in self._options.items() if n in request["arrays"]}
        options = {n: x for n, x in self._options.items() if n not in request["arrays"]}
        request["arrays"] = request["arrays"] | changed
        request["options"] = request["options"] | options
        request["lang"] = self._lang
        return page_part(
            self._twin, self._trace, {**shown, "request": request, "at": self._good["_at"]}
        )

    def _ipython_display_(self) -> None:
        """Display the view, and below it the static copy, which is hidden while the view works."""
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
        """Update the static copy after REST seconds without a change."""
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
