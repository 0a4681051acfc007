"""``read_file``: tell loopkit's own logs from other tools' by their first bytes, and read one file.

The first bytes of a file and the files beside it show whether it is one of loopkit's own logs. All other files are passed to the
readers of other tools' formats. Each call is independent, so it can run on any executor.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from loopkit.errors import LogError, LoopkitError, SessionIOError, TornLog, describe
from loopkit.logs.file_search import PARTS, File
from loopkit.logs.foreign import formats
from loopkit.logs.frames.columns import Part
from loopkit.logs.own.epoch_reader import read_epoch
from loopkit.logs.own.replay_reader import read_replay
from loopkit.logs.problems import Errors, Problem, problem_of
from loopkit.session.concurrent_reads import is_locked
from loopkit.session.journal import Fault, checked_blocks, open_regular
from loopkit.session.layout import is_log_name

__all__ = ["Read", "read_file"]

SESSION, REPLAY = b'{"kind":"session_start",', b'{"kind":"replay",'
"First bytes of loopkit's own logs: of a session's epoch, and of a replay."


class Read(NamedTuple):
    """Result of `read_file`: the parts and problems of one file."""

    parts: Sequence[Part]
    problems: Sequence[Problem] = ()
    "What could not be read or was left out, in the order of the lines."


def read_file(file: File, errors: Errors = "raise") -> Read:
    """Read one log of any kind.

    Parameters
    ----------
    file : File
        The file, and how it was found.
    errors : "raise" or "report"
        What to do about a fault: raise it, or return it as a problem. With ``"report"``, loopkit's own log is read up to the last
        complete record group before the first fault. Later lines are not loaded, but their endings and checksums are checked.
        Consecutive damaged lines are one problem.

    Raises
    ------
    TornLog
        If the log is damaged. This and the other errors are raised only if ``errors`` is ``"raise"``.
    LogError
        If the format is unknown. If the search found the file in a directory (``file.scanned``), this is a problem instead.
    SessionIOError
        If the operating system refuses access.

    Examples
    --------
    >>> read_file(File(Path("no such log.jsonl")), "report").problems[0].why
    'cannot read: No such file or directory'
    """
    try:
        if file.path.name == PARTS:
            from loopkit.logs.frames.files import read_parquet  # imports pandas

            return Read(*read_parquet(file.path.parent))
        reader = _reader(file.path, errors)
        if reader is None:
            return Read(*formats.read(file.path, errors=errors))
        return _read_own(file.path, reader, errors)
    except LoopkitError as error:
        if errors == "raise" and not (file.scanned and isinstance(error, LogError)):
            raise
        return Read((), (problem_of(error, str(file.path)),))


def _reader(path: Path, errors: Errors) -> Callable[..., Part | None] | None:
    """Return the function that reads this log if it is one of loopkit's own; None for any other file."""
    try:
        with open_regular(path, len(SESSION)) as file:  # the buffer is no larger than needed
            head = file.read(len(SESSION))
    except OSError as error:
        raise SessionIOError(str(path), "read", describe(error)) from error
    if head.startswith(REPLAY) or path.parent.name == "replays":
        return read_replay
    if is_log_name(path.name) and (head in (b"", SESSION) or path.with_suffix(".baseline.json").is_file()):
        return partial(read_epoch, errors=errors)
    if head == SESSION:
        raise LogError(
            str(path), "it is a session's log under another name", "Name it 0.jsonl, in a directory named by the session id"
        )
    return None


def _read_own(path: Path, reader: Callable[..., Part | None], errors: Errors) -> Read:
    try:
        try:
            part = reader(path)
        except TornLog as torn:
            if errors == "raise":
                raise _first_fault(path, reader, torn) from None
            return _read_before_fault(path, reader)
    except OSError as error:  # the file was removed meanwhile
        raise SessionIOError(str(path), "read", describe(error)) from error
    return Read(()) if part is None else Read((part,), part.problems)


def _first_fault(path: Path, reader: Callable[..., Part | None], torn: TornLog) -> TornLog:
    """Return the fault in the earliest line. Start from ``torn``, the fault that a reading found.

    Blocks of lines are checked in several steps, so a reading may find a later fault first.
    """
    while torn.line > 1:
        try:
            reader(path, lines=torn.line - 1)
            break
        except TornLog as earlier:
            if earlier.line >= torn.line:  # the file changed meanwhile
                break
            torn = earlier
    return torn


def _read_before_fault(path: Path, reader: Callable[..., Part | None]) -> Read:
    """Read the records before the first fault. Return them with a problem for each fault in the file."""
    faults: list[Fault] = []
    deque(checked_blocks(path, faults=faults), maxlen=0)
    if is_locked(path.parent) and not _ends_whole(path):
        del faults[-1:]  # a writer has not finished this line
    problems = _merge_faults(faults)
    part: Part | None = None
    first: TornLog | None = None
    lines = (problems[0].line or 1) - 1 if problems else None
    while lines != 0:
        try:
            part = reader(path, lines=lines)
            break
        except TornLog as torn:  # a line with a correct checksum but a wrong record; read up to it
            first, lines = torn, torn.line - 1
    found = () if part is None else part.problems
    wrong_record = [] if first is None else [problem_of(first, str(path))]
    return Read(() if part is None else (part,), (*found, *wrong_record, *problems))


def _ends_whole(path: Path) -> bool:
    with open_regular(path) as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _merge_faults(faults: Sequence[Fault]) -> list[Problem]:
    """Merge faults in consecutive lines into one problem: a wrong ``crc`` also makes the next line fail its check."""
    merged: list[Problem] = []
    for path, line, offset, why in faults:
        last = merged[-1] if merged else None
        if last is not None and last.line is not None and line == last.line + last.affected:
            merged[-1] = replace(last, affected=last.affected + 1)
        else:
            merged.append(Problem(path, line, offset, "torn", why))
    return merged
