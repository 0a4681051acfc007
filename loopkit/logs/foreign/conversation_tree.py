"""Trees of conversations, built from the links between entries.

Entries may be in any order in the file. Each entry continues from its parent entry, so a request is compared with the request
before it in its own branch. A compaction starts an epoch. A turn is a person's message and the requests after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import astuple, replace

from loopkit.contract.records import Usage
from loopkit.logs.foreign.entries import CompactionEntry, ConversationStart, Entry, Link, LogTime, MessageEntry, RequestEntry
from loopkit.logs.foreign.text_source import TextSource

__all__ = ["ConversationTrees", "LoggedEpoch", "LoggedSession", "LoggedTurn", "RequestRow"]

T = TypeVar("T", int, float)


class LoggedTurn(Struct, eq=False):
    """A person's message and everything after it. ``number`` is -1 until the first request of the turn."""

    time: LogTime
    number: int = -1
    ended: LogTime = None
    tool_calls: int = 0


class RequestRow(Struct, eq=False):
    """A request and its place in the conversation."""

    request: RequestEntry
    previous: RequestRow | None
    "The request before this one in its branch. None for the first request of an epoch."
    epoch: int
    turn: LoggedTurn | None
    sent: LogTime
    kept_seconds: float | None
    "Time to live of the cached prefix after this request, in seconds."


class LoggedEpoch(Struct, eq=False):
    """The part of a conversation between two compactions, which replace the history by a summary."""

    number: int
    rows: list[RequestRow]
    turns: list[LoggedTurn]
    messages: list[tuple[LoggedTurn | None, MessageEntry]]
    started: LogTime = None
    ended: LogTime = None
    compacted: bool = False


class LoggedSession(Struct, eq=False):
    """A conversation and its epochs."""

    id: str
    epochs: list[LoggedEpoch]
    parent: str | None = None
    last: Position | None = None


Position: TypeAlias = "tuple[LoggedSession, LoggedEpoch, LoggedTurn | None, RequestRow | None, LogTime]"
"""Place of an entry: its session, epoch and turn, the request before it, and the time of the last input to the model.

The time is None directly after a response."""

LOST_REQUEST = RequestEntry(session="", usage=Usage())
"Placeholder for a request that is missing from the log. The request after it has no expected tokens."


