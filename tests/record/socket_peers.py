"""Scripted clients and servers at raw sockets, on both sides of a proxy."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from loopkit.contract.recording import RecordedRequest, decode_recorded
from loopkit.session.journal import body_of, checked_blocks
from tests.server.scripted import _Listener

Step: TypeAlias = "bytes | Callable[[], object]"
BODY = b'{"model":"m","messages":[{"role":"user","content":"Hi \xc3\xa9\xe2\x80\xa8."}]}'
ANSWER = b'{"model":"m","choices":[{"message":{"content":"Yes."},"finish_reason":"stop"}],"usage":{"prompt_tokens":9}}'


class ScriptedServer(_Listener):
    """A scripted server that keeps all bytes that it received.

    ``script`` has pairs for each connection: the number of bytes to wait for, and the steps to run or send then.
    """

    def __init__(self, *script: tuple[int, Sequence[Step]], close: bool = True) -> None:
        self._script, self._close = script, close
        self.received: list[bytearray] = []
        self.ended = threading.Event()
        super().__init__()

    def handle(self, connection: socket.socket) -> None:
        received = bytearray()
        self.received.append(received)
        for size, steps in self._script:
            while len(received) < size and (data := connection.recv(65536)):
                received += data
            for step in steps:
                if isinstance(step, bytes):
                    connection.sendall(step)
                else:
                    step()
        if not self._close:
            try:
                while data := connection.recv(65536):
                    received += data
            finally:
                self.ended.set()


def port_of(url: str) -> int:
    found = re.search(r":(\d+)", url)
    assert found is not None
    return int(found[1])


def dial(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(url)), timeout=30)


def read_all(connection: socket.socket) -> bytes:
    """Return all bytes up to the end of the connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """Return the bytes up to and including `end`."""
    received = b""
    while not received.endswith(end) and (data := connection.recv(65536)):
        received += data
    return received


def post(port: int, path: str = "/v1/chat/completions", body: bytes = BODY, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"HOST: 127.0.0.1:{port}", *more, "content-type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def recorded(file: Path) -> list[RecordedRequest]:
    return [decode_recorded(body_of(line) + b"}") for line in _lines(file)]


def _lines(file: Path) -> Iterator[bytes]:
    for block in checked_blocks(file):
        yield from block.lines


def chunked(pieces: Iterable[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
