"""What a session holds in memory and what its log holds on disk, kept equal: a record is in memory only once it is on disk.

A write that fails is undone; where nothing can be said of the disk any more, the session takes no more records until it is opened
again. Knows nothing of what the records mean beyond their order.
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
from loopkit.session.order import Order
from loopkit.session.scan import End
from loopkit.session.store import Epoch, Tail, baseline_path, encode_records, log_path, write_epoch

__all__ = ["State", "Writer"]


class State(NamedTuple):
    """All that memory holds; replaced as one, so that an interrupt finds it before or after a write, never between."""

    epochs: tuple[Epoch, ...]
    records: list[LogRecord]
    "The current epoch's: the very list that ``epochs[-1]`` shows."
    tail: Tail


class Writer:
    """The one writer of a session, or with ``lock`` None its reader.

    Parameters
    ----------
    directory : Path
        The session's.
    epochs : list of Epoch
        As they were read and checked.
    tail : Tail
        Where they end.
    lock : DirectoryLock or None
        Held already.
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
        """Write with one write and one sync, then take into memory; see ``Session.extend``."""
        with self._mutex:
            file = self._usable()
            encoded = encode_records(records, self.state.tail)
            if not encoded.records:
                return
            try:
                file.look()
            except SessionIOError as error:
                self.close(f"its log is not as it was left ({error.why})")
                raise
            self._writing = True
            try:
                file.append(encoded.data)
                self.state.records.extend(encoded.records)
                self.state = self.state._replace(tail=encoded.tail)
            except BaseException as error:
                self._cut_back(file)
                self._after(error)
                raise
            self._writing = False

    def begin(self, baseline: Baseline, start: SessionStart, carried: Sequence[LogRecord]) -> None:
        """Make the next epoch's files and go on in them; see ``Session.next_epoch``."""
        with self._mutex:
            before = self._usable()
            order = self.state.tail.order
            if not order.ended:
                raise OutOfOrder("session_start", "the epoch has not ended: epoch_end comes before the next one")
            opening = Tail(Order(order.session, order.epoch + 1, order.highest_call), End(0, 0, 0))
            encoded = encode_records([start, *carried], opening)
            paths = log_path(self._directory, order.epoch + 1), baseline_path(self._directory, order.epoch + 1)
            if os.path.lexists(paths[0]):  # nothing of it is taken back below: what stands there is not ours
                raise SessionIOError(
                    str(paths[0]), "begin the epoch", "it is there already", "Something else changes the session's files"
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
                self._after(error)
                raise
            before.close()

    def close(self, why: str = "it was closed") -> None:
        """Take no more records, and release the lock; a second time does nothing."""
        self.closed = self.closed or why
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.release()

    def _usable(self) -> AppendFile:
        if not self.closed and self._lock is not None and not self._lock.held:
            self.close("the process that opened it is another one, from which this one was forked")
        if self._writing and self._file is not None:  # a second interrupt cut short what undid the first
            self._cut_back(self._file)
        if self._file is None:
            raise SessionClosed(str(self._directory), self.closed)
        return self._file

    def _cut_back(self, file: AppendFile) -> None:
        """Bring file and memory back to the last record that both hold."""
        del self.state.records[self.state.tail.end.line :]
        try:
            file.cut(self.state.tail.end.size)
        except SessionIOError as error:
            self.close(f"a write failed, and the log could not be cut back ({error.why})")
        self._writing = False

    def _after(self, error: BaseException) -> None:
        if isinstance(error, SessionIOError) and error.doing.startswith("sync"):
            self.close(f"a sync failed ({error.why}), so what the disk holds is not known")
