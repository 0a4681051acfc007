"""The object in the user's hand: a session, a server, and turns between them.

Holds no parsing, no HTTP and no HTML: a turn is in ``turn.py``, epochs in ``epochs.py``, what streams by in ``display.py``. The
interface is synchronous and works in a cell whose event loop runs; in async code use ``asyncio.to_thread(loop.ask, …)``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Literal, Self, TypeVar

from msgspec import UNSET

from loopkit.contract.messages import ToolCall
from loopkit.contract.neutralise import neutralise_report
from loopkit.contract.records import Assistant, ToolResult, Usage, User
from loopkit.contract.request import Request
from loopkit.encoding import encode, mend_surrogates
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
from loopkit.session.drift import Drift
from loopkit.session.session import Session

__all__ = ["Loop"]

T = TypeVar("T")


class Loop:
    """A session that is being talked to; made by :func:`loopkit.start` and :func:`loopkit.resume`.

    Attributes
    ----------
    session : Session
        Where turns are logged; open for writing.
    server : Server
        Who is asked.
    tools : Registry
        What the model may call; a tool added to it can be found and called at once.
    on_event : callable or None
        Told of everything that happens in a turn; prints the text as it streams unless set otherwise.
    """

    def __init__(self, state: State, tools: Registry) -> None:
        self._state = state
        self.tools = tools
        self.on_event: OnEvent | None = show
        self._lock = threading.Lock()
        self._running: object | None = None

    @property
    def session(self) -> Session:
        return self._state.session

    @property
    def server(self) -> Server:
        return self._state.server

    @property
    def port(self) -> ToolPort:
        return self._state.port

    @property
    def carry(self) -> Carry:
        """What the next epoch begins with; may be set."""
        return self._state.carry

    @carry.setter
    def carry(self, carry: Carry) -> None:
        check_epoch_options(self._state.on_full, carry)
        self._state.carry = carry

    @property
    def pending(self) -> Sequence[ToolCall]:
        """Tool calls of the last assistant message that have no result yet, after a kill; see :meth:`settle`."""
        return self.session.pending

    def ask(self, text: str, *, on_event: OnEvent | None = None) -> Turn:
        """Ask, and stream the answer; tools are called until the model stops.

        Parameters
        ----------
        text : str
            The message; control tags in it become plain text, once, here.
        on_event : callable, optional
            Told of everything that happens in this turn, instead of :attr:`on_event`.

        Returns
        -------
        Turn
            Its ``stop`` says why it ended.

        Raises
        ------
        ContractBroken
            Before anything is sent.
        ServerError, KeyboardInterrupt
            The log is at a record boundary, and every open call is answered.
        PendingCalls
            When a kill left calls open; see :meth:`settle`.
        EpochTooLarge
            When the baseline, what is carried over and the message do not fit the context.
        LoopBusy
            When a turn runs already.
        """
        return self._alone(lambda: self._run(on_event).run(self._user(text)))

    def go_on(self, *, on_event: OnEvent | None = None) -> Turn:
        """Send the next request of a turn that was left in the middle: after an error, ``settle``, or a limit.

        Raises
        ------
        NothingToGoOn
            When the last turn is finished. For the others see :meth:`ask`.
        """

        def work() -> Turn:
            if not self.session.pending and not self._in_mid_turn():
                raise NothingToGoOn(self.session.id)
            return self._run(on_event).run(None)

        return self._alone(work)

    def _run(self, on_event: OnEvent | None = None) -> TurnRun:
        return TurnRun(self._state, on_event or self.on_event or _nobody)

    def _in_mid_turn(self) -> bool:
        """Whether the last message is one that a model answers."""
        said = [record for record in self.session.records if isinstance(record, User | Assistant | ToolResult)]
        return bool(said) and not isinstance(said[-1], Assistant)

    def events(self, text: str) -> Generator[TurnEvent, None, Turn]:
        """Ask, and yield every event of the turn as it comes; leaving the generator stops the turn.

        Returns
        -------
        Turn
            As the generator's value (``StopIteration.value``, or ``turn = yield from …``).
        """
        came: queue.SimpleQueue[TurnEvent | Turn | BaseException] = queue.SimpleQueue()

        def work() -> None:
            try:
                came.put(self.ask(text, on_event=came.put))
            except BaseException as error:  # noqa: BLE001  # raised again where the events are taken
                came.put(error)

        thread = threading.Thread(target=work, name="loopkit turn", daemon=True)
        thread.start()
        try:
            while True:
                event = came.get()
                if isinstance(event, Turn):
                    return event
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            while thread.is_alive():
                self.stop()  # again and again: the turn may not have begun
                thread.join(0.05)

    def stop(self) -> None:
        """Stop the running turn, from another thread or a callback; it returns with ``stop`` ``interrupted``.

        The connection to the server is cut at once; a tool that runs is waited for, for nothing can stop it from outside.
        """
        self._state.stopping.set()

    def settle(self, how: Literal["rerun", "interrupted"]) -> tuple[ToolResult, ...]:
        """Answer the tool calls that a kill left open. Never done silently: a tool may not be safe to run twice.

        Parameters
        ----------
        how : str
            ``"rerun"`` runs them; ``"interrupted"`` tells the model that no result came.

        Returns
        -------
        tuple of ToolResult
            What was logged. Then :meth:`go_on`, or ask something else.
        """
        if how not in ("rerun", "interrupted"):
            raise InvalidConfig("settle", f"{how!r} is no way to settle a call", 'Say "rerun" or "interrupted"')
        return self._alone(lambda: self._run().settle(how))

    def end_epoch(self) -> None:
        """Close the epoch; the next turn opens another, with today's system prompt, tools and memory. Again does nothing.

        Raises
        ------
        PendingCalls
            When a kill left calls open; see :meth:`settle`.
        """
        self._alone(lambda: self._run().end_epoch())

    def drift(self) -> Drift:
        """What would be different if an epoch began today: lines of system prompt and memory, and tools."""
        return Drift.between(self.session.baseline, self._state.next_baseline())

    def warm(self) -> Usage:
        """Read the conversation into the server's cache without a turn; nothing is logged.

        Returns
        -------
        Usage
            What the server read.
        """

        def work() -> Usage:
            self._state.update_encoder()
            session = self.session
            last = User(time=Timestamp.now(), content="")  # up to here the next prompt is the same
            body = self._state.encoder.request(session.records, None if self._in_mid_turn() else last).body
            members = {**session.options, "max_tokens": 1}
            head = encode(session.options)[1:-1]
            assert body.startswith(b"{" + head)
            rest = body[1 + len(head) :]
            usage = self.server.complete(Request.of(encode(members)[:-1] + (rest if head else b"," + rest))).usage
            self._state.check_restored(usage)
            return usage

        return self._alone(work)

    def park(self) -> Parked:
        """Save the session's KV state, so that :func:`loopkit.resume` finds its cache warm on a server that was started anew.

        Returns
        -------
        Parked
            What was saved: its tokens, and what must be the same for it to be put back.

        Raises
        ------
        InvalidConfig
            When the session is not pinned to a slot, the slot does not hold it, or the server is no llama-server.
        ServerError
            When the server cannot save slots.
        SessionIOError
            When the files cannot be written.
        """
        return self._alone(lambda: park(self.session, self.server))

    def close(self) -> None:
        """Release the session's lock and its slot; the server runs on. A second time does nothing."""
        slot, self._state.slot = self._state.slot, None
        self.server.release_slot(slot)
        self.session.close()

    def _alone(self, work: Callable[[], T]) -> T:
        """Do something while nothing else runs. Written so that no interrupt, at whatever step, leaves the loop busy."""
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
            raise InvalidConfig("text", f"{kind_of(text)} is not a message", "Ask with a str")
        asked = Timestamp.now()
        whole, replaced = mend_surrogates(text)
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


def _nobody(event: TurnEvent) -> None:
    """Look away."""
