"""Cancellation of a request from another thread, by shutting down its socket."""

from __future__ import annotations

import contextlib
import socket
from queue import Empty, SimpleQueue

__all__ = ["Cancellation"]


class Cancellation:
    """An event that shuts down the socket of the request in progress, and of later requests until `clear` is called.

    Shutting down the socket wakes the thread that waits for the server's next byte, and its request fails like one with a broken
    connection. Neither a flag nor closing the socket would wake that thread.

    The class uses no lock, because Ctrl-C could interrupt the thread that holds it. The lock would then stay locked for all later
    turns of a loop, which use the same object.

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
        self._is_set = True  # must come before the socket is read; see attach and detach
        self._wakeups.put(None)
        self._shut_down()

    def clear(self) -> None:
        """Reset the event, so that later requests are sent normally."""
        self._wakeups = SimpleQueue()
        self._is_set = False

    def wait(self, seconds: float) -> bool:
        """Wait until `set` is called, at most for a number of seconds. Return True if the event is set.

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
        """Register the socket that `set` shuts down. If the event is set already, shut the socket down now.

        Parameters
        ----------
        connection : socket.socket
            Socket of the request in progress.
        """
        self._socket = connection
        if self._is_set:  # if `set` runs in another thread now, this line sees the flag, or `set` sees the socket
            self._shut_down()

    def detach(self) -> bool:
        """Forget the socket. Return True if it was not shut down, which means that another request may use it."""
        self._socket = None
        return not self._is_set

    def _shut_down(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # raised if the socket is closed already
                # socket.socket's method, because SSLSocket's would also change the TLS state that the other thread is using
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
