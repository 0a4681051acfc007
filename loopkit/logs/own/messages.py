"""Messages and rebuilt requests of a session log, for which the log is read a second time.

Reading ends where the first reading ended, so that the frames of one load agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec import UNSET

from loopkit.cache.losses.session_observations import observations
from loopkit.contract.baseline import message_of, system_message
from loopkit.contract.messages import encode_message
from loopkit.contract.records import Assistant, LogRecord, SessionStart, ToolResult, User
from loopkit.engines.evidence.observation import Observation
from loopkit.errors import LogError
from loopkit.logs.frames.columns import Columns, Message, message, message_columns
from loopkit.session.journal import Fault, checked_blocks, torn
from loopkit.session.scan import decode_block
from loopkit.session.store import Epoch, load_baseline

__all__ = ["read_messages", "read_requests"]


def read_messages(path: Path, lines: int, *, content: bool, system: bool = True) -> Columns:
    """Read the messages of an epoch, in the order in which they were sent.

    Parameters
    ----------
    path : Path
        ``<session directory>/<epoch>.jsonl``
    lines : int
        Number of lines to read.
    content : bool
        Whether to keep the texts of the messages.
    system : bool
        Whether to include the system message. Pass False if the baseline file is known not to match the log.

    Raises
    ------
    TornLog, BaselineError, SessionIOError
        If the log or its baseline is damaged.
    LogError
        If the log has fewer lines than when it was loaded.
    """
    return message_columns(_messages(path, lines, content=content, system=system))


def _messages(path: Path, lines: int, *, content: bool, system: bool) -> Iterator[Message]:
    position = carried = turn = 0
    for record in _records(path, lines):
        if isinstance(record, SessionStart):
            carried = 0 if record.carried is UNSET else record.carried.records
            if system:
                first = system_message(load_baseline(path.parent, record))
                yield message(None, 0, "system", encode_message(first), content=first.content if content else None)
        sent = message_of(record)
        if sent is None or not isinstance(record, (User, Assistant, ToolResult)):
            continue
        position += 1
        if position > carried:
            turn += isinstance(record, User) or not turn
        yield message(
            turn if position > carried else None,
            position,
            sent.role,
            encode_message(sent),
            tool=record.name if isinstance(record, ToolResult) else None,
            truncated=record.truncated if isinstance(record, ToolResult) else None,
            neutralised=None if isinstance(record, Assistant) else 0 if record.neutralised is UNSET else record.neutralised,
            content=record.content if content and record.content is not UNSET else None,
        )


def read_requests(path: Path, lines: int) -> Iterator[Observation]:
    """Rebuild the requests of an epoch, one for each of its usage records.

    Raises
    ------
    TornLog, BaselineError, SessionIOError
        If the log or its baseline is damaged.
    LogError
        If the log has fewer lines than when it was loaded.
    """
    records = list(_records(path, lines))
    start = records[0]
    assert isinstance(start, SessionStart)
    return observations(_Session((Epoch(load_baseline(path.parent, start), records),)))


class _Session(NamedTuple):
    epochs: tuple[Epoch, ...]


def _records(path: Path, lines: int) -> Iterator[LogRecord]:
    for block in checked_blocks(path, session_dir=path.parent):
        sound = block._replace(lines=block.lines[: lines + 1 - block.line])
        records, why = decode_block(sound)
        yield from records
        if why:
            at = len(records)
            raise torn(Fault(str(path), block.line + at, block.offset_of(at), why), path.parent)
        if block.line + len(block.lines) > lines:
            return
    raise LogError(str(path), "the log has changed since it was loaded", "Load it again")
