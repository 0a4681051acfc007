"""Request bodies, and the check that each request extends the one before.

A body is ``head + chunks + tail``. The head is everything from the start of the body to the end of the system message. Each
further message is a chunk that never changes. The tail is the closing brackets. Every message is encoded and hashed once, so the
cost of a request does not grow with the length of the conversation.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from loopkit.contract.baseline import Baseline, message_of, system_message
from loopkit.contract.json_position import first_difference, path_at
from loopkit.contract.messages import encode_message
from loopkit.contract.records import Assistant, LogRecord, SessionStart, UsageRecord, User
from loopkit.encoding import encode, sha256
from loopkit.errors import ContractBroken, InvalidConfig
from loopkit.reprs import counted

__all__ = ["Chunks", "Replayed", "Request", "RequestEncoder", "head", "replayed"]

TAIL = b"]}"
RESERVED = ("id_slot", "messages", "tools")


class Request:
    """The body of one request, stored as chunks.

    Parameters
    ----------
    head : bytes
        The body up to the last byte of the system message.
    chunks : sequence of bytes
        The other messages, encoded, each with a comma before it. Requests of an epoch share this list, and later ones append to
        it.
    count : int
        Number of chunks that belong to this request.
    newest : bytes or None
        One more message at the end, which is not in the log yet.
    prefix_sha256 : str
        SHA-256 of the body without its closing brackets.
    sha256 : str
        SHA-256 of the whole body.
    size : int
        Size of the whole body in bytes.

    Attributes
    ----------
    session, time, slot
        Session id, time of the response and slot. None before sending, and if unknown.
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
        """Return a request with an existing body.

        :attr:`prefix` is the body without ``]}`` at its end. If the body ends differently, the prefix is the whole body.

        Parameters
        ----------
        body : bytes
            A request body, such as one from a log.
        """
        prefix = body.removesuffix(TAIL)
        request = cls(prefix, (), 0, None, sha256(prefix), sha256(body), len(body))
        request._tail = body[len(prefix) :]
        return request

    def __repr__(self) -> str:
        return f"Request({counted(len(self), 'message')}, {self.size} bytes, sha256 {self.sha256[:12]})"

    def __len__(self) -> int:
        """Return the number of messages, including the system message."""
        return 1 + self._count + (self._newest is not None)

    def pieces(self, size: int = 1 << 16) -> Iterator[bytes]:
        """Yield the body in pieces of at least ``size`` bytes, for writing to a socket. The last piece may be smaller.

        Parameters
        ----------
        size : int
            Minimum bytes of a piece. Each piece ends at the end of a message.
        """
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
        """The body without its closing brackets, as separate parts."""
        return Chunks(self._head, self._chunks, self._count, self._newest)

    @property
    def body(self) -> bytes:
        """The whole body, as one new bytes object."""
        return b"".join(self.pieces(self.size + 1))

    @property
    def prefix(self) -> bytes:
        """The body without its closing brackets. The next request of the epoch begins with these bytes."""
        return self.body[: self.size - len(self._tail)]


class Chunks(NamedTuple):
    """The parts of a body without its closing brackets.

    All requests of an epoch refer to the same ``head`` and ``messages`` objects; ``number`` says how many messages belong to
    this request.
    """

    head: bytes
    messages: Sequence[bytes]
    number: int
    "Number of messages that belong to this request. Later ones belong only to later requests."
    newest: bytes | None


class Replayed(NamedTuple):
    """A request rebuilt from the log."""

    at: int
    "Position of the request's usage record among the records of the epoch, from 0."
    record: UsageRecord
    "The usage record of the request."
    request: Request
    "The rebuilt body."


def head(baseline: Baseline, options: Mapping[str, Any], slot: int | None) -> bytes:
    """Encode the bytes with which all requests of an epoch begin: options, slot, tools and the system message.

    Parameters
    ----------
    baseline : Baseline
        System prompt and tools.
    options : mapping
        Members of every body (model, sampling and template options), sent in this order.
    slot : int or None
        Sent as ``id_slot`` unless it is None.

    Returns
    -------
    bytes
        The body up to the last byte of the system message.

    Raises
    ------
    InvalidConfig
        If an option has the name of a member that loopkit writes itself.

    Examples
    --------
    >>> head(Baseline("Be brief.", ()), {"temperature": 0}, 1)
    b'{"temperature":0,"id_slot":1,"messages":[{"role":"system","content":"Be brief."}'
    """
    for name in RESERVED:
        if name in options:
            raise InvalidConfig(f"options.{name}", "loopkit writes this member itself", "Remove it from options")
    members = dict(options)
    if slot is not None:
        members["id_slot"] = slot
    if baseline.tools:
        members["tools"] = baseline.tools
    opening = encode(members, "options")[:-1]
    comma = b"," if members else b""
    return opening + comma + b'"messages":[' + encode_message(system_message(baseline))


