"""Copy what is sound of a torn session into a new one beside it: whole groups and whole epochs in front of the first fault.

The torn session is never touched, and what is left out is said. Knows nothing of how the fault came about.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loopkit.contract.records import LogRecord, SessionStart
from loopkit.errors import BaselineError, InvalidId, SessionError, TornLog
from loopkit.ids import SessionId
from loopkit.reprs import Card
from loopkit.session.disk import DirectoryLock, need_writing
from loopkit.session.order import Order, group_ends
from loopkit.session.scan import read_log
from loopkit.session.store import (
    Epoch,
    copied,
    load_baseline,
    log_numbers,
    log_path,
    need_one,
    not_ended,
    whole_epochs,
    write_session,
)
from loopkit.session.verify import first_mismatch

__all__ = ["Salvaged", "can_salvage", "salvage"]


@dataclass(frozen=True, repr=False)
class Salvaged:
    """What was kept of a torn session, and what was left out."""

    source: SessionId
    id: SessionId
    """The new session."""
    dir: Path
    """Its directory."""
    epochs: int
    """Epochs kept."""
    records: int
    """Records kept, over all of them."""
    left_out: tuple[str, ...]
    """One line for each file that was not taken whole: where it was cut, and why."""

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
    """Copy the sound records before the first fault into a new session.

    In the totals of a home it counts beside its original, until one of them is moved away.

    Parameters
    ----------
    source : Path or str
        The torn session's directory; never touched.
    to : SessionId
        The new session's. Its ``session_start`` records say where they were taken from.
    home : Path or str, optional
        Where the new session goes; by default beside the old one.

    Raises
    ------
    SessionNotFound
        When there is no session; of a home it names those that it holds.
    TornLog, BaselineError
        When nothing before the fault is sound, so that there is nothing to copy.
    SessionExists
        When the new session exists.
    SessionLocked
        When the old one is open for writing.
    """
    directory, to = Path(source).absolute(), SessionId(to)
    target = (directory.parent if home is None else Path(home) / "sessions") / to
    need_writing(target)
    need_one(Path(source))
    name = SessionId(directory.name)
    count, gap = whole_epochs(directory)
    lock = DirectoryLock(directory)
    try:
        kept, left_out = _sound(directory, name, count)
        if gap is not None and not left_out:
            left_out = [f"{Path(gap.path).name}: {gap.why}", *_later(directory, count)]
    finally:
        lock.release()
    write_session(target, copied(kept, name, to))
    return Salvaged(name, to, target, len(kept), sum(len(epoch.records) for epoch in kept), tuple(left_out))


def can_salvage(directory: Path) -> bool:
    """Whether something of a session stands before its first fault; nothing is written."""
    try:
        return bool(_sound(directory, SessionId(directory.name), whole_epochs(directory)[0])[0])
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
            return kept, [f"{path.name}: from line {first + 1} on ({why})", *_later(directory, number)]
        highest = order.highest_call
    return kept, []


def _later(directory: Path, number: int) -> list[str]:
    """Say of each epoch behind this one that it was left out."""
    return [f"{log_path(directory, later).name}: all of it" for later in log_numbers(directory) if later > number]


def _whole_groups(directory: Path, records: list[LogRecord], order: Order) -> tuple[Epoch | None, SessionError | None]:
    """As much of an epoch as ends with a whole group, and the error where a request in it is not the one that was sent."""
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
