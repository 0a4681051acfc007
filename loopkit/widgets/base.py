"""Base class of panels: text and HTML forms, widgets, buttons and work in a background thread.

A panel makes its widgets when it is first displayed. If the method of a button raises, the panel shows the error.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import ipywidgets as ipw

from loopkit.errors import LoopkitError
from loopkit.reprs import Card
from loopkit.widgets.rendering import Page, PageBlock, as_html, as_text

__all__ = ["Panel", "descendants"]

PAUSE = 0.05
"Seconds between two updates of a running panel."


class Panel:
    """Base class of panels. A notebook front end shows the widgets; scripts and viewers without widgets show text or HTML."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        "Exception of the last button press or of the last background work; None if it succeeded."
        self.running = False
        "True while background work is running."
        self.closed = False
        self._widgets: list[ipw.Widget] = []
        "The root widget and all widgets inside it; empty until the panel is displayed."
        self._painting = threading.Lock()
        self._thread = threading.Thread()

    def _card(self) -> Card:
        raise NotImplementedError

    def _page(self) -> Page:
        raise NotImplementedError

    def _build(self) -> ipw.Widget:
        """Build the widgets and return the root widget.

        Do steps that can fail first: each widget opens a connection to the front end, which would stay open.
        """
        raise NotImplementedError

    def _paint(self) -> None:
        """Update the widgets to the current state. Steps that can fail belong in a method of a button, which shows the error."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._card().text()

    def __str__(self) -> str:
        return "\n".join(filter(None, (self._card().whole(), as_text([*self._page(), *self._failure()]))))

    def _repr_html_(self) -> str:
        return self._card().html() + as_html([*self._page(), *self._failure()])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """Return the widgets. IPython adds text and HTML for viewers without widgets."""
        if self.closed:
            return {}
        if not self._widgets:
            self._widgets = list(descendants(self._build()))
            self.paint()
        kind = "application/vnd.jupyter.widget-view+json"
        return {kind: self._widgets[0]._repr_mimebundle_()[kind]}

    def _failure(self) -> list[PageBlock]:
        """Return the error as a list of one page block, or an empty list if there is no error."""
        if self.error is None:
            return []
        first, *notes = traceback.format_exception_only(self.error)
        text = str(self.error) if isinstance(self.error, LoopkitError) else first
        return [PageBlock("error", "\n".join([text, *notes]).strip())]

    def paint(self) -> None:
        """Update the widgets to the current state. Do nothing if the panel has not been displayed."""
        with self._painting:
            if self._widgets:
                self._paint()

    def _button(self, label: str, method: Callable[[], object]) -> ipw.Button:
        """Return a button that calls `method`. The panel shows its exceptions, because front ends hide those of handlers."""

        def click(_: ipw.Button) -> None:
            self.error = None
            try:
                method()
            except Exception as error:  # noqa: BLE001  # shown in the panel and kept in `error`
                self.error = error
            self.paint()

        button = ipw.Button(description=label, layout={"width": "auto", "flex": "0 0 auto"})
        button.on_click(click)
        return button

    def _begin(self, work: Callable[[], object], name: str) -> None:
        """Run `work` in a thread, and update the widgets from a second thread until it ends."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # shown in the panel and raised by `wait`
                self.error = error

        def watch() -> None:
            worker.start()  # started here, so that Ctrl-C cannot come between the two starts
            while worker.is_alive():
                worker.join(PAUSE)
                self.paint()
            self.running = False
            self.paint()

        self.error, self.running = None, True
        worker = threading.Thread(target=run, name=f"loopkit {name}", daemon=True)
        self._thread = threading.Thread(target=watch, name="loopkit paint", daemon=True)
        self._thread.start()

    def _cancel(self) -> None:
        """Ask the running work to stop.

        :meth:`stop` calls this repeatedly, because a call has no effect before the work has started.
        """

    def wait(self) -> None:
        """Wait until the background work ends, and raise its exception if it failed. Ctrl-C stops the work."""
        try:
            while self.running:
                time.sleep(PAUSE)  # not join(): after Ctrl-C, join treats a running thread as ended
        except KeyboardInterrupt:
            self.stop()
            raise
        self._end()
        if self.error is not None:
            raise self.error

    def stop(self, seconds: float = 2.0) -> bool:
        """Stop the background work.

        Parameters
        ----------
        seconds : float
            How long to wait for the end of the work, in seconds.

        Returns
        -------
        bool
            True if the work has ended. False if it still runs, for example because a running tool cannot be stopped.
        """
        until = time.monotonic() + seconds
        while self.running and time.monotonic() < until:
            self._cancel()
            time.sleep(PAUSE / 5)
        self._end()
        return not self.running

    def _end(self) -> None:
        """If the work has ended, wait for the thread that updates the widgets."""
        if not self.running and self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """Stop the background work and close every widget. Safe to call twice."""
        self.stop()
        with self._painting:
            self.closed, widgets, self._widgets = True, self._widgets, []
        for widget in widgets:
            widget.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def descendants(widget: ipw.Widget) -> Iterator[ipw.Widget]:
    """Yield a widget and all its children, layouts and styles, each once. Each of them must be closed separately.

    Examples
    --------
    >>> [type(each).__name__ for each in descendants(ipw.HBox([ipw.Button()]))]
    ['HBox', 'Button', 'Layout', 'ButtonStyle', 'Layout']
    """
    found: dict[ipw.Widget, None] = {}
    open_: list[object] = [widget]
    while open_:
        each = open_.pop(0)
        if isinstance(each, ipw.Widget) and each not in found:
            found[each] = None
            values = [getattr(each, name) for name in each.keys]
            open_[:0] = [part for value in values for part in (value if isinstance(value, tuple | list) else [value])]
    yield from found
