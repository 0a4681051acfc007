"""Reading and checking of session logs, ``<session directory>/<epoch>.jsonl``.

Checks the kind of every record and the order of the kinds. Kind and time are at fixed positions in a line, so JSON is decoded
only for usage, cache losses, and the first and last record.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, Raw
from numpy.typing import NDArray

from loopkit.contract.records import CacheLoss, EpochEnd, SessionStart, UsageRecord
from loopkit.errors import BaselineError
from loopkit.logs.frames.columns import REQUESTS, ColumnBuilder, Part, loss_columns, times
from loopkit.logs.own.checksums import Lines
from loopkit.logs.own.decoding import decode_lines, growth, read_lines
from loopkit.logs.own.error_lines import locate_invalid_time, torn_at
from loopkit.logs.own.headers import ASSISTANT, END, LOSS, RESULT, START, USAGE, USER, parse_headers
from loopkit.logs.own.impossible_reuse import find_impossible, reported_usage
from loopkit.logs.own.messages import read_messages, read_requests
from loopkit.logs.problems import Errors, Problem
from loopkit.session.concurrent_reads import is_locked, retry_unfinished
from loopkit.session.store import read_baseline

__all__ = ["read_epoch"]

TIME = "S27"
"Dtype of a timestamp in a line."

CARRIED = re.compile(b"[uat]*")
GROUPS = re.compile(b"(?:u?agl?t*+)*+")
FACTS = np.isin(np.arange(256), (START, LOSS, END))
UNFINISHED = (b"u", b"ua", b"a")


_usage_decoder = msgspec.json.Decoder(UsageRecord)
_fact_decoder = msgspec.json.Decoder(SessionStart | CacheLoss | EpochEnd)


class _Reading:
    """The state of reading one log: what its lines so far contain."""

    def __init__(self, path: Path, *, cut: bool) -> None:
        self.path = path
        self.cut = cut
        self.kinds = bytearray()
        self.start: SessionStart | None = None
        self.end: EpochEnd | None = None
        self.usage = ColumnBuilder(REQUESTS)
        self.losses: list[CacheLoss] = []
        self.reported: dict[int, Raw] = {}
        "The usage exactly as the server reported it, by row; only rows in which it is inconsistent."
        self._rows = 0
        self.user_times: list[NDArray[np.bytes_]] = []
        "Timestamps of the user records, one array for each block of lines."
        self.times_before: list[NDArray[np.bytes_]] = []
        "Timestamp of the record before each user record, and before the epoch's end."
        self.last_times = np.zeros(1, TIME)
        "Timestamps of the last three records."

    def may_end_anywhere(self) -> bool:
        """Return True if the log may end inside a record group: a writer is appending, or only the first lines are read."""
        return self.cut or is_locked(self.path.parent)

    def add(self, lines: Lines) -> None:
        """Check the headers of the next lines, and collect what the frames need from them."""
        kinds, all_times = parse_headers(lines)
        if not kinds.all():
            why = "it does not begin with a known kind and a time"
            raise torn_at(self.path, lines.number - 1 + int(kinds.argmin()), why)
        self.kinds += kinds.tobytes()
        is_user = kinds == USER
        self.user_times.append(all_times[is_user])
        self.times_before.append(np.concatenate((self.last_times[-1:], all_times[:-1]))[is_user | (kinds == END)])
        self.last_times = np.concatenate((self.last_times, all_times[-3:]))[-3:]
        for requests in decode_lines(_usage_decoder, self.path, lines, (kinds == USAGE).nonzero()[0]):
            self.usage.add(requests)
            self.reported |= reported_usage(requests, self._rows)
            self._rows += len(requests)
        for facts in decode_lines(_fact_decoder, self.path, lines, FACTS.take(kinds).nonzero()[0]):
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
        Read only this many lines, up to the last complete record group in them. All lines by default.
    errors : "raise" or "report"
        What to do if the baseline (the file with system message and tools) does not match the log. When messages are read, an
        error is raised, or the system message is left out. In both cases the part's problems mention it.

    Returns
    -------
    Part or None
        The epoch, or None if a writer has not finished the first record.

    Raises
    ------
    TornLog
        If the log is damaged. The error names the file and the line.
    """
    return retry_unfinished(path.parent, lambda: _read_epoch(path, lines, errors))


def _read_epoch(path: Path, limit: int | None, errors: Errors) -> Part | None:
    reading = _Reading(path, cut=limit is not None)
    with locate_invalid_time(path):
        for lines in read_lines(path, limit):
            reading.add(lines)
        return None if not reading.kinds and reading.may_end_anywhere() else _part(reading, errors)


