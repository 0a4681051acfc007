"""``read_file``: whatever log a file is, what the frames need of it, and what is wrong with it.

A file is told by what stands in it and beside it, not by its name: loopkit's own are read here, every other by an adapter. One
file, one call, nothing shared: it can be mapped over any executor. Knows nothing of homes, of dataframes, or of what was asked
for.
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
from loopkit.logs.find import PARTS, File
from loopkit.logs.foreign import formats
from loopkit.logs.frames.columns import Part
from loopkit.logs.own.reader import read_epoch, read_replay
from loopkit.logs.problems import Errors, Problem, problem_of
from loopkit.session.concurrent_reads import is_locked
from loopkit.session.journal import Fault, checked_blocks, open_regular
from loopkit.session.store import is_log_name

__all__ = ["Read", "read_file"]

SESSION, REPLAY = b'{"kind":"session_start",', b'{"kind":"replay",'
"What our logs begin with."


class Read(NamedTuple):
    """What was read of one file."""

    parts: Sequence[Part]
    problems: Sequence[Problem] = ()
    "In the order of the lines."


def read_file(file: File, errors: Errors = "raise") -> Read:
    """Read one log of any kind.

    Parameters
    ----------
    file : File
        Where it is, and how it was found.
    errors : "raise" or "report"
        What to do at a fault. Of a log of ours that is reported on, what stands before the first fault is read, up to its last
        whole group; behind it only the lines' ends and ``crc`` are checked, and each damaged stretch is one problem.

    Raises
    ------
    TornLog
        With file and line; only where errors are raised, as the others.
    LogError
        When it is no log that anything here knows, unless it was only come by in a directory: then that is a problem.
    SessionIOError
        When the system refuses.

    Examples
    --------
    >>> read_file(File(Path("no such log.jsonl")), "report").problems[0].why
    'cannot read: No such file or directory'
    """
    try:
        if file.path.name == PARTS:
            from loopkit.logs.frames.files import read_parquet  # pandas is loaded where it is needed

            return Read(*read_parquet(file.path.parent))
        reader = _reader(file.path, errors)
        if reader is None:
            return Read(*formats.read(file.path, errors=errors))
        return _ours(file.path, reader, errors)
    except LoopkitError as error:
        if errors == "raise" and not (file.scanned and isinstance(error, LogError)):
            raise
        return Read((), (problem_of(error, str(file.path)),))


def _reader(path: Path, errors: Errors) -> Callable[..., Part | None] | None:
    """What reads a log of ours; None for any other file."""
    try:
        with open_regular(path, len(SESSION)) as file:  # so that no more is read of it, for there may be many
            head = file.read(len(SESSION))
    except OSError as error:
        raise SessionIOError(str(path), "read", describe(error)) from error
    if head.startswith(REPLAY) or path.parent.name == "replays":
        return read_replay
    if is_log_name(path.name) and (head in (b"", SESSION) or path.with_suffix(".baseline.json").is_file()):
        return partial(read_epoch, errors=errors)
    if head == SESSION:
        raise LogError(
            str(path), "a session's log under another name", "It is read as 0.jsonl, in a directory of the session's name"
        )
    return None


def _ours(path: Path, reader: Callable[..., Part | None], errors: Errors) -> Read:
    try:
        try:
            part = reader(path)
        except TornLog as torn:
            if errors == "raise":
                raise _first(path, reader, torn) from None
            return _sound(path, reader)
    except OSError as error:  # it went while it was read
        raise SessionIOError(str(path), "read", describe(error)) from error
    return Read(()) if part is None else Read((part,), part.problems)


def _first(path: Path, reader: Callable[..., Part | None], torn: TornLog) -> TornLog:
    """The first of a log's faults: many lines are looked at at once, their heads before the rest, so a later one may be found."""
    while torn.line > 1:
        try:
            reader(path, lines=torn.line - 1)
            break
        except TornLog as earlier:
            if earlier.line >= torn.line:  # it was changed between
                break
            torn = earlier
    return torn


def _sound(path: Path, reader: Callable[..., Part | None]) -> Read:
    """What stands before the first fault, and the faults."""
    faults: list[Fault] = []
    deque(checked_blocks(path, faults=faults), maxlen=0)
    if is_locked(path.parent) and not _ends_whole(path):
        del faults[-1:]  # the writer is at it
    problems = _stretches(faults)
    part: Part | None = None
    first: TornLog | None = None
    lines = (problems[0].line or 1) - 1 if problems else None
    while lines != 0:
        try:
            part = reader(path, lines=lines)
            break
        except TornLog as torn:  # of a line whose crc is right; the next reading ends before it
            first, lines = torn, torn.line - 1
    found = () if part is None else part.problems
    faults_told = [] if first is None else [problem_of(first, str(path))]
    return Read(() if part is None else (part,), (*found, *faults_told, *problems))


def _ends_whole(path: Path) -> bool:
    with open_regular(path) as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _stretches(faults: Sequence[Fault]) -> list[Problem]:
    """Damaged lines that follow one another are one problem: a changed ``crc`` makes the next line wrong, too."""
    made: list[Problem] = []
    for path, line, offset, why in faults:
        last = made[-1] if made else None
        if last is not None and last.line is not None and line == last.line + last.affected:
            made[-1] = replace(last, affected=last.affected + 1)
        else:
            made.append(Problem(path, line, offset, "torn", why))
    return made
