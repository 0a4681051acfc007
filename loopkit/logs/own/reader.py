"""One log file, read once, into what the frames need of it.

Every line's end and ``crc`` were checked when it comes here; its kind, and the order of the kinds, are checked here. JSON is
decoded of the lines whose numbers are used, never of messages: a line in its one form has kind and time at fixed places. Knows
nothing of homes, of dataframes, or of what was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Raw
from numpy.typing import NDArray

from loopkit.contract.records import CacheLoss, EpochEnd, ReplayRecord, SessionStart, UsageRecord
from loopkit.errors import BaselineError, TornLog
from loopkit.logs.frames.columns import REQUESTS, ColumnBuilder, Part, loss_columns, times
from loopkit.logs.own.checksums import Lines, sound_lines
from loopkit.logs.own.error_lines import session_dir, times_named, torn_at
from loopkit.logs.own.headers import ASSISTANT, END, LOSS, RESULT, START, USAGE, USER, heads
from loopkit.logs.own.impossible_reuse import impossible_in, reported_in
from loopkit.logs.own.messages import read_messages, read_requests
from loopkit.logs.problems import Errors, Problem
from loopkit.session.concurrent_reads import is_locked, retry_unfinished
from loopkit.session.store import read_baseline

__all__ = ["read_epoch", "read_replay"]

T = TypeVar("T")

TIME = "S27"
"A time as it stands in a line."

CARRIED = re.compile(b"[uat]*")
GROUPS = re.compile(b"(?:u?agl?t*+)*+")
FACTS = np.isin(np.arange(256), (START, LOSS, END))
UNFINISHED = (b"u", b"ua", b"a")

MANY = 200
"So many requests are decoded at once: fewer cost more each, and more are joined in memory that the system has to give each time."


_usage = msgspec.json.Decoder(UsageRecord)
_fact = msgspec.json.Decoder(SessionStart | CacheLoss | EpochEnd)
_replay = msgspec.json.Decoder(ReplayRecord)


def _decoded(decoder: msgspec.json.Decoder[T], path: Path, lines: Lines, which: NDArray[np.intp]) -> Iterator[list[T]]:
    """The records of some of the lines, many at once."""
    bodies = lines.bodies(which)
    for first in range(0, len(bodies), MANY):
        some = bodies[first : first + MANY]
        records: list[T] = []
        with suppress(ValueError, RecursionError):
            records = decoder.decode_lines(b"}\n".join(some) + b"}")
        if len(records) != len(some):  # it takes several values in a line, too
            at, why = next((at, why) for at, body in enumerate(some, first) if (why := _why_not(decoder, body)))
            raise torn_at(path, lines.number - 1 + int(which[at]), why)
        yield records


def _why_not(decoder: msgspec.json.Decoder[T], body: memoryview) -> str | None:
    try:
        decoder.decode(bytes(body) + b"}")
    except ValueError as error:
        return str(error)
    except RecursionError:
        return "nested too deep"
    return None


class _Pass:
    """What one pass over a session's log has seen."""

    def __init__(self, path: Path, *, cut: bool) -> None:
        self.path = path
        self.cut = cut
        self.kinds = bytearray()
        self.start: SessionStart | None = None
        self.end: EpochEnd | None = None
        self.usage = ColumnBuilder(REQUESTS)
        self.losses: list[CacheLoss] = []
        self.reported: dict[int, Raw] = {}
        "What a server said, by request, where it does not add up."
        self._told = 0
        self.asked: list[NDArray[np.bytes_]] = []
        "Times of the user records."
        self.before: list[NDArray[np.bytes_]] = []
        "Times of the record before each user record, and before the epoch's end."
        self.last = np.zeros(1, TIME)
        "Times of the last three records."

    def may_end_anywhere(self) -> bool:
        """Whether an end inside a group is none of its own fault: a writer is at it, or what follows is not read."""
        return self.cut or is_locked(self.path.parent)

    def take(self, lines: Lines) -> None:
        kinds, moments = heads(lines)
        if not kinds.all():
            why = "it does not begin with a known kind and a time"
            raise torn_at(self.path, lines.number - 1 + int(kinds.argmin()), why)
        self.kinds += kinds.tobytes()
        asked = kinds == USER
        self.asked.append(moments[asked])
        self.before.append(np.concatenate((self.last[-1:], moments[:-1]))[asked | (kinds == END)])
        self.last = np.concatenate((self.last, moments[-3:]))[-3:]
        for requests in _decoded(_usage, self.path, lines, (kinds == USAGE).nonzero()[0]):
            self.usage.add(requests)
            self.reported |= reported_in(requests, self._told)
            self._told += len(requests)
        for facts in _decoded(_fact, self.path, lines, FACTS.take(kinds).nonzero()[0]):
            for fact in facts:
                if isinstance(fact, CacheLoss):
                    self.losses.append(fact)
                elif isinstance(fact, EpochEnd):
                    self.end = fact
                else:
                    self.start = fact


