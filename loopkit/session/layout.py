"""Names of the files and directories of a session and of a home."""

from __future__ import annotations

import re
from pathlib import Path

from loopkit.errors import InvalidId, SessionIOError, SessionNotFound, TornLog, describe
from loopkit.ids import SessionId

__all__ = [
    "baseline_path",
    "count_epochs",
    "count_whole_epochs",
    "is_log_name",
    "log_numbers",
    "log_path",
    "refuse_home",
    "session_directories",
]

_LOG_NAME = re.compile(r"(0|[1-9][0-9]*)\.jsonl", re.ASCII)


def log_path(directory: Path, epoch: int) -> Path:
    """Return the path of an epoch's log: ``<directory>/<epoch>.jsonl``."""
    return directory / f"{epoch}.jsonl"


def baseline_path(directory: Path, epoch: int) -> Path:
    """Return the path of an epoch's baseline: ``<directory>/<epoch>.baseline.json``."""
    return directory / f"{epoch}.baseline.json"


def session_directories(home: Path) -> tuple[list[Path], list[Path]]:
    """Return two sorted lists of the directories in ``<home>/sessions``: those named by a valid session id, and all others."""
    if not (home / "sessions").is_dir():
        return [], []
    found = [path for path in sorted((home / "sessions").iterdir()) if path.is_dir()]
    named: list[Path] = []
    others: list[Path] = []
    for path in found:
        (named if _is_session_id(path.name) else others).append(path)
    return named, others


def refuse_home(path: Path) -> None:
    """Raise an error if a path is a loopkit home (such as ``runs``) instead of the directory of one session.

    Raises
    ------
    SessionNotFound
        If ``path`` is a home with sessions. The message lists them.
    """
    names = [] if log_path(path, 0).exists() else [each.name for each in session_directories(path)[0]]
    if names:
        shown = ", ".join(names[:9]) + (f" and {len(names) - 9:,} more" if len(names) > 9 else "")
        raise SessionNotFound(
            str(path), f"is a home with the sessions {shown}", f"Give one, such as {path / 'sessions' / names[0]}"
        )


def _is_session_id(name: str) -> bool:
    try:
        SessionId(name)
    except InvalidId:
        return False
    return True


def is_log_name(name: str) -> bool:
    """Return True if a file name is that of an epoch's log, such as ``0.jsonl``."""
    return _LOG_NAME.fullmatch(name) is not None


def log_numbers(directory: Path) -> list[int]:
    """Return the sorted numbers of the epochs that have a log in a directory."""
    return sorted(int(match[1]) for path in directory.iterdir() if (match := _LOG_NAME.fullmatch(path.name)))


def count_epochs(directory: Path) -> int:
    """Return the number of epochs that a session's directory has logs of.

    Raises
    ------
    SessionNotFound
        If ``0.jsonl`` is missing.
    TornLog
        If the logs are not numbered without gaps: the log of an earlier epoch is missing.
    """
    count, gap = count_whole_epochs(directory)
    if gap is not None:
        raise gap
    return count


def count_whole_epochs(directory: Path) -> tuple[int, TornLog | None]:
    """Return the number of epochs before the first missing log, and the error to raise if a later log exists (else None).

    Raises
    ------
    SessionNotFound
        If ``0.jsonl`` is missing.
    """
    try:
        numbers = log_numbers(directory)
    except (FileNotFoundError, NotADirectoryError):
        raise SessionNotFound(str(log_path(directory, 0))) from None
    except OSError as error:
        raise SessionIOError(str(directory), "list", describe(error)) from error
    if not numbers or numbers[0] != 0:
        raise SessionNotFound(str(log_path(directory, 0)))
    for number, found in enumerate(numbers):
        if number != found:
            why = f"the file is missing, but {found}.jsonl exists"
            return number, TornLog(str(log_path(directory, number)), 1, 0, why, str(directory))
    return len(numbers), None
