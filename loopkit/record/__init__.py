"""Recording one's own agent: what a loop that is not loopkit's sends, and what the cache did with it.

`proxy` stands before a server, `transport` inside a client; both pass everything on as it is, and keep of each completion the raw
body, the usage and the times in ``<home>/recordings/<id>.jsonl``. Headers, cookies and queries never. `loopkit.load` reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loopkit.record.proxy import Proxy
from loopkit.record.transport import Transport

__all__ = ["Proxy", "Transport", "proxy", "transport"]


def __dir__() -> list[str]:
    return list(__all__)


def proxy(url: str, home: str | Path = "runs", *, port: int = 0) -> Proxy:
    """Stand before a server on 127.0.0.1, in a thread of this process; `loopkit record` is the same as a command.

    Parameters
    ----------
    url : str
        The server; ``http://`` or ``https://``, with the path that clients take as their base.
    home : str or Path
        Where ``recordings/`` lies.
    port : int
        On which to listen; 0 takes a free one.

    Returns
    -------
    Proxy
        Ends with its ``with`` block or `Proxy.close`. Where the server cannot be reached it answers 502.

    Raises
    ------
    InvalidConfig
        When `url` is none, or `port` is taken.
    SessionIOError
        When `home` takes no directory. A disk that refuses later stops no traffic: the log ``loopkit.record`` says what was not
        recorded.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home, proxy("http://gpu-box:8080/v1", home) as standing:
    ...     standing  # doctest: +ELLIPSIS
    Proxy http://127.0.0.1:.../v1: before http://gpu-box:8080/v1, recorded 0
    >>> proxy("gpu-box:8080")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: url: it is no http:// or https:// address. Write it like http://host:8080
    """
    return Proxy(url, home, port)


def transport(home: str | Path = "runs", inner: Any = None) -> Any:  # for each of the libraries wants a class of its own
    """Record inside a client that takes an httpx transport: httpx, httpx2, and the SDKs of OpenAI and Anthropic.

    Parameters
    ----------
    home : str or Path
        Where ``recordings/`` lies.
    inner : httpx transport, optional
        What sends; by default the client's own kind. Give one to have a proxy, a certificate or retries of yours.

    Returns
    -------
    Transport
        For ``Client(transport=…)`` and ``AsyncClient(transport=…)``; it is closed with the client.

    Raises
    ------
    SessionIOError
        As with `proxy`.

    Examples
    --------
    >>> import tempfile
    >>> import httpx
    >>> with tempfile.TemporaryDirectory() as home:
    ...     with httpx.Client(transport=transport(home)) as client:                 # OpenAI(http_client=…) takes it
    ...         pass
    """
    return Transport(home, inner)
