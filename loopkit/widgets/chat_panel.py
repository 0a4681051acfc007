"""``ChatPanel``: chat with a loop in a notebook, with the cached tokens of each request.

Turns run in a background thread, so the kernel stays usable.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import ipywidgets as ipw

from loopkit.errors import InvalidConfig, LoopBusy, LoopkitError, kind_of
from loopkit.ids import SessionId
from loopkit.loop.events import Turn
from loopkit.loop.loop import Loop
from loopkit.loop.opening import resume_like
from loopkit.reprs import Card
from loopkit.session.layout import session_directories
from loopkit.widgets.base import Panel
from loopkit.widgets.rendering import PageBlock, as_html
from loopkit.widgets.transcript import ChatTranscript

__all__ = ["ChatPanel"]

LISTED = 200
"Largest number of sessions in the list, the newest first. Older sessions can be resumed with :meth:`ChatPanel.resume`."


class ChatPanel(Panel):
    """A panel to chat with a loop: send messages, watch and stop the responses, or resume another session.

    Parameters
    ----------
    loop : Loop
        Loop from :func:`loopkit.start` or :func:`loopkit.resume`. It stays open when the panel is closed.

    Attributes
    ----------
    loop : Loop
        The current loop. :meth:`resume` replaces it.
    turn : Turn or None
        The last finished turn.
    error : BaseException or None
        Exception of the last turn or of the last button.

    Examples
    --------
    >>> from loopkit.loop.opening import start
    >>> from loopkit.server.opening import serve
    >>> import tempfile
    >>> with serve("tiny") as server, start(server, system="Be brief.", home=tempfile.mkdtemp(), id="s", memory="") as loop:
    ...     with ChatPanel(loop) as panel:
    ...         panel.ask("Hello.")
    ...         panel.wait()
    ...         print(panel)
    ChatPanel on session s: state idle, requests 1, reused 0, processed 45, written 6, lost 0
    you: Hello.
    model: Done.
    request 1: reused 0, processed 45, written 6
    """

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        if not isinstance(loop, Loop):
            raise InvalidConfig("loop", f"{kind_of(loop)} is not a Loop", "Use lk.start(…) or lk.resume(…)")
        self.loop = loop
        self.turn: Turn | None = None
        self._length = 0
        self._painted: list[PageBlock] = []
        self._read()

    def ask(self, text: str) -> None:
        """Run :meth:`Loop.ask` in the background and return at once. Call :meth:`wait` to wait for the end of the turn.

        Parameters
        ----------
        text : str
            The user message.

        Raises
        ------
        LoopBusy
            If this panel is already running a turn.
        """
        self._start(lambda: self.loop.ask(text, on_event=self._transcript.take), text)

    def go_on(self) -> None:
        """Run :meth:`Loop.go_on` in the background, which continues an interrupted turn, and return at once."""
        self._start(lambda: self.loop.go_on(on_event=self._transcript.take), None)

    def sessions(self) -> list[str]:
        """Return the ids of all sessions in the loop's directory, the newest first."""
        return [path.name for path in reversed(session_directories(self.loop.session.home)[0])]

    def resume(self, id: SessionId | str) -> None:
        """Close the loop and resume another session with the same server, tools, permission and limits.

        Parameters
        ----------
        id : SessionId or str
            Id of the session to resume.

        Raises
        ------
        LoopkitError
            If the session cannot be resumed, as for :func:`loopkit.resume`. The panel then keeps its current session.
        """
        self._must_be_idle()
        own = self.loop.session.id
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self.loop = resume_like(self.loop, id)
            except LoopkitError:
                self.loop = resume_like(self.loop, own)
                raise
        self.turn = None
        self._read()
        for warning in caught:
            self._transcript.note(str(warning.message))
        self.paint()

    def _must_be_idle(self) -> None:
        if self.running:
            raise LoopBusy(self.loop.session.id)

    def _start(self, ask: Callable[[], Turn], text: str | None) -> None:
        self._must_be_idle()
        if self._length != self._records():  # other code used the loop directly
            self._read()
        if text is not None:
            self._transcript.asked(text)

        def work() -> None:
            self.turn, self._length = None, -1  # a failed turn may not be logged, so the next turn reads the log again
            try:
                self.turn = ask()
                self._length = self._records()
            finally:
                self._transcript.ended()

        self._begin(work, "turn")

    def _cancel(self) -> None:
        self.loop.stop()

    def _records(self) -> int:
        return sum(len(epoch.records) for epoch in self.loop.session.epochs)

    def _read(self) -> None:
        """Build the transcript again from the log of the session."""
        self._transcript = ChatTranscript(record for epoch in self.loop.session.epochs for record in epoch.records)
        self._length = self._records()

    def _card(self) -> Card:
        transcript = self._transcript
        facts = [("state", self._state()), ("requests", f"{transcript.requests:,}"), *transcript.counts()]
        return Card(f"ChatPanel on session {self.loop.session.id}", facts)

    def _state(self) -> str:
        return "running" if self.running else "failed" if self.error else "idle"

    def _page(self) -> list[PageBlock]:
        settled, writing = self._transcript.blocks()
        return [*settled, *writing]

    def _build(self) -> ipw.Widget:
        sessions = self._listed()
        self._past, self._now, self._status = ipw.HTML(), ipw.HTML(), ipw.HTML()
        self._text = ipw.Textarea(placeholder="Ask something", rows=2, layout={"flex": "1 1 auto", "width": "auto"})
        self._send = self._button("Send", self._ask_typed)
        self._stop = self._button("Stop", self.stop)
        self._go_on = self._button("Continue", self.go_on)
        self._list = ipw.Dropdown(layout={"width": "22em"}, **sessions)
        self._resume = self._button("Resume", lambda: self.resume(self._list.value or ""))
        refresh = self._button("Refresh", self._refresh)
        # a box with reversed column order stays scrolled to its last line
        below = {"display": "flex", "flex_flow": "column-reverse", "max_height": "32em", "overflow": "auto"}
        conversation = ipw.Box([ipw.VBox([self._past, self._now], layout={"flex": "0 0 auto"})], layout=below)
        asking = ipw.HBox([self._text, self._send, self._stop, self._go_on])
        return ipw.VBox([conversation, self._status, asking, ipw.HBox([self._list, self._resume, refresh])])

    def _listed(self) -> dict[str, Any]:
        own, listed = self.loop.session.id, self.sessions()[:LISTED]
        return {"options": listed, "value": own if own in listed else None}

    def _refresh(self) -> None:
        for name, value in self._listed().items():
            setattr(self._list, name, value)

    def _ask_typed(self) -> None:
        self.ask(self._text.value)
        self._text.value = ""

    def _paint(self) -> None:
        settled, writing = self._transcript.blocks()
        if settled != self._painted:  # usually only the last block has changed
            self._painted, self._past.value = settled, as_html(settled)
        self._now.value = as_html([*writing, *self._failure()])
        self._status.value = as_html([PageBlock("", repr(self))])
        for widget in (self._send, self._go_on, self._resume):
            widget.disabled = self.running
        self._stop.disabled = not self.running
