"""Records from transcripts: loopkit's sessions, other tools' logs through their adapters, JSON lines from a pipe.

A session gives one record per message of user, model and tool, with the byte offset of its line. Left out are the system prompt
(which contains the memory), reasoning, and messages that an epoch repeats from the epoch before it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias, assert_never

from loopkit.contract.provenance import Provenance, Record, Role
from loopkit.contract.records import (
    Assistant,
    CacheLoss,
    EpochEnd,
    LogRecord,
    SessionStart,
    ToolResult,
    UsageRecord,
    User,
    encode_record,
)
from loopkit.encoding import decode, encode, encode_texts
from loopkit.errors import InvalidConfig, LogError, SessionError, kind_of
from loopkit.ids import SessionId
from loopkit.logs.file_search import File, find
from loopkit.logs.foreign import formats
from loopkit.logs.problems import Problem, problem_of
from loopkit.session.journal import close_line
from loopkit.session.layout import log_path, session_directories
from loopkit.session.session import Session

__all__ = ["RefusedLine", "Sources", "Transcript", "listen", "read_lines", "transcripts"]

Sources: TypeAlias = "Session | Path | str | Iterable[Record]"

LONGEST = 1 << 26
"Length in bytes up to which a line from a pipe is read; longer lines are refused."


class Transcript(NamedTuple):
    """The path of one file (None for a pipe or list), and an iterator that reads its records one by one."""

    path: str | None
    records: Iterator[Record]


class RefusedLine(NamedTuple):
    """An input line that is not a record."""

    line: int
    "Number of the line, from 1."
    why: str
    "What is wrong with the line."

    def __str__(self) -> str:
        return f"line {self.line}: {self.why}"


def transcripts(what: Sources, problems: list[Problem] | None = None) -> Iterator[Transcript]:
    """Yield the transcripts in a session, under a path, or in a list of records.

    Parameters
    ----------
    what : Session, Path, str or iterable of Record
        A session, the directory of a session, a loopkit directory (all its sessions), another tool's log or a directory of such
        logs, or records.
    problems : list of Problem, optional
        If given, logs that cannot be read are listed here instead of raising, and the rest is read. A damaged session of loopkit
        is skipped as a whole; ``loopkit salvage`` recovers it.

    Raises
    ------
    LogError
        If there is nothing to read.
    TornLog
        If a session is damaged. The message names the line.
    InvalidConfig
        If `what` has another type, or a record is invalid. The message gives the number of the record.
    """
    if isinstance(what, Session):
        yield from _epochs(what)
    elif isinstance(what, str | Path):
        yield from _in_path(Path(os.path.abspath(what)), problems)
    elif isinstance(what, Iterable):
        yield Transcript(None, _checked(what))
    else:
        raise InvalidConfig("what", f"expected a transcript; got {kind_of(what)}", "Give a session, a path or a list of records")


def _checked(records: Iterable[Record]) -> Iterator[Record]:
    """Yield records after a check of their types. (msgspec checks types only when it decodes, not in the constructor.)"""
    for number, record in enumerate(records, 1):
        name = f"record {number}"
        if not isinstance(record, Record):
            raise InvalidConfig(name, f"expected a Record; got {kind_of(record)}", "Pass paths one by one")
        try:
            made = decode(encode_texts(record, name), Record)
        except ValueError as error:
            raise InvalidConfig(name, str(error)) from error
        if made != record:
            raise InvalidConfig(name, "it has bytes where text is expected")
        yield made


def _in_path(path: Path, problems: list[Problem] | None) -> Iterator[Transcript]:
    if (path / "0.jsonl").is_file():
        try:
            session = Session.read(path.parent.parent, SessionId(path.name))
        except SessionError as error:
            if problems is None:
                raise
            problems.append(problem_of(error, str(path)))
        else:
            yield from _epochs(session)
    elif (path / "sessions").is_dir():
        for directory in session_directories(path)[0]:
            yield from _in_path(directory, problems)
    else:
        for found in find(path):
            if isinstance(found, LogError):
                if problems is None:
                    raise found
                problems.append(problem_of(found, str(path)))
            # a directory of other tools' logs may contain any files; those that are not transcripts are skipped
            if isinstance(found, File) and not (found.scanned and formats.recognise(found.path) is None):
                texts = (record for record in formats.records(found.path, problems=problems) if record.text.strip())
                yield Transcript(str(found.path), texts)


def _epochs(session: Session) -> Iterator[Transcript]:
    for number, epoch in enumerate(session.epochs):
        path = str(log_path(session.dir, number))
        carried = epoch.start.carried.records if epoch.start.carried else 0
        yield Transcript(path, _records(f"{session.id}/{number}", epoch.records, 1 + carried))


def _records(source: str, log: Iterable[LogRecord], skip: int) -> Iterator[Record]:
    offset = 0
    for number, record in enumerate(log):
        if number >= skip:
            role, text = _role_and_text(record)
            if role is not None and text.strip():
                yield Record(role, text, record.time, Provenance(source, offset))
        offset += len(close_line(encode_record(record)[:-1], 0)[0])


def _role_and_text(record: LogRecord) -> tuple[Role | None, str]:
    match record:
        case User():
            return Role.User, record.content
        case Assistant():
            calls = (f"[calls {call.function.name} {call.function.arguments}]" for call in record.calls())
            return Role.Assistant, "\n".join(part for part in (record.content or "", *calls) if part)
        case ToolResult():
            return Role.ToolResult, record.content
        case SessionStart() | UsageRecord() | CacheLoss() | EpochEnd():
            return None, ""
        case _:
            assert_never(record)


def read_lines(stream: BinaryIO, refused: Callable[[RefusedLine], object]) -> Iterator[Record]:
    r"""Yield the records of a stream of JSON lines, one record per line.

    Parameters
    ----------
    stream : binary file
        The stream, read line by line.
    refused : callable
        Called with a `RefusedLine` for each line that is not a record. Reading then continues.

    Examples
    --------
    >>> import io
    >>> line = b'{"role":"User","text":"hi","timestamp":null,"provenance":{"source":"chat","offset":0}}\n'
    >>> [record.text for record in read_lines(io.BytesIO(line + b"{}\n" + line), print)]
    line 2: Object missing required field `role`
    ['hi', 'hi']
    """
    number = 0
    while line := stream.readline(LONGEST):
        number += 1
        if len(line) == LONGEST and not line.endswith(b"\n"):
            refused(RefusedLine(number, f"the line is longer than {LONGEST:,} bytes"))
            while (rest := stream.readline(LONGEST)) and not rest.endswith(b"\n"):
                pass
            continue
        try:
            record = decode(line, Record)
        except ValueError as error:
            refused(RefusedLine(number, str(error)))
        else:
            yield record


def listen(path: Path, take: Callable[[BinaryIO], object]) -> Iterator[None]:
    """Accept connections on a Unix socket, one after another, until interrupted.

    Yield once, when the socket is ready; resume the generator to accept connections.

    Parameters
    ----------
    path : Path
        Path of the socket, which is created here and removed at the end. Only its owner can connect.
    take : callable
        Called with the stream of each connection. The returned value is sent back as one line of JSON.

    Raises
    ------
    InvalidConfig
        If the socket cannot be created, for example because the path exists.
    """
    with socket.socket(socket.AF_UNIX) as server:
        mask = os.umask(0o177)
        try:
            server.bind(str(path))
        except OSError as error:
            raise InvalidConfig("--listen", f"cannot create a socket at {path}: {error.strerror or error}") from error
        finally:
            os.umask(mask)
        try:
            server.listen()
            yield
            while True:
                connection = server.accept()[0]
                # if the peer disconnects early, its whole lines are still used, and the result cannot be sent
                with connection, connection.makefile("rb") as stream, contextlib.suppress(ConnectionError):
                    connection.sendall(encode(take(stream)) + b"\n")
        finally:
            path.unlink(missing_ok=True)
