"""Request bytes: one head an epoch, one chunk a message, and the check that each request extends the one before.

A body is ``head + chunks + tail``: the head holds everything up to ``"messages":[`` and the system message, each further message
is one immutable chunk, the tail closes the brackets. A growing conversation is encoded and hashed once, message by message; no
turn copies or hashes a whole body. Knows nothing of HTTP or of files.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, AnyStr, NamedTuple

from loopkit.contract.baseline import Baseline, message_of, system_message
from loopkit.contract.messages import encode_message
from loopkit.contract.records import Assistant, LogRecord, SessionStart, UsageRecord, User
from loopkit.encoding import encode, sha256
from loopkit.errors import ContractBroken, InvalidConfig
from loopkit.reprs import counted

__all__ = ["Chunks", "Replayed", "Request", "RequestEncoder", "first_difference", "head", "path_at", "replayed"]

TAIL = b"]}"
RESERVED = ("id_slot", "messages", "tools")


class Request:
    """The body of one request, kept as chunks.

    Parameters
    ----------
    head : bytes
        Everything up to the last byte of the system message.
    chunks : sequence of bytes
        The encoded messages behind it, each with its leading comma; only grows.
    count : int
        How many of the chunks belong to this request.
    newest : bytes or None
        One more chunk, not yet in the log.
    prefix_sha256 : str
        Of the body less its closing brackets.
    sha256 : str
        Of the whole body.
    size : int
        Of the whole body, in bytes.

    Attributes
    ----------
    session, time, slot
        Whose it was, when it was answered and where, of a request of the past; None of one about to be sent.
    """

    __slots__ = ("_chunks", "_count", "_head", "_newest", "_tail", "prefix_sha256", "session", "sha256", "size", "slot", "time")

    def __init__(
        self,
        head: bytes,
        chunks: Sequence[bytes],
        count: int,
        newest: bytes | None,
        prefix_sha256: str,
        sha256: str,
        size: int,
    ) -> None:
        self._head, self._chunks, self._count, self._newest, self._tail = head, chunks, count, newest, TAIL
        self.prefix_sha256, self.sha256, self.size = prefix_sha256, sha256, size
        self.session: str | None = None
        self.time: str | None = None
        self.slot: int | None = None

    @classmethod
    def of(cls, body: bytes) -> Request:
        """Wrap a body that was made elsewhere; one that does not end in the messages' brackets is all prefix."""
        prefix = body.removesuffix(TAIL)
        made = cls(prefix, (), 0, None, sha256(prefix), sha256(body), len(body))
        made._tail = body[len(prefix) :]
        return made

    def __repr__(self) -> str:
        return f"Request({counted(len(self), 'message')}, {self.size} bytes, sha256 {self.sha256[:12]})"

    def __len__(self) -> int:
        """Messages in it, the system message included."""
        return 1 + self._count + (self._newest is not None)

    def pieces(self, size: int = 1 << 16) -> Iterator[bytes]:
        """The body in pieces of about ``size`` bytes, for the socket."""
        gathered, length = [self._head], len(self._head)
        for index in range(self._count + 1):
            chunk = self._chunks[index] if index < self._count else (self._newest or b"") + self._tail
            gathered.append(chunk)
            length += len(chunk)
            if length >= size:
                yield b"".join(gathered)
                gathered, length = [], 0
        if gathered:
            yield b"".join(gathered)

    @property
    def chunks(self) -> Chunks:
        """The body less its closing brackets, as it is kept."""
        return Chunks(self._head, self._chunks, self._count, self._newest)

    @property
    def body(self) -> bytes:
        """The whole body, as one new bytes object."""
        return b"".join(self.pieces(self.size + 1))

    @property
    def prefix(self) -> bytes:
        """The body less its closing brackets: what the next request of the epoch begins with."""
        return self.body[: self.size - len(self._tail)]


class Chunks(NamedTuple):
    """How a body is kept; head and messages are the very objects that the other requests of the epoch have."""

    head: bytes
    messages: Sequence[bytes]
    number: int
    "How many of the messages belong to it; there may be more, for later requests."
    newest: bytes | None


