"""Transcripts of any kind into records: loopkit's sessions, other tools' logs through their adapters, JSON lines from a pipe.

Of a session: what the user, the model and the tools said, each with the byte offset of its line. Not the system prompt, which
holds the memory itself; not reasoning; not what an epoch only carries over. Knows nothing of chunks or of what becomes of
records.
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

__all__ = ["Refused", "Sources", "Transcript", "listen", "read_lines", "transcripts"]

Sources: TypeAlias = "Session | Path | str | Iterable[Record]"

LONGEST = 1 << 26
"Bytes of a line that is still read."


class Transcript(NamedTuple):
    """Records that are read one by one, and the file that they stand in."""

    path: str | None
    records: Iterator[Record]


class Refused(NamedTuple):
    """A line that is no record."""

    line: int
    "From 1."
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.why}"


def transcripts(what: Sources, problems: list[Problem] | None = None) -> Iterator[Transcript]:
    """Find what can be read.

    Parameters
    ----------
    what : Session, Path, str or iterable of Record
        A session or its directory, a home with all its sessions, another tool's log or a directory of such, or records
        themselves.
    problems : list of Problem, optional
        Where given, what cannot be read is put here instead of raised, and the rest is read: of another tool's log all that is
        sound, of a torn session nothing, for that is for ``loopkit salvage``.

    Raises
    ------
    LogError
        When there is nothing of that kind.
    TornLog
        When a session is torn; names the line.
    InvalidConfig
        When it is none of these, or one of the records holds what none can; names it by its number.
    """
    if isinstance(what, Session):
        yield from _epochs(what)
    elif isinstance(what, str | Path):
        yield from _in_path(Path(os.path.abspath(what)), problems)
    elif isinstance(what, Iterable):
        yield Transcript(None, _checked(what))
    else:
        raise InvalidConfig("what", f"{kind_of(what)} is no transcript", "Give a session, a path, or records in a list")


def _checked(records: Iterable[Record]) -> Iterator[Record]:
    """Records that were made by hand: a Struct looks at its members only when it is decoded."""
    for number, record in enumerate(records, 1):
        name = f"record {number}"
        if not isinstance(record, Record):
            raise InvalidConfig(name, f"it is {kind_of(record)}, not a Record", "Paths are given one by one")
        try:
            made = decode(encode_texts(record, name), Record)
        except ValueError as error:
            raise InvalidConfig(name, str(error)) from error
        if made != record:
            raise InvalidConfig(name, "it holds bytes where text belongs")
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
            # in a directory of other tools' logs there may be anything: what is no transcript is passed over there
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
            role, text = _said(record)
            if role is not None and text.strip():
                yield Record(role, text, record.time, Provenance(source, offset))
        offset += len(close_line(encode_record(record)[:-1], 0)[0])


def _said(record: LogRecord) -> tuple[Role | None, str]:
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


def read_lines(stream: BinaryIO, refused: Callable[[Refused], object]) -> Iterator[Record]:
    r"""Read records, one JSON object a line.

    Parameters
    ----------
    stream : binary file
        Read line by line; memory does not grow with it.
    refused : callable
        Told of each line that is no record; the others are taken.

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
            refused(Refused(number, f"it is longer than {LONGEST:,} bytes"))
            while (rest := stream.readline(LONGEST)) and not rest.endswith(b"\n"):
                pass
            continue
        try:
            record = decode(line, Record)
        except ValueError as error:
            refused(Refused(number, str(error)))
        else:
            yield record


def listen(path: Path, take: Callable[[BinaryIO], object]) -> Iterator[None]:
    """Take records from a Unix socket, one connection after another, until interrupted; yields once, when it listens.

    Parameters
    ----------
    path : Path
        Where to make the socket; only its owner may write to it. It is removed at the end.
    take : callable
        Given each connection's stream; what it gives back is sent as one JSON line.

    Raises
    ------
    InvalidConfig
        When something stands at the path.
    """
    with socket.socket(socket.AF_UNIX) as server:
        mask = os.umask(0o177)
        try:
            server.bind(str(path))
        except OSError as error:
            raise InvalidConfig("--listen", f"no socket can be made at {path}: {error.strerror or error}") from error
        finally:
            os.umask(mask)
        try:
            server.listen()
            yield
            while True:
                connection = server.accept()[0]
                # a peer that hangs up early has its whole lines taken; there is no one left to answer
                with connection, connection.makefile("rb") as stream, contextlib.suppress(ConnectionError):
                    connection.sendall(encode(take(stream)) + b"\n")
        finally:
            path.unlink(missing_ok=True)
