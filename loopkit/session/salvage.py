"""Copying the sound part of a torn session into a new session: whole groups and epochs before the first fault.

A session is torn if one of its files has a fault. A group is a request with its response and tool results. The torn session is
never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loopkit.contract.records import LogRecord, SessionStart
from loopkit.errors import BaselineError, InvalidId, SessionError, TornLog
from loopkit.ids import SessionId
from loopkit.reprs import Card
from loopkit.session.disk import DirectoryLock, require_writable
from loopkit.session.layout import count_whole_epochs, log_numbers, log_path, refuse_home
from loopkit.session.order import Order, group_ends
from loopkit.session.scan import read_log
from loopkit.session.store import Epoch, copy_epochs, load_baseline, not_ended, write_session
from loopkit.session.verify import first_mismatch

__all__ = ["Salvaged", "can_salvage", "salvage"]


@dataclass(frozen=True, repr=False)
class Salvaged:
    """Result of :func:`salvage`."""

    source: SessionId
    """Id of the torn session."""
    id: SessionId
    """Id of the new session."""
    dir: Path
    """Directory of the new session."""
    epochs: int
    """Number of epochs copied."""
    records: int
    """Number of records copied, over all epochs."""
    left_out: tuple[str, ...]
    """One line for each file that was not copied completely: where it was cut, and why."""

    def _card(self) -> Card:
        facts = [("from", self.source), ("epochs", str(self.epochs)), ("records", str(self.records))]
        return Card(f"Salvaged {self.id}", [*facts, *(("left out", line) for line in self.left_out)])

    def __repr__(self) -> str:
        return self._card().text()

    def __str__(self) -> str:
        return self._card().whole()

    def _repr_html_(self) -> str:
        return self._card().html()


def salvage(source: Path | str, to: SessionId, home: Path | str | None = None) -> Salvaged:
    """Copy the records before the first fault of a session into a new session.

    If both sessions are in the same home, totals over the home count the copied requests twice. To avoid this, move one away.

    Parameters
    ----------
    source : Path or str
        Directory of the torn session. It is never changed.
    to : SessionId
        Id of the new session. Its ``session_start`` records name the torn session as their source.
    home : Path or str, optional
        Home directory of the new session; by default that of the torn session.

    Returns
    -------
    Salvaged
        The new session's id and directory, the numbers of copied epochs and records, and what was left out.

    Raises
    ------
    SessionNotFound
        If ``source`` is not a session. If it is a home, the message lists the sessions in it.
    TornLog, BaselineError
        If there is no whole record before the first fault.
    SessionExists
        If the new session already exists.
    SessionLocked
        If the torn session is open for writing.
    """
    directory, to = Path(source).absolute(), SessionId(to)
    target = (directory.parent if home is None else Path(home) / "sessions") / to
    require_writable(target)
    refuse_home(Path(source))
    name = SessionId(directory.name)
    count, gap = count_whole_epochs(directory)
    lock = DirectoryLock(directory)
    try:
        kept, left_out = _sound(directory, name, count)
        if gap is not None and not left_out:
            left_out = [f"{Path(gap.path).name}: {gap.why}", *_later(directory, count)]
    finally:
        lock.release()
    write_session(target, copy_epochs(kept, name, to))
    return Salvaged(name, to, target, len(kept), sum(len(epoch.records) for epoch in kept), tuple(left_out))


def can_salvage(directory: Path) -> bool:
    """Return True if :func:`salvage` could copy at least one record of a session. Nothing is written."""
    try:
        return bool(_sound(directory, SessionId(directory.name), count_whole_epochs(directory)[0])[0])
    except (InvalidId, SessionError):
        return False


def _sound(directory: Path, session: SessionId, count: int) -> tuple[list[Epoch], list[str]]:
    kept: list[Epoch] = []
    highest = 0
    for number in range(count):
        path, records = log_path(directory, number), list[LogRecord]()
        order = Order(session, number, highest)
        error: SessionError | None = None
        try:
            end = read_log(path, order, records, session_dir=directory)
            if not order.ended and number + 1 < count:
                error = TornLog(str(path), end.line, end.size, not_ended(number), str(directory))
        except TornLog as found:
            error = found
        epoch, changed = _whole_groups(directory, records, Order(session, number, highest))
        if epoch is not None:
            kept.append(epoch)
        error = changed or error
        if error is not None:
            if not kept:
                if isinstance(error, TornLog):
                    why = "Nothing before it is sound, so there is nothing to copy"
                    raise TornLog(error.path, error.line, error.offset, error.why, error.session_dir, why)
                raise error
            first = 0 if epoch is None else len(epoch.records)
            why = f"line {error.line}: {error.why}" if isinstance(error, TornLog) else str(error)
            return kept, [f"{path.name}: line {first + 1} and later ({why})", *_later(directory, number)]
        highest = order.highest_call
    return kept, []


def _later(directory: Path, number: int) -> list[str]:
    """Return one line of text for each epoch after ``number``. These epochs are not copied."""
    return [f"{log_path(directory, later).name}: the whole file" for later in log_numbers(directory) if later > number]


def _whole_groups(directory: Path, records: list[LogRecord], order: Order) -> tuple[Epoch | None, SessionError | None]:
    """Return the part of an epoch that can be copied, or None, and an error or None.

    The part ends after its last whole group. If a request rebuilt from the log differs from the request that was sent, the part
    ends before this request, and the error says so. A missing or changed baseline is the other possible error.
    """
    sound = 0
    for count, record in enumerate(records, 1):
        order.add(record)
        sound = count if order.sound else sound
    if not sound:
        return None, None
    start = records[0]
    assert isinstance(start, SessionStart)
    try:
        baseline = load_baseline(directory, start)
    except BaselineError as error:
        return None, error
    mismatch = first_mismatch(baseline, records[:sound])
    if mismatch is None:
        return Epoch(baseline, records[:sound]), None
    index, why = mismatch
    torn = TornLog(str(log_path(directory, order.epoch)), index + 1, 0, why, str(directory))
    sound = max((end for end in group_ends(records[:sound]) if end <= index), default=0)
    return (Epoch(baseline, records[:sound]) if sound else None), torn
