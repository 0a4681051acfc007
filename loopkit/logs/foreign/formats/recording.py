"""Recordings: ``<home>/recordings/<id>.jsonl``, what `loopkit.record` kept of an agent's requests; FORMAT.md has a line.

The lines are ours, so their ends and ``crc`` are checked as a session's are. Each holds the very body that was sent: which
conversation it goes on with is found by that, and where a cache was lost, the byte that differs. A conversation is called
``<id>.1``, ``<id>.2``, …; one that parts from another has it as its parent.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import UNSET

from loopkit.contract.recording import RecordedRequest, decode_recorded
from loopkit.encoding import decode
from loopkit.errors import TornLog
from loopkit.logs.foreign.entries import Entry
from loopkit.logs.foreign.exchanges import Exchange, told
from loopkit.logs.foreign.text_source import Line, Source
from loopkit.logs.own.impossible_reuse import why_impossible
from loopkit.server.completion.usage import normalise
from loopkit.session.concurrent_reads import retry_unfinished
from loopkit.session.journal import body_of, checked_blocks

__all__ = ["NAME", "entries", "recognises"]

NAME = "recorded"

HEAD = b'{"kind":"recorded",'


def recognises(head: bytes) -> bool:
    """Whether a file that begins so is a recording.

    Examples
    --------
    >>> recognises(b'{"kind":"recorded","time":"2026-11-30T07:31:05.000000Z"')
    True
    """
    return head.startswith(HEAD)


def entries(source: Source, *, texts: bool) -> Iterator[Entry]:
    """What a recording says; requests without a whole answer, and counts that cannot be, are counted and left out."""
    return told(source, _exchanges(source), texts=texts, one_server=True)


def _exchanges(source: Source) -> Iterator[Exchange]:
    for number, (line, record) in enumerate(_records(source)):
        if not record.answered:
            source.left_out("requests without a whole answer")
            continue
        why = None if record.reported is UNSET else normalise(decode(bytes(record.reported), dict[str, Any])).impossible
        why = why or why_impossible(record.usage.cached_tokens, record.usage.prompt_tokens, record.engine)
        if why is not None:
            source.impossible(line, why)
        elif record.reported is not UNSET:
            source.left_out("counts of a server that do not add up; what it reported stands in the line")
        yield Exchange(
            body=record.body.encode("utf-8"),
            read=partial(_body, source.path, line.offset, len(line.data)),
            key=f"{source.path.stem} {number}",
            offset=line.offset,
            sent=record.sent,
            facts={
                "time": record.time,
                "usage": record.usage,
                "response": record.response_id,
                "model": record.model,
                "engine": record.engine,
                "finish": record.finish_reason,
            },
        )


def _records(source: Source) -> Iterator[tuple[Line, RecordedRequest]]:
    """The sound lines before the first fault, as in a log of ours."""
    path = source.path
    try:  # first to the end, which may still be written
        sound = retry_unfinished(path.parent, lambda: sum(len(block.lines) for block in checked_blocks(path)))
    except TornLog as torn:
        source.fault(Line(b"", torn.line, torn.offset), torn.why, at_end=torn.at_end)
        sound = torn.line - 1
    for block in checked_blocks(path) if sound else ():
        offset = block.offset
        for number, data in enumerate(block.lines, block.line):
            line = Line(data, number, offset)
            try:
                yield line, decode_recorded(body_of(data) + b"}")
            except ValueError as error:
                source.fault(line, f"not a record: {error}")
                return
            if number == sound:
                return
            offset += len(data)


def _body(path: Path, offset: int, size: int) -> bytes:
    """The body that was sent, out of its line."""
    with path.open("rb") as file:
        file.seek(offset)
        return decode_recorded(body_of(file.read(size)) + b"}").body.encode("utf-8")
