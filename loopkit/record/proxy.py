"""A pass-through proxy on 127.0.0.1. Each client connection gets its own connection to the server.

Bytes are forwarded as they arrive, without an HTTP library that would rewrite them. If one side disconnects, so does the proxy on
the other side. Both connections end together, so headers about a connection (``Connection``, ``Keep-Alive``) stay valid.
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
from loopkit.server.transport.address import parse

__all__ = ["Proxy"]

READ_BYTES = 1 << 16
CONNECT_TIMEOUT = 10.0
"Seconds after which an attempt to connect to the server fails."
REFUSAL_TIMEOUT = 5.0
"Seconds that the proxy waits until a client has read an error response."
FLUSH_TIMEOUT = 1.0
"Seconds that ``repr`` waits for lines that are being written, so that its count is current."

_log = logging.getLogger("loopkit.record")


class Proxy:
    """A running proxy, returned by `loopkit.record.proxy`.

    Attributes
    ----------
    url : str
        Address of the proxy. Use it as the client's base URL.
    upstream : str
        Address of the server that requests are forwarded to.
    """

    def __init__(self, url: str, home: str | Path, port: int) -> None:
        target = parse(url)
        if target.userinfo or target.query or target.fragment:
            raise InvalidConfig("url", "it contains a login or a query", "Leave them out: those of the client are passed on")
        if not isinstance(port, int) or not 0 <= port < 1 << 16:
            raise InvalidConfig("port", f"expected an integer from 0 to 65535; got {port!r}", "Use 0 for a free port")
        self.upstream = str(target)
        self._host, self._name = target.host, target.netloc.decode("ascii")
        self._tls = httpx.create_ssl_context() if target.scheme == "https" else None
        self._port = target.port or (443 if self._tls else 80)
        self._recorder = Recorder(home)
        try:
            listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise InvalidConfig(
                "port", f"cannot listen on 127.0.0.1:{port}: {describe(error)}", "Use 0 for a free port"
            ) from error
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}{target.path.rstrip('/')}"
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(listener,), name="loopkit-record-proxy", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """Path of the recording. The file is created when the first line is written."""
        return self._recorder.path

    @property
    def recorded(self) -> int:
        """Number of requests written to disk."""
        return self._recorder.recorded

    @property
    def missed(self) -> int:
        """Number of requests that were passed on but not recorded."""
        return self._recorder.missed

    def close(self) -> None:
        """Close all connections and wait until the recording is written. Safe to call twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _card(self) -> Card:
        self._recorder.flush(FLUSH_TIMEOUT)
        facts = [("server", self.upstream), ("recorded", f"{self.recorded:,}")]
        more = (("in progress", self._recorder.in_progress), ("not recorded", self.missed))
        return Card(f"Proxy {self.url}", [*facts, *((name, f"{count:,}") for name, count in more if count)])

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        return self._card().html()

    def _run(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        clients: dict[asyncio.Task[None], _Connection] = {}

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            client = _Connection(reader, writer)
            task = asyncio.create_task(self._serve_client(client))
            clients[task] = client
            task.add_done_callback(clients.pop)

        server = await asyncio.start_server(accept, sock=listener)
        await self._stop.wait()
        server.close()
        connected = dict(clients)
        for task in connected:
            task.cancel()
        await asyncio.gather(*connected, return_exceptions=True)
        for client in connected.values():  # tasks that were cancelled before they started
            await client.drop()

    async def _serve_client(self, client: _Connection) -> None:
        """Serve one client until either side disconnects."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                name = self._host if self._tls else None
                streams = await asyncio.open_connection(self._host, self._port, ssl=self._tls, server_hostname=name)
                server = _Connection(*streams)
        except (OSError, TimeoutError) as error:
            reason = describe(error) if str(error) else f"no connection within {CONNECT_TIMEOUT:g} s"
            why = f"Cannot connect to {self.upstream}: {reason}."
            _log.warning("%s", why)
            await client.refuse(b"502 Bad Gateway", why)
            return
        observer = HttpObserver(self._recorder, self._name)
        try:
            await self._forward(client, server, observer)
        except ForeignHost:
            await server.drop()
            await client.refuse(b"421 Misdirected Request", "The Host header of this request does not name this machine.")
        finally:
            observer.end("hung_up")
            await server.drop()
            await client.drop()

    async def _forward(self, client: _Connection, server: _Connection, observer: HttpObserver) -> None:
        """Forward bytes in both directions until the server ends the connection or the client disconnects."""
        requests = asyncio.create_task(self._forward_requests(client, server, observer))
        responses = asyncio.create_task(self._forward_responses(server, client, observer))
        try:
            await asyncio.wait((requests, responses), return_when=asyncio.FIRST_COMPLETED)
            if requests.done() and not requests.result():
                return
            await responses
        finally:
            requests.cancel()
            responses.cancel()
            await asyncio.gather(requests, responses, return_exceptions=True)

    async def _forward_requests(self, client: _Connection, server: _Connection, observer: HttpObserver) -> bool:
        """Forward the client's bytes until it stops sending.

        Return False if the server connection must be closed to signal this, and True if the server may still respond.
        """
        while data := await client.read():
            out = observer.request_bytes(data)
            if out and not await server.write(out):
                return True  # the server may still send a response
        return not client.broken and server.end()

    async def _forward_responses(self, server: _Connection, client: _Connection, observer: HttpObserver) -> None:
        """Forward the server's bytes until it stops sending.

        Bytes are recorded before they are forwarded, so a response that the client has received completely is in the recording.
        """
        while data := await server.read():
            observer.response_bytes(data)
            if not await client.write(data):
                return
        if not client.ended:  # otherwise the client may have caused the end
            observer.response_bytes(b"")
        observer.end("hung_up" if client.ended else "cut")
        if not server.broken:
            await client.finish()


class _Connection:
    """A connection to the client or to the server: its asyncio reader and writer, and whether it ended or broke."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.ended = self.broken = False

    async def read(self) -> bytes:
        """Return the next bytes, or ``b""`` if the connection ended or broke."""
        data = b""
        try:
            data = await self._reader.read(READ_BYTES)
        except OSError:
            self.broken = True
        self.ended = not data
        return data

    async def write(self, data: bytes) -> bool:
        """Send bytes. Return False if the connection broke."""
        self._writer.write(data)
        try:
            await self._writer.drain()
        except OSError:
            self.broken = True
        return not self.broken

    def end(self) -> bool:
        """Signal the end of sending. Return False if that is impossible, as with TLS."""
        if self._writer.is_closing() or not self._writer.can_write_eof():
            return False
        self._writer.write_eof()
        return True

    async def finish(self) -> None:
        """Close the connection after all bytes are sent."""
        self._writer.close()
        with contextlib.suppress(OSError):  # already disconnected
            await self._writer.wait_closed()

    async def drop(self) -> None:
        """Reset the connection, so that the other side sees an error. Do nothing after `finish`."""
        if not self._writer.is_closing():
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
            await self.finish()

    async def refuse(self, status: bytes, why: str) -> None:
        """Send the client an error response from the proxy itself, and close the connection."""
        body = encode({"error": {"message": f"loopkit record: {why}", "type": "loopkit_record"}})
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        self._writer.write(head % (status, len(body)) + body)
        self.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REFUSAL_TIMEOUT):  # a client may send its whole request before it reads
                while await self.read():
                    pass
        await self.finish()