def read_epoch(path: Path, *, lines: int | None = None, errors: Errors = "raise") -> Part | None:
    """Read the log of one epoch of a session.

    Parameters
    ----------
    path : Path
        ``<session directory>/<epoch>.jsonl``
    lines : int, optional
        How many of the first lines to read, up to their last whole group; all where not given.
    errors : "raise" or "report"
        Whether messages are refused, or go without the system message, where the baseline is not the one that was sent; that is
        one of the part's problems, for no count rests on it.

    Returns
    -------
    Part or None
        None where a writer is still at the first record.

    Raises
    ------
    TornLog
        With file and line.
    """
    return retry_unfinished(path.parent, lambda: _read_epoch(path, lines, errors))


def _read_epoch(path: Path, limit: int | None, errors: Errors) -> Part | None:
    seen = _Pass(path, cut=limit is not None)
    with times_named(path):
        for lines in _lines(path, limit):
            seen.take(lines)
        return None if not seen.kinds and seen.may_end_anywhere() else _part(seen, errors)


def _part(seen: _Pass, errors: Errors) -> Part:
    path = seen.path
    open_end = seen.cut and seen.kinds[-1:] == b"g"
    start, begin, asked, before = _ordered(seen)
    kinds = np.frombuffer(bytes(seen.kinds), np.uint8)
    of_requests = (kinds == USAGE).nonzero()[0]
    goes_on = int(kinds.size > begin and kinds[begin] == ASSISTANT)
    users = (kinds[begin:] == USER).nonzero()[0] + begin
    skipped = asked.size - users.size

    usage = seen.usage.arrays()
    lossy = of_requests[kinds[np.minimum(of_requests + 1, kinds.size - 1)] == LOSS]
    losses = loss_columns(seen.losses, of_requests.searchsorted(lossy))
    lost = np.where((usage["cached_tokens"] >= 0) & ((usage["expected_tokens"] >= 0) | (usage["shortfall"] != None)), 0, -1)  # noqa: E711
    lost[losses["row"]] = losses["lost_tokens"]
    if open_end and usage["cached_tokens"][-1] < usage["expected_tokens"][-1]:
        lost[-1] = -1  # its loss stands behind the cut, if there is one
    usage["lost_tokens"] = lost
    usage["turn"] = users.searchsorted(of_requests) + goes_on
    usage["new_bytes"] = _growth(usage["request_bytes"])

    first, last = np.array([start.time], TIME), seen.last[-1:]
    ends = before[skipped:] if seen.end else np.concatenate((before[skipped:], last))
    moments = times(np.concatenate((first, asked[skipped:], ends, last)))
    began = moments[1 - goes_on : 1 + users.size]
    results = users.searchsorted((kinds[begin:] == RESULT).nonzero()[0] + begin) + goes_on
    turns = {
        "turn": np.arange(1, began.size + 1),
        "time": began,
        "ended": moments[-1 - began.size : -1],
        "tool_calls": np.bincount(results, minlength=began.size + 1)[1:],
    }
    size, strange = _baseline(path.parent, start)
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
        baseline_bytes=size,
        started=moments[0],
        ended=moments[-1],
        end_reason=None if seen.end is None else seen.end.reason,
        usage=usage,
        losses=losses,
        problems=(*strange, *impossible_in(path, start.server.engine, usage, of_requests, seen.reported)),
        turns=turns,
        messages=partial(read_messages, path, kinds.size, system=errors == "raise" or not strange),
        requests=partial(read_requests, path, kinds.size),
    )


def _baseline(directory: Path, start: SessionStart) -> tuple[int | None, tuple[Problem, ...]]:
    """The size of the baseline that an epoch was written under, or what is wrong with the file."""
    try:
        return len(read_baseline(directory, start)), ()
    except BaselineError as error:
        return None, (Problem(str(error.path), None, None, "baseline", error.why),)


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
    return retry_unfinished(path.parent, lambda: _read_replay(path, lines))


