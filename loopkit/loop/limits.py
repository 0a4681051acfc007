"""How far a turn may run: the limits, the arithmetic of each, and the sentences that answer a call that is not run.

Pure: counts and compares, stops nothing. The loop asks and acts. Knows nothing of servers, tools or the log.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from loopkit.encoding import decode, encode
from loopkit.errors import EncodeError, InvalidConfig

__all__ = [
    "DENIED",
    "INTERRUPTED",
    "LIMIT_REACHED",
    "REPEATED",
    "Limits",
    "Repeats",
    "Verdict",
    "canonical",
    "is_json",
    "max_tokens",
    "seconds_fault",
]

DENIED = "Denied: this call was not allowed."
"The answer to a call that ``allow`` refused without a reason."
REPEATED = (
    "Not run: the calls before this one had the same name and arguments, and each gave the same result. "
    "Use that result, or do something else."
)
"The answer to the same call again."
INTERRUPTED = "Interrupted: no result came. The tool may have run in part, or not at all."
"The answer to a call that was open when the turn was interrupted."
LIMIT_REACHED = "Not run: the turn has reached a limit."
"The answer to a call that was open when a limit ended the turn."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What bounds a turn.

    Parameters
    ----------
    max_requests : int
        Requests in one turn.
    repeats : int
        Which of the same calls in a row (same tool, arguments and result) is no longer run; two more end the turn.
    reasoning_tokens : int, optional
        Reasoning tokens in one completion.
    completion_tokens : int, optional
        Tokens of one completion; the server's own limit where not given.
    reserve : int, optional
        Tokens of the context to keep free; 1,024 or an eighth where not given, whichever is smaller.
    result_bytes : int
        UTF-8 bytes of a tool's result.
    tool_seconds : float, optional
        Seconds that a tool may take.
    malformed_retries : int
        How often the same bytes are sent again after a call whose arguments are not JSON.

    Raises
    ------
    InvalidConfig
        Names the limit and what it may be.

    Examples
    --------
    >>> Limits(max_requests=3).reserve_of(4096)
    512
    >>> Limits(repeats=1)
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: limits.repeats: 1 is not a whole number from 2 on
    """

    max_requests: int = 25
    repeats: int = 3
    reasoning_tokens: int | None = None
    completion_tokens: int | None = None
    reserve: int | None = None
    result_bytes: int = 16384
    tool_seconds: float | None = None
    malformed_retries: int = 1

    def __post_init__(self) -> None:
        for name, least, optional in (
            ("max_requests", 1, False),
            ("repeats", 2, False),
            ("reasoning_tokens", 1, True),
            ("completion_tokens", 1, True),
            ("reserve", 0, True),
            ("result_bytes", 1, False),
            ("malformed_retries", 0, False),
        ):
            value = getattr(self, name)
            if value is None and optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                rule = f"a whole number from {least} on" + (", or None" if optional else "")
                raise InvalidConfig(f"limits.{name}", f"{value!r} is not {rule}")
        if (why := seconds_fault(self.tool_seconds)) is not None:
            raise InvalidConfig("limits.tool_seconds", why)

    def reserve_of(self, context_size: int) -> int:
        """Tokens of a context of that size to keep free.

        Examples
        --------
        >>> [Limits().reserve_of(size) for size in (1000, 8192, 131072)]
        [125, 1024, 1024]
        >>> Limits(reserve=0).reserve_of(131072)
        0
        """
        return min(1024, context_size // 8) if self.reserve is None else self.reserve


def seconds_fault(seconds: object) -> str | None:
    """Say why something is not a time-out, or None."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= threading.TIMEOUT_MAX:
        return f"{seconds!r} is not a number of seconds above 0, or None"
    return None


def is_json(arguments: str) -> bool:
    r"""Whether the arguments of a call can be replayed: strict JSON, though not necessarily an object.

    Examples
    --------
    >>> [is_json(text) for text in ('{"n": 1.10, "n": 1}', "[]", '{"p": "a', "", "NaN", '"\\ud800"')]
    [True, True, False, False, False, False]
    """
    try:
        decode(arguments)
    except ValueError:  # of this kind too: lone surrogates, which UTF-8 has no form for
        return False
    return True


def max_tokens(options: Mapping[str, Any]) -> Any:
    """What a request's options say of the most tokens of a completion; None where they say nothing.

    Examples
    --------
    >>> max_tokens({"max_completion_tokens": 64, "seed": 1}), max_tokens({})
    (64, None)
    """
    return options.get("max_tokens", options.get("max_completion_tokens"))


def canonical(arguments: str) -> bytes:
    r"""One form for arguments that say the same, to compare and never to send; what is not JSON stays as it is.

    Key order, white space and escapes do not count; ``1`` and ``1.0`` differ, for a tool may tell them apart.

    Examples
    --------
    >>> canonical('{"b": 1, "a": "é"}') == canonical('{"a":"\u00e9","b":1}')
    True
    >>> canonical('{"b": 1}') == canonical('{"b": 1.0}')
    False
    """
    try:
        return encode(_sorted_keys(decode(arguments)))
    except (ValueError, EncodeError, RecursionError):
        return arguments.encode("utf-8", "surrogatepass")


def _sorted_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted_keys(value[key]) for key in sorted(value)}
    return [_sorted_keys(inner) for inner in value] if isinstance(value, list) else value


Verdict: TypeAlias = Literal["run", "deny", "end"]


class Repeats:
    """The same call again, in a row: counts over one turn.

    Parameters
    ----------
    limit : int
        Which of the equal calls is no longer run; two more end the turn.

    Examples
    --------
    >>> repeats = Repeats(3)
    >>> for _ in range(2):
    ...     assert repeats.before("ls", '{"p": "."}') == "run"
    ...     repeats.after("ls", '{"p": "."}', "a.py")
    >>> [repeats.before("ls", '{"p":"."}') for _ in range(3)]
    ['deny', 'deny', 'end']
    >>> repeats.before("ls", '{"p": ".."}')
    'run'
    """

    def __init__(self, limit: int = 3) -> None:
        self._limit = limit
        self._call: tuple[str, bytes] | None = None
        self._result: str | None = None
        self._equal = 0

    def before(self, name: str, arguments: str) -> Verdict:
        """Ask before a call is run: ``run`` it, ``deny`` it (:data:`REPEATED`), or ``deny`` it and ``end`` the turn."""
        if (name, canonical(arguments)) != self._call or self._equal < self._limit - 1:
            return "run"
        self._equal += 1
        return "end" if self._equal >= self._limit + 2 else "deny"

    def after(self, name: str, arguments: str, result: str) -> None:
        """Tell of a call that was run."""
        call = (name, canonical(arguments))
        self._equal = self._equal + 1 if (call, result) == (self._call, self._result) else 1
        self._call, self._result = call, result
