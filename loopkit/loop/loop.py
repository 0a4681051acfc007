"""`Loop`: run turns of a session against a server.

The interface is synchronous. It works in a notebook cell; in async code use ``asyncio.to_thread(loop.ask, …)``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Literal, Self, TypeVar

from msgspec import UNSET

from loopkit.contract.drift import Drift
from loopkit.contract.messages import ToolCall
from loopkit.contract.neutralise import neutralise_report
from loopkit.contract.records import Assistant, ToolResult, Usage, User
from loopkit.contract.request import RequestEncoder
from loopkit.encoding import replace_surrogates
from loopkit.errors import InvalidConfig, LoopBusy, NothingToGoOn, SessionClosed, kind_of
from loopkit.ids import Timestamp
from loopkit.loop.display import show
from loopkit.loop.epochs import Carry, check_epoch_options
from loopkit.loop.events import OnEvent, Turn, TurnEvent
from loopkit.loop.parking import Parked, park
from loopkit.loop.state import State
from loopkit.loop.tools.execution import ToolPort
from loopkit.loop.tools.registry import Registry
from loopkit.loop.turn import TurnRun
from loopkit.reprs import Card
from loopkit.server.client import Server
from loopkit.session.session import Session

__all__ = ["Loop"]

T = TypeVar("T")


class Loop:
    """Runs the turns of one session against one server; made by :func:`loopkit.start` and :func:`loopkit.resume`.

    A turn is a message of the user and everything up to the model's final response: requests and tool calls.

    Attributes
    ----------
    tools : Registry
        Tools that the model may call. The model can find and call an added tool at once.
    on_event : callable or None
        Called with every event of a turn. The default prints the text while it streams; None prints nothing.

    Examples
    --------
    >>> from loopkit import serve, start
    >>> import tempfile
    >>> with serve("tiny") as server, start(server, system="Be brief.", home=tempfile.mkdtemp(), memory="") as loop:
    ...     loop.on_event = None
    ...     turn = loop.ask("Hello.")
    >>> turn.text, turn.stop
    ('Done.', 'done')
    """

    def __init__(self, state: State, tools: Registry) -> None:
        self._state = state
        self.tools = tools
        self.on_event: OnEvent | None = show
        self._lock = threading.Lock()
        self._running: object | None = None

    @property
    def session(self) -> Session:
        """Session that the turns are logged to."""
        return self._state.session

    @property
    def server(self) -> Server:
        """Server that answers the requests."""
        return self._state.server

    @property
    def port(self) -> ToolPort:
        """Object that runs the tool calls."""
        return self._state.port

    @property
    def carry(self) -> Carry:
        """What the next epoch starts with; can be set. See ``carry`` of :func:`loopkit.start`."""
        return self._state.carry

    @carry.setter
    def carry(self, carry: Carry) -> None:
        check_epoch_options(self._state.on_full, carry)
        self._state.carry = carry

    @property
    def pending(self) -> Sequence[ToolCall]:
        """Tool calls of the last assistant message that have no result, because the process was killed; see :meth:`settle`."""
        return self.session.pending

    def ask(self, text: str, *, on_event: OnEvent | None = None) -> Turn:
        """Send a message and run the turn: stream the response, call tools, and repeat until the model stops.

        On Ctrl-C, the turn first logs a result for every pending tool call, and then raises ``KeyboardInterrupt``.

        Parameters
        ----------
        text : str
            The message. Control tags in it are neutralised.
        on_event : callable, optional
            Called with every event of this turn, instead of :attr:`on_event`.

        Returns
        -------
        Turn
            Result of the turn. Its ``stop`` says why the turn ended.

        Raises
        ------
        ContractBroken
            If the next request would not begin with the bytes of the previous one. Nothing is sent.
        ServerError
            If the server fails. The failed request is not logged. If an earlier request of the turn was logged, :meth:`go_on`
            continues the turn; otherwise ask again.
        PendingCalls
            If tool calls have no result, because the process was killed; see :meth:`settle`.
        EpochTooLarge
            If the baseline (system prompt, memory and tools) and the first messages of an epoch do not fit the context.
        LoopBusy
            If another turn is running.

        Examples
        --------
        >>> from loopkit import serve, start
        >>> import tempfile
        >>> with serve("tiny") as server, start(server, system="Be brief.", home=tempfile.mkdtemp(), memory="") as loop:
        ...     loop.ask("Hello.").stop
        Done.
        'done'
        """
        return self._alone(lambda: self._run(on_event).run(self._user(text)))

    def go_on(self, *, on_event: OnEvent | None = None) -> Turn:
        """Send the next request of an unfinished turn, without a new message.

        Use it after an error, :meth:`settle`, or a limit.

        Parameters
        ----------
        on_event : callable, optional
            Called with every event of this turn, instead of :attr:`on_event`.

        Returns
        -------
        Turn
            Result of the continued turn.

        Raises
        ------
        NothingToGoOn
            If no turn is unfinished. For other errors see :meth:`ask`.
        """

        def work() -> Turn:
            if not self.session.pending and not self._is_unfinished():
                raise NothingToGoOn(self.session.id)
            return self._run(on_event).run(None)

        return self._alone(work)

    def _run(self, on_event: OnEvent | None = None) -> TurnRun:
        return TurnRun(self._state, on_event or self.on_event or _ignore)

    def _is_unfinished(self) -> bool:
        """Return True if the last logged message is a user message or a tool result, so the model's response is missing."""
        messages = [record for record in self.session.records if isinstance(record, User | Assistant | ToolResult)]
        return bool(messages) and not isinstance(messages[-1], Assistant)

    def events(self, text: str) -> Generator[TurnEvent, None, Turn]:
        """Send a message and yield every event of the turn. Closing the generator stops the turn.

        Parameters
        ----------
        text : str
            The message. Control tags in it are neutralised.

        Yields
        ------
        TurnEvent
            Text and reasoning deltas, tool calls and results, usage, cache losses and others.

        Returns
        -------
        Turn
            Result of the turn, as the return value of the generator: ``turn = yield from loop.events(text)``.
        """
        events: queue.SimpleQueue[TurnEvent | Turn | BaseException] = queue.SimpleQueue()

        def work() -> None:
            try:
                events.put(self.ask(text, on_event=events.put))
            except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
                events.put(error)

        thread = threading.Thread(target=work, name="loopkit turn", daemon=True)
        thread.start()
        try:
            while True:
                event = events.get()
                if isinstance(event, Turn):
                    return event
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            while thread.is_alive():
                self.stop()  # repeated, because a turn that starts clears the signal
                thread.join(0.05)

    def stop(self) -> None:
        """Stop the running turn, from another thread or a callback. The result of the turn has ``stop`` ``"interrupted"``.

        The connection to the server is closed at once. A running tool cannot be stopped, so the turn ends after the tool has.
        """
        self._state.stopping.set()

    def settle(self, how: Literal["rerun", "interrupted"]) -> tuple[ToolResult, ...]:
        """Give each pending tool call a result, after the process was killed in the middle of a turn.

        loopkit never does this by itself, because running a tool twice may be unsafe.

        Parameters
        ----------
        how : {"rerun", "interrupted"}
            ``"rerun"`` runs the calls again. ``"interrupted"`` logs a result which tells the model that the call was interrupted.

        Returns
        -------
        tuple of ToolResult
            The results that were logged. Continue with :meth:`go_on` or :meth:`ask`.

        Raises
        ------
        InvalidConfig
            If ``how`` is something else.
        """
        if how not in ("rerun", "interrupted"):
            raise InvalidConfig("settle", f"{how!r} is unknown", 'Use "rerun" or "interrupted"')
        return self._alone(lambda: self._run().settle(how))

    def end_epoch(self) -> None:
        """End the current epoch. The next turn opens a new one, with the present system prompt, tools and memory.

        Calling it twice has the same effect as once.

        Raises
        ------
        PendingCalls
            If tool calls have no result; see :meth:`settle`.
        """
        self._alone(lambda: self._run().end_epoch())

    def drift(self) -> Drift:
        """Compare the system prompt, memory and tools of the current epoch with the present ones.

        The epoch keeps sending its own. The next epoch sends the present ones.

        Returns
        -------
        Drift
            The changed lines and tools. It is false if nothing has changed.
        """
        return Drift.between(self.session.baseline, self._state.next_baseline())

    def warm(self) -> Usage:
        """Send the conversation to the server, so that its cache contains the prompt before the next turn.

        The server generates 1 token, which is ignored. Nothing is logged.

        Returns
        -------
        Usage
            Token counts of this request, such as how many tokens were already cached.
        """

        def work() -> Usage:
            self._state.update_encoder()
            session = self.session
            options = {**session.options, "max_tokens": 1}
            # The next prompt is the same up to the content of its last message.
            newest = None if self._is_unfinished() else User(time=Timestamp.now(), content="")
            encoder = RequestEncoder(session.baseline, options, session.start.slot)
            usage = self.server.complete(encoder.request(session.records, newest)).usage
            self._state.check_restored(usage)
            return usage

        return self._alone(work)

    def park(self) -> Parked:
        """Save the session's cache (the KV state of its slot) to disk.

        After the server was restarted, :func:`loopkit.resume` restores the state, so that the cache is warm.

        Returns
        -------
        Parked
            The number of saved tokens, and the hashes that must match before the state can be restored.

        Raises
        ------
        InvalidConfig
            If the session is not pinned to a slot, if the slot does not contain this session's prompt, or if the server has no
            slots to save (only llama-servers have).
        ServerError
            If the server cannot save slots.
        SessionIOError
            If the files cannot be written.
        """
        return self._alone(lambda: park(self.session, self.server))

    def close(self) -> None:
        """Release the session's lock and its slot. The server keeps running. Safe to call twice."""
        slot, self._state.slot = self._state.slot, None
        self.server.release_slot(slot)
        self.session.close()

    def _alone(self, work: Callable[[], T]) -> T:
        """Call `work` and return its result. Raise `LoopBusy` if the loop is busy. After an interrupt, the loop is free again."""
        me = object()
        try:
            with self._lock:
                if self._running is not None:
                    raise LoopBusy(self.session.id)
                self._running = me
                self._state.stopping.clear()
            if self.session.closed:
                raise SessionClosed(str(self.session.dir), self.session.closed)
            return work()
        finally:
            if self._running is me:
                self._running = None

    def _user(self, text: str) -> User:
        if not isinstance(text, str):
            raise InvalidConfig("text", f"expected a str; got {kind_of(text)}", "Pass the message as a str")
        asked = Timestamp.now()
        whole, replaced = replace_surrogates(text)
        content, tags = neutralise_report(whole, self._state.tags)
        return User(time=asked, content=content, neutralised=tags or UNSET, replaced=replaced or UNSET)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _card(self) -> Card:
        last = self.session.last_usage()
        facts = [("model", str(self.session.options.get("model"))), ("epoch", str(self.session.epoch))]
        if self.tools.names:
            facts.append(("tools", ", ".join(self.tools.names)))
        if last is not None and last.prompt_tokens is not None:
            facts.append(("last prompt", f"{last.prompt_tokens:,} tokens"))
        return Card(f"Loop on session {self.session.id}", facts)

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()


def _ignore(event: TurnEvent) -> None:
    """Ignore the event."""
