"""What could not be read of a log, or was counted and left out: `Problem`, a row of the frame of problems.

Knows nothing of how logs are read, and imports no pandas: a worker process makes these.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from loopkit.errors import InvalidConfig, LogError, LoopkitError, SessionIOError, TornLog

__all__ = ["Errors", "Problem", "need_errors", "problem_of"]

Errors: TypeAlias = Literal["raise", "report"]
"What to do at a fault: raise it, or read what is sound before it and put it among the problems."


class Problem(msgspec.Struct, frozen=True):
    """Something that could not be read, or was counted and left out.

    Examples
    --------
    >>> print(Problem("runs/sessions/a/0.jsonl", 7, 1310, "torn", "512 NUL bytes"))
    runs/sessions/a/0.jsonl:7: 512 NUL bytes (byte 1310 of the file)
    >>> print(Problem("chat.jsonl", None, None, "unknown_entry", "entries of the kind 'mood'", 12))
    chat.jsonl: entries of the kind 'mood' (12 times)
    """

    path: str
    line: int | None
    "From 1; None where it is about the file."
    offset: int | None
    "Byte offset of the line, or of the byte in it that is wrong."
    kind: str
    "``torn``, ``unreadable``, ``not_a_log``, ``impossible_reuse``, ``baseline``, ``left_out``; or what a log's adapter says."
    why: str
    affected: int = 1
    "Lines of a damaged stretch, or entries left out."

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        at = "" if self.offset is None else f" (byte {self.offset} of the file)"
        much = f" ({self.affected:,} {'lines' if self.kind == 'torn' else 'times'})" if self.affected > 1 else ""
        return f"{place}: {self.why}{at}{much}"


def need_errors(errors: str) -> None:
    """Refuse another word.

    Examples
    --------
    >>> need_errors("ignore")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: errors: 'ignore' is neither 'raise' nor 'report'
    """
    if errors not in ("raise", "report"):
        raise InvalidConfig("errors", f"{errors!r} is neither 'raise' nor 'report'")


def problem_of(error: LoopkitError, path: str) -> Problem:
    """The problem that an error is, where it is to be reported instead of raised.

    Examples
    --------
    >>> problem_of(TornLog("0.jsonl", 7, 1310, "512 NUL bytes"), "0.jsonl")
    Problem(path='0.jsonl', line=7, offset=1310, kind='torn', why='512 NUL bytes', affected=1)
    """
    if isinstance(error, TornLog):
        return Problem(error.path, error.line, error.offset, "torn", error.why)
    if isinstance(error, SessionIOError):
        return Problem(error.path, None, None, "unreadable", f"cannot {error.doing}: {error.why}")
    if isinstance(error, LogError):
        return Problem(error.path, None, None, "not_a_log", error.why)
    return Problem(path, None, None, "unreadable", str(error))
