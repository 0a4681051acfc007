"""What an adapter yields: small facts of another tool's log, in the order of its file, each with its own links.

Whatever a log says becomes entries of these kinds; a hostile one can at worst make problems. Which entry goes on from which is
said by ``id`` and ``parent``, for files are appended to by several hands, copied and cut. An entry without an ``id`` goes on
from the one that its conversation had last. Knows nothing of files, formats or frames.
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
    "CANNOT_BE",
    "Call",
    "Compaction",
    "Conversation",
    "Digest",
    "Entry",
    "Link",
    "Said",
    "When",
    "can_be",
    "moment",
    "rfc3339",
]

When: TypeAlias = "str | int | None"
"A time as its source has it: ISO 8601 with a zone, or microseconds since 1970; None where it says none."

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICROSECOND = datetime.timedelta(microseconds=1)
END = (datetime.datetime.max.replace(tzinfo=datetime.UTC) - EPOCH) // MICROSECOND
"The last moment of the year 9999, which another zone may be past already."
CANNOT_BE = "counts that cannot be, with those beside them"
"What is told of a request for which `can_be` says no: a fresh input below 0 where a gateway took the cached tokens off twice."


class Conversation(Struct, frozen=True, kw_only=True):
    """A conversation begins. Without one it begins with its first entry."""

    session: str
    parent: str | None = None
    "The conversation that it was forked, resumed or spawned from."


class Link(Struct, frozen=True, gc=False):
    """Any entry, and all that is needed of one that only others hang on."""

    session: str
    id: str | None = None
    "Unique in the file; what comes again under it is left out."
    parent: str | None = None
    "The id that it goes on from. With an id and without a parent it begins anew."
    time: When = None


class Digest:
    r"""What is kept of a message where nobody asked for its text: size and SHA-256 of its parts, each once, a line apart.

    Examples
    --------
    >>> digest = Digest()
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
        """Add a part."""
        data = text.encode("utf-8", "surrogatepass")
        part = hashlib.sha256(data).digest()
        if part not in self._parts:
            data = b"\n" + data if self._parts else data
            self._parts.add(part)
            self._hash.update(data)
            self.bytes += len(data)

    @property
    def sha256(self) -> str:
        """The hash, as `loopkit.encoding.sha256` writes it."""
        return self._hash.hexdigest()


class Said(Link, frozen=True, kw_only=True, gc=False):
    """A message."""

    role: Role
    asks: bool = False
    "A person's message, with which a turn begins."
    results: int = 0
    "Tool calls that it answers."
    tool: str | None = None
    key: str | None = None
    "Of several parts of one message the same."
    record: Record | Digest | None = None
    "None where texts were not asked for."


class Call(Link, frozen=True, kw_only=True, gc=False):
    """A completed request. The same ``key`` again in the file is the same request, told again: the larger counts hold."""

    usage: Usage
    key: str | None = None
    "The request's own id, the same in every file that holds it; None where there is none."
    side: bool = False
    "In a side chain: where the main conversation has the same response, this is a copy of it."
    response: str | None = None
    "The response's id, for that."
    copied: bool = False
    "Told here as history only: what follows goes on from it, and it is counted where it was made."
    model: str | None = None
    engine: str | None = None
    "As `loopkit.cache` knows it: ``anthropic``, ``openai``, ``llama.cpp``, …"
    finish: str | None = None
    sent: When = None
    "When it was sent; where that is not said, it is the time of the entry that it goes on from."
    verdict: str | None = None
    "Why the provider says that its cache was missed."
    missed: int | None = None
    "Tokens that it says were missed."
    kept_seconds: float | None = None
    "For how long the provider keeps what this request wrote to the cache; None where it wrote nothing, or that is not said."
    request_bytes: int | None = None
    request_sha256: str | None = None
    others: tuple[tuple[str, int], ...] = ()
    "Session and number of the last few requests that the same server is known to have answered since the one it goes on from."
    blocks: Sequence[int] | None = None
    "Hashes of its prompt's blocks, where that is what the log holds of it."
    body: Callable[[], bytes] | None = None
    "Reads the very body that was sent, where the log holds it; a ``functools.partial``."


class Compaction(Link, frozen=True, kw_only=True, gc=False):
    """History was rewritten: an epoch begins. Its parent may be in another file."""


Entry: TypeAlias = Conversation | Link | Said | Call | Compaction


def can_be(*counts: int | None) -> bool:
    """Whether all of a request's counts can be: none is below 0, or more than sums would hold.

    Examples
    --------
    >>> can_be(5, None, 0), can_be(5, -1), can_be(1 << 60)
    (True, False, False)
    """
    together = 0
    for count in counts:  # asked of every line: one comparison for all of them
        together |= count or 0
    return 0 <= together <= LARGEST


def moment(when: When) -> int | None:
    """Microseconds since 1970; None for what is no moment, or names no zone.

    Examples
    --------
    >>> moment("1970-01-01T00:00:01Z"), moment("1970-01-01T02:00:01.5+02:00"), moment("1970-01-01T00:00:01"), moment(7)
    (1000000, 1500000, None, 7)
    """
    if when is None or isinstance(when, int):
        return when if when is None or 0 <= when < 1 << 57 else None
    try:
        return (datetime.datetime.fromisoformat(when) - EPOCH) // MICROSECOND
    except (ValueError, TypeError, OverflowError):  # the second: it names no zone
        return None


def rfc3339(when: When) -> str | None:
    """A moment as a `Timestamp` is written; None where it is none.

    Examples
    --------
    >>> rfc3339("1970-01-01T02:00:01.5+02:00")
    '1970-01-01T00:00:01.500000Z'
    """
    microseconds = moment(when)
    if microseconds is None or not 0 <= microseconds < END:
        return None
    return f"{EPOCH.replace(tzinfo=None) + microseconds * MICROSECOND:%Y-%m-%dT%H:%M:%S.%f}Z"
