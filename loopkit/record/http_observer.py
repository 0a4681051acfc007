"""HTTP/1.1 as it passes by on one connection: where a request or an answer begins and ends. Bytes come out as they went in.

The one thing that is changed is the ``Host`` line, which has to name the server. h11 reads along; what it cannot make out, and
whatever follows a switch of protocols, is passed on unread, and the person is told. Knows nothing of sockets.
"""

from __future__ import annotations

import logging
import re
from collections import deque

import h11

from loopkit.record.recorder import How, ObservedExchange, Recorder

__all__ = ["HttpObserver"]

HEAD = 1 << 20
"Bytes that a head may have."
_HOST = re.compile(rb"(?im)^host:[ \t]*([^\r\n]*)")
_OURS = re.compile(rb"(?i)(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?[ \t]*")

_log = logging.getLogger("loopkit.record")


class ForeignHost(Exception):  # the errors of this project are named for what happened
    """A request that names another host: a web page that has made its name point here."""


class HttpObserver:
    """The requests and answers of one connection.

    Parameters
    ----------
    recorder : Recorder
        Takes each exchange.
    host : str
        What the ``Host`` line is to say.
    """

    def __init__(self, recorder: Recorder, host: str) -> None:
        self._recorder, self._host = recorder, host.encode("ascii")
        self._held = bytearray()
        "A request's head, until it is whole."
        self._asking: h11.Connection | None = None
        self._answering: h11.Connection | None = None
        self._open: deque[tuple[h11.Request, ObservedExchange | None]] = deque()
        "Requests whose answers have not ended."
        self._blind = False

    def asked(self, data: bytes) -> bytes:
        """Take what the client sent, and give what the server gets.

        Raises
        ------
        ForeignHost
            A request that is not meant for this machine.
        """
        out = b""
        if self._blind:
            data = bytes(self._held) + data
            self._held.clear()
        while data and not self._blind:
            if self._asking is not None:
                data, passed = self._body(self._asking, data)
                out += passed
                continue
            self._held += data
            end = self._held.find(b"\r\n\r\n") + 4
            if end < 4 and len(self._held) <= HEAD:
                return out
            head, data = bytes(self._held[:end]), bytes(self._held[end:])
            self._held.clear()
            out += self._head(head)
        return out + data

    def _head(self, head: bytes) -> bytes:
        """Begin a request; gives its head as it goes on."""
        named = _HOST.search(head)
        if named and not _OURS.fullmatch(named[1]):
            raise ForeignHost
        self._asking = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD)
        try:
            self._asking.receive_data(head)
            request = self._asking.next_event()
        except h11.ProtocolError as error:
            self._give_up(error)
            return head
        if isinstance(request, h11.Request):
            exchange = self._recorder.begin(request.method.decode(), request.target.decode())
            self._open.append((request, exchange))
            self._body(self._asking, b"")
        return head if named is None else head[: named.start(1)] + self._host + head[named.end(1) :]

    def _body(self, asking: h11.Connection, data: bytes) -> tuple[bytes, bytes]:
        """More of a request's body; gives what follows it, and what belongs to it."""
        exchange = self._open[-1][1] if self._open else None
        try:
            if data:
                asking.receive_data(data)
            while True:
                event = asking.next_event()
                if isinstance(event, h11.Data) and exchange is not None:
                    exchange.body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    self._asking = None
                    rest = asking.trailing_data[0]
                    return rest, data[: len(data) - len(rest)]
                elif not isinstance(event, h11.Data):
                    return b"", data
        except h11.ProtocolError as error:
            self._give_up(error)
            return b"", data

    def answered(self, data: bytes) -> None:
        """See what the server sent; no bytes are its end."""
        while not self._blind and (data or self._answering is not None):
            if self._answering is None:
                if not self._open:
                    return  # an answer that nobody asked for
                self._answering = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD)
                request = self._open[0][0]
                self._answering.send(h11.Request(method=request.method, target=b"/", headers=[(b"host", b"x")]))
                self._answering.send(h11.EndOfMessage())
            data = self._answer(self._answering, self._open[0][1], data)
            if self._answering is not None:
                return

    def _answer(self, answering: h11.Connection, exchange: ObservedExchange | None, data: bytes) -> bytes:
        """More of an answer; gives what follows it."""
        try:
            answering.receive_data(data)
            while True:
                event = answering.next_event()
                if isinstance(event, h11.Response) and exchange is not None:
                    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers]
                    exchange.head(event.status_code, pairs)
                elif isinstance(event, h11.Data) and exchange is not None:
                    exchange.data(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    self._open.popleft()
                    self._answering = None
                    if exchange is not None:
                        exchange.end("whole")
                    return answering.trailing_data[0]
                elif event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    return b""
        except h11.ProtocolError as error:
            if data:
                self._give_up(error)
            return b""

    def _give_up(self, error: h11.ProtocolError) -> None:
        self._blind = True
        _log.warning("a connection is passed on unread from here on: %s", error)

    def end(self, how: How) -> None:
        """The connection is no more."""
        for _, exchange in self._open:
            if exchange is not None:
                exchange.end(how)
        self._open.clear()
