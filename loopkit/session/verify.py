"""Prove a session from its files alone: every line's ``crc``, form and order, every baseline's hash, every request that was sent.

Each request is rebuilt from the log and its SHA-256 compared with the one that was recorded when it was sent, in one pass with a
running hash. Every fault is collected, not only the first. Nothing is written; knows nothing of servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from loopkit.contract.baseline import Baseline
from loopkit.contract.recording import RecordedRequest, decode_recorded
from loopkit.contract.records import LogRecord, ReplayRecord, SessionStart, decode_replay
from loopkit.contract.request import replayed
from loopkit.errors import (
    BaselineError,
    InvalidConfig,
    InvalidId,
    LoopkitError,
    SessionIOError,
    SessionNotFound,
    TornLog,
    describe,
)
from loopkit.ids import TIME, SessionId
from loopkit.reprs import Card
from loopkit.session.concurrent_reads import wait_for_file
from loopkit.session.journal import Fault, body_of, checked_blocks
from loopkit.session.order import Order
from loopkit.session.scan import read_log
from loopkit.session.session import Session
from loopkit.session.store import load_baseline, log_path, not_ended, read_live, session_directories, whole_epochs

__all__ = ["Verification", "first_mismatch", "verify"]

LOOSE: dict[str, Callable[[bytes], ReplayRecord | RecordedRequest]] = {"replays": decode_replay, "recordings": decode_recorded}
"Where a home's other logs lie, and how a line of them is read."


@dataclass(frozen=True, repr=False)
class Verification:
    """What was checked, and what is wrong."""

    sessions: int
    requests: int
    """Requests rebuilt and compared."""
    records: int
    """Sound records."""
    faults: tuple[Fault, ...]
    replays: int = 0
    recordings: int = 0
    lines: int = 0
    """Of replays and recordings, read."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults

    def _card(self) -> Card:
        facts = [("sessions", str(self.sessions)), ("records", str(self.records)), ("requests", str(self.requests))]
        loose = [("replays", self.replays), ("recordings", self.recordings), ("lines", self.lines)]
        facts += [(name, str(count)) for name, count in loose if count]
        return Card("Verified" if self.ok else "NOT verified", [*facts, ("faults", str(len(self.faults)))])

    def __repr__(self) -> str:
        return self._card().text()

    def _repr_html_(self) -> str:
        card = self._card()
        return card._replace(facts=[*card.facts, *((f"fault {n}", str(fault)) for n, fault in enumerate(self.faults, 1))]).html()


def verify(what: Path | str | Session | Iterable[Path | str | Session]) -> Verification:
    """Check sessions from their files alone.

    Parameters
    ----------
    what : Path, str, Session, or several
        A home (of its replays and recordings the lines are checked as well), a session's directory, an open session, or a list
        of them.

    Returns
    -------
    Verification
        With every fault: its file, and in a log the line and the byte.

    Raises
    ------
    SessionNotFound
        When a path is neither a home nor a session.

    Examples
    --------
    >>> verify([])
    Verified: sessions 0, records 0, requests 0, faults 0
    >>> verify("nowhere")
    Traceback (most recent call last):
        ...
    loopkit.errors.SessionNotFound: no session found: nowhere does not exist. Check the home and the session id, or create \
the session
    """
    whats = list(what) if isinstance(what, Iterable) and not isinstance(what, (str, bytes)) else [what]
    for one in whats:
        if not isinstance(one, (str, Path, Session)):
            raise InvalidConfig("what", f"{one!r} is no path", "Give a home, or a session")
    try:
        directories = [directory for one in whats for directory in _directories(one)]
        loose = [path for one in whats if not isinstance(one, Session) for path in _loose(Path(one))]
    except OSError as error:
        raise SessionIOError(str(error.filename or what), "read", describe(error)) from error
    faults: list[Fault] = []
    counts = [_verify_session(directory, faults) for directory in directories]
    lines = 0
    for path in loose:
        seen = _verify_loose(path)
        seen = _verify_loose(path) if seen.faults else seen  # a second look, for it may run right now
        lines += seen.lines
        faults += seen.faults
    replays, recordings = (sum(path.parent.name == name for path in loose) for name in LOOSE)
    requests, records = (sum(count[at] for count in counts) for at in range(2))
    return Verification(len(directories), requests, records, tuple(faults), replays, recordings, lines)


def _directories(what: Path | str | Session) -> list[Path]:
    if isinstance(what, Session):
        return [what.dir]
    path = Path(what)
    if not path.is_dir():
        raise SessionNotFound(str(path), "is a file, and a session is a directory" if path.exists() else "does not exist")
    if (path / "sessions").is_dir():
        return session_directories(path)[0]
    if log_path(path, 0).exists() or path.absolute().parent.name == "sessions":
        return [path.absolute()]
    if _loose(path):
        return []
    whole = path.absolute()
    if whole.name in LOOSE and any(path.glob("*.jsonl")):
        raise SessionNotFound(str(path), f"holds the {whole.name} of a home, and no sessions", f"Give the home: {whole.parent}")
    raise SessionNotFound(str(path), "holds no sessions: it has no sessions/, as a home has, and no 0.jsonl, as a session has")


