"""The object in the user's hand: a session, a server, and turns between them.

Holds no parsing, no HTTP and no HTML: a turn is in ``turn.py``, what streams by in ``display.py``. The interface is synchronous
and works in a cell whose event loop runs; in async code use ``asyncio.to_thread(loop.ask, …)``.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec import UNSET

from loopkit.baseline import Baseline
from loopkit.card import Card
from loopkit.config import Config
from loopkit.encoding import mend_surrogates
from loopkit.errors import InvalidConfig, LoopBusy
from loopkit.ids import SessionId, Timestamp
from loopkit.loop.display import show
from loopkit.loop.events import OnEvent, Stopped, TurnEvent
from loopkit.loop.turn import Turn, one_request
from loopkit.neutralise import Tags, neutralise_report
from loopkit.records import CacheLoss, TagsFacts, UsageRecord, User
from loopkit.request import RequestEncoder
from loopkit.server.client import Server
from loopkit.session.session import Session

__all__ = ["Loop", "resume", "start"]


def start(
    server: Server,
    *,
    system: str | Path,
    home: str | Path = "runs",
    id: SessionId | str | None = None,
    memory: str | None = None,
    options: Mapping[str, Any] | None = None,
    slot: int | None = None,
) -> Loop:
    """Begin a session: take a snapshot of the baseline and open its log.

    Parameters
    ----------
    server : Server
        From :func:`loopkit.serve` or :func:`loopkit.connect`.
    system : str or Path
        The system prompt: text, or a UTF-8 file. Never neutralised, for it is the owner's.
    home : str or Path
        The directory that holds sessions.
    id : SessionId or str, optional
        The session's name; a new one that sorts by time where not given.
    memory : str, optional
        The memory block; None reads ``<home>/memory/core.md`` if that is a file, ``""`` means none.
    options : mapping, optional
        Members of every request body, such as ``temperature``, ``seed``, ``max_tokens``; fixed for the epoch.
    slot : int, optional
        The slot to pin the session to; where not given, one that the embedded server hands out, and none on other servers.

    Returns
    -------
    Loop
        Ready for :meth:`Loop.ask`.

    Raises
    ------
    BaselineError
        When the system prompt or the memory block cannot be read.
    SessionExists
        When the home holds a session of that name.
    """
    text, file = (None, system) if isinstance(system, Path) else (system, None)
    config = Config(home=Path(home), system=text, system_file=file, options={**server.default_options(), **(options or {})})
    tags = Tags.default()
    baseline = Baseline.assemble(config, None, memory, tags)
    pinned = _pin(server, slot)
    try:
        session = Session.create(
            config.home,
            SessionId.new() if id is None else SessionId(id),
            baseline,
            slot=pinned,
            options=config.options,
            server=server.facts(),
            tags=TagsFacts(id=tags.id),
        )
        return Loop(server, session)
    except BaseException:
        server.release_slot(pinned)
        raise


def _pin(server: Server, slot: int | None) -> int | None:
    """Choose the slot of a new session."""
    taken = server.take_slot(slot)
    if slot is not None and server.embedded and taken is None:
        raise InvalidConfig("slot", f"{slot} is held by an open session, or the server has no such slot", "Leave it out")
    if slot is None and server.embedded and taken is None:
        _say("every slot is held by an open session: this one is not pinned, and others may take its cache")
    return slot if slot is not None else taken


def _say(what: str) -> None:
    warnings.warn(what, UserWarning, stacklevel=3)


def resume(id: SessionId | str, server: Server, *, home: str | Path = "runs") -> Loop:
    """Go on with a session where its log ends, in any process.

    Baseline, options and slot come from the epoch's ``session_start``; nothing of them is given again.

    Parameters
    ----------
    id : SessionId or str
        The session's name.
    server : Server
        The same server, or another that has the session's model.
    home : str or Path
        The directory that holds sessions.

    Raises
    ------
    SessionNotFound, SessionLocked, TornLog, BaselineMismatch
        See :meth:`Session.open`.
    ContractBroken
        When the last request, rebuilt from the log, is not the one that was sent.
    InvalidConfig
        When the server has another model than the session was started with.
    """
    session = Session.open(home, SessionId(id))
    try:
        pinned = session.options.get("model")
        if pinned is not None and server.model is not None and pinned != server.model:
            why = f"the session was started with {pinned!r}, but the server has {server.model!r}"
            raise InvalidConfig("model", why, "Serve that model, or start a new session")
        loop = Loop(server, session)
        if session.start.slot is not None and server.embedded and server.take_slot(session.start.slot) is None:
            slot = session.start.slot
            _say(f"slot {slot}, to which the session is pinned, is held by another open session: each takes the other's cache")
        return loop
    except BaseException:
        session.close()
        raise


class Loop:
    """A session that is being talked to.

    Parameters
    ----------
    server : Server
        Whom to ask.
    session : Session
        Where to log; open for writing.

    Attributes
    ----------
    on_event : callable or None
        Told of everything that happens in a turn; prints the text as it streams unless set otherwise.
    """

    def __init__(self, server: Server, session: Session) -> None:
        self.server, self.session = server, session
        self.on_event: OnEvent | None = show
        self._encoder = RequestEncoder.resume(session.start, session.baseline, session.records)
        facts = session.start.tags
        self._tags = Tags.pinned(facts.id, facts.literals or (), facts.cuts or ())
        self._busy = threading.Lock()

    def ask(self, text: str, *, on_event: OnEvent | None = None) -> Turn:
        """Ask, and stream the answer.

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
            The log is as it was before the request.
        LoopBusy
            When a turn runs already.
        """
        tell = on_event or self.on_event or _nobody
        if not self._busy.acquire(blocking=False):
            raise LoopBusy(self.session.id)
        try:
            return self._turn(self._user(text), tell)
        finally:
            self._busy.release()

    def _turn(self, newest: User, tell: OnEvent) -> Turn:
        began = time.monotonic()
        before = len(self.session.records)
        completion = one_request(self.session, self.server, self._encoder, newest, tell)
        tell(Stopped("done"))
        logged = self.session.records[before:]
        return Turn(
            text=completion.text,
            reasoning=completion.reasoning_content or "",
            stop="done",
            requests=tuple(record for record in logged if isinstance(record, UsageRecord)),
            losses=tuple(record for record in logged if isinstance(record, CacheLoss)),
            elapsed=time.monotonic() - began,
        )

    def _user(self, text: str) -> User:
        asked = Timestamp.now()
        whole, replaced = mend_surrogates(text)
        content, tags = neutralise_report(whole, self._tags)
        return User(time=asked, content=content, neutralised=tags or UNSET, replaced=replaced or UNSET)

    def close(self) -> None:
        """Release the session's lock and its slot; the server runs on."""
        self.server.release_slot(self.session.start.slot)
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _card(self) -> Card:
        last = self.session.last_usage()
        facts = [("model", str(self.session.options.get("model"))), ("epoch", str(self.session.epoch))]
        if last is not None and last.prompt_tokens is not None:
            facts.append(("last prompt", f"{last.prompt_tokens:,} tokens"))
        return Card(f"Loop on session {self.session.id}", facts)

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()


def _nobody(event: TurnEvent) -> None:
    """Look away."""
