"""What a session's directory holds: for each epoch a baseline and a log, and no other file.

Names, the reading and the making of whole epochs. Knows nothing of locks, of appending, or of what a session is used for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from loopkit.contract.baseline import Baseline
from loopkit.contract.records import Forked, LogRecord, SessionStart, settle
from loopkit.encoding import sha256
from loopkit.errors import (
    BaselineError,
    BaselineMismatch,
    InvalidId,
    OutOfOrder,
    SessionIOError,
    SessionNotFound,
    TornLog,
    describe,
)
from loopkit.ids import SessionId, Timestamp
from loopkit.session.concurrent_reads import is_locked, retry_unfinished
from loopkit.session.disk import create_file, make_directory, need_writing, remove, sync_directory
from loopkit.session.journal import close_line, open_regular
from loopkit.session.order import Order
from loopkit.session.scan import End, read_log

__all__ = [
    "Encoded",
    "Epoch",
    "baseline_path",
    "encode_records",
    "is_log_name",
    "load_baseline",
    "log_numbers",
    "log_path",
    "need_one",
    "read_baseline",
    "read_epochs",
    "read_live",
    "session_directories",
    "write_session",
]

_LOG_NAME = re.compile(r"(0|[1-9][0-9]*)\.jsonl", re.ASCII)


class Epoch(NamedTuple):
    """A stretch of a session with one baseline."""

    baseline: Baseline
    records: Sequence[LogRecord]

    @property
    def start(self) -> SessionStart:
        """Its first record, which holds what is pinned."""
        start = self.records[0]
        assert isinstance(start, SessionStart)
        return start


def log_path(directory: Path, epoch: int) -> Path:
    """The log of an epoch."""
    return directory / f"{epoch}.jsonl"


def baseline_path(directory: Path, epoch: int) -> Path:
    """The baseline of an epoch."""
    return directory / f"{epoch}.baseline.json"


def session_directories(home: Path) -> tuple[list[Path], list[Path]]:
    """The directories in a home's ``sessions``, in order: those with the name of a session, and those with another."""
    if not (home / "sessions").is_dir():
        return [], []
    found = [path for path in sorted((home / "sessions").iterdir()) if path.is_dir()]
    named: list[Path] = []
    others: list[Path] = []
    for path in found:
        (named if _is_session_id(path.name) else others).append(path)
    return named, others


def need_one(path: Path) -> None:
    """Refuse a home where one session is asked for.

    Raises
    ------
    SessionNotFound
        When it is a home with sessions; names them.
    """
    names = [] if log_path(path, 0).exists() else [each.name for each in session_directories(path)[0]]
    if names:
        shown = ", ".join(names[:9]) + (f" and {len(names) - 9:,} more" if len(names) > 9 else "")
        raise SessionNotFound(str(path), f"is a home, with the sessions {shown}", f"Name one: {path / 'sessions' / names[0]}")


def _is_session_id(name: str) -> bool:
    try:
        SessionId(name)
    except InvalidId:
        return False
    return True


def is_log_name(name: str) -> bool:
    """Whether a file of this name is the log of an epoch."""
    return _LOG_NAME.fullmatch(name) is not None


def log_numbers(directory: Path) -> list[int]:
    """Numbers of the epochs whose logs stand in a directory, in order; any other name is not a log's."""
    return sorted(int(match[1]) for path in directory.iterdir() if (match := _LOG_NAME.fullmatch(path.name)))


def count_epochs(directory: Path) -> int:
    """How many epochs have a log.

    Raises
    ------
    SessionNotFound
        When there is no ``0.jsonl``; names it.
    TornLog
        When one is missing before another.
    """
    count, gap = whole_epochs(directory)
    if gap is not None:
        raise gap
    return count