class Replayed(NamedTuple):
    """A request of the past, rebuilt from the log."""

    at: int
    "Position of its usage record among the records."
    record: UsageRecord
    "What was logged of it."
    request: Request
    "The body, rebuilt."


def head(baseline: Baseline, options: Mapping[str, Any], slot: int | None) -> bytes:
    """Encode everything that is fixed for an epoch: pinned members, tools, the system message.

    Parameters
    ----------
    baseline : Baseline
        System prompt and tools.
    options : mapping
        Pinned members of the body (model, sampling, template options), sent in this order.
    slot : int or None
        Sent as ``id_slot`` where not None.

    Raises
    ------
    InvalidConfig
        When an option has the name of a member that loopkit writes itself.

    Examples
    --------
    >>> head(Baseline("Be brief.", ()), {"temperature": 0}, 1)
    b'{"temperature":0,"id_slot":1,"messages":[{"role":"system","content":"Be brief."}'
    """
    for name in RESERVED:
        if name in options:
            raise InvalidConfig(f"options.{name}", "loopkit writes this member itself", "Leave it out")
    members = dict(options)
    if slot is not None:
        members["id_slot"] = slot
    if baseline.tools:
        members["tools"] = baseline.tools
    opening = encode(members, "options")[:-1]
    comma = b"," if members else b""
    return opening + comma + b'"messages":[' + encode_message(system_message(baseline))


class RequestEncoder:
    """The request bodies of one epoch, grown record by record.

    Parameters
    ----------
    baseline, options, slot
        See :func:`head`.

    Notes
    -----
    :meth:`request` builds the next body and checks that it extends the last one marked by :meth:`sent`. The check compares the
    records' identity, and length and running SHA-256 of what was sent; its cost does not grow with the text of the history.
    """

    def __init__(self, baseline: Baseline, options: Mapping[str, Any], slot: int | None) -> None:
        self._head = head(baseline, options, slot)
        self._last: Request | None = None
        self._restart()

    @classmethod
    def resume(cls, start: SessionStart, baseline: Baseline, records: Sequence[LogRecord]) -> RequestEncoder:
        """Take up an epoch where its log ends.

        Raises
        ------
        ContractBroken
            When the last request, rebuilt from the log, is not the one whose SHA-256 was recorded when it was sent.
        """
        encoder = cls(baseline, start.options, start.slot)
        requests = deque(encoder._replay(records), maxlen=1)
        for _, record, request in requests:
            if request.sha256 != record.request_sha256:
                raise ContractBroken(
                    f"request {record.request} of epoch {start.epoch}, rebuilt from the log, has SHA-256 {request.sha256}, "
                    f"but {record.request_sha256} was recorded when it was sent"
                )
            encoder.sent(request)
        return encoder

    def request(self, records: Sequence[LogRecord], newest: User | None = None) -> Request:
        """Build the next request.

        Parameters
        ----------
        records : sequence of LogRecord
            The epoch's, as they stand in the log; a list is compared without being copied.
        newest : User, optional
            A message that is not in the log yet.

        Raises
        ------
        ContractBroken
            When the body would not extend the last one sent; names the first byte and the member it is in.
        """
        try:
            for record in records[len(self._records) :]:
                self._absorb(record)
            if (
                records if isinstance(records, list) else list(records)
            ) != self._records:  # lists compare by identity first: no slice, no look at the text
                self._restart()
                for record in records:
                    self._absorb(record)
        except BaseException:
            self._restart()  # an interrupt may have come in the middle of a record
            raise
        if self._last is not None and 1 + len(self._chunks) < len(self._last):
            raise self._broken()
        return self._made(None if newest is None else _chunk(newest))

    def sent(self, request: Request) -> None:
        """Mark ``request`` as the last one completed: the next must extend it."""
        self._last = request

    def _restart(self) -> None:
        self._records: list[LogRecord] = []
        self._chunks: list[bytes] = []
        self._size = len(self._head)
        self._hash = hashlib.sha256(self._head)

    def _absorb(self, record: LogRecord) -> None:
        self._records.append(record)
        chunk = _chunk(record)
        if chunk is None:
            return
        self._chunks.append(chunk)
        self._hash.update(chunk)
        self._size += len(chunk)
        last = self._last
        if last is None or 1 + len(self._chunks) != len(last):
            return
        if self._size + len(TAIL) != last.size or self._hash.hexdigest() != last.prefix_sha256:
            raise self._broken()

    def _made(self, newest: bytes | None) -> Request:
        running, size = self._hash.copy(), self._size
        if newest is not None:
            running.update(newest)
            size += len(newest)
        prefix = running.hexdigest()
        running.update(TAIL)
        return Request(self._head, self._chunks, len(self._chunks), newest, prefix, running.hexdigest(), size + len(TAIL))

    def _replay(self, records: Sequence[LogRecord]) -> Iterator[Replayed]:
        made: Request | None = None
        for index, record in enumerate(records):
            if isinstance(record, Assistant):
                made = self._made(None)
            elif isinstance(record, UsageRecord) and made is not None:
                yield Replayed(index, record, made)
            self._absorb(record)

    def _broken(self) -> ContractBroken:
        assert self._last is not None
        old, new = self._last.prefix, self._made(None).body
        offset = first_difference(old, new)
        member = path_at(old, offset)
        was, now = ascii(old[offset : offset + 40])[1:], ascii(new[offset : offset + 40])[1:]
        self._restart()
        return ContractBroken(
            f"they part at byte {offset}, in {member}: {was} was sent, {now} stands there now", offset=offset, member=member
        )


