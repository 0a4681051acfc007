"""One log file, read once, into what the frames need of it.

The journal checks every line's end and ``crc``; its kind, and the order of the kinds, are checked here. JSON is decoded of the
lines whose numbers are used, never of messages: a line in its one form has kind and time at fixed places. Knows nothing of homes,
of dataframes, or of what was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import compress, count, islice
from operator import itemgetter
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Raw

from loopkit.errors import TornLog
from loopkit.ids import Timestamp
from loopkit.logs.again import read_messages, read_requests
from loopkit.logs.columns import COUNT, REQUESTS, Growing, Part, loss_columns, times
from loopkit.logs.impossible import impossible_in, offset_of, reported_in
from loopkit.records import CacheLoss, EpochEnd, ReplayRecord, SessionStart, UsageRecord
from loopkit.session.journal import Block, body_of, checked_blocks
from loopkit.session.live import is_locked, settled

__all__ = ["read_epoch", "read_replay"]

T = TypeVar("T")
T2 = TypeVar("T2")

START, USER, ASSISTANT, RESULT, USAGE, LOSS, END = b"suatgle"
KINDS = dict(
    zip(("session_start", "user", "assistant", "tool_result", "usage", "cache_loss", "epoch_end"), b"suatgle", strict=True)
)
HEAD = itemgetter(slice(len('{"kind":"user","time":"')))
"So many bytes of a line tell its kind for certain, and are the same in every line of the kind."
CODES = {HEAD(f'{{"kind":"{kind}","time":"'.encode()): code for kind, code in KINDS.items()}
TIMED = itemgetter(slice(len('{"kind":"session_start","time":"') + 26))
"So many bytes of a line hold its time."
CARRIED = re.compile(b"[uat]*")
GROUPS = re.compile(b"(?:u?agl?t*+)*+")
UNFINISHED = (b"u", b"ua", b"a")

MANY = 256
"So many requests are decoded at once: fewer cost more each, and more would wake the garbage collector."


_usage = msgspec.json.Decoder(UsageRecord)
_fact = msgspec.json.Decoder(SessionStart | CacheLoss | EpochEnd)
_replay = msgspec.json.Decoder(ReplayRecord)


@cache
def _chosen(kinds: bytes) -> bytes:
    """A table for ``bytes.translate`` that marks these kinds."""
    return bytes(code in kinds for code in range(256))


class _Lines(Generic[T]):
    """Lines of some kinds that wait to be decoded."""

    def __init__(self, decoder: msgspec.json.Decoder[T], kinds: bytes) -> None:
        self._decoder = decoder
        self._chosen = _chosen(kinds)
        self._decoded = 0
        self.waiting: list[bytes] = []

    def of(self, lines: Iterable[T2], kinds: bytes | bytearray) -> Iterator[T2]:
        """Those of ``lines`` that are of these kinds."""
        return compress(lines, kinds.translate(self._chosen))

    def decode(self, path: Path, kinds: bytes | bytearray) -> list[T]:
        """Decode them; ``kinds`` are those of all lines so far, to name the one that cannot be."""
        if not self.waiting:
            return []
        try:
            decoded = list(self._decoder.decode_lines(b"}\n".join(map(body_of, self.waiting)) + b"}"))
        except (ValueError, RecursionError):
            at, why = next(filter(None, map(self._fault, count(), self.waiting)))
            raise _torn(path, next(islice(self.of(count(), kinds), self._decoded + at, None)), why) from None
        self._decoded += len(decoded)
        self.waiting = []
        return decoded

    def _fault(self, at: int, line: bytes) -> tuple[int, str] | None:
        try:
            self._decoder.decode(body_of(line) + b"}")
        except ValueError as error:
            return at, str(error)
        except RecursionError:
            return at, "nested too deep"
        return None


class _Pass:
    """What one pass over a session's log has seen."""

    def __init__(self, path: Path, *, cut: bool) -> None:
        self.path = path
        self.cut = cut
        self.kinds = bytearray()
        self.start: SessionStart | None = None
        self.end: EpochEnd | None = None
        self.usage = Growing(REQUESTS)
        self.losses: list[CacheLoss] = []
        self.reported: dict[int, Raw] = {}
        "What a server said, by request, where it does not add up."
        self._told = 0
        self.asked: list[bytes] = []
        "Head of each user record; the time stands in it."
        self.before: list[bytes] = []
        "Head of the record before each user record, and before the epoch's end."
        self.last: list[bytes] = []
        "Heads of the last three records."
        self._requests = _Lines(_usage, b"g")
        self._facts = _Lines(_fact, b"sle")

    def may_end_anywhere(self) -> bool:
        """Whether an end inside a group is none of its own fault: a writer is at it, or what follows is not read."""
        return self.cut or is_locked(self.path.parent)

    def take(self, block: Block) -> None:
        lines = block.lines
        try:
            kinds = bytes(map(CODES.__getitem__, map(HEAD, lines)))
        except KeyError:
            at = next(at for at, line in enumerate(lines) if HEAD(line) not in CODES)
            raise _torn(self.path, block.line + at - 1, "it does not begin with a known kind and a time") from None
        self.asked += map(TIMED, compress(lines, kinds.translate(_chosen(b"u"))))
        if _chosen(b"ue")[kinds[0]]:
            self.before += self.last[-1:]
        self.before += map(TIMED, compress(lines, kinds[1:].translate(_chosen(b"ue"))))
        self.last = [*self.last, *map(TIMED, lines[-3:])][-3:]
        self.kinds += kinds
        self._requests.waiting += self._requests.of(lines, kinds)
        self._facts.waiting += self._facts.of(lines, kinds)
        if len(self._requests.waiting) >= MANY:
            self.decode()

    def decode(self) -> None:
        """Decode the lines that wait; many at once cost less."""
        requests = self._requests.decode(self.path, self.kinds)
        self.usage.add(requests)
        self.reported |= reported_in(requests, self._told)
        self._told += len(requests)
        for fact in self._facts.decode(self.path, self.kinds):
            if isinstance(fact, CacheLoss):
                self.losses.append(fact)
            elif isinstance(fact, EpochEnd):
                self.end = fact
            else:
                self.start = fact


