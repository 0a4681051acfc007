"""The session in the user's hand: open it, read it, append to it, roll it over, fork it.

One writer, and a log that is the state: a record is in memory only once it is on disk. Holds no parsing, no system call and no
HTML of its own; knows nothing of servers or of turns.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import UNSET

from loopkit.contract.baseline import Baseline, CoreSchemas, messages
from loopkit.contract.messages import ChatMessage, ToolCall
from loopkit.contract.neutralise import Tags
from loopkit.contract.records import Carried, LogRecord, ServerFacts, SessionStart, TagsFacts, Usage, UsageRecord
from loopkit.contract.request import Request, replayed
from loopkit.errors import InvalidConfig
from loopkit.ids import CallId, SessionId, Timestamp
from loopkit.reprs import Card
from loopkit.session.disk import DirectoryLock, need_writing
from loopkit.session.drift import Drift
from loopkit.session.order import group_ends
from loopkit.session.store import Epoch, baseline_path, copied, count_epochs, read_epochs, write_session
from loopkit.session.writer import Writer

if TYPE_CHECKING:
    from loopkit.config import Config

__all__ = ["Session"]


class _Same:
    """The type of what stands for "as in the running epoch", where None means something else."""


_SAME: Final = _Same()


class Session:
    """A conversation on disk; made by :meth:`create`, :meth:`open` or :meth:`read`.

    Attributes
    ----------
    id : SessionId
        Its name.
    dir : Path
        Its directory.
    """

    def __init__(self, home: Path, id: SessionId, lock: DirectoryLock | None) -> None:
        # absolute: a later chdir must not make the next epoch's files elsewhere
        self.home = Path(os.path.abspath(home))
        self.id, self.dir = id, self.dir_for(self.home, id)
        epochs: list[Epoch] = []
        tail = read_epochs(self.dir, id, epochs, live=lock is None)
        self._writer = Writer(self.dir, epochs, tail, lock)

    @staticmethod
    def dir_for(home: Path | str, id: SessionId) -> Path:
        """``<home>/sessions/<id>``."""
        return Path(home) / "sessions" / SessionId(id)

    @classmethod
    def create(
        cls,
        home: Path | str,
        id: SessionId,
        baseline: Baseline,
        *,
        slot: int | None,
        options: Mapping[str, Any],
        server: ServerFacts,
        tags: TagsFacts,
    ) -> Self:
        """Make a new session and open it for writing.

        Parameters
        ----------
        home : Path or str
            The directory that holds ``sessions``; made where it is missing.
        id : SessionId
            The new session's.
        baseline : Baseline
            The fixed prefix of the first epoch.
        slot : int or None
            The llama-server slot that it is pinned to.
        options : mapping
            The pinned members of every request body.
        server, tags
            What ``session_start`` holds of them.

        Raises
        ------
        SessionExists
            When its directory exists; nothing is overwritten.
        EncodeError, BaselineError
            When something cannot be encoded; nothing was written.
        SessionIOError
            When the system refuses; nothing is left.
        """
        start = SessionStart(
            time=Timestamp.now(),
            session=SessionId(id),
            epoch=0,
            slot=slot,
            baseline_sha256=baseline.hash(),
            options=dict(options),
            server=server,
            tags=tags,
        )
        write_session(cls.dir_for(home, id), [Epoch(baseline, [start])])
        return cls.open(home, id)

    @classmethod
    def open(cls, home: Path | str, id: SessionId) -> Self:
        """Open a session to go on writing: takes the lock, reads and checks every epoch, repairs nothing.

        Raises
        ------
        SessionNotFound, SessionLocked, TornLog, BaselineError, BaselineMismatch, SessionIOError
            Each names the file, and in a log the line.
        """
        directory = cls.dir_for(home, id)
        need_writing(directory)
        count_epochs(directory)
        lock = DirectoryLock(directory)
        try:
            return cls(Path(home), SessionId(id), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def read(cls, home: Path | str, id: SessionId) -> Self:
        """Read a session: the same checks as :meth:`open`, but no lock is taken and nothing can be written."""
        return cls(Path(home), SessionId(id), None)

    @property
    def epochs(self) -> Sequence[Epoch]:
        """(baseline, records) of every epoch, the current one last."""
        return self._writer.state.epochs

    @property
    def epoch(self) -> int:
        """Number of the current epoch, from 0."""
        return len(self.epochs) - 1

    @property
    def start(self) -> SessionStart:
        """First record of the current epoch: slot, options, server and tags stand there."""
        return self.epochs[-1].start

    @property
    def baseline(self) -> Baseline:
        """The current epoch's."""
        return self.epochs[-1].baseline

    @property
    def records(self) -> Sequence[LogRecord]:
        """The current epoch's, as they stand in the log."""
        return self._writer.state.records

    @property
    def options(self) -> Mapping[str, Any]:
        """The pinned members of the current epoch's request bodies."""
        return self.start.options

    @property
    def ended(self) -> bool:
        """Whether the current epoch has its ``epoch_end``."""
        return self._writer.state.tail.order.ended

    @property
    def closed(self) -> str:
        """Why it takes no more records; empty while it does."""
        return self._writer.closed

    @property
    def unfinished_roll(self) -> Path | None:
        """The baseline of a next epoch that was never begun, or None; :meth:`next_epoch` replaces it."""
        path = baseline_path(self.dir, self.epoch + 1)
        return path if self.ended and path.exists() else None

    @property
    def pending(self) -> tuple[ToolCall, ...]:
        """Calls of the last assistant message that have no result yet, in its order."""
        return self._writer.state.tail.order.pending

    def next_call(self) -> CallId:
        """The number of the next tool call of the session: 1, 2, 3, …"""
        return CallId(self._writer.state.tail.order.highest_call + 1)

    def last_usage(self) -> Usage | None:
        """The numbers of the epoch's latest request, or None."""
        return next((record.usage for record in reversed(self.records) if isinstance(record, UsageRecord)), None)

    def messages(self) -> list[ChatMessage]:
        """The replay of the current epoch, as it would be sent next."""
        return messages(self.baseline, self.records)

    def requests(self) -> Iterator[Request]:
        """Every request that was sent, rebuilt from the log, over all epochs, with its session, time and slot."""
        for epoch in self.epochs:
            for _, record, request in replayed(epoch.start, epoch.baseline, epoch.records):
                request.session, request.time, request.slot = self.id, record.time, epoch.start.slot
                yield request

    def drift(self, config: Config, registry: CoreSchemas | None) -> Drift:
        """What would be different if an epoch began today; the running one stays as it is.

        Parameters
        ----------
        config : Config
            Holds today's system prompt and the home with today's memory block.
        registry : CoreSchemas or None
            Holds today's tools.
        """
        pinned = self.start.tags
        tags = Tags.pinned(pinned.id, pinned.literals or None, pinned.cuts or None)
        return Drift.between(self.baseline, Baseline.assemble(config, registry, tags=tags))

    def append(self, record: LogRecord) -> None:
        """Write one record; see :meth:`extend`."""
        self.extend([record])

    def extend(self, records: Sequence[LogRecord]) -> None:
        """Write records with one write and one sync, and only then take them into memory.

        Parameters
        ----------
        records : sequence of LogRecord
            A whole group (``user``, ``assistant``, ``usage``, perhaps ``cache_loss``), or what may follow one.

        Raises
        ------
        EncodeError
            When a member cannot be encoded; names it. Nothing was written.
        OutOfOrder
            When a record cannot stand there. Nothing was written.
        SessionIOError
            When the system refuses. The log was cut back to its last record; after a failed sync, or where it could not be cut
            back, the session is closed.
        SessionClosed
            When the session was closed, or is open for reading only.
        """
        self._writer.extend(records)

    def next_epoch(
        self,
        baseline: Baseline,
        carried: Sequence[LogRecord] = (),
        *,
        kind: str = "turn",
        slot: int | _Same | None = _SAME,
        options: Mapping[str, Any] | None = None,
        server: ServerFacts | None = None,
        tags: TagsFacts | None = None,
    ) -> None:
        """Begin the next epoch; the one before must have ended, and stays readable for ever.

        Parameters
        ----------
        baseline : Baseline
            The new epoch's.
        carried : sequence of LogRecord
            ``user``, ``assistant`` and ``tool_result`` records that it begins with.
        kind : str
            What is carried: ``turn``, ``summary`` or ``text``.
        slot, options, server, tags
            As in the epoch before, where not given.

        Raises
        ------
        OutOfOrder
            When the epoch has not ended, or records of another kind are carried. Nothing was written.
        SessionIOError
            When the system refuses; no epoch was begun.
        """
        before = self.start
        start = SessionStart(
            time=Timestamp.now(),
            session=self.id,
            epoch=self.epoch + 1,
            slot=before.slot if isinstance(slot, _Same) else slot,
            baseline_sha256=baseline.hash(),
            options=dict(before.options if options is None else options),
            server=server or before.server,
            tags=tags or before.tags,
            carried=Carried(kind=kind, from_epoch=self.epoch, records=len(carried)) if carried else UNSET,
        )
        self._writer.begin(baseline, start, carried)

    def fork(self, at: int, id: SessionId) -> Self:
        """Make a new session that begins as this one, and open it for writing; this one is untouched.

        Parameters
        ----------
        at : int
            How many groups (requests, each with its tool results) of the current epoch to keep; 0 keeps what stands before the
            first. The epochs before are kept whole.
        id : SessionId
            The new session's. Its ``session_start`` records say where it comes from.

        Raises
        ------
        InvalidConfig
            When the epoch has fewer groups.
        SessionExists, SessionIOError
            As with :meth:`create`.
        """
        ends = group_ends(self.records)
        if not 0 <= at < len(ends):
            raise InvalidConfig("at", f"{at} is not from 0 to {len(ends) - 1}, the number of groups of epoch {self.epoch}")
        kept = [*self.epochs[:-1], Epoch(self.baseline, self.records[: ends[at]])]
        write_session(self.dir_for(self.home, id), copied(kept, self.id, SessionId(id)))
        return type(self).open(self.home, id)

    def close(self) -> None:
        """Release the lock; a second time does nothing."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _card(self) -> Card:
        facts = [
            ("epoch", str(self.epoch)),
            ("requests", str(self._writer.state.tail.order.requests)),
            ("records", str(len(self.records))),
        ]
        if self.pending:
            facts.append(("open calls", str(len(self.pending))))
        if self.ended:
            facts.append(("state", "ended"))
        if self._writer.closed:
            facts.append(("takes no more records:", self._writer.closed))
        return Card(f"Session {self.id}", facts)

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()
