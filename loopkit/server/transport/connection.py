"""HTTP with one server: kept connections, time-outs, retries, error messages without API keys.

The bytes of a request's body are sent unchanged. A request is sent again only if no part of a completion has arrived:

- after a refused connection, or one of the HTTP statuses 429, 502, 503 and 504;
- if a kept connection turns out to be closed.

A stream that breaks off is never retried.
"""

from __future__ import annotations

import contextlib
import email.utils
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import httpx

from loopkit.contract.request import Request
from loopkit.errors import ContextExceeded, InvalidConfig, LoopkitError, ServerError, ServerUnreachable
from loopkit.server.transport.address import Address
from loopkit.server.transport.cancellation import Cancellation
from loopkit.server.transport.faults import DISCONNECTS, ERROR_BYTES, FAULTS, Faults
from loopkit.server.transport.pool import KEEPALIVE, Channel, Pool
from loopkit.server.transport.response import Response

__all__ = ["DEFAULT_TIMEOUT", "TimeoutTypes", "Wire"]

TimeoutTypes: TypeAlias = "float | httpx.Timeout | tuple[float | None, float | None, float | None, float | None] | None"
DEFAULT_TIMEOUT = httpx.Timeout(300.0, connect=10.0)
"Default time-outs in seconds. They are long because a CPU may process a long prompt for minutes before its first token."
ATTEMPTS = 4
FIRST_WAIT = 0.5  # seconds before the second attempt; the wait doubles before each further one
LONGEST_WAIT = 60.0  # seconds; a longer Retry-After of the server is shortened to this
RETRIED = frozenset({429, 502, 503, 504})
# A kept connection that fails within this many seconds was closed before the request. If it fails later, the server may have
# worked on the request.
STALE = 1.0
SECRET_HEADERS = ("authorization", "key", "token", "secret", "cookie", "password")


