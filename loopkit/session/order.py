"""The order of records: a state machine used for reading and for writing, so nothing can be written that cannot be read.

``session_start carried* ((user? assistant usage cache_loss?) tool_result*)* epoch_end?``

It also checks members that must agree between records. The session's id and the epoch's number must be those of the files.
Requests are numbered from 1. A tool result needs an open call, and call numbers rise through the whole session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from msgspec import UNSET

from loopkit.contract.messages import ToolCall
from loopkit.contract.records import (
    Assistant,
    CacheLoss,
    EpochEnd,
    LogRecord,
    SessionStart,
    ToolResult,
    UsageRecord,
    User,
    check_raw,
)
from loopkit.contract.request import RESERVED

__all__ = ["Order", "group_ends"]


# State after the last record. A log may end in the states _SOUND, _USAGE and _END.
_NOTHING, _CARRIED, _USER, _ASSISTANT, _SOUND, _USAGE, _END = range(7)

_EXPECTED = {
    _NOTHING: "session_start comes first",
    _USER: "an assistant record comes next",
    _ASSISTANT: "a usage record comes next, for the same request",
    _END: "the epoch has ended, and no record may follow epoch_end",
}


class Order:
    """A check of the order of records in one epoch. :meth:`add` each record in turn.

    Parameters
    ----------
    session : str
        Session id that ``session_start`` must contain.
    epoch : int
        Number of the epoch.
    highest_call : int
        Highest tool call number in the earlier epochs; 0 if there is none.

    Examples
    --------
    >>> order = Order("lima", 0)
    >>> order.add(User(time="2026-11-30T07:31:05.000000Z", content="Hi."))
    'a user record is not allowed here: session_start comes first'
    """

    __slots__ = ("_at", "_carried", "_open", "epoch", "highest_call", "requests", "session")

    def __init__(self, session: str, epoch: int, highest_call: int = 0) -> None:
        self.session, self.epoch, self.highest_call = str(session), epoch, highest_call
        self.requests = 0
        self._at = _NOTHING
        self._carried = 0
        self._open: dict[str, ToolCall] = {}

    def copy(self) -> Order:
        """Return an independent copy in the same state."""
        other = Order(self.session, self.epoch, self.highest_call)
        other.requests, other._at, other._carried = self.requests, self._at, self._carried
        other._open = self._open.copy()
        return other

    @property
    def pending(self) -> tuple[ToolCall, ...]:
        """Tool calls of the last assistant message that have no result yet, in order."""
        return tuple(self._open.values())

    @property
    def ended(self) -> bool:
        """True after ``epoch_end``."""
        return self._at == _END

    @property
    def sound(self) -> bool:
        """True if a log may end after the last record: no group of records is unfinished."""
        return self._at >= _SOUND

    def unfinished(self) -> str:
        """Return what is missing at the end of the log; ``""`` if the log may end here."""
        if self._at == _CARRIED:
            return f"{self._carried} of the records that session_start announces as carried over are missing"
        return "" if self.sound else f"the log ends inside an unfinished group: {_EXPECTED[self._at]}"

    def take(self, records: Sequence[LogRecord]) -> tuple[int, str]:
        """Check several records, as :meth:`add` does for one, but faster.

        Parameters
        ----------
        records : sequence of LogRecord
            The next records of the log.

        Returns
        -------
        tuple of (int, str)
            Number of records before the first that is not allowed, and the reason; ``""`` if all are allowed.
        """
        at, requests, count = self._at, self.requests, 0
        record: Any
        for kind, record in zip(map(type, records), records):
            # Most records are of these three kinds, so their checks are repeated here for speed. The result is that of `add`.
            if kind is UsageRecord and at == _ASSISTANT and record.request == requests + 1 and record.reported is UNSET:
                requests += 1
                at = _USAGE
            elif kind is Assistant and at == _USER and record.tool_calls is UNSET and record.extra is UNSET:
                at = _ASSISTANT
            elif kind is User and _SOUND <= at < _END and not self._open:
                at = _USER
            else:
                self._at, self.requests = at, requests
                step = self._assistant if kind is Assistant else self._tool_result if kind is ToolResult else self.add
                if why := step(record):
                    return count, why
                at, requests = self._at, self.requests
            count += 1
        self._at, self.requests = at, requests
        return count, ""

    def add(self, record: LogRecord) -> str:
        """Check that a record may come next, and remember it.

        Parameters
        ----------
        record : LogRecord
            The next record of the log.

        Returns
        -------
        str
            ``""`` if the record is allowed. Otherwise the reason, and which record was expected; do not use this object again
            after that.
        """
        if isinstance(record, UsageRecord):
            if self._at != _ASSISTANT:
                return self._refuse("usage")
            self.requests += 1
            if record.request != self.requests:
                return f"usage.request is {record.request}, but the next request is {self.requests}"
            return self._raw_fault(record) or self._move(_USAGE)
        if isinstance(record, Assistant):
            return self._assistant(record)
        if isinstance(record, User):
            if self._open or self._at not in (_CARRIED, _SOUND, _USAGE):
                return self._refuse("user")
            return self._one_carried() if self._at == _CARRIED else self._move(_USER)
        if isinstance(record, ToolResult):
            return self._tool_result(record)
        if isinstance(record, CacheLoss):
            if self._at != _USAGE:
                return self._refuse("cache_loss", "it comes directly after the usage record of its request")
            if record.request != self.requests:
                return f"cache_loss.request is {record.request}, but the usage record before it has request {self.requests}"
            return self._raw_fault(record) or self._move(_SOUND)
        if isinstance(record, SessionStart):
            return self._start(record)
        if isinstance(record, EpochEnd):
            return self._move(_END) if self._at in (_SOUND, _USAGE) else self._refuse("epoch_end")
        assert_never(record)

    def _move(self, at: int) -> str:
        self._at = at
        return ""

    @staticmethod
    def _raw_fault(record: LogRecord) -> str:
        try:
            check_raw(record)
        except ValueError as error:
            return f"not a record: {error}"
        return ""

    def _refuse(self, kind: str, expected: str = "") -> str:
        expected = expected or _EXPECTED.get(self._at, "")
        if not expected and self._open:
            expected = f"a tool_result comes next, for {_ids(self._open)}"
        elif not expected and self._at == _CARRIED:
            expected = f"{self._carried} carried records (user, assistant or tool_result) come next"
        elif not expected:
            expected = "a user or an assistant record, or epoch_end, comes next"
        return f"{'an' if kind[0] in 'ae' else 'a'} {kind} record is not allowed here: {expected}"

    def _start(self, record: SessionStart) -> str:
        if self._at != _NOTHING:
            return self._refuse("session_start", "it is the first record of a log, and only the first")
        if record.session != self.session:
            return f"session_start.session is {record.session!a}, but the directory's session is {self.session!a}"
        if record.epoch != self.epoch:
            return f"session_start.epoch is {record.epoch}, but the file's epoch is {self.epoch}"
        for name in RESERVED:
            if name in record.options:
                return f"session_start.options contains {name}, which loopkit writes itself"
        if record.carried is not UNSET:
            if record.carried.from_epoch >= self.epoch:
                return f"session_start.carried.from_epoch is {record.carried.from_epoch}, but this is epoch {self.epoch}"
            self._carried = record.carried.records
        return self._raw_fault(record) or self._move(_CARRIED if self._carried else _SOUND)

    def _one_carried(self) -> str:
        self._carried -= 1
        if self._carried == 0:
            if self._open:
                return f"the carried records end with tool calls without a result: {_ids(self._open)}"
            self._at = _SOUND
        return ""

    def _assistant(self, record: Assistant) -> str:
        if self._open or self._at not in (_CARRIED, _USER, _SOUND, _USAGE):
            return self._refuse("assistant")
        if record.extra is not UNSET and (why := self._raw_fault(record)):
            return why
        if record.tool_calls is not UNSET:
            try:
                calls = record.calls()
            except ValueError as error:
                return f"assistant.tool_calls does not contain tool calls: {error}"
            self._open = {call.id: call for call in calls}
            if len(self._open) != len(calls):
                return "assistant.tool_calls contains an id twice"
        return self._one_carried() if self._at == _CARRIED else self._move(_ASSISTANT)

    def _tool_result(self, record: ToolResult) -> str:
        at = self._at
        if at not in (_SOUND, _USAGE, _CARRIED):
            return self._refuse("tool_result")
        if self._open.pop(record.tool_call_id, None) is None:
            known = f"open calls: {_ids(self._open)}" if self._open else "no call is open"
            return f"tool_result.tool_call_id is {record.tool_call_id!a}, which is not an open call ({known})"
        if at == _CARRIED:
            return self._one_carried()
        if record.call <= self.highest_call:
            return f"tool_result.call is {record.call}, but it must be greater than {self.highest_call}, the call before it"
        self.highest_call = record.call
        self._at = _SOUND
        return ""


def _ids(calls: Iterable[str]) -> str:
    names = [ascii(name) for name in calls]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def group_ends(records: Sequence[LogRecord]) -> list[int]:
    """Return the positions at which an epoch can be cut. A group is a request with its response and tool results.

    Parameters
    ----------
    records : sequence of LogRecord
        All records of the epoch, in order.

    Returns
    -------
    list of int
        Counts of records from the start of the epoch. The first count ends before the first group: it covers ``session_start``
        and the records carried over from the epoch before. Each further count ends after a group.
    """
    start = records[0]
    assert isinstance(start, SessionStart)
    ends = [1 + (start.carried.records if start.carried is not UNSET else 0)]
    for index in range(ends[0], len(records)):
        if isinstance(records[index], UsageRecord):
            ends.append(index + 1)
        elif isinstance(records[index], (CacheLoss, ToolResult)):
            ends[-1] = index + 1
    return ends