def _loose(home: Path) -> list[Path]:
    """The logs of a home that are no sessions."""
    return sorted(path for folder in LOOSE if (home / folder).is_dir() for path in (home / folder).glob("*.jsonl"))


class _Loose(NamedTuple):
    lines: int
    "Whole ones."
    faults: list[Fault]


def _verify_loose(path: Path) -> _Loose:
    """Check the lines of a log that has no requests that could be rebuilt."""
    faults: list[Fault] = []
    lines = 0
    try:
        for block in checked_blocks(path, faults=faults):
            lines += len(block.lines)
            for index, line in enumerate(block.lines):
                why = _why_not(LOOSE[path.parent.name], body_of(line) + b"}")
                if why:
                    faults.append(Fault(str(path), block.line + index, block.offset_of(index), why))
    except SessionIOError as error:
        faults.append(Fault(str(path), None, None, f"cannot {error.doing}: {error.why}"))
    return _Loose(lines, faults if lines or faults else [Fault(str(path), 1, 0, "there is no whole record")])


def _why_not(decode: Callable[[bytes], ReplayRecord | RecordedRequest], line: bytes) -> str:
    try:
        time = decode(line).time
    except ValueError as error:
        return str(error)
    return "" if TIME.fullmatch(time) else f"{time!a} is not a Timestamp"


def _verify_session(directory: Path, faults: list[Fault]) -> tuple[int, int]:
    requests = total = highest = 0
    try:
        session = SessionId(directory.name)
        wait_for_file(log_path(directory, 0))
        count, gap = whole_epochs(directory)
    except (InvalidId, SessionNotFound, SessionIOError) as error:
        faults.append(Fault(str(directory), None, None, str(error)))
        return 0, 0
    if gap is not None:
        faults.append(Fault(gap.path, gap.line, gap.offset, gap.why))
    for number in range(count):
        path, records, before = log_path(directory, number), list[LogRecord](), len(faults)
        order = Order(session, number, highest)
        try:
            if number + 1 == count:
                order = read_live(directory, order, records).order
            elif (end := read_log(path, order, records)) and not order.ended:
                faults.append(Fault(str(path), end.line, end.size, not_ended(number)))
        except TornLog as error:
            faults += _faults_of(path, error)
        except SessionIOError as error:
            faults.append(Fault(str(path), None, None, f"cannot {error.doing}: {error.why}"))
        highest = order.highest_call
        total += len(records)
        start = records[0] if records else None
        if not isinstance(start, SessionStart):
            continue
        try:
            baseline = load_baseline(directory, start)
        except BaselineError as error:
            faults.append(Fault(error.path or str(directory), None, None, error.why))
            continue
        if len(faults) == before:
            mismatch = first_mismatch(baseline, records)
            requests += order.requests
            if mismatch is not None:
                index, why = mismatch
                faults.append(Fault(str(path), index + 1, _offset_of(path, index), why))
    return requests, total


def first_mismatch(baseline: Baseline, records: Sequence[LogRecord]) -> tuple[int, str] | None:
    """Rebuild every request of an epoch, and find the first that is not the one that was sent.

    Parameters
    ----------
    baseline : Baseline
        The epoch's.
    records : sequence of LogRecord
        The epoch's, in order.

    Returns
    -------
    tuple of (int, str), or None
        The position of its usage record, and what differs; None when every request is the one that was sent.
    """
    start = records[0]
    assert isinstance(start, SessionStart)
    try:
        for index, record, request in replayed(start, baseline, records):
            if request.sha256 != record.request_sha256 or request.size != record.request_bytes:
                return index, (
                    f"request {record.request}, rebuilt from the log, has {request.size} bytes with SHA-256 {request.sha256}, "
                    f"but {record.request_bytes} bytes with {record.request_sha256} were sent: a record, the baseline or the "
                    "encoder changed. The later requests of the epoch extend it, and were not judged"
                )
    except LoopkitError as error:
        return 0, f"no request can be rebuilt: {error}"
    return None


def _faults_of(path: Path, first: TornLog) -> list[Fault]:
    """Every fault of a torn log: those of lines by themselves, and the first of what the lines say."""
    found: list[Fault] = []
    for _ in checked_blocks(path, faults=found):
        pass
    if not any(fault.line == first.line for fault in found):
        found.append(Fault(first.path, first.line, first.offset, first.why))
    return sorted(found, key=lambda fault: fault.line or 0)


def _offset_of(path: Path, index: int) -> int:
    for block in checked_blocks(path):
        if index < block.line - 1 + len(block.lines):
            return block.offset_of(index - block.line + 1)
    return 0
