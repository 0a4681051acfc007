"""Reading and writing of a session's epochs, each a baseline and a log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from loopkit.contract.baseline import Baseline
from loopkit.contract.records import Forked, LogRecord, SessionStart, encode_stored
from loopkit.encoding import sha256
from loopkit.errors import (
    BaselineError,
    BaselineMismatch,
    OutOfOrder,
    TornLog,
    describe,
)
from loopkit.ids import SessionId, Timestamp
from loopkit.session.concurrent_reads import is_locked, retry_unfinished
from loopkit.session.disk import create_file, make_directory, remove, require_writable, sync_directory
from loopkit.session.journal import close_line, open_regular
from loopkit.session.layout import baseline_path, count_epochs, log_path
from loopkit.session.order import Order
from loopkit.session.scan import End, read_log

__all__ = [
    "Encoded",
    "Epoch",
    "encode_records",
    "load_baseline",
    "read_baseline",
    "read_epochs",
    "read_live",
    "write_session",
]


class Epoch(NamedTuple):
    """A part of a session with one baseline."""

    baseline: Baseline
    records: Sequence[LogRecord]

    @property
    def start(self) -> SessionStart:
        """First record of the epoch, with the pinned options, slot, server and tags."""
        start = self.records[0]
        assert isinstance(start, SessionStart)
        return start


def load_baseline(directory: Path, start: SessionStart) -> Baseline:
    """Read the baseline of an epoch.

    Raises
    ------
    BaselineError
        If the file cannot be read or decoded.
    BaselineMismatch
        If its hash is not the one that ``session_start`` records.
    """
    return Baseline.from_json(read_baseline(directory, start), str(baseline_path(directory, start.epoch)))


def read_baseline(directory: Path, start: SessionStart) -> bytes:
    """Read the checked bytes of an epoch's baseline; raises the same errors as `load_baseline`."""
    path = baseline_path(directory, start.epoch)
    try:
        with open_regular(path, 0) as file:  # no buffer: the whole file is read in one call
            data = file.read()
    except OSError as error:
        then = f"Requests cannot be rebuilt without it: restore the file with SHA-256 {start.baseline_sha256}"
        raise BaselineError(str(path), f"cannot be read: {describe(error)}", then) from error
    found = sha256(data)
    if found != start.baseline_sha256:
        raise BaselineMismatch(str(path), start.baseline_sha256, found)
    return data


class Tail(NamedTuple):
    """The state after the last record: the same in memory and on disk."""

    order: Order
    end: End


def read_live(directory: Path, order: Order, records: list[LogRecord]) -> Tail:
    """Read the log of the last epoch, up to the last whole group if another process is writing it.

    Parameters
    ----------
    directory : Path
        The session's directory.
    order : Order
        State at the start of the epoch; not changed.
    records : list of LogRecord
        List to fill. It stays empty if a writer has just begun an epoch other than the first.

    Returns
    -------
    Tail
        The state after the last record.

    Raises
    ------
    TornLog
        If the log has a fault that a running write does not explain.
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
        The session's directory.
    session : str
        The session's id.
    epochs : list of Epoch
        List to fill.
    live : bool
        Allow that another process is writing; see :func:`read_live`.

    Returns
    -------
    Tail
        The state after the last record.

    Raises
    ------
    SessionError
        If a file is missing or has a fault. The message names the file, and the line in a log.
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
    """Return the message for an epoch without ``epoch_end`` that another epoch follows."""
    return f"the epoch has no epoch_end record, but {number + 1}.jsonl exists"


class Encoded(NamedTuple):
    """Records encoded as lines."""

    data: bytes
    records: list[LogRecord]
    "The records as a reader will decode them."
    tail: Tail


def encode_records(records: Sequence[LogRecord], after: Tail) -> Encoded:
    """Encode records as lines, and check that they may follow the last record.

    Parameters
    ----------
    records : sequence of LogRecord
        Records of one write.
    after : Tail
        State of the log before the write; not changed.

    Returns
    -------
    Encoded
        The bytes to write, the records, and the state after the write.

    Raises
    ------
    EncodeError
        If a member cannot be encoded.
    OutOfOrder
        If a record must not follow the one before, or the log would end inside a record group.
    """
    order, crc = after.order.copy(), after.end.crc
    lines: list[bytes] = []
    kept: list[LogRecord] = []
    for record in records:
        stored = encode_stored(record)
        why = order.add(stored.record)
        if why:
            raise OutOfOrder(str(record.__struct_config__.tag), why)
        line, crc = close_line(stored.data[:-1], crc)
        lines.append(line)
        kept.append(stored.record)
    if kept and not order.sound:
        raise OutOfOrder(str(kept[-1].__struct_config__.tag), f"{order.unfinished()}; write the whole group with one extend")
    data = b"".join(lines)
    return Encoded(data, kept, Tail(order, End(crc, after.end.size + len(data), after.end.line + len(kept))))


def write_epoch(directory: Path, baseline: Baseline, encoded: Encoded) -> None:
    """Create the two files of an epoch. If this fails, neither file remains."""
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
    """Create a session of whole epochs. If this fails, no file remains.

    The first epoch is written last, because a directory without ``0.jsonl`` is not a session. So a crash leaves no session, a
    whole session, or a session with a torn ``0.jsonl``.

    Raises
    ------
    SessionExists
        If the directory exists.
    SessionIOError
        If the operating system refuses an operation.
    EncodeError
        If a record cannot be encoded or is out of order. Nothing was written.
    """
    require_writable(directory)
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


def copy_epochs(epochs: Sequence[Epoch], source: str, to: SessionId) -> list[Epoch]:
    """Return epochs for a new session: each ``session_start`` gets the new id and the source of the copy."""
    copies = []
    for number, epoch in enumerate(epochs):
        start = structs.replace(
            epoch.start,
            time=Timestamp.now(),
            session=to,
            forked=Forked(session=source, epoch=number, line=len(epoch.records)),
        )
        copies.append(Epoch(epoch.baseline, [start, *epoch.records[1:]]))
    return copies
