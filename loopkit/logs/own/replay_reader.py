"""Reading and checking of replay logs, ``<home>/replays/<id>.jsonl``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
from msgspec import UNSET, Raw

from loopkit.contract.records import ReplayRecord
from loopkit.logs.frames.columns import REQUESTS, ColumnBuilder, Part, loss_columns
from loopkit.logs.own.checksums import Lines
from loopkit.logs.own.decoding import decode_lines, growth, read_lines
from loopkit.logs.own.error_lines import locate_invalid_time, torn_at
from loopkit.logs.own.impossible_reuse import find_impossible, reported_usage
from loopkit.session.concurrent_reads import retry_unfinished

__all__ = ["read_replay"]

_decoder = msgspec.json.Decoder(ReplayRecord)


def read_replay(path: Path, *, lines: int | None = None) -> Part:
    """Read a replay log, ``<home>/replays/<id>.jsonl``.

    Parameters
    ----------
    path : Path
        The log.
    lines : int, optional
        Read only this many lines. All lines by default.

    Raises
    ------
    TornLog
        If the log is damaged. The error names the file and the line.
    """
    return retry_unfinished(path.parent, lambda: _read_replay(path, lines))


def _read_replay(path: Path, limit: int | None) -> Part:
    usage = ColumnBuilder({**REQUESTS, "lost_tokens": "count"})
    losses: list[ReplayRecord] = []
    rows: list[int] = []
    first: ReplayRecord | None = None
    reported: dict[int, Raw] = {}
    rows_read = 0
    with locate_invalid_time(path):
        for records in chain.from_iterable(_decode(path, lines) for lines in read_lines(path, limit)):
            first = first or records[0]
            for row, record in enumerate(records, rows_read):
                if (record.session, record.variant, record.request) != (first.session, first.variant, row + 1):
                    raise torn_at(path, row, "it is not the next request of this replay")
                if record.lost_tokens:
                    if not _is_whole_loss(record):
                        raise torn_at(path, row, "it reports lost tokens without their cause or counts")
                    losses.append(record)
                    rows.append(row)
            usage.add(records)
            reported |= reported_usage(records, rows_read)
            rows_read += len(records)
        columns = usage.arrays()
    if first is None:
        raise torn_at(path, 0, "there is no whole record", at_end=True)
    columns["turn"] = np.full(rows_read, -1)
    columns["new_bytes"] = growth(columns["request_bytes"])
    return Part(
        source="replay",
        path=str(path),
        session=path.stem,
        parent=first.session,
        variant=first.variant,
        model=first.model,
        engine=first.engine,
        started=columns["time"][0],
        ended=columns["time"][-1],
        usage=columns,
        losses=loss_columns(losses, np.array(rows, np.intp)),
        problems=find_impossible(path, first.engine, columns, np.arange(rows_read), reported),
    )


def _is_whole_loss(loss: ReplayRecord) -> bool:
    """Return True if the record of a request that lost tokens has all members of a cache loss."""
    why = (loss.cause, loss.certainty, loss.fixable_by, loss.location, loss.evidence)
    return UNSET not in why and None not in (loss.expected_tokens, loss.usage.cached_tokens)


def _decode(path: Path, lines: Lines) -> Iterator[list[ReplayRecord]]:
    opened = np.frombuffer(lines.data, np.uint8).take(lines.starts) == ord("{")
    if not opened.all():  # lines are joined before decoding, so a record could continue in the next line
        raise torn_at(path, lines.number - 1 + int(opened.argmin()), "it does not begin with a record")
    return decode_lines(_decoder, path, lines, np.arange(lines.starts.size))