def read_epoch(path: Path, *, lines: int | None = None) -> Part | None:
    """Read the log of one epoch of a session.

    Parameters
    ----------
    path : Path
        ``<session directory>/<epoch>.jsonl``
    lines : int, optional
        How many of the first lines to read, up to their last whole group; all where not given.

    Returns
    -------
    Part or None
        None where a writer is still at the first record.

    Raises
    ------
    TornLog
        With file and line.
    """
    return settled(path.parent, lambda: _read_epoch(path, lines))


def _read_epoch(path: Path, limit: int | None) -> Part | None:
    seen = _Pass(path, cut=limit is not None)
    with _times_named(path):
        for block in _blocks(path, limit):
            seen.take(block)
        seen.decode()
        return None if not seen.kinds and seen.may_end_anywhere() else _part(seen)


def _part(seen: _Pass) -> Part:
    path = seen.path
    open_end = seen.cut and seen.kinds[-1:] == b"g"
    start, begin = _check_order(seen)
    kinds = np.frombuffer(bytes(seen.kinds), np.uint8)
    of_requests = np.flatnonzero(kinds == USAGE)
    goes_on = kinds.size > begin and kinds[begin] == ASSISTANT
    users = np.flatnonzero(kinds[begin:] == USER) + begin
    skipped = len(seen.asked) - users.size

    usage = seen.usage.arrays()
    lossy = of_requests[kinds[np.minimum(of_requests + 1, kinds.size - 1)] == LOSS]
    losses = loss_columns(seen.losses, np.searchsorted(of_requests, lossy))
    lost = np.where((usage["cached_tokens"] >= 0) & ((usage["expected_tokens"] >= 0) | (usage["shortfall"] != None)), 0, -1)  # noqa: E711
    lost[losses["row"]] = losses["lost_tokens"]
    if open_end and usage["cached_tokens"][-1] < usage["expected_tokens"][-1]:
        lost[-1] = -1  # its loss stands behind the cut, if there is one
    usage["lost_tokens"] = lost
    usage["turn"] = np.searchsorted(users, of_requests) + goes_on
    usage["new_bytes"] = np.diff(usage["request_bytes"], prepend=0)

    ends = seen.before[skipped:] + ([] if seen.end else seen.last[-1:])
    results = np.searchsorted(users, np.flatnonzero(kinds[begin:] == RESULT) + begin) + goes_on
    asked = times([*([start.time] if goes_on else []), *_times_in(seen.asked[skipped:])])
    turns = {
        "turn": np.arange(1, asked.size + 1),
        "time": asked,
        "ended": times(_times_in(ends[len(ends) - asked.size :])),
        "tool_calls": np.bincount(results, minlength=asked.size + 1)[1:],
    }
    started, ended = times([start.time.encode(), *_times_in(seen.last[-1:])])
    baseline = path.with_suffix(".baseline.json")
    return Part(
        source="loopkit",
        path=str(path.parent),
        session=start.session,
        epoch=start.epoch,
        parent=None if start.forked is UNSET else start.forked.session,
        model=start.server.model,
        engine=start.server.engine,
        slot=start.slot,
        baseline_sha256=start.baseline_sha256,
        baseline_bytes=baseline.stat().st_size if baseline.is_file() else None,
        started=started,
        ended=ended,
        end_reason=None if seen.end is None else seen.end.reason,
        usage=usage,
        losses=losses,
        problems=impossible_in(path, start.server.engine, usage, of_requests, seen.reported),
        turns=turns,
        messages=partial(read_messages, path, kinds.size),
        requests=partial(read_requests, path, kinds.size),
    )


def read_replay(path: Path, *, lines: int | None = None) -> Part:
    """Read a replay log, ``<home>/replays/<id>.jsonl``.

    Parameters
    ----------
    path : Path
        The log.
    lines : int, optional
        How many of the first lines to read; all where not given.

    Raises
    ------
    TornLog
        With file and line.
    """
    return settled(path.parent, lambda: _read_replay(path, lines))


