"""Recordings of `loopkit.record`: ``<home>/recordings/<id>.jsonl``. FORMAT.md has an example line.

Line ends and ``crc`` are checked as in session logs. Each line has the exact request body. So requests can be assigned to
conversations by their messages, and a cause can name the first byte that differs. Conversations are called ``<id>.1``,
``<id>.2``, …. If a conversation branches off from another, that one is its ``parent``.
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
from loopkit.logs.foreign.log_file import read_range
from loopkit.logs.foreign.logged_exchanges import LoggedExchange, exchange_entries
from loopkit.logs.foreign.text_source import TextLine, TextSource
from loopkit.logs.own.impossible_reuse import why_impossible
from loopkit.server.completion.usage import normalise
from loopkit.session.concurrent_reads import retry_unfinished
from loopkit.session.journal import body_of, checked_blocks

__all__ = ["NAME", "entries", "recognises"]

NAME = "recorded"

HEAD = b'{"kind":"recorded",'


def recognises(head: bytes) -> bool:
    """Return True if a file with these first bytes is a recording of loopkit.

    Examples
    --------
    >>> recognises(b'{"kind":"recorded","time":"2026-11-30T07:31:05.000000Z"')
    True
    """
    return head.startswith(HEAD)


def entries(source: TextSource, *, texts: bool) -> Iterator[Entry]:
    """Yield the entries of a recording. Requests without a complete response are left out."""
    return exchange_entries(source, _exchanges(source), texts=texts, one_server=True)


def _exchanges(source: TextSource) -> Iterator[LoggedExchange]:
    for number, (line, record) in enumerate(_records(source)):
        if not record.answered:
            source.count_left_out("requests without a complete response")
            continue
        why = None if record.reported is UNSET else normalise(decode(bytes(record.reported), dict[str, Any])).impossible
        why = why or why_impossible(record.usage.cached_tokens, record.usage.prompt_tokens, record.engine)
        if why is not None:
            source.add_impossible_reuse(line, why)
        elif record.reported is not UNSET:
            source.count_left_out("inconsistent token counts of a server. The line has them as reported")
        yield LoggedExchange(
            body=record.body.encode("utf-8"),
            read_body=partial(_body, source.path, line.offset, len(line.data)),
            key=f"{source.path.stem} {number}",
            offset=line.offset,
            sent=record.sent,
            facts={
                "time": record.time,
                "usage": record.usage,
                "response": record.response_id,
                "model": record.model,
                "engine": record.engine,
                "finish_reason": record.finish_reason,
            },
        )


def _records(source: TextSource) -> Iterator[tuple[TextLine, RecordedRequest]]:
    """Yield each line before the first damaged one, with its record."""
    path = source.path
    try:  # count the sound lines first, because the last line may still be being written
        sound = retry_unfinished(path.parent, lambda: sum(len(block.lines) for block in checked_blocks(path)))
    except TornLog as torn:
        source.add_fault(TextLine(b"", torn.line, torn.offset), torn.why, at_end=torn.at_end)
        sound = torn.line - 1
    for block in checked_blocks(path) if sound else ():
        offset = block.offset
        for number, data in enumerate(block.lines, block.line):
            line = TextLine(data, number, offset)
            try:
                yield line, decode_recorded(body_of(data) + b"}")
            except ValueError as error:
                source.add_fault(line, f"cannot decode the record: {error}")
                return
            if number == sound:
                return
            offset += len(data)


def _body(path: Path, offset: int, size: int) -> bytes:
    """Read a request body again, from its line in the file."""
    return decode_recorded(body_of(read_range(path, offset, size)) + b"}").body.encode("utf-8")
