"""`Session`: create, open, read and fork a conversation on disk, append records to it, begin its next epoch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec import UNSET, UnsetType

from loopkit.contract.baseline import Baseline, CoreSchemas, messages
from loopkit.contract.drift import Drift
from loopkit.contract.messages import ChatMessage, ToolCall
from loopkit.contract.neutralise import Tags
from loopkit.contract.records import Carried, LogRecord, ServerFacts, SessionStart, TagsFacts, Usage, UsageRecord
from loopkit.contract.request import Request, replayed
from loopkit.errors import InvalidConfig
from loopkit.ids import CallId, SessionId, Timestamp
from loopkit.reprs import Card
from loopkit.session.disk import DirectoryLock, require_writable
from loopkit.session.layout import baseline_path, count_epochs
from loopkit.session.order import group_ends
from loopkit.session.store import Epoch, copy_epochs, read_epochs, write_session
from loopkit.session.writer import Writer

if TYPE_CHECKING:
    from loopkit.config import Config

__all__ = ["Session"]


class Session:
    """A conversation on disk, made by :meth:`create`, :meth:`open` or :meth:`read`.

    A session consists of epochs. Each epoch has a log and a fixed baseline (system prompt and tools), with which all its requests
    begin. Records are written to disk first and added in memory after that. Only one process at a time can write.

    Attributes
    ----------
    id : SessionId
        The session's id, which is also the name of its directory.
    dir : Path
        The session's directory.

    Examples
    --------
    >>> import tempfile
    >>> from loopkit.contract.records import ServerFacts, TagsFacts
    >>> home, id = tempfile.mkdtemp(), SessionId("lima")
    >>> facts = {"server": ServerFacts(engine="llama.cpp"), "tags": TagsFacts(id="default-1")}
    >>> Session.create(home, id, Baseline("Be brief.", ()), slot=None, options={}, **facts).close()
    >>> session = Session.read(home, id)
    >>> session
    Session lima: epoch 0, requests 0, records 1, accepts no more records: it was opened with Session.read
    """

    def __init__(self, home: Path, id: SessionId, lock: DirectoryLock | None) -> None:
        # Absolute, because the process may change its working directory later.
        self.home = Path(os.path.abspath(home))
        self.id, self.dir = id, self.dir_for(self.home, id)
        epochs: list[Epoch] = []
        tail = read_epochs(self.dir, id, epochs, live=lock is None)
        self._writer = Writer(self.dir, epochs, tail, lock)

    @staticmethod
    def dir_for(home: Path | str, id: SessionId) -> Path:
        """Return the directory of a session: ``<home>/sessions/<id>``.

        Parameters
        ----------
        home : Path or str
            Directory that contains ``sessions``.
        id : SessionId or str
            Id of the session.
        """
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
        """Create a session and open it for writing.

        Parameters
        ----------
        home : Path or str
            Directory that contains ``sessions``. It is created if it is missing.
        id : SessionId
            Id of the new session.
        baseline : Baseline
            System prompt and tools, with which every request of the first epoch begins.
        slot : int or None
            llama-server slot that the session is pinned to; None for no slot.
        options : mapping
            Members of every request body, such as ``model`` and ``temperature``. They cannot change within an epoch.
        server : ServerFacts
            Engine, build, model and context size of the server.
        tags : TagsFacts
            The set of control tags that is neutralised in new text.

        Returns
        -------
        Session
            The session, open for writing.

        Raises
        ------
        SessionExists
            If the directory exists.
        EncodeError, BaselineError
            If a value cannot be encoded. Nothing was written.
        SessionIOError
            If the operating system refuses an operation. No file remains.
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
        """Open a session for writing: take the writer's lock, and read and check every epoch. A fault is an error.

        Parameters
        ----------
        home : Path or str
            Directory that contains ``sessions``.
        id : SessionId
            Id of the session.

        Raises
        ------
        SessionError
            ``SessionNotFound`` if it does not exist, ``SessionLocked`` if another writer has it open, ``TornLog`` or
            ``BaselineError`` if a file has a fault, ``SessionIOError`` if one cannot be read. The message names file and line.
        """
        directory = cls.dir_for(home, id)
        require_writable(directory)
        count_epochs(directory)
        lock = DirectoryLock(directory)
        try:
            return cls(Path(home), SessionId(id), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def read(cls, home: Path | str, id: SessionId) -> Self:
        """Open a session for reading only, without a lock. It is checked as in :meth:`open`, with the same errors.

        Parameters
        ----------
        home : Path or str
            Directory that contains ``sessions``.
        id : SessionId
            Id of the session. Another process may be writing it: a group that is not whole yet is left out.
        """
        return cls(Path(home), SessionId(id), None)

    @property
    def epochs(self) -> Sequence[Epoch]:
        """All epochs, each with its baseline and records. The last one is the current epoch."""
        return self._writer.state.epochs

    @property
    def epoch(self) -> int:
        """Number of the current epoch, from 0."""
        return len(self.epochs) - 1

    @property
    def start(self) -> SessionStart:
        """First record of the current epoch. It contains slot, options, facts about the server, and control tags."""
        return self.epochs[-1].start

    @property
    def baseline(self) -> Baseline:
        """Baseline of the current epoch."""
        return self.epochs[-1].baseline

    @property
    def records(self) -> Sequence[LogRecord]:
        """Records of the current epoch, in the order of the log."""
        return self._writer.state.records

    @property
    def options(self) -> Mapping[str, Any]:
        """Members, such as ``temperature``, that all request bodies of the current epoch contain."""
        return self.start.options

    @property
    def ended(self) -> bool:
        """True if the current epoch has an ``epoch_end`` record."""
        return self._writer.state.tail.order.ended

    @property
    def closed(self) -> str:
        """Why no records can be appended; an empty string if they can."""
        return self._writer.closed

    @property
    def unfinished_roll(self) -> Path | None:
        """Baseline file that a crash left behind while the next epoch began; else None. :meth:`next_epoch` replaces the file."""
        path = baseline_path(self.dir, self.epoch + 1)
        return path if self.ended and path.exists() else None

    @property
    def pending(self) -> tuple[ToolCall, ...]:
        """Tool calls of the last assistant message that have no result yet, in order."""
        return self._writer.state.tail.order.pending

    def next_call(self) -> CallId:
        """Return the number of the session's next tool call: 1, 2, 3, …"""
        return CallId(self._writer.state.tail.order.highest_call + 1)

    def last_usage(self) -> Usage | None:
        """Return the usage of the latest request in the current epoch; None if it has no request yet."""
        return next((record.usage for record in reversed(self.records) if isinstance(record, UsageRecord)), None)

    def messages(self) -> list[ChatMessage]:
        """Return the messages of the current epoch, from the system message on; the next request will contain them."""
        return messages(self.baseline, self.records)

    def requests(self) -> Iterator[Request]:
        """Rebuild every request of all epochs from the log, in order.

        Yields
        ------
        Request
            A request body, with the session's id, the time of the response and the slot.
        """
        for epoch in self.epochs:
            for _, record, request in replayed(epoch.start, epoch.baseline, epoch.records):
                request.session, request.time, request.slot = self.id, record.time, epoch.start.slot
                yield request

    def drift(self, config: Config, registry: CoreSchemas | None) -> Drift:
        """Compare the baseline of the current epoch with the baseline that a new epoch would get. Nothing is changed.

        Parameters
        ----------
        config : Config
            Settings: the present system prompt, and the home directory with the present memory block.
        registry : CoreSchemas or None
            The present tools.

        Returns
        -------
        Drift
            The differences. It is false if there is no difference.
        """
        pinned = self.start.tags
        tags = Tags.pinned(pinned.id, pinned.literals or None, pinned.cuts or None)
        return Drift.between(self.baseline, Baseline.assemble(config, registry, tags=tags))

    def append(self, record: LogRecord) -> None:
        """Append one record; see :meth:`extend`.

        Parameters
        ----------
        record : LogRecord
            A record that may come next and does not need others, such as a ``tool_result``.
        """
        self.extend([record])

    def extend(self, records: Sequence[LogRecord]) -> None:
        """Append records to the log with one write and one sync, and then to :attr:`records`.

        Parameters
        ----------
        records : sequence of LogRecord
            A whole group (``user``, ``assistant``, ``usage``, and ``cache_loss`` if tokens were lost), or records that may follow
            a group.

        Raises
        ------
        EncodeError
            If a member cannot be encoded. Nothing was written.
        OutOfOrder
            If a record must not follow the one before. Nothing was written.
        SessionIOError
            If the operating system refuses the write. A partial write was removed again. If it could not be removed, or if the
            sync failed, the session is closed.
        SessionClosed
            If the session was closed, or is open for reading only.
        """
        self._writer.extend(records)

    def next_epoch(
        self,
        baseline: Baseline,
        carried: Sequence[LogRecord] = (),
        *,
        kind: str = "turn",
        slot: int | UnsetType | None = UNSET,
        options: Mapping[str, Any] | None = None,
        server: ServerFacts | None = None,
        tags: TagsFacts | None = None,
    ) -> None:
        """Begin the next epoch. The current epoch must have ended; it stays readable.

        Parameters
        ----------
        baseline : Baseline
            Baseline of the new epoch.
        carried : sequence of LogRecord
            ``user``, ``assistant`` and ``tool_result`` records that the new epoch starts with.
        kind : str
            Where the carried records come from: ``turn``, ``summary`` or ``text``.
        slot, options, server, tags
            As in :meth:`create`; by default those of the current epoch.

        Raises
        ------
        OutOfOrder
            If the current epoch has not ended, or ``carried`` has records of other kinds. Nothing was written.
        SessionIOError
            If the operating system refuses an operation. No new epoch was begun.
        """
        before = self.start
        start = SessionStart(
            time=Timestamp.now(),
            session=self.id,
            epoch=self.epoch + 1,
            slot=before.slot if slot is UNSET else slot,
            baseline_sha256=baseline.hash(),
            options=dict(before.options if options is None else options),
            server=server or before.server,
            tags=tags or before.tags,
            carried=Carried(kind=kind, from_epoch=self.epoch, records=len(carried)) if carried else UNSET,
        )
        self._writer.begin(baseline, start, carried)

    def fork(self, at: int, id: SessionId) -> Self:
        """Copy the beginning of this session into a new session, and open the new session for writing.

        Parameters
        ----------
        at : int
            Number of groups to copy from the current epoch. A group is a request with its response and tool results. 0 copies
            only the records before the first group. Earlier epochs are copied whole.
        id : SessionId
            Id of the new session. Its ``session_start`` records name this session as their source.

        Raises
        ------
        InvalidConfig
            If the current epoch has fewer groups.
        SessionExists, SessionIOError
            As in :meth:`create`.
        """
        ends = group_ends(self.records)
        if not 0 <= at < len(ends):
            raise InvalidConfig("at", f"it must be 0 to {len(ends) - 1}, the number of groups of epoch {self.epoch}; got {at}")
        kept = [*self.epochs[:-1], Epoch(self.baseline, self.records[: ends[at]])]
        write_session(self.dir_for(self.home, id), copy_epochs(kept, self.id, SessionId(id)))
        return type(self).open(self.home, id)

    def close(self) -> None:
        """Close the session and release its lock. Safe to call twice."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _card(self) -> Card:
        requests = self._writer.state.tail.order.requests
        facts = [("epoch", str(self.epoch)), ("requests", str(requests)), ("records", str(len(self.records)))]
        if self.pending:
            facts.append(("open calls", str(len(self.pending))))
        if self.ended:
            facts.append(("state", "ended"))
        if self._writer.closed:
            facts.append(("accepts no more records:", self._writer.closed))
        return Card(f"Session {self.id}", facts)

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()