class RequestEncoder:
    """Encoder of the request bodies of one epoch. It encodes each record only once.

    Parameters
    ----------
    baseline, options, slot
        See :func:`head`.

    Notes
    -----
    :meth:`request` builds the next body and checks that it begins with the prefix of the last request passed to :meth:`sent`. The
    check compares the records by identity, and the length and running SHA-256 of the body. So the cost does not depend on the
    length of the messages.
    """

    def __init__(self, baseline: Baseline, options: Mapping[str, Any], slot: int | None) -> None:
        self._head = head(baseline, options, slot)
        self._last: Request | None = None
        self._restart()

    @classmethod
    def resume(cls, start: SessionStart, baseline: Baseline, records: Sequence[LogRecord]) -> RequestEncoder:
        """Return an encoder that has encoded all records of an epoch, so that the next request extends the last one.

        Raises
        ------
        ContractBroken
            If the last request, rebuilt from the log, does not have the SHA-256 that was recorded when it was sent.
        """
        encoder = cls(baseline, start.options, start.slot)
        requests = deque(encoder._replay(records), maxlen=1)
        for _, record, request in requests:
            if request.sha256 != record.request_sha256:
                raise ContractBroken(
                    f"request {record.request} of epoch {start.epoch}, rebuilt from the log, has SHA-256 {request.sha256}, "
                    f"but SHA-256 {record.request_sha256} was recorded when it was sent"
                )
            encoder.sent(request)
        return encoder

    def request(self, records: Sequence[LogRecord], newest: User | None = None) -> Request:
        """Build the next request.

        Parameters
        ----------
        records : sequence of LogRecord
            All records of the epoch, in the order of the log. A list is faster than other sequences, which are copied.
        newest : User, optional
            A user message to send that is not in the log yet.

        Returns
        -------
        Request
            The request body.

        Raises
        ------
        ContractBroken
            If the body would not extend the body sent last. The error contains the offset of the first byte that differs, and the
            member of the body at this offset.
        """
        try:
            for record in records[len(self._records) :]:
                self._absorb(record)
            # Lists compare by identity first, so the texts are not read.
            if (records if isinstance(records, list) else list(records)) != self._records:
                self._restart()
                for record in records:
                    self._absorb(record)
        except BaseException:
            self._restart()  # an interrupt may have stopped it inside a record
            raise
        if self._last is not None and 1 + len(self._chunks) < len(self._last):
            raise self._broken()
        return self._build(None if newest is None else _chunk(newest))

    def sent(self, request: Request) -> None:
        """Remember ``request`` as the last one that was sent and logged. The next request must extend it."""
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

    def _build(self, newest: bytes | None) -> Request:
        running, size = self._hash.copy(), self._size
        if newest is not None:
            running.update(newest)
            size += len(newest)
        prefix = running.hexdigest()
        running.update(TAIL)
        return Request(self._head, self._chunks, len(self._chunks), newest, prefix, running.hexdigest(), size + len(TAIL))

    def _replay(self, records: Sequence[LogRecord]) -> Iterator[Replayed]:
        request: Request | None = None
        for index, record in enumerate(records):
            if isinstance(record, Assistant):
                request = self._build(None)
            elif isinstance(record, UsageRecord) and request is not None:
                yield Replayed(index, record, request)
            self._absorb(record)

    def _broken(self) -> ContractBroken:
        assert self._last is not None
        old, new = self._last.prefix, self._build(None).body
        offset = first_difference(old, new)
        member = path_at(old, offset)
        was, now = ascii(old[offset : offset + 40])[1:], ascii(new[offset : offset + 40])[1:]
        self._restart()
        return ContractBroken(
            f"they differ from byte {offset} on, in {member}: {was} was sent, but now it is {now}", offset=offset, member=member
        )


def _chunk(record: LogRecord) -> bytes | None:
    message = message_of(record)
    return None if message is None else b"," + encode_message(message)


def replayed(start: SessionStart, baseline: Baseline, records: Sequence[LogRecord]) -> Iterator[Replayed]:
    """Rebuild every request of an epoch, in one pass over its records.

    Parameters
    ----------
    start : SessionStart
        First record of the epoch. It contains the options and the slot.
    baseline : Baseline
        Baseline of the epoch.
    records : sequence of LogRecord
        All records of the epoch.

    Yields
    ------
    Replayed
        One request for each usage record, in order. The requests share their encoded messages, which saves memory.
    """
    return RequestEncoder(baseline, start.options, start.slot)._replay(records)
