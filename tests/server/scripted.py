"""A server that says what a test wrote, byte for byte, and keeps what it received; for faults that a real one will not produce.

A response is a list of steps: bytes to send, `HANG` to wait until the client hangs up, or a function to call. After its steps the
connection is closed. `Relay` stands before a real server and keeps the bytes that passed.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from loopkit.contract.baseline import Baseline
from loopkit.contract.records import User
from loopkit.contract.request import Request, RequestEncoder

HANG: Callable[[], None] = lambda: None  # noqa: E731  # a mark, never called
Step: TypeAlias = bytes | Callable[[], object]

END = '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'

NO_ADDRESSES = (
    "http://[",
    "http://[::1",
    "http://h:99999",
    "http://h:65536",
    "http://h:0",
    "http://h:-1",
    "http://ho st",
    "http://xn--0",
    "http://h/\ud800",
    "http://a..b",
    "http://.",
    f"http://{'a' * 64}",
)
"Of a form that passes for an address until it is dialled."


def text(content: str) -> str:
    """The data of an event with a piece of text; the content stands in it as it is."""
    return '{"choices":[{"index":0,"delta":{"content":"' + content + '"}}]}'


def head(status: int = 200, kind: str = "text/event-stream", **headers: str) -> bytes:
    """The head of a response whose body ends with the connection."""
    lines = [f"HTTP/1.1 {status} Scripted", f"Content-Type: {kind}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def sse(*data: str, kind: str = "text/event-stream") -> list[Step]:
    """A response of events, each sent on its own."""
    return [head(kind=kind), *(f"data: {each}\n\n".encode() for each in data)]


def answer(body: str | bytes, status: int = 200, kind: str = "application/json", **headers: str) -> list[Step]:
    """A response that comes whole."""
    return [head(status, kind, **headers) + (body.encode() if isinstance(body, str) else body)]


def make_request(content: str = "Hi é\u2028.", **options: Any) -> Request:
    """A small request; the options are members of its body."""
    encoder = RequestEncoder(Baseline("Be brief.", ()), {"stream": True, **options}, None)
    return encoder.request([], User(time="2026-11-30T07:31:05.000000Z", content=content))


@dataclass
class Received:
    """One request, as it came off the socket."""

    line: str
    headers: dict[str, str]
    body: bytes
    raw: bytes
    hung_up: threading.Event = field(default_factory=threading.Event)
    "Set when the client hung up while a `HANG` waited for it."


def read_request(connection: socket.socket) -> Received | None:
    """Read one request with a Content-Length."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        if not (data := connection.recv(65536)):
            return None
        raw += data
    start, _, body = raw.partition(b"\r\n\r\n")
    line, *fields = start.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in fields)}
    while len(body) < int(headers.get("content-length", "0")):
        if not (data := connection.recv(65536)):
            return None
        body += data
        raw += data
    return Received(line, headers, body, raw)


class _Listener:
    """Accepts connections on a port of 127.0.0.1, each handled in a thread of its own."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                thread = threading.Thread(target=self._guarded, args=(connection,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _guarded(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # the client hung up
            self.handle(connection)

    def handle(self, connection: socket.socket) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Scripted(_Listener):
    """Answers the n-th request with the n-th response; when there are no more, by closing the connection.

    With ``only``, requests whose first line does not hold that text are answered with 404 and not counted.
    """

    def __init__(self, responses: Sequence[Sequence[Step]], *, only: str = "") -> None:
        self._responses: Iterator[Sequence[Step]] = iter(list(responses))
        self._only = only
        self.requests: list[Received] = []
        super().__init__()

    def handle(self, connection: socket.socket) -> None:
        request = read_request(connection)
        if request is None:
            return
        if self._only not in request.line:
            connection.sendall(head(404, "application/json") + b"{}")
            return
        self.requests.append(request)
        for step in next(self._responses, ()):
            if step is HANG:
                with contextlib.suppress(ConnectionError):
                    connection.recv(1)
                request.hung_up.set()
            elif isinstance(step, bytes):
                connection.sendall(step)
            else:
                step()


class Relay(_Listener):
    """Passes bytes on to a real server and keeps those of the client, but for questions after the server's counters."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self.requests: list[Received] = []
        super().__init__()

    def handle(self, connection: socket.socket) -> None:
        request = read_request(connection)
        if request is None:
            return
        if not request.line.startswith(("GET /slots", "GET /metrics")):
            self.requests.append(request)
        with socket.create_connection(self._target) as server:
            # closed after the answer: else the end of it is waited for until the server lets go of an idle connection
            server.sendall(request.raw.replace(b"Connection: keep-alive", b"Connection: close", 1))
            while data := server.recv(65536):
                connection.sendall(data)


class KeepAlive(_Listener):
    """Keeps its connections open and answers each request by its path; None closes the connection without an answer."""

    def __init__(self, answer: Callable[[Received], bytes | None]) -> None:
        self._answer = answer
        self.requests: list[Received] = []
        super().__init__()

    @property
    def connections(self) -> int:
        return len(self._open)

    def handle(self, connection: socket.socket) -> None:
        while request := read_request(connection):
            self.requests.append(request)
            if (data := self._answer(request)) is None:
                return
            connection.sendall(data)


def kept(body: str, status: int = 200, kind: str = "application/json") -> bytes:
    """A response that leaves the connection open."""
    data = body.encode()
    return f"HTTP/1.1 {status} Kept\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def kept_sse(*data: str) -> bytes:
    """A chunked response of events that leaves the connection open."""
    chunks = [f"data: {each}\n\n".encode() for each in data]
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 Kept\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"