def _chunk(record: LogRecord) -> bytes | None:
    message = message_of(record)
    return None if message is None else b"," + encode_message(message)


def first_difference(a: AnyStr, b: AnyStr) -> int:
    """The first offset at which two byte strings, or two texts, differ; the shorter's length where it is a prefix.

    Examples
    --------
    >>> first_difference(b"abcd", b"abxd")
    2
    """
    low, high, end = 0, 64, min(len(a), len(b))
    while high < end and a[low:high] == b[low:high]:  # so that it costs what agrees, not what is there
        low, high = high, 2 * high
    high = min(high, end)
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def replayed(start: SessionStart, baseline: Baseline, records: Sequence[LogRecord]) -> Iterator[Replayed]:
    """Rebuild every request of an epoch, in one pass over its records.

    Parameters
    ----------
    start : SessionStart
        The epoch's first record; holds the pinned options and the slot.
    baseline : Baseline
        The epoch's.
    records : sequence of LogRecord
        All records of the epoch.

    Yields
    ------
    Replayed
        One for each usage record. The bodies share their chunks; each is made whole only when asked for.
    """
    return RequestEncoder(baseline, start.options, start.slot)._replay(records)


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[{}\[\],:]|[^\s{}\[\],:"]+', re.S)


def path_at(body: bytes, offset: int) -> str:
    """Name the member of a JSON text that a byte lies in.

    Parameters
    ----------
    body : bytes
        JSON text; may be cut.
    offset : int
        Byte offset, from 0.

    Returns
    -------
    str
        Such as ``messages[3].content``; ``body`` for the text as a whole.

    Examples
    --------
    >>> path_at(b'{"model":"x","messages":[{"role":"user","content":"Hi"}]}', 51)
    'messages[0].content'
    """
    stack: list[str | int | None] = []
    is_key = False
    for match in _TOKEN.finditer(body):
        if match.start() > offset:
            break
        token = match.group()
        if token == b"{":
            stack.append(None)
            is_key = True
        elif token == b"[":
            stack.append(0)
            is_key = False
        elif token in (b"}", b"]"):
            if match.start() == offset:
                break
            if stack:
                stack.pop()
            is_key = False
        elif token == b"," and stack:
            top = stack[-1]
            if match.start() == offset:
                break
            stack[-1] = top + 1 if isinstance(top, int) else None
            is_key = not isinstance(top, int)
        elif token == b":":
            is_key = False
        elif is_key:
            stack[-1] = token.strip(b'"').decode("utf-8", "replace")
    path = ""
    for part in stack:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if part is not None else ""
    return path.removeprefix(".") or "body"
