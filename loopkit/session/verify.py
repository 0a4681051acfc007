"""Verification of sessions from their files: checksums, record order, baselines, and every request that was sent.

Each request is rebuilt from the log, and its SHA-256 is compared with the SHA-256 that was recorded when the request was sent.
All faults are collected. Nothing is written.
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
    kind_of,
)
from loopkit.ids import TIME, SessionId
from loopkit.reprs import Card
from loopkit.session.concurrent_reads import wait_for_file
from loopkit.session.journal import Fault, body_of, checked_blocks
from loopkit.session.layout import count_whole_epochs, log_path, session_directories
from loopkit.session.order import Order
from loopkit.session.scan import read_log
from loopkit.session.session import Session
from loopkit.session.store import load_baseline, not_ended, read_live

__all__ = ["Verification", "first_mismatch", "verify"]

LOOSE: dict[str, Callable[[bytes], ReplayRecord | RecordedRequest]] = {"replays": decode_replay, "recordings": decode_recorded}
"Directories in a home with logs other than sessions, and the function that decodes a line of each."


@dataclass(frozen=True, repr=False)
class Verification:
    """Result of :func:`verify`."""

    sessions: int
    """Number of sessions checked."""
    requests: int
    """Number of requests that were rebuilt and compared with what was sent."""
    records: int
    """Number of session records without a fault."""
    faults: tuple[Fault, ...]
    """All faults, each with its file. A fault in a log also has a line and a byte offset."""
    replays: int = 0
    """Number of replay logs checked."""
    recordings: int = 0
    """Number of recordings checked."""
    lines: int = 0
    """Number of lines without a fault in replay logs and recordings."""

    @property
    def ok(self) -> bool:
        """True if every check passed."""
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
    """Check the files of sessions and return all faults.

    This checks the checksum and form of every line, the order of the records and the hash of every baseline. Every request is
    also rebuilt from the log, and its SHA-256 is compared with the one that was recorded when the request was sent.

    Parameters
    ----------
    what : Path, str, Session, or iterable of these
        A home directory such as ``runs``, a session's directory, or an open session. In a home, the lines of replay logs and
        recordings are checked too.

    Returns
    -------
    Verification
        The numbers of checked sessions, requests and records, and all faults with their positions.

    Raises
    ------
    SessionNotFound
        If a path is neither a home nor a session.
    SessionIOError
        If a directory cannot be listed.

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
            raise InvalidConfig("what", f"it must be a path or a Session; got {kind_of(one)}", "Give a home or a session")
    try:
        directories = [directory for one in whats for directory in _directories(one)]
        loose = [path for one in whats if not isinstance(one, Session) for path in _loose(Path(one))]
    except OSError as error:
        raise SessionIOError(str(error.filename or what), "read", describe(error)) from error
    faults: list[Fault] = []
    counts = [_verify_session(directory, faults) for directory in directories]
    lines = 0
    for path in loose:
        checked = _verify_loose(path)
        checked = _verify_loose(path) if checked.faults else checked  # again, because a process may have been writing a line
        lines += checked.lines
        faults += checked.faults
    replays, recordings = (sum(path.parent.name == name for path in loose) for name in LOOSE)
    requests, records = (sum(count[at] for count in counts) for at in range(2))
    return Verification(len(directories), requests, records, tuple(faults), replays, recordings, lines)


def _directories(what: Path | str | Session) -> list[Path]:
    if isinstance(what, Session):
        return [what.dir]
    path = Path(what)
    if not path.is_dir():
        raise SessionNotFound(str(path), "is a file, but a session is a directory" if path.exists() else "does not exist")
    if (path / "sessions").is_dir():
        return session_directories(path)[0]
    if log_path(path, 0).exists() or path.absolute().parent.name == "sessions":
        return [path.absolute()]
    if _loose(path):
        return []
    whole = path.absolute()
    if whole.name in LOOSE and any(path.glob("*.jsonl")):
        raise SessionNotFound(str(path), f"contains {whole.name} but no sessions", f"Give the home: {whole.parent}")
    raise SessionNotFound(str(path), "is neither a home (it has no sessions/) nor a session (it has no 0.jsonl)")


def _loose(home: Path) -> list[Path]:
    """Return the paths of the replay logs and recordings in a home."""
    return sorted(path for folder in LOOSE if (home / folder).is_dir() for path in (home / folder).glob("*.jsonl"))


class _Loose(NamedTuple):
    lines: int
    "Number of sound lines."
    faults: list[Fault]


def _verify_loose(path: Path) -> _Loose:
    """Check the lines of a replay log or recording."""
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
        count, gap = count_whole_epochs(directory)
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
    """Rebuild every request of an epoch, and find the first that differs from the request that was sent.

    Parameters
    ----------
    baseline : Baseline
        Baseline of the epoch.
    records : sequence of LogRecord
        Records of the epoch, in order.

    Returns
    -------
    tuple of (int, str), or None
        Position of the request's usage record in ``records``, and a description of the difference. None if all requests are
        equal.
    """
    start = records[0]
    assert isinstance(start, SessionStart)
    try:
        for index, record, request in replayed(start, baseline, records):
            if request.sha256 != record.request_sha256 or request.size != record.request_bytes:
                return index, (
                    f"request {record.request}, rebuilt from the log, has {request.size} bytes and SHA-256 {request.sha256}, but "
                    f"{record.request_bytes} bytes with SHA-256 {record.request_sha256} were sent: a record, the baseline or the "
                    "encoder changed. The later requests of the epoch extend this one and were not checked"
                )
    except LoopkitError as error:
        return 0, f"no request can be rebuilt: {error}"
    return None


def _faults_of(path: Path, first: TornLog) -> list[Fault]:
    """Return all faults of line endings and checksums in a log, and ``first``, the fault that reading the log found."""
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
