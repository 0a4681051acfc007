"""The single writer of a session: a record is in memory only after it is on disk.

A failed write is undone. If that fails too, or a sync fails, the session accepts no more records until it is opened again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from loopkit.contract.baseline import Baseline
from loopkit.contract.records import LogRecord, SessionStart
from loopkit.errors import OutOfOrder, SessionClosed, SessionIOError
from loopkit.session.disk import AppendFile, DirectoryLock, remove, remove_file
from loopkit.session.layout import baseline_path, log_path
from loopkit.session.order import Order
from loopkit.session.scan import End
from loopkit.session.store import Epoch, Tail, encode_records, write_epoch

__all__ = ["State", "Writer"]


class State(NamedTuple):
    """The content of a session in memory. A write replaces it in one step, so an interrupt leaves the old or the new state."""

    epochs: tuple[Epoch, ...]
    records: list[LogRecord]
    "Records of the current epoch. This is the same list object as ``epochs[-1].records``."
    tail: Tail


class Writer:
    """Access to a session's log: read and append with a ``lock``, read only without one.

    Parameters
    ----------
    directory : Path
        The session's directory.
    epochs : sequence of Epoch
        All epochs, read and checked.
    tail : Tail
        State after the last record.
    lock : DirectoryLock or None
        The writer's lock, already acquired; None for reading only.
    """

    def __init__(self, directory: Path, epochs: Sequence[Epoch], tail: Tail, lock: DirectoryLock | None) -> None:
        records = list(epochs[-1].records)
        self.state = State((*epochs[:-1], Epoch(epochs[-1].baseline, records)), records, tail)
        self.closed = "" if lock is not None else "it was opened with Session.read"
        self._directory, self._lock = directory, lock
        self._file = None if lock is None else AppendFile(log_path(directory, len(epochs) - 1), tail.end.size)
        self._writing = False
        self._mutex = threading.Lock()

    def extend(self, records: Sequence[LogRecord]) -> None:
        """Append records to the log with one write and one sync, then add them to `state`; see ``Session.extend``."""
        with self._mutex:
            file = self._usable()
            encoded = encode_records(records, self.state.tail)
            if not encoded.records:
                return
            try:
                file.check_unchanged()
            except SessionIOError as error:
                self.close(f"another program changed its log ({error.why})")
                raise
            self._writing = True
            try:
                file.append(encoded.data)
                self.state.records.extend(encoded.records)
                self.state = self.state._replace(tail=encoded.tail)
            except BaseException as error:
                self._cut_back(file)
                self._close_after_sync_error(error)
                raise
            self._writing = False

    def begin(self, baseline: Baseline, start: SessionStart, carried: Sequence[LogRecord]) -> None:
        """Create the files of the next epoch. Later records are appended to it; see ``Session.next_epoch``."""
        with self._mutex:
            before = self._usable()
            order = self.state.tail.order
            if not order.ended:
                raise OutOfOrder("session_start", "the epoch has not ended: append an epoch_end record before the next epoch")
            opening = Tail(Order(order.session, order.epoch + 1, order.highest_call), End(0, 0, 0))
            encoded = encode_records([start, *carried], opening)
            paths = log_path(self._directory, order.epoch + 1), baseline_path(self._directory, order.epoch + 1)
            if os.path.lexists(paths[0]):  # checked here, because the cleanup below must not remove a file of another program
                raise SessionIOError(
                    str(paths[0]), "begin the epoch", "the file already exists", "Another program changes the session's files"
                )
            remove_file(paths[1])
            try:
                write_epoch(self._directory, baseline, encoded)
                self._file = AppendFile(paths[0], encoded.tail.end.size)
                epochs = (*self.state.epochs, Epoch(baseline, encoded.records))
                self.state = State(epochs, encoded.records, encoded.tail)
            except BaseException as error:
                if self.state.tail.order is order:
                    self._file = before
                    for path in paths:
                        remove(path)
                self._close_after_sync_error(error)
                raise
            before.close()

    def close(self, why: str = "it was closed") -> None:
        """Accept no more records, and release the lock. Safe to call twice."""
        self.closed = self.closed or why
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.release()

    def _usable(self) -> AppendFile:
        if not self.closed and self._lock is not None and not self._lock.held:
            self.close("this process is a fork of the one that opened it")
        if self._writing and self._file is not None:  # a second interrupt stopped the undo after the first
            self._cut_back(self._file)
        if self._file is None:
            raise SessionClosed(str(self._directory), self.closed)
        return self._file

    def _cut_back(self, file: AppendFile) -> None:
        """Remove a partial write: truncate the file, and the records in memory, to the state before the write."""
        del self.state.records[self.state.tail.end.line :]
        try:
            file.cut(self.state.tail.end.size)
        except SessionIOError as error:
            self.close(f"a write failed, and the log could not be cut back ({error.why})")
        self._writing = False

    def _close_after_sync_error(self, error: BaseException) -> None:
        if isinstance(error, SessionIOError) and error.doing.startswith("sync"):
            self.close(f"a sync failed ({error.why}), so the content on disk is unknown")
