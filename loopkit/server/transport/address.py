"""Addresses of servers: the base URL, parsed and checked."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

import httpx

from loopkit.errors import InvalidConfig

__all__ = ["Address", "parse"]

_VERSION = re.compile(r"v\d+\w*")
_EXAMPLE = "Write it like http://host:8080"


class Address(NamedTuple):
    """Address of a server: its base URLs, and separately the user and password of the URL.

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
    loopkit.errors.InvalidConfig: url: the address must start with http:// or https:// and a valid host. Write it like http://host:8080
    """

    root: str
    "Base URL, without a final slash and without ``/v1``."
    api: str
    "Base URL of the OpenAI-style endpoints, such as ``/chat/completions``."
    local: bool
    "True if the host is this machine. Requests to it never use a proxy."
    login: tuple[str, str] | None
    "User and password in the URL; None if it has none."

    @classmethod
    def of(cls, url: str) -> Address:
        """Parse a base URL, which may end in ``/v1``, and return its `Address`."""
        parsed = parse(url)
        if parsed.query or parsed.fragment:
            raise InvalidConfig("url", "a base URL cannot have a query or a fragment", "Pass a key as api_key=")
        path = parsed.path.rstrip("/").removesuffix("/chat/completions")
        before, _, last = path.rpartition("/")
        is_versioned = _VERSION.fullmatch(last) is not None
        origin = f"{parsed.scheme}://{parsed.netloc.decode('ascii')}"
        return cls(
            root=origin + (before if is_versioned else path),
            api=origin + path + ("" if is_versioned else "/v1"),
            local=_is_local(parsed.host),
            login=(parsed.username, parsed.password) if parsed.userinfo else None,
        )


def parse(url: str) -> httpx.URL:
    """Parse the URL of a server and check it.

    Parameters
    ----------
    url : str
        An http or https URL with a host.

    Raises
    ------
    InvalidConfig
        `url` is not an http or https URL with a valid host and port. The message never quotes the URL, which may have a password.

    Examples
    --------
    >>> parse("http://host:99999")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: url: the port must be 1 to 65535. Write it like http://host:8080
    """
    try:
        parsed = httpx.URL(url)
        parsed.host.encode("idna")  # as name resolution does later; raises for a host with an empty label, such as "a..b"
    except (httpx.InvalidURL, TypeError, ValueError):
        parsed = httpx.URL("")
    # httpx escapes characters that are invalid in a host name with "%". An IPv6 address may contain "%" before its zone.
    is_escaped = "%" in parsed.host and ":" not in parsed.host
    if parsed.scheme not in ("http", "https") or not parsed.host.strip(".") or is_escaped:
        raise InvalidConfig("url", "the address must start with http:// or https:// and a valid host", _EXAMPLE)
    if parsed.port is not None and not 0 < parsed.port < 1 << 16:
        raise InvalidConfig("url", "the port must be 1 to 65535", _EXAMPLE)
    return parsed


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