def _read_replay(path: Path, limit: int | None) -> Part:
    lines = _Lines(_replay, b"r")
    usage = Growing({**REQUESTS, "lost_tokens": COUNT})
    losses: list[ReplayRecord] = []
    rows: list[int] = []
    first: ReplayRecord | None = None
    reported: dict[int, Raw] = {}
    seen = 0
    with _times_named(path):
        for block in _blocks(path, limit):
            lines.waiting = block.lines
            records = lines.decode(path, b"r" * (seen + len(lines.waiting)))
            first = first or records[0]
            for row, record in enumerate(records, seen):
                if (record.session, record.variant, record.request) != (first.session, first.variant, row + 1):
                    raise _torn(path, row, "it is not the next request of the replay that the first line began")
                if record.lost_tokens:
                    losses.append(record)
                    rows.append(row)
            usage.add(records)
            reported |= reported_in(records, seen)
            seen += len(records)
        columns = usage.arrays()
    if first is None:
        raise _torn(path, 0, "there is no whole record", at_end=True)
    columns["turn"] = np.full(seen, -1)
    columns["new_bytes"] = np.diff(columns["request_bytes"], prepend=0)
    return Part(
        source="replay",
        path=str(path),
        session=path.stem,
        parent=first.session,
        variant=first.variant,
        model=first.model,
        engine=first.engine,
        started=columns["time"][0],
        ended=columns["time"][-1],
        usage=columns,
        losses=loss_columns(losses, np.array(rows, np.intp)),
        problems=impossible_in(path, first.engine, columns, np.arange(seen), reported),
    )


def _check_order(seen: _Pass) -> tuple[SessionStart, int]:
    """Check the order of the kinds; drop a group that a writer is still at.

    Returns
    -------
    tuple of (SessionStart, int)
        The first record, and the index behind the carried ones.
    """
    path, kinds, start = seen.path, seen.kinds, seen.start
    if start is None or kinds[0] != START:
        why = "the first record is not a session_start" if kinds else "there is no whole record"
        raise _torn(path, 0, why, at_end=not kinds)
    if start.session != path.parent.name or str(start.epoch) != path.stem:
        raise _torn(path, 0, f"it says that it is epoch {start.epoch} of session {start.session}")
    begin = 1 + (0 if start.carried is UNSET else start.carried.records)
    found = CARRIED.match(kinds, 1, min(begin, len(kinds)))
    assert found is not None
    if found.end() == len(kinds) < begin and seen.may_end_anywhere():
        del kinds[1:], seen.asked[:], seen.before[:]
        seen.last[:] = [f'"time":"{start.time}'.encode()]
        return start, 1
    if found.end() < begin:
        raise _torn(path, found.end(), f"{begin - 1} carried records should follow the session_start, not {found.end() - 1}")
    groups = GROUPS.match(kinds, begin)
    assert groups is not None
    rest = bytes(kinds[groups.end() :])
    if rest in UNFINISHED and seen.may_end_anywhere():
        del kinds[groups.end() :], seen.last[-len(rest) :]
        if rest[0] == USER:
            del seen.asked[-1], seen.before[-1]
    elif rest in UNFINISHED:
        raise _torn(path, groups.end(), "the last group of records is unfinished", at_end=True)
    elif rest not in (b"", b"e"):
        wrong = next(length for length in range(len(rest)) if rest[: length + 1] not in (*UNFINISHED, b"e"))
        raise _torn(path, groups.end() + wrong, "this record cannot stand here")
    return start, begin


def _blocks(path: Path, limit: int | None = None) -> Iterator[Block]:
    """The log's lines, checked; up to so many, and up to an unfinished line where a writer is at work."""
    try:
        for block in checked_blocks(path, session_dir=_session_dir(path), size=1 << 17):
            left = None if limit is None else limit + 1 - block.line
            yield block._replace(lines=block.lines[:left])
            if left is not None and left <= len(block.lines):
                return
    except TornLog as torn:
        if not torn.at_end or not is_locked(path.parent):
            raise


@contextmanager
def _times_named(path: Path) -> Iterator[None]:
    """Times are read many at once; where one is none, name its line."""
    try:
        yield
    except ValueError as error:
        with path.open("rb") as file:
            for index, line in enumerate(file):
                try:
                    Timestamp(line.split(b'"time":"')[1][:27].decode())
                except ValueError:
                    raise _torn(path, index, "its time is no moment") from None
        raise error


def _times_in(heads: Sequence[bytes]) -> list[bytes]:
    """What begins with the time in each head."""
    return b"".join(heads).split(b'"time":"')[1:]


def _session_dir(path: Path) -> Path | None:
    return None if path.parent.name == "replays" else path.parent


def _torn(path: Path, index: int, why: str, *, at_end: bool = False) -> TornLog:
    """Name the line of this index; where it begins is looked up, for this is rare."""
    where = _session_dir(path)
    return TornLog(str(path), index + 1, offset_of(path, index), why, None if where is None else str(where), at_end=at_end)
