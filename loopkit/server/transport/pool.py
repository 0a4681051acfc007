"""Kept connections to one server.

A channel is one httpx client with one connection. One request has it at a time, so it needs no lock: Ctrl-C could leave a lock
taken. A channel is kept only after a complete response. After a fork, the child opens connections of its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from loopkit.server.transport.cancellation import Cancellation

__all__ = ["KEEPALIVE", "Channel", "Pool"]

KEEPALIVE = 3.0
"Seconds that an unused connection is kept. llama.cpp and uvicorn close it after 5."


class Channel:
    """One httpx client with at most one connection. A channel that an interrupt loses closes its connection itself."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.owner = os.getpid()
        self.is_new = True
        "False while a request uses a connection of an earlier request."
        self._sockets: list[socket.socket] = []  # at most one
        self._cancellation: Cancellation | None = None
        for transport in (client._transport, *client._mounts.values()):
            if isinstance(transport, httpx.HTTPTransport):
                # httpcore takes this lock again while it cleans up, and would wait for itself after an interrupt.
                transport._pool._optional_thread_lock = contextlib.nullcontext()  # type: ignore[assignment]
        self._finalizer = weakref.finalize(self, _close, client, self._sockets)

    def begin(self, cancellation: Cancellation | None) -> None:
        """Prepare for a request."""
        self.is_new, self._cancellation = not self._sockets, cancellation
        if cancellation is not None and self._sockets:
            cancellation.attach(self._sockets[-1])

    def end(self) -> bool:
        """Finish a request. Return True if the connection was not cancelled."""
        cancellation, self._cancellation = self._cancellation, None
        return cancellation is None or cancellation.detach()

    def tracer(self) -> Callable[[str, Mapping[str, Any]], None]:
        """Return what httpcore calls at each step of a request. The client keeps it, so it must not keep the channel alive."""
        reference = weakref.ref(self)

        def trace(name: str, info: Mapping[str, Any]) -> None:
            if name.endswith((".connect_tcp.complete", ".connect_unix_socket.complete", ".start_tls.complete")):
                connection, channel = info["return_value"].get_extra_info("socket"), reference()
                if channel is not None and connection is not None:
                    channel._connected(connection)

        return trace

    def _connected(self, connection: socket.socket) -> None:
        self._sockets[:] = [connection]
        self.is_new = True
        if self._cancellation is not None:
            self._cancellation.attach(connection)

    def close(self) -> None:
        """Close the connection. Closing it again is safe, also after an interrupt."""
        _close(self.client, self._sockets)
        self.end()
        self._finalizer.detach()


def _close(client: httpx.Client, sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()  # first: a client whose `close` was interrupted does nothing when it is closed again
    client.close()


class Pool:
    """The channels of one server that no request uses.

    Parameters
    ----------
    make : callable
        Creates an httpx client.
    """

    def __init__(self, make: Callable[[], httpx.Client]) -> None:
        self._make = make
        self._idle: list[Channel] = []  # append and pop are atomic
        self._is_closed = False

    def take(self, cancellation: Cancellation | None) -> Channel:
        """Return a channel for one request, the one used last if there is any."""
        while True:
            try:
                channel = self._idle.pop()
            except IndexError:
                channel = Channel(self._make())
            if channel.owner == os.getpid():
                channel.begin(cancellation)
                return channel
            channel.close()  # the parent's: this closes our copy of the descriptor only

    def give_back(self, channel: Channel) -> None:
        """Keep a channel after a complete response."""
        if not channel.end():
            channel.close()
            return
        self._idle.append(channel)
        if self._is_closed:  # in another thread, meanwhile
            self.close()

    def close(self) -> None:
        """Close all kept connections, and later each that is given back."""
        self._is_closed = True
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread took the last one
                self._idle.pop().close()