class Wire:
    """HTTP client of one server.

    Parameters
    ----------
    url : str
        Base URL, with or without ``/v1``.
    api_key : str, optional
        API key, sent as a bearer token.
    headers : mapping of str to str, optional
        HTTP headers to send with each request.
    timeout : float, httpx.Timeout or None
        Time-outs as in httpx, in seconds.
    transport : httpx.BaseTransport, optional
        Transport that sends the requests, instead of httpx's own. `Wire.close` closes it.
    ended : callable
        For an embedded server: returns why its process has ended, or None while the process runs. For other servers it always
        returns None.
    sleep : callable
        Function that waits a number of seconds between attempts. Tests replace it.

    Attributes
    ----------
    url, api : str
        Base URL without ``/v1``, and with it.
    has_key : bool
        True if requests contain a key or a password.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: TimeoutTypes = DEFAULT_TIMEOUT,
        transport: httpx.BaseTransport | None = None,
        ended: Callable[[], str | None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        address = Address.of(url)
        self.url, self.api, self._is_local = address.root, address.api, address.local
        self.timeout, self._transport, self._sleep = httpx.Timeout(timeout), transport, sleep
        self._headers = httpx.Headers({"Accept": "text/event-stream, application/json", "Accept-Encoding": "identity"})
        self._headers.update(_checked_headers(headers or {}, api_key))
        self._auth = httpx.BasicAuth(*address.login) if address.login and "authorization" not in self._headers else None
        secrets = [value for name, value in self._headers.items() if any(word in name for word in SECRET_HEADERS)]
        self.has_key = bool(secrets) or self._auth is not None
        secrets += [value.removeprefix("Bearer ") for value in secrets]
        secrets += address.login[1:] if address.login else ()
        secrets = sorted((secret for secret in secrets if len(secret) > 3), key=len, reverse=True)
        self._faults = Faults(self.url, secrets, has_key=self.has_key, timeout=self.timeout, ended=ended)
        self._cookies = httpx.Cookies()
        self._tls = httpx.create_ssl_context(trust_env=not self._is_local)  # created once, because it loads all certificates
        self._pool = Pool(self._client)
        self._is_closed = False

    def close(self) -> None:
        """Close all connections. Later requests raise `ServerUnreachable`."""
        self._is_closed = True
        self._pool.close()
        if self._transport is not None:
            self._transport.close()

    def need_open(self) -> None:
        """Raise `ServerUnreachable` if `close` was called."""
        if self._is_closed:
            raise ServerUnreachable(self.url, "this Server was closed. Call serve or connect again", 0.0, 0)

    def hidden(self, error: ServerError) -> ServerError:
        """Return the error with keys and passwords replaced by "…"."""
        return self._faults.hidden(error)

    def ask(self, url: str, body: bytes | None = None, *, timeout: float | None = None) -> bytes:
        """Send a request without retries, read the whole response and return its body.

        Parameters
        ----------
        url : str
            Full URL.
        body : bytes, optional
            JSON to post. Without it the request is a GET.
        timeout : float, optional
            Seconds to wait. By default the time-outs of this object.

        Raises
        ------
        ServerError
            The server is unreachable or too slow, or refuses the request.
        """
        began = time.monotonic()
        headers = {} if body is None else {"Content-Type": "application/json"}
        limit = self.timeout if timeout is None else httpx.Timeout(timeout)
        try:
            channel, response = self._begin(url, None if body is None else lambda: body, headers, limit, None)
            try:
                data = response.read()
            except BaseException:
                channel.close()
                raise
        except FAULTS as error:
            raise self._faults.translated(error, time.monotonic() - began) from error
        self._pool.give_back(channel)
        if not response.is_success:
            raise self._faults.refused(response.status_code, data)
        return data

    def send(self, request: Request, cancellation: Cancellation | None = None) -> Response:
        """Send a chat completion request, with retries, and return the response as soon as its head has arrived.

        Parameters
        ----------
        request : Request
            The request. The bytes of its body are sent unchanged.
        cancellation : Cancellation, optional
            Event with which another thread can end the request, or the wait between two attempts.

        Raises
        ------
        ServerError
            The server is unreachable or too slow, refuses the request, or the connection broke. `ContextExceeded` is raised if
            the prompt exceeds the context.
        """
        url, began = f"{self.api}/chat/completions", time.monotonic()
        headers = {"Content-Type": "application/json", "Content-Length": str(request.size)}
        fault: LoopkitError
        for attempt in itertools.count(1):
            started = time.monotonic()
            try:
                channel, response = self._begin(url, request.pieces, headers, self.timeout, cancellation)
            except FAULTS as error:
                fault, wait = self._faults.translated(error, time.monotonic() - began, attempt), None
                if not _is_connection_refused(error) or attempt == ATTEMPTS or self._faults.ended():
                    raise fault from error
            else:
                if response.is_success:
                    return self._response(channel, response, attempt, started)
                fault, wait = self._refused(channel, response, attempt), _retry_after(response)
                if response.status_code not in RETRIED or attempt == ATTEMPTS or isinstance(fault, ContextExceeded):
                    raise fault
            seconds = min(FIRST_WAIT * 2 ** (attempt - 1) if wait is None else wait, LONGEST_WAIT)
            if cancellation is None:
                self._sleep(seconds)
            elif cancellation.wait(seconds):
                raise fault
        raise AssertionError("the last attempt raises")

    def _begin(
        self,
        url: str,
        body: Callable[[], Iterable[bytes] | bytes] | None,
        headers: Mapping[str, str],
        timeout: httpx.Timeout,
        cancellation: Cancellation | None,
    ) -> tuple[Channel, httpx.Response]:
        """Send a request and return its channel and its response as soon as the head of the response has arrived."""
        while True:
            self.need_open()
            channel, sent = self._pool.take(cancellation), time.monotonic()
            try:
                client = channel.client
                if client.cookies is not self._cookies:
                    client.cookies = self._cookies  # the client makes a copy
                request = client.build_request(
                    "GET" if body is None else "POST",
                    url,
                    content=None if body is None else body(),
                    headers=headers,
                    timeout=timeout,
                    extensions={"trace": channel.tracer()},
                )
                response = client.send(request, stream=True)
                self._cookies = client.cookies
            except BaseException as error:
                channel.close()
                is_early = isinstance(error, DISCONNECTS) and time.monotonic() - sent < STALE
                is_stale = is_early and not channel.is_new
                if is_stale and not self._faults.ended() and not (cancellation and cancellation.is_set()):
                    continue
                raise
            return channel, response

    def _response(self, channel: Channel, response: httpx.Response, attempt: int, started: float) -> Response:
        def release(*, is_complete: bool) -> None:
            if is_complete:
                self._pool.give_back(channel)
            else:
                with contextlib.closing(channel):
                    response.close()

        return Response(response, self._faults, release, attempts=attempt, started=started)

    def _refused(self, channel: Channel, response: httpx.Response, attempt: int) -> ServerError:
        body = b""
        # An error while the body is read is ignored, because the status is known already.
        with contextlib.closing(channel), contextlib.suppress(httpx.TransportError):
            for data in response.iter_bytes():
                body += data
                if len(body) >= ERROR_BYTES:
                    break
        then = ""
        if response.is_redirect:
            body = body or f"the server redirects to {response.headers.get('location', 'another address')}".encode()
            then = "Use that address"
        return self._faults.refused(response.status_code, body, attempts=attempt, then=then)

    def _client(self) -> httpx.Client:
        return httpx.Client(
            headers=self._headers,
            cookies=self._cookies,
            auth=self._auth,
            limits=httpx.Limits(max_keepalive_connections=1, keepalive_expiry=KEEPALIVE),
            trust_env=not self._is_local,
            verify=self._tls,
            transport=None if self._transport is None else _Shared(self._transport),
        )


class _Shared(httpx.BaseTransport):
    """Wrapper of the user's transport without ``close``, so that closing one of the clients that share it does not close it."""

    def __init__(self, transport: httpx.BaseTransport) -> None:
        self._transport = transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._transport.handle_request(request)


def _checked_headers(headers: Mapping[str, str], api_key: str | None) -> httpx.Headers:
    """Return the user's headers, and the API key as the header ``Authorization``. Raise `InvalidConfig` for invalid values."""
    for name, value in headers.items():
        if not (name + value).isascii() or not (name + value).isprintable():
            raise InvalidConfig("headers", f"{name!a} has a line break or a character outside ASCII", "Remove it")
    checked = httpx.Headers(dict(headers))
    if api_key is None:
        return checked
    if not api_key.isascii() or not api_key.isprintable() or not api_key.strip():
        raise InvalidConfig("api_key", "it is empty, or has a line break or a character outside ASCII", "Pass the key itself")
    if "authorization" in checked:
        raise InvalidConfig("api_key", "headers= already has an Authorization header", "Pass only one of them")
    checked["Authorization"] = f"Bearer {api_key}"
    return checked


def _is_connection_refused(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None


def _retry_after(response: httpx.Response) -> float | None:
    """Return the number of seconds in the response's ``Retry-After``, which may also be a date; None if it has none."""
    value = response.headers.get("retry-after", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
