"""Cancellation of a request from another thread, by shutting down its socket."""

from __future__ import annotations

import contextlib
import socket
from queue import Empty, SimpleQueue

__all__ = ["Cancellation"]


class Cancellation:
    """An event that shuts down the socket of the request in progress, and of later requests until it is cleared.

    A thread that waits for the server's next byte does not notice a flag, and closing its socket does not wake it. The request
    fails as if its connection broke.

    It has no lock: Ctrl-C could leave a lock taken, and one object serves all turns of a loop.

    Examples
    --------
    >>> cancellation = Cancellation()
    >>> cancellation.set()
    >>> cancellation.is_set()
    True
    """

    def __init__(self) -> None:
        self._is_set = False
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._socket: socket.socket | None = None

    def is_set(self) -> bool:
        """Return True between `set` and `clear`."""
        return self._is_set

    def set(self) -> None:
        """Cancel the request in progress, from any thread."""
        self._is_set = True  # before the socket is read: see attach and detach
        self._wakeups.put(None)
        self._shut_down()

    def clear(self) -> None:
        """Allow requests again."""
        self._wakeups = SimpleQueue()
        self._is_set = False

    def wait(self, seconds: float) -> bool:
        """Wait until it is set, at most so many seconds. Return True if it is set.

        Parameters
        ----------
        seconds : float
            Longest time to wait.
        """
        if not self._is_set:
            with contextlib.suppress(Empty):
                self._wakeups.get(timeout=seconds)
        return self._is_set

    def attach(self, connection: socket.socket) -> None:
        """Shut down this socket when set. If set already, shut it down now.

        Parameters
        ----------
        connection : socket.socket
            Socket of the request under way.
        """
        self._socket = connection
        if self._is_set:  # either this sees the flag, or `set` sees the socket
            self._shut_down()

    def detach(self) -> bool:
        """Forget the socket. Return True if it was not shut down, so that another request may use it."""
        self._socket = None
        return not self._is_set

    def _shut_down(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is closed already
                # for TLS too: the TCP connection below it, without a closing message
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
