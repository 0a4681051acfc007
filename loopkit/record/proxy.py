"""A pass-through proxy on loopback: each connection of a client gets one to the server, and bytes go from one to the other.

Sockets and an onlooker, no HTTP library in between that would read a message and write another: what arrives is what leaves, at
once, and each side sees how the other hangs up. So what HTTP says from hop to hop (``Connection``, ``Keep-Alive``) holds as it
stands: the two connections live and end together. asyncio, for one thread then holds any number of them. It listens on 127.0.0.1
and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import threading
from pathlib import Path
from typing import Self

import httpx

from loopkit.encoding import encode
from loopkit.errors import InvalidConfig, describe
from loopkit.record.http_observer import ForeignHost, HttpObserver
from loopkit.record.recorder import Recorder
from loopkit.reprs import Card
from loopkit.server.transport.connection import parse

__all__ = ["Proxy"]

PIECE = 1 << 16
CONNECT = 10.0  # seconds until a connection to the server stands
LINGER = 5.0  # seconds for a client to read why it was refused

_log = logging.getLogger("loopkit.record")


class Proxy:
    """A running proxy; made by `loopkit.record.proxy`.

    Attributes
    ----------
    url : str
        What the client is to be pointed at in place of the server.
    upstream : str
        The server.
    """

    def __init__(self, url: str, home: str | Path, port: int) -> None:
        target = parse(url)
        if target.userinfo or target.query or target.fragment:
            raise InvalidConfig("url", "it holds a login or a query", "What the client sends of these is passed on")
        if not isinstance(port, int) or not 0 <= port < 1 << 16:
            raise InvalidConfig("port", f"127.0.0.1:{port} cannot be listened on: it is no port")
        self.upstream = str(target)
        self._host, self._name = target.host, target.netloc.decode("ascii")
        self._tls = httpx.create_ssl_context() if target.scheme == "https" else None
        self._port = target.port or (443 if self._tls else 80)
        self._recorder = Recorder(home)
        try:
            listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise InvalidConfig("port", f"127.0.0.1:{port} cannot be listened on: {describe(error)}") from error
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}{target.path.rstrip('/')}"
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(listener,), name="loopkit-record-proxy", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """The recording; it is made with its first line."""
        return self._recorder.path

    @property
    def recorded(self) -> int:
        """Requests whose line is on disk."""
        return self._recorder.recorded

    @property
    def missed(self) -> int:
        """Requests that were passed on and could not be recorded."""
        return self._recorder.missed

    def close(self) -> None:
        """Hang up on both sides, and wait until all is written; a second time does nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _card(self) -> Card:
        facts = [("before", self.upstream), ("recorded", f"{self.recorded:,}")]
        more = (("under way", self._recorder.under_way), ("not recorded", self.missed))
        return Card(f"Proxy {self.url}", [*facts, *((name, f"{count:,}") for name, count in more if count)])

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()

    def _run(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        clients: dict[asyncio.Task[None], _Side] = {}

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            client = _Side(reader, writer)
            task = asyncio.create_task(self._connection(client))
            clients[task] = client
            task.add_done_callback(clients.pop)

        server = await asyncio.start_server(accept, sock=listener)
        await self._stop.wait()
        server.close()
        standing = dict(clients)
        for task in standing:
            task.cancel()
        await asyncio.gather(*standing, return_exceptions=True)
        for client in standing.values():  # of those that were cancelled before they began
            await client.drop()

    async def _connection(self, client: _Side) -> None:
        """One client, until either side is gone."""
        try:
            async with asyncio.timeout(CONNECT):
                name = self._host if self._tls else None
                server = _Side(*await asyncio.open_connection(self._host, self._port, ssl=self._tls, server_hostname=name))
        except (OSError, TimeoutError) as error:
            why = f"{self.upstream} cannot be reached: {describe(error) if str(error) else 'no connection in time'}"
            _log.warning("%s", why)
            await client.refuse(b"502 Bad Gateway", why)
            return
        passing = HttpObserver(self._recorder, self._name)
        try:
            await self._both(client, server, passing)
        except ForeignHost:
            await server.drop()
            await client.refuse(b"421 Misdirected Request", "the Host of this request is not this machine")
        finally:
            passing.end("hung_up")
            await server.drop()
            await client.drop()

    async def _both(self, client: _Side, server: _Side, passing: HttpObserver) -> None:
        """Pass on what comes from either side."""
        asking = asyncio.create_task(self._asking(client, server, passing))
        answering = asyncio.create_task(self._answering(server, client, passing))
        try:
            await asyncio.wait((asking, answering), return_when=asyncio.FIRST_COMPLETED)
            if asking.done() and not asking.result():
                return
            await answering
        finally:
            asking.cancel()
            answering.cancel()
            await asyncio.gather(asking, answering, return_exceptions=True)

    async def _asking(self, client: _Side, server: _Side, passing: HttpObserver) -> bool:
        """Pass on what the client sends, and then its end; False where the server cannot be told of that but by hanging up."""
        while data := await client.read():
            out = passing.asked(data)
            if out and not await server.write(out):
                return True  # it may have said why
        return not client.broken and server.end()

    async def _answering(self, server: _Side, client: _Side, passing: HttpObserver) -> None:
        """Pass on what the server sends, and then its end."""
        while data := await server.read():
            if not await client.write(data):
                return
            passing.answered(data)
        if not client.ended:  # else the end may be its doing
            passing.answered(b"")
        passing.end("hung_up" if client.ended else "cut")
        if not server.broken:
            await client.finish()


class _Side:
    """A connection, to the client or to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.ended = self.broken = False

    async def read(self) -> bytes:
        """What comes next; nothing where that is the end, or the connection broke."""
        data = b""
        try:
            data = await self._reader.read(PIECE)
        except OSError:
            self.broken = True
        self.ended = not data
        return data

    async def write(self, data: bytes) -> bool:
        """Send; False where the connection broke."""
        self._writer.write(data)
        try:
            await self._writer.drain()
        except OSError:
            self.broken = True
        return not self.broken

    def end(self) -> bool:
        """Say that no more comes; False where that cannot be said, as with TLS."""
        if self._writer.is_closing() or not self._writer.can_write_eof():
            return False
        self._writer.write_eof()
        return True

    async def finish(self) -> None:
        """Close when all was sent."""
        self._writer.close()
        with contextlib.suppress(OSError):  # it is gone
            await self._writer.wait_closed()

    async def drop(self) -> None:
        """Hang up at once, as one hangs up whose connection broke; after `finish` there is nothing to do."""
        if not self._writer.is_closing():
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
            await self.finish()

    async def refuse(self, status: bytes, why: str) -> None:
        """Answer in place of the server, and close."""
        body = encode({"error": {"message": f"loopkit record: {why}", "type": "loopkit_record"}})
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        self._writer.write(head % (status, len(body)) + body)
        self.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER):  # what it still sends is taken, or it would not read this
                while await self.read():
                    pass
        await self.finish()