class ConversationTrees:
    """The conversations of one file, built from its entries. ``sessions`` has them by name.

    Parameters
    ----------
    entries : iterable of Entry
        Entries in file order.
    source : TextSource
        The file. Entries that are left out are counted as its problems.

    Examples
    --------
    >>> from pathlib import Path
    >>> first = RequestEntry(session="a", id="1", usage=Usage(prompt_tokens=9))
    >>> second = RequestEntry(session="a", id="2", parent="1", usage=Usage(prompt_tokens=12))
    >>> found = ConversationTrees([second, first], TextSource(Path("x.jsonl"), errors="raise"))
    >>> [row.request.usage.prompt_tokens for row in found.sessions["a"].epochs[0].rows]
    [9, 12]
    """

    def __init__(self, entries: Iterable[Entry], source: TextSource) -> None:
        self.sessions: dict[str, LoggedSession] = {}
        self._source = source
        self._positions: dict[str | None, Position] = {}
        self._rows_by_key: dict[str, RequestRow] = {}
        self._waiting: dict[str, list[Link]] = {}
        positions = self._positions
        for entry in entries:
            if isinstance(entry, ConversationStart):
                session = self._session(entry.session)
                session.parent = entry.parent or session.parent
                continue
            before, name = positions.get(entry.parent), entry.id
            if before is None or before[0].id != entry.session or name in positions or self._waiting:
                self._add(entry)
            else:  # the common case, kept short because it takes most of the time of a load
                before[0].last = position = self._position_after(before, entry)
                if name is not None:
                    positions[name] = position
        waiting = {each.id for entries in self._waiting.values() for each in entries}
        for parent in [parent for parent in self._waiting if parent not in waiting]:
            self._add_orphans(parent)
        while self._waiting:  # only cycles remain
            self._add_orphans(next(iter(self._waiting)))
        for session in self.sessions.values():
            session.last = None  # breaks the reference cycle with the session

    def _session(self, name: str) -> LoggedSession:
        session = self.sessions.get(name)
        if session is None:
            session = self.sessions[name] = LoggedSession(name, [])
        return session

    def _add(self, entry: Link, parent: Position | None = None) -> None:
        """Add an entry, and the entries that wait for it as their parent. `parent` replaces the parent that the entry names."""
        ready = [entry]
        while ready:
            entry = ready.pop()
            before, parent = parent or self._parent_position(entry), None
            if before is not None:
                position = before[0].last = self._position_after(before, entry)
                if entry.id is not None:
                    self._positions[entry.id] = position
                    ready += self._waiting.pop(entry.id, [])[::-1]

    def _parent_position(self, entry: Link) -> Position | None:
        """Return the position of an entry's parent. None if the parent is not read yet, or the entry's id occurred before."""
        position = self._positions.get(entry.parent)
        session = self._session(entry.session)
        if entry.id is None:
            return position or session.last or self._start(session)
        if entry.id in self._positions:
            self._source.count_left_out("entries whose id occurs earlier in the file")
            return None
        if entry.parent is None:
            return self._start(session)
        if position is None:
            self._waiting.setdefault(entry.parent, []).append(entry)
        elif position[0] is not session:  # the parent is in another session, which this one resumes or forks
            session.parent = session.parent or position[0].id
            position = (session, self._start(session)[1], None, *position[3:])
        return position

    def _start(self, session: LoggedSession) -> Position:
        epoch = session.epochs[-1] if session.epochs else self._new_epoch(session)
        return session, epoch, None, None, None

    def _new_epoch(self, session: LoggedSession) -> LoggedEpoch:
        epoch = LoggedEpoch(len(session.epochs), [], [], [])
        session.epochs.append(epoch)
        return epoch

    def _add_orphans(self, parent: str) -> None:
        """Add the entries whose parent has this id, which is not in the file."""
        for entry in self._waiting.pop(parent):
            lost = not isinstance(entry, CompactionEntry)
            if lost:
                self._source.count_left_out("entries whose parent is not in the file")
            session, epoch, *_ = self._start(self._session(entry.session))
            missing = RequestRow(LOST_REQUEST, None, epoch.number, None, None, None) if lost else None
            if entry.id not in self._positions:
                self._add(entry, (session, epoch, None, missing, None))

    def _position_after(self, before: Position, entry: Link) -> Position:
        session, epoch, turn, previous, time = before
        if epoch.started is None:
            epoch.started = entry.time
        epoch.ended = entry.time or epoch.ended
        if isinstance(entry, RequestEntry):
            return session, epoch, turn, self._row(before, entry), None
        if isinstance(entry, MessageEntry):
            if entry.starts_turn:
                turn = LoggedTurn(entry.time)
            if turn is not None:
                turn.ended = entry.time or turn.ended
                turn.tool_calls += entry.results
            if entry.record is not None:
                epoch.messages.append((turn, entry))
        elif isinstance(entry, CompactionEntry):
            previous, turn = None, LoggedTurn(entry.time)
            if epoch.rows or epoch.messages:
                epoch.compacted = True
                epoch = self._new_epoch(session)
                epoch.started = epoch.ended = entry.time
        return session, epoch, turn, previous, entry.time or time

    def _row(self, before: Position, request: RequestEntry) -> RequestRow:
        """Return the row of a request: a new row, or the existing row if a request with the same key was added before."""
        _, epoch, turn, previous, time = before
        row = None if request.key is None else self._rows_by_key.get(request.key)
        if row is not None:
            row.request = _merge(row.request, request)
            row.kept_seconds = request.kept_seconds or row.kept_seconds
        else:
            kept = request.kept_seconds or (None if previous is None else previous.kept_seconds)
            row = RequestRow(request, previous, epoch.number, turn, request.sent or time, kept)
            if request.key is not None:
                self._rows_by_key[request.key] = row
            if not request.is_copy:
                epoch.rows.append(row)
                if turn is not None and turn.number < 0:
                    epoch.turns.append(turn)
                    turn.number = len(epoch.turns)
        if turn is not None:
            turn.ended = request.time or turn.ended
        return row


def _merge(old: RequestEntry, new: RequestEntry) -> RequestEntry:
    """Merge two entries of one request. Keep the larger of each count, and of the other facts the later known value."""
    was, now = old.usage, new.usage
    if (
        (was.prompt_tokens, was.cached_tokens, was.cache_write_tokens)
        == (now.prompt_tokens, now.cached_tokens, now.cache_write_tokens)
        and (was.completion_tokens or 0) <= (now.completion_tokens or 0)
        and was.reasoning_tokens in (None, now.reasoning_tokens)
        and new.finish_reason is not None
        and old.verdict is None
        and old.is_side_chain is new.is_side_chain
    ):
        return new  # the usual case: the last entry has all facts
    counts = [_larger(before, after) for before, after in zip(astuple(was), astuple(now))]
    facts = {name: getattr(new, name) or getattr(old, name) for name in ("time", "finish_reason", "verdict", "model")}
    missed, side = _larger(old.missed_tokens, new.missed_tokens), old.is_side_chain and new.is_side_chain
    return replace(
        old, usage=Usage(**dict(zip(Usage.__struct_fields__, counts))), missed_tokens=missed, is_side_chain=side, **facts
    )


def _larger(a: T | None, b: T | None) -> T | None:
    return b if a is None else a if b is None else max(a, b)
