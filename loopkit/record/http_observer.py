"""Requests and responses on one connection, found in the bytes that pass.

The bytes pass unchanged, except that the ``Host`` line is rewritten to name the server. The parser h11 reads a copy of them. If
it cannot parse the copy, or the protocol switches, the rest of the connection passes unrecorded, and a warning is logged.
"""

from __future__ import annotations

import logging
import re
from collections import deque

import h11

from loopkit.record.recorder import Ending, ObservedExchange, Recorder

__all__ = ["HttpObserver"]

MAX_HEAD_BYTES = 1 << 20
"Largest size in bytes of the head of a request or response; larger heads end the recording of the connection."
_HOST_LINE = re.compile(rb"(?im)^host:[ \t]*([^\r\n]*)")
_LOOPBACK = re.compile(rb"(?i)(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?[ \t]*")

_log = logging.getLogger("loopkit.record")


class ForeignHost(Exception):
    """The ``Host`` of a request is not this machine, as in a DNS rebinding attack by a web page."""


class HttpObserver:
    """Parses the bytes of one connection into requests and responses, and gives them to a recorder.

    Parameters
    ----------
    recorder : Recorder
        Writes each request with its response.
    host : str
        Value of the ``Host`` line that is sent to the server.
    """

    def __init__(self, recorder: Recorder, host: str) -> None:
        self._recorder, self._host = recorder, host.encode("ascii")
        self._head_bytes = bytearray()
        "Bytes of a request head that has not arrived completely."
        self._request_parser: h11.Connection | None = None
        self._response_parser: h11.Connection | None = None
        self._open: deque[tuple[h11.Request, ObservedExchange | None]] = deque()
        "Requests whose response has not ended, oldest first."
        self._is_unreadable = False

    def request_bytes(self, data: bytes) -> bytes:
        """Read the next bytes from the client. Return the bytes to send to the server.

        Raises
        ------
        ForeignHost
            If a request names another host.
        """
        out = b""
        if self._is_unreadable:
            data = bytes(self._head_bytes) + data
            self._head_bytes.clear()
        while data and not self._is_unreadable:
            if self._request_parser is not None:
                data, passed = self._read_body(self._request_parser, data)
                out += passed
                continue
            self._head_bytes += data
            end = self._head_bytes.find(b"\r\n\r\n") + 4
            if end < 4 and len(self._head_bytes) <= MAX_HEAD_BYTES:
                return out
            head, data = bytes(self._head_bytes[:end]), bytes(self._head_bytes[end:])
            self._head_bytes.clear()
            out += self._start_request(head)
        return out + data

    def _start_request(self, head: bytes) -> bytes:
        """Parse the head of a request. Return the head to send to the server, with the server's ``Host`` line."""
        host = _HOST_LINE.search(head)
        if host and not _LOOPBACK.fullmatch(host[1]):
            raise ForeignHost
        self._request_parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        try:
            self._request_parser.receive_data(head)
            request = self._request_parser.next_event()
        except h11.ProtocolError as error:
            self._give_up(error)
            return head
        if isinstance(request, h11.Request):
            exchange = self._recorder.start(request.method.decode(), request.target.decode())
            self._open.append((request, exchange))
            self._read_body(self._request_parser, b"")
        return head if host is None else head[: host.start(1)] + self._host + head[host.end(1) :]

    def _read_body(self, parser: h11.Connection, data: bytes) -> tuple[bytes, bytes]:
        """Read the next bytes of a request body. Return the bytes after the body, and the bytes of the body."""
        exchange = self._open[-1][1] if self._open else None
        try:
            if data:
                parser.receive_data(data)
            while True:
                event = parser.next_event()
                if isinstance(event, h11.Data) and exchange is not None:
                    exchange.body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    self._request_parser = None
                    rest = parser.trailing_data[0]
                    return rest, data[: len(data) - len(rest)]
                elif not isinstance(event, h11.Data):
                    return b"", data
        except h11.ProtocolError as error:
            self._give_up(error)
            return b"", data

    def response_bytes(self, data: bytes) -> None:
        """Read the next bytes from the server. ``b""`` means that the connection has ended."""
        while not self._is_unreadable and (data or self._response_parser is not None):
            if self._response_parser is None:
                if not self._open:
                    return  # a response without a request
                self._response_parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
                request = self._open[0][0]
                self._response_parser.send(h11.Request(method=request.method, target=b"/", headers=[(b"host", b"x")]))
                self._response_parser.send(h11.EndOfMessage())
            data = self._read_response(self._response_parser, self._open[0][1], data)
            if self._response_parser is not None:
                return

    def _read_response(self, parser: h11.Connection, exchange: ObservedExchange | None, data: bytes) -> bytes:
        """Read the next bytes of a response. Return the bytes after the response."""
        try:
            parser.receive_data(data)
            while True:
                event = parser.next_event()
                if isinstance(event, h11.Response) and exchange is not None:
                    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers]
                    exchange.start_response(event.status_code, pairs)
                elif isinstance(event, h11.Data) and exchange is not None:
                    exchange.feed(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    self._open.popleft()
                    self._response_parser = None
                    if exchange is not None:
                        exchange.end("whole")
                    return parser.trailing_data[0]
                elif event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    return b""
        except h11.ProtocolError as error:
            if data:
                self._give_up(error)
            return b""

    def _give_up(self, error: h11.ProtocolError) -> None:
        self._is_unreadable = True
        _log.warning("A connection is passed on but no longer recorded. Its bytes are not valid HTTP/1.1: %s", error)

    def end(self, ending: Ending) -> None:
        """End all open exchanges when the connection ends."""
        for _, exchange in self._open:
            if exchange is not None:
                exchange.end(ending)
        self._open.clear()
