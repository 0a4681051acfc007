"""Entries into conversations: who goes on from whom, by the entries' own links and never by the order of the file.

A conversation is a tree: a branch goes on from where it parted, and each request is compared with the one that it really follows.
A compaction begins an epoch; a turn is a person's message and the requests after it. Knows nothing of tokens or frames.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import astuple, replace

from loopkit.contract.records import Usage
from loopkit.logs.foreign.entries import Call, Compaction, Conversation, Entry, Link, Said, When
from loopkit.logs.foreign.text_source import Source

__all__ = ["Epoch", "Row", "Session", "Threads", "Turn"]

T = TypeVar("T", int, float)


class Turn(Struct, eq=False):
    """A person's message and all that followed; it has a number once a request followed."""

    time: When
    number: int = -1
    ended: When = None
    tool_calls: int = 0


class Row(Struct, eq=False):
    """A request, and where it stands."""

    call: Call
    previous: Row | None
    "The request that it goes on from; None for the first of an epoch."
    epoch: int
    turn: Turn | None
    sent: When
    kept_seconds: float | None
    "How long the provider keeps what stands in its cache after it."


class Epoch(Struct, eq=False):
    """A stretch of a conversation with one history."""

    number: int
    rows: list[Row]
    turns: list[Turn]
    said: list[tuple[Turn | None, Said]]
    started: When = None
    ended: When = None
    compacted: bool = False


class Session(Struct, eq=False):
    """A conversation."""

    id: str
    epochs: list[Epoch]
    parent: str | None = None
    last: Place | None = None


Place: TypeAlias = "tuple[Session, Epoch, Turn | None, Row | None, When]"
"""Where an entry stands, and so what goes on from it: the request before it, and when the model was last given something, which
right after an answer is not known."""

UNKNOWN = Call(session="", usage=Usage())
"Stands for a request that the log has lost: nothing is expected after it."


