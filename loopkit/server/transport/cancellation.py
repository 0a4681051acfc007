"""A way to leave an answer from another thread: the connection is shut down, so that whoever waits at it is woken at once.

A thread that waits for a server's next byte sees no flag, and closing its socket does not wake it. There is no lock in it that
Ctrl-C could leave taken, for it serves all of a loop's turns. Knows nothing of what is sent.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any

__all__ = ["HangUp"]


class HangUp:
    """An event that cuts the connection of the request under way when it is set, and of every later one until it is cleared.

    The request then fails like one whose connection broke; whoever set the event knows why.

    Examples
    --------
    >>> hang_up = HangUp()
    >>> hang_up.set()
    >>> hang_up.is_set()
    True
    """

    def __init__(self) -> None:
        self._set = False
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._socket: socket.socket | None = None

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._woken.put(None)
        self._shut()

    def clear(self) -> None:
        self._woken = SimpleQueue()
        self._set = False

    def wait(self, seconds: float) -> bool:
        """Wait until it is set, or for so long; tells whether it is."""
        if not self._set:
            with contextlib.suppress(Empty):
                self._woken.get(timeout=seconds)
        return self._set

    def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """Learn of a request's connection: httpcore's ``trace`` extension, called at each step of it."""
        if name.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            if self.is_set():  # either this sees the event, or whoever sets it sees the socket
                self._shut()

    def _shut(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is closed already
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # of TLS too: the bytes below it, nothing is said any more
