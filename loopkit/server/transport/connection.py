"""HTTP to one server: its address and key, time-outs, retries, and every fault as an error of loopkit's.

The body goes out byte for byte as it was built. Retried are a refused connection and the statuses 429, 502, 503 and 504: all of
them come before the first byte of an answer. Nothing else is, and nothing in the middle of an answer. A client serves one
request: no connection can have died while a tool ran, and what an interrupt leaves of one request is in no other's way. The key
and a password are in no message. Knows nothing of chat completions.
"""

from __future__ import annotations

import contextlib
import email.utils
import ipaddress
import itertools
import re
import time
from collections.abc import Callable
from typing import NamedTuple

import httpx

from loopkit.contract.request import Request
from loopkit.errors import (
    ContextExceeded,
    InvalidConfig,
    LoopkitError,
    ServerError,
    ServerTimeout,
    ServerUnreachable,
    StreamCut,
    describe,
)
from loopkit.server.transport.cancellation import HangUp
from loopkit.server.transport.refusals import refusal
from loopkit.server.transport.response import ERROR_BYTES, FAULTS, Answer

__all__ = ["Address", "Wire", "parse"]

ATTEMPTS = 4
FIRST_WAIT = 0.5  # seconds; doubled at each attempt
LONGEST_WAIT = 60.0  # seconds, whatever Retry-After says
RETRIED = frozenset({429, 502, 503, 504})
_VERSION = re.compile(r"v\d+\w*")


class Address(NamedTuple):
    """Where a server is, without user and password.

    Examples
    --------
    >>> address = Address.of("http://ann:secret@host:8080/v1/")
    >>> address.root, address.api, address.local
    ('http://host:8080', 'http://host:8080/v1', False)
    >>> Address.of("https://host/api").api
    'https://host/api/v1'
    >>> Address.of("host:8080")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: url: it is no http:// or https:// address. Write it like http://host:8080
    """

    root: str
    "Without a final slash and ``/v1``."
    api: str
    "What ``/chat/completions`` follows."
    local: bool
    "On this machine: no proxy is asked."
    login: tuple[str, str] | None
    "User and password, where the URL held them."

    @classmethod
    def of(cls, url: str) -> Address:
        parsed = parse(url)
        if parsed.query or parsed.fragment:
            raise InvalidConfig("url", "a base URL has no query", "Pass a key as api_key=")
        path = parsed.path.rstrip("/").removesuffix("/chat/completions")
        before, _, last = path.rpartition("/")
        versioned = _VERSION.fullmatch(last) is not None
        origin = f"{parsed.scheme}://{parsed.netloc.decode('ascii')}"
        login = (parsed.username, parsed.password) if parsed.userinfo else None
        return cls(
            origin + (before if versioned else path), origin + path + ("" if versioned else "/v1"), _local(parsed.host), login
        )


def parse(url: str) -> httpx.URL:
    """Parse the address of a server, which is not repeated where it is none, for it may hold a password.

    Examples
    --------
    >>> parse("http://host:99999")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: url: its port is none from 1 to 65535. Write it like http://host:8080
    """
    try:
        parsed = httpx.URL(url)
        parsed.host.encode("idna")  # as a name is looked up: an empty part of one raises only here
    except (httpx.InvalidURL, TypeError, ValueError):
        parsed = httpx.URL("")
    escaped = (
        "%" in parsed.host and ":" not in parsed.host
    )  # what no name holds, httpx writes so; an IPv6 address may have a zone
    if parsed.scheme not in ("http", "https") or not parsed.host.strip(".") or escaped:
        raise InvalidConfig("url", "it is no http:// or https:// address", "Write it like http://host:8080")
    if parsed.port is not None and not 0 < parsed.port < 1 << 16:
        raise InvalidConfig("url", "its port is none from 1 to 65535", "Write it like http://host:8080")
    return parsed


