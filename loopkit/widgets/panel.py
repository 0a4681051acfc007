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

from loopkit.card import Card
from loopkit.errors import LoopkitError
from loopkit.widgets.page import Block, Page, as_html, as_text

__all__ = ["Panel", "family"]

PAUSE = 0.05
"Seconds between two paintings of a running panel; what comes meanwhile is painted together."


class Panel:
    """A plain object with a page, of which a front end shows widgets, and everything else text or HTML."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        "What the last call of a button, or the last work in the background, raised."
        self.closed = False
        self.running = False
        "Whether work is going on in the background."
        self._skin: ipw.Widget | None = None
        self._widgets: list[ipw.Widget] = []
        self._painting = threading.Lock()
        self._changed = threading.Event()
        self._threads: list[threading.Thread] = []

    # what a panel is made of

    def _card(self) -> Card:
        raise NotImplementedError

    def _page(self) -> Page:
        raise NotImplementedError

    def _dress(self) -> ipw.Widget:
        """Make the widgets."""
        raise NotImplementedError

    def _paint(self) -> None:
        """Bring what the widgets show up to date; called where there are some."""
        raise NotImplementedError

    # forms without a front end

    def __repr__(self) -> str:
        return self._card().text()

    def __str__(self) -> str:
        return "\n".join(filter(None, (self._card().text(), as_text([*self._page(), *self._failed()]))))

    def _repr_html_(self) -> str:
        return self._card().html() + as_html([*self._page(), *self._failed()])

    def _failed(self) -> list[Block]:
        """The error, as a part of the page."""
        if self.error is None:
            return []
        own = isinstance(self.error, LoopkitError)  # whose text says all that its type does
        lines = traceback.format_exception_only(self.error)
        text = "".join([str(self.error), "\n", *lines[1:]] if own else lines)
        return [Block("error", text.strip())]

    # the skin

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """The widgets; IPython puts the other forms beside them, for those who cannot show widgets."""
        if self.closed:
            return {}
        if self._skin is None:
            self._skin = self._dress()
            self._widgets = list(family(self._skin))
            self.paint()
        bundle: dict[str, Any] = self._skin._repr_mimebundle_()
        return {kind: data for kind, data in bundle.items() if kind.startswith("application/")}

    def paint(self) -> None:
        """Show the present state in the widgets, where there are any."""
        with self._painting:
            if self._skin is not None:
                self._paint()

    def _call(self, method: Callable[[], object]) -> None:
        """Do what a button says; what goes wrong is shown, for nobody sees what a handler raises."""
        self.error = None
        try:
            method()
        except Exception as error:  # noqa: BLE001  # shown in the panel, and kept
            self.error = error
        self.paint()

    def _button(self, label: str, method: Callable[[], object]) -> ipw.Button:
        made = ipw.Button(description=label, layout={"width": "auto", "flex": "0 0 auto"})
        made.on_click(lambda _: self._call(method))
        return made

    # the background

    def _begin(self, work: Callable[[], object], name: str) -> None:
        """Run work in a thread, with another that paints; both end with it."""
        ended = threading.Event()

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # shown in the panel, and raised by `wait`
                self.error = error
            finally:
                self.running = False
                ended.set()
                self._changed.set()

        def paint() -> None:
            while not ended.wait(PAUSE):
                self._changed.wait()
                self._changed.clear()
                self.paint()
            self.paint()

        self.error, self.running = None, True
        self._threads = [
            threading.Thread(target=target, name=f"loopkit {what}", daemon=True)
            for what, target in ((name, run), ("paint", paint))
        ]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Wait until nothing runs any more; what the work raised is raised here. Ctrl-C stops the work."""
        try:
            for thread in self._threads:
                thread.join()
        except KeyboardInterrupt:
            self.stop()
            raise
        if self.error is not None:
            raise self.error

    def _cancel(self) -> None:
        """Tell the running work to end; may be called again and again."""

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
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < until:
            if self.running:
                self._cancel()  # again and again: it may not have begun
            for thread in self._threads:
                thread.join(PAUSE)
        return not self.running

    def close(self) -> None:
        """Stop what runs, and close every widget and its comm; again does nothing."""
        self.stop()
        with self._painting:
            self.closed, self._skin = True, None
            for widget in self._widgets:
                widget.close()
            self._widgets.clear()

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
    found: dict[int, ipw.Widget] = {}

    def visit(each: object) -> None:
        if isinstance(each, ipw.Widget) and id(each) not in found:
            found[id(each)] = each
            for name in each.keys:
                value = getattr(each, name)
                for part in value if isinstance(value, tuple | list) else [value]:
                    visit(part)

    visit(widget)
    yield from found.values()
