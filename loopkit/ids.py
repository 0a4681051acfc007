"""Identifiers, hashes and timestamps, validated when they are created.

Each class is a subclass of ``str`` or ``int``. A type checker does not accept a plain string where one of them is expected. All
current times in the package come from ``Timestamp.now``.
"""

from __future__ import annotations

import datetime
import re
import secrets
from typing import ClassVar, Self

from loopkit.encoding import sha256
from loopkit.errors import InvalidId

__all__ = ["TIME", "CallId", "ProjectId", "QueryId", "RunId", "SessionId", "Sha256Hash", "Timestamp"]

TIME = re.compile(
    r"(?!0000)(?:[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
    r"T(?:[01][0-9]|2[0-3])(?::[0-5][0-9]){2}\.[0-9]{6}Z"
)
"Regular expression of a :class:`Timestamp`. It matches only valid dates, including leap days."


class _Text(str):
    """A string that matches the pattern of its class."""

    __slots__ = ()
    _pattern: ClassVar[re.Pattern[str]]
    _rule: ClassVar[str]

    def __new__(cls, value: str) -> Self:
        if not isinstance(value, str) or not cls._pattern.fullmatch(value):
            raise InvalidId(cls.__name__, value, cls._rule)
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class SessionId(_Text):
    """Id of a session, which is also the name of its directory.

    Parameters
    ----------
    value : str
        1 to 64 characters of ``A-Za-z0-9._-``, starting with a letter or digit. Names that Windows reserves are refused.

    Raises
    ------
    InvalidId
        If the value is not a valid id.

    Examples
    --------
    >>> SessionId("lima-1")
    SessionId('lima-1')
    >>> SessionId("../etc")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidId: '../etc' is not a SessionId: it must be 1 to 64 of A-Z a-z 0-9 . _ -, starting with a letter \
or digit, and not a name that Windows reserves
    """

    __slots__ = ()
    _pattern = re.compile(r"(?!(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|\Z))[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.I | re.A)
    _rule = "1 to 64 of A-Z a-z 0-9 . _ -, starting with a letter or digit, and not a name that Windows reserves"

    @classmethod
    def new(cls) -> SessionId:
        """Return a new id. Ids created in different microseconds sort by creation time.

        Examples
        --------
        >>> SessionId.new() < SessionId.new()
        True
        """
        stamp = Timestamp.now()
        digits = re.sub(r"[-:.Z]", "", stamp)
        return cls(f"{digits}-{''.join(secrets.choice('0123456789abcdefghijklmnopqrstuvwxyz') for _ in range(4))}")


class _Name(_Text):
    __slots__ = ()
    _pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.A)
    _rule = "1 to 128 of A-Z a-z 0-9 . _ : -, starting with a letter or digit"


class ProjectId(_Name):
    """Id of a project that has a memory: 1 to 128 characters of ``A-Za-z0-9._:-``, starting with a letter or digit."""

    __slots__ = ()


class QueryId(_Name):
    """Id of a query to a memory. The same characters are allowed as in a :class:`ProjectId`."""

    __slots__ = ()


class RunId(_Name):
    """Id of a run that builds a memory. The same characters are allowed as in a :class:`ProjectId`."""

    __slots__ = ()


class Sha256Hash(_Text):
    """A SHA-256 as 64 lowercase hex digits.

    Examples
    --------
    >>> Sha256Hash.of(b"")[:8]
    'e3b0c442'
    """

    __slots__ = ()
    _pattern = re.compile(r"[0-9a-f]{64}")
    _rule = "64 lowercase hex digits"

    @classmethod
    def of(cls, data: bytes) -> Sha256Hash:
        """Return the SHA-256 of ``data``.

        Parameters
        ----------
        data : bytes
            Bytes to hash.
        """
        return cls(sha256(data))


class Timestamp(_Text):
    """A time in RFC 3339 format, in UTC, with microseconds and ``Z``. Other forms of RFC 3339 raise ``InvalidId``.

    Examples
    --------
    >>> Timestamp("2026-11-30T07:31:05.000000Z").datetime().minute
    31
    >>> Timestamp("2026-11-30T07:31:05Z")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidId: '2026-11-30T07:31:05Z' is not a Timestamp: it must be RFC 3339 in UTC with microseconds, such \
as 2026-11-30T07:31:05.000000Z
    """

    __slots__ = ()
    _pattern = TIME
    _rule = "RFC 3339 in UTC with microseconds, such as 2026-11-30T07:31:05.000000Z"

    @classmethod
    def now(cls) -> Timestamp:
        """Return the current time."""
        return cls(datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))

    def datetime(self) -> datetime.datetime:
        """Return the time as an aware ``datetime`` in UTC."""
        return datetime.datetime.fromisoformat(self)


class CallId(int):
    """Number of a tool call within a session: 1, 2, 3, …

    Examples
    --------
    >>> CallId(0)
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidId: 0 is not a CallId: it must be an integer of at least 1
    """

    __slots__ = ()

    def __new__(cls, value: int) -> Self:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidId(cls.__name__, value, "an integer of at least 1")
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"CallId({int(self)})"