def _local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Wire:
    """Sends requests to one server.

    Parameters
    ----------
    url : str
        Base URL, with or without ``/v1``.
    api_key : str or None
        Sent as a bearer token.
    connect_timeout, read_timeout : float
        Seconds until a connection stands, and that nothing may come for.
    gone : callable
        Why the server's process is no more, None while it lives or is not ours.
    sleep : callable
        Waits between attempts.

    Attributes
    ----------
    keyed : bool
        Whether a key or a password goes with each request.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float = 300.0,
        gone: Callable[[], str | None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.address = Address.of(url)
        self.url, self.api = self.address.root, self.address.api
        self._connect_timeout, self._read_timeout = connect_timeout, read_timeout
        self._gone, self._sleep = gone, sleep
        login = self.address.login
        self._secrets = [secret for secret in (api_key, login and login[1]) if secret and len(secret) > 3]
        headers = {"Accept": "text/event-stream, application/json", "Accept-Encoding": "identity"}
        if api_key is not None:
            if not api_key.isascii() or not api_key.isprintable() or not api_key.strip():
                raise InvalidConfig("api_key", "it is empty, or holds a line break or a character outside ASCII")
            headers["Authorization"] = f"Bearer {api_key}"
        self._headers, self._cookies = httpx.Headers(headers), httpx.Cookies()  # their repr does not show the key
        self._auth = httpx.BasicAuth(*login) if login and api_key is None else None
        self.keyed = "Authorization" in self._headers or self._auth is not None
        self._tls = httpx.create_ssl_context(trust_env=not self.address.local)  # once: it reads every certificate
        self._closed = False

    def close(self) -> None:
        self._closed = True

    def need_open(self) -> None:
        """Refuse to go on with a server that was closed here."""
        if self._closed:
            raise ServerUnreachable(self.url, "this Server was closed here; serve or connect again", 0.0, 0)

    def _open(self) -> httpx.Client:
        self.need_open()
        client = httpx.Client(
            headers=self._headers,
            cookies=self._cookies,  # copied
            auth=self._auth,
            timeout=httpx.Timeout(self._read_timeout, connect=self._connect_timeout),
            limits=httpx.Limits(max_keepalive_connections=0),
            trust_env=not self.address.local,
            verify=self._tls,
        )
        # One thread has it, so there is nothing to lock; and Ctrl-C just as a lock was taken would leave it taken: httpcore takes
        # it again while it cleans up, and would wait for itself.
        for transport in (client._transport, *client._mounts.values()):
            if isinstance(transport, httpx.HTTPTransport):
                transport._pool._optional_thread_lock = contextlib.nullcontext()  # type: ignore[assignment]
        return client

    def hide(self, text: str) -> str:
        """The text without key and password."""
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text

    def hidden(self, error: ServerError) -> ServerError:
        """The error without key and password: a server may repeat them."""
        args = [self.hide(fact) if isinstance(fact, str) else fact for fact in error.args]
        return error if args == list(error.args) else type(error)(*args)

    def ask(self, url: str, body: bytes | None = None, *, timeout: float | None = None) -> bytes:
        """Put a small question, once: GET, or POST where there is a body.

        Raises
        ------
        ServerError
            Unreachable, refused, too slow.
        """
        began = time.monotonic()
        try:
            with contextlib.closing(self._open()) as client:
                response = client.request(
                    "GET" if body is None else "POST",
                    url,
                    content=body,
                    headers={} if body is None else {"Content-Type": "application/json"},
                    timeout=httpx.USE_CLIENT_DEFAULT if timeout is None else timeout,
                )
                self._cookies = client.cookies
        except FAULTS as error:
            raise self.mapped(error, time.monotonic() - began) from error
        if not response.is_success:
            raise self.hidden(refusal(self.url, response.status_code, response.content[:ERROR_BYTES], keyed=self.keyed))
        return response.content

    def send(self, request: Request, hang_up: HangUp | None = None) -> Answer:
        """Post a chat completion; comes back when an answer begins.

        Parameters
        ----------
        request : Request
            Its bytes are sent as they are.
        hang_up : HangUp, optional
            Cuts the connection from another thread, or the wait for the next attempt.

        Raises
        ------
        ServerError
            Unreachable, refused, too slow, cut, or the context exceeded.
        """
        client = self._open()
        try:
            return self._answer(client, request, hang_up)
        except BaseException:
            client.close()
            raise

    def _answer(self, client: httpx.Client, request: Request, hang_up: HangUp | None) -> Answer:
        began = time.monotonic()
        fault: LoopkitError
        for attempt in itertools.count(1):
            started = time.monotonic()
            try:
                response = client.send(
                    client.build_request(
                        "POST",
                        f"{self.address.api}/chat/completions",
                        content=request.pieces(),
                        headers={"Content-Type": "application/json", "Content-Length": str(request.size)},
                        extensions={} if hang_up is None else {"trace": hang_up.trace},
                    ),
                    stream=True,
                )
                self._cookies = client.cookies
                if response.is_success:
                    return Answer(self, client, response, attempt, started)
                fault, wait = self._refused(response, attempt), _retry_after(response)
            except FAULTS as error:
                fault, wait = self.mapped(error, time.monotonic() - began, attempt), None
                if not _connection_refused(error) or attempt == ATTEMPTS or self._gone():
                    raise fault from error
            else:
                if response.status_code not in RETRIED or attempt == ATTEMPTS or isinstance(fault, ContextExceeded):
                    raise fault
            seconds = min(FIRST_WAIT * 2 ** (attempt - 1) if wait is None else wait, LONGEST_WAIT)
            if hang_up is None:
                self._sleep(seconds)
            elif hang_up.wait(seconds):
                raise fault
        raise AssertionError("the last attempt raises")

    def _refused(self, response: httpx.Response, attempt: int) -> ServerError:
        body = b""
        with contextlib.closing(response), contextlib.suppress(httpx.TransportError):  # the status is what counts
            for data in response.iter_bytes():
                body += data
                if len(body) >= ERROR_BYTES:
                    break
        then = ""
        if response.is_redirect:
            body = body or f"it answers from {response.headers.get('location', 'elsewhere')}".encode()
            then = "Use that address"
        found = refusal(self.url, response.status_code, body[:ERROR_BYTES], attempts=attempt, then=then, keyed=self.keyed)
        return self.hidden(found)

    def mapped(self, error: Exception, seconds: float, attempts: int = 1, received: int | None = None) -> LoopkitError:
        """One of loopkit's errors for one of httpx's; `received` where an answer had begun."""
        why = self.hide(self._gone() or describe(error))
        if isinstance(error, (httpx.ConnectTimeout, httpx.PoolTimeout)):
            return ServerTimeout(self.url, "no connection", self._connect_timeout, "connect_timeout")
        if isinstance(error, httpx.TimeoutException):
            return ServerTimeout(self.url, "nothing came", self._read_timeout, "read_timeout")
        if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol)):
            return InvalidConfig("url", why)
        if received is not None:
            return StreamCut(self.url, why, received)
        return ServerUnreachable(self.url, why, seconds, attempts)


def _connection_refused(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds that the server asks to wait, None where it does not say."""
    value = response.headers.get("retry-after", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
