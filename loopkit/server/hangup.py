"""A way to leave an answer from another thread: the connection is shut down, so that whoever waits at it is woken at once.

A thread that waits for a server's next byte sees no flag, and closing its socket does not wake it. Knows nothing of what is sent.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from typing import Any

__all__ = ["HangUp"]


class HangUp(threading.Event):
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
        super().__init__()
        self._socket: socket.socket | None = None

    def set(self) -> None:
        super().set()
        self._shut()

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