def whole_epochs(directory: Path) -> tuple[int, TornLog | None]:
    """How many epochs have a log before one that has none, and what is wrong where another follows that one.

    Raises
    ------
    SessionNotFound
        When there is no ``0.jsonl``; names it.
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
            why = f"it is missing, though {found}.jsonl stands there"
            return number, TornLog(str(log_path(directory, number)), 1, 0, why, str(directory))
    return len(numbers), None


def load_baseline(directory: Path, start: SessionStart) -> Baseline:
    """Read the baseline that an epoch was written under.

    Raises
    ------
    BaselineError
        When the file cannot be read or decoded.
    BaselineMismatch
        When it is not the one whose hash ``session_start`` holds.
    """
    return Baseline.from_json(read_baseline(directory, start), str(baseline_path(directory, start.epoch)))


def read_baseline(directory: Path, start: SessionStart) -> bytes:
    """Read its bytes alone, which are those that were written; raises as `load_baseline` does."""
    path = baseline_path(directory, start.epoch)
    try:
        with open_regular(path, 0) as file:  # it is read at once
            data = file.read()
    except OSError as error:
        then = f"Put back the file whose SHA-256 is {start.baseline_sha256}: no request can be rebuilt without it"
        raise BaselineError(str(path), f"cannot be read: {describe(error)}", then) from error
    found = sha256(data)
    if found != start.baseline_sha256:
        raise BaselineMismatch(str(path), start.baseline_sha256, found)
    return data


class Tail(NamedTuple):
    """Where a session stands: what memory and disk agree on."""

    order: Order
    end: End


def read_live(directory: Path, order: Order, records: list[LogRecord]) -> Tail:
    """Read the last epoch's log where another process may be writing it: then up to its last whole group.

    Parameters
    ----------
    directory : Path
        The session's.
    order : Order
        At the start of the epoch; not changed.
    records : list of LogRecord
        Filled; left empty where a writer is still at the first of an epoch that is not the session's first.

    Raises
    ------
    TornLog
        At a fault that is not a writer's.
    """

    def read() -> Tail:
        records.clear()
        reached = order.copy()
        return Tail(reached, read_log(log_path(directory, order.epoch), reached, records, session_dir=directory))

    try:
        return retry_unfinished(directory, read)
    except TornLog as torn:
        if not torn.at_end or not is_locked(directory):
            raise
        reached, sound = order.copy(), 0
        for count, record in enumerate(records, 1):
            reached.add(record)
            sound = count if reached.sound else sound
        if not sound and not order.epoch:
            raise
        del records[sound:]
        return encode_records(records, Tail(order, End(0, 0, 0))).tail


def read_epochs(directory: Path, session: str, epochs: list[Epoch], *, live: bool = False) -> Tail:
    """Read and check every epoch.

    Parameters
    ----------
    directory : Path
        The session's.
    session : str
        Its id.
    epochs : list of Epoch
        Filled.
    live : bool
        Whether another process may be writing, see :func:`read_live`.

    Raises
    ------
    SessionError
        Of the kind that says what is wrong; names the file, and in a log the line.
    """
    count, highest = count_epochs(directory), 0
    for number in range(count):
        path, records = log_path(directory, number), list[LogRecord]()
        order = Order(session, number, highest)
        if live and number + 1 == count:
            last = read_live(directory, order, records)
            if not records:
                break
            order, end = last
        else:
            end = read_log(path, order, records, session_dir=directory)
        if not order.ended and number + 1 < count:
            raise TornLog(str(path), end.line, end.size, not_ended(number), str(directory))
        start = records[0]
        assert isinstance(start, SessionStart)
        epochs.append(Epoch(load_baseline(directory, start), records))
        highest, tail = order.highest_call, Tail(order, end)
    return tail


def not_ended(number: int) -> str:
    """Say that an epoch has no end though another follows."""
    return f"the epoch has not ended, and yet {number + 1}.jsonl stands there"


class Encoded(NamedTuple):
    """Records made into lines."""

    data: bytes
    records: list[LogRecord]
    "As they read back."
    tail: Tail


def encode_records(records: Sequence[LogRecord], after: Tail) -> Encoded:
    """Make records into lines, and check that they can stand where they are to be written.

    Parameters
    ----------
    records : sequence of LogRecord
        What is to be written at once.
    after : Tail
        Where the log ends; not changed.

    Raises
    ------
    EncodeError
        When a member cannot be encoded; names it.
    OutOfOrder
        When a record cannot stand there, or the log would end in an unfinished group.
    """
    order, crc = after.order.copy(), after.end.crc
    lines: list[bytes] = []
    kept: list[LogRecord] = []
    for record in records:
        settled = settle(record)
        why = order.add(settled.record)
        if why:
            raise OutOfOrder(str(record.__struct_config__.tag), why)
        line, crc = close_line(settled.data[:-1], crc)
        lines.append(line)
        kept.append(settled.record)
    if kept and not order.sound:
        raise OutOfOrder(str(kept[-1].__struct_config__.tag), f"{order.unfinished()}; write the whole group with one extend")
    data = b"".join(lines)
    return Encoded(data, kept, Tail(order, End(crc, after.end.size + len(data), after.end.line + len(kept))))


def write_epoch(directory: Path, baseline: Baseline, encoded: Encoded) -> None:
    """Make the two files of an epoch; where that fails, neither is left."""
    paths = baseline_path(directory, encoded.tail.order.epoch), log_path(directory, encoded.tail.order.epoch)
    made: list[Path] = []
    try:
        for path, data in zip(paths, (baseline.to_json(), encoded.data)):
            create_file(path, data)
            made.append(path)
            sync_directory(directory)
    except BaseException:
        for path in reversed(made):
            remove(path)
        raise


def write_session(directory: Path, epochs: Sequence[Epoch]) -> None:
    """Make a new session of whole epochs; where that fails, none is left.

    The first epoch is written last: without ``0.jsonl`` there is no session, so that a crash leaves none or a whole one, or one
    with a torn ``0.jsonl``.

    Raises
    ------
    SessionExists
        When the directory exists.
    SessionIOError
        When the system refuses.
    EncodeError
        When a record cannot be encoded or is out of order; nothing was written.
    """
    need_writing(directory)
    encoded: list[Encoded] = []
    highest = 0
    for number, epoch in enumerate(epochs):
        encoded.append(encode_records(epoch.records, Tail(Order(epoch.start.session, number, highest), End(0, 0, 0))))
        highest = encoded[-1].tail.order.highest_call
        epoch.baseline.to_json()
    make_directory(directory)
    try:
        for epoch, lines in reversed(list(zip(epochs, encoded))):
            write_epoch(directory, epoch.baseline, lines)
    except BaseException:
        for number in range(len(epochs)):
            remove(log_path(directory, number))
            remove(baseline_path(directory, number))
        remove(directory)
        raise


def copied(epochs: Sequence[Epoch], source: str, to: SessionId) -> list[Epoch]:
    """The same epochs as another session's, each ``session_start`` with the new name and where it was taken from."""
    made = []
    for number, epoch in enumerate(epochs):
        start = structs.replace(
            epoch.start,
            time=Timestamp.now(),
            session=to,
            forked=Forked(session=source, epoch=number, line=len(epoch.records)),
        )
        made.append(Epoch(epoch.baseline, [start, *epoch.records[1:]]))
    return made
