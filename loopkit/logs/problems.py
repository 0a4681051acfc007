"""`Problem`: something in a log that could not be read or was left out. Imports no pandas, for worker processes."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from loopkit.errors import InvalidConfig, LogError, LoopkitError, SessionIOError, TornLog

__all__ = ["Errors", "Problem", "check_errors", "problem_of"]

Errors: TypeAlias = Literal["raise", "report"]
"What to do about a fault in a log: raise it, or read everything before it and report it as a problem."


class Problem(msgspec.Struct, frozen=True):
    """Something that could not be read, or was left out; one row of the frame ``problems``.

    Examples
    --------
    >>> print(Problem("runs/sessions/a/0.jsonl", 7, 1310, "torn", "512 NUL bytes"))
    runs/sessions/a/0.jsonl:7: 512 NUL bytes (byte 1310 of the file)
    >>> print(Problem("chat.jsonl", None, None, "unknown_entry", "entries of the kind 'mood'", 12))
    chat.jsonl: entries of the kind 'mood' (12 times)
    """

    path: str
    line: int | None
    "Number of the line, from 1; None if the problem concerns the whole file."
    offset: int | None
    "Byte offset in the file: of the line, or of the wrong byte in the line. None if the problem has no position."
    kind: str
    "``torn``, ``unreadable``, ``not_a_log``, ``impossible_reuse``, ``baseline`` or ``left_out``; other formats may add kinds."
    why: str
    "What is wrong, as text for the user."
    affected: int = 1
    "Number of damaged lines, or of entries left out."

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        at = "" if self.offset is None else f" (byte {self.offset} of the file)"
        count = f" ({self.affected:,} {'lines' if self.kind == 'torn' else 'times'})" if self.affected > 1 else ""
        return f"{place}: {self.why}{at}{count}"


def check_errors(errors: str) -> None:
    """Raise `InvalidConfig` unless ``errors`` is ``"raise"`` or ``"report"``.

    Examples
    --------
    >>> check_errors("ignore")
    Traceback (most recent call last):
        ...
    loopkit.errors.InvalidConfig: errors: it must be 'raise' or 'report'; got 'ignore'
    """
    if errors not in ("raise", "report"):
        raise InvalidConfig("errors", f"it must be 'raise' or 'report'; got {errors!r}")


def problem_of(error: LoopkitError, path: str) -> Problem:
    """Return the problem that reports an error. ``path`` is used if the error names no file.

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