class Threads:
    """The conversations of one file.

    Parameters
    ----------
    entries : iterable of Entry
        In the order of the file.
    source : Source
        Takes what is left out.

    Examples
    --------
    >>> from pathlib import Path
    >>> first = Call(session="a", id="1", usage=Usage(prompt_tokens=9))
    >>> second = Call(session="a", id="2", parent="1", usage=Usage(prompt_tokens=12))
    >>> found = Threads([second, first], Source(Path("x.jsonl"), errors="raise"))
    >>> [row.call.usage.prompt_tokens for row in found.sessions["a"].epochs[0].rows]
    [9, 12]
    """

    def __init__(self, entries: Iterable[Entry], source: Source) -> None:
        self.sessions: dict[str, Session] = {}
        self._source = source
        self._places: dict[str | None, Place] = {}
        self._calls: dict[str, Row] = {}
        self._waiting: dict[str, list[Link]] = {}
        places = self._places
        for entry in entries:
            if isinstance(entry, Conversation):
                session = self._session(entry.session)
                session.parent = entry.parent or session.parent
                continue
            before, name = places.get(entry.parent), entry.id
            if before is None or before[0].id != entry.session or name in places or self._waiting:
                self._take(entry)
            else:  # as most do, it goes on from one that is there; what follows is most of the time that a log takes
                before[0].last = place = self._at(before, entry)
                if name is not None:
                    places[name] = place
        waiting = {each.id for entries in self._waiting.values() for each in entries}
        for parent in [parent for parent in self._waiting if parent not in waiting]:
            self._adopt(parent)
        while self._waiting:  # links in a ring
            self._adopt(next(iter(self._waiting)))
        for session in self.sessions.values():
            session.last = None  # it goes round in a ring to the session, and nobody needs it any more

    def _session(self, name: str) -> Session:
        session = self.sessions.get(name)
        if session is None:
            session = self.sessions[name] = Session(name, [])
        return session

    def _take(self, entry: Link, given: Place | None = None) -> None:
        """Put an entry, and what waited for it, in its place; it goes on from the one that is given, or from what it names."""
        before = given or self._before(entry)
        if before is None:
            return
        place = before[0].last = self._at(before, entry)
        if entry.id is None:
            return
        self._places[entry.id] = place
        if self._waiting:
            ready = self._waiting.pop(entry.id, [])[::-1]
            while ready:
                now = ready.pop()
                before = self._before(now)
                if before is not None:
                    place = before[0].last = self._at(before, now)
                    assert now.id is not None
                    self._places[now.id] = place
                    ready += self._waiting.pop(now.id, [])[::-1]

    def _before(self, entry: Link) -> Place | None:
        """The place that an entry goes on from; None where it is not known yet, or where the entry is."""
        place = self._places.get(entry.parent)
        session = self._session(entry.session)
        if entry.id is None:
            return place or session.last or self._begin(session)
        if entry.id in self._places:
            self._source.left_out("entries that stand in the file already")
            return None
        if entry.parent is None:
            return self._begin(session)
        if place is None:
            self._waiting.setdefault(entry.parent, []).append(entry)
        elif place[0] is not session:  # it goes on in another session: a resumed or a forked one
            session.parent = session.parent or place[0].id
            place = (session, self._begin(session)[1], None, *place[3:])
        return place

    def _begin(self, session: Session) -> Place:
        epoch = session.epochs[-1] if session.epochs else self._epoch(session)
        return session, epoch, None, None, None

    def _epoch(self, session: Session) -> Epoch:
        epoch = Epoch(len(session.epochs), [], [], [])
        session.epochs.append(epoch)
        return epoch

    def _adopt(self, parent: str) -> None:
        """Take entries whose parent is not in the file."""
        for entry in self._waiting.pop(parent):
            lost = not isinstance(entry, Compaction)
            if lost:
                self._source.left_out("links to entries that are not in the file")
            session, epoch, *_ = self._begin(self._session(entry.session))
            missing = Row(UNKNOWN, None, epoch.number, None, None, None) if lost else None
            if entry.id not in self._places:
                self._take(entry, (session, epoch, None, missing, None))

    def _at(self, before: Place, entry: Link) -> Place:
        session, epoch, turn, previous, time = before
        if epoch.started is None:
            epoch.started = entry.time
        epoch.ended = entry.time or epoch.ended
        if isinstance(entry, Call):
            return session, epoch, turn, self._row(before, entry), None
        if isinstance(entry, Said):
            if entry.asks:
                turn = Turn(entry.time)
            if turn is not None:
                turn.ended = entry.time or turn.ended
                turn.tool_calls += entry.results
            if entry.record is not None:
                epoch.said.append((turn, entry))
        elif isinstance(entry, Compaction):
            previous, turn = None, Turn(entry.time)
            if epoch.rows or epoch.said:
                epoch.compacted = True
                epoch = self._epoch(session)
                epoch.started = epoch.ended = entry.time
        return session, epoch, turn, previous, entry.time or time

    def _row(self, before: Place, call: Call) -> Row:
        """The row of a request: a new one, or the one that has it already."""
        _, epoch, turn, previous, time = before
        row = None if call.key is None else self._calls.get(call.key)
        if row is not None:
            row.call = _merged(row.call, call)
            row.kept_seconds = call.kept_seconds or row.kept_seconds
        else:
            kept = call.kept_seconds or (None if previous is None else previous.kept_seconds)
            row = Row(call, previous, epoch.number, turn, call.sent or time, kept)
            if call.key is not None:
                self._calls[call.key] = row
            if not call.copied:
                epoch.rows.append(row)
                if turn is not None and turn.number < 0:
                    epoch.turns.append(turn)
                    turn.number = len(epoch.turns)
        if turn is not None:
            turn.ended = call.time or turn.ended
        return row


def _merged(old: Call, new: Call) -> Call:
    """One request told twice: the larger of each count, and the later of what is known."""
    was, now = old.usage, new.usage
    if (
        (was.prompt_tokens, was.cached_tokens, was.cache_write_tokens)
        == (now.prompt_tokens, now.cached_tokens, now.cache_write_tokens)
        and (was.completion_tokens or 0) <= (now.completion_tokens or 0)
        and was.reasoning_tokens in (None, now.reasoning_tokens)
        and new.finish is not None
        and old.verdict is None
        and old.side is new.side
    ):
        return new  # as the last of them mostly is
    counts = [_larger(before, after) for before, after in zip(astuple(was), astuple(now))]
    facts = {name: getattr(new, name) or getattr(old, name) for name in ("time", "finish", "verdict", "model")}
    missed, side = _larger(old.missed, new.missed), old.side and new.side
    return replace(old, usage=Usage(**dict(zip(Usage.__struct_fields__, counts))), missed=missed, side=side, **facts)


def _larger(a: T | None, b: T | None) -> T | None:
    return b if a is None else a if b is None else max(a, b)
