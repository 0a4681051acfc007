"""What the panels share: the forms without a front end, work in a background thread, and a skin whose every comm is closed.

A panel is a plain object. Its widgets are made when it is first displayed in a kernel, so a script has none; a button calls a
method, and what that raises is shown in the panel. Knows nothing of loops, logs or replays.
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
from loopkit.widgets.page import Block, Page, as_html, as_text

__all__ = ["Panel", "family"]

PAUSE = 0.05
"Seconds between two paintings of a running panel; what comes meanwhile is painted together."


class Panel:
    """A plain object with a page, of which a front end shows widgets, and everything else text or HTML."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        "What the last button's method raised, or the last work in the background."
        self.running = False
        "Whether work is going on in the background."
        self.closed = False
        self._skin: list[ipw.Widget] = []
        "The outermost widget, and all that it is made of."
        self._painting = threading.Lock()
        self._thread = threading.Thread()

    def _card(self) -> Card:
        raise NotImplementedError

    def _page(self) -> Page:
        raise NotImplementedError

    def _dress(self) -> ipw.Widget:
        """Make the widgets; what can fail comes first, for a widget that was made has a comm."""
        raise NotImplementedError

    def _paint(self) -> None:
        """Bring what the widgets show up to date. It only assigns: what can go wrong belongs into a method, which says so."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._card().text()

    def __str__(self) -> str:
        return "\n".join(filter(None, (self._card().whole(), as_text([*self._page(), *self._failure()]))))

    def _repr_html_(self) -> str:
        return self._card().html() + as_html([*self._page(), *self._failure()])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """The widgets; IPython puts the other forms beside them, for those who cannot show widgets."""
        if self.closed:
            return {}
        if not self._skin:
            self._skin = list(family(self._dress()))
            self.paint()
        kind = "application/vnd.jupyter.widget-view+json"
        return {kind: self._skin[0]._repr_mimebundle_()[kind]}

    def _failure(self) -> list[Block]:
        """The error, as a part of a page."""
        if self.error is None:
            return []
        first, *notes = traceback.format_exception_only(self.error)
        text = str(self.error) if isinstance(self.error, LoopkitError) else first
        return [Block("error", "\n".join([text, *notes]).strip())]

    def paint(self) -> None:
        """Show the present state in the widgets, where there are any."""
        with self._painting:
            if self._skin:
                self._paint()

    def _button(self, label: str, method: Callable[[], object]) -> ipw.Button:
        """A button that calls a method; what goes wrong is shown, for nobody sees what a handler raises."""

        def click(_: ipw.Button) -> None:
            self.error = None
            try:
                method()
            except Exception as error:  # noqa: BLE001  # shown in the panel, and kept
                self.error = error
            self.paint()

        made = ipw.Button(description=label, layout={"width": "auto", "flex": "0 0 auto"})
        made.on_click(click)
        return made

    def _begin(self, work: Callable[[], object], name: str) -> None:
        """Run work in a thread; another paints meanwhile, and ends when it has ended."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # shown in the panel, and raised by `wait`
                self.error = error

        def watch() -> None:
            worker.start()  # here, so that Ctrl-C cannot come between the two
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
        """Tell the running work to end; is called again until it has, for it may not have begun."""

    def wait(self) -> None:
        """Wait until nothing runs any more; what the work raised is raised here. Ctrl-C stops the work."""
        try:
            while self.running:
                time.sleep(PAUSE)  # no join: one that Ctrl-C interrupts takes a thread that runs for one that has ended
        except KeyboardInterrupt:
            self.stop()
            raise
        self._end()
        if self.error is not None:
            raise self.error

    def stop(self, seconds: float = 2.0) -> bool:
        """Stop what runs in the background.

        Parameters
        ----------
        seconds : float
            How long to wait for its end.

        Returns
        -------
        bool
            Whether it has ended; a tool that runs is waited for, for nothing can stop it from outside.
        """
        until = time.monotonic() + seconds
        while self.running and time.monotonic() < until:
            self._cancel()
            time.sleep(PAUSE / 5)
        self._end()
        return not self.running

    def _end(self) -> None:
        """Wait for the thread that paints, where it has no more to do than that, once."""
        if not self.running and self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        """Stop what runs, and close every widget and its comm; again does nothing."""
        self.stop()
        with self._painting:
            self.closed, skin, self._skin = True, self._skin, []
        for widget in skin:
            widget.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def family(widget: ipw.Widget) -> Iterator[ipw.Widget]:
    """A widget and all that it is made of, each once: children, layouts and styles have comms of their own.

    Examples
    --------
    >>> [type(each).__name__ for each in family(ipw.HBox([ipw.Button()]))]
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
