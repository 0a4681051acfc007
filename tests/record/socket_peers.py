"""Both sides of a proxy at raw sockets: a client and a server that send what a test wrote, and keep what came."""

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
SAID = b'{"model":"m","choices":[{"message":{"content":"Yes."},"finish_reason":"stop"}],"usage":{"prompt_tokens":9}}'


class Tee(_Listener):
    """Waits until so many bytes of a connection have come, then sends its steps, and so on; keeps all that came.

    Of each connection ``script`` has pairs: how many bytes to wait for, and what to send then.
    """

    def __init__(self, *script: tuple[int, Sequence[Step]], close: bool = True) -> None:
        self._script, self._close = script, close
        self.came: list[bytearray] = []
        self.ended = threading.Event()
        super().__init__()

    def handle(self, connection: socket.socket) -> None:
        came = bytearray()
        self.came.append(came)
        for size, steps in self._script:
            while len(came) < size and (data := connection.recv(65536)):
                came += data
            for step in steps:
                if isinstance(step, bytes):
                    connection.sendall(step)
                else:
                    step()
        if not self._close:
            try:
                while data := connection.recv(65536):
                    came += data
            finally:
                self.ended.set()


def port_of(url: str) -> int:
    found = re.search(r":(\d+)", url)
    assert found is not None
    return int(found[1])


def dial(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(url)), timeout=30)


def rest(connection: socket.socket) -> bytes:
    """All that still comes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def until(connection: socket.socket, end: bytes) -> bytes:
    """What comes, up to these bytes."""
    came = b""
    while not came.endswith(end) and (data := connection.recv(65536)):
        came += data
    return came


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
