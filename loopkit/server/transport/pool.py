"""Kept connections to one server.

A channel is one httpx client with one connection. Only one request uses a channel at a time, so a channel needs no lock, which
Ctrl-C could leave locked. A channel is kept for later requests only after a complete response. After a fork, the child process
opens new connections.
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
"Seconds that an unused connection is kept. It is less than 5, because llama.cpp and uvicorn close connections after 5 s."


class Channel:
    """One httpx client with at most one connection.

    If an interrupt such as Ctrl-C prevents a request from returning its channel to the pool, the connection is closed when the
    channel is garbage-collected.
    """

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.owner = os.getpid()
        self.is_new = True
        "False while a request uses a connection that an earlier request opened."
        self._sockets: list[socket.socket] = []  # empty, or the socket of the connection
        self._cancellation: Cancellation | None = None
        for transport in (client._transport, *client._mounts.values()):
            if isinstance(transport, httpx.HTTPTransport):
                # After an interrupt, httpcore would acquire this lock a second time while it cleans up, and wait forever.
                transport._pool._optional_thread_lock = contextlib.nullcontext()  # type: ignore[assignment]
        self._finalizer = weakref.finalize(self, _close, client, self._sockets)

    def begin(self, cancellation: Cancellation | None) -> None:
        """Prepare the channel for a request, which `cancellation` can then end."""
        self.is_new, self._cancellation = not self._sockets, cancellation
        if cancellation is not None and self._sockets:
            cancellation.attach(self._sockets[-1])

    def end(self) -> bool:
        """Finish a request. Return True if it was not cancelled, so that another request may use the connection."""
        cancellation, self._cancellation = self._cancellation, None
        return cancellation is None or cancellation.detach()

    def tracer(self) -> Callable[[str, Mapping[str, Any]], None]:
        """Return a function for httpcore to call at each step of a request. It registers the socket of a new connection.

        The client keeps this function, so the function has only a weak reference to the channel.
        """
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
        """Close the connection. Safe to call twice, for example after an interrupted call."""
        _close(self.client, self._sockets)
        self.end()
        self._finalizer.detach()


def _close(client: httpx.Client, sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()  # before the client, because an interrupted `client.close` does nothing when it is called again
    client.close()


class Pool:
    """The idle channels of one server, which no request uses at present.

    Parameters
    ----------
    make : callable
        Function that returns a new httpx client.
    """

    def __init__(self, make: Callable[[], httpx.Client]) -> None:
        self._make = make
        self._idle: list[Channel] = []  # append and pop are atomic
        self._is_closed = False

    def take(self, cancellation: Cancellation | None) -> Channel:
        """Return a channel for one request: the idle channel that was used last, or a new one if there is none."""
        while True:
            try:
                channel = self._idle.pop()
            except IndexError:
                channel = Channel(self._make())
            if channel.owner == os.getpid():
                channel.begin(cancellation)
                return channel
            channel.close()  # the channel belongs to the parent process; this closes only the copy of its descriptor here

    def give_back(self, channel: Channel) -> None:
        """Keep a channel for later requests, after a complete response. Close it if its request was cancelled."""
        if not channel.end():
            channel.close()
            return
        self._idle.append(channel)
        if self._is_closed:  # another thread has closed the pool in the meantime
            self.close()

    def close(self) -> None:
        """Close all idle connections, and later each connection that is given back."""
        self._is_closed = True
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread has taken the last channel
                self._idle.pop().close()
