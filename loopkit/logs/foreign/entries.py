"""Entries that the adapters yield: small facts from another tool's log in file order; and the form of their times.

An entry names the entry before it as its ``parent``. Line order would not be enough: several processes may append to a log file,
and files are copied and cut. An entry without an ``id`` follows the last entry of its conversation. Malicious input can at worst
add rows to the frame ``problems``.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from loopkit.contract.provenance import Record, Role
from loopkit.contract.records import Usage
from loopkit.server.completion.usage import LARGEST

__all__ = [
    "IMPLAUSIBLE",
    "CompactionEntry",
    "ConversationStart",
    "Entry",
    "Link",
    "LogTime",
    "MessageEntry",
    "RequestEntry",
    "TextDigest",
    "is_plausible",
    "to_microseconds",
    "to_rfc3339",
]

LogTime: TypeAlias = "str | int | None"
"A timestamp as it is in the log: ISO 8601 text with a time zone, or microseconds since 1970. None if there is no timestamp."

UNIX_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICROSECOND = datetime.timedelta(microseconds=1)
MAX_MICROSECONDS = (datetime.datetime.max.replace(tzinfo=datetime.UTC) - UNIX_EPOCH) // MICROSECOND
"Microseconds from 1970 to the last microsecond of the year 9999, the largest that `datetime` has."
IMPLAUSIBLE = "impossible token counts (negative or too large), with the other counts of their request"
"Text of the problem if `is_plausible` returns False. Some gateways subtract cached tokens twice, which gives a negative input."


class ConversationStart(Struct, frozen=True, kw_only=True):
    """The start of a conversation. Optional: without it, the conversation starts with its first entry."""

    session: str
    parent: str | None = None
    "The conversation that this one was forked, resumed or spawned from."


class Link(Struct, frozen=True, gc=False):
    """Base class of all linked entries. Instances of `Link` itself matter only as parents of other entries."""

    session: str
    id: str | None = None
    "Unique in the file. Later entries with the same id are left out."
    parent: str | None = None
    "Id of the entry before this one. An entry with an id and no parent starts a new branch."
    time: LogTime = None


class TextDigest:
    r"""Size and SHA-256 of a message, computed without keeping its text.

    The parts of a message are joined by line feeds. A part that equals an earlier one is ignored.

    Examples
    --------
    >>> digest = TextDigest()
    >>> for part in ("Hi", "there", "Hi"):
    ...     digest.add(part)
    >>> digest.bytes, digest.sha256 == hashlib.sha256(b"Hi\nthere").hexdigest()
    (8, True)
    """

    __slots__ = ("_hash", "_parts", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._hash = hashlib.sha256()
        self._parts: set[bytes] = set()

    def add(self, text: str) -> None:
        """Add a part of the message, unless an equal part was added before."""
        data = text.encode("utf-8", "surrogatepass")
        part = hashlib.sha256(data).digest()
        if part not in self._parts:
            data = b"\n" + data if self._parts else data
            self._parts.add(part)
            self._hash.update(data)
            self.bytes += len(data)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the message, as a hex string like that of `loopkit.encoding.sha256`."""
        return self._hash.hexdigest()


class MessageEntry(Link, frozen=True, kw_only=True, gc=False):
    """A message, or a part of a message."""

    role: Role
    starts_turn: bool = False
    "True for a person's message, which starts a turn."
    results: int = 0
    "Number of tool calls that this message answers."
    tool: str | None = None
    key: str | None = None
    "Entries with the same key are parts of one message."
    record: Record | TextDigest | None = None
    "The text of the message, or its digest. None if texts were not requested."


class RequestEntry(Link, frozen=True, kw_only=True, gc=False):
    """A completed request. Entries with the same ``key`` are merged, with the larger of each count."""

    usage: Usage
    key: str | None = None
    "Id of the request, which is the same in every file that repeats the request. None if the log has no id."
    is_side_chain: bool = False
    "True in a side chain, the log of a sub-agent. If the main conversation has the same response, this entry is a copy."
    response: str | None = None
    "Id of the response, from which copies in side chains are found."
    is_copy: bool = False
    "True for a request copied from another file's history. Later requests may follow it, but only the original is counted."
    model: str | None = None
    engine: str | None = None
    "Engine name as in `loopkit.cache`: ``anthropic``, ``openai``, ``llama.cpp``, …"
    finish_reason: str | None = None
    sent: LogTime = None
    "Time at which the request was sent. If None, the time of the entry before this one is used."
    verdict: str | None = None
    "Reason for a cache miss, as reported by the provider."
    missed_tokens: int | None = None
    "Number of tokens that missed the cache, as reported by the provider."
    kept_seconds: float | None = None
    "Time to live, in seconds, of what this request wrote to the cache. None if it wrote nothing, or the log has no value."
    request_bytes: int | None = None
    request_sha256: str | None = None
    other_requests: tuple[tuple[str, int], ...] = ()
    "Session and number of other requests that the same server answered since the previous request; only the last few."
    block_hashes: Sequence[int] | None = None
    "Hashes of the prompt's blocks, in logs that have hashes instead of text."
    read_body: Callable[[], bytes] | None = None
    "Function that reads the exact request body, a ``functools.partial`` that can be pickled; None if the log has no body."


class CompactionEntry(Link, frozen=True, kw_only=True, gc=False):
    """A compaction: the history is replaced by a summary, and an epoch starts. Its parent may be in another file."""


Entry: TypeAlias = ConversationStart | Link | MessageEntry | RequestEntry | CompactionEntry


def is_plausible(*counts: int | None) -> bool:
    """Return True if every token count of a request is at least 0 and small enough to be summed.

    Examples
    --------
    >>> is_plausible(5, None, 0), is_plausible(5, -1), is_plausible(1 << 60)
    (True, False, False)
    """
    bits = 0
    for count in counts:  # runs for every line, so all counts share one comparison
        bits |= count or 0
    return 0 <= bits <= LARGEST


def to_microseconds(time: LogTime) -> int | None:
    """Return microseconds since 1970, or None for an invalid timestamp or one without a zone.

    Examples
    --------
    >>> [to_microseconds(time) for time in ("1970-01-01T00:00:01Z", "1970-01-01T02:00:01.5+02:00", "1970-01-01T00:00:01", 7)]
    [1000000, 1500000, None, 7]
    """
    if time is None or isinstance(time, int):
        return time if time is None or 0 <= time < 1 << 57 else None
    try:
        return (datetime.datetime.fromisoformat(time) - UNIX_EPOCH) // MICROSECOND
    except (ValueError, TypeError, OverflowError):  # TypeError: the text has no zone
        return None


def to_rfc3339(time: LogTime) -> str | None:
    """Return a timestamp in the form of `loopkit.ids.Timestamp`, or None if it is invalid.

    Examples
    --------
    >>> to_rfc3339("1970-01-01T02:00:01.5+02:00")
    '1970-01-01T00:00:01.500000Z'
    """
    microseconds = to_microseconds(time)
    if microseconds is None or not 0 <= microseconds < MAX_MICROSECONDS:
        return None
    return f"{UNIX_EPOCH.replace(tzinfo=None) + microseconds * MICROSECOND:%Y-%m-%dT%H:%M:%S.%f}Z"