def _part(reading: _Reading, errors: Errors) -> Part:
    path = reading.path
    open_end = reading.cut and reading.kinds[-1:] == b"g"
    start, begin, user_times, times_before = _check_order(reading)
    kinds = np.frombuffer(bytes(reading.kinds), np.uint8)
    of_requests = (kinds == USAGE).nonzero()[0]
    continues = int(kinds.size > begin and kinds[begin] == ASSISTANT)
    users = (kinds[begin:] == USER).nonzero()[0] + begin
    skipped = user_times.size - users.size

    usage = reading.usage.arrays()
    lossy = of_requests[kinds[np.minimum(of_requests + 1, kinds.size - 1)] == LOSS]
    losses = loss_columns(reading.losses, of_requests.searchsorted(lossy))
    lost = np.where((usage["cached_tokens"] >= 0) & ((usage["expected_tokens"] >= 0) | (usage["shortfall"] != None)), 0, -1)  # noqa: E711
    lost[losses["row"]] = losses["lost_tokens"]
    if open_end and usage["cached_tokens"][-1] < usage["expected_tokens"][-1]:
        lost[-1] = -1  # the first line that was not read may be its loss record
    usage["lost_tokens"] = lost
    usage["turn"] = users.searchsorted(of_requests) + continues
    usage["new_bytes"] = growth(usage["request_bytes"])

    first, last = np.array([start.time], TIME), reading.last_times[-1:]
    ends = times_before[skipped:] if reading.end else np.concatenate((times_before[skipped:], last))
    parsed = times(np.concatenate((first, user_times[skipped:], ends, last)))
    began = parsed[1 - continues : 1 + users.size]
    results = users.searchsorted((kinds[begin:] == RESULT).nonzero()[0] + begin) + continues
    turns = {
        "turn": np.arange(1, began.size + 1),
        "time": began,
        "ended": parsed[-1 - began.size : -1],
        "tool_calls": np.bincount(results, minlength=began.size + 1)[1:],
    }
    size, baseline_problems = _baseline(path.parent, start)
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
        started=parsed[0],
        ended=parsed[-1],
        end_reason=None if reading.end is None else reading.end.reason,
        usage=usage,
        losses=losses,
        problems=(*baseline_problems, *find_impossible(path, start.server.engine, usage, of_requests, reading.reported)),
        turns=turns,
        messages=partial(read_messages, path, kinds.size, system=errors == "raise" or not baseline_problems),
        requests=partial(read_requests, path, kinds.size),
    )


def _baseline(directory: Path, start: SessionStart) -> tuple[int | None, tuple[Problem, ...]]:
    """Return the size of the epoch's baseline file in bytes, or None and what is wrong with the file."""
    try:
        return len(read_baseline(directory, start)), ()
    except BaselineError as error:
        return None, (Problem(str(error.path), None, None, "baseline", error.why),)


class _Ordered(NamedTuple):
    """Result of `_check_order`: the records without an unfinished group at the end."""

    start: SessionStart
    begin: int
    "Index of the first record after those that were carried over from the epoch before."
    user_times: NDArray[np.bytes_]
    times_before: NDArray[np.bytes_]


def _check_order(reading: _Reading) -> _Ordered:
    """Check the order of the records.

    An unfinished group at the end is dropped if the log may end anywhere; otherwise it is an error.
    """
    path, kinds, start = reading.path, reading.kinds, reading.start
    user_times, times_before = (
        np.concatenate([reading.last_times[:0], *some]) for some in (reading.user_times, reading.times_before)
    )
    if start is None or kinds[0] != START:
        why = "the first record is not a session_start" if kinds else "there is no whole record"
        raise torn_at(path, 0, why, at_end=not kinds)
    if start.session != path.parent.name or str(start.epoch) != path.stem:
        raise torn_at(path, 0, f"it belongs to epoch {start.epoch} of session {start.session}, which does not match the path")
    begin = 1 + (0 if start.carried is UNSET else start.carried.records)
    found = CARRIED.match(kinds, 1, min(begin, len(kinds)))
    assert found is not None
    if found.end() == len(kinds) < begin and reading.may_end_anywhere():
        del kinds[1:]
        reading.last_times = np.array([start.time], TIME)
        return _Ordered(start, 1, user_times[:0], times_before[:0])
    if found.end() < begin:
        raise torn_at(path, found.end(), f"{begin - 1} carried records should follow the session_start, not {found.end() - 1}")
    groups = GROUPS.match(kinds, begin)
    assert groups is not None
    rest = bytes(kinds[groups.end() :])
    if rest in UNFINISHED and reading.may_end_anywhere():
        del kinds[groups.end() :]
        reading.last_times = reading.last_times[: -len(rest)]
        if rest[0] == USER:
            user_times, times_before = user_times[:-1], times_before[:-1]
    elif rest in UNFINISHED:
        raise torn_at(path, groups.end(), "the last group of records is unfinished", at_end=True)
    elif rest not in (b"", b"e"):
        wrong = next(length for length in range(len(rest)) if rest[: length + 1] not in (*UNFINISHED, b"e"))
        raise torn_at(path, groups.end() + wrong, "a record of this kind must not follow here")
    return _Ordered(start, begin, user_times, times_before)
