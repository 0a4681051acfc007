"""Translation of httpx's exceptions and of HTTP errors to loopkit's errors, without keys and passwords."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import httpx

from loopkit.errors import InvalidConfig, LoopkitError, ServerError, ServerTimeout, ServerUnreachable, StreamCut, describe
from loopkit.server.transport.refusals import refusal

__all__ = ["DISCONNECTS", "FAULTS", "Faults", "is_connect_timeout"]

ERROR_BYTES = 1 << 16
"Bytes that are read of an error's body."
FAULTS = (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict, httpx.StreamError)
"Roots of all exceptions that httpx raises."
DISCONNECTS = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
"Raised by a kept connection that the server has closed in the meantime."


class Faults:
    """Translates errors of one server.

    Parameters
    ----------
    url : str
        Base URL, for messages.
    secrets : sequence of str
        Texts that no message may contain.
    has_key : bool
        True if requests carry a key or a password.
    timeout : httpx.Timeout
        Time-outs in use, for messages.
    ended : callable
        Returns why the server's process has ended; None while it runs, or if it is not ours.
    """

    def __init__(
        self, url: str, secrets: Sequence[str], *, has_key: bool, timeout: httpx.Timeout, ended: Callable[[], str | None]
    ) -> None:
        self.url, self.has_key, self.ended = url, has_key, ended
        self._secrets, self._timeout = secrets, timeout

    def hide(self, text: str) -> str:
        """Return the text without keys and passwords."""
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text

    def hidden(self, error: ServerError) -> ServerError:
        """Return the error without keys and passwords, which a server may repeat."""
        args = [self.hide(fact) if isinstance(fact, str) else fact for fact in error.args]
        return error if args == list(error.args) else type(error)(*args)

    def refused(self, status: int, body: bytes, *, attempts: int = 1, then: str = "") -> ServerError:
        """Translate an HTTP error. See `loopkit.server.transport.refusals.refusal`."""
        return self.hidden(refusal(self.url, status, body[:ERROR_BYTES], attempts=attempts, then=then, has_key=self.has_key))

    def translated(self, error: Exception, seconds: float, attempts: int = 1, received: int | None = None) -> LoopkitError:
        """Translate an exception of httpx.

        Parameters
        ----------
        error : Exception
            One of `FAULTS`.
        seconds : float
            Time since the request began.
        attempts : int
            Number of attempts so far.
        received : int, optional
            Number of events received, if a response had begun.
        """
        why = self.hide(self.ended() or describe(error))
        if is_connect_timeout(error):
            return ServerTimeout(self.url, "no connection", self._timeout.connect or seconds, "timeout")
        if isinstance(error, httpx.TimeoutException):
            return ServerTimeout(self.url, "no data received", self._timeout.read or seconds, "timeout")
        if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol)):
            return InvalidConfig("url", why)
        if received is not None:
            return StreamCut(self.url, why, received)
        return ServerUnreachable(self.url, why, seconds, attempts)


def is_connect_timeout(error: BaseException | None) -> bool:
    """Return True if no connection was established in time."""
    return isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout)
