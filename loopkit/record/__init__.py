"""Recording of an agent's own requests, for loops that are not loopkit's.

`proxy` records between client and server; `transport` records inside a client that uses httpx or httpx2. Both pass requests and
responses on unchanged. For each completion they write the request body, the usage and the times to
``<home>/recordings/<id>.jsonl``, which `loopkit.load` reads. Headers, cookies and URL queries are not written.
"""

from __future__ import annotations

from pathlib import Path

from loopkit.record.proxy import Proxy
from loopkit.record.transport import InnerTransport, Transport

__all__ = ["InnerTransport", "Proxy", "Transport", "proxy", "transport"]


def __dir__() -> list[str]:
    return list(__all__)


def proxy(url: str, home: str | Path = "runs", *, port: int = 0) -> Proxy:
    """Start a recording proxy on 127.0.0.1, in a thread of this process.

    The command ``loopkit record`` does the same. If the server cannot be reached, clients get status 502. Disk errors during
    recording do not stop the traffic; they are logged to ``loopkit.record``.

    Each request body is written in full, so the size of a recording grows with the square of the number of turns. If the proxy is
    restarted during a conversation, `loopkit.load` returns it as two sessions. Plain completions load as sessions of one request,
    and so do requests that refer to an earlier response instead of sending the history.

    Parameters
    ----------
    url : str
        Address of the server, ``http://`` or ``https://``, with the path that clients use as their base URL.
    home : str or Path, default "runs"
        Directory in which ``recordings/`` is created.
    port : int, default 0
        Port on which the proxy listens, 0 to 65535. 0 selects a free port.

    Returns
    -------
    Proxy
        The running proxy. Use its ``url`` as the client's base URL. The proxy stops at the end of its ``with`` block, or with
        `Proxy.close`.

    Raises
    ------
    InvalidConfig
        If `url` is not an address, or `port` is invalid or in use.
    SessionIOError
        If the directory cannot be created.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home, proxy("http://gpu-box:8080/v1", home) as recording:
    ...     recording  # doctest: +ELLIPSIS
    Proxy http://127.0.0.1:.../v1: server http://gpu-box:8080/v1, recorded 0
    >>> proxy("gpu-box:8080")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: url: the address must start with http:// or https:// and a valid host. Write it like http://host:8080
    """
    return Proxy(url, home, port)


def transport(home: str | Path = "runs", inner: InnerTransport | None = None) -> Transport:
    """Return a recording transport for a client that uses httpx or httpx2, such as the SDKs of OpenAI and Anthropic.

    Parameters
    ----------
    home : str or Path, default "runs"
        Directory in which ``recordings/`` is created.
    inner : httpx or httpx2 transport, optional
        Transport that sends the requests, for example with a proxy, a certificate or retries. By default a new
        ``HTTPTransport`` or ``AsyncHTTPTransport`` of the client's library.

    Returns
    -------
    Transport
        The argument for ``Client(transport=…)`` or ``AsyncClient(transport=…)``. Closing the client closes the transport.

    Raises
    ------
    InvalidConfig
        If `home` is not a path.
    SessionIOError
        If the directory cannot be created.

    Examples
    --------
    >>> import tempfile
    >>> import httpx
    >>> with tempfile.TemporaryDirectory() as home, httpx.Client(transport=transport(home)) as client:
    ...     client.is_closed  # OpenAI(http_client=client) records its requests
    False
    """
    return Transport(home, inner)
