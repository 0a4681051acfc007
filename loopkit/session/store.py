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
    """A part of a session whose requests all begin with the same baseline (system prompt and tools)."""

    baseline: Baseline
    records: Sequence[LogRecord]

    @property
    def start(self) -> SessionStart:
        """First record of the epoch, with the pinned options, slot, server and tags."""
        start = self.records[0]
        assert isinstance(start, SessionStart)
        return start


def load_baseline(directory: Path, start: SessionStart) -> Baseline:
    """Read and decode the baseline file of an epoch. ``start`` is the epoch's first record.

    Raises
    ------
    BaselineError
        If the file cannot be read or decoded.
    BaselineMismatch
        If the SHA-256 of the file is not the one in ``start``.
    """
    return Baseline.from_json(read_baseline(directory, start), str(baseline_path(directory, start.epoch)))


def read_baseline(directory: Path, start: SessionStart) -> bytes:
    """Read the bytes of an epoch's baseline file, and check their SHA-256. Errors are those of `load_baseline`."""
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
    """The state after the last record of a log: what may come next, and where the file ends."""

    order: Order
    end: End


def read_live(directory: Path, order: Order, records: list[LogRecord]) -> Tail:
    """Read the log of the last epoch. If another process is writing it, an unfinished group at its end is left out.

    Parameters
    ----------
    directory : Path
        The session's directory.
    order : Order
        Order check for this epoch, before its first record. It is not changed.
    records : list of LogRecord
        List to fill with the records. It stays empty if a writer has only just begun this epoch and the epoch is not the first.

    Returns
    -------
    Tail
        The state after the last record.

    Raises
    ------
    TornLog
        If the log has a fault other than an unfinished end that another process is still writing.
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
    """Read and check every epoch of a session.

    Parameters
    ----------
    directory : Path
        The session's directory.
    session : str
        The session's id.
    epochs : list of Epoch
        List to fill with the epochs.
    live : bool
        Whether another process may be writing the last epoch; see :func:`read_live`.

    Returns
    -------
    Tail
        The state after the last record of the last epoch.

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
    """Return the error message for an epoch that has no ``epoch_end`` although a later epoch exists."""
    return f"the epoch has no epoch_end record, but {number + 1}.jsonl exists"


class Encoded(NamedTuple):
    """Records encoded as lines of a log, ready to be written."""

    data: bytes
    records: list[LogRecord]
    "The same records, as a reader of the lines will decode them."
    tail: Tail


def encode_records(records: Sequence[LogRecord], after: Tail) -> Encoded:
    """Encode records as lines, and check that they may follow the last record of the log. Nothing is written.

    Parameters
    ----------
    records : sequence of LogRecord
        Records to append with one write.
    after : Tail
        State of the log before the write. It is not changed.

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
    """Create the baseline file and the log of an epoch. If this fails, neither file remains."""
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
    """Create a session with these epochs. If this fails, no file remains.

    The first epoch is written last, because a directory without ``0.jsonl`` is not a session. So after a crash there is no
    session, a whole session, or a session with a fault in ``0.jsonl``.

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
    """Return copies of epochs for a new session. Each ``session_start`` has the new id, and names the source in ``forked``."""
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
