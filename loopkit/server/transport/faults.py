"""Translation of httpx's exceptions and of HTTP errors to loopkit's errors, without keys and passwords."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import httpx

from loopkit.errors import InvalidConfig, LoopkitError, ServerError, ServerTimeout, ServerUnreachable, StreamCut, describe
from loopkit.server.transport.refusals import refusal

__all__ = ["DISCONNECTS", "FAULTS", "Faults", "is_connect_timeout"]

ERROR_BYTES = 1 << 16
"Largest number of bytes that are used of the body of an error response."
FAULTS = (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict, httpx.StreamError)
"Base classes of all exceptions that httpx raises."
DISCONNECTS = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
"Exceptions that httpx may raise when it uses a kept connection that the server has closed in the meantime."


class Faults:
    """Translator of httpx's exceptions and of HTTP errors of one server to loopkit's errors.

    Parameters
    ----------
    url : str
        Base URL of the server, for messages.
    secrets : sequence of str
        Keys and passwords, which are replaced by "…" in messages.
    has_key : bool
        True if requests contain a key or a password.
    timeout : httpx.Timeout
        Time-outs of the requests, for messages.
    ended : callable
        For an embedded server: returns why its process has ended, or None while the process runs. For other servers it always
        returns None.
    """

    def __init__(
        self, url: str, secrets: Sequence[str], *, has_key: bool, timeout: httpx.Timeout, ended: Callable[[], str | None]
    ) -> None:
        self.url, self.has_key, self.ended = url, has_key, ended
        self._secrets, self._timeout = secrets, timeout

    def hide(self, text: str) -> str:
        """Return the text with keys and passwords replaced by "…"."""
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text

    def hidden(self, error: ServerError) -> ServerError:
        """Return the error with keys and passwords replaced by "…", because the server's message may repeat them."""
        args = [self.hide(fact) if isinstance(fact, str) else fact for fact in error.args]
        return error if args == list(error.args) else type(error)(*args)

    def refused(self, status: int, body: bytes, *, attempts: int = 1, then: str = "") -> ServerError:
        """Return the error to raise for an HTTP error response. See `loopkit.server.transport.refusals.refusal`."""
        return self.hidden(refusal(self.url, status, body[:ERROR_BYTES], attempts=attempts, then=then, has_key=self.has_key))

    def translated(self, error: Exception, seconds: float, attempts: int = 1, received: int | None = None) -> LoopkitError:
        """Return the error to raise for an exception of httpx.

        Parameters
        ----------
        error : Exception
            Exception of one of the types in `FAULTS`.
        seconds : float
            Seconds since the request began.
        attempts : int
            Number of attempts so far.
        received : int, optional
            Number of events received. None if the response had not begun.
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
    """Return True if the exception means that no connection was established within the time-out."""
    return isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout)
