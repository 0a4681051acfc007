"""`Limits` of a turn, the checks behind them, and the results of tool calls that are not run."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from loopkit.encoding import canonical, decode
from loopkit.errors import InvalidConfig

__all__ = [
    "DENIED",
    "INTERRUPTED",
    "LIMIT_REACHED",
    "REPEATED",
    "Limits",
    "Repeats",
    "Verdict",
    "is_json",
    "max_tokens",
    "seconds_fault",
]

DENIED = "Denied: this call was not allowed."
"Result of a call that ``allow`` denied without a reason."
REPEATED = (
    "Not run: the calls before this one had the same name and arguments, and each gave the same result. "
    "Use that result, or do something else."
)
"Result of a call that was not run because it repeats the calls before it."
INTERRUPTED = "Interrupted: no result came. The tool may have run in part, or not at all."
"Result of a call that was pending when the turn was interrupted."
LIMIT_REACHED = "Not run: the turn has reached a limit."
"Result of a call that was pending when a limit ended the turn."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a turn.

    Parameters
    ----------
    max_requests : int
        Maximum requests in one turn. A turn that needs more stops with ``request_limit``.
    repeats : int
        The equal tool call with this number is denied. Calls in a row are equal if they have the same tool and arguments, and
        gave the same result. The second equal call after it ends the turn with ``repeated_call``. With 3, calls 3 and 4 are
        denied, and call 5 ends the turn.
    reasoning_tokens : int, optional
        Maximum reasoning tokens in one completion. With more, the turn stops with ``reasoning_limit``. By default there is no
        limit.
    completion_tokens : int, optional
        Maximum tokens in one completion, sent to the server as ``max_tokens``. The default is the server's limit.
    reserve : int, optional
        Tokens of the context that a prompt must leave free. The default is 1,024 or an eighth of the context, whichever is
        smaller.
    result_bytes : int
        Maximum UTF-8 bytes of a tool's result. A longer result is cut, and a notice is appended for the model.
    tool_seconds : float, optional
        Maximum run time of one tool call in seconds. By default there is no limit.
    malformed_retries : int
        How often the same request is sent again if the arguments of a tool call in the response are not JSON.

    Raises
    ------
    InvalidConfig
        If a limit is out of range. The message names the limit and its range.

    Examples
    --------
    >>> Limits(max_requests=3).reserve_of(4096)
    512
    >>> Limits(repeats=1)
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: limits.repeats: must be an integer of at least 2; got 1
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
                rule = f"must be an integer of at least {least}{', or None' if optional else ''}"
                raise InvalidConfig(f"limits.{name}", f"{rule}; got {value!r}")
        if (why := seconds_fault(self.tool_seconds)) is not None:
            raise InvalidConfig("limits.tool_seconds", why)

    def reserve_of(self, context_size: int) -> int:
        """Return how many tokens of a context to keep free.

        Parameters
        ----------
        context_size : int
            Size of the context in tokens.

        Examples
        --------
        >>> [Limits().reserve_of(size) for size in (1000, 8192, 131072)]
        [125, 1024, 1024]
        >>> Limits(reserve=0).reserve_of(131072)
        0
        """
        return min(1024, context_size // 8) if self.reserve is None else self.reserve


def seconds_fault(seconds: object) -> str | None:
    """Return why a value is not a valid time limit; None if it is valid: a positive number of seconds, or None for no limit."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= threading.TIMEOUT_MAX:
        return f"must be a number of seconds above 0, or None; got {seconds!r}"
    return None


def is_json(arguments: str) -> bool:
    r"""Return True if the arguments of a tool call are strict JSON, of any type.

    Only such calls are logged, because later requests send them again.

    Examples
    --------
    >>> [is_json(text) for text in ('{"n": 1.10, "n": 1}', "[]", '{"p": "a', "", "NaN", '"\\ud800"')]
    [True, True, False, False, False, False]
    """
    try:
        decode(arguments)
    except ValueError:  # includes lone surrogates, which UTF-8 cannot encode
        return False
    return True


def max_tokens(options: Mapping[str, Any]) -> Any:
    """Return ``max_tokens``, or else ``max_completion_tokens``, from the options of a request; None if both are absent.

    Examples
    --------
    >>> max_tokens({"max_completion_tokens": 64, "seed": 1}), max_tokens({})
    (64, None)
    """
    return options.get("max_tokens", options.get("max_completion_tokens"))


Verdict: TypeAlias = Literal["run", "deny", "end"]


class Repeats:
    """Counter of equal tool calls in a row, within one turn.

    Parameters
    ----------
    limit : int
        The equal call with this number is denied. The second equal call after it ends the turn. (With 3: calls 3 and 4 are
        denied, call 5 ends the turn.)

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
        self._count = 0

    def before(self, name: str, arguments: str) -> Verdict:
        """Return what to do with a call: ``run`` it, ``deny`` it with :data:`REPEATED`, or deny it and ``end`` the turn."""
        if (name, canonical(arguments)) != self._call or self._count < self._limit - 1:
            return "run"
        self._count += 1
        return "end" if self._count >= self._limit + 2 else "deny"

    def after(self, name: str, arguments: str, result: str) -> None:
        """Record a call that was run, with its result."""
        call = (name, canonical(arguments))
        self._count = self._count + 1 if (call, result) == (self._call, self._result) else 1
        self._call, self._result = call, result