def _read_replay(path: Path, limit: int | None) -> Part:
    usage = ColumnBuilder({**REQUESTS, "lost_tokens": "count"})
    losses: list[ReplayRecord] = []
    rows: list[int] = []
    first: ReplayRecord | None = None
    reported: dict[int, Raw] = {}
    seen = 0
    with times_named(path):
        for records in chain.from_iterable(_replayed(path, lines) for lines in _lines(path, limit)):
            first = first or records[0]
            for row, record in enumerate(records, seen):
                if (record.session, record.variant, record.request) != (first.session, first.variant, row + 1):
                    raise torn_at(path, row, "it is not the next request of the replay that the first line began")
                if record.lost_tokens:
                    if not _says_all(record):
                        raise torn_at(path, row, "tokens were lost, and it does not say of how many or why")
                    losses.append(record)
                    rows.append(row)
            usage.add(records)
            reported |= reported_in(records, seen)
            seen += len(records)
        columns = usage.arrays()
    if first is None:
        raise torn_at(path, 0, "there is no whole record", at_end=True)
    columns["turn"] = np.full(seen, -1)
    columns["new_bytes"] = _growth(columns["request_bytes"])
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


def _says_all(loss: ReplayRecord) -> bool:
    """Whether a request that lost tokens has all the members of a loss."""
    why = (loss.cause, loss.certainty, loss.fixable_by, loss.location, loss.evidence)
    return UNSET not in why and None not in (loss.expected_tokens, loss.usage.cached_tokens)


def _replayed(path: Path, lines: Lines) -> Iterator[list[ReplayRecord]]:
    opened = np.frombuffer(lines.data, np.uint8).take(lines.starts) == ord("{")
    if not opened.all():  # many at once, a line that goes on with the record of the line before would be taken
        raise torn_at(path, lines.number - 1 + int(opened.argmin()), "no record begins with it")
    return _decoded(_replay, path, lines, np.arange(lines.starts.size))


def _growth(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each one less the one before."""
    grown = sizes.copy()
    grown[1:] -= sizes[:-1]
    return grown


class _Ordered(NamedTuple):
    """What is left when a group that a writer is still at is dropped."""

    start: SessionStart
    begin: int
    "Index behind the carried records."
    asked: NDArray[np.bytes_]
    before: NDArray[np.bytes_]


def _ordered(seen: _Pass) -> _Ordered:
    """Check the order of the kinds."""
    path, kinds, start = seen.path, seen.kinds, seen.start
    asked, before = (np.concatenate([seen.last[:0], *moments]) for moments in (seen.asked, seen.before))
    if start is None or kinds[0] != START:
        why = "the first record is not a session_start" if kinds else "there is no whole record"
        raise torn_at(path, 0, why, at_end=not kinds)
    if start.session != path.parent.name or str(start.epoch) != path.stem:
        raise torn_at(path, 0, f"it says that it is epoch {start.epoch} of session {start.session}")
    begin = 1 + (0 if start.carried is UNSET else start.carried.records)
    found = CARRIED.match(kinds, 1, min(begin, len(kinds)))
    assert found is not None
    if found.end() == len(kinds) < begin and seen.may_end_anywhere():
        del kinds[1:]
        seen.last = np.array([start.time], TIME)
        return _Ordered(start, 1, asked[:0], before[:0])
    if found.end() < begin:
        raise torn_at(path, found.end(), f"{begin - 1} carried records should follow the session_start, not {found.end() - 1}")
    groups = GROUPS.match(kinds, begin)
    assert groups is not None
    rest = bytes(kinds[groups.end() :])
    if rest in UNFINISHED and seen.may_end_anywhere():
        del kinds[groups.end() :]
        seen.last = seen.last[: -len(rest)]
        if rest[0] == USER:
            asked, before = asked[:-1], before[:-1]
    elif rest in UNFINISHED:
        raise torn_at(path, groups.end(), "the last group of records is unfinished", at_end=True)
    elif rest not in (b"", b"e"):
        wrong = next(length for length in range(len(rest)) if rest[: length + 1] not in (*UNFINISHED, b"e"))
        raise torn_at(path, groups.end() + wrong, "this record cannot stand here")
    return _Ordered(start, begin, asked, before)


def _lines(path: Path, limit: int | None = None) -> Iterator[Lines]:
    """The log's lines, checked; up to so many, and up to an unfinished line where a writer is at work."""
    try:
        for lines in sound_lines(path, session_dir=session_dir(path)):
            left = None if limit is None else limit + 1 - lines.number
            yield lines.first(left)
            if left is not None and left <= lines.starts.size:
                return
    except TornLog as torn:
        if not torn.at_end or not is_locked(path.parent):
            raise
